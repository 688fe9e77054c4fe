"""What counts as set aside is what the feeds of an input, as it is now, have set aside, and no others' rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs import feed as feed_job
from spark_jobs.common.folder import Folder
from spark_jobs.comparing.given import WHOLE_ID
from spark_jobs.comparing.quarantines import Listed, Run, read_quarantine
from spark_jobs.feeding.aside import Fed
from spark_jobs.reconcile import main
from tests.spark.test_reconcile_inputs import append, moved

pytestmark = pytest.mark.spark

A1, A2, B1 = ("a.csv", 10, "1"), ("a.csv", 10, "2"), ("b.csv", 20, "1")


def state(*files: Listed, digest: str = "now", **ids: Any) -> Any:
    """An input of these files; `ids` are those of a file, by its name without an ending."""
    return SimpleNamespace(listing=files, digest=digest, ids_of=lambda name: ids[name.partition(".")[0]])


def fed(*files: Listed, digest: str = "then") -> Fed:
    return Fed(digest=digest, files=list(files))


def left(folder: Path, run: str, *ids: str, of: Fed | None, unsent: str = "") -> None:
    """What a feed leaves behind."""
    place = Folder(folder) / run
    if of is not None:
        place.create(of.name, of.encoded)
    if ids:
        place.create("rows/1.json", b"\n".join(json.dumps({"id": id, "row": "x"}).encode() for id in ids))
    if unsent:
        place.create("sending-00000.json", json.dumps({"id": unsent, "row": None}).encode())


def found(spark: Any, folder: Path, of: Any, said: list[str] | None = None) -> dict[str, int] | None:
    frame = read_quarantine(spark, Folder(folder), of, (said if said is not None else []).append)
    return None if frame is None else {row["id"]: row["count"] for row in frame.collect()}


def test_a_feed_is_of_each_state_that_it_has_read() -> None:
    run, frame = Run("feed", [fed(A1, digest="one"), fed(A2, digest="two")]), Run("frame", [fed()])
    assert [run.is_of_files([file]) for file in (A1, A2, B1)] == [True, True, False]
    others = [state(B1, digest=digest) for digest in ("one", "two", "then")]
    assert [run.is_of(other) for other in others] == [True, True, False]
    assert (run.is_of_a_frame, frame.is_of_a_frame, frame.is_of(others[-1])) == (False, True, False)


def test_a_feed_of_another_state_counts_for_nothing(spark: Any, tmp_path: Path) -> None:
    left(tmp_path, "q.1", "t1", of=fed(A1))
    left(tmp_path, "q.2", "t2", "t2", unsent="t3", of=fed(A2, digest="now"))
    left(tmp_path, "q.3", "t4", of=fed(B1))
    left(tmp_path, "q.4", "t5", of=None)  # of a frame, of which nobody can tell
    assert found(spark, tmp_path, state(A1, digest="other")) == {"t1": 1}
    assert found(spark, tmp_path, state(("a.csv", 10, "a copy"))) == {"t2": 2, "t3": WHOLE_ID}
    said = list[str]()
    assert found(spark, tmp_path, state(A1, B1, digest="other"), said) == {"t5": 1} and not said


def test_where_no_feed_has_read_the_input_as_it_is_nothing_is_set_aside_and_that_is_said(
    spark: Any, tmp_path: Path
) -> None:
    said = list[str]()
    assert found(spark, tmp_path, state(A1), said) is None and not said
    left(tmp_path, "q.1", "t1", of=fed(A1))
    (tmp_path / "notes.json").write_text('{"id": "t2"}')  # of no feed
    assert found(spark, tmp_path, state(A2), said) is None
    assert said == [
        f"reconcile: no feed of the input as it is now left anything in {tmp_path}; no row counts as set aside"
    ]


def test_of_several_feeds_of_the_same_rows_each_must_have_set_a_row_aside(spark: Any, tmp_path: Path) -> None:
    left(tmp_path, "q.1", "t1", "t1", "t2", of=fed(A1))
    left(tmp_path, "other.2", "t1", "t3", of=fed(A2, digest="now"))
    assert found(spark, tmp_path, state(A1)) == {"t1": 1}
    left(tmp_path, "third.3", of=fed(A1))  # it has sent all of them
    assert found(spark, tmp_path, state(A1)) is None


def test_what_a_watch_set_aside_of_files_as_they_are_is_added_up(spark: Any, tmp_path: Path) -> None:
    left(tmp_path, "q.0", "t9", of=fed(A2, B1))
    left(tmp_path, "a.csv/q.1", "t1", "t2", of=fed(A1))
    left(tmp_path, "a.csv/q.2", "t1", of=fed(A2))
    left(tmp_path, "b.csv/q.3", "t1", unsent="t3", of=fed(B1))
    left(tmp_path, "gone.csv/q.4", "t8", of=fed(("gone.csv", 1, "1")))
    left(tmp_path, "c.csv/q.5", "t1", of=None)  # of which nobody can tell
    ids = spark.createDataFrame([("t1",), ("t3",), ("t3",), ("t4",)], "id string")
    assert found(spark, tmp_path, state(A1, B1, b=ids)) == {"t1": 2, "t2": 1, "t3": 2}
    assert found(spark, tmp_path, state(("a.csv", 1, "3"), B1, ("c.csv", 1, "1"), b=ids)) == {"t1": 2, "t3": 2}


def test_a_row_that_was_corrected_in_place_and_fed_again_is_no_longer_set_aside(
    spark: Any, broker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ledger = tmp_path / "a.csv", tmp_path / "ledger"
    feeding = ["--input", str(path), "--queue", "fed", "--type", "T", "--created", "at", "--connection"]
    feeding += [broker.connection, "--schema", "id string, amount bigint, at string", "--quiet"]
    comparing = ["--input", str(path), "--ledger", str(ledger), "--quiet", "--json"]
    append(ledger, moved("t1"))
    for amount, lost, aside in (("x", 0, 1), ("5", 1, 0)):
        path.write_text(f"id,amount,at\nt1,1,2026-11-01T00:00:00Z\nt3,{amount},2026-11-01T00:00:00Z\n")
        assert feed_job.main(feeding) == 0
        capsys.readouterr()
        assert main(comparing) == lost
        told = json.loads(capsys.readouterr().out)
        assert (told["found"]["lost"], told["quarantined"]) == (lost, aside)
    append(ledger, moved("t3"))
    assert main(comparing) == 0 and len(list((tmp_path / "a.csv.quarantine").iterdir())) == 2
    broker.take("fed")


def test_ids_that_no_row_has_are_refused_and_no_rows_are_no_verdict(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id":"t1"}\n')
    (tmp_path / "b.csv").write_text("id\n")
    append(tmp_path / "ledger", moved("t1"))
    given = ["--ledger", str(tmp_path / "ledger"), "--quiet"]
    assert main(["--input", str(tmp_path / "a.jsonl"), "--id", "transfer_id", *given]) == 1
    assert "there is no column 'transfer_id' in any row" in capsys.readouterr().err
    assert main(["--input", str(tmp_path / "b.csv"), *given]) == 0
    assert "no inputs, nothing was compared" in capsys.readouterr().out
