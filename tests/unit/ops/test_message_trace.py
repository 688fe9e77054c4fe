"""The trail of a message: causes and effects over all hops, from both ends, as far as anything is left of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outbox import App, Context, Engine, Reject, Worker
from outbox.cancellation import read_ticket
from outbox.errors import CorruptRecord, Refused
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.ops.host.audit import Audit
from outbox.ops.messages.pending import pending_in
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.trail import records as trail_records
from outbox.ops.trail.history import HistoryTrail
from outbox.ops.trail.store import find_trail
from outbox.ops.trail.tree import Sighting, reach, tree
from outbox.ops.values.requests import Admin
from outbox.ops.values.trail import Fact, FindTrail, Trace, Trail
from outbox.ports import Backend, HeldMessage
from tests.unit.ops.operators import store_site
from tests.unit.stores.store_site import Add, Site, adding, site
from tests.unit.stores.store_site import handled as site_handled


def over(at: Site, peek: Any, queues: Sequence[str]) -> StoreSite:
    """A store and a bus with these queues, as an admin has them at hand."""

    async def counts() -> dict[str, Any]:
        return dict.fromkeys(queues)

    return store_site(at.ports(), counts=counts, peek=peek)


@dataclass
class Order:
    customer: str
    items: int = 1


@dataclass
class Customer:
    items: int = 0


@dataclass
class Charge:
    customer: str
    items: int


@dataclass
class Parcel:
    customer: str


def made() -> App:
    """An order causes a charge and a mail, a charge causes a parcel; nobody handles mails and parcels."""
    app = App("shop")
    app.queue("mails")
    app.queue("parcels")

    @app.handler("orders", key="customer")
    def take(order: Order, customer: Customer, ctx: Context) -> None:
        if order.items > 100:
            raise Reject("too many")
        customer.items += order.items
        ctx.send("charges", Charge(order.customer, order.items))
        ctx.send("mails", Parcel(order.customer))

    @app.handler("charges")
    def charge(charge: Charge, ctx: Context) -> None:
        if charge.items > 10:
            raise Reject("no cover")
        ctx.send("parcels", Parcel(charge.customer))

    return app


async def handled(engine: Engine, *orders: tuple[str, Order], history: Path | None = None) -> None:
    audit = None if history is None else Audit(engine, made(), history)
    async with Worker(made(), engine if audit is None else audit.backend) as worker:
        for id, order in orders:
            await worker.send("orders", order, id=id)
        await worker.wait_idle(timeout_s=20)
    if audit is not None:
        audit.end()


def shape(found: Trace) -> list[tuple[int, str, str, str]]:
    """Depth, place, queue and handler of each hop."""
    return [
        (hop.depth, fact.place, fact.queue, fact.handler)
        for hop in found.hops
        for fact in (hop.facts or [Fact(id="", place="unknown", known_by="queue")])
    ]


async def traced(admin: Admin, id: str, **more: Any) -> Trace:
    return tree(await admin.ask(FindTrail(id, **more)), depth_max=10, width_max=20)


async def test_an_order_leads_over_a_charge_that_is_gone_to_its_parcel(engine: Engine, admin: Admin) -> None:
    await handled(engine, ("order-1", Order("ann")), ("order-2", Order("ben")))
    found = await traced(admin, "order-1", key="ann")
    assert shape(found) == [
        (0, "applied", "orders", "take"),
        (1, "applied", "charges", "charge"),
        (2, "waiting", "parcels", ""),
        (1, "waiting", "mails", ""),
    ]
    assert (found.hops[0].facts[0].key, found.hops[0].facts[0].known_by) == ("ann", "record")
    assert any("an engine keeps no record" in note for note in found.notes)


@pytest.mark.parametrize("body", [b'{"customer": "ann"}', b"[]"])
async def test_an_id_that_waits_in_one_queue_and_was_applied_in_another_shows_both(
    engine: Engine, admin: Admin, body: bytes
) -> None:
    await handled(engine, ("order-1", Order("ann")))
    engine.broker.send("mails", [Message(body=body, outbox_id="order-1")])
    found = await traced(admin, "order-1")
    places = {(fact.place, fact.queue, fact.known_by) for hop in found.hops if not hop.depth for fact in hop.facts}
    assert places == {("waiting", "mails", "queue"), ("applied", "orders", "record")}


async def test_a_parcel_leads_back_to_its_order_without_a_key(engine: Engine, admin: Admin) -> None:
    await handled(engine, ("order-1", Order("ann")), ("order-2", Order("ben")))
    letters = {task.message.correlation_id: task.message.identity for task in engine.broker.peek("parcels", 0, 9)}
    found = await traced(admin, letters["order-2"])
    assert shape(found) == [
        (-2, "applied", "orders", "take"),
        (-1, "applied", "charges", "charge"),
        (0, "waiting", "parcels", ""),
    ]
    assert (found.hops[0].id, found.hops[0].facts[0].key) == ("order-2", "ben")


async def test_a_refused_effect_says_why_and_a_refused_order_has_its_record(engine: Engine, admin: Admin) -> None:
    await handled(engine, ("order-1", Order("ann", 50)), ("order-3", Order("cyd", 500)))
    found = await traced(admin, "order-1", key="ann")
    dead = next(fact for hop in found.hops for fact in hop.facts if fact.place == "dead-letter")
    assert (dead.queue, dead.handler, dead.why) == ("charges", "charge", "no cover: rejected by the handler")
    found = await traced(admin, "order-3")
    assert {fact.place for fact in found.hops[0].facts} == {"dead-letter", "refused"}
    assert all(fact.why == "too many: rejected by the handler" for fact in found.hops[0].facts)


async def test_what_waits_in_hand_or_scheduled_is_a_hop_like_others(engine: Engine, admin: Admin) -> None:
    await handled(engine, ("order-1", Order("ann")))
    engine.broker.claim("mails", 1)
    engine.broker.send("parcels", [Message(body=b"{}", outbox_id="late", causation_id="order-1")],
                       due_ms=engine.now_ms() + 60_000)  # fmt: skip
    found = await traced(admin, "order-1", key="ann")
    assert {"in-hand", "scheduled"} <= {fact.place for hop in found.hops for fact in hop.facts}


async def test_nothing_is_known_of_what_left_nothing_and_a_prefix_must_be_one_id(engine: Engine, admin: Admin) -> None:
    await handled(engine, ("order-1", Order("ann", 500)), ("order-2", Order("ann", 500)))
    assert (await admin.ask(FindTrail("order-9"))).facts == []
    with pytest.raises(Refused, match="2 ids begin with 'orde'"):
        await admin.ask(FindTrail("orde"))
    with pytest.raises(Refused, match="not int"):
        await admin.ask(FindTrail("order-9", key="x", kind="int"))


def test_a_circle_and_a_wide_tree_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fact(id: str, cause: str = "") -> Fact:
        return Fact(id=id, cause=cause, place="waiting", known_by="queue")

    circle = tree(Trail("a", [fact("a", "b"), fact("b", "a")]), depth_max=10, width_max=10)
    assert [(hop.id, hop.depth) for hop in circle.hops] == [("b", -1), ("a", 0)]
    wide = [fact("a"), *(fact(f"m{n}", "a") for n in range(30)), *(fact(f"x{n}", f"m{n}") for n in range(30))]
    found = tree(Trail("a", wide), depth_max=1, width_max=5)
    assert [hop.more for hop in found.hops] == [25, 1, 1, 1, 1, 1]
    assert "30 effects more than is shown, the first of a; raise" in found.notes[-1]
    deep = [fact(f"m{n}", f"m{n - 1}") for n in range(1, 40)]
    assert [hop.depth for hop in tree(Trail("m20", deep), depth_max=3, width_max=5).hops] == [-3, -2, -1, 0, 1, 2, 3]


def test_a_trail_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.ops.trail.tree.FACT_COUNT_MAX", 5)
    reached = reach(FindTrail("root"), [Sighting(f"m{n}", "root", None) for n in range(9)])
    assert reached.is_cut and len(reached.sightings) == 4


async def test_no_more_keys_are_tried_than_a_limit(
    engine: Engine, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await handled(engine, ("order-1", Order("ann")), ("order-2", Order("ben")))
    monkeypatch.setattr(trail_records, "TRIED_COUNT_MAX", 0)
    [task, *_] = engine.broker.peek("mails", 0, 9)
    found = await traced(admin, task.message.identity)
    assert shape(found)[0] == (-1, "applied", "", "")


@dataclass
class Kept:
    ticket: str = ""


def reminding() -> App:
    """An order schedules a parcel, which its cancellation cancels."""
    app = App("reminders")

    @app.handler("orders", key="customer")
    def take(order: Order, kept: Kept, ctx: Context) -> None:
        if order.items:
            kept.ticket = ctx.schedule("parcels", Parcel(order.customer), after_s=3_600)
        else:
            ctx.cancel(kept.ticket)

    @app.handler("parcels", key="customer")
    def send(parcel: Parcel, customer: Customer) -> None:
        customer.items += 1

    return app


async def cancelled_parcel(backend: Backend) -> str:
    """The id of a parcel that was scheduled and cancelled, and whose cancellation is handled."""
    async with Worker(reminding(), backend) as worker:
        for n, items in enumerate((1, 0)):
            await worker.send("orders", Order("ann", items), id=f"order-{n}")
            await worker.wait_idle(timeout_s=20)
        kept = await worker.state(Kept, "ann")
        assert kept is not None
        return read_ticket(kept.ticket).id


async def test_a_cancelled_message_is_said_to_be_cancelled(engine: Engine, admin: Admin) -> None:
    id = await cancelled_parcel(engine)
    [hop] = [hop for hop in (await traced(admin, id, key="ann")).hops if not hop.depth]
    whys = {fact.place: fact.why for fact in hop.facts}
    assert whys.keys() == {"scheduled", "applied"}
    assert whys["applied"] == "cancelled before it was due: its handler never ran"
    [before] = [hop for hop in (await traced(admin, "order-0", key="ann")).hops if not hop.depth]
    assert [fact.why for fact in before.facts if fact.place == "applied" and fact.known_by == "record"] == [""]


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_over_a_store_a_cancelled_message_is_said_to_be_cancelled(scope: str) -> None:
    async def nothing(queue: str, **_: Any) -> tuple[list[Any], int]:
        return [], 0

    async with site(scope=scope) as at:
        id = await cancelled_parcel(at)
        for key, whys in (("ann", ["cancelled before it was due: its handler never ran"]), ("ben", [])):
            trail = await find_trail(over(at, nothing, ["orders", "parcels"]), FindTrail(id, key=key))
            [hop] = [hop for hop in tree(trail, depth_max=5, width_max=5).hops if not hop.depth]
            assert [fact.why for fact in hop.facts if fact.known_by == "record"] == whys
            assert all(fact.at for fact in hop.facts if fact.known_by == "record")


@pytest.mark.parametrize(("scope", "staged"), [("partition", False), ("item", False), ("item", True)])
async def test_over_a_store_an_output_that_has_not_left_is_a_hop_too(scope: Any, staged: bool) -> None:
    async with site(scope=scope, staged=staged) as at:
        at.bus.is_mute = True
        worker = Worker(adding(), at, drain_s=0.2)
        await worker.declare()
        await worker.send("adds", Add("a", 5), id="m-first")
        async with worker, asyncio.timeout(5):
            while not [view for view in await pending_in(at.ports()) if view.outputs]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)

        async def nothing(queue: str, **_: Any) -> tuple[list[Any], int]:
            return [], 0

        trail = await find_trail(over(at, nothing, ["adds", "told"]), FindTrail("m-first", key="a"))
        found = tree(trail, depth_max=5, width_max=5)
        assert shape(found) == [(0, "applied", "adds", "add"), (1, "pending", "told", "")]
        other = await find_trail(over(at, nothing, ["adds", "told"]), FindTrail("m-other", key="a"))
        assert other.facts == [], "the outcome of the first is not that of another of its key"
        first, output = found.hops[0].facts[0], found.hops[1].facts[0]
        assert first.tx == output.tx != "" and first.at == output.at
        below = await find_trail(over(at, nothing, ["adds", "told"]), FindTrail(found.hops[1].id[:20]))
        assert shape(tree(below, depth_max=5, width_max=5))[-1] == (0, "pending", "told", "")


async def test_over_a_store_the_record_of_another_queue_is_found_by_the_body_in_sight(at: Site) -> None:
    await site_handled(at, adding(), Add("a", 5))

    async def waiting(queue: str, **_: Any) -> tuple[list[Any], int]:
        message = Message(body=b'{"key": "a", "n": 5}', outbox_id="m0")
        return [HeldMessage(sequence=7, message=message, status="active", enqueued_ms=0)] if queue == "told" else [], 0

    trail = await find_trail(over(at, waiting, ["adds", "told"]), FindTrail("m0"))
    assert {(fact.place, fact.queue) for fact in trail.facts} == {("waiting", "told"), ("applied", "adds")}


async def test_over_a_store_another_key_finds_no_record(at: Site) -> None:
    await site_handled(at, adding(), Add("a", 5))

    async def nothing(queue: str, **_: Any) -> tuple[list[Any], int]:
        return [], 0

    for key, count in (("a", 1), ("b", 0), ("", 0)):
        trail = await find_trail(over(at, nothing, []), FindTrail("m0", key=key))
        assert len([fact for fact in trail.facts if fact.known_by == "record"]) == count, key
        assert any("--key names the key" in note for note in trail.notes)


def test_the_command_prints_a_tree_and_a_history_knows_what_the_engine_forgot(
    disk_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history.jsonl"

    async def run() -> None:
        async with Engine.open(disk_path) as engine:
            await handled(engine, ("order-1", Order("ann")), ("order-2", Order("ann", 500)), history=history)
            for queue in ("mails", "parcels"):  # and these are handled by somebody else
                for claim in engine.broker.claim(queue, 9):
                    engine.broker.settle(claim.token, 0)  # type: ignore[arg-type]  # complete

    asyncio.run(run())
    assert main(["message", "trace", "order-1", "--data", str(disk_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("* order-1: applied in orders by take, key ann, known by its record\nnote: an engine keeps")
    assert main(["message", "trace", "order-1", "--data", str(disk_path), "--history", str(history), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [hop["depth"] for hop in found["hops"]] == [0, 1, 2, 1]
    assert [fact["place"] for fact in found["hops"][1]["facts"]] == ["sent", "applied"]
    assert found["hops"][2]["facts"][0]["queue"] == "parcels"
    parcel = found["hops"][2]["id"]
    assert main(["message", "trace", parcel[:20], "--data", str(disk_path), "--history", str(history)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("- order-1: sent in orders") and lines[2].startswith(f"    * {parcel}: sent in parcels")
    assert main(["message", "trace", "order-9", "--data", str(disk_path)]) == 1
    assert "nothing is known of a message 'order-9'" in capsys.readouterr().err
    assert main(["message", "trace", "order-9", "--data", str(disk_path), "--history", str(tmp_path / "no")]) == 1
    assert "is not there; record one by" in capsys.readouterr().err


def test_of_one_moment_a_message_was_sent_before_it_was_applied() -> None:
    facts = [
        Fact(id="m1", place="applied", known_by="history", at=1.0),
        Fact(id="m1", place="waiting", known_by="queue"),
    ]
    facts.append(Fact(id="m1", place="sent", known_by="history", at=1.0))
    [hop] = tree(Trail("m1", facts), depth_max=1, width_max=1).hops
    assert [fact.place for fact in hop.facts] == ["sent", "applied", "waiting"]


def test_a_commit_without_an_outcome_is_said_to_be_unknown(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    lines = [
        '{"event":"in","at_ms":1000,"queue":"q","messages":[["m1",0]]}',
        '{"event":"commit","at_ms":2000,"op":1,"ended":[["q",1,"m1"]],"outputs":[["o1","r",0,"m1"]]}',
        '{"event":"fail","op":1}',
        '{"event":"commit","at_ms":3000,"op":2,"ended":[["q",1,"m1"]],"outputs":[["o1","r",0,"m1"]]}',
    ]
    path.write_text("\n".join(lines) + "\n")
    history = HistoryTrail(path, FindTrail("m1"))
    facts = history.facts(set(history.ids))
    assert [(fact.id, fact.place, fact.at) for fact in facts] == [
        ("m1", "sent", 1.0),
        ("m1", "unknown", 3.0),
        ("o1", "unknown", 3.0),
    ]
    path.write_text("no event\n" + "\n".join(lines))
    with pytest.raises(CorruptRecord):
        HistoryTrail(path, FindTrail("m1"))


def test_control_characters_of_an_id_are_escaped(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with Engine.open(disk_path) as engine:
            await handled(engine)
            engine.broker.send("mails", [Message(body=b"{}", outbox_id="bad\x1b[2Jid", causation_id="a\nb")])

    asyncio.run(run())
    assert main(["message", "trace", "bad\x1b[2J", "--data", str(disk_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "bad\\x1b[2Jid" in out and "a\\nb" in out
