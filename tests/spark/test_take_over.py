"""A ledger of the form before Delta is taken over in place, whole or not yet; and a build that does not know stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from outbox.errors import CorruptRecord, Refused
from spark_jobs import take_over as command
from spark_jobs.common.folder import Folder
from spark_jobs.draining.manifest import Commit, ManifestLog, State
from spark_jobs.draining.merging import Merger
from spark_jobs.draining.taking_over import TakenOver, take_over
from spark_jobs.ledger import ledger_files, merge, sweep
from tests.spark.ledgers import Died, conflicts, dies_at, ids, land, landed, older_form

WHOLE = TakenOver(rows=3, files=2, conflicts=1, waiting=1)


def test_rows_conflicts_and_what_waits_are_taken_over(tmp_path: Path) -> None:
    older_form(tmp_path)
    assert take_over(Folder(tmp_path)) == WHOLE
    assert ids(tmp_path) == ["a", "b", "c"] and conflicts(tmp_path) == [("a", "2")]
    assert landed(tmp_path) == ["merged", "waiting"]
    merged = merge(tmp_path)
    assert (merged.version, merged.landed, merged.added, merged.duplicates) == (1, 2, 1, 1)
    assert ids(tmp_path) == ["a", "b", "c", "d"] and landed(tmp_path) == []
    land(tmp_path, "again", "a", body="2", fingerprint="f2")
    assert merge(tmp_path).conflicts == 1 and conflicts(tmp_path) == [("a", "2")]
    assert sweep(tmp_path, age_s=0) == 1  # the file of the lost commit
    assert sorted(path.parent.name for path in (tmp_path / "data").rglob("part-*")) == ["00000001-x-0", "00000002-y-0"]


@pytest.mark.parametrize("point", ["closed", "conflicts", "created"])
def test_a_take_over_that_dies_anywhere_is_done_again(tmp_path: Path, point: str) -> None:
    older_form(tmp_path)
    for _ in range(2):
        with pytest.raises(Died):
            take_over(Folder(tmp_path), dies_at(point))
    if point in ("closed", "conflicts"):
        with pytest.raises(Refused, match="before Delta"):
            merge(tmp_path)
    assert take_over(Folder(tmp_path)) == take_over(Folder(tmp_path)) == WHOLE
    assert merge(tmp_path).added == 1
    assert ids(tmp_path) == ["a", "b", "c", "d"] and conflicts(tmp_path) == [("a", "2")]
    assert len(list((tmp_path / "_log").iterdir())) == 1


def test_a_take_over_that_dies_before_its_last_step_and_is_merged_into_is_finished(tmp_path: Path) -> None:
    older_form(tmp_path)
    with pytest.raises(Died):
        take_over(Folder(tmp_path), dies_at("created"))
    merge(tmp_path)
    assert take_over(Folder(tmp_path)) == TakenOver(rows=3, files=2, conflicts=1, waiting=0)
    assert ids(tmp_path) == ["a", "b", "c", "d"]


def test_consume_on_an_older_form_names_the_command(tmp_path: Path) -> None:
    older_form(tmp_path)
    with pytest.raises(Refused) as refused:
        Merger(Folder(tmp_path))
    assert f"python -m spark_jobs.take_over --ledger {tmp_path}" in str(refused.value)
    assert not (tmp_path / "_delta_log").exists() and landed(tmp_path) == ["merged", "waiting"]


def test_a_build_that_writes_the_old_log_loses_its_next_version_and_stops(tmp_path: Path) -> None:
    """As builds before did: link the next name, and on a loss decode what is there."""
    older_form(tmp_path)
    take_over(Folder(tmp_path))
    [closing] = (tmp_path / "_log").iterdir()
    assert closing.name == f"{3:020}.json"
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(closing.read_bytes(), type=Commit)


def test_a_commit_that_overtakes_the_take_over_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older_form(tmp_path)
    close, late = ManifestLog.close, [True]

    def overtaken(self: ManifestLog, state: State) -> bool:
        if late:
            late.clear()
            (tmp_path / "data/00000002-lost-0").rename(tmp_path / "data/00000003-z-0")
            third = {"add": ["data/00000003-z-0/part-0.parquet"], "conflicts": [], "consumed": [], "rows": 1}
            (tmp_path / "_log" / f"{3:020}.json").write_text(json.dumps({"version": 3, **third}))
        return close(self, state)

    monkeypatch.setattr(ManifestLog, "close", overtaken)
    assert take_over(Folder(tmp_path)).files == 3
    assert "data/00000003-z-0/part-0.parquet" in ledger_files(tmp_path)


def test_a_ledger_that_was_never_merged_into_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "_log").mkdir()
    (tmp_path / "_log" / f"{1:020}.json").write_text(
        json.dumps({"version": 1, "add": [], "conflicts": [], "consumed": [], "rows": 0})
    )
    assert take_over(Folder(tmp_path)) == TakenOver(rows=0, files=0, conflicts=0, waiting=0)
    assert DeltaTable(str(tmp_path)).count() == 0


def test_two_ledgers_of_one_name_are_refused(tmp_path: Path) -> None:
    merge(tmp_path)
    older_form(tmp_path)
    for attempt in (lambda: merge(tmp_path), lambda: take_over(Folder(tmp_path))):
        with pytest.raises(Refused, match="two ledgers of one name, _log and _delta_log"):
            attempt()
    assert len(list((tmp_path / "_log").iterdir())) == 2


def test_a_file_that_is_missing_stops_a_take_over_and_a_restored_one_ends_it(tmp_path: Path) -> None:
    older_form(tmp_path)
    file = tmp_path / "data/00000002-y-0/part-0.parquet"
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(CorruptRecord, match=r"00000002-y-0/part-0\.parquet is not there, and the ledger names it"):
        take_over(Folder(tmp_path))
    file.write_bytes(data)
    assert take_over(Folder(tmp_path)) == WHOLE


def test_a_stored_state_and_what_follows_it_are_read(tmp_path: Path) -> None:
    older_form(tmp_path)
    log = tmp_path / "_log"
    whole, _ = ManifestLog(Folder(tmp_path)).read()
    first = State().after(msgspec.json.decode((log / f"{1:020}.json").read_bytes(), type=Commit))
    for state in (State(), first):
        (log / f"{state.version:020}.state").write_bytes(msgspec.json.encode(state))
    (log / f"{1:020}.json").unlink()  # behind the state, so nobody needs it
    assert ManifestLog(Folder(tmp_path)).read() == (whole, False)
    assert take_over(Folder(tmp_path)) == WHOLE


def test_a_missing_version_is_noticed(tmp_path: Path) -> None:
    older_form(tmp_path)
    (tmp_path / "_log" / f"{1:020}.json").unlink()
    with pytest.raises(CorruptRecord, match="no version 1 but 2"):
        take_over(Folder(tmp_path))


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    older_form(tmp_path)
    (tmp_path / "_log" / f"{1:020}.json").write_bytes(b'{"version": 1')
    with pytest.raises(CorruptRecord, match=r"00001\.json cannot be read"):
        take_over(Folder(tmp_path))


def test_one_command_takes_a_ledger_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--ledger", str(tmp_path)]) == 1
    assert "has no ledger of the form before Delta" in capsys.readouterr().err
    older_form(tmp_path)
    assert command.main(["--ledger", str(tmp_path), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told == {"rows": 3, "files": 2, "conflicts": 1, "waiting": 1}
    assert command.main(["--ledger", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "3 rows in 2 files are a Delta table now; 1 landed files wait\n"
