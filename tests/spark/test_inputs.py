"""What a file's rows become: messages, or rows that are set aside with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outbox.errors import Refused
from spark_jobs.common.ids import BROKER_ID_LENGTH_MAX, ID_LENGTH_MAX
from spark_jobs.common.inputs import Source, read, rows_of
from spark_jobs.transforms import Shape, created_ms, judged, messages, rejected

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


@pytest.mark.parametrize(
    ("value", "wanted_ms"),
    [
        ("1767225600001L", 1767225600001),
        ("date '2026-01-01'", 1767225600000),
        ("timestamp '2026-01-01 00:00:01'", 1767225601000),
        ("timestamp_ntz '2026-01-01 00:00:01'", 1767225601000),
        ("'999999999999999'", 999999999999999),
        ("'1234567890123456'", None),  # no time at all in milliseconds
        ("'-5'", None),
        ("'soon'", None),
    ],
)
def test_a_creation_time_is_a_time_of_any_type(spark: Any, value: str, wanted_ms: int | None) -> None:
    frame = spark.sql(f"select {value} as at")
    assert frame.select(created_ms(frame["at"], frame.schema["at"].dataType)).first()[0] == wanted_ms


def test_a_creation_time_of_another_type_is_refused(spark: Any) -> None:
    frame = spark.sql("select 1.5D as at")
    with pytest.raises(Refused, match="a creation time cannot be double"):
        created_ms(frame["at"], frame.schema["at"].dataType)


def body_of(account: str | None, at: str | None, n: str | None, pad: str) -> str:
    """The body of a row, as `judged` makes it."""
    named = {"account": account, "at": at, "n": n, "pad": pad}
    return json.dumps({k: v for k, v in named.items() if v is not None}, ensure_ascii=False, separators=(",", ":"))


def test_up_to_each_limit_a_row_is_sent_and_over_it_the_first_reason_is_told(spark: Any) -> None:
    longest, session = "i" * ID_LENGTH_MAX, "s" * BROKER_ID_LENGTH_MAX
    fits = (session, "0", "-7", "ü" * 20)
    given = [
        ("", (longest, fits, None)),
        ("problem", (None, fits, "problem: told before")),
        ("missing-id", (None, fits, None)),
        ("missing-id", ("", fits, None)),
        ("long-id", (longest + "i", fits, None)),
        ("oversize", ("a", (session, "0", "-7", "ü" * 20 + "x"), None)),
        ("bad-created", ("b", ("", "soon", "x", ""), None)),  # the session and the order are wrong as well
        ("missing-session", ("c", ("", "0", "x", ""), None)),
        ("missing-session", ("d", (None, "0", "7", ""), None)),
        ("long-session", ("e", (session + "s", "0", "x", ""), None)),
        ("bad-order", ("f", ("s", "0", "1x", ""), None)),
    ]
    rows = [(id, row, problem, str(n)) for n, (_, (id, row, problem)) in enumerate(given)]
    kinds = "id string, row struct<account:string,at:string,n:string,pad:string>, problem string, text string"
    size_max = len(body_of(*fits).encode())
    frame = judged(spark.createDataFrame(rows, kinds), Shape("at", "account", "n", body_bytes_max=size_max))
    found = {int(row["text"]): row for row in frame.collect()}
    reasons = [(found[n]["reason"] or "").partition(":")[0] for n in range(len(given))]
    assert reasons == [reason for reason, _ in given]
    sent = found[0]
    assert (sent["body"], sent["created_ms"], sent["session"], sent["position"]) == (body_of(*fits), 0, session, -7)


def test_a_message_stands_where_its_first_row_stood_and_counts_its_rows(spark: Any, tmp_path: Path) -> None:
    source = Source(written(tmp_path, "id,session,x\na,s,1\nb,s,2\na,s,1\nc,s,1\nc,s,2\n,s,3\n"))
    frame = judged(rows_of(read(spark, source), source, ("id",)), Shape(session="session"))
    sent = sorted(messages(frame).collect(), key=lambda row: row["position"])
    assert [(row["id"], row["session"], row["copies"], row["created_ms"]) for row in sent] == [
        ("a", "s", 2, None), ("b", "s", 1, None),
    ]  # fmt: skip
    aside = sorted(map(tuple, rejected(frame).collect()), key=lambda row: row[-1])
    told = "rows of this id differ; which one is meant?"
    assert aside == [
        ("c", "conflicting-duplicates", told, '{"id":"c","session":"s","x":"1"}'),
        ("c", "conflicting-duplicates", told, '{"id":"c","session":"s","x":"2"}'),
        (None, "missing-id", "a column of the id is empty", '{"session":"s","x":"3"}'),
    ]


def test_a_second_file_with_other_columns_is_an_error(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, "id,amount\na,5\n", "one.csv")
    written(tmp_path, "amount,id\n5,b\n", "two.csv")
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        read(spark, Source(str(tmp_path), format="csv")).collect()
