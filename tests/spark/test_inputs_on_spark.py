"""Inputs read by tasks of Spark: many spans, many files, frames, and what a task refuses."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outbox.errors import Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.staging import staged
from spark_jobs.common.tasks import collected, parted, rows_of
from spark_jobs.feed import main, snapshot_of
from spark_jobs.feeding.grouping import STAGED, Chunks, messages_of, packed
from spark_jobs.feeding.plan import Target, open_plan
from spark_jobs.reading import input as inputs
from spark_jobs.reading import opened
from spark_jobs.reading.files import files_at
from spark_jobs.reading.frame import FrameRows
from spark_jobs.reading.input import Input
from spark_jobs.reading.judging import Judge, Shape
from spark_jobs.reading.source import Dialect, Source
from tests.spark import judge
from tests.spark.messy import KINDS, csv_file
from tests.spark.test_messy_files import SCHEMA

pytestmark = pytest.mark.spark

REJECTED = "id string, reason string, detail string, row string, file string, line bigint"


def input_of(spark: Any, path: Path, judge: Judge, **options: Any) -> Input:
    return Input(spark, Source(str(path), **options), judge, files_at(str(path), {}))


def sent_of(rows: Any) -> dict[str, Any]:
    """The messages, as a feed would stage them."""
    made = parted(rows.packets(partial(packed, 2)), 2).mapPartitions(partial(Chunks(2, 0).of_packets, messages_of))
    return {row["id"]: row["body"] for row in collected(made.mapPartitions(rows_of)) if row["body"] is not None}


def test_spans_that_tasks_read_give_the_rows_that_a_judge_sees(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans of 300 bytes, whose edges are counted by tasks as well."""
    messy = csv_file(1_001 * 7, ("break in quotes", "inch"))
    many = messy.data + b"".join(csv_file(7 * seed, ("doubled",)).data.partition(b"\n")[2] + b"\n" for seed in range(8))
    (tmp_path / "in.csv").write_bytes(many)
    for module, name, value in ((opened, "SPAN_BYTES_MIN", 300), (inputs, "HERE_BYTES_MAX", 0)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(inputs, "PARTS_A_CORE", 50)
    wanted = judge.csv(many, judge.Dialect(), KINDS)
    rows = input_of(spark, tmp_path / "in.csv", Judge(("id",)), schema=SCHEMA)
    assert rows.survey.rows == len(wanted) and len(rows._spans) > 20
    assert {id: body.encode() for id, body in sent_of(rows).items()} == judge.messages(wanted)
    aside = {(row["file"], row["line"]) for row in rows.judged().where("reason is not null").collect()}
    assert aside == {(str(tmp_path / "in.csv"), verdict.line) for verdict in wanted if verdict.body is None}


def test_an_input_of_other_rows_has_another_digest(spark: Any, tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return input_of(spark, tmp_path / name, Judge(("id",))).digest

    first = digest("a.csv", "id,n\na,1\nb,2\n")
    assert digest("b.csv", "id,n\r\nb,2\r\n\r\na,1") == first
    others = [
        digest("c.csv", "id,n\na,1\nb,3\n"),
        digest("d.csv", "id,n\na,1\nb,2\nb,2\n"),
        digest("e.csv", "id,m\na,1\nb,2\n"),
    ]
    assert len({first, *others}) == 4


def test_what_a_task_refuses_is_one_text(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id":"a"}\nnot json\n')
    rows = input_of(spark, tmp_path / "in.jsonl", Judge(()))
    with pytest.raises(Refused, match=r"in.jsonl, line 2: not one JSON object") as error, inputs.refusals(lambda: None):
        rows.picked("id").collect()
    assert "\n" not in str(error.value)
    with pytest.raises(Refused, match="there is no column 'other' in any row of"):
        _ = input_of(spark, tmp_path / "in.jsonl", Judge(("other",))).survey


def test_fields_of_json_lines_are_texts(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id":"\\u0061","value":{"b":1,"a":"x"}}\n{"id":7}\n')
    rows = input_of(spark, tmp_path / "in.jsonl", Judge(())).picked("id", "value").collect()
    assert [tuple(row) for row in rows] == [("a", '{"a":"x","b":1}'), ("7", None)]


def test_a_frame_loses_nothing_on_its_way_to_bodies(spark: Any) -> None:
    frame = spark.sql(
        "select 'a' as id, timestamp'2025-01-05 10:00:00.123456' as at, timestamp_ntz'2025-01-05 10:00:00' as local, "
        "1.10BD as price, 9007199254740993L as n, 0.1D as d, named_struct('z', 1, 'y', null) as deep, "
        "array(1, null) as l, map('k', date'2025-01-05') as m, X'00ff' as bytes, cast(null as string) as none"
    )
    assert sent_of(FrameRows(frame, Judge(("id",)))) == {
        "a": '{"at":"2025-01-05T10:00:00.123456Z","bytes":"AP8=","d":0.1,"deep":{"z":1},"id":"a","l":[1,null],'
        '"local":"2025-01-05T10:00:00.000","m":{"k":"2025-01-05"},"n":9007199254740993,"price":1.10}'
    }


def test_bodies_are_those_that_spark_writes_of_the_same_values(spark: Any) -> None:
    """Earlier versions sent what `to_json` gives; a row that is sent again has the same bytes."""
    from pyspark.sql import functions as fn

    texts, numbers = ('é"\\\n\x0b\x1f\x7f/', "", None, "x", "y"), (0.1, 1e7, 1.5e-5, 123456.789, -0.0)
    rows = [
        (f"id{n}", text, number, Decimal(n) / 100, n % 2 == 0)
        for n, (text, number) in enumerate(zip(texts, numbers, strict=True))
    ]
    frame = spark.createDataFrame(rows, "id string, text string, number double, price decimal(10,2), flag boolean")
    frame = frame.withColumns(
        {"at": fn.expr("timestamp'2025-01-05 10:00:00.120'"), "day": fn.expr("date'2025-01-05'")}
    )  # fmt: skip
    whole = frame.select("id", fn.to_json(fn.struct(*sorted(frame.columns))).alias("body"))
    assert sent_of(FrameRows(frame, Judge(("id",)))) == {row["id"]: row["body"] for row in whole.collect()}


def test_a_frame_is_checked_before_its_rows(spark: Any) -> None:
    frame = spark.sql("select 'a' as id, 1.5D as x, interval '1' day as i")
    with pytest.raises(Refused, match=r"column i: a value of type duration"):
        FrameRows(frame, Judge(("id",)))
    with pytest.raises(Refused, match="a creation time cannot be double"):
        FrameRows(frame.drop("i"), Judge(("id",), Shape(created="x")))
    with pytest.raises(Refused, match="there is no column 'y'"):
        FrameRows(frame.drop("i"), Judge(("id",), Shape(session="y")))


def test_a_multiline_dialect_reaches_the_tasks(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id;note\n1;'dear sir\n9;thanks'\n")
    rows = input_of(spark, tmp_path / "in.csv", Judge(("id",)), dialect=Dialect(";", "'", multiline=True))
    assert {id: json.loads(body) for id, body in sent_of(rows).items()} == {
        "1": {"id": "1", "note": "dear sir\n9;thanks"}
    }


@pytest.mark.parametrize("session", ["", "n"])
def test_a_planned_row_is_a_message_a_copy_of_one_or_set_aside(spark: Any, tmp_path: Path, session: str) -> None:
    (tmp_path / "in.csv").write_text("id,n\na,1\na,1\nb,2\nc,3\nc,4\n,5\n")
    shape = Shape(session=session)
    rows = input_of(spark, tmp_path / "in.csv", Judge(("id",), shape))
    run, planned = open_plan(
        Folder(tmp_path / "feed"), Target("q", "T", ("id",), shape), snapshot_of(rows), rows, now_ms=lambda: 7,
        token="t", chunks=2, crash_point=lambda point: None,
    )  # fmt: skip
    assert (planned.rows, planned.messages, planned.duplicates) == (6, 2, 1)
    assert planned.quarantined == {"conflicting-duplicates": 2, "missing-id": 1}
    kept = staged(spark, run, [file for chunk in range(2) for file in planned.of_chunk(chunk)], STAGED).collect()
    assert sorted((row["id"], row["created_ms"], row["session"], row["copies"]) for row in kept) == [
        ("a", 7, "1" if session else None, 2), ("b", 7, "2" if session else None, 1),
    ]  # fmt: skip
    aside = staged(spark, run, planned.rejected, REJECTED).collect()
    assert {(row["row"], row["line"]) for row in aside} == {("c,3", 5), ("c,4", 6), (",5", 7)}
    assert {(row["id"], row["file"]) for row in aside} == {(id, str(tmp_path / "in.csv")) for id in ("c", None)}


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("duplicate.csv", b"id,amount,amount\n1,5,6\n", "rename all but one"),
        ("cut.csv.gz", gzip.compress(b"id,amount\n" + b"1,5\n" * 1000, mtime=0)[:-20], "fetch or pack it again"),
        ("unclear.csv", b"id,amount\na,5\nb,6\nc,5x\n", "column 'amount' is unclear"),
        ("typo.jsonl", b'{"no":1}\n', "there is no column 'id' in any row of"),
    ],
)
def test_an_input_that_cannot_be_fed_is_one_line_for_who_fed_it(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(data)
    options = ["--queue", "q", "--type", "T", "--quiet", "--connection", "Endpoint=sb://127.0.0.1:1;SharedAccessKey=k"]
    assert main(["--input", str(tmp_path / name), *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith("feed: ") and told in said and said.count("\n") == 1
    assert not list(tmp_path.rglob("manifest.json"))
