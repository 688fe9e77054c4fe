"""The survey that a driver takes while Spark starts: what tasks would find, of the same files, or nothing; no Spark."""

from __future__ import annotations

import gzip
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbox.errors import OutboxError, Refused
from spark_jobs.reading import ahead
from spark_jobs.reading import opened as opening
from spark_jobs.reading.ahead import beside, surveyed_ahead
from spark_jobs.reading.files import files_at
from spark_jobs.reading.input import Input
from spark_jobs.reading.judging import Judge, Shape
from spark_jobs.reading.opened import opened
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import Survey, asked_of, begun_here, surveyed

JUDGE = Judge(("id",), Shape(session="s"))


def found_of(path: Path, **options: Any) -> ahead.Ahead | None:
    return surveyed_ahead(Source(str(path), **options), files_at(str(path), {}), JUDGE)


def input_of(path: Path, before: ahead.Ahead | None, monkeypatch: pytest.MonkeyPatch) -> Input:
    """An input whose tasks find one row."""
    monkeypatch.setattr(Input, "_told", lambda *_: [Survey(rows=1, found=["id", "s"])])
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    return Input(session, Source(str(path)), JUDGE, files_at(str(path), {}), before)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_it_is_what_tasks_find(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many spans, over several files."""
    line = '{{"id":"{0}","s":"{0}\\n"}}\n' if kind == "json" else '{0},"a,""{0}"\n'
    for name in "ab":
        rows = "".join(line.format(n) for n in range(700))
        (tmp_path / f"{name}.{kind}").write_text(rows if kind == "json" else f"id,s\n{rows}")
    source, files = Source(str(tmp_path), kind), files_at(str(tmp_path), {})
    monkeypatch.setattr(opening, "SPAN_BYTES_MIN", 300)
    cut, tasks = opened(source, files, 50), Survey()
    assert len(cut.spans) > 20
    for span in begun_here(cut.reading, cut.spans):
        tasks.add(surveyed(cut.reading, span, asked_of(cut.reading, JUDGE)))
    found = surveyed_ahead(source, files, JUDGE)
    assert found is not None and found.survey == tasks and tasks.rows == 1_400
    assert [file.name for file in found.listed] == [f"a.{kind}", f"b.{kind}"]


def test_large_inputs_are_left_to_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.csv").write_bytes(b"id,s\na,1\n")
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"id,s\na,1\n"))
    assert found_of(tmp_path / "in.csv") is not None and found_of(tmp_path / "in.csv.gz") is None
    assert found_of(tmp_path / "in.csv", format="parquet") is None
    for name, value in (("AHEAD_BYTES_MAX", 8), ("AHEAD_FILE_COUNT_MAX", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(ahead, name, value)
            assert found_of(tmp_path / "in.csv") is None


def test_what_is_wrong_with_an_input_is_left_to_be_said_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"id,id\na,1\n")
    assert found_of(tmp_path / "in.csv") is None
    with pytest.raises(Refused, match="rename all but one"):
        opened(Source(str(tmp_path / "in.csv")), files_at(str(tmp_path / "in.csv"), {}), 1)


def test_it_counts_for_the_same_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"id,s\na,1\nb,2\n")
    before = found_of(path)
    assert input_of(path, before, monkeypatch).survey.rows == 2
    assert input_of(path, None, monkeypatch).survey.rows == 1
    path.write_bytes(b"id,s\na,1\nb,3\n")
    assert input_of(path, before, monkeypatch).survey.rows == 1


def test_a_column_that_no_row_has_is_refused_after_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"id":"a"}\n')
    with pytest.raises(Refused, match="no column 's' in any row"):
        _ = input_of(path, found_of(path), monkeypatch).survey


def test_what_runs_beside_a_wait_is_over_behind_it_and_switches_often_until_then() -> None:
    usual_s, seen_s = sys.getswitchinterval(), list[float]()
    with beside(lambda: seen_s.append(sys.getswitchinterval())) as done:
        pass
    assert done.done() and seen_s == [pytest.approx(ahead.SWITCH_S)] and sys.getswitchinterval() == usual_s
    with pytest.raises(OutboxError), beside(lambda: 7) as found:
        raise Refused("no Java")
    assert found.result() == 7 and sys.getswitchinterval() == usual_s


def test_an_error_does_not_wait_for_what_runs_beside() -> None:
    """An interrupt, or that there is no Java, is told at once."""
    go_on = threading.Event()
    with pytest.raises(KeyboardInterrupt), beside(lambda: go_on.wait(20)) as found:
        raise KeyboardInterrupt
    assert not found.done()
    go_on.set()
    assert found.result(20)
