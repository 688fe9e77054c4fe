"""A follower merges what comes, round by round, in one session; a silent round costs the ledger nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PythonException

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs import consume as job
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.until import Until, asked_by_signal
from spark_jobs.consume import Drain, consume
from spark_jobs.draining.merging import Merger
from spark_jobs.draining.tables import Table
from tests.spark.conftest import ROOT, Broker
from tests.spark.ledgers import by_log, land

SILENT = {"landed": 0, "lost": 0, "idle": True, "failed": None}


class Rounds:
    """What each round lands; an error fails it.  Each takes ten seconds, and in the second another lands too."""

    def __init__(self, ledger: Path, *rounds: list[str] | Exception, theirs: str = "") -> None:
        self.ledger, self.rounds, self.theirs = ledger, list(rounds), theirs
        self.now_s = 0.0
        self.asked: list[float] = []

    def __call__(self, spark: object, drain: Drain, received: int) -> list[dict[str, Any]]:
        self.asked.append(drain.round_s)
        self.now_s += 10
        found = self.rounds.pop(0) if self.rounds else []
        if self.theirs and self.now_s > 10:
            land(self.ledger, "theirs", self.theirs)
            self.theirs = ""
        if isinstance(found, Exception):
            raise found
        if found:
            land(self.ledger, f"at-{self.now_s:g}", *found)
        return [SILENT | {"landed": len(found)}]


def followed(
    monkeypatch: pytest.MonkeyPatch,
    rounds: Rounds,
    until: Until,
    said: list[str] | None = None,
    drain_round: Any = None,
) -> job.Totals:
    monkeypatch.setattr(job, "drain_round", drain_round or rounds)
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: rounds.now_s))
    say, nothing = (said if said is not None else []).append, cast(Any, None)
    drain = Drain(nothing, "q", Folder(rounds.ledger), say=say, until=until, began_s=0.0)
    return job.drained(nothing, drain, Merger(drain.place))


def version_count(ledger: Path) -> int:
    return len(list(ledger.glob("_delta_log/*.json")))


def test_each_round_in_which_something_came_is_a_version_and_a_silent_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, said = Rounds(tmp_path, [], ["a", "b"], [], [], ["b", "c"], []), list[str]()
    total = followed(monkeypatch, rounds, Until(seconds=95), said)
    assert (total.received, total.added, total.duplicates) == (4, 3, 1)
    assert rounds.asked == [30.0] * 7 + [25.0, 15.0, 5.0]
    assert said == ["consume: 2 received, 2 added, 20.0 s", "consume: 4 received, 3 added, 50.0 s"]
    assert version_count(tmp_path) == 3  # the empty table and two
    assert sorted(row["message_id"] for row in by_log(tmp_path)) == ["a", "b", "c"]


def test_a_silent_round_opens_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[float]()
    rounds, read = Rounds(tmp_path, [], ["a"], [], []), Table.read

    def counted(table: Table) -> Any:
        opened.append(rounds.now_s)
        return read(table)

    monkeypatch.setattr(Table, "read", counted)
    followed(monkeypatch, rounds, Until(seconds=60))
    assert {*opened} == {0.0, 20.0}


def test_what_others_landed_and_left_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(tmp_path, "before", "a")
    total = followed(monkeypatch, Rounds(tmp_path, ["b"], theirs="c"), Until(seconds=40))
    assert (total.received, total.added) == (1, 3)


def test_a_follower_removes_leftovers_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, swept = Rounds(tmp_path), list[float]()
    monkeypatch.setattr(job, "SWEEP_EVERY_S", 100.0)

    def sweeping(place: object) -> int:
        swept.append(rounds.now_s)
        return 0

    monkeypatch.setattr(job, "sweep", sweeping)
    followed(monkeypatch, rounds, Until(seconds=250))
    assert swept == [100, 200]


def test_a_follower_that_cannot_sign_in_ends_with_everything_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, "before", "a")
    rounds = Rounds(tmp_path, ["b"], GaveUpError("no token"), ["c"])
    total = followed(monkeypatch, rounds, Until(seconds=100))
    assert (total.failed, total.added, len(rounds.asked)) == ("no token", 2, 2)


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (Py4JNetworkError("Error while sending or receiving"), True),
        (ConnectionRefusedError(111, "Connection refused"), True),
        (Py4JError("Job 3 cancelled because SparkContext was shut down"), True),
        (PythonException("OSError: [Errno 28] No space left on device"), False),
    ],
)
def test_a_signal_that_ends_the_jvm_as_well_leaves_nothing_unmerged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_gone: bool, is_asked: bool
) -> None:
    rounds = Rounds(tmp_path, ["a"], error)
    until = Until(count=9, is_asked=lambda: is_asked and rounds.now_s > 10)
    land_and_fail = rounds.__call__

    def drained(*given: Any) -> Any:
        if len(rounds.asked) == 1:
            land(tmp_path, "before it failed", "b")
        return land_and_fail(*given)

    with nullcontext() if is_asked and is_gone else pytest.raises(type(error)):
        assert followed(monkeypatch, rounds, until, drain_round=drained).added == 2
    assert len(rounds.asked) == 2 and sorted(row["message_id"] for row in by_log(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("until", "passed_s", "count", "is_over"),
    [
        (Until(seconds=5), 4.9, 9, False),
        (Until(seconds=5), 5, 0, True),
        (Until(count=5), 9, 4, False),
        (Until(count=5), 0, 5, True),
        (Until(seconds=5, count=5), 4, 5, True),
        (Until(count=5, is_asked=lambda: True), 0, 0, True),
    ],
)
def test_the_end_is_a_time_a_count_or_asked_for(until: Until, passed_s: float, count: int, is_over: bool) -> None:
    assert until.is_over(passed_s, count) is is_over


def test_a_wait_goes_on_for_what_is_left_of_its_time() -> None:
    assert [Until(seconds=5).left_s(passed_s, 2) for passed_s in (0, 4, 5, 9)] == [2, 1, 0, 0]
    assert Until(count=5).left_s(9, 2) == 2


def test_rounds_have_limits() -> None:
    for every_s in (0, -1, 601, float("nan")):
        with pytest.raises(Refused, match="every_s is above 0 and at most 600"):
            Drain(cast(Any, None), "q", Folder("/x"), every_s=every_s)


def test_the_first_signal_asks_and_the_second_does_what_it_always_did() -> None:
    came, before = list[int](), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with asked_by_signal() as is_asked:
            assert not is_asked()
            signal.raise_signal(signal.SIGTERM)
            assert is_asked() and not came
            signal.raise_signal(signal.SIGTERM)
            assert came == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert len(came) == 2
        with asked_by_signal():  # and none comes
            pass
        signal.raise_signal(signal.SIGTERM)
        assert len(came) == 3
    finally:
        signal.signal(signal.SIGTERM, before)


def send(broker: Broker, queue: str, *names: str) -> None:
    broker.send(queue, *(ServiceBusMessage(b"{}", message_id=name) for name in names))


class Follower:
    """A following job in a process of its own."""

    def __init__(self, broker: Broker, ledger: Path) -> None:
        self.ledger = ledger
        command = [sys.executable, "-m", "spark_jobs.consume", "--queue", "followed", "--output", str(ledger)]
        command += ["--follow", "--for-s", "120", "--every-s", "2", "--idle-s", "1", "--json"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OUTBOX_SERVICEBUS": broker.connection}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def wait_for_rows(self, count: int) -> None:
        for _ in range(900):
            if self.ledger.is_dir() and version_count(self.ledger) and len(by_log(self.ledger)) >= count:
                return
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)
        pytest.fail(f"the ledger has not {count} rows")

    def end(self, number: int) -> tuple[int, str, str]:
        os.killpg(self.process.pid, number)  # the JVM gets it as well, as from a service manager
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.slow
@pytest.mark.spark
def test_a_follower_is_killed_and_another_goes_on_until_it_is_asked_to_end(broker: Broker, tmp_path: Path) -> None:
    ledger, names = tmp_path / "ledger", [f"m{number:03}" for number in range(120)]
    first = Follower(broker, ledger)
    send(broker, "followed", *names[:40])
    first.wait_for_rows(40)
    send(broker, "followed", *names[40:80])
    first.end(signal.SIGKILL)
    second = Follower(broker, ledger)
    second.wait_for_rows(80)
    send(broker, "followed", *names[80:])
    second.wait_for_rows(120)
    versions = version_count(ledger)
    time.sleep(5)  # silent rounds
    assert version_count(ledger) == versions
    code, out, err = second.end(signal.SIGTERM)
    said = json.loads(out)
    assert (code, said["rows"], said["version"] >= versions - 1) == (0, 120, True), err
    assert [line for line in err.splitlines() if " received, " in line]
    assert sorted(row["message_id"] for row in by_log(ledger)) == names
    assert broker.take("followed") == []


@pytest.mark.slow
@pytest.mark.spark
def test_an_outage_longer_than_the_limit_ends_a_follower_with_everything_merged(
    spark: Any, mortal_broker: Any, tmp_path: Path
) -> None:
    send(mortal_broker, "transfers", "a", "b")

    def kill_when_merged() -> None:
        for _ in range(300):
            if version_count(tmp_path) > 1:
                break
            time.sleep(0.1)
        mortal_broker.kill()

    killing = threading.Thread(target=kill_when_merged)
    killing.start()
    given: Any = {"queue": "transfers", "output": str(tmp_path), "connection": mortal_broker.connection}
    with pytest.raises(OutcomeUnknown, match=r"the 2 messages received are in .*; mend that and run the same"):
        consume(spark, **given, idle_s=1, timeout_s=3, until=Until(seconds=90), every_s=2)
    killing.join(timeout=60)
    assert sorted(row["message_id"] for row in by_log(tmp_path)) == ["a", "b"]
