"""A discard is taken back: on an engine, over its endpoint, and over a store with a bus; until its time is over."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from outbox import App, Client, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.entities import QueueSettings, Settlement, dead_letter_path
from outbox.errors import OutcomeUnknown, Refused
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.dead_letters import (
    DeadLetterFilter,
    Discard,
    ListDeadLetters,
    ListDiscarded,
    Restore,
    Resubmit,
    ShowDeadLetter,
)
from outbox.ops.values.requests import Admin
from outbox.ports import Backend, DeadLetterEntry
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.store_operations import StoreOperations
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Seen
from tests.unit.ops.conftest import Cli
from tests.unit.ops.operators import operator, store_admin
from tests.unit.stores.store_site import Add, Watched, adding

RETENTION = timedelta(days=3)
IS_DOWN = {"now": True}


@dataclass
class Order:
    id: str
    note: str = ""


def shop() -> App:
    """A handler that refuses while something is down; its dead letters block their keys."""
    app = App("shop", retention=RETENTION)
    app.queue("orders", "per_key")

    @app.handler("orders", key="id", on_dead_letter="stop_key")
    def take(order: Order, seen: Seen) -> None:
        if IS_DOWN["now"]:
            raise Reject("down")
        seen.count += 1

    return app


class Site:
    """A backend with dead letters, whose time is the test's, and an operator on it."""

    def __init__(self, backend: Backend, admin: Admin, clock: VirtualClock) -> None:
        self.backend = backend
        self.admin = admin
        self.clock = clock

    async def handle(self, *ids: str, note: str = "") -> None:
        """Let a worker handle what waits, and some orders."""
        async with Worker(shop(), self.backend) as worker:
            for id in ids:
                await worker.send("orders", Order(id, note), id=id)
            await worker.wait_idle(timeout_s=10)

    async def count(self, key: str) -> int:
        seen = await Client(shop(), self.backend).state(Seen, key)
        return 0 if seen is None else seen.count

    async def ids(self) -> list[str]:
        return sorted(letter.id for letter in await self.admin.ask(ListDeadLetters("orders")))

    async def kept(self) -> list[str]:
        return sorted(letter.id for letter in await self.admin.ask(ListDiscarded("orders")))


@pytest.fixture(params=["direct", "http", "partition", "item"])
async def site(request: pytest.FixtureRequest, disk_path: Path) -> AsyncIterator[Site]:
    IS_DOWN["now"] = True
    clock = VirtualClock(START_S)
    async with Engine.open(disk_path, clock=clock) as engine:
        if request.param in ("partition", "item"):
            yield Site(NarrowEngine(engine, request.param), store_admin(engine, request.param), clock)
            return
        async with operator(engine, disk_path, request.param) as admin:
            yield Site(engine, admin, clock)


async def test_what_was_discarded_is_restored_as_it_was_and_runs(site: Site) -> None:
    await site.handle("a1", "b2", note="n" * 20)
    before = await site.admin.ask(ShowDeadLetter("orders", "a1"))
    moved = await site.admin.ask(Discard("orders", "a1"))
    assert moved.count == 1
    assert (await site.ids(), await site.kept()) == (["b2"], ["a1"])
    assert (await site.admin.ask(Restore("orders", "a1"))).count == 1
    assert (await site.ids(), await site.kept()) == (["a1", "b2"], [])
    after = await site.admin.ask(ShowDeadLetter("orders", "a1"))
    same = ("id", "reason", "description", "type", "delivery_count", "created", "key", "size_bytes", "cure")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    IS_DOWN["now"] = False
    await site.admin.ask(Resubmit("orders", "a1"))
    await site.handle()
    assert (await site.count("a1"), await site.count("b2")) == (1, 0)


async def test_it_is_gone_when_its_time_is_over_or_for_good_at_once(site: Site) -> None:
    await site.handle("a1", "b2")
    await site.admin.ask(Discard("orders", "b2", for_good=True))
    assert await site.kept() == []
    await site.admin.ask(Discard("orders", "a1"))
    site.clock.seconds += RETENTION.total_seconds() - 60
    assert await site.kept() == ["a1"]
    site.clock.seconds += 61
    assert await site.kept() == []
    for id in ("a1", "b2"):
        with pytest.raises(LookupError, match="no discarded dead letter"):
            await site.admin.ask(Restore("orders", id))
    assert await site.ids() == []


async def test_all_are_discarded_and_restored_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.ops.dead_letters.engine.MOVED_COUNT", 2)
    await site.handle("a1", "b2", "c3")
    assert (await site.admin.ask(Discard("orders", None))).count == 3
    assert (await site.ids(), await site.kept()) == ([], ["a1", "b2", "c3"])
    assert (await site.admin.ask(Restore("orders", None))).count == 3
    assert (await site.ids(), await site.kept()) == (["a1", "b2", "c3"], [])
    assert (await site.admin.ask(Restore("orders", None))).count == 0


async def test_a_key_that_has_gone_on_is_not_blocked_again(site: Site) -> None:
    await site.handle("a1")
    await site.admin.ask(Discard("orders", "a1"))
    await site.admin.ask(Restore("orders", "a1"))
    IS_DOWN["now"] = False
    async with Worker(shop(), site.backend) as worker:
        await worker.send("orders", Order("a1"), id="next")
        await worker.wait_idle(timeout_s=10)
    assert await site.count("a1") == 1
    await site.admin.ask(Resubmit("orders", "a1"))
    await site.handle()
    assert await site.count("a1") == 2 and await site.ids() == []


async def test_an_id_may_be_given_by_its_beginning_if_it_is_one(site: Site) -> None:
    await site.handle("order-a", "order-b")
    await site.admin.ask(Discard("orders", None))
    with pytest.raises(Refused, match="2 discarded ones of orders begin"):
        await site.admin.ask(Restore("orders", "order-"))
    assert (await site.admin.ask(Restore("orders", "order-a"))).id == "order-a"
    with pytest.raises(LookupError):
        await site.admin.ask(Restore("orders", "order-x"))


async def test_what_is_discarded_restored_and_discarded_again_is_kept_once(site: Site) -> None:
    await site.handle("a1")
    for _ in range(3):
        await site.admin.ask(Discard("orders", "a1"))
        assert (await site.ids(), await site.kept()) == ([], ["a1"])
        await site.admin.ask(Restore("orders", "a1"))
        assert (await site.ids(), await site.kept()) == (["a1"], [])


async def test_filters_mean_a_handler_and_an_exception(site: Site) -> None:
    await site.handle("a1")
    for where, found in (
        (DeadLetterFilter(handler="take"), ["a1"]),
        (DeadLetterFilter(handler="other"), []),
        (DeadLetterFilter(exception="Reject"), []),
    ):
        assert [each.id for each in await site.admin.ask(ListDeadLetters("orders", where=where))] == found


@asynccontextmanager
async def one_refused(clock: VirtualClock) -> AsyncIterator[tuple[Watched, StoreOperations, DeadLetterEntry]]:
    """A store whose answers may be lost, its operations, and a dead letter."""
    async with Engine.in_memory(clock=clock) as engine:
        ports = NarrowEngine(engine, "partition").ports()
        store = Watched(ports.store)
        operations = StoreOperations(replace(ports, store=store))
        async with Worker(adding(), NarrowEngine(engine, "partition")) as worker:
            await worker.send("adds", Add("a", 1, "reject"), id="m1")
            await worker.wait_idle(timeout_s=10)
        [dead] = await operations.dead_letters("adds")
        yield store, operations, dead


@pytest.mark.parametrize("lost", ["letter", "letter-gone"])
async def test_an_answer_that_is_lost_leaves_both_and_a_second_try_ends_it(lost: str) -> None:
    """A discard that is broken off has kept the dead letter and not yet removed it, and a restore likewise."""
    async with one_refused(VirtualClock(START_S)) as (store, operations, dead):
        if lost == "letter":
            store.lost = lost
            with pytest.raises(OutcomeUnknown):
                await operations.set_aside(dead, life_s=60)
            assert len(await operations.dead_letters("adds")) == 1 == len(await operations.set_aside_of("adds"))
        await operations.set_aside(dead, life_s=60)
        assert (len(await operations.dead_letters("adds")), len(await operations.set_aside_of("adds"))) == (0, 1)
        [kept] = await operations.set_aside_of("adds")
        store.lost = lost
        with pytest.raises(OutcomeUnknown):
            await operations.restore("adds", kept.sequence)
        if lost == "letter":
            await operations.restore("adds", kept.sequence)
        assert (len(await operations.dead_letters("adds")), len(await operations.set_aside_of("adds"))) == (1, 0)


@pytest.mark.parametrize("what", ["discard", "resubmit"])
async def test_what_another_client_has_in_hand_is_left_as_it_is(engine: Engine, what: str) -> None:
    """Its key stays blocked, nothing is kept, and a host that hands out one message at a time is told of nothing."""
    IS_DOWN["now"] = True
    narrow = NarrowEngine(engine, "partition")
    ports = narrow.ports()
    site = Site(narrow, store_admin(engine), VirtualClock(START_S))
    await site.handle("a1")
    assert len(engine.broker.claim(dead_letter_path("orders"), 1)) == 1
    with pytest.raises(LookupError, match="free"):
        await site.admin.ask({"discard": Discard, "resubmit": Resubmit}[what]("orders", "a1"))
    block = await BlockedSessions(ports.store, ports.blobs).block_of("orders", "a1")
    assert block is not None and block.again is None and not block.resubmitted
    assert (await site.ids(), await site.kept()) == (["a1"], [])


async def test_a_discard_that_is_ended_later_keeps_from_then_on() -> None:
    clock = VirtualClock(START_S)
    async with one_refused(clock) as (store, operations, dead):
        store.lost = "letter"
        with pytest.raises(OutcomeUnknown):
            await operations.set_aside(dead, life_s=60)
        clock.seconds += 50
        await operations.set_aside(dead, life_s=60)
        clock.seconds += 50
        assert len(await operations.set_aside_of("adds")) == 1
        clock.seconds += 11
        assert await operations.set_aside_of("adds") == []


async def test_what_was_discarded_is_there_after_a_reopening(disk_path: Path) -> None:
    IS_DOWN["now"] = True
    async with Engine.open(disk_path) as engine:
        site = Site(engine, EngineAdmin(engine), VirtualClock(START_S))
        await site.handle("a1", "b2")
        await site.admin.ask(Discard("orders", "a1"))
        await site.admin.ask(Discard("orders", "b2"))
        await site.admin.ask(Restore("orders", "b2"))
    for _ in range(2):  # from the log, then from a snapshot
        async with Engine.open(disk_path) as engine:
            site = Site(engine, EngineAdmin(engine), VirtualClock(START_S))
            assert (await site.ids(), await site.kept()) == (["b2"], ["a1"])
            engine.compact()


async def test_what_was_restored_is_not_resubmitted_when_its_record_is_gone(disk_path: Path) -> None:
    IS_DOWN["now"] = True
    clock = VirtualClock(START_S)
    async with Engine.open(disk_path, clock=clock) as engine:
        site = Site(engine, EngineAdmin(engine), clock)
        await site.handle("a1")
        await site.admin.ask(Discard("orders", "a1"))
        await site.admin.ask(Restore("orders", "a1"))
        clock.seconds += 2 * RETENTION.total_seconds()
        with pytest.raises(Refused, match="the record of it is gone"):
            await site.admin.ask(Resubmit("orders", "a1"))


async def test_a_queue_that_is_made_anew_has_nothing_discarded(engine: Engine) -> None:
    admin, plain = EngineAdmin(engine), QueueSettings("plain")
    engine.declare(plain)
    engine.broker.send("plain", [Message(body=b"1", outbox_id="m1")])
    [claim] = engine.broker.claim("plain", 1)
    engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="by the test")
    await admin.ask(Discard("plain", "m1"))
    assert [letter.id for letter in await admin.ask(ListDiscarded("plain"))] == ["m1"]
    engine.topology.delete("plain")
    engine.declare(plain)
    assert await admin.ask(ListDiscarded("plain")) == []


def test_the_commands_say_how_a_discard_is_taken_back(
    disk_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare() -> None:
        IS_DOWN["now"] = True
        async with Engine.open(disk_path) as engine:
            await Site(engine, EngineAdmin(engine), VirtualClock(START_S)).handle("a1", "b2", "c3")

    def outbox(*arguments: str, code: int = 0) -> str:
        ended, out, err = cli("dead-letters", *arguments)
        assert ended == code
        return out + err

    asyncio.run(prepare())
    assert outbox("discard", "orders", "b2") == "discarded 1 of orders\n"
    assert outbox("restore", "orders", "b2") == "restored 1 of orders\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said, hint = outbox("discard", "orders", "a1").splitlines()
    assert said == "discarded 1 of orders"
    assert f"`outbox dead-letters restore --data {disk_path} orders a1` takes it back" in hint
    assert outbox("list", "--discarded").splitlines()[1].startswith("orders  a1")
    assert outbox("restore", "orders", "a1") == "restored 1 of orders\n"
    assert outbox("list", "orders", "--discarded") == "nothing that was discarded of orders can be restored\n"
    assert outbox("discard", "orders", "--all", "--for-good") == "discarded 3 of orders\n"
    assert "no discarded dead letter 'a1'" in outbox("restore", "orders", "a1", code=1)
    assert outbox("list", "--discarded") == "nothing that was discarded of any queue can be restored\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["restore", "orders"], "name one ID, or give --all"),
        (["restore", "orders", "a1", "--all"], "name one ID, or give --all"),
        (["list", "--discarded", "--reason", "failed"], "leave the other options out"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: list[str], why: str, cli: Cli) -> None:
    code, _, err = cli("dead-letters", *arguments)
    assert code == 2 and why in err
