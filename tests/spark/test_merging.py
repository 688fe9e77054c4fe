"""What has landed is in the ledger once, whoever merges, however often, and wherever a merger dies; without Spark."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from outbox.errors import CorruptRecord, Refused
from spark_jobs.common.folder import Folder
from spark_jobs.draining import merging
from spark_jobs.draining.entries import Progress
from spark_jobs.draining.merging import Merged, Merger
from spark_jobs.draining.parquet import DataFile
from spark_jobs.draining.received import ROW
from spark_jobs.draining.tables import Snapshot, Table
from spark_jobs.ledger import merge
from tests.spark.ledgers import Died, by_log, conflicts, dies_at, ids, land, land_rows, landed

POINTS = ["conflicts", "prepared", "committed", "synced"]


def test_a_message_that_landed_twice_is_one_row(tmp_path: Path) -> None:
    land(tmp_path, "one", "a", "b", "b")
    merge(tmp_path)
    land(tmp_path, "two", "b", "c")
    assert merge(tmp_path) == Merged(version=2, landed=2, added=1, duplicates=1)
    assert ids(tmp_path) == ["a", "b", "c"] and landed(tmp_path) == []


def test_a_ledger_that_nothing_landed_for_is_an_empty_table(tmp_path: Path) -> None:
    assert merge(tmp_path) == Merged(version=0)
    assert ids(tmp_path) == []


def test_one_merger_finds_what_it_and_others_merged(tmp_path: Path) -> None:
    ours, theirs = Merger(Folder(tmp_path)), Merger(Folder(tmp_path))
    for round, merger in enumerate((ours, theirs, ours, theirs)):
        land(tmp_path, f"{round}", "a", f"b{round}", *(f"b{earlier}" for earlier in range(round)))
        assert merger.merge().added == (2 if round == 0 else 1)
    assert ids(tmp_path) == ["a", "b0", "b1", "b2", "b3"]


@pytest.mark.parametrize("point", POINTS)
def test_a_merger_that_dies_anywhere_leaves_no_row_out_and_none_twice(tmp_path: Path, point: str) -> None:
    land(tmp_path, "first", "a", body="1", fingerprint="f1")
    merge(tmp_path)
    land(tmp_path, "again", "a", body="2", fingerprint="f2", first=5)
    land(tmp_path, "new", "b", "c", first=6)
    for _ in range(2):  # the second one dies at the same step
        with pytest.raises(Died):
            merge(tmp_path, crash_point=dies_at(point))
        if point in ("committed", "synced"):
            break
    assert ids(tmp_path) == (["a"] if point in ("conflicts", "prepared") else ["a", "b", "c"])
    land(tmp_path, "late", "c", "d", first=9)
    merge(tmp_path)
    assert ids(tmp_path) == ["a", "b", "c", "d"]
    assert conflicts(tmp_path) == [("a", "2")] and landed(tmp_path) == []


def test_a_landed_file_that_is_there_again_adds_nothing(tmp_path: Path) -> None:
    """A deletion that a power loss undid, or a copy that somebody put back."""
    land(tmp_path, "one", "a", body="1", fingerprint="f1")
    land(tmp_path, "two", "a", "b", body="2", fingerprint="f2", first=1)
    shutil.copytree(tmp_path / "_landing", tmp_path / "kept")
    assert merge(tmp_path) == Merged(version=1, landed=3, added=2, conflicts=1)
    shutil.copy(tmp_path / "kept" / "one.parquet", tmp_path / "_landing" / "one.parquet")
    assert merge(tmp_path) == Merged(version=1)  # the newest version has consumed it
    land(tmp_path, "three", "c")
    merge(tmp_path)
    shutil.copytree(tmp_path / "kept", tmp_path / "_landing", dirs_exist_ok=True)
    assert merge(tmp_path) == Merged(version=3, landed=3, duplicates=2, conflicts=1)
    assert ids(tmp_path) == ["a", "b", "c"] and conflicts(tmp_path) == [("a", "2")]


def test_of_two_racing_mergers_one_commits_each_row(tmp_path: Path) -> None:
    land(tmp_path, "one", "a", "b", "c")
    together, left = Barrier(2, timeout=60), [2]

    def meet(point: str) -> None:
        if point == "prepared" and left[0]:
            left[0] -= 1
            together.wait()

    merge(tmp_path / "warm")  # imports and pools are not part of the race
    Merger(Folder(tmp_path)).table.read_or_create()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: merge(tmp_path, crash_point=meet), range(2)))
    assert sorted(result.added for result in results) == [0, 3]
    assert ids(tmp_path) == ["a", "b", "c"]


def test_who_lost_a_version_deletes_no_file_and_decides_anew(tmp_path: Path) -> None:
    land(tmp_path, "one", "a", "b")
    merged = list[Merged]()

    def overtaken(point: str) -> None:
        if point == "prepared" and not merged:
            merged.append(merge(tmp_path))
            land(tmp_path, "two", "b", "c")

    assert merge(tmp_path, crash_point=overtaken) == Merged(version=2, landed=2, added=1, duplicates=1)
    assert merged == [Merged(version=1, landed=2, added=2)]
    assert ids(tmp_path) == ["a", "b", "c"]
    assert len(list((tmp_path / "data").iterdir())) == 3  # that of the lost version waits for vacuum


def test_the_counts_of_several_versions_are_added_up() -> None:
    assert Merged(1, 2, 3, 4, 5).and_then(Merged(6, 10, 20, 30, 40)) == Merged(6, 12, 23, 34, 45)


def test_mergers_that_always_lose_end_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(tmp_path, "one", "a")
    tried = list[Snapshot]()

    def lost(self: Table, base: Snapshot, files: object, progress: object) -> bool:
        tried.append(base)
        return False

    monkeypatch.setattr(Table, "commit", lost)
    with pytest.raises(Refused, match="20 commits were lost to other mergers"):
        merge(tmp_path)
    assert len(tried) == 20 and landed(tmp_path) == ["one"]


def test_a_merger_that_goes_on_may_lose_as_often_before_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "FILE_COUNT_MAX", 1)
    monkeypatch.setattr(merging, "ATTEMPT_COUNT_MAX", 2)
    for name in "abc":
        land(tmp_path, name, name)
    commit, lost = Table.commit, set[int]()

    def second_time(self: Table, base: Snapshot, added: list[DataFile], progress: Progress) -> bool:
        if base.version not in lost:
            lost.add(base.version)
            return False
        return commit(self, base, added, progress)

    monkeypatch.setattr(Table, "commit", second_time)
    assert merge(tmp_path) == Merged(version=3, landed=3, added=3) and len(lost) == 3


def test_a_landing_file_that_another_merger_took_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, "one", "a")
    land(tmp_path, "two", "b")
    merger = Merger(Folder(tmp_path))
    read = merger._landed

    def after_another(names: list[str]) -> list[pa.Table | None]:
        monkeypatch.setattr(merger, "_landed", read)
        merge(tmp_path)
        land(tmp_path, "three", "c")
        return read(names)

    monkeypatch.setattr(merger, "_landed", after_another)
    assert merger.merge() == Merged(version=2, landed=1, added=1)
    assert ids(tmp_path) == ["a", "b", "c"]


def test_another_body_under_a_known_id_is_kept_beside_the_ledger_once(tmp_path: Path) -> None:
    land(tmp_path, "one", "a", body="1", fingerprint="f1")
    merge(tmp_path)
    for name in ("two", "three"):
        land(tmp_path, name, "a", body="2", fingerprint="f2")
        assert merge(tmp_path).conflicts == 1
    assert [row["body"] for row in by_log(tmp_path)] == ["1"]
    assert conflicts(tmp_path) == [("a", "2")]


def test_of_copies_that_differ_the_first_delivery_is_the_row(tmp_path: Path) -> None:
    places = ((2, 0, "f2"), (1, 3, "f1"), (1, 0, "f0"), (1, 1, "f0"))  # number, deliveries before, what it says
    rows = [
        {"message_id": "a", "body": said, "fingerprint": said, "sequence_number": number, "delivery_count": count}
        for number, count, said in places
    ]
    land_rows(tmp_path, "one", rows)
    assert merge(tmp_path) == Merged(version=1, landed=4, added=1, duplicates=1, conflicts=2)
    [kept] = by_log(tmp_path)
    assert (kept["body"], kept["sequence_number"], kept["delivery_count"]) == ("f0", 1, 0)
    assert conflicts(tmp_path) == [("a", "f1"), ("a", "f2")]


def test_one_version_takes_so_many_files_and_bytes_of_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "FILE_COUNT_MAX", 2)
    for name in "abcde":
        land(tmp_path, name, name)
    assert merge(tmp_path) == Merged(version=3, landed=5, added=5)
    monkeypatch.setattr(merging, "LANDED_BYTES_MAX", 1)
    for name in "fg":
        land(tmp_path, name, name)
    assert merge(tmp_path) == Merged(version=5, landed=2, added=2)
    for name in "hij":
        land(tmp_path, name, name)
    size_bytes = pq.read_table(tmp_path / "_landing" / "h.parquet").nbytes
    monkeypatch.setattr(merging, "LANDED_BYTES_MAX", 2 * size_bytes)
    monkeypatch.setattr(merging, "FILE_COUNT_MAX", 9)
    assert merge(tmp_path) == Merged(version=7, landed=3, added=3)
    assert ids(tmp_path) == list("abcdefghij")


def test_a_ledger_whose_conflicts_are_another_table_is_refused_before_anything_is_received(tmp_path: Path) -> None:
    land(tmp_path, "one", "a")
    merge(tmp_path)
    Merger(Folder(tmp_path)).check()
    Table(Folder(tmp_path) / "_conflicts", "other").create([], Progress(token="t", number=0, files=0, consumed=[]))
    with pytest.raises(Refused, match="_conflicts is a Delta table named 'other'"):
        Merger(Folder(tmp_path)).check()


@pytest.mark.parametrize("data", [b"", b"PAR1 half"], ids=["empty", "half"])
def test_a_damaged_landing_file_is_named_and_nothing_of_it_counts(tmp_path: Path, data: bytes) -> None:
    land(tmp_path, "good", "a")
    (tmp_path / "_landing" / "bad.parquet").write_bytes(data)
    with pytest.raises(CorruptRecord, match=r"_landing/bad\.parquet cannot be read: .*or move it elsewhere"):
        merge(tmp_path)
    assert ids(tmp_path) == []
    (tmp_path / "_landing" / "bad.parquet").unlink()
    assert merge(tmp_path).added == 1


def test_a_landing_file_of_other_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "_landing").mkdir()
    pq.write_table(pa.table({"message_id": ["a"]}), tmp_path / "_landing" / "x.parquet")
    with pytest.raises(CorruptRecord, match="its columns are others"):
        merge(tmp_path)


def test_a_merge_that_took_longer_than_vacuum_waits_does_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, "one", "a")
    times = iter([0.0, 3_601.0])
    monkeypatch.setattr(Folder, "now_s", lambda self: next(times))
    with pytest.raises(Refused, match="longer than 3600 s; run the same again"):
        merge(tmp_path)
    assert ids(tmp_path) == []


def test_a_ledger_whose_path_has_blanks_and_letters_of_all_kinds_is_merged_into(tmp_path: Path) -> None:
    place = tmp_path / "a led#er é?"
    for round in range(2):
        land(place, f"{round}", "a", f"b{round}")
        merge(place)
    assert ids(place) == ["a", "b0", "b1"]


def test_any_reader_finds_one_file_for_each_version_and_checkpoints_by_themselves(tmp_path: Path) -> None:
    merger = Merger(Folder(tmp_path))
    for round in range(23):
        land(tmp_path, f"{round}", f"{round:02}")
        assert merger.merge().version == round + 1
    assert ids(tmp_path) == [f"{round:02}" for round in range(23)]
    table = DeltaTable(str(tmp_path))
    assert len(table.file_uris()) == 23 and table.transaction_version("outbox-consume") == 23
    assert len(list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))) == 2
    assert table.to_pyarrow_dataset().schema.names == ROW.names


def test_the_files_of_an_optimized_ledger_are_read_anew(tmp_path: Path) -> None:
    merger = Merger(Folder(tmp_path))
    for round in range(3):
        land(tmp_path, f"{round}", f"a{round}", f"b{round}")
        merger.merge()
    DeltaTable(str(tmp_path)).optimize.compact()
    for each in (merger, Merger(Folder(tmp_path))):
        land(tmp_path, "again", "a0", "b2", "c")
        assert each.merge().added == (1 if each is merger else 0)
    assert ids(tmp_path) == ["a0", "a1", "a2", "b0", "b1", "b2", "c"]
