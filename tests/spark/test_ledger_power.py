"""A power loss at any step of a merge or a take-over costs no row and doubles none, though delta-rs syncs nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outbox.errors import CorruptRecord
from spark_jobs.common.folder import Folder
from spark_jobs.draining.merging import LANDING, Merger
from spark_jobs.draining.taking_over import take_over
from spark_jobs.ledger import merge
from tests.spark.ledgers import Died, conflicts, dies_at, ids, older_form
from tests.spark.ledgers import land_texts as land
from tests.spark.power import Disk

LOSSES = [(names, deletions) for names in ("synced", "all") for deletions in ("done", "undone")]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(os, "fsync", made.fsync)
    yield made
    made.close()


def dies_in(merge_number: int, point: str) -> tuple[list[int], Callable[[str], None]]:
    """Die at a point of a merge; which merge it is stands in the list."""
    current = [0]

    def crash(at: str) -> None:
        if (current[0], at) == (merge_number, point):
            raise Died

    return current, crash


def cured(ledger: Path) -> int:
    """Merge, after what each error text says is done; gives how many files had to be deleted."""
    for count in range(5):
        try:
            merge(ledger)
        except CorruptRecord as torn:
            assert "torn, as a power loss leaves it; delete" in str(torn)
            Path(str(torn).split(" is torn")[0]).unlink()
            if "_last_checkpoint" in str(torn):
                (ledger / "_delta_log" / "_last_checkpoint").unlink()
        else:
            return count
    pytest.fail("no end of torn files")


@pytest.mark.parametrize("point", ["conflicts", "prepared", "committed", "synced", "end"])
@pytest.mark.parametrize("number", [0, 1, 10])
def test_a_power_loss_in_a_merge_costs_nothing(tmp_path: Path, disk: Disk, number: int, point: str) -> None:
    current, crash = dies_in(number, point)
    place = Folder(tmp_path / "deep" / "ledger")
    disk.sync_all(tmp_path)
    merger = Merger(place, crash)
    merger.merge()
    merger.sync_names()
    try:
        for merged in range(number + 1):
            current[0] = merged
            land(place.path, f"{merged}", ("a", f"{merged}"), (f"b{merged}", "x"))
            merger.merge()
    except Died:
        pass
    for names, deletions in LOSSES:
        found = tmp_path.with_suffix(f".{names}-{deletions}")
        disk.after_loss(tmp_path, found, names=names, deletions=deletions)
        after = found / "deep" / "ledger"
        torn = cured(after)
        assert ids(after) == sorted(["a", *(f"b{merged}" for merged in range(number + 1))]), found
        assert conflicts(after) == sorted(("a", f"{merged}") for merged in range(1, number + 1)), found
        assert torn == 0 or names == "all", found


@pytest.mark.parametrize(("names", "deletions"), LOSSES)
@pytest.mark.parametrize("point", ["closed", "conflicts", "created", "end"])
def test_a_power_loss_in_a_take_over_costs_nothing(
    tmp_path: Path, disk: Disk, point: str, names: str, deletions: str
) -> None:
    older_form(tmp_path)
    disk.sync_all(tmp_path)
    try:
        take_over(Folder(tmp_path), dies_at(point))
    except Died:
        assert point != "end"
    after = tmp_path.with_suffix(".after")
    disk.after_loss(tmp_path, after, names=names, deletions=deletions)
    for _ in range(3):
        try:
            take_over(Folder(after))
            break
        except CorruptRecord as torn:
            assert "torn, as a power loss leaves it; delete" in str(torn)
            Path(str(torn).split(" is torn")[0]).unlink()
    cured(after)
    assert ids(after) == ["a", "b", "c", "d"] and conflicts(after) == [("a", "2")]


@pytest.mark.parametrize("deletions", ["done", "undone"])
def test_what_older_builds_did_not_sync_is_on_disk_before_its_landing_file_goes(
    tmp_path: Path, disk: Disk, deletions: str
) -> None:
    older_form(tmp_path)
    for path in (tmp_path / LANDING, tmp_path / "_log"):
        disk.sync_all(path)
    take_over(Folder(tmp_path))
    merge(tmp_path)
    after = tmp_path.with_suffix(".after")
    disk.after_loss(tmp_path, after, names="synced", deletions=deletions)
    cured(after)
    assert ids(after) == ["a", "b", "c", "d"] and conflicts(after) == [("a", "2")]


def test_the_stand_in_loses_what_nobody_synced(tmp_path: Path, disk: Disk) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("kept", "nameless", "torn", "gone"):
        (root / name).write_bytes(b"1")
    disk.sync_all(root)
    (root / "nameless").rename(root / "renamed")
    (root / "torn").write_bytes(b"2")
    (root / "new").write_bytes(b"3")
    (root / "gone").unlink()
    disk.after_loss(root, tmp_path / "one", names="synced", deletions="done")
    disk.after_loss(root, tmp_path / "two", names="all", deletions="undone")
    first = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    second = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert first == {"kept": b"1", "torn": b"1"}
    assert second == first | {"nameless": b"1", "renamed": b"1", "new": b"", "gone": b"1"}
