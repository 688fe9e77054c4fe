"""What failed several times in a row says so once when it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outbox import App, Client
from outbox.engine.engine import Engine
from outbox.errors import Unreachable
from outbox.ports import Write
from outbox.streams import Entry, Ingest, Inputs, Processor, Step, StoreSink
from tests.unit.streams.making import Total, fill, made


class Shaky:
    """A store whose next calls find no connection."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities = store.capabilities
        self.down_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _answer(self) -> None:
        if self.down_count:
            self.down_count -= 1
            raise Unreachable("no connection to Cosmos DB; nothing was sent")

    async def read(self, key: Any, *, session: str = "") -> Any:
        self._answer()
        return await self._store.read(key, session=session)

    async def write(self, operations: Any) -> Any:
        self._answer()
        return await self._store.write(operations)


def summed(total: Total, inputs: Inputs, step: Step) -> None:
    total.n += sum(entry.value.n for entry in inputs)


def processor(engine: Engine, shaky: Shaky) -> Any:
    log = made("numbers", shaky, Total)
    return Processor("sums", summed, state=Total, register=shaky, inputs={"numbers": log}, outputs={}).run()


async def nothing(entries: Sequence[Entry[Total]]) -> list[Write]:
    return []


def sink(engine: Engine, shaky: Shaky) -> Any:
    return StoreSink("sums", made("numbers", shaky, Total), engine, partition="sums", apply=nothing).run()


def ingest(engine: Engine, shaky: Shaky) -> Any:
    return Ingest("sums", queue="numbers", type=Total, source=engine, log=made("numbers", shaky, Total)).run()


@pytest.mark.parametrize("kind", [processor, sink, ingest])
async def test_what_goes_on_after_failures_in_a_row_says_so_once(
    kind: Callable[[Engine, Shaky], Any], engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("numbers")
    app.queue("numbers")
    client = Client(app, engine)
    await client.declare()
    shaky = Shaky(engine.store())
    await fill(made("numbers", shaky, Total), Total(1))
    with caplog.at_level(logging.INFO, "outbox.streams"):
        async with kind(engine, shaky), asyncio.timeout(20):
            shaky.down_count = 6
            await fill(made("numbers", engine, Total), Total(2), Total(3))
            while "goes on" not in caplog.text:
                await client.send("numbers", Total(5))  # again: what an ingest has received is locked for a while
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
    (line,) = [record.getMessage() for record in caplog.records if "goes on" in record.getMessage()]
    assert line.startswith(f"{kind.__name__} sums goes on, after ") and line.endswith(" failures in a row")
