"""The benchmarks measure systems that keep the promise: each run checks itself, and the check can fail."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import profile_w1, run
from benchmarks.peers import bare, floor
from outbox_bench import report, sqlite, w1
from outbox_bench.apart import Apart
from outbox_bench.measure import Measurement, Stopwatch, inputs, measured

ONE = Measurement(
    system="s",
    variant="v",
    in_flight=1,
    durable=True,
    messages_per_s=100.0,
    p50_ms=1.0,
    p99_ms=2.0,
    cpu_us=3.0,
    flushes_per_message=1.0,
)


@pytest.mark.parametrize("variant", sqlite.VARIANTS)
def test_the_sqlite_peer_applies_each_message_once(variant: str, disk_path: Path) -> None:
    found = sqlite.run(variant, disk_path, 300)
    assert found.messages_per_s > 0 and found.durable == variant.endswith("full")


@pytest.mark.parametrize("variant", floor.VARIANTS)
def test_the_floor_logs_each_message_once(variant: str, disk_path: Path) -> None:
    found = floor.run(variant, disk_path, 300)
    assert found.flushes_per_message == pytest.approx(-(-300 // found.in_flight) / 300)


def test_the_bare_loop_applies_each_message_once(disk_path: Path) -> None:
    found = bare.run("flush64", disk_path, 300)
    assert found.flushes_per_message == pytest.approx(5 / 300) and found.durable


def test_a_message_that_is_lost_spoils_the_bare_run(disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "inputs", lambda count: inputs(count)[1:])
    with pytest.raises(AssertionError, match="do not publish"):
        bare.run("flush64", disk_path, 100)


@pytest.mark.parametrize("count_max", [1, 64])
def test_a_duplicate_has_no_second_effect_in_the_sqlite_peer(count_max: int, disk_path: Path) -> None:
    messages = inputs(200)
    with sqlite3.connect(disk_path / "w1.sqlite", isolation_level=None) as connection:
        bodies = [sqlite.encode(message) for message in (*messages[:50], *messages, *messages[100:])]
        sqlite.prepare(connection, bodies, "full")
        consumed = sqlite.one_at_a_time(connection) if count_max == 1 else sqlite.in_batches(connection, count_max)
        sqlite.verify(connection, len(messages))
    connection.close()
    assert len(consumed[0]) == len(bodies)


def test_a_lost_message_spoils_the_sqlite_run(disk_path: Path) -> None:
    connection = sqlite3.connect(disk_path / "w1.sqlite", isolation_level=None)
    sqlite.prepare(connection, [sqlite.encode(message) for message in inputs(100)[1:]], "full")
    sqlite.in_batches(connection, 64)
    with pytest.raises(AssertionError, match="do not publish"):
        sqlite.verify(connection, 100)
    connection.close()


def test_a_doubled_record_spoils_the_floor_run(disk_path: Path) -> None:
    floor.run("flush64", disk_path, 100)
    log = disk_path / "log"
    data = log.read_bytes().rstrip(b"\0")
    log.write_bytes(data + data + bytes(floor.HEADER.size))
    with pytest.raises(AssertionError, match="do not publish"):
        floor.verify(log, 100)


def test_a_run_apart_that_fails_reports_why(disk_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"floor flush0 failed:(.|\n)*KeyError: 'flush0'"):
        Apart(floor).run("flush0", disk_path, 100)


def test_a_row_reports_the_median_and_both_extremes() -> None:
    repeats = [replace(ONE, messages_per_s=rate) for rate in (100.0, 900.0, 300.0)]
    (row,) = report.rows(repeats)
    assert row["messages_per_s"] == {"median": 300.0, "min": 100.0, "max": 900.0}
    assert (row["system"], row["variant"], row["in_flight"], row["durable"]) == ("s", "v", 1, True)
    assert "300 [100..900]" in report.table([row])
    assert [row[name]["median"] for name in report.FIGURES] == [300, 1, 2, 3, 1]
    assert "1.000 [1.000..1.000]  2.000 [2.000..2.000]  3.0 [3.0..3.0]  1.0000" in report.table([row])


def test_a_report_names_its_commit_and_whether_code_differs_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        name = ("-c", "user.name=n", "-c", "user.email=n@localhost")
        return subprocess.run(
            ["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    file, page = tmp_path / "outbox_bench" / "report.py", tmp_path / "docs" / "page.md"
    for each in (file, page):
        each.parent.mkdir()
        each.write_text("one")
    git("init", "-q")
    assert report.code(file) == f"outbox-azure {report.installed()}"  # as where it is installed within a clone
    git("add", "outbox_bench", "docs")
    git("commit", "-qm", "one")
    named = f"commit {git('rev-parse', 'HEAD')[:8]}"
    page.write_text("two")  # as a benchmark before this one does
    assert report.code(file) == named
    file.write_text("two")
    assert report.code(file) == f"{named}, with changes"
    assert f"Measured at {report.code()}." in report.circumstances(tmp_path)


def test_a_run_is_measured_in_the_units_of_its_figures() -> None:
    watch = Stopwatch()
    watch.wall_s, watch.cpu_s = 2.0, 0.5
    latencies_s = [n / 1_000 for n in range(200, 0, -1)]
    found = measured(
        system="s", variant="v", in_flight=4, durable=False, watch=watch, latencies_s=latencies_s, flush_count=50
    )
    assert found == Measurement("s", "v", 4, False, 100.0, 101.0, 199.0, 2_500.0, 0.25)  # a second, ms, ms, µs


def test_a_run_publishes_table_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run.main(["--repeats", "2", "--messages", "200", "--only", "floor", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "w1.json").read_text())
    assert code == 0 and [(row["variant"], row["in_flight"]) for row in rows] == [("default", 1), ("default", 64)]
    assert (tmp_path / "w1.txt").read_text() in capsys.readouterr().out
    assert not (tmp_path / "log.json").exists()


@pytest.mark.soak  # as `make bench`, smaller
def test_a_run_publishes_the_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run.main(["--repeats", "1", "--records", "400", "--only", "log", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "log.json").read_text())
    assert code == 0 and len(rows) == len({(row["case"], row["size_bytes"]) for row in rows}) == 12
    assert all(row["records_per_s"]["median"] > 0 for row in rows)
    assert (tmp_path / "log.txt").read_text() in capsys.readouterr().out
    assert not (tmp_path / "w1.json").exists()


def test_a_profile_takes_every_stage_of_the_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run.main(["--repeats", "1", "--messages", "256", "--only", "profile", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "profile.json").read_text())
    assert code == 0 and [row["stage"] for row in rows] == list(profile_w1.STAGES)
    assert all(0 < row["fast_us"] <= row["median_us"] for row in rows)
    text = (tmp_path / "profile.txt").read_text()
    assert text in capsys.readouterr().out and "bare   whole: " in text


def test_variants_are_published_under_names_that_distinguish_rows() -> None:
    published = {
        (system.SYSTEM, report.row([replace(ONE, system=system.SYSTEM, variant=variant)])["variant"])
        for system, variant in w1.entrants(run.SYSTEMS)
    }
    peers = {("sqlite", "one"), ("sqlite", "batch64"), ("sqlite", "batch100")}
    assert published == {("floor", "default"), ("outbox", "default"), *peers}


def test_an_unknown_system_is_refused_with_the_names_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "oracle"]) == 2
    assert "sqlite:one-full" in capsys.readouterr().err
