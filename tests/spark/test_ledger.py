"""What has landed is in the ledger once, whoever merges and however often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.draining.manifest import LANDING
from spark_jobs.draining.received import ROW
from spark_jobs.ledger import DATA, Merged, merge, read_conflicts, read_ledger, sweep

pytestmark = pytest.mark.spark


def land(ledger: Path, name: str, *ids: str, body: str = "{}", fingerprint: str = "f") -> None:
    folder = ledger / LANDING
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"message_id": id, "body": body, "fingerprint": fingerprint, "sequence_number": n} for n, id in enumerate(ids)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=ROW), folder / f"{name}.parquet")


def ids(spark: Any, ledger: Path) -> list[str]:
    return sorted(row["message_id"] for row in read_ledger(spark, ledger).collect())


class Died(BaseException):
    """The merger's process is gone."""


def dies_at(wanted: str) -> Any:
    def crash(point: str) -> None:
        if point == wanted:
            raise Died

    return crash


def test_a_message_that_landed_twice_is_one_row(spark: Any, tmp_path: Path) -> None:
    land(tmp_path, "one", "a", "b", "b")
    merge(spark, tmp_path)
    land(tmp_path, "two", "b", "c")
    merged = merge(spark, tmp_path)
    assert (merged.landed, merged.added, merged.duplicates) == (2, 1, 1)
    assert ids(spark, tmp_path) == ["a", "b", "c"]


def test_an_empty_ledger_can_be_read(spark: Any, tmp_path: Path) -> None:
    assert merge(spark, tmp_path).version == 0
    assert ids(spark, tmp_path) == []


@pytest.mark.parametrize("point", ["prepared", "committed"])
def test_a_merger_that_dies_leaves_no_row_out_and_none_twice(spark: Any, tmp_path: Path, point: str) -> None:
    land(tmp_path, "one", "a", "b")
    with pytest.raises(Died):
        merge(spark, tmp_path, crash_point=dies_at(point))
    assert ids(spark, tmp_path) == ([] if point == "prepared" else ["a", "b"])
    merge(spark, tmp_path)
    assert ids(spark, tmp_path) == ["a", "b"]


def test_of_two_racing_mergers_one_commits_each_row(spark: Any, tmp_path: Path) -> None:
    land(tmp_path, "one", "a", "b", "c")
    together = Barrier(2, timeout=60)
    first = {"left": 2}

    def meet(point: str) -> None:
        if point == "prepared" and first["left"]:
            first["left"] -= 1
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: merge(spark, tmp_path, crash_point=meet), range(2)))
    assert sorted(result.added for result in results) == [0, 3]
    assert ids(spark, tmp_path) == ["a", "b", "c"]


def test_another_body_under_a_known_id_is_kept_beside_the_ledger(spark: Any, tmp_path: Path) -> None:
    land(tmp_path, "one", "a", body="1", fingerprint="f1")
    merge(spark, tmp_path)
    land(tmp_path, "two", "a", body="2", fingerprint="f2")
    assert merge(spark, tmp_path).conflicts == 1
    assert [row["body"] for row in read_ledger(spark, tmp_path).collect()] == ["1"]
    assert [row["body"] for row in read_conflicts(spark, tmp_path).collect()] == ["2"]


def test_of_copies_that_differ_the_first_delivery_is_the_row(spark: Any, tmp_path: Path) -> None:
    places = ((2, 0, "f2"), (1, 3, "f1"), (1, 0, "f0"), (1, 1, "f0"))  # number, deliveries before, what it says
    rows = [
        {"message_id": "a", "body": said, "fingerprint": said, "sequence_number": number, "delivery_count": count}
        for number, count, said in places
    ]
    (tmp_path / LANDING).mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=ROW), tmp_path / LANDING / "one.parquet")
    assert merge(spark, tmp_path) == Merged(version=1, landed=4, added=1, duplicates=1, conflicts=2)
    [kept] = read_ledger(spark, tmp_path).collect()
    assert (kept["body"], kept["sequence_number"], kept["delivery_count"]) == ("f0", 1, 0)
    assert sorted(row["body"] for row in read_conflicts(spark, tmp_path).collect()) == ["f1", "f2"]


def test_leftovers_are_swept_and_rows_are_not(spark: Any, tmp_path: Path) -> None:
    land(tmp_path, "one", "a")
    with pytest.raises(Died):
        merge(spark, tmp_path, crash_point=dies_at("prepared"))
    merge(spark, tmp_path)
    (tmp_path / LANDING / "torn.tmp").write_bytes(b"half")
    assert sweep(tmp_path) == 0  # all of it is young enough to be somebody's work
    assert sweep(tmp_path, age_s=0) == 3
    assert len(list((tmp_path / DATA).iterdir())) == 1
    assert ids(spark, tmp_path) == ["a"]


def test_what_contradicts_the_ledger_is_not_swept(spark: Any, tmp_path: Path) -> None:
    land(tmp_path, "one", "a", body="1", fingerprint="f1")
    merge(spark, tmp_path)
    land(tmp_path, "two", "a", body="2", fingerprint="f2")
    merge(spark, tmp_path)
    assert sweep(tmp_path, age_s=0) == 2  # what has landed
    assert [row["body"] for row in read_conflicts(spark, tmp_path).collect()] == ["2"]
