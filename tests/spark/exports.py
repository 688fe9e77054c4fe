"""Exports for tests: logs that are filled, writers that are overtaken, and a reader of each form."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable

from outbox.engine.engine import Engine
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.streams.export import export, writer_to
from outbox.ops.values.requests import Admin, Lines
from outbox.ops.values.streams import ReadStream, StreamExported, TrimStream
from outbox.streams import OrderedLog, Position
from spark_jobs.common.places import place_of
from spark_jobs.exporting.rows import Entry, Target
from tests.unit.messages import Reading

FORMS = ("parquet", "delta")
LIMIT_S = 60


def log_of(engine: Engine, name: str = "readings") -> OrderedLog[Reading]:
    return OrderedLog(name, engine, type=Reading)


async def fill(engine: Engine, first: int, count: int, name: str = "readings") -> None:
    """Append cells of one, two and three entries, one after the other."""
    for n in range(first, first + count):
        await log_of(engine, name).extend([Reading(f"s{n}", float(i)) for i in range(n % 3 + 1)], id=f"id-{n}")


async def trim(engine: Engine, up_to: int) -> None:
    await log_of(engine).register("trimmer", Position(up_to))
    await EngineAdmin(engine).ask(TrimStream("readings", 0.0, 60.0))


def files_of(address: str) -> dict[str, bytes]:
    """The files of an export, or all of a table."""
    place = place_of(address, os.environ)
    return {item.name: place.read(item.name) or b"" for item in place.list(suffix=".parquet")}


def rows_of(address: str, form: str = "parquet") -> list[dict[str, Any]]:
    """The rows in order of position, of which no two are the same, by a reader that knows nothing of exports."""
    if form == "parquet":
        tables = [pq.read_table(io.BytesIO(data)) for _, data in sorted(files_of(address).items())]
        return [row for table in tables for row in table.to_pylist()]
    place = place_of(address, os.environ)
    table = DeltaTable(place.uri, storage_options=place.storage_options()).to_pyarrow_table()
    rows: list[dict[str, Any]] = table.sort_by([("index", "ascending"), ("offset", "ascending")]).to_pylist()
    return rows


async def entries_of(admin: Admin, log: str = "readings", row: str = "") -> list[dict[str, Any]]:
    """The entries as `stream read` has them, as rows of an export."""
    lines = b"".join([piece async for piece in admin.stream(ReadStream(log, row))]).splitlines()
    return [row_of(msgspec.json.decode(line, type=dict[str, msgspec.Raw])) for line in lines]


def row_of(line: dict[str, msgspec.Raw]) -> dict[str, Any]:
    told = {name: json.loads(bytes(raw)) for name, raw in line.items() if name not in ("value", "row")}
    index, offset = map(int, told["position"].split("."))
    return {
        **{"position": told["position"], "index": index, "offset": offset, "id": told["id"]},
        **{
            "at_ms": told["at_ms"],
            "type": told.get("type", ""),
            "schema": told.get("schema", 1),
            "value": bytes(line["value"]).decode(),
        },
    }


async def run(
    admin: Admin, address: str, log: str = "readings", row: str = "", form: str = "parquet"
) -> StreamExported:
    async with asyncio.timeout(LIMIT_S):
        return await export(admin, writer_to(address, form), log, row)


class Wrapped:
    """The admin of an engine, for one that does something besides."""

    def __init__(self, engine: Engine) -> None:
        self.admin = EngineAdmin(engine)

    async def ask(self, asked: Any) -> Any:
        return await self.admin.ask(asked)

    def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        return self.admin.stream(asked)


@dataclass
class Overtaken:
    """A writer before one of whose writes another does something, from where this one is."""

    target: Target
    first: Callable[[Position], None]
    write: int = 0

    def reached(self) -> Position | None:
        return self.target.reached()

    def add(self, entries: Sequence[Entry], begin: Position, end: Position) -> Position | None:
        if not self.write:
            self.first(begin)
        self.write -= 1
        return self.target.add(entries, begin, end)

    def sync(self) -> None:
        self.target.sync()
