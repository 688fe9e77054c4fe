"""Readers read many cells at once where there are many, one where there is none, and no more than fits into memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, Trimmed
from outbox.ports import Document, DocumentKey, Replace, Session, StateStore, Write
from outbox.streams import Entry, Inputs, Processor, Step, StoreSink
from outbox.streams.log_places import Place
from outbox.streams.read_ahead import BYTES_MAX, CELLS_MAX
from outbox.streams.row import BLOBS_MAX
from tests.unit.streams.making import ANY_AGE, Counting, Total, fill, made, values

CELL_COUNT = 300


class Far(Counting):
    """A store a turn of the loop away; it counts the round trips in which something was read, and how much at once."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store)
        self.round_trips = self.at_once = self._under_way = 0
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        """What happens before a document of this id is read, once."""

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        if key.id in self.before:
            await self.before.pop(key.id)()
        self.round_trips += self._under_way == 0
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        found = await super().read(key, session=session)
        await asyncio.sleep(0)
        self._under_way -= 1
        return found


async def test_a_reader_reads_many_cells_in_few_round_trips_and_little_in_vain(engine: Engine) -> None:
    await fill(made("numbers", engine, int), *range(CELL_COUNT))
    store = Far(engine.store())
    assert await values(made("numbers", store, int)) == list(range(CELL_COUNT))
    assert store.round_trips <= 20 and store.at_once == CELLS_MAX
    assert store.reads.total() <= 2 * CELL_COUNT


async def test_a_reader_between_two_places_reads_nothing_in_vain(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(40))
    positions = [entry.position async for entry in log.read()]
    store = Far(engine.store())
    assert await values(made("numbers", store, int), positions[5], positions[25]) == list(range(5, 25))
    assert sum(count for key, count in store.reads.items() if key.id.isdecimal()) == 20


async def test_a_reader_that_waits_asks_for_one_cell(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(40))
    store = Far(engine.store())
    waiting = made("numbers", store, int).read(wait=True)
    async with asyncio.timeout(5):
        assert [(await anext(waiting)).value for _ in range(40)] == list(range(40))
        for number in (40, 41):
            store.at_once = 0
            following = asyncio.ensure_future(anext(waiting))
            await asyncio.sleep(0.01)  # so that it looks, and waits
            await log.append(number, id=f"and {number}")
            assert (await following).value == number
    assert store.at_once <= 2


async def test_large_cells_are_read_as_fit_into_memory(engine: Engine) -> None:
    log, text = made("texts", engine, str), "x" * 900_000
    await fill(log, *[text] * 40)
    store = Far(engine.store())
    assert await values(made("texts", store, str)) == [text] * 40
    assert store.at_once * len(text) <= BYTES_MAX


class Bodies(MemoryBlobStore):
    """Blobs that count how many are read at once."""

    at_once = under_way = 0

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        self.under_way += 1
        self.at_once = max(self.at_once, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return await super().read(name, bytes_max=bytes_max)


async def test_few_blobs_are_read_at_once_and_no_entry_is_passed_over(engine: Engine) -> None:
    blobs = Bodies()
    place = Place(engine.store(), blobs, engine.now_ms)
    given = [str(n) * (1_200_000 if n in range(20, 30) else 1) for n in range(40)]
    await fill(made("texts", place, str), *given)
    assert await values(made("texts", place, str)) == given
    assert blobs.at_once == BLOBS_MAX


async def test_what_was_read_before_a_trim_is_given_before_it_is_said(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(10))
    store, found = Far(engine.store()), list[int]()
    store.before[f"{2:010}"] = partial(log.trim, min_age=ANY_AGE)
    with pytest.raises(Trimmed):
        async for entry in made("numbers", store, int).read():
            found.append(entry.value)
    assert found == [0, 1]


async def test_a_processor_takes_many_cells_in_a_step(engine: Engine) -> None:
    def add(total: Total, inputs: Inputs, step: Step) -> None:
        total.n += sum(entry.value for entry in inputs)

    await fill(made("numbers", engine, int), *range(CELL_COUNT))
    processor = Processor("sums", add, state=Total, register=engine, inputs={"numbers": made("numbers", engine, int)})
    assert await processor.run_until_idle() <= 12
    assert (await processor.state()).n == sum(range(CELL_COUNT))


async def test_a_sink_reads_many_cells_in_few_round_trips_and_writes_as_many_entries_as_it_may(engine: Engine) -> None:
    seen = list[list[int]]()

    async def apply(entries: Sequence[Entry[int]]) -> list[Write]:
        seen.append([entry.value for entry in entries])
        return []

    await fill(made("numbers", engine, int), *range(CELL_COUNT))
    store = Far(engine.store())
    sink = StoreSink("s", made("numbers", store, int), engine, partition="p", apply=apply, batch_max=100)
    assert await sink.run_until_idle() == 3
    assert seen == [list(range(start, start + 100)) for start in range(0, CELL_COUNT, 100)]
    assert store.round_trips <= 25


async def test_what_lies_before_a_damaged_cell_is_read(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(100))
    store, key = engine.store(), log.row(0, 0).cells.key(70)
    document = await store.read(key)
    assert document is not None
    await store.write([Replace(key, b"no cell", document.version)])
    found = list[int]()
    with pytest.raises(CorruptRecord, match="is not a cell"):
        async for entry in log.read():
            found.append(entry.value)
    assert found == list(range(70))


async def test_what_lies_before_a_cell_without_its_blob_is_read(engine: Engine) -> None:
    blobs = Bodies()
    place = Place(engine.store(), blobs, engine.now_ms)
    log = made("texts", place, str)
    given = [str(n) * (1_200_000 if n in (3, 5) else 1) for n in range(8)]
    await fill(log, *given)
    cell = await log.row(0, 0).cells.read(5)
    assert cell is not None
    await blobs.delete(cell.blob)
    found = list[str]()
    with pytest.raises(CorruptRecord, match="is missing"):
        async for entry in log.read():
            found.append(entry.value)
    assert found == given[:5]


async def test_a_sink_takes_no_more_at_once_than_fits_into_memory(engine: Engine) -> None:
    sizes = list[int]()

    async def apply(entries: Sequence[Entry[str]]) -> list[Write]:
        sizes.append(sum(len(entry.value) for entry in entries))
        return []

    await fill(made("texts", engine, str), *["x" * 500_000] * 60)
    sink = StoreSink("s", made("texts", engine, str), engine, partition="p", apply=apply, batch_max=100)
    await sink.run_until_idle()
    assert sum(sizes) == 60 * 500_000 and max(sizes) <= 2 * BYTES_MAX
