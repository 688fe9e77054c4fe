"""What a feed puts into a queue, over the wire: every row once, whatever dies."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.identity import Access
from spark_jobs.consume import consume
from spark_jobs.feed import Pace, feed, main
from spark_jobs.feeding.sending import Outgoing
from spark_jobs.feeding.shares import Sending
from spark_jobs.ledger import read_ledger
from spark_jobs.reconcile import reconcile
from tests.spark.crash import Kill
from tests.spark.ledgers import Died, dies_at

pytestmark = pytest.mark.spark

NOW_MS = 1_790_000_000_000


def frame_of(spark: Any, tmp_path: Path, count: int, schema: str = "id string, amount bigint") -> Any:
    path = tmp_path / "transfers.csv"
    path.write_text("id,amount\n" + "".join(f"t{number},{number}\n" for number in range(count)))
    return spark.read.schema(schema).csv(str(path), header=True)


def counted(messages: list[Any]) -> Counter[str]:
    return Counter(message.message_id for message in messages)


def test_a_row_on_the_wire_is_what_it_has_always_been(spark: Any, broker: Any, tmp_path: Path) -> None:
    frame = frame_of(spark, tmp_path, 1)
    feed(frame, queue="golden", type="Transfer", id="id", connection=broker.connection, now_ms=lambda: NOW_MS)
    (message,) = broker.take("golden")
    assert message.application_properties == {
        b"outbox-id": b"t0",
        b"outbox-type": b"Transfer",
        b"outbox-created": NOW_MS,
    }
    assert (message.message_id, message.content_type) == ("t0", "application/json")
    assert b"".join(message.body) == b'{"amount":0,"id":"t0"}'


def test_the_command_feeds_a_file_and_says_what_it_set_aside(
    broker: Any, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,amount\na,1\na,1\nb,1\nb,2\n,3\nc,4,5\nd,6\n")
    arguments = ["--input", str(path), "--queue", "fed", "--type", "Transfer", "--id", "id", "--json"]
    assert main([*arguments, "--connection", broker.connection]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["messages"], said["duplicates"], said["accepted"]) == (7, 2, 1, 2)
    assert said["quarantined"] == {"conflicting-duplicates": 2, "malformed-row": 1, "missing-id": 1}
    assert counted(broker.take("fed")) == {"a": 1, "d": 1}
    rows = [json.loads(line) for part in (tmp_path / "in.csv.quarantine").rglob("*.json") for line in part.open()]
    assert sorted((row["line"], row["row"], row["reason"]) for row in rows) == [
        (4, "b,1", "conflicting-duplicates"), (5, "b,2", "conflicting-duplicates"), (6, ",3", "missing-id"),
        (7, "c,4,5", "malformed-row"),
    ]  # fmt: skip
    assert {row["file"] for row in rows} == {str(path)}


def test_a_second_run_sends_nothing_and_a_changed_input_is_refused(spark: Any, broker: Any, tmp_path: Path) -> None:
    options = {"queue": "again", "type": "Transfer", "id": "id", "connection": broker.connection}
    first = feed(frame_of(spark, tmp_path, 5), **options)
    again = feed(frame_of(spark, tmp_path, 5), **options)
    assert (first.accepted, first.skipped, again.accepted, again.skipped) == (5, 0, 0, 5)
    with pytest.raises(Refused, match=r"5 rows then, 6 now.*--created"):
        feed(frame_of(spark, tmp_path, 6), **options)
    with pytest.raises(Refused, match="progress of another feed"):
        feed(frame_of(spark, tmp_path, 5), **{**options, "type": "Other"})


def test_a_batch_that_is_full_to_the_last_byte_is_taken(broker: Any) -> None:
    """The SDK adds an envelope to what it counted; a batch filled to the link's limit would be refused."""
    outgoing = Outgoing(Sending(Access(broker.connection), "full", "Note", timeout_s=5))
    try:
        for number in range(10):
            outgoing.add(f"t{number}", "x" * 24_000, NOW_MS, None)
        batch = outgoing._batch
        assert batch is not None and len(batch) == 10
        each_bytes = batch.size_in_bytes // 10 - 24_000
        outgoing.add("tx", "x" * (batch.max_size_in_bytes - batch.size_in_bytes - each_bytes), NOW_MS, None)
        assert batch.size_in_bytes == batch.max_size_in_bytes
        outgoing.flush()
    finally:
        outgoing.close()
    assert outgoing.accepted == outgoing.sent == len(broker.take("full")) == 11


def test_a_connection_string_is_not_shown(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame_of(spark, tmp_path, 1)
    dead = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true;"
    arguments = ["--input", str(tmp_path / "transfers.csv"), "--queue", "q", "--type", "T", "--timeout-s", "1"]
    assert main([*arguments, "--connection", dead]) == 1
    said = capsys.readouterr()
    assert "chunk 1 of 1: no success for" in said.err and "same command again" in said.err
    assert "c2VjcmV0" not in said.err + said.out


def test_a_queue_that_does_not_exist_is_refused_at_once(spark: Any, broker: Any, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="MessagingEntityNotFoundError"):
        feed(frame_of(spark, tmp_path, 1), queue="nowhere", type="T", id="id", connection=broker.connection)
    assert time.monotonic() - started_s < 60


OTHERS = [pytest.param(point, marks=pytest.mark.soak) for point in ("staged", "recorded")]


@pytest.mark.parametrize("point", ["planned", "sent", *OTHERS])
def test_a_driver_that_dies_goes_on_where_it_was(spark: Any, broker: Any, tmp_path: Path, point: str) -> None:
    options = {"queue": "resumed", "type": "Transfer", "id": "id", "connection": broker.connection}
    with pytest.raises(Died):
        died: Any = {"pace": Pace(chunks=4), "crash_point": dies_at(point)}
        feed(frame_of(spark, tmp_path, 40), **options, **died, now_ms=lambda: NOW_MS)
    report = feed(frame_of(spark, tmp_path, 40), **options, now_ms=lambda: NOW_MS + 1)
    messages = broker.take("resumed")
    assert set(counted(messages)) == {f"t{number}" for number in range(40)}
    times = {message.application_properties[b"outbox-created"] for message in messages}
    assert times == {NOW_MS + 1 if point == "staged" else NOW_MS}  # one time for all: nothing was sent before the plan
    assert report.skipped == (10 if point == "recorded" else 0) or report.chunks_skipped == 1


def test_a_session_keeps_its_order(spark: Any, broker: Any, tmp_path: Path) -> None:
    rows = [(f"{name}{number * 7 % 30:02}", name, number) for number in range(30) for name in ("x", "y", "z")]
    frame = spark.createDataFrame(rows, "id string, account string, step int").repartition(3)
    feed(
        frame, queue="ordered", type="Step", id="id", connection=broker.connection, session="account", order="step",
        progress=str(tmp_path / "p"), quarantine=str(tmp_path / "q"), pace=Pace(chunks=2),
    )  # fmt: skip
    for name in "xyz":
        steps = [json.loads(b"".join(m.body))["step"] for m in broker.take("ordered", session_id=name)]
        assert steps == list(range(30))


@pytest.mark.soak
@pytest.mark.slow
def test_a_killed_driver_a_killed_worker_and_a_killed_broker_cost_nothing(
    spark: Any, mortal_broker: Any, tmp_path: Path, run_killed: Callable[..., SimpleNamespace]
) -> None:
    """Fed, drained and reconciled, with a kill -9 of everything on the way."""
    count = 1_500
    frame = frame_of(spark, tmp_path, count)
    options = {"queue": "transfers", "type": "Transfer", "id": "id", "connection": mortal_broker.connection}
    killed = run_killed("feed", "sent", 2, json.dumps({**options, "input": str(tmp_path / "transfers.csv")}))
    assert killed.fired, killed.output

    outage = threading.Thread(target=restart, args=(mortal_broker,))
    outage.start()
    report = feed(frame, **options, pace=Pace(rate_per_s=400, timeout_s=60))
    outage.join(timeout=60)
    assert report.chunks_skipped == 1 and report.retries > 0

    markers = tmp_path / "kills"
    markers.mkdir()
    kill = Kill(str(markers), {"received": 1, "encoded": 2, "landed": 1, "completing": 50})
    output = str(tmp_path / "ledger")
    consume(spark, queue="transfers", output=output, connection=mortal_broker.connection, idle_s=4, crash_point=kill)
    assert kill.fired == {"received", "encoded", "landed", "completing"}

    ledger = read_ledger(spark, output)
    assert ledger.count() == count
    found = reconcile(frame, ledger)
    assert found.ok, found.text


def restart(broker: Any) -> None:
    """Kill the broker while the second run sends, and start it again after a second."""
    time.sleep(2.0)
    broker.restart()
