"""An ordered log: what is appended is read, once and in order, until it is trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.errors import (
    CorruptRecord,
    FormatTooNew,
    NoBlobStore,
    NotRegistrable,
    OutcomeUnknown,
    Refused,
    Throttled,
    Trimmed,
)
from outbox.ports import BlobStore, Create, Delete, Lost, NoBlobs, Replace
from outbox.streams import Entry, Inputs, OrderedLog, Position, Processor, Step
from outbox.streams.cells import MISS_COUNT_MAX
from outbox.streams.log_places import Place
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Reading
from tests.unit.streams.making import ANY_AGE, Alarm, Total, entries, fill, made, values


def numbers(place: Any, **options: Any) -> OrderedLog[int]:
    """A log of numbers: any object of this name on one store is the same log."""
    return OrderedLog("numbers", place, type=int, **options)


# Appending


def test_positions_print_and_sort_as_index_and_offset() -> None:
    assert [str(at) for at in (Position(0), Position(12, 3))] == ["0.0", "12.3"]
    assert sorted([Position(2), Position(1, 9), Position(1), Position(10)]) == [
        *(Position(1), Position(1, 9), Position(2), Position(10))
    ]
    assert Position(1, 9).after() == Position(1, 10)


class Unsteady:
    """A store whose creates of cells take effect and are answered late, or not at all, with reads refused then."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.how = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, operations: Any) -> Any:
        answer = await self._store.write(operations)
        if self.how and isinstance(operations[0], Create):
            if self.how == "late":
                await asyncio.sleep(3_600)
            raise OutcomeUnknown("no answer")
        return answer

    async def read(self, key: Any, *, session: str = "") -> Any:
        if self.how == "refused":
            raise Throttled("too many requests")
        return await self._store.read(key, session=session)


class Behind:
    """A store that does not show a cell at the first look behind a create of it that lost."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.lost: set[Any] = set()
        self.hidden: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, operations: Any) -> Any:
        answer = await self._store.write(operations)
        key = operations[0].key
        if isinstance(answer, Lost) and key not in self.lost:
            self.lost.add(key)
            self.hidden.add(key)
            return replace(answer, current=None)
        return answer

    async def read(self, key: Any, *, session: str = "") -> Any:
        if key in self.hidden:
            self.hidden.discard(key)
            return None
        return await self._store.read(key, session=session)


async def expire(log: OrderedLog[int], count: int) -> None:
    """Let the first tombstones of a log be gone."""
    row = log.row(0, 0)
    for index in range(count):
        found = await row.place.store.read(row.cells.key(index))
        assert found is not None
        await row.place.store.write([Delete(found.key, found.version)])


@pytest.mark.parametrize("how", ["late", "refused"])
async def test_what_may_have_been_appended_is_known_again_after_a_trim(how: str, engine: Engine) -> None:
    now_ms = round(START_S * 1_000)
    store: Any = Unsteady(engine.store())
    mine, other = (numbers(Place(each, NoBlobs(), lambda: now_ms)) for each in (store, engine.store()))
    await mine.append(1, id="a")
    store.how = how
    with pytest.raises(TimeoutError if how == "late" else OutcomeUnknown):
        async with asyncio.timeout(0.05):
            await mine.append(2, id="b")
    store.how = ""
    seen = await values(other)
    await other.trim(min_age=ANY_AGE)
    now_ms += 200_000
    assert await mine.append(2, id="b") == Position(1)
    assert (seen, await values(other)) == ([1, 2], [])


async def test_what_is_refused_for_certain_may_be_appended_again_whatever_was_trimmed(engine: Engine) -> None:
    now_ms = round(START_S * 1_000)
    store: Any = Unsteady(engine.store())
    mine, other = (numbers(Place(each, NoBlobs(), lambda: now_ms)) for each in (store, engine.store()))
    await mine.append(1, id="a")
    store.how = "refused"
    now_ms += 200_000
    with pytest.raises(Throttled):
        await mine.append(2, id="b")
    store.how = ""
    await fill(other, *range(5))
    await other.trim(min_age=ANY_AGE)
    await expire(other, 6)
    now_ms += 700_000
    await mine.append(2, id="b")
    assert await values(other) == [2]


async def test_a_writer_counts_the_looks_that_miss_for_each_cell_alone(engine: Engine) -> None:
    count, store = MISS_COUNT_MAX + 2, Behind(engine.store())
    await fill(numbers(engine), *range(count))
    late = numbers(Place(store, NoBlobs(), engine.now_ms))
    assert await late.append(0, id="late", since=Position(0)) == Position(count)
    assert len(store.lost) == count and not store.hidden


@pytest.mark.parametrize("passed_ms", [-60_000, 0])
async def test_a_clock_that_was_set_back_makes_a_writer_look_for_the_floor(
    passed_ms: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones end by the time that has passed, whatever a writer's clock says."""
    start_ms = round(START_S * 1_000)
    now_ms, clock, store = start_ms, {"s": 100.0}, engine.store()
    mine = numbers(Place(store, NoBlobs(), lambda: now_ms))
    other = numbers(Place(store, NoBlobs(), lambda: start_ms))
    monkeypatch.setattr("outbox.streams.row.time", SimpleNamespace(monotonic=lambda: clock["s"]))
    await mine.append(0, id="a0")
    await fill(other, *range(5))
    await other.trim(min_age=ANY_AGE)
    await expire(other, 6)
    now_ms += passed_ms
    clock["s"] += 0 if passed_ms else 700
    assert await mine.append(1, id="a1") == Position(6)


async def test_an_id_given_twice_at_once_is_one_entry(engine: Engine) -> None:
    logs, start = [numbers(engine) for _ in range(4)], Position(0)
    found = await asyncio.gather(*(log.append(1, id=f"{n % 3}", since=start) for n in range(12) for log in logs))
    again = await asyncio.gather(*(logs[0].append(2, id=f"b{n % 3}") for n in range(12)))
    assert (len(set(found)), len(set(again))) == (3, 3)
    assert await values(logs[0]) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("other", [[2], [1, 1], [1, 2]])
async def test_an_id_with_other_entries_is_refused_and_nothing_is_appended(engine: Engine, other: list[int]) -> None:
    log = numbers(engine)
    await log.append(1, id="a")
    with pytest.raises(Refused, match=r"id 'a' was appended with other entries, at 0\.0; use a new id"):
        await log.extend(other, id="a")
    assert await values(log) == [1]


async def test_an_append_looks_for_its_id_from_since_on_only(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2)
    again = numbers(engine)
    assert await again.append(1, id="numbers-0", since=log.first()) == Position(0)
    assert await again.append(1, id="numbers-0", since=await log.end()) == Position(2)


# Reading


async def test_a_read_begins_at_since_and_ends_before_until(engine: Engine) -> None:
    log = numbers(engine)
    await log.extend([0, 1, 2], id="a")
    await log.extend([3, 4], id="b")
    assert await values(log, Position(0, 2)) == [2, 3, 4]
    assert await values(log, Position(0, 1), Position(1, 1)) == [1, 2, 3]
    assert await values(log, until=Position(1)) == [0, 1, 2]
    assert await values(log, until=Position(0)) == await values(log, Position(9)) == []


async def test_an_absent_log_is_empty_and_reading_it_makes_nothing(engine: Engine) -> None:
    log = numbers(engine)
    assert (await values(log), await log.first(), await log.end()) == ([], Position(0), Position(0))
    assert [document async for document in engine.store().scan("log/numbers/0.0")] == []


async def test_a_waiting_reader_wakes_for_each_append_on_an_engine(engine: Engine) -> None:
    log, found = numbers(engine, poll_s_max=60), list[int]()
    woken = asyncio.Event()

    async def reader() -> None:
        async for entry in log.read(wait=True):
            found.append(entry.value)
            woken.set()

    task = asyncio.create_task(reader())
    for n in range(3):
        await asyncio.sleep(0)
        await numbers(engine).append(n, id=f"{n}", since=Position(0))
        async with asyncio.timeout(5):  # far less than the poll
            await woken.wait()
        woken.clear()
    task.cancel()
    assert found == [0, 1, 2]


async def test_a_waiting_reader_of_a_store_that_does_not_wake_looks_by_itself(engine: Engine) -> None:
    log = numbers(NarrowEngine(engine, "item"), poll_s_max=0.02)
    reader = log.read(wait=True)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0.05)
    await log.append(5, id="a")
    async with asyncio.timeout(5):
        assert (await waiting).value == 5
    await reader.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_a_reader_that_waits_below_a_rising_floor_learns_of_it(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2, 3)
    reader = log.read(wait=True)
    assert (await anext(reader)).value == 1
    await numbers(engine).trim(min_age=ANY_AGE)
    with pytest.raises(Trimmed, match=r"the first that is left is 3; read from first\(\)"):
        await anext(reader)


# Other processes


async def test_a_durable_engine_keeps_its_log(tmp_path: Path) -> None:
    async with Engine.open(tmp_path) as engine:
        log = numbers(engine)
        await fill(log, 1, 2, 3)
        await log.register("audit", Position(1))
        await log.trim()
    async with Engine.open(tmp_path) as engine:
        log = numbers(engine)
        assert await log.append(3, id="numbers-2", since=log.first()) == Position(2)
        assert await log.append(4, id="d") == Position(3)
        assert (await log.first(), await values(log)) == (Position(1), [2, 3, 4])


async def test_the_end_is_found_without_a_scan_of_the_log(engine: Engine) -> None:
    log = numbers(engine)
    for n in range(300):
        await log.append(n, id=f"{n}")
    other = numbers(engine)
    reads, read = 0, other.place.store.read

    async def counted(*given: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*given, **options)

    other.place.store.read = counted  # type: ignore[method-assign]  # counts
    assert await other.end() == Position(300)
    assert reads < 24


async def test_a_hint_that_is_wrong_or_no_json_changes_nothing(engine: Engine) -> None:
    log = numbers(engine)
    for n in range(70):
        await log.append(n, id=f"{n}")
    store = engine.store()
    [hint] = [document async for document in store.scan("log/numbers/0.0", prefix="hint")]
    for body in (b'{"end":3}', b"\xff", b'{"end":"x"}', b"[]"):
        await store.write([Replace(hint.key, body, hint.version)])
        hint = next(iter([document async for document in store.scan("log/numbers/0.0", prefix="hint")]))
        assert await numbers(engine).end() == Position(70)


# Trimming


async def test_a_trim_stops_at_the_last_reader_and_goes_on_when_it_has_moved_or_left(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, *range(6))
    await log.register("slow", Position(2))
    await log.register("fast", Position(4))
    assert (await log.trim(min_age=ANY_AGE), await log.first()) == (2, Position(2))
    await log.register("slow", Position(3))
    assert (await log.trim(min_age=ANY_AGE), await log.first()) == (1, Position(3))
    await log.unregister("slow")
    assert (await log.trim(min_age=ANY_AGE), await values(log)) == (1, [4, 5])
    with pytest.raises(Refused, match="log numbers has no reader or writer 'slowly'; there are: fast"):
        await log.unregister("slowly")
    await log.unregister("fast")
    assert (await log.trim(min_age=ANY_AGE), await log.trim(min_age=ANY_AGE), await values(log)) == (2, 0, [])


async def test_a_reader_that_another_process_forgot_registers_anew_where_it_was(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2)
    await log.register("reader", Position(1))
    await numbers(engine).unregister("reader")
    await log.register("reader", Position(1))
    assert (await numbers(engine).status())[0].readers == {"reader": 1}


def add(total: Total, inputs: Inputs, step: Step) -> None:
    total.n += sum(entry.value for entry in inputs)


async def test_a_log_that_no_reader_has_registered_at_is_left_whole_with_one_warning(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A timer that trims may fire before the first processor begins."""
    log = numbers(engine)
    await fill(log, 1, 2, 3)
    await log.row(0, 0).horizon.register(writer="processor/other", at=2)
    assert [await log.trim() for _ in range(3)] == [0, 0, 0]
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.getMessage() == (
        "log/numbers/0.0 has no registered reader, and without an age a trim leaves such a row whole; "
        "register its readers, or give min_age="
    )
    total = Processor("sums", add, state=Total, register=engine, inputs={"in": numbers(engine)})
    await total.run_until_idle()
    assert (await total.state()).n == 6
    assert (await log.trim(), await log.first()) == (2, Position(2))


async def test_an_age_of_nothing_is_an_age_and_trims_a_log_that_nobody_reads(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    log = numbers(engine)
    await fill(log, 1, 2, 3)
    assert (await log.trim(min_age=timedelta(0)), await values(log), caplog.records) == (3, [], [])


async def test_of_a_sharded_log_the_rows_that_nobody_reads_are_left(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    log = made("shared", engine, int, readers=3, partition=lambda n: n)
    for n in range(12):
        await log.writer(0).append(n, id=f"{n}")
    mine = [entry.value for entry in await entries(log.reader(1))]
    await log.reader(1).register("audit", Position(len(mine)))
    assert await log.trim() == len(mine) > 0
    assert [len(await values(log.reader(n))) > 0 for n in range(3)] == [True, False, True]
    assert "log/shared/0.0 and 1 more rows have no registered reader" in caplog.text


async def test_a_registration_never_moves_back(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2, 3)
    await log.register("audit", Position(2))
    await log.register("audit", Position(1))
    [row] = await log.status()
    assert (row.floor, row.end, row.readers, row.writers) == (0, 3, {"audit": 1}, {})


async def test_a_reader_is_registered_at_the_first_that_is_left_or_not_at_all(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2, 3)
    await log.register("a", Position(1))
    await log.trim()
    await log.register("b", log.first())
    await log.register("c")
    with pytest.raises(Trimmed, match="cell 0 was trimmed"):
        await log.register("d", Position(0))
    [row] = await log.status()
    assert row.readers == {"a": 2, "b": 2, "c": 2}


async def test_what_is_younger_than_min_age_stays() -> None:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        log = numbers(engine)
        for n in range(4):
            await log.append(n, id=f"{n}")
            clock.seconds += 60
        assert await log.trim(min_age=timedelta(seconds=150)) == 2
        assert await values(log) == [2, 3]
        assert await log.trim(min_age=timedelta(seconds=150)) == 0


async def test_a_read_below_the_floor_raises_trimmed_with_the_floor(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2, 3)
    await log.register("audit", Position(2))
    await log.trim()
    for since in (Position(0), Position(1, 5)):
        with pytest.raises(Trimmed, match="the first that is left is 2") as raised:
            await values(numbers(engine), since)
        assert raised.value.floor == 2
    with pytest.raises(Trimmed):
        await log.append(1, id="numbers-0", since=Position(1))


async def test_an_id_whose_cell_was_trimmed_keeps_its_position(engine: Engine) -> None:
    log = numbers(engine)
    await fill(log, 1, 2)
    await log.trim(min_age=ANY_AGE)
    assert await log.append(1, id="numbers-0") == Position(0)
    assert await log.append(3, id="c") == Position(2)
    assert await values(log) == [3]


async def test_a_log_lives_on_after_its_tombstones_are_gone() -> None:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        log = numbers(engine, margin=timedelta(seconds=60))
        await fill(log, 1, 2, 3)
        await log.trim(min_age=ANY_AGE)
        clock.seconds += 120
        assert await log.append(4, id="d") == await numbers(engine).append(4, id="d", since=log.first()) == Position(3)
        assert await values(log) == await values(numbers(engine)) == [4]
        with pytest.raises(Trimmed):
            await values(log, Position(1))


@pytest.mark.parametrize("scope", ["engine", "item"])
async def test_a_trim_of_more_than_a_page_leaves_the_rest(engine: Engine, scope: str) -> None:
    log = numbers(engine if scope == "engine" else NarrowEngine(engine, "item"))
    for n in range(1_100):
        await log.append(n, id=f"{n}")
    for upto, count in ((500, 500), (1_050, 550)):  # the second begins on one page of cells and ends on the next
        await log.register("audit", Position(upto))
        assert await log.trim() == count
    assert await values(log) == list(range(1_050, 1_100))


# Double sharding


def sharded(engine: Engine) -> OrderedLog[Reading]:
    return OrderedLog("readings", engine, type=Reading, writers=2, readers=4, partition=lambda r: r.sensor)


async def test_each_reader_has_its_share_of_all_writers_in_each_writers_order(engine: Engine) -> None:
    log = sharded(engine)
    given = [Reading(f"s{n % 7}", float(n)) for n in range(40)]
    for n, value in enumerate(given):
        await log.writer(n % 2).append(value, id=f"{n}")
    shares = [await entries(sharded(engine).reader(n)) for n in range(4)]
    assert sorted(entry.value.degrees for share in shares for entry in share) == [float(n) for n in range(40)]
    for n, share in enumerate(shares):
        assert {log.reader_of(entry.value) for entry in share} <= {n}
        for writer in range(2):
            mine = [entry.value.degrees for entry in share if entry.writer == writer]
            assert mine == sorted(mine) and all(degrees % 2 == writer for degrees in mine)


async def test_a_share_is_the_same_on_every_machine(engine: Engine) -> None:
    log = sharded(engine)
    assert [log.reader_of(Reading(f"s{n}", 0.0)) for n in range(8)] == [0, 2, 2, 1, 0, 1, 3, 3]


async def test_a_sharded_read_goes_on_from_a_position_of_each_writer(engine: Engine) -> None:
    log = made("two", engine, int, writers=2)
    for n in range(6):
        await log.writer(n % 2).append(n, id=f"{n}")
    found = await values(log.reader(0), {0: Position(2), 1: Position(1)})
    assert sorted(found) == [3, 4, 5]
    assert {(row.writer, row.end) for row in await log.status()} == {(0, 3), (1, 3)}


async def test_entries_of_two_readers_are_not_one_append(engine: Engine) -> None:
    log = sharded(engine)
    with pytest.raises(Refused, match="belong to 2 readers; append each share by itself"):
        await log.writer(0).extend([Reading("s0", 0.0), Reading("s1", 0.0)], id="a")


async def test_a_sharded_log_is_trimmed_and_registered_at_in_every_row(engine: Engine) -> None:
    log = made("two", engine, int, writers=2)
    for n in range(6):
        await log.writer(n % 2).append(n, id=f"{n}")
    await log.register("audit", Position(1))
    assert await log.trim() == 2
    assert sorted(await values(log.reader(0))) == [2, 3, 4, 5]


async def test_a_reader_holds_the_row_of_one_writer_at_its_position(engine: Engine) -> None:
    log = made("two", engine, int, writers=2)
    for n in range(6):
        await log.writer(n % 2).append(n, id=f"{n}")
    await log.register("audit", {0: Position(1)})
    await log.register("other", {0: Position(3), 1: Position(2)})
    assert [row.readers for row in await log.status()] == [{"audit": 2, "other": 0}, {"other": 1}]
    assert await log.trim() == 3
    await log.reader(0).register("audit", {0: Position(2)})
    assert sorted(await values(log.reader(0))) == [2, 4, 5]
    for wrong in ({2: Position(0)}, {}):
        with pytest.raises(Refused, match=r"has writers 0 to 1, and at= names"):
            await log.register("audit", wrong)


async def test_what_asks_for_one_row_of_a_sharded_log_names_the_cure(engine: Engine) -> None:
    log = sharded(engine)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: log.append(Reading("a", 1.0), id="a"), r"\.writer\(0\)"),
        (lambda: log.end(), r"\.reader\(0\)"),
        (lambda: log.reader(1).end(), r"see status\(\)"),
        (lambda: values(log.reader(0), Position(1)), "give since= as a mapping"),
        (lambda: values(log.reader(0), until=Position(1)), "until= is for one"),
    ]
    for call, cure in calls:
        with pytest.raises((NotRegistrable, Refused), match=cure):
            await call()


# Large cells


async def test_a_large_cell_lies_in_a_blob_unseen(engine: Engine) -> None:
    log = made("texts", engine, str)
    large = ["x" * 600_000, "y" * 600_000]
    await log.extend(large, id="a")
    await log.append("small", id="b")
    [cell, _] = [document async for document in engine.store().scan("log/texts/0.0/0")]
    assert len(cell.body) < 1_000 and b'"blob"' in cell.body
    assert await values(made("texts", engine, str)) == [*large, "small"]
    assert await log.extend(large, id="a") == Position(0)
    assert [str(entry.position) for entry in await entries(log)] == ["0.0", "0.1", "1.0"]


@pytest.mark.parametrize("damage", ["changed", "deleted"])
async def test_a_blob_that_was_changed_or_lost_is_named_and_not_read(engine: Engine, damage: str) -> None:
    log = made("texts", engine, str)
    await log.append("x" * 1_100_000, id="a")
    [cell] = [document async for document in engine.store().scan("log/texts/0.0/0")]
    name = msgspec.json.decode(cell.body)["blob"]
    await engine.blobs.delete(name)
    if damage == "changed":
        await engine.blobs.write(name, b'["y"]')
    with pytest.raises(CorruptRecord, match=r"log/texts/0\.0/0: its blob .* restore it from a backup") as raised:
        await values(log)
    assert name in str(raised.value)


async def test_a_large_id_given_twice_with_other_entries_is_refused(engine: Engine) -> None:
    log = made("texts", engine, str)
    await log.append("x" * 1_100_000, id="a")
    for other in ("y" * 1_100_000, "y"):
        with pytest.raises(Refused, match="other entries"):
            await log.append(other, id="a")


async def test_a_trim_without_the_blob_store_names_it_and_one_with_it_goes_on(engine: Engine) -> None:
    log = made("texts", engine, str)
    await log.append("x" * 1_100_000, id="a")
    [cell] = [document async for document in engine.store().scan("log/texts/0.0/0")]
    name = msgspec.json.decode(cell.body)["blob"]
    for _ in range(2):
        with pytest.raises(NoBlobStore, match=f"trimmed entries lie in blob {name}; give the blob store"):
            await log.on(Place(engine.store(), NoBlobs(), engine.now_ms)).trim(min_age=ANY_AGE)
    assert await engine.blobs.read(name, bytes_max=1 << 21) is not None
    await log.trim(min_age=ANY_AGE)
    assert await engine.blobs.read(name, bytes_max=1 << 21) is None


class FailsOnce:
    """An engine's blobs, of which the first deletion fails."""

    def __init__(self, blobs: BlobStore) -> None:
        self.write, self.read, self._blobs, self._deletions = blobs.write, blobs.read, blobs, 0

    async def delete(self, name: str) -> None:
        self._deletions += 1
        if self._deletions == 1:
            raise OutcomeUnknown("no answer")
        await self._blobs.delete(name)


async def test_a_trim_that_died_leaves_no_blob_to_the_next(engine: Engine) -> None:
    log = made("texts", Place(engine.store(), FailsOnce(engine.blobs)), str)
    await log.append("x" * 1_100_000, id="a")
    [cell] = [document async for document in engine.store().scan("log/texts/0.0/0")]
    with pytest.raises(OutcomeUnknown):
        await log.trim(min_age=ANY_AGE)
    await log.trim(min_age=ANY_AGE)
    assert await engine.blobs.read(msgspec.json.decode(cell.body)["blob"], bytes_max=1 << 21) is None


async def test_a_store_without_blobs_refuses_a_large_cell(engine: Engine) -> None:
    log = made("texts", engine.store(), str)
    with pytest.raises(Refused, match="needs a blob store"):
        await log.append("x" * 1_100_000, id="a")
    assert await values(log) == []


# Types


async def test_a_log_of_a_union_gives_each_entry_its_class(engine: Engine) -> None:
    log: OrderedLog[Reading | Alarm] = OrderedLog("events", engine, type=Reading | Alarm)
    given: list[Reading | Alarm] = [Reading("a", 1.0), Alarm("hot"), Reading("b", 2.0)]
    await log.extend(given, id="a")
    await log.append(Alarm("cold"), id="b")
    assert await values(OrderedLog("events", engine, type=Alarm | Reading)) == [*given, Alarm("cold")]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (int, [0, -1, 2**60, 2**70]),
        (float, [0.0, -0.5, 1e300, 1.0]),
        (str, ["", "é\u2028\x00", "null"]),
        (int | None, [None, 0, None, 1]),
        (list[int], [[], [1, 2]]),
        (dict[str, float | None], [{}, {"a": None, "": 1.5}]),
        (bool, [False, True]),
    ],
    ids=str,
)
async def test_plain_values_are_read_as_they_were_appended(engine: Engine, kind: Any, given: list[Any]) -> None:
    log = made("plain", engine, kind)
    await log.extend(given, id="all")
    await fill(log, *given)
    found = await values(OrderedLog("plain", engine, type=kind))
    assert found == [*given, *given]
    assert [type(value) for value in found] == [type(value) for value in (*given, *given)]


async def test_an_older_schema_is_lifted_and_a_newer_one_is_refused(engine: Engine) -> None:
    class Celsius(msgspec.Struct):
        degrees: float

    class Kelvin(msgspec.Struct):
        kelvin: float

    Kelvin.__name__ = "Celsius"  # renamed fields, not a renamed type
    old: OrderedLog[Any] = OrderedLog("heat", engine, type=Celsius)
    lift = {1: lambda fields: {"kelvin": fields["degrees"] + 273}}
    new: OrderedLog[Any] = OrderedLog("heat", engine, type=Kelvin, version=2, upcasts=lift)
    await old.append(Celsius(1.0), id="a")
    await new.append(Kelvin(5.0), id="b")
    assert await values(new) == [Kelvin(274.0), Kelvin(5.0)]
    with pytest.raises(FormatTooNew, match="deploy the newer"):
        await values(old)


async def test_entries_of_one_append_share_its_id_and_time(engine: Engine) -> None:
    log = numbers(engine)
    await log.extend([1, 2], id="a")
    found: list[Entry[int]] = await entries(log)
    assert {(entry.id, entry.at_ms) for entry in found} == {("a", found[0].at_ms)}
