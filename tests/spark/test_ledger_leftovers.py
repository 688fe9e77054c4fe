"""What no version names goes by age, and nothing else does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from outbox.errors import CorruptRecord, Refused
from spark_jobs.common.folder import Folder, sync_path
from spark_jobs.draining import durable
from spark_jobs.draining.leftovers import ORPHAN_AGE_S
from spark_jobs.draining.merging import MERGE_S_MAX
from spark_jobs.ledger import ledger_files, merge, sweep
from tests.spark.ledgers import Died, conflicts, dies_at, ids, land, landed

ALL = 0.0


def files(ledger: Path) -> set[str]:
    found = {path.relative_to(ledger).as_posix() for path in ledger.rglob("*") if path.is_file()}
    return {name for name in found if "_delta_log/" not in name}


def filled(ledger: Path) -> set[str]:
    """A ledger with leftovers of every kind; gives what must stay."""
    land(ledger, "one", "a", body="1", fingerprint="f1")
    merge(ledger)
    land(ledger, "two", "a", "b", body="2", fingerprint="f2", first=1)
    merge(ledger)
    kept = files(ledger)
    land(ledger, "three", "a", "c", body="3", fingerprint="f3", first=3)
    with pytest.raises(Died):
        merge(ledger, crash_point=dies_at("prepared"))
    kept |= {name for name in files(ledger) - kept if name.startswith(("_landing", "_conflicts"))}
    for name in (f"_landing/torn.parquet.{'1' * 32}.tmp", "data/torn.parquet.2.tmp", "_conflicts/data/orphan.parquet"):
        (ledger / name).write_bytes(b"half")
    (ledger / "_keys" / "data" / "gone.parquet.keys").write_bytes(b"of no file")
    return kept


def test_what_no_version_names_goes_and_everything_else_stays(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    assert sweep(tmp_path) == 0  # all of it is young enough to be somebody's work
    assert sweep(tmp_path, age_s=ALL) == 6
    assert files(tmp_path) == kept and landed(tmp_path) == ["three"]
    assert sweep(tmp_path, age_s=ALL) == 0
    merge(tmp_path)
    assert ids(tmp_path) == ["a", "b", "c"] and conflicts(tmp_path) == [("a", "2"), ("a", "3")]
    named = {*ledger_files(tmp_path)}
    assert {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "data").iterdir()} == named


def test_a_sweep_that_finds_nothing_commits_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path) == 0 and not (tmp_path / "_delta_log").exists()
    land(tmp_path, "one", "a")
    merge(tmp_path)
    for _ in range(3):
        assert sweep(tmp_path, age_s=ALL) == 0
    assert DeltaTable(str(tmp_path)).version() == 1


def test_a_merge_that_began_before_a_vacuum_is_lost_to_it(tmp_path: Path) -> None:
    """Its files may be among those that were taken."""
    land(tmp_path, "one", "a")
    merge(tmp_path)
    land(tmp_path, "two", "b")
    swept = list[int]()

    def vacuumed(point: str) -> None:
        if point == "prepared" and not swept:
            swept.append(sweep(tmp_path, age_s=ALL))

    merged = merge(tmp_path, crash_point=vacuumed)
    assert swept == [2] and merged.added == 1
    assert ids(tmp_path) == ["a", "b"]


def test_a_clock_of_the_store_that_is_behind_makes_nothing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are dated by the store, two hours before the clock of this machine."""
    land(tmp_path, "one", "a")
    with pytest.raises(Died):
        merge(tmp_path, crash_point=dies_at("prepared"))
    two_hours_ago_s = time.time() - 7_200
    for path in (*(tmp_path / "data").iterdir(), *(tmp_path / "_keys" / "data").iterdir()):
        os.utime(path, (two_hours_ago_s, two_hours_ago_s))
    monkeypatch.setattr(Folder, "now_s", lambda self: time.time() - 7_200)
    assert sweep(tmp_path, age_s=3_600.0) == 0
    monkeypatch.undo()
    assert sweep(tmp_path, age_s=3_600.0) == 2


def test_nothing_is_taken_that_a_merge_may_still_commit() -> None:
    assert ORPHAN_AGE_S > 100 * MERGE_S_MAX


def test_a_merge_that_took_too_long_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(tmp_path, "one", "a")
    now_s = time.time()
    monkeypatch.setattr(Folder, "now_s", lambda self: now_s)

    def stand_still(point: str) -> None:
        nonlocal now_s
        now_s += MERGE_S_MAX + 1 if point == "prepared" else 0

    with pytest.raises(Refused, match="took longer than 3600 s; run the same again"):
        merge(tmp_path, crash_point=stand_still)
    assert ids(tmp_path) == [] and landed(tmp_path) == ["one"]
    assert merge(tmp_path).added == 1 and ids(tmp_path) == ["a"]


def test_entries_expire_in_a_sweep_and_only_behind_a_checkpoint_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        land(tmp_path, f"{number}", f"{number:02}")
        merge(tmp_path)
    log = tmp_path / "_delta_log"
    for path in log.iterdir():
        os.utime(path, (1e9, 1e9))
    land(tmp_path, "more", "more")
    merge(tmp_path)
    assert len(list(log.glob("*.json"))) == 14  # a commit lets nothing expire
    steps = list[str]()
    cleanup = DeltaTable.cleanup_metadata

    def synced(path: Path) -> None:
        steps.append(path.name)
        sync_path(path)

    def cleaned(self: DeltaTable) -> None:
        steps.append("cleaned")
        cleanup(self)

    monkeypatch.setattr(durable, "sync_path", synced)
    monkeypatch.setattr(DeltaTable, "cleanup_metadata", cleaned)
    sweep(tmp_path)
    [checkpoint] = log.glob("*.checkpoint.parquet")
    assert steps.index(checkpoint.name) < steps.index("cleaned")
    assert not (log / f"{0:020}.json").exists()
    assert merge(tmp_path).version == 13 and DeltaTable(str(tmp_path)).count() == 13
    (log / f"{12:020}.json").write_bytes(b"")
    with pytest.raises(CorruptRecord, match=r"0+12\.json is torn"):  # though the first entries are gone
        merge(tmp_path)
