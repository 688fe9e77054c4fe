"""Spark reads of a ledger what its newest version has, and nothing that lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_jobs.draining.merging import CONFLICTS
from spark_jobs.ledger import merge, read_conflicts, read_ledger
from tests.spark.ledgers import Died, dies_at, land

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
