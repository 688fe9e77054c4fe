"""What is trimmed away under a reader, a processor or another trim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import Trimmed
from outbox.message import Message
from outbox.ports import Output
from outbox.streams import Ingest, Inputs, OrderedLog, Processor, Step
from outbox.streams.cells import Position
from outbox.streams.log_places import Place
from outbox.streams.replica import Progress, Replica
from tests.unit.streams.making import ANY_AGE, Alarm, Total, fill, made, values


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
    await log.trim(min_age=ANY_AGE)
    with pytest.raises(Trimmed, match=r"read from first\(\)"):
        await processor.run_until_idle(seconds=1)


async def test_a_read_beside_a_trim_is_trimmed_and_not_corrupt(engine: Engine) -> None:
    class Trimming:
        """Blobs that are trimmed away while one is read."""

        write, delete = engine.blobs.write, engine.blobs.delete

        async def read(self, name: str, *, bytes_max: int) -> bytes | None:
            await made("texts", engine, str).trim(min_age=ANY_AGE)
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
    assert await made("in", engine, int).trim(min_age=ANY_AGE) == 76


# What is trimmed while a replica rests


def passing(engine: Engine) -> Replica:
    """A replica of a processor that passes on one number a step."""

    def passes(total: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            step.emit("out", entry.value)

    inputs: dict[str, Any] = {"in": made("in", engine, int)}
    outputs = {"out": made("out", engine, int)}
    given = Processor("p", passes, state=Total, register=engine, inputs=inputs, outputs=outputs, batch_max=1)
    return given.replica()


async def gone_on(engine: Engine) -> None:
    """Another replica goes on to the end, and says so."""
    other = passing(engine)
    while await other.step() is not Progress.IDLE:
        pass
    assert other.known is not None
    await other.report(other.known.register)


async def test_a_replica_that_rests_while_its_input_is_trimmed_goes_on_where_the_other_is(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2, 3)
    rested = passing(engine)
    assert await rested.step() is Progress.WON
    await gone_on(engine)
    assert await log.trim() == 3
    assert [await rested.step(), await rested.step()] == [Progress.LOST, Progress.IDLE]
    await log.append(4, id="four")
    assert [await rested.step(), await rested.step()] == [Progress.WON, Progress.WON]
    assert await values(made("out", engine, int)) == [1, 2, 3, 4]


async def test_a_replica_that_rests_while_its_output_is_trimmed_goes_on_where_the_other_is(engine: Engine) -> None:
    out = made("out", engine, int)
    await fill(made("in", engine, int), 1, 2, 3)
    rested = passing(engine)
    assert await rested.step() is Progress.WON  # and has not written it
    await gone_on(engine)
    assert await out.trim(min_age=ANY_AGE) == 3
    assert [await rested.step(), await rested.step()] == [Progress.LOST, Progress.IDLE]


async def test_a_register_that_nobody_has_moved_is_trimmed_away(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2, 3)
    rested = passing(engine)
    assert await rested.step() is Progress.WON
    await log.unregister("processor/p")
    await log.trim(min_age=ANY_AGE)
    with pytest.raises(Trimmed, match=r"read from first\(\)"):
        await rested.step()


async def test_an_ingest_that_rests_while_its_log_is_trimmed_takes_the_next_message_in(engine: Engine) -> None:
    def ingest() -> Ingest:
        return Ingest("i", queue="q", type=Alarm, source=engine, log=made("pages", engine, Alarm))

    async def send(*numbers: int) -> None:
        bodies = [
            Message(body=b'{"text":"%d"}' % n, outbox_id=f"m{n}", type="Alarm", created_ms=engine.now_ms())
            for n in numbers
        ]
        await engine.apart().bus.send([Output("q", 0, body) for body in bodies])

    log, rested = made("pages", engine, Alarm), ingest()
    await engine.apart().operations.declare({"q": "unordered"}, {})
    for number in (1, 2, 3, 4):
        await send(number)
        await ingest().run_until_idle()
        if number == 2:
            await rested.open()
    assert await log.trim(min_age=ANY_AGE) == 3
    await send(5)
    assert await rested.turn(wait_s=0) == 1 and await values(log) == [Alarm("4"), Alarm("5")]
