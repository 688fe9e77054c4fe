"""What a file's rows become: messages, or rows that are set aside with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outbox.errors import Refused
from spark_jobs.common.inputs import Source, read, rows_of
from spark_jobs.transforms import Shape, judged, messages, rejected

pytestmark = pytest.mark.spark


def written(tmp_path: Path, text: str, name: str = "input.csv") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def outcome(spark: Any, source: Source, shape: Shape | None = None, ids: tuple[str, ...] = ("id",)) -> tuple[Any, Any]:
    """Messages as {id: body}, rejected rows as sorted [(id, reason)]."""
    frame = judged(rows_of(read(spark, source), source, ids), shape or Shape())
    sent = {row["id"]: json.loads(row["body"]) for row in messages(frame).collect()}
    return sent, sorted((row["id"] or "", row["reason"]) for row in rejected(frame).collect())


def test_integers_stay_integers_and_ids_stay_text(spark: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "id,source,amount,zip\n7,alice,5,01234\n8,bob,-3,12345\n")
    sent, aside = outcome(spark, Source(path))
    assert sent["7"] == {"id": "7", "source": "alice", "amount": 5, "zip": "01234"}
    assert sent["8"]["amount"] == -3
    assert aside == []


def test_a_column_that_is_nearly_a_number_is_asked_about(spark: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "id,amount\na,5\nb,6\nc,5x\n")
    with pytest.raises(Refused, match=r"'amount' is unclear: 1 of 3 values are no integers, '5x'.*--schema"):
        outcome(spark, Source(path))


def test_with_a_schema_the_wrong_value_is_set_aside(spark: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "id,amount\na,5\nb,6\nc,5x\n")
    sent, aside = outcome(spark, Source(path, schema="id string, amount bigint"))
    assert sent == {"a": {"id": "a", "amount": 5}, "b": {"id": "b", "amount": 6}}
    assert aside == [("c", "wrong-type")]


def test_a_row_that_is_set_aside_has_its_whole_value_in_the_detail(spark: Any, tmp_path: Path) -> None:
    source = Source(written(tmp_path, "id,amount\na,5: five\n"), schema="id string, amount bigint")
    frame = judged(rows_of(read(spark, source), source, ("id",)), Shape())
    assert [row["detail"] for row in rejected(frame).collect()] == ["column amount is bigint, not 5: five"]


def test_bad_rows_are_set_aside_with_the_reason(spark: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "id,note\na,short\nb\nc,x,y\n,none\n" + "d" * 2000 + ",long\ne," + "x" * 200 + "\n")
    sent, aside = outcome(spark, Source(path), Shape(body_bytes_max=100))
    assert set(sent) == {"a"}
    reasons = [reason for _, reason in aside]
    assert reasons == ["missing-id", "malformed-row", "malformed-row", "long-id", "oversize"]


def test_equal_rows_of_an_id_are_one_message_and_unequal_ones_none(spark: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "id,amount\na,5\na,5\nb,1\nb,2\n")
    sent, aside = outcome(spark, Source(path))
    assert set(sent) == {"a"}
    assert aside == [("b", "conflicting-duplicates"), ("b", "conflicting-duplicates")]


def test_a_quoted_field_may_hold_separator_and_quotes(spark: Any, tmp_path: Path) -> None:
    sent, _ = outcome(spark, Source(written(tmp_path, 'id,note\na,"one, ""two"""\n')))
    assert sent["a"]["note"] == 'one, "two"'


def test_json_brings_its_types_and_a_broken_line_is_set_aside(spark: Any, tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": "a", "amount": 5, "tags": ["x"]}\nnonsense\n{"id": "b"}\n', "input.jsonl")
    sent, aside = outcome(spark, Source(path))
    assert sent == {"a": {"id": "a", "amount": 5, "tags": ["x"]}, "b": {"id": "b"}}
    assert aside == [("", "malformed-row")]


def test_parquet_brings_its_types(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "input.parquet")
    spark.createDataFrame([(1, True, "x"), (2, None, "y")], "id int, vip boolean, name string").write.parquet(path)
    sent, aside = outcome(spark, Source(path))
    assert sent == {"1": {"id": 1, "vip": True, "name": "x"}, "2": {"id": 2, "name": "y"}}
    assert aside == []


@pytest.mark.parametrize(
    ("text", "wanted_ms"),
    [("1767225600000", 1767225600000), ("2026-01-01", 1767225600000), ("2026-01-01T00:00:01Z", 1767225601000)],
)
def test_a_creation_time_is_read_in_utc(spark: Any, tmp_path: Path, text: str, wanted_ms: int) -> None:
    source = Source(written(tmp_path, f"id,at\na,{text}\nb,\n"))
    frame = judged(rows_of(read(spark, source), source, ("id",)), Shape(created="at"))
    assert [row["created_ms"] for row in messages(frame).collect()] == [wanted_ms]
    assert [row["reason"] for row in rejected(frame).collect()] == ["bad-created"]


def test_a_second_file_with_other_columns_is_an_error(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, "id,amount\na,5\n", "one.csv")
    written(tmp_path, "amount,id\n5,b\n", "two.csv")
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        read(spark, Source(str(tmp_path), format="csv")).collect()
