"""Planted situations over Cosmos DB and Service Bus: for each, one command names the cause, and what to do about it.

The table of tests/unit/ops/test_situations.py again, for a store and a bus apart: real SDKs against the emulators.
What differs by scope is planted in both.  All of a scope is planted at once and handled by one worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox import stored
from outbox.emulator.faults import FaultRule
from outbox.engine.entities import QueueSettings, Settlement
from outbox.message import Message, schema_properties
from outbox.ports import Create, DocumentKey, Output, Tag
from outbox.stored import Overflow, Record, Staged, overflow_key, staged_key
from outbox.testing import START_S
from tests.unit.ops.situations import Situation
from tests.wire.cli.planted import KEY, Asked, Done, During, Put, Sent, Site, Step, Stuck, Typed, wall_ms

NOBODY = "127.0.0.1:1"


def raw(id: str, body: bytes = b'{"key": "a"}', type: str = "Order", **more: Any) -> Message:
    return Message(body=body, outbox_id=id, type=type, **more)


def put(queue: str, *messages: Message) -> tuple[Step, ...]:
    return tuple(Put(queue, message) for message in messages)


def deferred(site: Site) -> None:
    """A receiver has set a message aside."""
    site.engine.declare(QueueSettings("parcels"))
    site.engine.broker.send("parcels", [raw("set-aside")])
    [claim] = site.engine.broker.claim("parcels", 1)
    site.engine.broker.settle(claim.token, Settlement.DEFER)


def lock_lost(site: Site) -> None:
    """A receiver has had a message, and its lock ran out."""
    site.engine.declare(QueueSettings("parcels"))
    site.engine.broker.send("parcels", [raw("lock-lost")])
    [claim] = site.engine.broker.claim("parcels", 1)
    site.engine.broker.lapse_lock("parcels", claim.sequence)


def delivered_too_often(site: Site) -> None:
    """Receivers have let the locks on a message run out until the bus gave up."""
    site.engine.declare(QueueSettings("flaky", max_delivery_count=1))
    site.engine.broker.send("flaky", [raw("too-often")])
    [claim] = site.engine.broker.claim("flaky", 1)
    site.engine.broker.settle(claim.token, Settlement.ABANDON)


def expired(site: Site) -> None:
    site.engine.declare(QueueSettings("brief", time_to_live_s=0.001))
    site.engine.broker.send("brief", [raw("expired")])


def no_queue(site: Site) -> None:
    """Somebody has deleted the queues that outputs go to."""
    for name in ("away", "item-away"):
        if name in site.engine.topology.queues:
            site.engine.topology.delete(name)


async def foreign(site: Site) -> None:
    """Another program writes to the container."""
    store = (await site.backend("outbox-partition")).store
    await store.write([Create(DocumentKey("p", "another"), b'{"pending": "x", "tx": 5}', tag=Tag("x"))])


async def staged(site: Site) -> None:
    """Attempts were killed: one before the swap of its state, one before the record that names its blob."""
    store = (await site.backend("outbox-item", scope="item")).store
    out = Output("outside", 0, Message(body=b"{}", outbox_id="out-1"))
    record = Record("staged-tx", b"f", wall_ms() - 90_000, pending=True, outputs=(out,))
    for key, item in (
        (staged_key("s", "staged-tx"), Staged("staged-tx", b"i", "s", 0, record)),
        (overflow_key("s", "blob-tx"), Overflow("blob-tx", "overflow/blob-tx/x", b"i", "s", 0, wall_ms() - 90_000)),
    ):
        await store.write([Create(key, stored.encode(item), tag=Tag("x"))])


REFUSED = Sent("orders", "refused-1", "refuse", "refusals")
BLOCKED = (Sent("ledger", "block-1", "refuse", "books"), Sent("ledger", "block-2", "", "books", stays=True))
AUDIT = Sent("news", "news-1", "refuse")
AWAY = Stuck("orders", "away-1", "away-key")
BOTH = (
    Situation(
        "a handler that fails", (Sent("orders", "failing-1", "fail"),), "queue peek orders --state retrying"
    ).says("failing-1", "next try in", "ConnectionError: the pricing service does not answer", "1 failed attempt"),
    Situation(
        "a handler that asks for another delivery",
        (Sent("orders", "later-1", "later"),),
        "message show later-1 --queue orders",
    ).says("later-1 in", "next try in", "the shelf is locked"),
    Situation(
        "a handler that gave up",
        put("hopeless", raw("hopeless-1", b'{"key": "bolts"}', failures=1)),
        "dead-letters show hopeless hopeless-1",
    ).says('"failed"', "LookupError: no article bolts", "Traceback", ".give_up"),
    Situation("a refusal", (REFUSED,), "dead-letters list orders").says("refused-1", "no such article"),
    Situation("a blocked key", BLOCKED, "queue peek ledger").says(
        "block-2", "blocked by dead letter 'block-1'", "resubmit or discard"
    ),
    Situation("all blocked keys", BLOCKED, "blocked list ledger").says("ledger", "books", "block-1", "no such account"),
    Situation("outputs that have not left", (AWAY,), "pending list").says(
        "away", " min ago", "1 output not known to have left", "sweeper"
    ),
    Situation("outputs that have not left, in a look at everything", (AWAY,), "doctor").says(
        "1 transaction whose outputs have not left for 2", "outbox pending finish"
    ),
    Situation("outputs that cannot leave", (AWAY, Done(no_queue)), "pending finish --all").says(
        "away: 1 not sent", "no such queue, topic or subscription"
    ),
    Situation(
        "what a message has caused",
        (Sent("orders", "caused-1", "outside", "caused"),),
        "message trace caused-1 --key caused",
    ).says("caused-1", "applied in", "by take, key caused", "outside"),
    Situation(
        "an id used twice",
        (Sent("orders", "twice-1", "", is_awaited=True), Sent("orders", "twice-1", "other")),
        "dead-letters show orders twice-1",
    ).says("payload-differs", "use a new id"),
)
BUS = (
    Situation("a refusal, by its id alone", (REFUSED,), "message show refused-1").says(
        "in the dead letters of",
        "no such article",
        "`outbox dead-letters resubmit --body FILE",
        "refused-1` with a corrected body",
        "or `outbox dead-letters discard",
    ),
    Situation("a backlog", put("idle", raw("idle-1")), "status").says("idle", "1"),
    Situation("a message that waits for its turn", put("idle", raw("idle-1")), "queue peek idle").says(
        "for a worker to take it"
    ),
    Situation("a message for later", (Sent("orders", "scheduled-1", after_s=3_600),), "schedule list orders").says(
        "scheduled-1", "due in"
    ),
    Situation("a message that its receiver set aside", (Done(deferred),), "queue peek parcels").says(
        "set-aside", "deferred", "has to ask for it by its number"
    ),
    Situation("a lock that ran out", (Done(lock_lost),), "queue peek parcels").says(
        "lock-lost", "1 delivery that nobody"
    ),
    Situation(
        "a message that was delivered too often", (Done(delivered_too_often),), "message show too-often --queue flaky"
    ).says("MaxDeliveryCountExceeded"),
    Situation("a message that expired", (Done(expired),), "message show expired --queue brief").says(
        "TTLExpiredException"
    ),
    Situation("a body that is no JSON", put("orders", raw("no-json", b"{")), "dead-letters show orders no-json").says(
        "undecodable"
    ),
    Situation(
        "a type that nobody takes", put("orders", raw("odd-type", type="Odrer")), "message show odd-type --queue orders"
    ).says("unknown-type", "Odrer"),
    Situation(
        "a message without an identity",
        put("orders", Message(body=b'{"key": "a"}', type="Order")),
        "dead-letters list orders --reason no-identity",
    ).says("no-identity"),
    Situation(
        "a message without a key", put("orders", raw("keyless", b'{"key": ""}')), "message show keyless --queue orders"
    ).says("missing-key"),
    Situation(
        "a sender whose clock is ahead",
        put("orders", raw("tomorrow", created_ms=wall_ms() + 10**9)),
        "message show tomorrow --queue orders",
    ).says("from-the-future", "clock"),
    Situation(
        "an output that is too large", (Sent("orders", "large-1", "large"),), "message show large-1 --queue orders"
    ).says("no-blob-store", "connect(..., blobs=...)", "then resubmit it"),
    Situation(
        "a message that is too old",
        (Sent("orders", "too-old-1", created=START_S),),
        "message show too-old-1 --queue orders",
    ).says("too-old", "look at the state", "--id NEW-ID"),
    Situation(
        "messages that go round",
        put("orders", raw("round-1", b'{"key": "a", "how": "again"}', hops=3)),
        "dead-letters show orders round-1",
    ).says("cycle", "hops_max=3"),
    Situation(
        "many that went wrong alike",
        tuple(Sent("orders", f"alike-{n}", "refuse") for n in range(3)),
        "dead-letters list orders --group",
    ).says("no such article"),
    Situation("dead letters that nobody has seen", (REFUSED,), "doctor").says(
        "orders", "outbox dead-letters list orders --group"
    ),
    Situation("a refusal in a subscription", (AUDIT,), "dead-letters list news/subscriptions/audit").says(
        "news-1", "not in the books"
    ),
    Situation("a paused queue", (Typed("queue pause idle"),), "status").says(
        "idle is paused", "outbox queue resume idle"
    ),
    Situation("a message in a paused queue", (Typed("queue pause idle"),), "queue peek idle").says(
        "idle is paused", "outbox queue resume idle"
    ),
    Situation("a message that was handled", (Sent("orders", "done-1"),), "message show done-1").says(
        "handled, or never sent"
    ),
    Situation(
        "an id that several begin with",
        put("idle", raw("prefix-one"), raw("prefix-two")),
        "message show prefix --queue idle",
    ).says("2 ids begin with", "prefix-one", "prefix-two", "give more of it"),
    Situation("an id that none begins with", (), "dead-letters show orders nothing-like").says(
        "no dead letter", "list"
    ),
    Situation("a queue that is misspelt", (), "queue peek ordres").says(
        "ordres", "does not exist", "did you mean 'orders'?"
    ),
    Situation("a state that is misspelt", (Sent("orders", "done-1"),), "state Cuont a").says(
        "Cuont", "there are: Count"
    ),
    Situation("a filter that fits nothing", (REFUSED,), "dead-letters resubmit orders --text nothing-like-it").says(
        "no dead letter of orders is meant", "outbox dead-letters list"
    ),
    Situation("a resubmission of what waits", put("idle", raw("idle-1")), "dead-letters resubmit idle idle-1").says(
        "no dead letter 'idle-1'", "outbox message show idle-1"
    ),
    Situation(
        "a resubmission of what was too old",
        (Sent("orders", "too-old-1", created=START_S),),
        "dead-letters resubmit orders too-old-1",
    ).says("too old to run", "new id"),
    Situation(
        "an edit of what has no record",
        put("orders", raw("no-json", b"{")),
        "dead-letters resubmit orders no-json --body BODY",
    ).says("refused as undecodable", "discard it", "new id"),
    Situation(
        "an edit in a subscription", (AUDIT,), "dead-letters resubmit news/subscriptions/audit news-1 --body BODY"
    ).says("is a subscription", "discard it", "new id"),
    Situation("an edit that is no JSON", (REFUSED,), "dead-letters resubmit orders refused-1 --body BROKEN").says(
        "not JSON"
    ),
    Situation("documents of another program", (Done(foreign),), "pending list").says(
        "not of this framework", "what else writes here"
    ),
    Situation(
        "a message of a newer build",
        (Put("orders", raw("newer-1", properties=schema_properties(9)), stays=True),),
        "message show newer-1 --queue orders",
    ).says("put back for: schema 9 of Order is newer than 1", "deploy the newer build"),
    Situation(
        "a store that throttles",
        (During(cosmos=FaultRule(kind="throttled", operation="query", retry_after_s=0.001, count=None)),),
        "status",
    ).says("throttled", "try again later"),
    Situation(
        "a store that nobody answers for",
        (Asked({"cosmos": f"AccountEndpoint=http://{NOBODY}/;AccountKey=c2VjcmV0;"}),),
        "status",
    ).says(NOBODY, "--cosmos"),
    Situation(
        "a bus that nobody answers for",
        (
            Asked(
                {
                    "servicebus": f"Endpoint=sb://{NOBODY};SharedAccessKeyName=x;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true;"
                }
            ),
        ),
        "queue peek idle",
    ).says(NOBODY, "--servicebus"),
    Situation(
        "a key of the store that is not its",
        (During(cosmos=FaultRule(kind="status", status=401, count=None)),),
        "status",
    ).says("refused (401)", "keys, roles"),
    Situation(
        "a role that the identity lacks in the store",
        (During(cosmos=FaultRule(kind="status", status=403, operation="query", count=None)),),
        "status",
    ).says("refused (403)", "keys, roles"),
    Situation(
        "a role that the identity lacks on the bus", (Asked({"servicebus": "WRONG KEY"}),), "queue peek idle"
    ).says("idle", "not allowed", "keys and roles"),
    Situation(
        "no right to manage the bus",
        (During(bus=FaultRule(kind="refused", operation="admin/get", count=None)),),
        "status",
    ).says("refused (403)", "right to manage"),
    Situation(
        "no right to manage the bus, in a look at everything",
        (During(bus=FaultRule(kind="refused", operation="admin/get", count=None)),),
        "doctor",
    ).says("refused (403)", "right to manage", "queue by queue"),
    Situation("a database that is misspelt", (Asked({"database": "shopp"}),), "status").says("shopp", "--database"),
    Situation("a container that is misspelt", (Asked({"container": "outobx"}),), "status").says(
        "outobx", "--container"
    ),
)


ITEM = (
    Situation("effects of an attempt that went no further", (Done(staged),), "pending explain staged-tx").says(
        "takes effect if the swap of its state lands", "a sweeper removes it", "outside"
    ),
    Situation("a blob that is announced", (Done(staged),), "pending list --tx blob-tx").says(
        "announces blob overflow/blob-tx/x", "a sweeper removes"
    ),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site() as site:
        site.plant([step for situation in (*BOTH, *BUS) for step in situation.plant])
        prefixed = [step for situation in (*BOTH, *ITEM) for step in situation.plant]
        site.plant(prefixed, prefix="item-", scope="item")
        yield site


@pytest.fixture
def bodies(tmp_path: Any) -> dict[str, str]:
    (tmp_path / "body").write_text('{"key": "a", "how": ""}')
    (tmp_path / "broken").write_text("{")
    return {"BODY": str(tmp_path / "body"), "BROKEN": str(tmp_path / "broken")}


def said(site: Site, capsys: Any, plant: tuple[Step, ...], command: str, scope: str = "partition") -> str:
    options = {name: value for step in plant if isinstance(step, Asked) for name, value in step.options.items()}
    for step in plant:
        if isinstance(step, Typed):
            site.command(step.command, scope=scope)
    if options.get("servicebus") == "WRONG KEY":
        options["servicebus"] = site.bus.connection_string.replace(KEY, KEY[::-1])
    capsys.readouterr()
    with site.faulty([step for step in plant if isinstance(step, During)]):
        site.command(command, scope=scope, **options)
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("situation", [*BOTH, *BUS], ids=lambda situation: situation.name)
def test_one_command_names_the_cause_and_the_cure(
    site: Site, situation: Situation[tuple[Step, ...]], bodies: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = " ".join(bodies.get(word, word) for word in situation.command.split())
    text = said(site, capsys, situation.plant, command)
    assert all(word in text for word in situation.words), text


@pytest.mark.parametrize("situation", [*BOTH, *ITEM], ids=lambda situation: situation.name)
def test_one_command_names_it_in_item_scope(
    site: Site, situation: Situation[tuple[Step, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    queues = ("orders", "ledger", "hopeless")
    command = " ".join(f"item-{word}" if word in queues else word for word in situation.command.split())
    text = said(site, capsys, situation.plant, command, "item")
    assert all(word in text for word in situation.words), text


def test_the_table_is_as_long_as_it_should_be() -> None:
    names = [situation.name for situation in (*BOTH, *BUS, *ITEM)]
    assert len(set(names)) == len(names) >= 50
