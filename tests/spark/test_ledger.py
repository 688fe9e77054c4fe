"""Spark reads of a ledger what its newest version has, and nothing that lies beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage

from outbox.errors import Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.places import joined
from spark_jobs.consume import consume
from spark_jobs.draining.merging import CONFLICTS
from spark_jobs.draining.received import ROW
from spark_jobs.draining.taking_over import take_over
from spark_jobs.ledger import LEDGER, is_ledger, merge, read_conflicts, read_ledger
from tests.spark.lakes import BOX, Lake
from tests.spark.ledgers import Died, dies_at, ids, land

pytestmark = pytest.mark.spark


def test_spark_reads_the_newest_version_and_nothing_beside_it(spark: Any, tmp_path: Path) -> None:
    assert read_ledger(spark, tmp_path).count() == read_conflicts(spark, tmp_path).count() == 0
    merge(tmp_path)
    assert read_ledger(spark, tmp_path).count() == 0
    land(tmp_path, "one", "a", "b", body="1", fingerprint="f1")
    merge(tmp_path)
    land(tmp_path, "two", "a", "c", body="2", fingerprint="f2", first=5)
    with pytest.raises(Died):
        merge(tmp_path, crash_point=dies_at("prepared"))
    merge(tmp_path)
    land(tmp_path, "three", "d")
    rows = read_ledger(spark, tmp_path).collect()
    assert sorted((row["message_id"], row["body"]) for row in rows) == [("a", "1"), ("b", "1"), ("c", "2")]
    assert [(row["message_id"], row["body"]) for row in read_conflicts(spark, tmp_path).collect()] == [("a", "2")]


def test_what_is_the_ledgers_own_row_by_now_is_no_conflict(spark: Any, tmp_path: Path) -> None:
    """Two mergers: one found a conflict and lost its version to one that saw only the second delivery."""
    land(tmp_path, "first", "a", body="1", fingerprint="f1")
    land(tmp_path, "second", "a", body="2", fingerprint="f2", first=1)
    with pytest.raises(Died):
        merge(tmp_path, crash_point=dies_at("conflicts"))
    kept = (tmp_path / "_landing" / "first.parquet").rename(tmp_path / "first.parquet")
    merge(tmp_path)
    kept.rename(tmp_path / "_landing" / "first.parquet")
    merge(tmp_path)
    assert [row["body"] for row in read_ledger(spark, tmp_path).collect()] == ["2"]
    assert [row["body"] for row in read_conflicts(spark, tmp_path).collect()] == ["1"]
    assert len(list((tmp_path / CONFLICTS / "data").iterdir())) == 2


def test_spark_reads_a_ledger_of_a_container_through_its_place(
    spark: Any, broker: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.plant()
    monkeypatch.setenv("OUTBOX_LAKE", lake.environ["OUTBOX_LAKE"])
    ledger = f"abfss://{BOX}@devstoreaccount1.dfs.core.windows.net/{uuid4().hex}/ledger"
    for body in (b"1", b"2"):
        broker.send("poison", *(ServiceBusMessage(body, message_id=id) for id in ("a", f"b{body!r}")))
        report = consume(spark, queue="poison", output=ledger, connection=broker.connection, idle_s=1)
        assert (report.received, report.added) == (2, 2 if body == b"1" else 1)
    assert (report.conflicts, report.rows, report.version) == (1, 3, 2)
    rows = sorted((row["message_id"], row["body"]) for row in read_ledger(spark, ledger).collect())
    assert rows == [("a", "1"), ("bb'1'", "1"), ("bb'2'", "2")] and [id for id, _ in rows] == ids(ledger)
    assert [(row["message_id"], row["body"]) for row in read_conflicts(spark, ledger).collect()] == [("a", "2")]
    assert is_ledger(ledger) and not is_ledger(joined(ledger, "/other"))


def test_a_ledger_that_spark_wrote_is_taken_over(spark: Any, tmp_path: Path) -> None:
    """As builds before Delta did: Spark wrote the data files, and a log of commits named them."""
    name = "data/00000001-made-0"
    told = [{"message_id": id, "body": "1", "fingerprint": "1"} for id in ("a", "b")]
    rows = spark.createDataFrame([tuple(row.get(name) for name in ROW.names) for row in told], LEDGER)
    rows.repartition(1).write.parquet(str(tmp_path / name))
    [part] = (tmp_path / name).glob("part-*.parquet")
    (tmp_path / "_log").mkdir()
    commit = {"version": 1, "add": [f"{name}/{part.name}"], "conflicts": [], "consumed": [], "rows": 2}
    (tmp_path / "_log" / f"{1:020}.json").write_text(json.dumps(commit))
    with pytest.raises(Refused, match="take_over"):
        read_ledger(spark, tmp_path)
    take_over(Folder(tmp_path))
    land(tmp_path, "one", "a", "c", body="1", fingerprint="1")
    assert merge(tmp_path).added == 1 and ids(tmp_path) == ["a", "b", "c"]
    assert sorted(row["message_id"] for row in read_ledger(spark, tmp_path).collect()) == ["a", "b", "c"]
