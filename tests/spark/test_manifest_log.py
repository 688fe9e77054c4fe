"""The log of a ledger: one winner a version, nothing half written, nothing missing unnoticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from outbox.errors import CorruptRecord, Refused
from spark_jobs import ledger
from spark_jobs.common.folder import Folder
from spark_jobs.draining import manifest
from spark_jobs.draining.manifest import Commit, ManifestLog, State
from spark_jobs.ledger import Merged, merge, sweep


def commit(version: int, name: str = "x") -> Commit:
    return Commit(version=version, add=[f"data/{name}"], conflicts=[], consumed=[f"{name}.parquet"], rows=1)


def test_of_several_writers_of_a_version_one_wins(disk_path: Path) -> None:
    def contend(writer: int) -> int:
        log, won = ManifestLog(disk_path), 0
        while (state := log.read()).version < 40:
            won += log.append(state, commit(state.version + 1, f"{writer}-{state.version}"))
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(contend, range(4))) == 40
    assert len(set(ManifestLog(disk_path).read().files)) == 40


def test_a_missing_version_is_noticed(disk_path: Path) -> None:
    log = ManifestLog(disk_path)
    for _ in range(3):
        state = log.read()
        log.append(state, commit(state.version + 1))
    (log.folder.path / f"{2:020}.json").unlink()
    with pytest.raises(CorruptRecord, match="no version 2 but 3"):
        log.read()


def test_reading_starts_at_the_last_stored_state(disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "STATE_EVERY", 4)
    log = ManifestLog(disk_path)
    for version in range(1, 7):
        log.append(log.read(), commit(version, str(version)))
    (log.folder.path / f"{1:020}.json").unlink()  # behind the state of version 4, so nobody needs it
    assert log.read().files == [f"data/{version}" for version in range(1, 7)]
    assert log.read().rows == 6


def test_a_damaged_commit_is_named(disk_path: Path) -> None:
    log = ManifestLog(disk_path)
    log.append(log.read(), commit(1))
    (log.folder.path / f"{1:020}.json").write_bytes(b'{"version": 1')
    with pytest.raises(CorruptRecord, match=r"00001\.json cannot be read"):
        log.read()


def test_who_loses_a_version_leaves_nothing_of_it_and_decides_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_landing").mkdir()
    for name in ("theirs", "ours"):
        (tmp_path / "_landing" / f"{name}.parquet").touch()
    asked = list[tuple[int, list[str]]]()

    def prepared(spark: Any, folder: Folder, state: State, waiting: list[str], name: str) -> tuple[Merged, Commit]:
        asked.append((state.version, waiting))
        for place in ("data", "_conflicts"):
            (tmp_path / place / name).mkdir(parents=True)
        if len(asked) == 1:
            assert ManifestLog(tmp_path).append(state, commit(1, "theirs"))
        made = Commit(version=state.version + 1, add=[f"data/{name}"], conflicts=[], consumed=waiting, rows=1)
        return Merged(version=made.version), made

    monkeypatch.setattr(ledger, "prepare", prepared)
    assert merge(cast(Any, None), tmp_path).version == 2
    assert asked == [(0, ["ours.parquet", "theirs.parquet"]), (1, ["ours.parquet"])]
    for place in ("data", "_conflicts"):
        [kept] = (tmp_path / place).iterdir()
        assert ManifestLog(tmp_path).read().files == ["data/theirs", f"data/{kept.name}"]
    assert merge(cast(Any, None), tmp_path) == Merged(version=2) and len(asked) == 2  # nothing waits

    (tmp_path / "_landing" / "late.parquet").touch()
    monkeypatch.setattr(ManifestLog, "append", lambda *_: False)
    with pytest.raises(Refused, match="20 commits were lost"):
        merge(cast(Any, None), tmp_path)
    assert len(asked) == 22 and len(list((tmp_path / "data").iterdir())) == 1


@pytest.mark.parametrize("age_s", [0.0, 3_600.0])
def test_a_sweep_removes_what_is_merged_or_orphaned_and_nothing_else(tmp_path: Path, age_s: float) -> None:
    assert ManifestLog(tmp_path).append(State(), commit(1, "one/part-0"))
    names = {"_landing/merged.parquet", "_landing/new.parquet", "_landing/dead.tmp", "data/one/x", "data/orphan/x"}
    names |= {"_conflicts/two/x", "_conflicts/orphan/x"}
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    merged = Commit(version=2, add=[], conflicts=["_conflicts/two/x"], consumed=["merged.parquet"], rows=0)
    assert ManifestLog(tmp_path).append(ManifestLog(tmp_path).read(), merged)
    assert sweep(tmp_path, age_s=age_s) == (0 if age_s else 4)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    left -= {name for name in left if name.startswith("_log/")}
    orphans = {"data/orphan/x", "_conflicts/orphan/x"}
    gone: set[str] = set() if age_s else {"_landing/merged.parquet", "_landing/dead.tmp", *orphans}
    assert left == names - gone
