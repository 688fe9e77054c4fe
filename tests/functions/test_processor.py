"""Messages of a trigger: committed once, refused into the store, given back by raising; nothing else gets out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure.functions as func
import pytest
from azure.functions.servicebus import ServiceBusMessage

from outbox import App, Context, Engine, Reject, Retries, Retry
from outbox.azure import functions
from outbox.azure.functions import processor as processors
from outbox.azure.functions.bus import Invocation, to_delivery
from outbox.azure.functions.processor import KEPT, WARN_DELIVERIES, Processor, pause_s
from outbox.azure.functions.settings import FunctionsSettings
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable, Refused
from outbox.lineage import Key
from outbox.message import Message
from outbox.ports import Backend, Delivery, StorePorts
from outbox.runtime.delivery.blocked_sessions import BlockedSession
from outbox.worker import Worker


@dataclass
class Order:
    id: str
    customer: str
    items: int


@dataclass
class Customer:
    items: int = 0


def made(**options: Any) -> App:
    app = App("shop", retry=Retries(limit=3, delays_s=(0.05,)), **options)
    app.queue("shipments")
    app.queue("ordered", "per_key")

    @app.handler("orders", key="customer")
    @app.handler("ordered", key="customer", name="in_order")
    async def order(order: Order, customer: Customer, ctx: Context) -> None:
        if order.items == 0:
            raise Reject("nothing ordered")
        if order.items == 13:
            raise ValueError("unlucky")
        if order.items == 14:
            raise Retry("later", after_s=0.05)
        if order.items == 17:
            raise Retry("tomorrow", after_s=86_400)
        if order.items == 15:
            raise asyncio.CancelledError
        if order.items == 16:
            raise SystemExit(3)
        customer.items += order.items
        ctx.send("shipments", order)

    return app


@dataclass
class Host:
    """A trigger's host in miniature: it hands messages over and tells what became of them."""

    processor: Processor
    engine: Engine
    settings: FunctionsSettings
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def deliver(self, id: str, items: int, *, source: str = "orders", customer: str = "ann", **more: Any) -> bool:
        """Hand a message over; whether it may be completed."""
        body = b'{"id":"%s","customer":"%s","items":%d}' % (id.encode(), customer.encode(), items)
        try:
            await self.processor.message(source, received(id, body, next(self.numbers), **more))
        except functions.GivenBack:
            return False
        return True

    async def state(self, key: Key) -> Any:
        return await self.processor.client.state(Customer, key)

    def waiting(self, queue: str) -> list[Any]:
        return list(self.engine.broker.queue(queue).tasks.values())

    async def letters(self, queue: str = "orders") -> list[tuple[str, str]]:
        return [(letter.id, letter.reason) for letter in await self.processor.client.dead_letters(queue)]


def received(id: str, body: bytes, sequence: int, **more: Any) -> func.ServiceBusMessage:
    properties: dict[str, Any] = {"outbox-id": id, "outbox-type": "Order"} | more.pop("properties", {})
    fields: dict[str, Any] = {"message_id": id, "sequence_number": sequence, "delivery_count": 1}
    fields["enqueued_time_utc"] = datetime.now(UTC)
    return ServiceBusMessage(
        body=body, trigger_metadata=None, application_properties=properties, user_properties={}, **fields | more
    )


async def opened(app: App, engine: Engine, backend: Any, attempt_s: float = 2) -> Host:
    settings = FunctionsSettings(lambda: backend, attempt_s=attempt_s, rest_s=0.2)
    processor = Processor(app, backend, settings, chance=lambda: 0.0)
    await processor.open()
    return Host(processor, engine, settings)


@pytest.fixture(params=["partition", "item"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    async with Engine.in_memory() as engine:
        yield await opened(made(), engine, NarrowEngine(engine, request.param))


async def test_a_message_that_is_redelivered_has_no_further_effect(host: Host) -> None:
    assert await host.deliver("o1", 2) and await host.deliver("o1", 2)
    assert await host.state("ann") == Customer(2) and len(host.waiting("shipments")) == 1


async def test_concurrent_messages_of_one_key_are_all_applied(host: Host) -> None:
    done = await asyncio.gather(*(host.deliver(f"o{n}", 1) for n in range(40)), *(host.deliver("o0", 1),))
    assert all(done) and await host.state("ann") == Customer(40)
    assert len({task.message.identity for task in host.waiting("shipments")}) == 40


async def test_a_refused_message_is_kept_and_completed(host: Host) -> None:
    assert await host.deliver("o1", 0)
    assert await host.letters() == [("o1", "nothing ordered")]
    (letter,) = await host.processor.client.dead_letters("orders")
    assert letter.message == Order("o1", "ann", 0) and await host.state("ann") is None


async def test_what_cannot_be_decoded_is_kept_as_it_came(host: Host) -> None:
    await host.processor.message("orders", received("o1", b"{nonsense", 5))
    (letter,) = await host.processor.client.dead_letters("orders")
    assert (letter.reason, letter.body) == ("undecodable", b"{nonsense")


async def test_a_refused_message_is_logged_once_as_an_error(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    assert await host.deliver("o1", 0)
    (line,) = [record.__dict__ for record in caplog.records if record.levelname == "ERROR"]
    assert line["message"] == "message dead-lettered"
    assert (line["id"], line["queue"], line["reason"]) == ("o1", "orders", "nothing ordered")


async def test_a_failed_attempt_is_logged_with_the_handlers_line(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    assert await host.deliver("o1", 13)
    (line,) = [record for record in caplog.records if record.getMessage() == "handler failed"]
    assert (line.__dict__["id"], line.__dict__["attempt"], line.__dict__["attempts"]) == ("o1", 1, 3)
    assert line.exc_text is not None and Path(__file__).name in line.exc_text


async def test_a_refusal_that_cannot_be_stored_is_released(host: Host) -> None:
    store = host.processor._ports.store
    write = store.write

    async def fails(operations: Any) -> Any:
        if operations[0].tag.what == "letter":
            raise Refused("no room")
        return await write(operations)

    store.write = fails  # type: ignore[method-assign]  # a store that fails at one moment
    assert not await host.deliver("o1", 0)
    store.write = write  # type: ignore[method-assign]  # as above
    assert await host.letters() == []
    assert await host.deliver("o1", 0, delivery_count=2) and await host.letters() == [("o1", "nothing ordered")]


async def test_a_failed_message_comes_back_as_a_delayed_copy_until_its_last_failure(host: Host) -> None:
    assert await host.deliver("o1", 13)
    (copy,) = host.waiting("orders")
    assert (copy.message.identity, copy.message.failures) == ("o1", 1) and copy.message.message_id != "o1"
    assert await host.deliver("o1", 13, properties={"outbox-failures": 2})
    assert await host.letters() == [("o1", "failed")]


async def test_a_message_whose_delayed_copy_cannot_be_sent_is_redelivered(host: Host) -> None:
    bus = host.processor._ports.bus
    send = bus.send

    async def fails(outputs: Any) -> None:
        raise Refused("no connection")

    bus.send = fails  # type: ignore[method-assign]  # a bus that is away for a while
    assert not await host.deliver("o1", 13) and host.waiting("orders") == []
    bus.send = send  # type: ignore[method-assign]  # as above
    assert await host.deliver("o1", 13, delivery_count=2)
    assert [task.message.failures for task in host.waiting("orders")] == [1]


async def test_nothing_is_kept_of_an_invocation_that_has_ended(host: Host) -> None:
    for number in (1, 0, 13, 15):  # applied, refused, rescheduled, failed
        await host.deliver(f"o{number}", number)
    assert host.processor._bus._invocations == {}


async def test_a_delayed_copy_keeps_the_time_of_its_message(host: Host) -> None:
    before = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    first_ms = round(before.timestamp() * 1_000)
    assert await host.deliver("o1", 13, enqueued_time_utc=before)  # it says no time of its own
    assert await host.deliver("o2", 13, properties={"outbox-created": first_ms - 5})
    assert [task.message.created_ms for task in host.waiting("orders")] == [first_ms, first_ms - 5]


async def test_a_message_of_a_trigger_lives_as_long_as_its_broker_says() -> None:
    enqueued, options = datetime(2026, 1, 1, tzinfo=UTC), {"lock": 1, "lock_ms": 300_000, "now_ms": 0}
    for expires, lives_ms in (
        (enqueued + timedelta(seconds=90), 90_000),
        (datetime(9_999, 12, 31, tzinfo=UTC), 0),  # for ever
        (None, 0),  # not told
    ):
        message = received("o1", b"{}", 1, enqueued_time_utc=enqueued, expires_at_utc=expires)
        assert to_delivery("orders", message, **options).message.time_to_live_ms == lives_ms


async def test_a_message_is_locked_for_as_long_as_the_host_renews(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries = list[Delivery]()

    def taken(*given: Any, **options: Any) -> Delivery:
        deliveries.append(to_delivery(*given, **options))
        return deliveries[-1]

    monkeypatch.setattr(processors, "to_delivery", taken)
    before_ms = host.processor._operations.now_ms()
    assert await host.deliver("o1", 1)
    assert deliveries[0].locked_until_ms >= before_ms + 300_000


@pytest.mark.parametrize(("told", "earlier_count"), [(0, 0), (1, 0), (3, 2)])
async def test_the_delivery_that_a_host_hands_over_is_none_of_the_earlier_ones(told: int, earlier_count: int) -> None:
    message = received("o1", b"{}", 1, delivery_count=told, enqueued_time_utc=None)
    delivery = to_delivery("orders", message, lock=1, lock_ms=300, now_ms=50)
    assert (delivery.delivery_count, delivery.enqueued_ms, delivery.locked_until_ms) == (earlier_count, 50, 350)


async def test_in_order_a_message_that_fails_is_redelivered_until_its_last_failure(host: Host) -> None:
    ordered: Any = {"source": "ordered", "session_id": "ann"}
    for count in (1, 2):
        assert not await host.deliver("o1", 13, delivery_count=count, **ordered)
        assert await host.letters("ordered") == []
    assert await host.deliver("o1", 13, delivery_count=3, **ordered)
    assert await host.letters("ordered") == [("o1", "failed")]


async def test_in_order_a_rescheduled_message_waits_and_is_released(host: Host) -> None:
    began_s = asyncio.get_running_loop().time()
    assert not await host.deliver("o1", 14, source="ordered", session_id="ann")
    assert asyncio.get_running_loop().time() - began_s >= 0.04 and host.waiting("ordered") == []
    assert await host.deliver("o2", 1, source="ordered", session_id="ann", customer="bob")


async def test_in_order_a_message_that_is_due_much_later_is_released_while_its_lock_is_held(host: Host) -> None:
    async with asyncio.timeout(5):
        assert not await host.deliver("o1", 17, source="ordered", session_id="ann")


async def test_a_resubmitted_dead_letter_runs_again(host: Host) -> None:
    assert await host.deliver("o1", 0)
    await host.processor.client.resubmit("orders", "o1")
    (again,) = host.waiting("orders")
    assert again.message.attempt == 1 and await host.letters() == []


@pytest.mark.parametrize("items", [15, 16])
async def test_a_handler_that_ends_the_process_or_its_task_does_neither(host: Host, items: int) -> None:
    host.processor._settings = FunctionsSettings(lambda: None, attempt_s=1, rest_s=0.01)  # type: ignore[arg-type,return-value]  # not used
    results = await asyncio.gather(host.deliver("bad", items), host.deliver("o1", 1, customer="bob"))
    assert results[1] or await host.deliver("o1", 1, customer="bob")
    assert await host.state("bob") == Customer(1) and await host.state("ann") is None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), ValueError("x")])
async def test_a_fault_of_the_runtime_gives_its_messages_back_at_once_and_says_why(
    host: Host, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def attempt(deliveries: Any) -> None:
        raise error

    monkeypatch.setattr(host.processor._scope, "attempt", attempt)
    with pytest.raises(functions.GivenBack, match=f"{type(error).__name__}: "):
        await host.processor.message("orders", received("o1", b"{}", 1))


async def test_a_body_cannot_say_who_it_is(host: Host) -> None:
    body = b'{"id":"x","customer":"ann","items":1,"MessageId":"o9","SessionId":"s","DeliveryCount":"x"}'
    spoofed = {"outbox-id": "", "message-id": "spoofed", "session-id": "s", "reply-to": "elsewhere"}
    await host.processor.message("orders", received("o1", body, 3, properties=spoofed))
    (shipped,) = host.waiting("shipments")
    assert await host.deliver("o1", 1, properties={"outbox-id": ""}) is True
    assert len(host.waiting("shipments")) == 1 and await host.letters() == [("o1", "payload-differs")]
    assert shipped.message.session_id == ""


async def test_a_senders_own_property_stands_for_nothing_that_the_broker_did_not_set(host: Host) -> None:
    own = {"weight": 1.5, "count": 2, "is_new": True, "color": "red"}
    spoofed = own | {"outbox-id": "", "message-id": "spoofed", "session-id": "s", "reply-to": "elsewhere"}
    message = received("", b'{"customer":"ann","items":1}', 1, properties=spoofed, message_id=None)
    found = to_delivery("orders", message, lock=1, lock_ms=1, now_ms=1).message
    assert (found.identity, found.session_id, found.reply_to, found.properties) == ("", "", "", own)
    await host.processor.message("orders", message)
    assert await host.letters() == [("", "no-identity")] and await host.state("ann") is None


async def test_a_failed_push_is_repeated_on_redelivery(host: Host) -> None:
    bus = host.processor._ports.bus
    send, refusing = bus.send, True

    async def fails(outputs: Any) -> None:
        if refusing:
            raise Refused("no connection")
        await send(outputs)

    bus.send = fails  # type: ignore[method-assign]  # a bus that is away for a while
    assert not await host.deliver("o1", 1)
    refusing = False
    assert await host.state("ann") == Customer(1) and host.waiting("shipments") == []
    swept = await host.processor.sweep()
    assert swept.seen_count == swept.young_count > 0  # somebody may be at work on it
    assert await host.deliver("o1", 1, delivery_count=2) and len(host.waiting("shipments")) == 1


def test_a_message_rests_longer_each_time_it_comes() -> None:
    rests = [pause_s(count, 0.5) for count in range(1, 101)]
    assert rests == sorted(rests) and rests[0] == 0.25 and rests[-1] == 32
    assert sum(rests) > 45 * 60  # a hundred deliveries outlast an hour's outage, or nearly


def test_settings_leave_room_within_the_lock() -> None:
    assert FunctionsSettings(lambda: pytest.fail(), attempt_s=100).time_limit_s_max == 90  # sees how a handler ended
    with pytest.raises(ValueError, match="below lock_s=300"):
        FunctionsSettings(lambda: None, attempt_s=280, rest_s=30)  # type: ignore[arg-type,return-value]  # refused before


async def test_an_engine_of_its_own_is_for_workers() -> None:
    async with Engine.in_memory() as engine:
        backend: Backend = engine
        with pytest.raises(TypeError, match="served by a Worker"):
            Processor(made(), backend, FunctionsSettings(lambda: backend))


async def test_a_worker_and_functions_know_each_others_messages(host: Host) -> None:
    assert await host.deliver("o1", 2)
    backend = host.settings.connect()
    async with Worker(host.processor.app, backend) as worker:
        await worker.send("orders", Order("o1", "ann", 2), id="o1")
        await worker.wait_idle(timeout_s=5)
    assert await host.state("ann") == Customer(2)
    assert len({task.message.identity for task in host.waiting("shipments")}) == 1


# What a start looks at and leaves


async def test_a_start_registers_what_is_handled(host: Host) -> None:
    await host.processor.client.send("orders", Order("o1", "ann", 1), id="o1")
    other = App("shop")
    other.queue("shipments")

    @other.handler("orders", key="customer", name="another")
    def handle(order: Order, customer: Customer) -> None: ...

    with pytest.raises(NotRegistrable, match="order"):
        await Worker(other, host.settings.connect()).__aenter__()


async def test_a_start_heeds_how_long_others_remember() -> None:
    async with Engine.in_memory() as engine:
        backend = NarrowEngine(engine, "partition")
        for days in (30, 1):
            app = made(retention=timedelta(days=days), margin=timedelta(hours=1))
            host = await opened(app, engine, backend)
        assert host.processor._plan.retention.record_life_ms >= 30 * 86_400_000


@dataclass(frozen=True)
class Apart:
    """States in an engine of their own, everything else in another."""

    states: Engine
    engine: Engine

    def ports(self) -> StorePorts:
        own, known = (NarrowEngine(engine, "item").ports() for engine in (self.states, self.engine))
        return StorePorts(own.store, known.bus, known.operations, known.blobs, known.store)


async def test_nothing_but_states_lies_with_the_states() -> None:
    async with Engine.in_memory() as states, Engine.in_memory() as engine:
        host = await opened(made(), engine, Apart(states, engine))
        assert await host.deliver("o1", 2) and await host.deliver("o2", 0)
        assert await host.state("ann") == Customer(2) and await host.letters() == [("o2", "nothing ordered")]
        spaces = states.state.documents.spaces.items()
        assert {id for name, space in spaces if name.startswith("p/") for id in space} == {"state"}


@dataclass
class Add:
    key: str
    n: int


async def test_what_another_attempt_of_this_process_has_staged_is_not_reclaimed() -> None:
    app = App("adding")

    @app.handler("adds", key="key")
    @app.http("POST", "/adds", key="key")
    def add(message: Add, customer: Customer) -> None:
        customer.items += message.n

    async with Engine.in_memory() as engine:
        processor = (await opened(app, engine, NarrowEngine(engine, "item"), attempt_s=5)).processor
        store: Any = processor._ports.store
        store.capabilities = replace(store.capabilities, inline_bytes_max=0)  # what it commits is staged
        pauses = {"unstage": Pause(), "swap": Pause(after=1)}  # the request's record goes, the message's state comes
        write = store.write

        async def pausing(operations: Any) -> Any:
            if (pause := pauses.get(operations[0].tag.what)) is not None:
                await pause.here()
            return await write(operations)

        store.write = pausing  # a store that is slow at two moments
        request = processor.request("POST", "/adds", {"Idempotency-Key": "k"}, b'{"key":"ann","n":1}')
        assert (await request).status == 204  # what was committed is still being cleared away
        await pauses["unstage"].reached.wait()
        message = received("m1", b'{"key":"ann","n":2}', 1, properties={"outbox-type": "Add"})
        handling = asyncio.create_task(processor.message("adds", message))
        await pauses["swap"].reached.wait()  # its attempt is staged, over the state that the request left
        pauses["unstage"].over.set()
        while any(task.get_name().endswith("requests") for task in processor._tasks.running):  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0)
        pauses["swap"].over.set()
        await handling
        await processor.message("adds", received("m2", b'{"key":"ann","n":4}', 2, properties={"outbox-type": "Add"}))
        assert await processor.client.state(Customer, "ann") == Customer(7), "the key goes on"
        assert not engine.broker.queue("adds").tasks, "nothing was rescheduled"


async def test_a_resubmission_that_takes_long_ends_with_the_time_of_the_message_behind_it() -> None:
    app, over = App("adding"), asyncio.Event()

    @app.handler("adds", key="key")
    async def add(message: Add, customer: Customer) -> None:
        await over.wait()

    async with Engine.in_memory() as engine:
        processor = (await opened(app, engine, NarrowEngine(engine, "partition"), attempt_s=60)).processor
        message, now_ms = received("m1", b'{"key":"ann","n":2}', 1, properties={"outbox-type": "Add"}), engine.now_ms()
        behind = to_delivery("adds", message, lock=1, lock_ms=60_000, now_ms=now_ms)
        async with asyncio.timeout(10):  # far less than an attempt may take
            tried = await processor._handle_resubmission(behind, behind.message, now_ms + 100)
        assert not tried.is_done
        over.set()
        await processor.finish()
        assert not processor._tasks.running, "the end waits for what outlives its invocation"


async def test_a_request_that_ends_the_process_is_answered_and_may_come_again(host: Host) -> None:
    async def ends(*given: object) -> None:
        raise SystemExit(3)

    processor: Any = host.processor
    processor._entry = SimpleNamespace(handle=ends)
    answer = await processor.request("GET", "/shops/1", {}, b"")
    assert (answer.status, "retry-after" in answer.headers) == (503, True)


async def test_a_start_watches_the_loop_and_a_sweep_gives_signs_of_life(host: Host) -> None:
    given, processor = list[int](), host.processor
    assert processor._watch._timer is not None

    async def give() -> None:
        given.append(1)

    processor._signs = SimpleNamespace(is_due=True, give=give)  # type: ignore[assignment]
    await processor.sweep()
    assert given == [1]
    assert await host.deliver("o1", 1) and given == [1, 1]


async def test_a_sweep_leaves_alone_what_is_younger_than_its_setting(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()

    async def sweep(*, grace_s: float) -> None:
        given.append(grace_s)

    monkeypatch.setattr(host.processor._recovery, "sweep", sweep)
    host.processor._settings = replace(host.settings, sweep_grace_s=7.0)
    await host.processor.sweep()
    assert given == [7.0]


class Waiting:
    """A message behind a blocked key, on a clock that each pause moves on; `looks` are what is seen of the key."""

    def __init__(self, processor: Any, monkeypatch: pytest.MonkeyPatch, *looks: BlockedSession | None) -> None:
        self.looks, self.slept_s, self.handled, self.now_ms = list(looks), list[float](), list[int](), 1_000_000
        self.processor = processor
        self.processor._chance = lambda: 0.5
        self.processor._stopping = {"orders"}
        self.processor._operations = SimpleNamespace(now_ms=lambda: self.now_ms)
        self.processor._scope = SimpleNamespace(blocked_behind=self.look)
        self.processor._handle_resubmission = self.handle
        monkeypatch.setattr(processors, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": self.sleep}))

    async def look(self, delivery: Delivery) -> BlockedSession | None:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    async def sleep(self, pause_s: float) -> None:
        self.slept_s.append(pause_s)
        self.now_ms += round(pause_s * 1_000)

    async def handle(self, delivery: Delivery, again: Message, until_ms: int) -> Invocation:
        self.handled.append(again.attempt)
        return Invocation(delivery, is_done=True)

    def delivery(self, earlier_count: int = 0) -> Delivery:
        message = received("o1", b"{}", 1, delivery_count=earlier_count + 1)
        return to_delivery("orders", message, lock=1, lock_ms=60_000, now_ms=self.now_ms)

    async def wait(self, within_s: float) -> str:
        found: str = await self.processor._wait_unblocked(self.delivery(), self.now_ms + round(within_s * 1_000))
        return found


BLOCKED = BlockedSession("o0")


async def test_a_blocked_key_is_looked_at_less_and_less_often(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(host.processor, monkeypatch, BLOCKED)
    assert await waiting.wait(50) == "blocked" and waiting.slept_s == [1, 2, 4, 8, 15, 15, 5]


@pytest.mark.parametrize(
    ("attempt_s", "within_s", "told"),
    [(2, 1.5, "blocked"), (2, 2, "unblocked"), (100, 10.9, "blocked"), (100, 11, "unblocked")],
)
async def test_a_key_that_is_free_too_late_for_an_attempt_counts_as_blocked(
    host: Host, monkeypatch: pytest.MonkeyPatch, attempt_s: float, within_s: float, told: str
) -> None:
    """It is free after a second; the least attempt takes half of a whole one, at most ten seconds."""
    host.processor._settings = replace(host.settings, attempt_s=attempt_s)
    assert await Waiting(host.processor, monkeypatch, BLOCKED, None).wait(within_s) == told


async def test_what_an_attempt_took_is_not_waited_for_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(host.processor, monkeypatch, BLOCKED)
    waiting.processor._settings = replace(host.settings, attempt_s=100, rest_s=50)

    async def handled(delivery: Delivery, within_s: float) -> tuple[Invocation, str]:
        waiting.now_ms += round(within_s * 1_000)
        return Invocation(delivery), "not handled"

    waiting.processor._handled = handled
    with pytest.raises(functions.GivenBack):
        await waiting.processor.message("orders", received("o1", b"{}", 1))
    assert waiting.now_ms == 1_000_000 + 150_000


async def test_a_resubmission_is_handled_once_and_its_next_one_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (BlockedSession("o0", again=Message(body=b"{}", attempt=attempt)) for attempt in (1, 2))
    waiting = Waiting(host.processor, monkeypatch, first, first, first, second, second, None)
    assert await waiting.wait(60) == "unblocked" and waiting.handled == [1, 2]
    late = Waiting(host.processor, monkeypatch, first, None)
    assert await late.wait(0.9) == "blocked" and late.handled == [], "the next delivery has the time for it"


async def test_a_message_that_comes_again_rests_longer_up_to_the_limit(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(host.processor, monkeypatch, None)
    waiting.processor._settings = replace(host.settings, rest_s=3)
    for earlier_count in (0, 2, 9):
        await waiting.processor._rest(Invocation(waiting.delivery(earlier_count)))
    await waiting.processor._rest(Invocation(waiting.delivery(9), due_ms=waiting.now_ms + 700))
    assert waiting.slept_s == [pause_s(1, 0.5), pause_s(3, 0.5), 3, 0.7]


def test_the_ninetieth_delivery_behind_a_dead_letter_is_logged(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting(host.processor, monkeypatch, None)
    for earlier_count in (WARN_DELIVERIES - 2, WARN_DELIVERIES - 1):
        processors._log_last_deliveries(waiting.delivery(earlier_count))
    assert [vars(record)["deliveries"] for record in caplog.records] == [WARN_DELIVERIES]


class Pause:
    """A call that waits once, behind so many that do not."""

    def __init__(self, after: int = 0) -> None:
        self.left = after
        self.reached = asyncio.Event()
        self.over = asyncio.Event()

    async def here(self) -> None:
        """Wait, if it is this call's turn."""
        self.left -= 1
        if self.left == -1:
            self.reached.set()
            await self.over.wait()


@pytest.mark.parametrize(("own", "brokers", "told"), [("c1", "c2", "c1"), ("", "c2", "c2"), ("c1", None, "c1")])
def test_a_senders_own_correlation_goes_before_the_brokers(own: str, brokers: str | None, told: str) -> None:
    properties = {"correlation-id": own} if own else {}
    message = received("o1", b"{}", 1, properties=properties, correlation_id=brokers)
    assert to_delivery("orders", message, lock=1, lock_ms=1, now_ms=1).message.correlation_id == told


def test_a_senders_own_properties_are_kept_and_the_brokers_are_not() -> None:
    own: dict[str, object] = {"shop": "x", "none": None, "DeadLetterReason": "r", "Diagnostic-Id": "d", "nested": {}}
    message = ServiceBusMessage(
        body=b"{}", trigger_metadata=None, message_id="m", application_properties={}, user_properties=own
    )
    assert to_delivery("orders", message, lock=1, lock_ms=1, now_ms=1).message.properties == {"shop": "x", "none": None}


async def test_a_sweep_names_the_queues_that_keep_refused_messages(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    await host.processor.sweep()
    assert KEPT not in caplog.text
    for n in range(2):
        await host.deliver(f"o{n}", 0)
    await host.processor.sweep()
    [told] = [record.__dict__ for record in caplog.records if record.getMessage() == KEPT]
    assert (told["levelname"], told["queue"], told["count"]) == ("ERROR", "orders", 2)
