"""`outbox stream export`: every entry once and in order, whoever writes, dies or trims meanwhile."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, Refused
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.streams import export as exporting
from outbox.ops.streams.export import export
from outbox.ops.values.requests import Admin, Lines
from outbox.ops.values.streams import ListStreams, StreamExported
from outbox.ports import Create, DocumentKey
from outbox.streams import OrderedLog, Position
from spark_jobs.common.places import Place, place_of
from spark_jobs.exporting import files as exported_files
from spark_jobs.exporting.delta import DeltaExport
from spark_jobs.exporting.files import Files, exported
from spark_jobs.exporting.rows import Entry, Span, encoded
from tests.spark.exports import (
    FORMS,
    LIMIT_S,
    Overtaken,
    Wrapped,
    entries_of,
    files_of,
    fill,
    log_of,
    rows_of,
    run,
    trim,
)
from tests.unit.messages import Reading
from tests.unit.ops.operators import on_folder, operator

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = pa.schema(
    [
        pa.field("position", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("offset", pa.int32()),
        pa.field("id", pa.string()),
        pa.field("at_ms", pa.int64()),
        pa.field("type", pa.string()),
        pa.field("schema", pa.int32()),
        pa.field("value", pa.string()),
    ]
)


@dataclass
class Alarm:
    """An entry of another type, with texts that a second encoder would write otherwise."""

    text: str
    factor: float


@pytest.fixture
async def engine(disk_path: Path) -> AsyncIterator[Engine]:
    async with Engine.open(disk_path) as engine:
        yield engine


@pytest.fixture
async def admin(engine: Engine) -> Admin:
    return EngineAdmin(engine)


@pytest.fixture
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FILE_ROWS_MAX", 5)


# What an export has


@pytest.mark.parametrize("way", ["direct", "http"])
async def test_rows_are_the_entries_byte_for_byte_with_their_types(engine: Engine, disk_path: Path, way: str) -> None:
    log: OrderedLog[Reading | Alarm] = OrderedLog("readings", engine, type=Reading | Alarm)
    await log.extend([Reading("a", 1.0), Alarm('é "quoted" \\ \u2028 /', 1e-7)], id="first")
    await log.append(Reading("large" * 300_000, 2.50), id="second")
    out = str(disk_path / "out")
    async with operator(engine, disk_path, way) as admin:
        done = await run(admin, out)
        assert done == StreamExported("readings", "0.0", "0.0", "2.0", 3, 1)
        assert rows_of(out) == await entries_of(admin)
    assert [row["type"] for row in rows_of(out)] == ["Reading", "Alarm", "Reading"]
    assert rows_of(out)[1]["value"].encode() == msgspec.json.encode(Alarm('é "quoted" \\ \u2028 /', 1e-7))


async def test_a_file_says_what_it_has_in_one_key(engine: Engine, admin: Admin, tmp_path: Path) -> None:
    await fill(engine, 0, 3)
    await run(admin, str(tmp_path))
    [(name, data)] = files_of(str(tmp_path)).items()
    told = pq.ParquetFile(io.BytesIO(data))
    assert name == "0000000000000000.0000000.parquet" and told.schema_arrow.remove_metadata() == SCHEMA
    assert set(told.metadata.metadata) == {b"outbox", b"ARROW:schema"}
    text = b'{"format":1,"log":"readings","row":"0.0","begin":"0.0","end":"3.0"}'
    assert told.metadata.metadata[b"outbox"] == text
    greatest = told.metadata.row_group(0).column(4).statistics.max
    assert greatest == max(row["at_ms"] for row in rows_of(str(tmp_path))) > 1e12


@pytest.mark.parametrize("form", FORMS)
async def test_an_export_goes_on_where_the_last_one_ended(
    engine: Engine, admin: Admin, address: str, form: str
) -> None:
    await fill(engine, 0, 4)
    assert await run(admin, address, form=form) == StreamExported("readings", "0.0", "0.0", "4.0", 7, 1)
    before = files_of(address)
    assert await run(admin, address, form=form) == StreamExported("readings", "0.0", "4.0", "4.0", 0, 0)
    assert files_of(address) == before
    await fill(engine, 4, 2)
    assert await run(admin, address, form=form) == StreamExported("readings", "0.0", "4.0", "6.0", 5, 1)
    assert rows_of(address, form) == await entries_of(admin)


@pytest.mark.usefixtures("short_files")
async def test_files_have_so_many_rows_and_follow_one_another(engine: Engine, admin: Admin, address: str) -> None:
    await fill(engine, 0, 12)  # 24 entries, of which the 5th, 10th, 15th and 20th end a file
    done = await run(admin, address)
    found = exported(place_of(address, os.environ))
    assert (done.entries, done.files, [file.rows for file in found.files]) == (24, 5, [5, 5, 5, 5, 4])
    assert (found.log, found.row, found.begin, found.end) == ("readings", "0.0", Position(0), Position(12))
    assert [str(file.begin) for file in found.files] == ["0.0", "2.2", "5.1", "7.2", "10.1"]
    assert [str(file.end) for file in found.files] == ["2.2", "5.1", "7.2", "10.1", "12.0"]
    assert [file.size for file in found.files] == [len(data) for data in files_of(address).values()]
    assert rows_of(address) == await entries_of(admin)
    for file, data in zip(found.files, files_of(address).values(), strict=True):
        rows = pq.read_table(io.BytesIO(data)).to_pylist()
        assert file.at_ms_max == max(row["at_ms"] for row in rows)


async def test_files_have_so_many_bytes_and_one_entry_may_have_more(
    engine: Engine, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: OrderedLog[str] = OrderedLog("texts", engine, type=str)
    for n, length in enumerate((48, 48, 1, 300, 48, 48)):
        await log.append("x" * length, id=f"{n}")
    monkeypatch.setattr(exporting, "FILE_BYTES_MAX", 100)
    await run(admin, str(tmp_path), "texts")
    assert [file.rows for file in exported(place_of(str(tmp_path), {})).files] == [2, 1, 1, 2]


async def test_an_export_ends_where_the_row_ended_when_it_was_listed(engine: Engine, tmp_path: Path) -> None:
    await fill(engine, 0, 3)

    class Busy(Wrapped):
        async def stream(self, asked: Lines) -> AsyncIterator[bytes]:
            await fill(engine, 3, 3)
            async for piece in self.admin.stream(asked):
                yield piece

    assert (await run(Busy(engine), str(tmp_path))).end == "3.0"
    assert (await run(Busy(engine), str(tmp_path))).end == "6.0"
    assert rows_of(str(tmp_path)) == (await entries_of(EngineAdmin(engine)))[:12]


async def test_a_line_that_comes_in_pieces_is_read_whole(engine: Engine, tmp_path: Path) -> None:
    await fill(engine, 0, 3)

    class Slow(Wrapped):
        async def stream(self, asked: Lines) -> AsyncIterator[bytes]:
            async for piece in self.admin.stream(asked):
                for at in range(0, len(piece), 7):
                    yield piece[at : at + 7]

    await run(Slow(engine), str(tmp_path))
    assert rows_of(str(tmp_path)) == await entries_of(EngineAdmin(engine))


# Which row


async def test_a_log_of_several_rows_needs_one_and_lists_them(engine: Engine, admin: Admin, tmp_path: Path) -> None:
    log: OrderedLog[int] = OrderedLog("n", engine, type=int, writers=2, readers=2, partition=lambda n: n)
    for n in range(8):
        await log.writer(n % 2).append(n, id=f"n{n}")
    rows = [row.row for row in (await admin.ask(ListStreams())).logs[0].rows]
    with pytest.raises(Refused, match=rf"log n has {len(rows)} rows; say by --row which: {', '.join(rows)}"):
        await run(admin, str(tmp_path), "n")
    with pytest.raises(LookupError, match=r"there is no row 7.7 of log 'n'; there are: 0.0, "):
        await run(admin, str(tmp_path), "n", "7.7")
    with pytest.raises(LookupError, match=r"there is no log 'm'; there are: n$"):
        await run(admin, str(tmp_path), "m")
    assert files_of(str(tmp_path)) == {}
    for row in rows:
        done = await run(admin, str(tmp_path / row), "n", f"0{row}")
        assert done.row == row and rows_of(str(tmp_path / row)) == await entries_of(admin, "n", row)


async def test_a_broken_row_is_an_error_of_its_own(engine: Engine, admin: Admin, tmp_path: Path) -> None:
    await engine.store().write([Create(DocumentKey("log/broken/0.0", "floor"), b"nonsense")])
    with pytest.raises(CorruptRecord, match="broken"):
        await run(admin, str(tmp_path), "broken")


@pytest.mark.parametrize("form", FORMS)
async def test_an_empty_log_writes_nothing(engine: Engine, admin: Admin, tmp_path: Path, form: str) -> None:
    await log_of(engine).register("audit", Position(0))
    out = tmp_path / "out"
    assert await run(admin, str(out), form=form) == StreamExported("readings", "0.0", "0.0", "0.0", 0, 0)
    assert not out.exists()


# Trims


@pytest.mark.parametrize("form", FORMS)
async def test_a_log_that_is_trimmed_beyond_the_export_is_refused(
    engine: Engine, admin: Admin, address: str, form: str
) -> None:
    await fill(engine, 0, 3)
    await run(admin, address, form=form)
    await fill(engine, 3, 3)
    before = files_of(address)
    await trim(engine, 4)
    with pytest.raises(Refused, match=r"trimmed up to 4.0, and the export has it up to 3.0: .*export to a new place"):
        await run(admin, address, form=form)
    assert files_of(address) == before
    assert (await run(admin, f"{address}-new", form=form)).begin == "4.0"
    assert rows_of(f"{address}-new", form) == await entries_of(admin)


@pytest.mark.parametrize("form", FORMS)
async def test_a_log_that_is_trimmed_up_to_the_export_goes_on(
    engine: Engine, admin: Admin, tmp_path: Path, form: str
) -> None:
    await fill(engine, 0, 3)
    await run(admin, str(tmp_path), form=form)
    await fill(engine, 3, 3)
    await trim(engine, 3)
    assert (await run(admin, str(tmp_path), form=form)).end == "6.0"
    assert [row["position"] for row in rows_of(str(tmp_path), form)][6:] == ["3.0", "4.0", "4.1", "5.0", "5.1", "5.2"]


@pytest.mark.parametrize("left_out", [0, 1, 2, 4])
async def test_an_entry_that_is_missing_where_it_belongs_is_refused(
    engine: Engine, tmp_path: Path, left_out: int
) -> None:
    """As where a trim took it between two reads; entries are at 0.0, 1.0, 1.1, 2.0, 2.1 and 2.2."""
    await fill(engine, 0, 3)

    class Holed(Wrapped):
        async def stream(self, asked: Lines) -> AsyncIterator[bytes]:
            lines = b"".join([piece async for piece in self.admin.stream(asked)]).splitlines(keepends=True)
            yield b"".join(line for number, line in enumerate(lines) if number != left_out)

    if left_out == 2:  # no reader can know how many a cell has
        return
    with pytest.raises(Refused, match=r"there would be a hole"):
        await run(Holed(engine), str(tmp_path))
    assert rows_of(str(tmp_path)) == []


async def test_a_store_that_shows_less_than_it_listed_is_no_end(engine: Engine, tmp_path: Path) -> None:
    await fill(engine, 0, 4)

    class Stale(Wrapped):
        shown = 2

        async def stream(self, asked: Lines) -> AsyncIterator[bytes]:
            lines = b"".join([piece async for piece in self.admin.stream(asked)]).splitlines(keepends=True)
            yield b"".join(lines[: self.shown])

    stale = Stale(engine)
    with pytest.raises(Refused, match=r"ends at 4.0, and its store shows no entry from 1.1 on, .*run the same again"):
        await run(stale, str(tmp_path))
    stale.shown = 0
    with pytest.raises(Refused, match=r"shows no entry from 1.1 on"):
        await run(stale, str(tmp_path))
    assert (await run(stale.admin, str(tmp_path))).begin == "1.1"
    assert rows_of(str(tmp_path)) == await entries_of(stale.admin)


# Who dies, and who writes beside


@pytest.mark.parametrize("address", ["folder", "emulator"], indirect=True)
@pytest.mark.parametrize(
    ("form", "call", "point"), [("parquet", 1, "before"), ("parquet", 3, "behind"), ("delta", 2, "behind")]
)
def test_who_was_killed_between_two_files_goes_on_there(
    disk_path: Path, address: str, form: str, call: int, point: str
) -> None:
    data = str(disk_path / "data")
    on_folder(Path(data), lambda engine: fill(engine, 0, 12))
    command = [sys.executable, "-P", str(ROOT / "tests/spark/export_process.py")]
    arguments = ["readings", "--output", address, "--data", data, "--json", "--format", form]

    def start(call: int) -> subprocess.CompletedProcess[str]:
        words = [*command, str(call), point, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert start(call).returncode == -9
    assert len(files_of(address)) == call - (point == "before")
    done = start(0)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["end"] == "12.0"
    rows = rows_of(address, form)
    assert [(row["index"], row["offset"]) for row in rows] == [(n, i) for n in range(12) for i in range(n % 3 + 1)]


@pytest.mark.usefixtures("short_files")
@pytest.mark.parametrize("form", FORMS)
async def test_of_several_exports_at_once_each_entry_comes_from_one(
    engine: Engine, admin: Admin, address: str, form: str
) -> None:
    await fill(engine, 0, 30)
    done = await asyncio.gather(*(run(admin, address, form=form) for _ in range(3)))
    assert {one.end for one in done} == {"30.0"} and sum(one.entries for one in done) == 60
    assert rows_of(address, form) == await entries_of(admin)


@pytest.mark.usefixtures("short_files")
@pytest.mark.parametrize("kind", [Files, DeltaExport])
@pytest.mark.parametrize("write", [0, 1])
@pytest.mark.parametrize("until", [Position(3), Position(3, 1), Position(4, 1), Position(5, 2), Position(7)])
async def test_who_loses_a_file_goes_on_behind_what_the_winner_wrote(
    engine: Engine, admin: Admin, tmp_path: Path, until: Position, write: int, kind: type[Files] | type[DeltaExport]
) -> None:
    place = place_of(str(tmp_path), {})
    await fill(engine, 0, 6)
    entries = [entry async for entry in exporting.read(admin, "readings", "0.0", Position(0), Position(6))]
    if until.index == 7:  # the winner knew a later end
        await fill(engine, 6, 1)
        entries = [entry async for entry in exporting.read(admin, "readings", "0.0", Position(0), Position(7))]

    def winner(begin: Position) -> None:
        theirs = [entry for entry in entries if begin <= entry.position < until]
        assert kind(place, "readings", "0.0").add(theirs, begin, until) is None

    await export(admin, lambda log, row: Overtaken(kind(place, log, row), winner, write), "readings", "")
    assert rows_of(str(tmp_path), "parquet" if kind is Files else "delta") == await entries_of(admin)
    assert kind(place, "readings", "0.0").reached() == max(until, Position(6))


async def test_two_first_exports_that_found_two_floors_write_one_chain(
    engine: Engine, admin: Admin, address: str
) -> None:
    """One listed the row before a trim and one behind it; the second writes first."""
    await fill(engine, 0, 6)
    entries = [entry async for entry in exporting.read(admin, "readings", "0.0", Position(0), Position(6))]
    place = place_of(address, os.environ)
    assert Files(place, "readings", "0.0").add(entries[6:], Position(3), Position(6)) is None
    assert Files(place, "readings", "0.0").add(entries, Position(0), Position(6)) == Position(6)
    assert list(files_of(address)) == ["0000000000000003.0000000.parquet"]


async def test_who_dies_before_the_first_file_has_said_where_it_begins(
    engine: Engine, admin: Admin, address: str
) -> None:
    place, span = place_of(address, os.environ), Span("readings", "0.0", Position(2), Position(2))
    assert place.create("_begin.json", span.encoded())
    await fill(engine, 0, 4)
    done = await run(admin, address)
    assert (done.begin, done.end) == ("2.0", "4.0") and exported(place).begin == Position(2)
    with pytest.raises(Refused, match=r"has an export of log readings, row 0.0"):
        Files(place, "readings", "1.0").reached()


async def test_names_that_a_killed_writer_left_are_on_disk_before_an_export_says_that_it_has_them(
    engine: Engine, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(engine, 0, 2)
    await run(admin, str(tmp_path))
    synced = list[Path]()
    monkeypatch.setattr(exported_files, "sync_path", synced.append)
    await run(admin, str(tmp_path))
    assert synced == [tmp_path]


# What is there already


async def test_files_of_another_log_or_row_are_refused(engine: Engine, admin: Admin, address: str) -> None:
    await fill(engine, 0, 2)
    await fill(engine, 0, 2, "others")
    await run(admin, address)
    with pytest.raises(Refused, match=r"an export of log readings, row 0.0, and this is one of log others, row 0.0"):
        await run(admin, address, "others")
    with pytest.raises(Refused, match=r"this is one of log readings, row 0.1; give each a place of its own"):
        Files(place_of(address, os.environ), "readings", "0.1").reached()


def test_a_winner_of_another_log_is_refused(tmp_path: Path) -> None:
    place, entries = place_of(str(tmp_path), {}), [Entry(Position(0), "a", 1, "", 1, b"1")]
    ours, theirs = Files(place, "readings", "0.0"), Files(place, "others", "0.0")
    assert ours.reached() is None
    assert theirs.add(entries, Position(0), Position(1)) is None
    with pytest.raises(Refused, match=r"has an export of log others"):
        ours.add(entries, Position(0), Position(1))


def test_a_delta_table_is_no_place_for_files(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{}")
    with pytest.raises(Refused, match="is a Delta table; say --format delta"):
        Files(place_of(str(tmp_path), {}), "readings", "0.0").reached()


async def test_a_value_that_is_no_text_is_named(engine: Engine, admin: Admin, tmp_path: Path) -> None:
    await fill(engine, 0, 1)
    cell = b'{"id":"x","at":1,"count":1,"v":["\xff"]}'
    await engine.store().write([Create(DocumentKey("log/readings/0.0/0", "0000000001"), cell)])
    with pytest.raises(CorruptRecord, match=r"log readings, row 0.0: an entry from 0.0 on is no UTF-8 text"):
        await run(admin, str(tmp_path))
    assert files_of(str(tmp_path)) == {}


async def test_a_value_with_a_line_break_is_named(engine: Engine, admin: Admin, tmp_path: Path) -> None:
    await fill(engine, 0, 1)
    cell = b'{"id":"x","at":1,"count":1,"v":[{"a":\n1}]}'
    await engine.store().write([Create(DocumentKey("log/readings/0.0/0", "0000000001"), cell)])
    with pytest.raises(CorruptRecord, match="has an entry that is no JSON of one line"):
        await run(admin, str(tmp_path))


# The reading side


@pytest.fixture
async def place(engine: Engine, admin: Admin, address: str, short_files: None) -> Place:
    """An export of five files."""
    await fill(engine, 0, 12)
    await run(admin, address)
    return place_of(address, os.environ)


async def test_a_file_that_is_missing_is_a_hole(place: Place) -> None:
    place.delete("0000000000000005.0000001.parquet")
    with pytest.raises(Refused, match=r"2\.0000002.parquet ends at 5.1 and 0+7.*; restore the file between them"):
        exported(place)


async def test_files_whose_first_ones_were_removed_begin_later(place: Place) -> None:
    place.delete("0000000000000000.0000000.parquet")
    found = exported(place)
    assert (found.begin, len(found.files)) == (Position(2, 2), 4)


async def test_files_of_two_rows_are_refused(place: Place, engine: Engine, admin: Admin, tmp_path: Path) -> None:
    await fill(engine, 0, 12, "others")
    await run(admin, str(tmp_path), "others")
    name = "0000000000000005.0000001.parquet"
    place.delete(name)
    place.create(name, (tmp_path / name).read_bytes())
    with pytest.raises(Refused, match=r"has an export of log others, row 0.0, and this is one of log readings"):
        exported(place)
    place.delete(name)
    begin = Position(5, 1)
    place.create(name, encoded([Entry(begin, "a", 1, "", 1, b"1")], Span("readings", "0.1", begin, begin.after())))
    with pytest.raises(Refused, match=r"row 0.1, and this is one of log readings, row 0.0"):
        exported(place)


def test_a_place_without_an_export_is_refused(address: str) -> None:
    place = place_of(address, os.environ)
    place.create("0.parquet", b"not one of ours")
    with pytest.raises(Refused, match="has no file of an export; look at the address"):
        exported(place)
    place.create("_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(Refused, match="is a Delta table; run `outbox stream export` without --format to another place"):
        exported(place)


def foreign(**changed: Any) -> bytes:
    """A Parquet file that differs from one of an export."""
    row = [{"position": "5.0", "at_ms": 1}] * changed.pop("count", 1)
    rows = pa.Table.from_pylist(row, schema=changed.pop("schema", SCHEMA))
    told = {"format": 1, "log": "readings", "row": "0.0", "begin": "5.0", "end": "7.1"} | changed
    buffer = io.BytesIO()
    kept = {"outbox": json.dumps(told)} if told["log"] else {}
    with pq.ParquetWriter(buffer, rows.replace_schema_metadata(kept).schema, write_statistics=told["row"] != "") as to:
        if row:  # else it has no row group
            to.write_table(rows)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "size is 0 bytes"),
        (b"PAR1 and so on", "Parquet"),
        (foreign()[:-20], "Parquet"),
        (foreign(log=""), "it does not say what it has"),
        (foreign(format=2), "it is of format 2, which a newer build has written"),
        (foreign(begin="5.1"), "it says that it has 5.1 to 7.1"),
        (foreign(end="5.0"), "it says that it has 5.0 to 5.0"),
        (foreign(end="later"), "invalid literal"),
        (foreign(end=7), "it does not say what it has"),
        (foreign(row=""), "it has no statistics"),
        (foreign(count=0), "it has no statistics"),
        (foreign(schema=pa.schema([("position", pa.string()), ("at_ms", pa.int64())])), "its columns are others"),
    ],
)
def test_a_file_that_is_none_of_an_export_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    place, name = place_of(str(tmp_path), {}), "0000000000000005.0000000.parquet"
    place.create(name, data)
    with pytest.raises(CorruptRecord, match=rf"5\.0000000.parquet is no file of an export: .*({reason}).*; restore"):
        exported(place)
    with pytest.raises(CorruptRecord):
        Files(place, "readings", "0.0").reached()


def test_a_beginning_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "_begin.json").write_text("{}")
    with pytest.raises(CorruptRecord, match=r"_begin.json is damaged: .*export to a new place"):
        Files(place_of(str(tmp_path), {}), "readings", "0.0").reached()


# The command line


def outbox(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = 2
    with suppress(SystemExit):
        code = main(["stream", "export", *arguments])
    return code, *capsys.readouterr()


def test_the_command_says_what_it_wrote_and_where_it_ends(
    disk_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_folder(disk_path, lambda engine: fill(engine, 0, 4))
    given = ["readings", "--output", str(tmp_path / "out"), "--data", str(disk_path)]
    assert outbox(capsys, *given) == (0, "exported 7 entries of readings 0.0 from 0.0 to 4.0 in 1 files\n", "")
    assert outbox(capsys, *given) == (0, "nothing new in readings 0.0: exported up to 4.0\n", "")
    told = {"log": "readings", "row": "0.0", "begin": "4.0", "end": "4.0", "entries": 0, "files": 0}
    code, out, _ = outbox(capsys, *given, "--json", "--row", "0.0")
    assert (code, json.loads(out), list(json.loads(out))) == (0, told, list(told))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["reading"], 1, "there is no log 'reading'; there are: readings"),
        (["readings", "--row", "0.1"], 1, "there is no row 0.1 of log 'readings'; there are: 0.0"),
        (["readings", "--row", "0"], 2, "0 is no row"),
        ([""], 2, "NAME is empty"),
        (["readings", "--output", "s3://bucket/x"], 1, "s3://... is not known here"),
        (["readings", "--output", __file__], 1, "a folder above it is a file"),
        (["readings", "--output", __file__, "--format", "delta"], 1, "outbox: "),
        (["readings", "--format", "csv"], 2, "invalid choice: 'csv'"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    disk_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    on_folder(disk_path, lambda engine: fill(engine, 0, 1))
    found = outbox(capsys, "--output", str(tmp_path / "out"), "--data", str(disk_path), *arguments)
    assert found[:2] == (code, "") and text in found[2] and "Traceback" not in found[2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["pyarrow", "spark_jobs"])
def test_without_the_extra_the_command_names_it(disk_path: Path, tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    Engine.open(disk_path).close()
    done = subprocess.run(
        [sys.executable, "-m", "outbox", "stream", "export", "readings", "--output", "x", "--data", str(disk_path)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    cure = 'is not installed; pip install "outbox-azure[spark]"'
    assert (done.returncode, done.stdout) == (1, "") and f"outbox: {module}" in done.stderr and cure in done.stderr
