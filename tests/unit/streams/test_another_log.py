"""Another log of the same name: found by the last cell that was read or written, once a start, and nothing is taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import OtherLog
from outbox.message import Message
from outbox.ports import Create, DocumentKey, Output, Replace, Write
from outbox.streams import Entry, Ingest, Inputs, OrderedLog, Position, Processor, Step, StoreSink, TransactionalSink
from outbox.streams.cells import Cell
from outbox.streams.log_places import Place
from outbox.testing import START_S, Harness, VirtualClock
from tests.unit.streams.making import Counting, made, put_raw, values


@dataclass
class Seen:
    given: list[int] = field(default_factory=list)


@dataclass
class Page:
    n: int


def forward(seen: Seen, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        seen.given.append(entry.value)
        step.emit("out", entry.value)


@pytest.fixture
def here() -> Iterator[Engine]:
    """Where registers, cursors, outputs and the logs are that were meant."""
    with closing(Engine.in_memory(clock=VirtualClock(START_S))) as engine:
        yield engine


@pytest.fixture
def elsewhere() -> Iterator[Engine]:
    """Where other logs of the same names are."""
    with closing(Engine.in_memory(clock=VirtualClock(START_S))) as engine:
        yield engine


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any, before something is looked for again."""
    for module in ("processor", "sinks"):
        monkeypatch.setattr(f"outbox.streams.{module}.PAUSE_S_FIRST", 0.001)


async def append(log: OrderedLog[int], ids: str, *numbers: int) -> None:
    for number in numbers:
        await log.append(number, id=f"{ids}{number}")


async def expire(engine: Engine) -> None:
    """Let the tombstones of an engine's logs expire."""
    clock: Any = engine.core.clock
    clock.seconds += 3_600
    engine.tick()


def forwarding(register: Any, source: Any, target: Any, **options: Any) -> Processor[Seen]:
    given: dict[str, Any] = {"state": Seen, "register": register, "inputs": {"in": source}, "outputs": {"out": target}}
    return Processor("p", forward, **given | options)


@dataclass
class Reading:
    """Something that reads a log with a cursor: a run of it, what it has taken, and its context `run()`."""

    once: Callable[[OrderedLog[int]], Awaitable[Any]]
    taken: Callable[[], Awaitable[list[int]]]
    who: str


def by_a_processor(here: Engine, _: Path) -> Reading:
    def once(log: OrderedLog[int]) -> Awaitable[int]:
        return forwarding(here, log, made("out", here, int)).run_until_idle(seconds=20)

    return Reading(once, lambda: values(made("out", here, int)), "processor/p")


def into_a_database(_: Engine, path: Path) -> Reading:
    def note(db: Any, entries: Sequence[Entry[int]]) -> None:
        db.executemany("INSERT INTO taken VALUES (?)", [(entry.value,) for entry in entries])

    async def taken() -> list[int]:
        with sqlite3.connect(path) as db:
            return [n for (n,) in db.execute("SELECT n FROM taken ORDER BY rowid")]

    def once(log: OrderedLog[int]) -> Awaitable[int]:
        return TransactionalSink("s", log, lambda: sqlite3.connect(path), note).run_until_idle(seconds=20)

    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE taken (n INT)")
        db.execute("CREATE TABLE outbox_cursors (name VARCHAR(200) PRIMARY KEY, cell INT NOT NULL, entry INT NOT NULL)")
    return Reading(once, taken, "sink/s")


def into_documents(here: Engine, _: Path) -> Reading:
    key = DocumentKey("sums", "taken")

    async def taken() -> list[int]:
        found = await here.store().read(key)
        return [] if found is None else msgspec.json.decode(found.body, type=list[int])

    async def apply(entries: Sequence[Entry[int]]) -> list[Write]:
        found = await here.store().read(key)
        body = msgspec.json.encode([*await taken(), *(entry.value for entry in entries)])
        return [Create(key, body) if found is None else Replace(key, body, found.version)]

    def once(log: OrderedLog[int]) -> Awaitable[int]:
        return StoreSink("s", log, here, partition="sums", apply=apply).run_until_idle(seconds=20)

    return Reading(once, taken, "sink/s")


@pytest.fixture(params=[by_a_processor, into_a_database, into_documents], ids=lambda make: make.__name__)
def reading(request: pytest.FixtureRequest, here: Engine, tmp_path: Path) -> Reading:
    """Each that reads a log; that of a database has a table as older builds made it."""
    made: Reading = request.param(here, tmp_path / "taken.db")
    return made


@pytest.mark.parametrize(
    ("restored", "numbers", "why"),
    [
        ([], [10, 11, 12, 13, 14, 15], r"cell 3 is not the one that it was; .* give the log that was meant"),
        ([], [10], r"without cell 3|there is no cell 3"),
        ([0, 1], [2, 3, 4], "restore both from one time"),
    ],
    ids=["longer", "shorter", "restored and written to since"],
)
async def test_another_log_is_not_read_and_the_one_that_was_meant_is_read_on(
    reading: Reading, here: Engine, elsewhere: Engine, restored: list[int], numbers: list[int], why: str
) -> None:
    await append(made("in", here, int), "a", 0, 1, 2, 3)
    await reading.once(made("in", here, int))
    await append(made("in", elsewhere, int), "a", *restored)
    await append(made("in", elsewhere, int), "b", *numbers)
    with pytest.raises(OtherLog, match=why):
        await reading.once(made("in", elsewhere, int))
    await append(made("in", here, int), "a", 4)
    await reading.once(made("in", here, int))
    assert await reading.taken() == [0, 1, 2, 3, 4]


async def test_another_log_that_was_trimmed_is_told_by_its_floor(
    reading: Reading, here: Engine, elsewhere: Engine
) -> None:
    await append(made("in", here, int), "a", 0, 1, 2, 3)
    await reading.once(made("in", here, int))
    other = made("in", elsewhere, int)
    await append(other, "b", 10, 11, 12, 13)
    await other.register("audit", Position(4))
    assert await other.trim() == 4
    await append(other, "b", 14)
    for _ in range(2):  # by its tombstone, and without
        with pytest.raises(
            OtherLog, match=r"cell 3 is not the one|the cell before was trimmed, and the floor does not"
        ):
            await reading.once(made("in", elsewhere, int))
        await expire(elsewhere)
    assert await reading.taken() == [0, 1, 2, 3]


async def other_from_cell_3(elsewhere: Engine) -> OrderedLog[int]:
    """Another log, whose cells before the third were trimmed."""
    other = made("in", elsewhere, int)
    await append(other, "b", 10, 11, 12, 13, 14)
    await other.register("audit", Position(3))
    await other.trim()
    return other


async def test_a_sink_goes_on_in_another_log_once_its_rows_are_as_the_error_says(
    here: Engine, elsewhere: Engine, tmp_path: Path
) -> None:
    reading, other = into_a_database(here, tmp_path / "taken.db"), await other_from_cell_3(elsewhere)
    await append(made("in", here, int), "a", 0, 1, 2)
    await reading.once(made("in", here, int))
    with pytest.raises(
        OtherLog, match=r"set \(name, cell, entry\) in outbox_cursors to \('s', 3, 0\) and delete its row 's#log';"
    ):
        await reading.once(other)
    with sqlite3.connect(tmp_path / "taken.db") as db:
        db.execute("UPDATE outbox_cursors SET cell = 3, entry = 0 WHERE name = 's'")
        db.execute("DELETE FROM outbox_cursors WHERE name = 's#log'")
    await reading.once(other)
    assert await reading.taken() == [0, 1, 2, 13, 14]


async def test_a_sink_goes_on_in_another_log_once_its_document_is_as_the_error_says(
    here: Engine, elsewhere: Engine, tmp_path: Path
) -> None:
    reading, other = into_documents(here, tmp_path), await other_from_cell_3(elsewhere)
    await append(made("in", here, int), "a", 0, 1, 2)
    await reading.once(made("in", here, int))
    with pytest.raises(OtherLog, match="set sums/sink:s to ") as raised:
        await reading.once(other)
    key = DocumentKey("sums", "sink:s")
    found = await here.store().read(key)
    assert found is not None
    said = str(raised.value).partition(" sums/sink:s to ")[2].partition(";")[0]
    await here.store().write([Replace(key, said.encode(), found.version)])
    await reading.once(other)
    assert await reading.taken() == [0, 1, 2, 13, 14]


async def test_what_was_read_may_be_trimmed_and_its_tombstone_may_be_gone(reading: Reading, here: Engine) -> None:
    log = made("in", here, int)
    await append(log, "a", 0, 1, 2, 3)
    await reading.once(made("in", here, int))
    assert await log.trim() == 4
    for number in (4, 5):
        await append(made("in", here, int), "a", number)
        await reading.once(made("in", here, int))
        await expire(here)
    assert await reading.taken() == [0, 1, 2, 3, 4, 5]


async def test_a_cell_that_was_written_too_late_in_place_of_the_last_is_no_other_log(
    reading: Reading, here: Engine
) -> None:
    log = made("in", here, int)
    await append(log, "a", 0, 1)
    await reading.once(made("in", here, int))
    assert await log.trim() == 2
    await expire(here)
    late = Cell("late", 1, 1, [msgspec.Raw(b"99")])  # its writer was paused for longer than a margin, and is dead
    await put_raw(here.store(), "log/in/0.0/0", "0000000001", msgspec.json.encode(late))
    await append(log, "a", 2)
    await reading.once(made("in", here, int))
    assert await reading.taken() == [0, 1, 2]


async def test_a_cursor_within_a_cell_is_compared_with_that_cell(here: Engine, elsewhere: Engine) -> None:
    for engine, id in ((here, "a"), (elsewhere, "b")):
        await made("in", engine, int).extend([1, 2, 3], id=id)
    first = forwarding(here, made("in", here, int), made("out", here, int), batch_max=2)
    await first.run_until_idle(steps_max=1)
    with pytest.raises(OtherLog, match="cell 0 is not the one"):
        await forwarding(here, made("in", elsewhere, int), made("out", here, int), batch_max=2).run_until_idle()


# What is written


async def test_another_output_is_not_written(here: Engine, elsewhere: Engine) -> None:
    source = made("in", here, int)
    await append(source, "a", 0, 1)
    await forwarding(here, source, made("out", here, int)).run_until_idle()
    await append(made("out", elsewhere, int), "b", 10, 11, 12)
    await append(source, "a", 2)
    with pytest.raises(OtherLog, match="where an output goes on is 2, and cell 1 is not the one"):
        await forwarding(here, source, made("out", elsewhere, int)).run_until_idle()
    await forwarding(here, source, made("out", here, int)).run_until_idle()
    assert await values(made("out", here, int)) == [0, 1, 2]
    assert await values(made("out", elsewhere, int)) == [10, 11, 12]


async def send(engine: Engine, *ids: str) -> None:
    ports = engine.apart()
    await ports.operations.declare({"q": "unordered"}, {})
    bodies = [Message(body=b'{"n":1}', outbox_id=id, type="Page", created_ms=engine.now_ms()) for id in ids]
    await ports.bus.send([Output("q", 0, body) for body in bodies])


def ingest(here: Engine, log: OrderedLog[Page]) -> Ingest:
    return Ingest("i", queue="q", type=Page, source=here, log=log)


async def take_in(here: Engine, *ids: str) -> None:
    """Take messages in, a commit each; what the last one is to write is in the log, and its cell not yet on record."""
    for id in ids:
        await send(here, id)
        await ingest(here, made("pages", here, Page)).run_until_idle()


async def test_an_ingest_writes_to_no_other_log_and_completes_nothing(here: Engine, elsewhere: Engine) -> None:
    await take_in(here, "a", "b")
    for number in range(3):
        await made("pages", elsewhere, Page).append(Page(number), id=f"b{number}")
    await send(here, "c")
    with pytest.raises(OtherLog, match="cell 0 is not the one"):
        await ingest(here, made("pages", elsewhere, Page)).run_until_idle()
    await ingest(here, made("pages", here, Page)).run_until_idle()
    assert await values(made("pages", here, Page)) == [Page(1)] * 3


async def test_an_ingest_does_not_begin_to_run_over_another_log(here: Engine, elsewhere: Engine) -> None:
    await take_in(here, "a", "b")
    await made("pages", elsewhere, Page).append(Page(1), id="b")
    running = ingest(here, made("pages", elsewhere, Page))
    with pytest.raises(OtherLog):
        async with running.run():
            raise AssertionError("it began")


# What is kept of it


async def register_of(engine: Engine) -> dict[str, Any]:
    found = await engine.store().read(DocumentKey("processor/p", "register"))
    assert found is not None
    made: dict[str, Any] = msgspec.json.decode(found.body)
    return made


async def test_a_register_of_an_older_build_is_taken_and_the_last_cell_kept_from_then_on(
    here: Engine, elsewhere: Engine
) -> None:
    log = made("in", here, int)
    await append(log, "a", 0, 1)
    await forwarding(here, log, made("out", here, int)).run_until_idle()
    key, known = DocumentKey("processor/p", "register"), await register_of(here)
    assert {row: last[0] for row, last in known.pop("lasts").items()} == {"log/in/0.0": 1, "log/out/0.0": 1}
    stored = await here.store().read(key)
    assert stored is not None
    await here.store().write([Replace(key, msgspec.json.encode(known), stored.version)])
    await append(log, "a", 2)
    await forwarding(here, made("in", here, int), made("out", here, int)).run_until_idle()
    assert (await register_of(here))["lasts"]["log/in/0.0"][0] == 2
    await append(made("in", elsewhere, int), "b", 10, 11, 12, 13)
    with pytest.raises(OtherLog):
        await forwarding(here, made("in", elsewhere, int), made("out", here, int)).run_until_idle()


async def test_only_the_rows_that_a_processor_has_are_kept(here: Engine) -> None:
    log, other = made("in", here, int), made("other", here, int)
    await append(log, "a", 0)
    await append(other, "b", 1)
    await forwarding(here, log, made("out", here, int)).run_until_idle()
    await forwarding(here, other, made("out", here, int), version=2).run_until_idle()
    assert {*(await register_of(here))["lasts"]} == {"log/other/0.0", "log/out/0.0"}


async def test_an_input_that_is_renamed_takes_its_last_cell_along(here: Engine, elsewhere: Engine) -> None:
    await append(made("in", here, int), "a", 0, 1)
    await append(made("in", elsewhere, int), "b", 10, 11, 12)
    await forwarding(here, made("in", here, int), made("out", here, int)).run_until_idle()
    renamed: dict[str, Any] = {"version": 2, "inputs": {"numbers": made("in", elsewhere, int)}}
    with pytest.raises(OtherLog, match="cell 1 is not the one"):
        await forwarding(here, made("in", here, int), made("out", here, int), **renamed).run_until_idle()


async def test_a_start_costs_a_read_of_each_log_and_a_step_none(here: Engine) -> None:
    store = Counting(here.store())
    place = Place(store, here.blobs, here.now_ms)
    source = made("in", here, int)
    await append(source, "a", 0, 1)
    await forwarding(place, made("in", place, int), made("out", place, int)).run_until_idle()
    store.reset()
    replica = forwarding(place, made("in", place, int), made("out", place, int)).replica()
    await replica.step()
    last, written = (DocumentKey(f"log/{log}/0.0/0", f"{at:010}") for log, at in (("in", 1), ("out", 1)))
    assert (store.reads[last], store.reads[written]) == (1, 1)
    store.reset()
    await append(source, "a", 2)
    for _ in range(3):
        await replica.step()
    assert not store.reads[last] and await values(made("out", here, int)) == [0, 1, 2]


async def test_a_cursor_that_was_set_by_hand_is_taken_as_it_is(here: Engine, elsewhere: Engine, tmp_path: Path) -> None:
    path = tmp_path / "taken.db"
    reading = into_a_database(here, path)
    await append(made("in", here, int), "a", 0, 1, 2, 3)
    await reading.once(made("in", here, int))
    await append(made("in", elsewhere, int), "b", 10, 11, 12, 13, 14)
    with pytest.raises(OtherLog, match=r"to go on in this log, set \(name, cell, entry\) .* to \('s', 0, 0\)"):
        await reading.once(made("in", elsewhere, int))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE outbox_cursors SET cell = 0, entry = 0 WHERE name = 's'")
    await reading.once(made("in", elsewhere, int))
    assert await reading.taken() == [0, 1, 2, 3, 10, 11, 12, 13, 14]


async def test_a_sink_of_an_older_build_beside_leaves_a_last_cell_that_says_nothing(
    here: Engine, elsewhere: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "taken.db"
    reading = into_a_database(here, path)
    log = made("in", here, int)
    await append(log, "a", 0, 1)
    await reading.once(log)
    await append(log, "a", 2)
    with sqlite3.connect(path) as db:  # which moves its row alone
        db.execute("UPDATE outbox_cursors SET cell = 3 WHERE name = 's'")
    await append(log, "a", 3)
    await reading.once(made("in", here, int))
    assert await reading.taken() == [0, 1, 3]
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT cell FROM outbox_cursors ORDER BY name").fetchall() == [(4,), (3,)]


async def test_a_harness_stops_at_another_log() -> None:
    """There all logs are documents of its engine, so only one that was replaced is another."""
    elsewhere = Engine.in_memory()
    processor = forwarding(elsewhere, made("in", elsewhere, int), made("out", elsewhere, int))
    async with Harness(streams=[processor]) as world:
        await append(world.log("in"), "a", 0, 1)
        await world.wait_idle()
        store = world.log("in").place.store
        found = await store.read(DocumentKey("log/in/0.0/0", f"{1:010}"))
        assert found is not None
        await store.write([Replace(found.key, found.body.replace(b'"a1"', b'"b1"'), found.version)])
        await world.restart()
        with pytest.raises(OtherLog, match="cell 1 is not the one"):
            await world.wait_idle()
    elsewhere.close()
