"""What is trimmed away under a reader, a processor or another trim."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import Trimmed
from outbox.streams import Inputs, OrderedLog, Processor, Step
from outbox.streams.cells import Position
from outbox.streams.places import Place
from tests.unit.streams.making import Total, fill, made


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.in_memory() as engine:
        yield engine


def add(total: Total, inputs: Inputs, step: Step) -> None:
    """Take what there is, and emit nothing."""


async def test_a_processor_whose_input_was_trimmed_away_stops_with_the_cure(engine: Engine) -> None:
    log = made("in", engine, int)
    processor = Processor("p", add, state=Total, register=engine, inputs={"in": log})
    await fill(log, 1)
    await processor.run_until_idle(seconds=1)
    await log.unregister("processor/p")
    await log.extend([2, 3], id="more")
    await log.append(4, id="last")
    await log.trim()
    with pytest.raises(Trimmed, match=r"read from first\(\)"):
        await processor.run_until_idle(seconds=1)


async def test_a_read_beside_a_trim_is_trimmed_and_not_corrupt(engine: Engine) -> None:
    class Trimming:
        """Blobs that are trimmed away while one is read."""

        write, delete = engine.blobs.write, engine.blobs.delete

        async def read(self, name: str, *, bytes_max: int) -> bytes | None:
            await made("texts", engine, str).trim()
            return await engine.blobs.read(name, bytes_max=bytes_max)

    blobs: Any = Trimming()
    log: OrderedLog[str] = made("texts", Place(engine.store(), blobs, engine.now_ms), str)
    await log.append("x" * 1_300_000, id="a")
    with pytest.raises(Trimmed):
        [entry async for entry in log.read(Position(0))]


async def test_a_trim_goes_on_behind_what_a_trim_that_died_has_buried(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, *range(1_100))
    row = log.row(0, 0)
    await row.horizon.change(lambda floor: msgspec.structs.replace(floor, index=1_024))
    await row.cells.bury(range(1_024), ttl_s=600)  # and died before it said so
    assert await made("in", engine, int).trim() == 76
