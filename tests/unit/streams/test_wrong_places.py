"""Another log, register or cursor than was meant, and handlers that go wrong: named, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable, OutcomeUnknown, Refused
from outbox.message import Message
from outbox.ports import Delete, Document, DocumentKey, Output, Replace, StateStore
from outbox.streams import Ingest, Inputs, OrderedLog, Position, Processor, RefusedEntry, Step
from outbox.streams.log_places import Place
from outbox.testing import START_S, Harness, VirtualClock
from tests.unit.streams.making import ANY_AGE, fill, made, values


@dataclass
class Seen:
    given: list[int] = field(default_factory=list)


def forward(seen: Seen, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        seen.given.append(entry.value)
        step.emit("out", entry.value)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine.in_memory(clock=VirtualClock(START_S))
    yield made
    made.close()


def forwarding(engine: Engine, source: OrderedLog[Any], target: OrderedLog[Any], **options: Any) -> Processor[Seen]:
    given: dict[str, Any] = {"state": Seen, "register": engine, "inputs": {"in": source}, "outputs": {"out": target}}
    return Processor("p", forward, **given | options)


# Another log than was meant


async def test_an_output_that_becomes_another_log_is_refused_and_a_version_begins_at_its_end(engine: Engine) -> None:
    source, out, other = (made(name, engine, int) for name in ("in", "out", "other"))
    await fill(source, 1, 2, 3)
    await forwarding(engine, source, out).run_until_idle()
    with pytest.raises(NotRegistrable, match=r"out is not log/out/0\.0 any more; give the same logs, .* version=2"):
        await forwarding(engine, source, other).run_until_idle()
    await source.append(4, id="four")
    await forwarding(engine, source, other, version=2).run_until_idle()
    assert (await values(out), await values(other)) == ([1, 2, 3], [4])


async def test_what_is_owed_to_a_log_goes_to_no_other(engine: Engine) -> None:
    source, out, other = (made(name, engine, int) for name in ("in", "out", "other"))
    await fill(source, 1)
    await forwarding(engine, source, out).run_until_idle(steps_max=1)  # handled, not written
    with pytest.raises(NotRegistrable, match="which has not been written yet"):
        await forwarding(engine, source, other, version=2).run_until_idle()
    await forwarding(engine, source, out).run_until_idle()
    assert await values(out) == [1]


async def test_an_input_that_becomes_another_log_is_refused_and_a_version_reads_it_from_its_first(
    engine: Engine,
) -> None:
    source, other, out = (made(name, engine, int) for name in ("in", "other", "out"))
    await fill(source, 1, 2, 3)
    await fill(other, 7)
    await forwarding(engine, source, out).run_until_idle()
    with pytest.raises(NotRegistrable, match=r"in is not log/in/0\.0 any more"):
        await forwarding(engine, other, out).run_until_idle()
    await forwarding(engine, other, out, version=2).run_until_idle()
    assert await values(out) == [1, 2, 3, 7]


async def test_a_replica_that_looks_while_it_stays_back_reads_no_other_log_at_an_old_cursor(engine: Engine) -> None:
    source, other, out = (made(name, engine, int) for name in ("in", "other", "out"))
    await fill(source, 1, 2, 3)
    await fill(other, 7, 8, 9, 10)
    await forwarding(engine, source, out).run_until_idle()
    behind = forwarding(engine, other, out, version=2).replica()
    known = await behind.look()
    assert known is not None and known.register.cursors == {}
    await behind.step()
    assert behind.known is not None and behind.known.register.cursors["in"] == Position(1)


async def test_a_log_that_ends_before_what_was_written_to_it_is_not_written_behind_a_hole(engine: Engine) -> None:
    source, out = made("in", engine, int), made("out", engine, int)
    await fill(source, 1, 2, 3)
    await forwarding(engine, source, out, batch_max=1).run_until_idle()
    restored = Engine.in_memory(clock=VirtualClock(START_S))
    await source.append(4, id="four")
    with pytest.raises(Refused, match="where an output goes on is 3, and there is no cell 2"):
        await forwarding(engine, source, made("out", restored, int)).run_until_idle(seconds=0.6)
    await forwarding(engine, source, out).run_until_idle()
    assert await values(out) == [1, 2, 3, 4]
    restored.close()


async def empty(engine: Engine) -> None:
    """Delete all documents, as a store does that is replaced, or restarted without its data."""
    store = engine.store()
    for space in [name.removeprefix("p/") for name in engine.state.documents.spaces if name.startswith("p/")]:
        found = [document async for document in store.scan(space)]
        await store.write([Delete(document.key, document.version) for document in found])


async def test_a_replica_whose_store_was_emptied_begins_at_the_first_cell_again(engine: Engine) -> None:
    source, out = made("in", engine, int), made("out", engine, int)
    await fill(source, 1, 2, 3)
    replica = forwarding(engine, source, out).replica()
    for _ in range(4):
        await replica.step()
    assert await values(out) == [1, 2, 3]
    await empty(engine)
    await fill(made("in", engine, int), 4)
    for _ in range(6):
        with suppress(Refused):
            await replica.step()
        replica.known = None  # as after a step that failed
    fresh = made("out", engine, int)
    assert await values(fresh) == [4] and await fresh.end() == Position(1)


async def test_a_producer_whose_log_was_emptied_stops_once_it_looks(engine: Engine) -> None:
    clock: VirtualClock = engine.core.clock  # type: ignore[assignment]  # of the fixture
    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    await empty(engine)
    clock.seconds += 600
    for id in ("three", "four"):
        with pytest.raises(Refused, match=r"its floor is gone, .* start this process again"):
            await log.append(3, id=id)
    await made("numbers", engine, int).append(3, id="three")
    assert await values(made("numbers", engine, int)) == [3]


class Forgetful:
    """A store of which a read gives nothing, as a replica that is far behind does; `misses` says how often."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.capabilities = store.capabilities
        self.misses = 0

    async def read(self, key: DocumentKey, *, session: str = "") -> Document | None:
        if self.misses and not session:
            self.misses -= 1
            return None
        return await self._store.read(key, session=session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_floor_that_a_stale_read_misses_keeps_its_readers_when_another_reports(engine: Engine) -> None:
    clock: VirtualClock = engine.core.clock  # type: ignore[assignment]  # of the fixture
    store = Forgetful(engine.store())
    log = made("numbers", Place(store, engine.blobs, engine.now_ms), int)
    await fill(log, 1, 2)
    await log.register("audit", Position(0))
    clock.seconds += 600
    store.misses = 1
    with pytest.raises(Refused, match="its floor is gone"):
        await log.append(3, id="three")
    row = log.row(0, 0)
    await row.horizon.register(writer="processor/p", at=2)  # what a processor in the same process reports
    assert (await made("numbers", engine, int).row(0, 0).opened()).readers == {"audit": 0}
    assert await made("numbers", engine, int).trim() == 0
    assert await log.append(3, id="three") == Position(2)


async def test_nobody_appends_or_reads_beyond_the_end(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2, 3)
    with pytest.raises(Refused, match="since= is 50, and there is no cell 49"):
        await made("in", engine, int).append(9, id="far", since=Position(50))
    with pytest.raises(Refused, match=r"ends at 3, reader 'audit' cannot stand at 1000"):
        await log.register("audit", Position(1_000))
    assert await log.trim(min_age=ANY_AGE) == 3 and await log.append(4, id="four") == Position(3)
    assert await made("in", engine, int).append(5, id="five", since=Position(3)) == Position(4)


async def test_two_processors_of_one_name_on_two_registers_find_each_other(engine: Engine) -> None:
    one, two, out = (made(name, engine, int) for name in ("one", "two", "out"))
    await fill(one, 1, 2)
    await fill(two, 7, 8)
    elsewhere = Engine.in_memory(clock=VirtualClock(START_S))
    first = forwarding(engine, one, out, batch_max=1)
    second = forwarding(elsewhere, two, out, batch_max=1)
    await second.run_until_idle(steps_max=1)  # its register stands where the other's stands
    await first.run_until_idle()
    with pytest.raises(NotRegistrable, match=r"another processor of this name, with a register elsewhere"):
        await second.run_until_idle()
    elsewhere.close()


async def test_a_register_that_is_lost_is_named_and_not_begun_in_the_middle(engine: Engine) -> None:
    source, out = made("in", engine, int), made("out", engine, int)
    await fill(source, 1, 2, 3)
    await forwarding(engine, source, out).run_until_idle()
    elsewhere = Engine.in_memory(clock=VirtualClock(START_S))
    again = forwarding(elsewhere, source, made("out2", engine, int))
    with pytest.raises(NotRegistrable, match=r'has read in log/in/0\.0 before: .* unregister "processor/p"'):
        await again.run_until_idle()
    await source.unregister("processor/p")
    await again.run_until_idle()
    assert await again.state() == Seen([1, 2, 3])
    elsewhere.close()


async def test_one_log_under_two_input_names_is_refused(engine: Engine) -> None:
    log = made("in", engine, int)
    with pytest.raises(NotRegistrable, match=r"reads log/in/0\.0 under two names"):
        forwarding(engine, log, made("out", engine, int), inputs={"a": log, "b": log})


async def test_an_ingest_into_another_log_is_refused(engine: Engine) -> None:
    ports = engine.apart()
    await ports.operations.declare({"q": "unordered"}, {})
    body = Message(body=b'{"n":1}', outbox_id="m", type="Item", created_ms=engine.now_ms())
    await ports.bus.send([Output("q", 0, body)])
    await Ingest("i", queue="q", type=Item, source=engine, log=made("one", engine, Item)).run_until_idle()
    with pytest.raises(
        NotRegistrable, match=r"ingest i/0 has written to log/one/0\.0, and this code gives log/two/0\.0"
    ):
        await Ingest("i", queue="q", type=Item, source=engine, log=made("two", engine, Item)).run_until_idle()


# A register that was restored from an older backup, and the log is elsewhere


class Restored:
    """The registers of one store, as a backup has them, and a log in another store."""

    def __init__(self, engine: Engine, register: str) -> None:
        self.engine = engine
        self.logs = Engine.in_memory(clock=engine.core.clock)
        self._key, self._body = DocumentKey(register, "register"), b""

    async def send(self, *ids: str) -> None:
        ports = self.engine.apart()
        await ports.operations.declare({"q": "unordered"}, {})
        bodies = [Message(body=b'{"n":1}', outbox_id=id, type="Item", created_ms=self.engine.now_ms()) for id in ids]
        await ports.bus.send([Output("q", 0, body) for body in bodies])

    def ingest(self) -> Ingest:
        return Ingest("i", queue="q", type=Item, source=self.engine, log=made("out", self.logs, Item))

    def forwarding(self) -> Processor[Seen]:
        return forwarding(self.engine, made("in", self.engine, int), made("out", self.logs, int))

    async def back_up(self) -> None:
        kept = await self.engine.store().read(self._key)
        assert kept is not None
        self._body = kept.body

    async def restore(self) -> None:
        kept = await self.engine.store().read(self._key)
        assert kept is not None
        await self.engine.store().write([Replace(self._key, self._body, kept.version)])

    async def trim(self, kind: Any, clock: VirtualClock) -> None:
        """Trim the log, and let its tombstones expire."""
        assert await made("out", self.logs, kind).trim(min_age=ANY_AGE) > 2
        clock.seconds += 3_600
        self.logs.tick()


async def test_a_message_after_a_restore_is_no_cell_that_was_written_before_it(engine: Engine) -> None:
    of = Restored(engine, "ingest/i/0")
    await of.send("a")
    await of.ingest().run_until_idle()
    await of.back_up()
    await of.send("b")
    await of.ingest().turn(wait_s=0)
    await of.restore()
    await of.send("c")  # of equal payload, under the serial that "b" was committed with
    await of.ingest().run_until_idle()
    assert await values(made("out", of.logs, Item)) == [Item(1)] * 3
    of.logs.close()


async def test_a_restored_ingest_writes_nothing_below_the_floor(engine: Engine) -> None:
    of, clock = Restored(engine, "ingest/i/0"), engine.core.clock
    await of.send("a")
    await of.ingest().run_until_idle()
    await of.back_up()
    for id in "bcd":
        await of.send(id)
        await of.ingest().run_until_idle()
    await of.trim(Item, clock)  # type: ignore[arg-type]  # of the fixture
    await of.restore()
    await of.send("e")
    with pytest.raises(Refused, match=r"is 0, and cells below 3 were trimmed: .* `since` .* to 3 and `outs` to \[\]"):
        await of.ingest().run_until_idle()
    assert [task.message.identity for task in engine.broker.peek("q", 0, 9)] == ["e"]
    of.logs.close()


async def test_a_restored_processor_writes_nothing_below_the_floor(engine: Engine) -> None:
    of, clock, source = Restored(engine, "processor/p"), engine.core.clock, made("in", engine, int)
    await fill(source, 0)
    await of.forwarding().run_until_idle()
    await of.back_up()
    for number in (1, 2, 3):
        await source.append(number, id=f"in-{number}")
        await of.forwarding().run_until_idle()
    await of.trim(int, clock)  # type: ignore[arg-type]  # of the fixture
    await of.restore()
    with pytest.raises(Refused, match=r"cells below \d were trimmed: a later register has been there"):
        await of.forwarding().replica().step()
    assert await values(made("out", of.logs, int)) == []
    of.logs.close()


# Appends of unknown outcome, ids and values


class LosesAnswers:
    """A store whose next appends take effect and do not say so."""

    def __init__(self, store: StateStore) -> None:
        self._store, self.is_down = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, key: Any, *, session: str = "") -> Any:
        if self.is_down:
            raise OutcomeUnknown("no answer")
        return await self._store.read(key, session=session)

    async def write(self, operations: Any) -> Any:
        answer = await self._store.write(operations)
        if self.is_down:
            raise OutcomeUnknown("no answer")
        return answer


async def test_an_append_of_unknown_outcome_that_was_trimmed_meanwhile_is_not_made_twice() -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    store = LosesAnswers(engine.store())
    log = made("in", engine, int).on(Place(store, engine.blobs, engine.now_ms))
    await log.append(0, id="r0")
    store.is_down = True
    with pytest.raises(OutcomeUnknown):
        await log.append(1, id="r1")
    store.is_down = False
    others = made("in", engine, int)
    assert await values(others) == [0, 1] and await others.trim(min_age=ANY_AGE) == 2
    clock.seconds += 400
    assert await log.append(1, id="r1") == Position(1)
    assert await values(others) == []
    engine.close()


async def test_a_set_is_the_same_however_it_was_stored(engine: Engine) -> None:
    log: OrderedLog[set[str]] = OrderedLog("sets", engine, type=set[str])
    at = await log.append({"a", "b", "c", "d"}, id="s", since=Position(0))
    stored = engine.state.documents.spaces["p/log/sets/0.0/0"]["0000000000"]
    text = stored.value.replace(b'"a"', b'"x"').replace(b'"d"', b'"a"').replace(b'"x"', b'"d"')
    engine.state.documents.spaces["p/log/sets/0.0/0"]["0000000000"] = msgspec.structs.replace(stored, value=text)
    assert await log.append({"a", "b", "c", "d"}, id="s", since=Position(0)) == at
    with pytest.raises(Refused, match="other entries"):
        await log.append({"a"}, id="s", since=Position(0))


# Handlers that go wrong


def yields(seen: Seen, inputs: Inputs, step: Step) -> Any:
    yield 1


async def yields_later(seen: Seen, inputs: Inputs, step: Step) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"version": "2"}, "version='2': a whole number"),
        ({"version": True}, "version=True: a whole number"),
        ({"state_version": 2.5}, "state_version=2.5: a whole number"),
        ({"state": Seen()}, "give the class"),
        ({"on_error": "skip"}, 'else "stop"'),
        ({"retries": 3}, r"give Retries\(...\)"),
        ({"handler_s": -1}, "handler_s=-1: seconds"),
        ({"poll_s_max": 0}, "poll_s_max=0: seconds"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_option_that_cannot_be_is_refused(engine: Engine, options: dict[str, Any], cure: str) -> None:
    with pytest.raises(NotRegistrable, match=cure):
        forwarding(engine, made("in", engine, int), made("out", engine, int), **options)


@pytest.mark.parametrize("ms", [-1, 0, float("inf"), float("nan"), "x", None, True], ids=str)
async def test_a_wake_that_is_no_time_is_a_failure_of_the_handler_and_not_of_the_register(
    engine: Engine, ms: Any
) -> None:
    def wakes(seen: Seen, inputs: Inputs, step: Step) -> None:
        step.wake_at(ms)

    log = made("in", engine, int)
    await fill(log, 1)
    processor = Processor("p", wakes, state=Seen, register=engine, inputs={"in": log})
    await processor.replica().step()
    assert (await processor.status()).failures == 1


async def test_a_handler_that_is_cancelled_by_something_else_has_failed(engine: Engine) -> None:
    async def waits(seen: Seen, inputs: Inputs, step: Step) -> None:
        task = asyncio.create_task(asyncio.sleep(9))
        task.cancel()
        await task

    log = made("in", engine, int)
    await fill(log, 1)
    processor = Processor("p", waits, state=Seen, register=engine, inputs={"in": log})
    await processor.replica().step()
    assert (await processor.status()).failures == 1


@dataclass
class Item:
    n: Any


async def test_a_refused_entry_is_as_it_was_before_its_handler(engine: Engine) -> None:
    def spoils(seen: Seen, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            entry.value.n = object()
        raise ValueError("no")

    log, refused = made("in", engine, Item), made("refused", engine, RefusedEntry)
    await fill(log, Item(5))
    given: dict[str, Any] = {"on_error": "refuse", "refused": refused, "inputs": {"in": log}}
    processor = Processor("p", spoils, state=Seen, register=engine, **given)
    replica = processor.replica()
    for _ in range(20):
        await replica.step()
    assert [bytes(each.value) for each in await values(refused)] == [b'{"n":5}']


# What holds a floor


async def test_the_log_of_an_ingest_can_be_trimmed(engine: Engine) -> None:
    ports, log = engine.apart(), made("one", engine, Item)
    await ports.operations.declare({"q": "unordered"}, {})
    ingest = Ingest("i", queue="q", type=Item, source=engine, log=log)
    for number in range(3):
        body = Message(body=b'{"n":1}', outbox_id=f"m{number}", type="Item", created_ms=engine.now_ms())
        await ports.bus.send([Output("q", 0, body)])
        await ingest.run_until_idle()
    assert await log.trim(min_age=ANY_AGE) >= 2


async def test_a_run_that_ends_before_it_is_idle_reports_how_far_it_came(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, *range(9))
    processor = forwarding(engine, log, made("out", engine, int), batch_max=1)
    for _ in range(2):
        await processor.run_until_idle(steps_max=3)
    assert await log.trim() == 6


async def test_a_row_that_has_always_more_keeps_no_other_out(engine: Engine) -> None:
    log: OrderedLog[int] = OrderedLog("in", engine, type=int, writers=2)
    for n in range(6):
        await log.writer(0).append(n, id=f"a{n}")
    await log.writer(1).append(100, id="b")
    out = made("out", engine, int)
    await forwarding(engine, log, out, inputs={"in": log.reader(0)}, batch_max=1).run_until_idle()
    assert 100 in (await values(out))[:2]


async def test_two_processors_of_one_name_do_not_step_in_a_harness(engine: Engine) -> None:
    one = forwarding(engine, made("in", engine, int), made("out", engine, int))
    with pytest.raises(ValueError, match="two of one name"):
        Harness(streams=iter([one, one]))  # type: ignore[arg-type]  # any iterable will do
