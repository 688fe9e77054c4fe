"""What `feed` writes down of a chunk, in which order, and when too many bad rows stop it; without a Spark session."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from msgspec.json import encode as json_of

from outbox.errors import FormatTooNew, OutcomeUnknown, Refused
from spark_jobs import feed as feeding
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.places import Place
from spark_jobs.common.staging import StagedFile
from spark_jobs.feed import Feed, FeedReport, Pace, beside_input, records, report, send_chunk, set_aside
from spark_jobs.feeding import plan, shares
from spark_jobs.feeding.plan import ChunkRecord, Manifest, Snapshot, Target, open_plan
from spark_jobs.reading.judging import Shape

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
        format=2, queue="q", type="T", ids=["id"], shape={}, created_ms=0, rows=rows, digest="", files=[], chunks=1,
        stage="stage-1", messages=4, duplicates=0, quarantined=quarantined,
        staged=[StagedFile("stage-1/messages/m.parquet", "0", 4, 4)],
        rejected=[StagedFile("stage-1/rejected/r.parquet", reason, rows) for reason, rows in quarantined.items()],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "given", "count"), [(0, 0, 1), (50_000, 0, 1), (50_001, 0, 2), (12_800_001, 0, 256), (10, 300, 300)]
)
def test_a_chunk_has_50000_rows_and_a_feed_256_chunks_unless_their_number_is_given(
    rows: int, given: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage_valid(run: Place, folder: str, target: Target, found: Any, chunks: int, *more: Any) -> list[StagedFile]:
        return [StagedFile("m.parquet", str(chunks - 1), rows, rows)]

    monkeypatch.setattr(plan, "stage_valid", stage_valid)
    more: dict[str, Any] = {"now_ms": lambda: 0, "chunks": given, "crash_point": None}
    target, no_rows = Target("q", "T", ("id",), Shape()), cast(Any, None)
    made = plan.stage_messages(Folder(tmp_path), "s", target, Snapshot(rows, ""), no_rows, **more)
    assert (made.chunks, made.staged[0].value) == (count, str(count - 1))


@pytest.mark.parametrize(("bad", "is_refused"), [((1, 2), False), ((1, 1), True), ((2, 2), True)])
def test_a_plan_accounts_for_every_row(
    bad: tuple[int, int], is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "stage_valid", lambda *_: [StagedFile("m.parquet", "0", 6, 7)])
    monkeypatch.setattr(plan, "stage", lambda *_: [StagedFile(f"{count}.parquet", "x", count) for count in bad])
    for name in ("staged", "rejected", "fn"):
        monkeypatch.setattr(plan, name, MagicMock())
    more: dict[str, Any] = {"now_ms": lambda: 0, "chunks": 1, "crash_point": None}
    with pytest.raises(Refused, match="the input has changed while") if is_refused else nullcontext():
        made = plan.stage_messages(Folder(tmp_path), "s", TARGET, Snapshot(10, ""), MagicMock(), **more)
        assert (made.messages, made.duplicates, made.quarantined) == (6, 1, {"x": 3})


def test_queues_whose_names_differ_in_a_slash_have_quarantines_of_their_own(tmp_path: Path) -> None:
    feeds = [replace(job(tmp_path), target=replace(TARGET, queue=queue)) for queue in ("a/b", "a-b", "a.b", "ab")]
    assert len({str(feeding.quarantine_of(each, manifest())) for each in feeds}) == len(feeds)


def spark_with(*results: dict[str, Any]) -> Any:
    """A session in which tasks that send give these rows."""
    session = MagicMock()
    session.sparkContext.parallelize.return_value.mapPartitions.return_value.collect.return_value = list(results)
    session.range.return_value.mapInArrow.return_value.collect.return_value = []
    return session


def run_of(folder: Path) -> Folder:
    return Folder(folder / "progress") / "run"


def test_what_no_queue_takes_is_set_aside_before_its_chunk_is_done(tmp_path: Path) -> None:
    seen, run, rates, sent = list[str](), run_of(tmp_path), list[float](), shares.send
    with pytest.MonkeyPatch.context() as patch:

        def noted(spark: Any, folder: Place, files: Any, settings: Any, tasks: int, **given: Any) -> Any:
            rates.append(settings.rate_per_s * tasks)
            return sent(spark, folder, files, settings, tasks, **given)

        patch.setattr(feeding, "send", noted)
        made = job(tmp_path, seen=seen, rate_per_s=9.0, tasks=3)
        record = send_chunk(spark_with(SENT), made, run, manifest(), 0)
    assert rates == [9.0]
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


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"chunks": -1}, {"rate_per_s": -0.5}, {"timeout_s": -1.0}])
def test_a_pace_at_which_nothing_would_be_sent_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="not negative"):
        job(tmp_path, **wrong)


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


def test_a_feed_of_which_no_row_can_be_sent_fails(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"not one of 10 rows can be sent \(10 undecodable\); nothing was sent; see"):
        set_aside(spark_with(), job(tmp_path), run_of(tmp_path), manifest(10, undecodable=10))


def test_what_a_crash_left_out_of_the_quarantine_is_copied_again(tmp_path: Path) -> None:
    feed, run, rejected = (
        job(tmp_path),
        run_of(tmp_path),
        [{"id": "a", "reason": "x", "detail": None, "row": "a,\u00e9"}],
    )
    names = ["stage-1/rejected/a.parquet", "stage-1/rejected/b.parquet"]
    for name in names:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rejected), sink)
        run.create(name, sink.getvalue().to_pybytes())
    planned = structs.replace(manifest(10, x=2), rejected=[StagedFile(name, "x", 1) for name in names])
    target = Folder(tmp_path) / "quarantine" / "q.1"
    target.create("rows/a.json", b"whole")
    session = spark_with()

    def ran(copy: Any, schema: str) -> Any:
        numbers = iter([pa.RecordBatch.from_pydict({"id": list(range(session.range.call_args.args[1]))})])
        return SimpleNamespace(collect=lambda: [row for part in copy(numbers) for row in part.to_pylist()])

    session.range.return_value.mapInArrow.side_effect = ran
    set_aside(session, feed, run, planned)
    assert target.read("rows/a.json") == b"whole"
    assert target.read("rows/b.json") == '{"id":"a","reason":"x","row":"a,\u00e9"}\n'.encode()
    session.range.reset_mock()
    set_aside(session, feed, run, planned)
    assert not session.range.called
    gone = structs.replace(planned, rejected=[StagedFile("stage-1/rejected/gone.parquet", "x", 2)])
    with pytest.raises(Refused, match=r"gone\.parquet is gone.*nothing was sent"):
        set_aside(session, feed, run, gone)


def test_the_report_adds_up_all_runs_and_tells_this_one_apart() -> None:
    done = {
        chunk: ChunkRecord(chunk=chunk, accepted=10**chunk, sent=2 * 10**chunk, retries=chunk, oversize=["x"] * chunk)
        for chunk in range(4)
    }
    planned = structs.replace(manifest(5_000, oversize=2), messages=4_000, duplicates=7, chunks=4)
    made = report(planned, done, 2, seconds=1.0, progress="p")
    assert made == FeedReport(
        rows=5_000, messages=3_994, duplicates=7, quarantined={"oversize": 8}, sent=2_200, accepted=1_100, skipped=11,
        retries=5, chunks=4, chunks_skipped=2, seconds=1.0, progress="p",
    )  # fmt: skip
    assert "already done: 2 of 4 chunks" in made.text and "says p; remove it" in made.text


def test_a_run_sends_the_chunks_that_have_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, feed, sent = run_of(tmp_path), job(tmp_path), list[int]()
    for chunk in (2, 0):
        record = ChunkRecord(chunk=chunk, accepted=1, sent=1, retries=0, oversize=[])
        run.create(f"chunk-{chunk:05}.json", json_of(record))
    run.create("other.json", b"{}")

    def send(*given: Any) -> ChunkRecord:
        sent.append(given[-1])
        return ChunkRecord(chunk=given[-1], accepted=5, sent=5, retries=0, oversize=[])

    planned = structs.replace(manifest(), chunks=4)
    monkeypatch.setattr(feeding, "open_plan", lambda *_, **__: (run, planned))
    monkeypatch.setattr(feeding, "send_chunk", send)
    rows: Any = SimpleNamespace(
        survey=SimpleNamespace(rows=10), digest="d", files=(), listing=(), check_unchanged=lambda: None
    )
    made = feeding.run(spark_with(), feed, rows)
    assert sent == [1, 3] and (made.accepted, made.skipped, made.chunks_skipped) == (10, 2, 2)
    [fed] = Folder(tmp_path).list("quarantine/q.1/_fed-")
    assert json.loads(Folder(tmp_path).read(fed.name) or b"") == {"digest": "d", "files": []}
    monkeypatch.setattr(feeding, "open_plan", lambda *_, **__: (run, structs.replace(planned, quarantined={"x": 1})))
    with pytest.raises(Refused, match="nothing was sent"):
        feeding.run(spark_with(), job(tmp_path, bad_ratio_max=0), rows)
    assert sent == [1, 3]


def test_folders_are_beside_the_one_place_that_an_input_has(tmp_path: Path) -> None:
    assert beside_input(["file:///data/a.csv"]) == "/data/a.csv"
    assert beside_input(["file:///data/a.csv", "file:///data/b.csv"]) == "/data"
    for files in ([], ["file:///data/a.csv", "file:///other/b.csv"]):
        with pytest.raises(Refused, match="no single file or folder"):
            beside_input(files)
    with pytest.raises(Refused, match=r"from abfss://in@bank\S+; give progress=... and quarantine=..., folders"):
        beside_input(["abfss://in@bank.dfs.core.windows.net/a.csv"])


# The plan


TARGET, SNAPSHOT = Target("q", "T", ("id",), Shape()), Snapshot(10, "d")


UNCHANGED: Any = SimpleNamespace(check_unchanged=lambda: None)


def opened(
    folder: Folder, target: Target = TARGET, snapshot: Snapshot = SNAPSHOT, rows: Any = UNCHANGED
) -> tuple[Place, Manifest]:
    return open_plan(
        folder, target, snapshot, rows, now_ms=lambda: 1, token="2", chunks=1,
        crash_point=lambda point: None,
    )  # fmt: skip


def planned_in(folder: Path) -> Folder:
    """The folder of a feed that was planned before."""
    made = structs.replace(manifest(), shape=asdict(Shape()), digest="d")
    assert (Folder(folder) / "first").create("manifest.json", json_of(made))
    return Folder(folder)


@pytest.mark.parametrize(
    ("target", "snapshot", "text"),
    [
        (replace(TARGET, queue="other"), SNAPSHOT, "another feed"),
        (replace(TARGET, type="Other"), SNAPSHOT, "another feed"),
        (replace(TARGET, ids=("id", "day")), SNAPSHOT, "another feed"),
        (replace(TARGET, shape=Shape(session="account")), SNAPSHOT, "another feed"),
        (TARGET, Snapshot(11, "d"), "10 rows then, 11 now"),
        (TARGET, Snapshot(10, "e"), "has changed since its first run"),  # as many rows, and others
    ],
)
def test_a_plan_is_for_its_own_feed_and_its_own_input(
    target: Target, snapshot: Snapshot, text: str, tmp_path: Path
) -> None:
    assert opened(planned_in(tmp_path))[1].stage == "stage-1"
    with pytest.raises(Refused, match=text):
        opened(Folder(tmp_path), target, snapshot)


def test_a_plan_of_a_later_version_is_not_guessed_at(tmp_path: Path) -> None:
    (Folder(tmp_path) / "first").create("manifest.json", b'{"format": 3, "surprise": 1}')
    with pytest.raises(FormatTooNew, match="use the version that wrote it"):
        opened(Folder(tmp_path))


def test_a_plan_of_the_first_format_is_to_be_finished_by_its_own_version(tmp_path: Path) -> None:
    (Folder(tmp_path) / "first").create("manifest.json", b'{"format": 1, "queue": "q"}')
    with pytest.raises(Refused, match="let that version finish this feed, or, if nothing of it was sent"):
        opened(Folder(tmp_path))


def test_stages_that_nobody_works_at_are_removed_and_the_planned_one_never_is(tmp_path: Path) -> None:
    folder, day_s = planned_in(tmp_path), 86_400
    for name, age_s in (("stage-1", 9 * day_s), ("stage-old", day_s + 60), ("stage-young", day_s - 60)):
        (folder / "first" / name).create("messages/a.parquet", b"1")
        os.utime(tmp_path / "first" / name / "messages" / "a.parquet", (time.time() - age_s,) * 2)
    opened(folder)
    assert sorted(path.name for path in (tmp_path / "first").glob("stage-*")) == ["stage-1", "stage-young"]


def test_of_two_plans_at_once_the_first_counts_and_nothing_is_left_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def staged(run: Folder, stage: str, *_: Any, **__: Any) -> Manifest:
        planned_in(tmp_path)  # a twin was first
        for name in (stage, "stage-1"):
            run.create(f"{name}/messages/a.parquet", b"1")
        return structs.replace(manifest(), stage=stage)

    monkeypatch.setattr(plan, "stage_messages", staged)
    run, found = opened(Folder(tmp_path))
    assert (found.stage, found.digest) == ("stage-1", "d")
    assert [item.name for item in run.list("stage-")] == ["stage-1/messages/a.parquet"]


def test_of_an_input_that_changed_while_it_was_judged_there_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed() -> None:
        raise Refused("it has changed")

    monkeypatch.setattr(plan, "stage_messages", lambda *_, **__: manifest())
    with pytest.raises(Refused, match="it has changed"):
        opened(Folder(tmp_path), rows=SimpleNamespace(check_unchanged=changed))
    assert (Folder(tmp_path) / "first").read("manifest.json") is None


def test_an_input_with_its_own_times_has_a_plan_for_each_state_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "stage_messages", lambda *_, **__: manifest())
    timed = replace(TARGET, shape=Shape(created="at"))
    runs = [str(opened(Folder(tmp_path), timed, Snapshot(10, digest * 32))[0]).rpartition("/")[2] for digest in "ab"]
    assert runs == ["a" * 16, "b" * 16] and str(opened(Folder(tmp_path))[0]).endswith("/first")
