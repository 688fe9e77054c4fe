"""An export as a Delta table: what a commit says, which tables are refused, and what delta-rs does not promise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, OutcomeUnknown, Refused
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.streams import export as exporting
from outbox.ops.values.requests import Admin
from outbox.streams import Position
from spark_jobs.common.folder import Folder, sync_path
from spark_jobs.draining import durable
from spark_jobs.exporting import delta
from spark_jobs.exporting.delta import APP_ID, DeltaExport, number_of
from spark_jobs.exporting.files import exported
from spark_jobs.exporting.rows import ENTRY, Entry
from tests.spark.exports import entries_of, files_of, fill, rows_of, run

WRITE = DeltaTable.create_write_transaction
ONE = [Entry(Position(0), "a", 1, "", 1, b"1")]


@pytest.fixture
async def engine(disk_path: Path) -> AsyncIterator[Engine]:
    async with Engine.open(disk_path) as engine:
        yield engine


@pytest.fixture
async def admin(engine: Engine) -> Admin:
    return EngineAdmin(engine)


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "out")


async def test_a_commit_says_where_its_file_ends(
    engine: Engine, admin: Admin, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "FILE_ROWS_MAX", 5)
    await fill(engine, 0, 6)
    assert (await run(admin, out, form="delta")).files == 3
    table = DeltaTable(out)
    assert table.metadata().name == "outbox log readings 0.0" and table.version() == 3
    told = [json.loads(commit["outbox"]) for commit in table.history()]
    assert [each.get("end") for each in told] == ["6.0", "5.1", "2.2", None]
    assert table.transaction_version(APP_ID) == number_of(Position(6)) == 6 << 20
    assert pa.schema(table.schema().to_arrow()) == ENTRY and len(table.file_uris()) == 3
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)


async def test_an_export_whose_commits_have_expired_still_goes_on(engine: Engine, admin: Admin, out: str) -> None:
    await fill(engine, 0, 3)
    await run(admin, out, form="delta")
    table = DeltaTable(out)
    WRITE(table, [], mode="append", schema=table.schema(), partition_by=[])  # as an OPTIMIZE of others
    DeltaTable(out).create_checkpoint()
    for version in range(2):
        Folder(out).delete(f"_delta_log/{version:020}.json")
    await fill(engine, 3, 2)
    assert (await run(admin, out, form="delta")).begin == "3.0"
    assert rows_of(out, "delta") == await entries_of(admin)


async def test_files_that_were_compacted_and_vacuumed_are_no_new_beginning(
    engine: Engine, admin: Admin, out: str
) -> None:
    for n in range(3):
        await fill(engine, n, 1)
        await run(admin, out, form="delta")
    DeltaTable(out).optimize.compact()
    DeltaTable(out).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    await fill(engine, 3, 1)
    assert (await run(admin, out, form="delta")).begin == "3.0"
    assert rows_of(out, "delta") == await entries_of(admin)


async def test_a_commit_whose_answer_is_lost_stands(
    engine: Engine, admin: Admin, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: DeltaTable, *given: Any, **options: Any) -> None:
        WRITE(self, *given, **options)
        raise CommitFailedError("Failed to commit transaction: 0")  # what delta-rs makes of the 409 of its second put

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    await fill(engine, 0, 3)
    assert (await run(admin, out, form="delta")).entries == 6
    assert DeltaTable(out).version() == 1 and rows_of(out, "delta") == await entries_of(admin)


async def test_a_commit_without_an_answer_may_come_late(
    engine: Engine, admin: Admin, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = list[Any]()

    def delayed(self: DeltaTable, *given: Any, **options: Any) -> None:
        late.append(lambda: WRITE(self, *given, **options))
        raise OSError("Generic MicrosoftAzure error: Error after 10 retries")

    await fill(engine, 0, 3)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", delayed)
        with pytest.raises(OutcomeUnknown, match=r"version 1 was not written, or comes yet: .*run the same again"):
            await run(admin, out, form="delta")
    await run(admin, out, form="delta")
    with pytest.raises(CommitFailedError):
        late[0]()
    assert rows_of(out, "delta") == await entries_of(admin)


def test_a_version_that_is_lost_to_another_program_is_tried_again_with_the_same_file(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, busy = DeltaExport(Folder(out), "readings", "0.0"), list[int]([1, 1])

    def overtaken(self: DeltaTable, *given: Any, **options: Any) -> None:
        if busy:
            busy.pop()
            table = DeltaTable(out)
            WRITE(table, [], mode="append", schema=table.schema(), partition_by=[])
        WRITE(self, *given, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    assert target.add(ONE, Position(0), Position(1)) is None
    assert len(files_of(out)) == 1 == len(rows_of(out, "delta")) and DeltaTable(out).version() == 3
    busy += [1] * 99
    with pytest.raises(Refused, match="20 commits were lost to others"):
        target.add(ONE, Position(1), Position(2))


async def test_a_table_of_another_log_row_or_program_is_refused(engine: Engine, admin: Admin, out: str) -> None:
    await fill(engine, 0, 2)
    await fill(engine, 0, 2, "others")
    await run(admin, out, form="delta")
    text = (
        r"is a Delta table named 'outbox log readings 0.0', none that an export of log others, row 0.0 wrote; give the"
    )
    with pytest.raises(Refused, match=text):
        await run(admin, out, "others", form="delta")
    with pytest.raises(Refused, match="give the table a folder of its own"):
        DeltaExport(Folder(out), "readings", "0.1").reached()
    write_deltalake(f"{out}-foreign", pa.table({"a": [1]}))
    with pytest.raises(Refused, match="is a Delta table named None"):
        DeltaExport(Folder(f"{out}-foreign"), "readings", "0.0").reached()


async def test_one_form_is_not_continued_by_the_other(engine: Engine, admin: Admin, out: str) -> None:
    await fill(engine, 0, 2)
    await run(admin, out, form="delta")
    await run(admin, f"{out}-files")
    with pytest.raises(Refused, match="is a Delta table; say --format delta"):
        await run(admin, out)
    with pytest.raises(Refused, match=r"is no Delta table and has other files, such as 0+\.0+\.parquet"):
        await run(admin, f"{out}-files", form="delta")
    with pytest.raises(Refused, match="is a Delta table; run `outbox stream export` without"):
        exported(Folder(out))


def test_a_table_whose_progress_another_program_changed_or_dropped_is_not_appended_to(out: str) -> None:
    target = DeltaExport(Folder(out), "readings", "0.0")
    target.add(ONE, Position(0), Position(1))
    table = DeltaTable(out)
    wrote = CommitProperties(app_transactions=[Transaction(APP_ID, 7)])
    WRITE(table, [], mode="append", schema=table.schema(), partition_by=[], commit_properties=wrote)
    with pytest.raises(CorruptRecord, match="another program wrote under 'outbox-export'"):
        target.reached()


def test_a_table_that_says_nothing_of_its_rows_is_not_appended_to(out: str) -> None:
    """As a clone has them: the name and the rows, and no writer's progress."""
    target = DeltaExport(Folder(out), "readings", "0.0")
    base = target.table.read_or_create()
    write_deltalake(out, pa.Table.from_pylist([{"position": "0.0"}], schema=ENTRY), mode="append")
    assert base.number == 0
    with pytest.raises(Refused, match="does not say how far it is"):
        target.reached()


async def test_the_log_of_a_table_is_on_disk_before_an_export_says_that_it_has_it(
    engine: Engine, admin: Admin, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(engine, 0, 2)
    await run(admin, out, form="delta")
    synced, sync = list[str](), sync_path

    def noted(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr(durable, "sync_path", noted)
    await run(admin, out, form="delta")
    assert synced[:4] == [f"{0:020}.json", f"{1:020}.json", "_delta_log", "out"]


def test_a_number_is_a_position_and_they_sort_alike() -> None:
    ends = [Position(0, 1), Position(1), Position(1, 999_999), Position(2), Position(1 << 42, 3)]
    numbers = [number_of(end) for end in ends]
    assert numbers == sorted(set(numbers)) and numbers[-1] < 1 << 63 and delta.OFFSET_BITS == 20
