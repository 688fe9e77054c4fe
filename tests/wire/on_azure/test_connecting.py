"""What `azure.connect` takes, what it never shows, and what it makes."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Sequence
from typing import Any, cast

import pytest
from azure.core.exceptions import ServiceResponseTimeoutError
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from msgspec.structs import replace

from outbox import App, Client, Reject, Retries, Worker, azure
from outbox.azure import AzureBackend, addresses
from outbox.azure.blobs.account import BlobAccount
from outbox.azure.cosmos import account as cosmos_account
from outbox.azure.cosmos.containers import ContainerSpec
from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.azure.transport import OnceTransport
from outbox.azure.usage import reason_of
from outbox.emulator.faults import FaultRule
from outbox.engine.entities import Settlement
from outbox.errors import OutboxError, OutcomeUnknown, Refused, Throttled, UnknownDestination, Unreachable
from outbox.message import Message
from outbox.ports import Output, QueueRef, StorePorts
from outbox.stored import state_key
from tests.wire.on_azure.ground import Place, place
from tests.wire.on_azure.ledger_app import Account, Order, ledger_app

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
COSMOS = f"AccountEndpoint=https://bank.documents.azure.com;AccountKey={KEY};"
BUS = f"Endpoint=sb://bank.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey={KEY}"
BLOBS = f"DefaultEndpointsProtocol=https;AccountName=bank;AccountKey={KEY};EndpointSuffix=core.windows.net"


class Token:
    """A credential that is never asked."""

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        raise AssertionError("nothing was to be opened")

    async def close(self) -> None:
        raise AssertionError("whoever gives a credential closes it")


def everything_about(value: object, depth: int = 6) -> str:
    """What can be seen of an object and all that it is made of by their own words."""
    texts = [repr(value), str(value)]
    if depth and type(value).__module__.startswith("outbox"):
        for name in [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]:
            inner = getattr(value, name, None)
            if type(inner).__module__.startswith("outbox"):
                texts.append(everything_about(inner, depth - 1))
    return "\n".join(texts)


async def test_a_credential_is_closed_by_whoever_gave_it() -> None:
    closed = list[str]()

    class Given(Token):
        async def close(self) -> None:
            closed.append("given")

    cosmos, servicebus = "https://bank.documents.azure.com", "bank.servicebus.windows.net"
    async with azure.connect(cosmos=cosmos, servicebus=servicebus, database="bank", credential=Given()):
        pass
    assert closed == []


async def test_a_closed_account_asks_for_its_containers_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Opened:
        def __init__(self, number: int) -> None:
            self.number = number

        def get_database_client(self, database: str) -> Opened:
            return self

        def get_container_client(self, name: str) -> str:
            return f"{name} of client {self.number}"

        async def close(self) -> None:
            closed.append(self.number)

    numbers = iter(range(9))

    async def opened() -> Opened:
        return Opened(next(numbers))

    account = cosmos_account.CosmosAccount("https://bank.documents.azure.com", "bank", KEY)
    monkeypatch.setattr(account, "_open", opened)
    for number in range(3):
        assert [str(await account.container("states")) for _ in range(2)] == [f"states of client {number}"] * 2
        await account.close()
        await account.close()
    assert closed == [0, 1, 2]
    made = list[str]()

    async def create(client: Any, database: str, spec: ContainerSpec) -> None:
        made.append(spec.name)
        await asyncio.sleep(0)

    monkeypatch.setattr(cosmos_account, "create_containers", create)
    for _ in range(2):
        await asyncio.gather(*(account.made(ContainerSpec("states")) for _ in range(3)))
    assert made == ["states"]  # else each of its calls would ask again


def test_no_key_is_ever_shown() -> None:
    backend = azure.connect(cosmos=COSMOS, database="bank", servicebus=BUS, blobs=BLOBS)
    shown = everything_about(backend) + everything_about(backend.ports())
    assert "AzureBackend" in shown and KEY not in shown and "SharedAccess" not in shown


async def test_no_key_is_logged_or_shown_when_nothing_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = azure.connect(
        cosmos=f"AccountEndpoint=http://127.0.0.1:9;AccountKey={KEY};",
        database="bank",
        servicebus=f"Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey={KEY};UseDevelopmentEmulator=true;",
        blobs=f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:9/a;",
    )
    told = ""
    async with backend:
        for call in (
            backend.store.read(state_key("Account:alice")),
            backend.bus.send([Output("orders", 0, Message(body=b"1"))]),
            backend.bus.receive("orders", count_max=1, wait_s=0.1),
            backend.blobs.write("a", b"1"),
            backend.operations.is_idle(["orders"]),
        ):
            with pytest.raises(OutboxError) as caught:
                await call
            told += f"{caught.value!r} {caught.value}"
    assert KEY not in told + caplog.text
    assert [part._client for part in backend._closing if isinstance(part, BlobAccount)] == [None], "it is closed"


def test_what_is_no_address_and_no_connection_string_is_refused_without_telling_it() -> None:
    good: dict[str, Any] = {"cosmos": COSMOS, "servicebus": BUS, "blobs": BLOBS}
    for name, bad in (
        ("cosmos", f"AccountEndpoint=https://a;Key={KEY}"),
        ("cosmos", "bank"),
        ("servicebus", "https://bank.servicebus.windows.net"),
        ("servicebus", f"SharedAccessKey={KEY}"),
        ("blobs", f"SharedAccessSignature={KEY}"),
    ):
        with pytest.raises(ValueError, match=f"{name}= is neither") as caught:
            azure.connect(database="bank", **{**good, name: bad})
        assert KEY not in str(caught.value)
    with pytest.raises(ValueError, match="scope"):
        azure.connect(cosmos=COSMOS, database="bank", servicebus=BUS, scope="engine")  # type: ignore[arg-type]  # on purpose


async def test_addresses_are_asked_for_with_the_credential_and_nothing_is_opened_before_it_is_needed() -> None:
    given = Token()
    backend = azure.connect(
        cosmos="https://bank.documents.azure.com",
        database="bank",
        servicebus="bank.servicebus.windows.net",
        blobs="https://bank.blob.core.windows.net",
        blob_api_version="2021-12-02",
        states="apart",
        create=True,
        credential=given,
    )
    assert isinstance(backend.ports(), StorePorts)
    account, namespace, large, _ = backend._closing
    assert account._credential is namespace._credential is large._credential is given
    assert (large._container, large._api_version, large._create) == ("outbox", "2021-12-02", True)
    assert backend.infrastructure is not None and backend.infrastructure.capabilities.atomic_scope == "item"
    queue = backend.queue("paid", key=str, type="Paid", version=3)
    assert queue == QueueRef("paid", backend.operations.send, backend.blobs, str, "Paid", 3)
    await backend.close()


async def test_a_backend_closes_its_bus_first_and_each_client_though_one_fails() -> None:
    told = list[str]()

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            told.append(self.name)
            await asyncio.sleep(0)
            if self.name == "account":
                raise OSError("reset")
            told.append(f"{self.name} closed")

    unused, parts = cast(Any, None), (Part("account"), Part("namespace"))
    await AzureBackend(unused, cast(Any, Part("bus")), unused, unused, unused, _closing=parts).close()
    assert told == ["bus", "bus closed", "account", "namespace", "namespace closed"]


@pytest.mark.parametrize(
    ("meant", "error", "status", "why"),
    [
        (Throttled("", retry_after_s=1.0), Exception(), 404, "stale"),
        (Throttled("", retry_after_s=1.0), Exception(), 429, "throttled"),
        (OutcomeUnknown(""), ServiceResponseTimeoutError("late"), 0, "timeout"),
        (OutcomeUnknown(""), OSError("reset"), 0, "no answer"),
        (OutcomeUnknown(""), Exception(), 500, "status"),
    ],
)
def test_each_failure_is_counted_by_its_reason_until_a_reset(
    meant: OutboxError, error: Exception, status: int, why: str
) -> None:
    usage = azure.Usage()
    usage.note("read", failed=True, reason=reason_of(meant, error, status=status))
    assert usage.reasons == {("read", why): 1}
    usage.reset()
    assert usage.reasons == {} and usage.request_count == 0


async def test_a_place_of_blobs_counts_together_and_closes_its_client() -> None:
    states = azure.blob_states(f"\n{BLOBS}\n", container="c")
    assert states.store.usage is states.blobs.usage is states.usage
    states._account.container()
    assert states._account._client is not None
    await states.close()
    assert states._account._client is None


async def test_an_identity_that_was_made_here_is_kept_and_closed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    class Made(Token):
        async def close(self) -> None:
            closed.append("made")

    monkeypatch.setattr(addresses, "DefaultAzureCredential", Made)
    identity = addresses.Identity(None)
    assert identity.credential() is identity.credential()
    for _ in range(2):
        await identity.close()
    assert closed == ["made"]


def test_a_backend_is_one_frozen_value_and_is_not_sent_elsewhere() -> None:
    backend = azure.connect(cosmos=COSMOS, database="bank", servicebus=BUS)
    with pytest.raises(AttributeError):
        backend.store = None  # type: ignore[misc, assignment]  # that is the point
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(backend)


async def test_without_a_place_for_blobs_a_body_that_needs_one_is_refused_with_the_cure() -> None:
    app = App("large", claim_check_bytes=10)
    app.queue("orders")
    async with place() as world, world.connect() as backend:
        client = Client(app, backend)
        await client.declare()
        with pytest.raises(Refused, match="blobs="):
            await client.send("orders", Order("alice" * 10, 1))


def test_the_container_is_described_for_templates_as_it_is_made() -> None:
    resource = ContainerSpec("outbox").as_resource()
    assert resource["partitionKey"]["paths"] == ["/pk"] and resource["defaultTtl"] == -1
    assert resource["indexingPolicy"]["includedPaths"] == [{"path": "/pending/?"}, {"path": "/entry/?"}]
    assert resource["indexingPolicy"]["excludedPaths"] == [{"path": "/*"}]


async def test_a_container_that_would_lose_or_keep_documents_is_refused() -> None:
    async with place() as world:
        for path, ttl_s, told in (("/other", -1, "partitioned by"), ("/pk", 60, "defaultTtl"), ("/pk", None, "Ttl")):
            name = f"c{path[1:]}{ttl_s}"
            await _make(world, name, path, ttl_s)
            for create in (True, False):
                async with world.connect(container=name, create=create) as backend:
                    with pytest.raises(Refused, match=told):
                        await Client(ledger_app(), backend).declare()


async def test_a_ledger_is_kept_only_where_its_entries_have_an_index() -> None:
    async with place() as world:
        async with world.connect(container="c") as backend:
            await _make(
                world, "c", "/pk", -1, {"includedPaths": [{"path": "/pending/?"}], "excludedPaths": [{"path": "/*"}]}
            )
            await Client(ledger_app(), backend).declare()
        async with world.connect(container="c", dispatch_ledger=True) as backend:
            with pytest.raises(Refused, match="no index on /entry/"):
                await Client(ledger_app(), backend).declare()


def test_a_ledger_is_for_partition_scope() -> None:
    at: dict[str, Any] = {"cosmos": COSMOS, "database": "bank", "servicebus": BUS}
    others: tuple[dict[str, Any], ...] = ({"scope": "item"}, {"states": "accounts"})
    for other in others:
        with pytest.raises(ValueError, match="for partition scope"):
            azure.connect(**at, dispatch_ledger=True, **other)


async def _make(world: Place, name: str, path: str, ttl_s: int | None, policy: Any = None) -> None:
    known = world.cosmos.connection
    async with CosmosClient(known.url, known.key) as client:
        database = await client.create_database_if_not_exists("bank")
        await database.create_container(name, PartitionKey(path=path), default_ttl=ttl_s, indexing_policy=policy)


async def test_what_is_missing_is_reported_with_the_cure_unless_it_is_to_be_made() -> None:
    async with place() as world:
        async with world.connect(create=False) as backend:
            with pytest.raises(Refused, match="create=True"):
                await Client(ledger_app(), backend).declare()
        async with world.connect() as backend:
            for _ in range(2):  # what is there stays
                await Client(ledger_app("per_key"), backend).declare()
        queue = world.servicebus.engine.topology.queues["orders"]
        assert (queue.ordering, queue.lock_s, queue.max_delivery_count) == ("per_key", 60, 100)
        async with world.connect() as backend:
            with pytest.raises(Refused, match="does without sessions"):
                await Client(ledger_app(), backend).declare()


def test_a_connection_string_may_have_blanks_around_it_and_signs_within_its_values() -> None:
    assert addresses.parts_of(" AccountName=a;AccountKey=b==;\n") == {"AccountName": "a", "AccountKey": "b=="}
    assert addresses.parts_of("https://a.blob.core.windows.net/?sv=1") == addresses.parts_of("a") == {}


# Dead letters


async def test_dead_letters_are_listed_resubmitted_and_discarded_in_turn() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        for id in ("r1", "r2", "r3"):
            await worker.send("orders", Order("alice", -1), id=id)
        await worker.wait_idle(timeout_s=20)
        letters = await worker.dead_letters("orders")
        assert sorted((one.id, one.reason, one.message) for one in letters) == [
            (id, "a negative amount", Order("alice", -1)) for id in ("r1", "r2", "r3")
        ]
        await worker.discard("orders", "r2")
        await worker.resubmit("orders", "r1")
        await worker.wait_idle(timeout_s=20)
        letters = await worker.dead_letters("orders")
        assert sorted((one.id, one.delivery_count) for one in letters)[1][0] == "r3"
        assert {one.id for one in letters} == {"r1", "r3"}, "it was refused again, as a new attempt"
        with pytest.raises(LookupError):
            await worker.discard("orders", "r2")
        assert await worker.state(Account, "alice") is None


async def test_a_dead_letter_that_cannot_be_sent_again_stays() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend:
        async with Worker(app, backend) as worker:
            await worker.send("orders", Order("alice", -1), id="r1")
            await worker.wait_idle(timeout_s=20)
        client = Client(app, backend)
        world.servicebus.faults.install(FaultRule(kind="refused", operation="send", where="orders"))
        with pytest.raises(OutboxError):
            await client.resubmit("orders", "r1")
        (letter,) = await backend.operations.dead_letters("orders")

        async def first() -> None:
            raise Throttled("the store is busy")

        with pytest.raises(Throttled):
            await backend.operations.resubmit("orders", letter.sequence, first=first)
        assert not world.servicebus.engine.broker.peek("orders", 0, 10), "what comes first was not done"
        assert [dead_letter.id for dead_letter in await client.dead_letters("orders")] == ["r1"]
        await client.resubmit("orders", "r1")
        assert await client.dead_letters("orders") == []
        assert [task.message.identity for task in world.servicebus.engine.broker.peek("orders", 0, 10)] == ["r1"]


async def test_a_resubmitted_dead_letter_keeps_its_first_time() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend:
        async with Worker(app, backend):
            created_ms = backend.operations.now_ms() - 60_000
            body = b'{"account":"alice","amount":-1}'
            for id, time_ms in (("told", created_ms), ("not-told", 0)):
                message = Message(body=body, outbox_id=id, type="Order", created_ms=time_ms)
                world.servicebus.engine.broker.send("orders", [message])
            async with asyncio.timeout(20):
                while len(letters := await backend.operations.dead_letters("orders")) < 2:  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0.05)
        enqueued_ms = {dead_letter.message.identity: dead_letter.enqueued_ms for dead_letter in letters}
        await asyncio.sleep(0.01)
        for id in ("told", "not-told"):
            await Client(app, backend).resubmit("orders", id)
        tasks = world.servicebus.engine.broker.peek("orders", 0, 10)
        times = {task.message.identity: task.message.created_ms for task in tasks}
        assert times == {"told": created_ms, "not-told": enqueued_ms["not-told"]}
        assert all(task.message.created_ms < task.enqueued_ms for task in tasks)


async def test_a_resubmitted_dead_letter_begins_anew_and_its_copies_go() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend:
        body = b'{"account":"alice","amount":-1}'
        message = Message(body=body, outbox_id="r1", message_id="r1", type="Order", failures=2)
        async with Worker(app, backend):
            world.servicebus.engine.broker.send("orders", [message, message])
            async with asyncio.timeout(20):
                while len(await backend.operations.dead_letters("orders")) < 2:  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0.05)
        client = Client(app, backend)
        await client.resubmit("orders", "r1")
        assert await client.dead_letters("orders") == []  # resubmitted later, a copy could be applied again
        (task,) = world.servicebus.engine.broker.peek("orders", 0, 10)
        assert (task.message.identity, task.message.attempt, task.message.failures) == ("r1", 1, 0)
        assert task.message.message_id not in ("", "r1")  # that one a broker that drops duplicates has seen


async def test_an_edited_dead_letter_is_handled_in_its_place_and_copies_of_it_are_duplicates() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend:
        client, broker = Client(app, backend), world.servicebus.engine.broker
        body = b'{"account":"alice","amount":-1}'
        refused = Message(body=body, outbox_id="r1", message_id="r1", type="Order")
        async with Worker(app, backend) as worker:
            broker.send("orders", [refused])
            await worker.wait_idle()
            with pytest.raises(Refused, match="has the key 'bob'"):
                await client.resubmit("orders", "r1", message=Order("bob", 5))
            await client.resubmit("orders", "r1", message=Order("alice", -2))
            await worker.wait_idle()
            assert [dead.message for dead in await client.dead_letters("orders")] == [Order("alice", -2)]
            await client.resubmit("orders", "r1", message=Order("alice", 5))
            broker.send("orders", [refused])
            await worker.wait_idle()
            assert await client.state(Account, "alice") == Account(5, 1)
            assert await client.dead_letters("orders") == []


async def test_a_resubmission_is_a_later_attempt_than_every_copy() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend:
        client, broker = Client(app, backend), world.servicebus.engine.broker
        await client.declare()
        message = Message(body=b'{"account":"alice","amount":-1}', outbox_id="r1", type="Order")
        broker.send("orders", [replace(message, attempt=4), message])  # the second was late, and is the newest
        for claim in broker.claim("orders", 2):
            broker.settle(claim.token, Settlement.DEAD_LETTER)
        newest = max(dead.sequence for dead in await backend.operations.dead_letters("orders"))
        await backend.operations.resubmit("orders", newest)  # the adapter's own, which knows of no copy in a store
        (task,) = broker.peek("orders", 0, 10)
        assert task.message.attempt == 5, "an earlier one would follow the record of the refusal"
        for given, attempt in ((9, 9), (2, 10)):
            (claim,) = broker.claim("orders", 1)
            broker.settle(claim.token, Settlement.DEAD_LETTER)
            (dead,) = await backend.operations.dead_letters("orders")
            await backend.operations.resubmit("orders", dead.sequence, attempt=given)
            assert [task.message.attempt for task in broker.peek("orders", 0, 10)] == [attempt]


async def test_a_resubmitted_dead_letter_of_a_subscription_comes_by_its_topic() -> None:
    app, fail = App("news"), [True]

    @app.handler("news", subscription="audit", key=lambda order: order.account)
    def audit(order: Order, account: Account) -> None:
        if fail[0]:
            raise Reject("not now")
        account.total += order.amount

    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        await worker.publish("news", Order("alice", 5), id="1")
        await worker.wait_idle(timeout_s=20)
        fail[0] = False
        await worker.resubmit("news/Subscriptions/audit", "1")
        await worker.wait_idle(timeout_s=20)
        assert await worker.state(Account, "alice") == Account(5, 0)
        assert await worker.dead_letters("news/Subscriptions/audit") == []


async def test_what_fails_in_one_subscription_is_tried_again_there_alone() -> None:
    app, seen = App("news", retry=Retries(limit=3, delays_s=(0.05,))), list[str]()

    @app.handler("news", subscription="audit")
    def audit(order: Order) -> None:
        seen.append("audit")
        raise ValueError("always")

    @app.handler("news", subscription="print")
    def show(order: Order) -> None:
        seen.append("print")

    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        await worker.publish("news", Order("alice", 5), id="1")
        await worker.wait_idle(timeout_s=15)
        assert sorted(seen) == ["audit", "audit", "audit", "print"]
        assert [one.reason for one in await worker.dead_letters("news/Subscriptions/audit")] == ["failed"]


async def test_a_message_without_an_id_is_resubmitted_under_its_number() -> None:
    app, fail = App("numbers"), [True]
    app.queue("in", identity="sequence-number")

    @app.handler("in", key=lambda order: order.account)
    def applies(order: Order, account: Account) -> None:
        account.total += order.amount

    @app.handler("in", key=lambda order: order.account)
    def refuses(order: Order) -> None:
        if fail[0]:
            raise Reject("not now")

    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        message = Message(body=b'{"account":"alice","amount":5}', type="Order")
        world.servicebus.engine.broker.send("in", [message, message])
        async with asyncio.timeout(20):
            while len(letters := await worker.dead_letters("in")) < 2:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.05)
        first, second = (dead_letter.id for dead_letter in letters)
        assert first.startswith("sequence-") and first != second
        fail[0] = False
        await worker.resubmit("in", first)
        await worker.wait_idle(timeout_s=20)
        assert [dead_letter.id for dead_letter in await worker.dead_letters("in")] == [second], (
            "the other is another message"
        )
        assert await worker.state(Account, "alice") == Account(10, 0), "what was applied is not applied again"


async def test_a_resubmitted_message_runs_once_more_and_has_its_effect() -> None:
    app, fail = App("moody"), [True]
    app.queue("out")

    @app.handler("in", key=lambda order: order.account)
    async def take(order: Order, account: Account) -> None:
        if fail[0]:
            raise Reject("not today")
        account.total += order.amount

    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        await worker.send("in", Order("alice", 5), id="1")
        await worker.wait_idle(timeout_s=20)
        fail[0] = False
        await worker.resubmit("in", "1")
        await worker.wait_idle(timeout_s=20)
        assert await worker.state(Account, "alice") == Account(5, 0)
        assert await worker.dead_letters("in") == []


async def test_a_client_repeats_a_send_of_unknown_outcome() -> None:
    async with place() as world, world.connect() as backend:
        client = Client(ledger_app(), backend)
        await client.declare()
        await client.send("orders", Order("alice", 1), id="1")
        world.servicebus.faults.install(FaultRule(kind="reset", operation="send"))
        await client.send("orders", Order("alice", 2), id="2")
        held = world.servicebus.engine.broker.peek("orders", 0, 10)
        assert [task.message.identity for task in held] == ["1", "2"]
        await world.servicebus.__aexit__(None, None, None)
        with pytest.raises(OutcomeUnknown):  # of its first try; the next found nobody
            await client.send("orders", Order("alice", 3), id="3")


@pytest.mark.parametrize("last", [Unreachable("no connection"), Refused("no"), UnknownDestination("gone")])
async def test_a_send_of_unknown_outcome_stays_so_whatever_its_next_try_finds(
    last: OutboxError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place() as world, world.connect() as backend:
        errors = iter([OutcomeUnknown("lost"), last, last, last])

        async def send(bus: ServiceBusBus, outputs: Sequence[Output]) -> None:
            raise next(errors)

        monkeypatch.setattr(ServiceBusBus, "send", send)
        with pytest.raises(OutcomeUnknown, match="lost"):
            await backend.operations.send([Output("orders", 0, Message(body=b"1", outbox_id="1"))])


@pytest.mark.parametrize("error", [OSError("no route"), asyncio.CancelledError("the start")])
async def test_a_client_that_could_not_be_opened_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    told, asked = list[str](), dict[str, Any]()

    class Client:
        def __init__(self, *given: Any, **options: Any) -> None:
            asked.update(options)

        async def __aenter__(self) -> None:
            raise error

        async def close(self) -> None:
            told.append("closed")

    monkeypatch.setattr(cosmos_account, "CosmosClient", Client)
    with pytest.raises(type(error)):
        await cosmos_account.CosmosAccount("https://bank.documents.azure.com", "bank", KEY, user_agent="me").client()
    assert told == ["closed"] and isinstance(asked.pop("transport"), OnceTransport)
    assert asked == {
        **{"retry_read": 0, "retry_connect": 0, "retry_status": 0, "enable_endpoint_discovery": False},
        **{"retry_throttle_total": 2, "retry_throttle_backoff_max": 2, "enable_compact_utf8_item_writes": True},
        **{"connection_timeout": 5.0, "read_timeout": 10.0, "user_agent_suffix": "me"},
    }
