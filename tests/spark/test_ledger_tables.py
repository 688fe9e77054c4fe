"""A ledger's Delta table: the fence, what a failed commit means, torn logs, and tables that are none of ours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError

from outbox.errors import CorruptRecord, OutcomeUnknown, Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.places import Place
from spark_jobs.draining import durable, entries, tables
from spark_jobs.draining.entries import APP_ID, OURS, Entry, Progress, entry_file, read_entry
from spark_jobs.draining.merging import LEDGER_NAME, Merger
from spark_jobs.draining.received import ROW
from spark_jobs.draining.tables import PROPERTIES, Table
from spark_jobs.ledger import merge, newest_version
from tests.spark.ledgers import ids, land, landed

WRITE = DeltaTable.create_write_transaction


def progress(number: int, token: str = "t") -> Progress:
    return Progress(token=token, number=number, files=0, consumed=[])


def answers(monkeypatch: pytest.MonkeyPatch, *ways: Callable[..., None]) -> list[str]:
    """What the next commits of delta-rs do, one after the other; then as it is. Gives what was called."""
    left, called = list(ways), list[str]()

    def write(self: DeltaTable, *given: Any, **options: Any) -> None:
        way = left.pop(0) if left else WRITE
        called.append(way.__name__)
        way(self, *given, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
    return called


def lost_answer(self: DeltaTable, *given: Any, **options: Any) -> None:
    WRITE(self, *given, **options)
    raise CommitFailedError("Failed to commit transaction: 0")  # what delta-rs makes of the 409 of its second put


def no_answer(self: DeltaTable, *given: Any, **options: Any) -> None:
    raise OSError("Generic MicrosoftAzure error: Error after 10 retries")


def test_of_two_handles_of_one_version_one_commits(tmp_path: Path) -> None:
    table = Table(Folder(tmp_path), LEDGER_NAME)
    first, second = table.read_or_create(), table.read_or_create()
    assert table.commit(first, [], progress(1, "a"))
    assert not table.commit(second, [], progress(1, "b"))
    entry = read_entry(table.place, 1)
    assert entry is not None and entry.progress == progress(1, "a")
    assert DeltaTable(str(tmp_path)).version() == 1


def test_each_commit_has_the_number_behind_the_newest(tmp_path: Path) -> None:
    for number in range(1, 4):
        land(tmp_path, f"{number}", f"{number}")
        merge(tmp_path)
        table = Table(Folder(tmp_path), LEDGER_NAME).read()
        assert table is not None and (table.number, table.progress.number) == (number, number)


@pytest.mark.parametrize("number", [0, 7])
def test_a_number_that_another_program_wrote_is_an_error(tmp_path: Path, number: int) -> None:
    land(tmp_path, "one", "a")
    merge(tmp_path)
    table = DeltaTable(str(tmp_path))
    wrote = CommitProperties(app_transactions=[Transaction(APP_ID, number)])
    WRITE(table, [], mode="append", schema=table.schema(), partition_by=[], commit_properties=wrote)
    with pytest.raises(CorruptRecord, match=f"is transaction 1 and the table is at {number}; another program wrote"):
        merge(tmp_path)


def test_an_entry_that_was_whole_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        land(tmp_path, name, name)
        merge(tmp_path)
    table, read = Table(Folder(tmp_path), LEDGER_NAME), list[int]()

    def noted(place: Place, version: int) -> Entry | None:
        read.append(version)
        return read_entry(place, version)

    monkeypatch.setattr(tables, "read_entry", noted)
    table.read()
    table.read()
    assert read == [0, 1, 2, 3, 4, 3, 4, 3]  # the newest is asked for its progress each time


def test_a_version_has_what_is_new_since_an_older_one(tmp_path: Path) -> None:
    for name in "ab":
        land(tmp_path, name, name)
        merge(tmp_path)
    found = [newest_version(tmp_path, since) for since in (None, 0, 1, 2)]
    assert [one and (len(one.newer), len(one.older)) for one in found] == [(2, 0), (2, 0), (1, 1), (0, 2)]
    for since in (-1, 3):
        with pytest.raises(Refused, match=f"has no version {since}, its newest is 2"):
            newest_version(tmp_path, since)


def test_a_data_file_is_dated_in_milliseconds_and_states_its_rows(tmp_path: Path) -> None:
    land(tmp_path, "one", "a", "b")
    before_ms = time.time_ns() // 1_000_000
    merge(tmp_path)
    lines = (tmp_path / entry_file(1)).read_text().splitlines()
    [add] = [line["add"] for line in map(json.loads, lines) if "add" in line]
    assert before_ms <= add["modificationTime"] <= time.time_ns() // 1_000_000
    assert json.loads(add["stats"]) == {"numRecords": 2}


def test_a_table_that_may_not_be_created_is_unknown_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any, **options: Any) -> None:
        raise OSError("the account being accessed lacks the necessary privileges" + "!" * 1_000)

    monkeypatch.setattr(tables, "create_table_with_add_actions", refused)
    with pytest.raises(OutcomeUnknown, match="give whoever signs in the role Storage Blob Data Contributor") as unknown:
        merge(tmp_path)
    assert len(str(unknown.value)) < 1_000


def test_a_commit_whose_answer_is_lost_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(tmp_path, "one", "a", "b")
    called = answers(monkeypatch, lost_answer)
    assert merge(tmp_path).added == 2
    assert called == ["lost_answer"] and ids(tmp_path) == ["a", "b"] and landed(tmp_path) == []


def test_a_commit_of_conflicts_whose_answer_is_lost_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(tmp_path, "one", "a", fingerprint="f1")
    merge(tmp_path)
    land(tmp_path, "two", "a", fingerprint="f2")
    called = answers(monkeypatch, lost_answer)
    assert merge(tmp_path).conflicts == 1
    assert called == ["lost_answer", "create_write_transaction"]
    assert DeltaTable(str(tmp_path / "_conflicts")).version() == 1


def test_a_commit_that_another_overtook_is_lost_and_its_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, "one", "a")
    Merger(Folder(tmp_path)).table.read_or_create()

    def overtaken(self: DeltaTable, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", WRITE)
        merge(tmp_path)
        WRITE(self, *given, **options)

    called = answers(monkeypatch, overtaken)
    assert merge(tmp_path).added == 0
    assert called == ["overtaken"] and ids(tmp_path) == ["a"]
    assert len(list((tmp_path / "data").iterdir())) == 2  # nobody knows what a version will name


def test_a_commit_without_an_answer_or_a_version_is_unknown_and_comes_true_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, "one", "a")
    late = list[Callable[[], None]]()

    def delayed(self: DeltaTable, *given: Any, **options: Any) -> None:
        late.append(lambda: WRITE(self, *given, **options))
        no_answer(self)

    answers(monkeypatch, delayed)
    with pytest.raises(OutcomeUnknown, match=r"version 1 was not written, or comes yet: .*run the same again"):
        merge(tmp_path)
    assert landed(tmp_path) == ["one"]
    late[0]()
    assert ids(tmp_path) == ["a"]
    assert merge(tmp_path).added == 0 and landed(tmp_path) == [] and ids(tmp_path) == ["a"]


def test_a_table_that_another_creates_meanwhile_is_the_table(tmp_path: Path) -> None:
    first, second = (Table(Folder(tmp_path), LEDGER_NAME) for _ in range(2))
    for each in (first, second):
        each.create([], progress(0))
    assert first.read_or_create().handle.metadata().id == second.read_or_create().handle.metadata().id


def test_the_protocol_is_what_synapse_reads(tmp_path: Path) -> None:
    merge(tmp_path)
    table = DeltaTable(str(tmp_path))
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert protocol.reader_features is None and protocol.writer_features is None
    assert table.metadata().configuration == {
        "delta.appendOnly": "true",
        "delta.enableDeletionVectors": "false",
        "delta.checkpointInterval": "10",
    }
    assert not any(pa.types.is_timestamp(field.type) for field in pa.schema(table.schema().to_arrow()))


def rewrite(ledger: Path, version: int, change: Callable[[bytes], bytes]) -> None:
    file = ledger / entry_file(version)
    file.write_bytes(change(file.read_bytes()))


def protocol_of(reader: int, writer: int, **features: list[str]) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.splitlines()]
        told = {"minReaderVersion": reader, "minWriterVersion": writer, **features}
        return b"\n".join(json.dumps({"protocol": told} if "protocol" in line else line).encode() for line in lines)

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (protocol_of(1, 1), "asks for Delta reader 1 and writer 1; this build writes 1 and 2"),
        (protocol_of(1, 4), "asks for Delta reader 1 and writer 4; this build writes 1 and 2"),
        (protocol_of(1, 9), "asks for Delta reader 1 and writer 9"),
        (
            protocol_of(3, 7, readerFeatures=["deletionVectors"], writerFeatures=["deletionVectors"]),
            "reader 3 and writer 7 with deletionVectors; this build writes 1 and 2: drop what was switched on",
        ),
        (protocol_of(9, 9), "delta-rs cannot open this table: .*Unsupported minimum reader version 9"),
        (lambda data: data.replace(b"outbox ledger", b"sales"), "is a Delta table named 'sales', none that consume"),
        (lambda data: data.replace(b"causation_id", b"cause"), "has other columns than this build writes"),
    ],
    ids=["writer-1", "writer-4", "writer-9", "vectors", "reader-9", "foreign", "columns"],
)
def test_a_table_that_is_not_written_by_this_build_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], text: str
) -> None:
    merge(tmp_path)
    rewrite(tmp_path, 0, change)
    land(tmp_path, "one", "a")
    with pytest.raises(Refused, match=text) as refused:
        merge(tmp_path)
    assert "\n" not in str(refused.value) and landed(tmp_path) == ["one"]


def test_a_delta_table_of_another_program_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), schema=Schema.from_arrow(ROW))
    with pytest.raises(Refused, match="is a Delta table named None, none that consume wrote; give the ledger a folder"):
        merge(tmp_path)


def test_a_ledger_that_somebody_has_partitioned_is_refused(tmp_path: Path) -> None:
    properties = {name: value or "" for name, value in PROPERTIES.items()}
    schema = Schema.from_arrow(ROW)
    DeltaTable.create(str(tmp_path), schema=schema, partition_by=["type"], name=LEDGER_NAME, configuration=properties)
    with pytest.raises(Refused, match="has other columns than this build writes"):
        merge(tmp_path)


def test_two_ledgers_of_one_name_are_refused(tmp_path: Path) -> None:
    merger = Merger(Folder(tmp_path / "ledger"))
    merger.merge()
    (tmp_path / "ledger").rename(tmp_path / "first")
    merge(tmp_path / "ledger")
    with pytest.raises(Refused, match="another table than before: two ledgers of one name"):
        merger.merge()


def test_a_path_that_delta_would_decode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="percent sign and two digits"):
        merge(tmp_path / "a%20b")


TORN = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "behind a line": lambda data: data[: data.index(b"\n") + 1],
    "without its transaction": lambda data: data[: data.rindex(b"\n")],
    "without what it added": lambda data: b"\n".join(line for line in data.split(b"\n") if b'{"add"' not in line),
    "zeros": lambda data: bytes(len(data)),
    "zeros behind a line": lambda data: data[: data.index(b"\n") + 1] + bytes(len(data)),
}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_newest_entry_is_named_and_its_cure_loses_nothing(tmp_path: Path, how: str) -> None:
    land(tmp_path, "one", "a")
    merge(tmp_path)
    land(tmp_path, "two", "b")
    kept = (tmp_path / "_landing" / "two.parquet").read_bytes()
    merge(tmp_path)
    (tmp_path / "_landing" / "two.parquet").write_bytes(kept)  # it goes when the entry is on disk, and this one is not
    rewrite(tmp_path, 2, TORN[how])
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"_delta_log/0+2\.json is torn, .*delete this one file") as torn:
            merge(tmp_path)
        assert "\n" not in str(torn.value) and landed(tmp_path) == ["two"]
    (tmp_path / entry_file(2)).unlink()
    assert merge(tmp_path).added == 1 and ids(tmp_path) == ["a", "b"]


def test_a_torn_entry_below_a_whole_one_is_named_with_it_and_the_cure_loses_nothing(tmp_path: Path) -> None:
    """Two mergers committed, and the power went before either had synced; both their landing files are there."""
    land(tmp_path, "one", "a")
    merge(tmp_path)
    for name in ("two", "three"):
        land(tmp_path, name, name)
        kept = (tmp_path / "_landing" / f"{name}.parquet").read_bytes()
        merge(tmp_path)
        (tmp_path / f"{name}.kept").write_bytes(kept)
    for name in ("two", "three"):
        (tmp_path / f"{name}.kept").rename(tmp_path / "_landing" / f"{name}.parquet")
    rewrite(tmp_path, 2, TORN["half"])
    with pytest.raises(CorruptRecord, match=r"0+2\.json is torn, .*delete this file and the entries of higher numbers"):
        merge(tmp_path)
    for version in (2, 3):
        (tmp_path / entry_file(version)).unlink()
    assert merge(tmp_path).added == 2 and ids(tmp_path) == ["a", "three", "two"]


def test_an_entry_of_more_bytes_than_any_has_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(tmp_path)
    size = (tmp_path / entry_file(0)).stat().st_size
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", size)
    assert read_entry(Folder(tmp_path), 0) is not None
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", size - 1)
    with pytest.raises(CorruptRecord, match=f"0.json has more than {size - 1} bytes"):
        read_entry(Folder(tmp_path), 0)


def test_a_torn_first_entry_is_named(tmp_path: Path) -> None:
    merge(tmp_path)
    rewrite(tmp_path, 0, lambda data: b"")
    with pytest.raises(CorruptRecord, match=r"0\.json is torn"):
        merge(tmp_path)


@pytest.mark.parametrize("length", [0, 50])
def test_a_torn_checkpoint_is_named_and_its_cure_loses_nothing(tmp_path: Path, length: int) -> None:
    merger = Merger(Folder(tmp_path))
    for number in range(12):
        land(tmp_path, f"{number}", f"{number:02}")
        merger.merge()
    [checkpoint] = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:length])
    with pytest.raises(
        CorruptRecord, match=r"checkpoint\.parquet is torn, .*delete it and _delta_log/_last_checkpoint"
    ):
        merge(tmp_path)
    checkpoint.unlink()
    (tmp_path / "_delta_log" / "_last_checkpoint").unlink()
    land(tmp_path, "more", "00", "more")
    assert merge(tmp_path).added == 1 and len(ids(tmp_path)) == 13


def test_progress_whose_entry_has_expired_costs_a_second_merge_and_no_row(tmp_path: Path) -> None:
    land(tmp_path, "one", "a")
    kept = (tmp_path / "_landing" / "one.parquet").read_bytes()
    merge(tmp_path)
    table = DeltaTable(str(tmp_path))
    WRITE(table, [], mode="append", schema=table.schema(), partition_by=[])  # as an OPTIMIZE or a vacuum of others
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(2):
        (tmp_path / entry_file(version)).unlink()
    (tmp_path / "_landing" / "one.parquet").write_bytes(kept)
    assert merge(tmp_path).duplicates == 1
    assert DeltaTable(str(tmp_path)).count() == 1 and DeltaTable(str(tmp_path)).transaction_version(APP_ID) == 2


def test_what_a_commit_says_of_itself_is_a_text_in_its_history(tmp_path: Path) -> None:
    land(tmp_path, "one", "a")
    merge(tmp_path)
    told = json.loads(DeltaTable(str(tmp_path)).history(1)[0][OURS])
    assert (told["number"], told["files"], told["consumed"]) == (1, 1, ["one.parquet"]) and len(told["token"]) == 32


def test_a_place_for_which_no_token_can_be_had_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def options(self: Folder) -> dict[str, str]:
        raise GaveUpError("cannot sign in")

    monkeypatch.setattr(Folder, "storage_options", options)
    with pytest.raises(Refused, match="cannot sign in"):
        Table(Folder(tmp_path), LEDGER_NAME).read()


def test_what_is_written_again_is_synced_again_and_a_folder_of_others_is_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()

    def sync(path: Path) -> None:
        synced.append(path.name)
        if path == tmp_path.parent:
            raise PermissionError

    for name in (f"{10:020}.json", "_last_checkpoint"):
        Folder(tmp_path).create(f"_delta_log/{name}", b'{"version":10}')
    monkeypatch.setattr(durable, "sync_path", sync)
    made = durable.Durable(Folder(tmp_path))
    for _ in range(2):
        made.sync()
    assert (synced.count("_last_checkpoint"), synced.count(f"{10:020}.json")) == (2, 1)
