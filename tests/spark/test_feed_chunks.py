"""What `feed` writes down of a chunk, in which order, and when too many bad rows stop it; without a Spark session."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.feed import Feed, Pace, records, send_chunk, set_aside
from spark_jobs.feeding.plan import Manifest, Target
from spark_jobs.transforms import Shape

SENT = {"accepted": 3, "sent": 4, "retries": 1, "oversize": ["b"], "failed": None}


def job(folder: Path, *, seen: list[str] | None = None, **pace: Any) -> Feed:
    """A feed whose crash points note which files are there."""

    def crash_point(name: str) -> None:
        if seen is not None:
            files = sorted(path.name for path in folder.rglob("*.json"))
            seen.append(f"{name}: {', '.join(files)}")

    source = cast(Any, SimpleNamespace(access=lambda: None))
    target = Target("q", "T", ("id",), Shape())
    places = (Folder(folder / "progress"), Folder(folder / "quarantine"))
    return Feed(target, source, *places, Pace(**pace), lambda text: None, lambda: 0, crash_point)


def manifest(rows: int = 10, **quarantined: int) -> Manifest:
    return Manifest(
        format=1, queue="q", type="T", ids=["id"], shape={}, created_ms=0, rows=rows, digest="", files=[], chunks=1,
        stage="stage-1", messages=4, duplicates=0, quarantined=quarantined,
    )  # fmt: skip


def spark_with(*results: dict[str, Any]) -> Any:
    """A session in which sending a frame gives these rows."""
    session = MagicMock()
    frame = session.read.schema.return_value.parquet.return_value.repartition.return_value
    frame.select.return_value.mapInArrow.return_value.collect.return_value = list(results)
    return session


def run_of(folder: Path) -> Folder:
    (folder / "progress" / "run" / "stage-1" / "messages" / "chunk=0").mkdir(parents=True)
    return Folder(folder / "progress") / "run"


def test_what_no_queue_takes_is_set_aside_before_its_chunk_is_done(tmp_path: Path) -> None:
    seen, run = list[str](), run_of(tmp_path)
    record = send_chunk(spark_with(SENT), job(tmp_path, seen=seen), run, manifest(), 0)
    assert seen == ["sent: ", "recorded: chunk-00000.json, sending-00000.json"]
    [aside] = tmp_path.rglob("sending-*.json")
    assert [json.loads(line)["id"] for line in aside.read_text().splitlines()] == ["b"]
    assert records(run) == {0: record} and (record.accepted, record.oversize) == (3, ["b"])


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_chunk_of_which_a_part_was_not_sent_is_not_done(tmp_path: Path, is_whole: bool) -> None:
    run, failed = run_of(tmp_path), SENT | {"failed": "no success for 120 s"}
    session = spark_with(failed) if is_whole else spark_with(SENT, failed)
    with pytest.raises(OutcomeUnknown, match="chunk 1 of 1: no success"):
        send_chunk(session, job(tmp_path), run, manifest(), 0)
    assert records(run) == {}


def test_a_chunk_for_which_nobody_can_sign_in_is_not_done(tmp_path: Path) -> None:
    def fails() -> Any:
        raise GaveUpError("no credential")

    run, made = run_of(tmp_path), job(tmp_path)
    made.source.access = fails  # type: ignore[method-assign]  # a double
    with pytest.raises(OutcomeUnknown, match="no credential"):
        send_chunk(spark_with(), made, run, manifest(), 0)
    assert records(run) == {}


@pytest.mark.parametrize(("bad_count", "is_refused"), [(4, False), (5, False), (6, True)])
def test_more_bad_rows_than_the_ratio_stop_a_feed_before_it_sends(
    tmp_path: Path, bad_count: int, is_refused: bool
) -> None:
    feed, run, planned = job(tmp_path, bad_ratio_max=0.5), run_of(tmp_path), manifest(10, oversize=bad_count)
    with pytest.raises(Refused, match="6 of 10 rows cannot be sent") if is_refused else nullcontext():
        set_aside(spark_with(), feed, run, planned)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_copy_to_the_quarantine_that_a_crash_cut_short_is_made_again(tmp_path: Path, is_whole: bool) -> None:
    feed, run, session = job(tmp_path), run_of(tmp_path), spark_with()
    target = tmp_path / "quarantine" / "q.run" / "rows"
    target.mkdir(parents=True)
    if is_whole:
        (target / "_SUCCESS").touch()
    set_aside(session, feed, run, manifest(10, oversize=1))
    assert session.read.parquet.called is not is_whole
