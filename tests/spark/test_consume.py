"""A queue's messages are in the ledger once, whoever is killed between receiving and settling."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from outbox.errors import Refused
from spark_jobs.consume import consume, main
from spark_jobs.ledger import merge, read_ledger
from tests.spark.ledgers import Died, dies_at

pytestmark = pytest.mark.spark


def numbered(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(b"{}", message_id=f"m{number}") for number in range(count)]


def ids(spark: Any, output: Path) -> list[str]:
    return sorted(row["message_id"] for row in read_ledger(spark, output).collect())


def test_a_message_keeps_what_it_carries(spark: Any, broker: Any, tmp_path: Path) -> None:
    known: dict[str | bytes, Any] = {
        "outbox-id": "p1",
        "outbox-type": "Posting",
        "outbox-created": 5,
        "correlation-id": "t1",
        "causation-id": "c1",
        "traceparent": "00-aa-bb-01",
        "tenant": "north",
    }
    broker.send(
        "poison",
        ServiceBusMessage(b'{"amount": 5}', message_id="broker-1", application_properties=known),
        ServiceBusMessage(b"\xff\xfe", message_id="poison"),
    )
    report = consume(spark, queue="poison", output=str(tmp_path), connection=broker.connection, idle_s=1)
    assert (report.received, report.added, report.rows) == (2, 2, 2)
    first, second = sorted(read_ledger(spark, tmp_path).collect(), key=lambda row: row["message_id"])
    assert (first["message_id"], first["type"], first["correlation_id"], first["causation_id"]) == (
        "p1", "Posting", "t1", "c1",
    )  # fmt: skip
    assert (first["created_ms"], first["traceparent"], first["body"]) == (5, "00-aa-bb-01", '{"amount": 5}')
    assert json.loads(first["properties"]) == {"tenant": "north"}
    assert first["enqueued_ms"] > 1_700_000_000_000 and first["sequence_number"] > 0
    assert (second["message_id"], second["correlation_id"], second["body"]) == ("poison", "poison", None)
    assert bytes(second["raw"]) == b"\xff\xfe"


def test_copies_of_an_identity_are_one_row(spark: Any, broker: Any, tmp_path: Path) -> None:
    broker.send("landed", *numbered(30), *numbered(20))
    report = consume(spark, queue="landed", output=str(tmp_path), connection=broker.connection, idle_s=1)
    assert (report.received, report.added, report.duplicates) == (50, 30, 20)
    assert len(ids(spark, tmp_path)) == 30


def test_a_count_is_not_exceeded_and_the_rest_stays_in_the_queue(spark: Any, broker: Any, tmp_path: Path) -> None:
    broker.send("raced", *numbered(25))
    report = consume(spark, queue="raced", output=str(tmp_path), connection=broker.connection, idle_s=1, count=11)
    assert report.received == 11
    assert len(broker.take("raced")) == 14


def test_what_others_hold_at_the_end_is_told(spark: Any, broker: Any, tmp_path: Path) -> None:
    broker.send("raced", *numbered(3))
    later = ServiceBusMessage(b"{}", scheduled_enqueue_time_utc=datetime.now(UTC) + timedelta(hours=1))
    broker.send("raced", later)
    with (
        ServiceBusClient.from_connection_string(broker.connection) as client,
        client.get_queue_receiver("raced", keep_alive=0) as receiver,
    ):
        [held] = receiver.receive_messages(1, max_wait_time=5)
        report = consume(spark, queue="raced", output=str(tmp_path), connection=broker.connection, idle_s=1)
        receiver.complete_message(held)
    assert (report.received, report.left) == (2, 1) and "1  or more in the queue, locked by others" in report.text
    report = consume(spark, queue="raced", output=str(tmp_path), connection=broker.connection, idle_s=0.5)
    assert (report.received, report.left) == (0, 0) and "locked by others" not in report.text


@pytest.mark.slow
@pytest.mark.parametrize("point", [pytest.param("prepared", marks=pytest.mark.soak), "committed"])
def test_a_driver_killed_around_the_commit_adds_each_row_once(
    spark: Any, broker: Any, tmp_path: Path, run_killed: Callable[..., SimpleNamespace], point: str
) -> None:
    broker.send("dead", *numbered(40))
    output = tmp_path / "ledger"
    options = {"queue": "dead", "output": str(output), "connection": broker.connection, "idle_s": 1}
    killed = run_killed("consume", point, 1, json.dumps(options))
    assert killed.fired and killed.returncode == -9, killed.output
    assert len(ids(spark, output)) == (0 if point == "prepared" else 40)
    report = consume(spark, **options)
    assert report.added == (40 if point == "prepared" else 0)
    assert ids(spark, output) == sorted(f"m{number}" for number in range(40))


def test_an_older_run_that_landed_and_died_is_merged_first(spark: Any, broker: Any, tmp_path: Path) -> None:
    broker.send("gone", *numbered(3))

    options = {"queue": "gone", "output": str(tmp_path), "connection": broker.connection, "idle_s": 1}
    with pytest.raises(Died):
        consume(spark, **options, crash_point=dies_at("prepared"))
    assert merge(tmp_path).added == 3


def test_senseless_limits_are_refused(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match="receivers and count are at least 1"):
        consume(spark, queue="q", output=str(tmp_path), connection="Endpoint=sb://x", count=0)
    assert main(["--queue", "q", "--output", str(tmp_path)]) == 1
    assert "set OUTBOX_SERVICEBUS" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.slow
def test_receivers_sit_out_a_broker_that_is_killed_and_started_again(
    spark: Any, mortal_broker: Any, tmp_path: Path
) -> None:
    for _ in range(10):
        mortal_broker.send("transfers", *numbered(600))  # ten copies of each: the later ones find the first
    killed = threading.Thread(target=restart_while_landing, args=(mortal_broker, tmp_path / "_landing"))
    killed.start()
    report = consume(spark, queue="transfers", output=str(tmp_path), connection=mortal_broker.connection, idle_s=4)
    killed.join(timeout=60)
    assert report.received >= 6_000 and report.lost_locks > 0
    assert ids(spark, tmp_path) == sorted(f"m{number}" for number in range(600))


def restart_while_landing(broker: Any, landing: Path) -> None:
    """Kill the broker as soon as something has landed, and start it again after a second."""
    for _ in range(1_000):
        if any(landing.glob("*.parquet")):
            break
        time.sleep(0.02)
    broker.restart()
