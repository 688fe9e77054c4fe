"""Whatever swallows a cancellation: what runs in a context ends with it, and what was cut off does not count."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.ports import DocumentKey
from outbox.retries import Retries
from outbox.streams import Ingest, Inputs, Processor, RefusedEntry, Step, StoreSink
from tests.unit.messages import Reading
from tests.unit.streams.making import Total, fill, made, values

ENDS_WITHIN_S = 10
WITHIN_S = 60
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.in_memory() as engine:
        await fill(made("in", engine, int), 1)
        yield engine


class Stubborn:
    """Something that waits for ever, and that a cancellation does not end."""

    def __init__(self, ends: Callable[[], Any]) -> None:
        self.waits = asyncio.Event()
        self._ends = ends

    async def wait(self) -> Any:
        self.waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return self._ends()


class StubbornStore:
    """An engine's documents over a driver that swallows a cancellation."""

    def __init__(self, engine: Engine, driver: Stubborn) -> None:
        self._store, self._driver = engine.store(), driver
        self.capabilities = self._store.capabilities

    async def read(self, key: DocumentKey, *, session: str = "") -> Any:
        await self._driver.wait()
        return await self._store.read(key, session=session)

    async def write(self, operations: Any) -> Any:
        return await self._store.write(operations)


def fails() -> Any:
    raise ConnectionError("the connection was cut off")


def nothing() -> list[Any]:
    return []


async def ended(runs: AbstractAsyncContextManager[Any], stubborn: Stubborn) -> None:
    """Run what waits in something stubborn, and end it there."""
    async with asyncio.timeout(ENDS_WITHIN_S):
        async with runs:
            await stubborn.waits.wait()


def processor(engine: Engine, handler: Any, **options: Any) -> Processor[Total]:
    logs: dict[str, Any] = {"inputs": {"in": made("in", engine, int)}, "outputs": {"out": made("out", engine, int)}}
    return Processor("p", handler, state=Total, register=engine, **logs, **options)


@pytest.mark.parametrize("ends", [nothing, fails], ids=["swallows", "raises"])
async def test_a_handler_that_is_cut_off_has_neither_succeeded_nor_failed(
    engine: Engine, ends: Callable[[], Any]
) -> None:
    stubborn, refused = Stubborn(ends), made("refused", engine, RefusedEntry)

    async def handler(total: Total, inputs: Inputs, step: Step) -> None:
        await stubborn.wait()
        step.emit("out", 7)

    strict: dict[str, Any] = {"retries": Retries(limit=1, delays_s=(1.0,)), "on_error": "refuse", "refused": refused}
    cut_off = processor(engine, handler, **strict)
    await ended(cut_off.run(), stubborn)
    status = await cut_off.status()
    assert (status.serial, status.failures, status.lag) == (0, 0, {"in": 1})
    assert (await values(made("out", engine, int)), await values(refused)) == ([], [])


async def test_a_call_of_a_processor_that_is_cancelled_in_its_handler_ends(engine: Engine) -> None:
    stubborn = Stubborn(nothing)

    async def handler(total: Total, inputs: Inputs, step: Step) -> None:
        await stubborn.wait()

    task = asyncio.create_task(processor(engine, handler).run_until_idle())
    await stubborn.waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, ENDS_WITHIN_S)


async def test_a_sink_whose_apply_is_cut_off_writes_nothing(engine: Engine) -> None:
    stubborn = Stubborn(nothing)

    async def apply(entries: Sequence[Any]) -> Any:
        return await stubborn.wait()

    sink = StoreSink("s", made("in", engine, int), engine, partition="counters", apply=apply)
    await ended(sink.run(), stubborn)
    assert await engine.store().read(DocumentKey("counters", "sink:s")) is None


async def test_a_driver_that_swallows_it_does_not_keep_a_replica(engine: Engine) -> None:
    driver = Stubborn(nothing)
    logs: dict[str, Any] = {"inputs": {"in": made("in", engine, int)}}
    store: Any = StubbornStore(engine, driver)
    await ended(Processor("p", lambda total, inputs, step: None, state=Total, register=store, **logs).run(), driver)


async def test_a_driver_that_swallows_it_does_not_keep_a_sink(engine: Engine) -> None:
    driver = Stubborn(nothing)
    store: Any = StubbornStore(engine, driver)
    sink = StoreSink("s", made("in", engine, int), store, partition="counters", apply=lambda entries: [])
    await ended(sink.run(), driver)


async def test_a_driver_that_swallows_it_does_not_keep_an_ingest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, log = Stubborn(nothing), made("readings", engine, Reading)
    ingest = Ingest("i", queue="q", type=Reading, source=engine, log=log)
    monkeypatch.setattr(ingest, "turn", driver.wait)
    await ended(ingest.run(), driver)


PROGRAM = """
import asyncio, sqlite3, threading, time
from outbox.engine.engine import Engine
from outbox.streams import TransactionalSink, database
from tests.unit.streams.making import fill, made

in_driver = threading.Event()
database.EXIT_WAIT_S = {exit_wait_s}

def connect():
    return sqlite3.connect("counters.db")

def apply(db, entries):
    in_driver.set()
    time.sleep({takes_s})

async def main():
    async with Engine.in_memory() as engine:
        log = made("in", engine, int)
        await fill(log, 1)
        async with TransactionalSink("s", log, connect, apply, create=True).run():
            await asyncio.to_thread(in_driver.wait)

asyncio.run(main())
"""


def cursors_after(folder: Path, *, takes_s: float, exit_wait_s: float) -> list[int]:
    """The cursors after a process whose sink stops in a transaction that its driver takes so long for."""
    program = PROGRAM.format(takes_s=takes_s, exit_wait_s=exit_wait_s)
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=ENVIRONMENT, check=True, timeout=WITHIN_S)
    with closing(sqlite3.connect(folder / "counters.db")) as db:
        return [cell for (cell,) in db.execute("SELECT cell FROM outbox_cursors WHERE name = 's'")]


def test_a_database_that_does_not_answer_does_not_keep_the_process(tmp_path: Path) -> None:
    assert cursors_after(tmp_path, takes_s=600, exit_wait_s=0.1) == [0]


def test_a_transaction_under_way_at_the_end_of_the_process_is_committed(tmp_path: Path) -> None:
    assert cursors_after(tmp_path, takes_s=1, exit_wait_s=WITHIN_S) == [1]
