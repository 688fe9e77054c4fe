"""What a file's rows become: messages, or rows that are set aside with a reason; without a Spark session."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox.errors import Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.ids import BROKER_ID_LENGTH_MAX, ID_LENGTH_MAX
from spark_jobs.reading.arrow import json_of
from spark_jobs.reading.files import CHUNK_BYTES, Files, files_at
from spark_jobs.reading.input import TASK_BYTES_MAX, tasks_of
from spark_jobs.reading.judging import SHOWN_BYTES_MAX, Batch, Judge, Shape, created_ms, judged, text_of
from spark_jobs.reading.lexer import Records
from spark_jobs.reading.source import Dialect, Source
from spark_jobs.reading.spans import DIGEST_MASK, SPAN_BYTES_MAX, Span, Survey, sliced
from tests.spark.reading import outcome


def written(tmp_path: Path, data: str | bytes, name: str = "input.csv") -> str:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def test_integers_stay_integers_and_ids_stay_text(tmp_path: Path) -> None:
    found = outcome(Source(written(tmp_path, "id,source,amount,zip\n7,alice,5,01234\n8,bob,-3,12345\n")))
    assert found.messages["7"] == b'{"amount":5,"id":"7","source":"alice","zip":"01234"}'
    assert found.sent["8"]["amount"] == -3 and found.aside == []


def test_a_column_that_is_nearly_a_number_is_asked_about(tmp_path: Path) -> None:
    path = written(tmp_path, "id,amount\na,5\nb,6\nc,5x\n")
    with pytest.raises(Refused, match=r"'amount' is unclear: 1 of 3 values are no integers, '5x'.*--schema"):
        outcome(Source(path))


def test_with_a_schema_the_wrong_value_is_set_aside(tmp_path: Path) -> None:
    path = written(tmp_path, "id,amount\na,5\nb,6\nc,5: five\n")
    found = outcome(Source(path, schema="id string, amount bigint"))
    assert found.sent == {"a": {"id": "a", "amount": 5}, "b": {"id": "b", "amount": 6}}
    assert found.aside == [("c", "wrong-type")]
    told = found.rows[-1]
    assert told["detail"] == "column amount is bigint, not 5: five"
    assert (told["text"], told["file"], told["line"]) == ("c,5: five", path, 4)


def test_a_file_has_a_name_where_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, gone = files_at(written(tmp_path, "id\na\n"), {}), tmp_path / "gone"
    (file,) = files.list()
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert files.shown(file) == f"{tmp_path}/input.csv"


def test_a_schema_names_the_columns_that_are_sent(tmp_path: Path) -> None:
    path = written(tmp_path, "id,amount,secret\na,5,x\n")
    assert outcome(Source(path, schema="id string, amount int")).sent == {"a": {"id": "a", "amount": 5}}
    with pytest.raises(Refused, match=r"--schema names other; .*input.csv has id, amount, secret"):
        outcome(Source(path, schema="other int"))
    with pytest.raises(Refused, match="--schema leaves column 'secret' out"):
        outcome(Source(path, schema="id string"), Shape(session="secret"))


def test_bad_rows_are_set_aside_with_the_reason(tmp_path: Path) -> None:
    rows = "id,note\na,short\nb\nc,x,y\n,none\n" + "d" * 2000 + ",long\ne," + "x" * 200 + "\n"
    found = outcome(Source(written(tmp_path, rows)), Shape(body_bytes_max=100))
    assert set(found.messages) == {"a"}
    assert [reason for _, reason in found.aside] == [
        "malformed-row", "malformed-row", "missing-id", "long-id", "oversize",
    ]  # fmt: skip


def test_equal_rows_of_an_id_are_one_message_and_unequal_ones_none(tmp_path: Path) -> None:
    found = outcome(Source(written(tmp_path, "id,amount\na,5\na,5\nb,1\nb,2\n")))
    assert set(found.messages) == {"a"} and found.aside == []


def test_what_stands_in_quotes_is_text_to_its_last_sign(tmp_path: Path) -> None:
    rows = 'id,note,amount\na,"one, ""two""",5\nb,"dear sir\nx,100,thanks",6\nc,"a\rb",7\nd,,8\ne,"",9\n'
    found = outcome(Source(written(tmp_path, rows), dialect=Dialect(multiline=True)))
    assert {id: row.get("note") for id, row in found.sent.items()} == {
        "a": 'one, "two"', "b": "dear sir\nx,100,thanks", "c": "a\rb", "d": None, "e": "",
    }  # fmt: skip
    assert [row["line"] for row in found.rows] == [2, 3, 5, 6, 7]
    single = outcome(Source(written(tmp_path, rows)))
    assert "x" not in single.messages and single.aside == [("", "malformed-row")]
    assert "up to line 4; --multiline" in single.rows[1]["detail"]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (b'1,"a,b\n2,a\xff,b\n3,c",d\n4,e,f\n', "bad-encoding"),
        (b'1,"a,b\n2,a,b\n"3,c,d\n4,e,f\n', "text behind a closing quote"),
    ],
)
def test_a_row_says_which_lines_its_open_quote_took(tmp_path: Path, rows: bytes, told: str) -> None:
    found = outcome(Source(written(tmp_path, b"id,note,amount\n" + rows)))
    assert list(found.messages) == ["4"]
    [broken] = [row for row in found.rows if row["reason"]]
    assert (broken["line"], told in f"{broken['reason']}: {broken['detail']}") == (2, True)
    assert broken["detail"].endswith("; a quote of line 2 takes the lines up to 4")


def test_a_dialect_is_what_it_is_given_as(tmp_path: Path) -> None:
    rows = "id;note\na;'say \\'hi\\' \\\\ there'\nb;'C:\\temp'\nc;un\\quoted\nd;'two''quotes'\n"
    found = outcome(Source(written(tmp_path, rows), dialect=Dialect(";", "'", "\\")))
    assert found.sent == {"a": {"id": "a", "note": "say 'hi' \\ there"}}
    assert [row["detail"].partition(",")[0] for row in found.rows if row["reason"]] == [
        "quotes that do not close", "\\ inside a field that is not quoted", "text behind a closing quote",
    ]  # fmt: skip
    latin = outcome(Source(written(tmp_path, "id,größe\nä,ö\n".encode("cp1252")), dialect=Dialect(encoding="cp1252")))
    assert latin.messages == {"ä": '{"größe":"ö","id":"ä"}'.encode()}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"separator": ";;"}, "--separator ';;' is not one ASCII character"),
        ({"separator": ""}, "are different characters, and there is a separator"),
        ({"quote": ","}, "are different characters"),
        ({"quote": "", "escape": "\\"}, "--escape needs a --quote"),
        ({"encoding": "klingon"}, "--encoding 'klingon' is not known"),
        ({"encoding": "utf-16"}, "--encoding utf-16 has no single bytes; convert the file"),
        ({"encoding": "gb18030"}, "has no single bytes"),
        ({"encoding": "shift_jis"}, "has no single bytes"),
        ({"encoding": "cp037"}, "has no single bytes"),
    ],
)
def test_a_dialect_in_which_no_row_could_be_found_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=told):
        Dialect(**given)


def test_json_brings_its_types_and_a_broken_line_is_set_aside(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": "a", "amount": 5, "tags": ["x"]}\nnonsense\n{"id": "b"}\n', "input.jsonl")
    found = outcome(Source(path))
    assert found.sent == {"a": {"id": "a", "amount": 5, "tags": ["x"]}, "b": {"id": "b"}}
    assert found.aside == [("", "malformed-row")] and found.rows[1]["line"] == 2


def test_numbers_of_json_are_sent_as_they_are_written(tmp_path: Path) -> None:
    rows = '{"id":"a","n":9007199254740993}\n{"id":"b","n":0.50}\n{"id":"c","n":1e400}\n{"id":"d","n":NaN}\n'
    found = outcome(Source(written(tmp_path, rows, "in.json")))
    assert found.messages == {"a": b'{"id":"a","n":9007199254740993}', "b": b'{"id":"b","n":0.50}'}
    assert [row["line"] for row in found.rows if row["reason"]] == [3, 4]


def test_a_schema_of_json_lines_is_kept_by_every_row(tmp_path: Path) -> None:
    rows = (
        '{"id":"a","n":5,"d":"2025-01-05","x":1}\n{"id":"b","n":"5"}\n{"id":"c","n":5.5}\n{"id":"d","d":5}\n{"id":5}\n'
    )
    found = outcome(Source(written(tmp_path, rows, "in.json"), schema="id string, n bigint, d date"))
    assert found.messages == {"a": b'{"d":"2025-01-05","id":"a","n":5}'}
    assert [row["detail"] for row in found.rows if row["reason"]] == [
        'column n is bigint, not "5"', "column n is bigint, not 5.5", "column d is date, not 5",
        "column id is string, not 5",
    ]  # fmt: skip


def test_parquet_brings_its_types(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "vip": [True, None], "name": ["x", "y"]})
    pq.write_table(table, tmp_path / "input.parquet")
    found = outcome(Source(str(tmp_path / "input.parquet")))
    assert found.sent == {"1": {"id": 1, "vip": True, "name": "x"}, "2": {"id": 2, "name": "y"}}
    assert found.aside == []


def test_a_column_that_newer_files_have_is_in_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "in.parquet"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["1"], "a": [1]}), folder / "one.parquet")
    pq.write_table(pa.table({"id": ["2"], "a": pa.array([2], pa.int32()), "b": ["x"]}), folder / "two.parquet")
    pq.write_table(pa.table({"id": ["3"], "b": pa.array([None], pa.null())}), folder / "zero.parquet")
    found = outcome(Source(str(folder)))
    assert found.sent == {"1": {"id": "1", "a": 1}, "2": {"id": "2", "a": 2, "b": "x"}, "3": {"id": "3"}}
    pq.write_table(pa.table({"id": ["4"], "a": ["4"]}), folder / "three.parquet")
    with pytest.raises(Refused, match=r"column a is string in .*three.parquet and integer in .*one.parquet"):
        outcome(Source(str(folder)))


def test_a_value_of_parquet_that_json_does_not_have_sets_its_row_aside(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffc")]
    )
    table = pa.table({"id": ["1", "2", "3"], "x": pa.array([float("nan"), 0.5, 1e7]), "t": broken})
    maps = pa.array([None, None, [("b", 1), ("a", None)]], pa.map_(pa.string(), pa.int8()))
    twice = pa.array([[("a", 1), ("a", 1)]], pa.map_(pa.string(), pa.int8()))
    with pq.ParquetWriter(tmp_path / "in.parquet", table.append_column("m", maps).schema) as writer:
        writer.write_table(table.append_column("m", maps))
        writer.write_table(table[:0].append_column("m", maps[:0]))  # a row group without rows
        writer.write_table(table[2:].append_column("m", twice))
    found = outcome(Source(str(tmp_path / "in.parquet")))
    assert found.messages == {"3": b'{"id":"3","m":{"a":null,"b":1},"t":"c","x":1.0E7}'}
    assert [(row["line"], row["detail"]) for row in found.rows if row["reason"]] == [
        (1, "column x: NaN or an infinity, which JSON does not have"), (2, "column t: bytes that are no UTF-8"),
        (4, "column m: a map that has a key twice"),
    ]  # fmt: skip
    assert [row["text"] for row in found.rows][:2] == ['{"id":"1","t":"a"}', '{"id":"2","x":0.5}']


def test_folders_are_read_with_the_columns_that_their_names_tell(tmp_path: Path) -> None:
    for day, rows in (("1", "id,n\na,1\n"), ("2", "id,n\nb,2\n")):
        written(tmp_path, rows, f"in.csv/day={day}/region=north%20east/part.csv")
        written(tmp_path, f'{{"id":"{day}"}}\n', f"in.json/day={day}/region=__HIVE_DEFAULT_PARTITION__/part.json")
        (tmp_path / f"in.parquet/day=0{day}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [day]}), tmp_path / f"in.parquet/day=0{day}/part.parquet")
    written(tmp_path, "no data", "in.csv/_SUCCESS")
    written(tmp_path, "no data", "in.csv/day=1/region=north%20east/.part.csv.crc")
    assert outcome(Source(str(tmp_path / "in.csv"))).messages == {
        "a": b'{"day":1,"id":"a","n":1,"region":"north east"}',
        "b": b'{"day":2,"id":"b","n":2,"region":"north east"}',
    }
    assert outcome(Source(str(tmp_path / "in.json"))).messages["2"] == b'{"day":2,"id":"2"}'
    assert outcome(Source(str(tmp_path / "in.parquet"))).messages["2"] == b'{"day":"02","id":"2"}'
    both = outcome(Source(str(tmp_path / "in.json")), ids=("day", "id"))
    assert len(both.messages) == 2 and both.aside == []


def test_a_row_of_too_many_fields_has_no_id_where_its_folder_names_that(tmp_path: Path) -> None:
    written(tmp_path, "n\n1\n2,x\n", "in.csv/day=a/part.csv")
    found = outcome(Source(str(tmp_path / "in.csv")), ids=("day",))
    assert found.sent == {"a": {"day": "a", "n": 1}}
    assert found.aside == [("", "malformed-row")]


def test_subfolders_without_a_column_are_read_as_well(tmp_path: Path) -> None:
    written(tmp_path, "id\na\n", "in.csv/one.csv")
    written(tmp_path, "id\nb\n", "in.csv/deep/down/two.csv")
    assert set(outcome(Source(str(tmp_path / "in.csv"))).messages) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "wanted_ms"),
    [("1767225600000", 1767225600000), ("2026-01-01", 1767225600000), ("2026-01-01T00:00:01Z", 1767225601000)],
)
def test_a_creation_time_is_read_in_utc(tmp_path: Path, text: str, wanted_ms: int) -> None:
    source = Source(written(tmp_path, f"id,at\na,{text}\nb,\n"))
    found = outcome(source, Shape(created="at"))
    assert [row["created_ms"] for row in found.rows] == [wanted_ms, None]
    assert found.aside == [("b", "bad-created")]


@pytest.mark.parametrize(
    ("column", "wanted_ms"),
    [
        (pa.array([1767225600001]), 1767225600001),
        (pa.array([date(2026, 1, 1)]), 1767225600000),
        (pa.array([datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)]), 1767225601000),
        (pa.array([1767225601000999], pa.timestamp("us")), 1767225601000),
        (pa.array([1767225601123456789], pa.timestamp("ns")), 1767225601123),
        (pa.array(["999999999999"]), 999999999999),
        (pa.array(["999999999999999"]), "microseconds divided by 1,000"),
        (pa.array(["1234567890123456"]), "tells no time"),
        (pa.array([1767225600]), "seconds times 1,000"),  # seconds, not milliseconds
        (pa.array(["1767225600"]), "seconds times 1,000"),
        (pa.array([978307200000]), 978307200000),
        (pa.array([978307199999]), "seconds times 1,000"),
        (pa.array([-5]), "tells no time"),
        (pa.array(["-5"]), "tells no time"),
        (pa.array(["soon"]), "tells no time"),
        (pa.array([None], pa.string()), "tells no time"),
    ],
)
def test_a_creation_time_is_a_time_of_any_type(column: pa.Array, wanted_ms: int | str) -> None:
    [value] = json_of(column)
    found = created_ms(value)
    assert found == wanted_ms if isinstance(wanted_ms, int) else wanted_ms in str(found)


def test_a_creation_time_of_another_type_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "at": [1.5]}), tmp_path / "in.parquet")
    with pytest.raises(Refused, match="a creation time cannot be double"):
        outcome(Source(str(tmp_path / "in.parquet")), Shape(created="at"))
    source = Source(written(tmp_path, "id,at\na,1\n"), schema="id string, at decimal(10,2)")
    with pytest.raises(Refused, match=r"a creation time cannot be decimal\(10,2\)"):
        outcome(source, Shape(created="at"))


def test_an_id_is_of_columns_whose_text_is_the_same_everywhere(tmp_path: Path) -> None:
    table = pa.table({"id": ["a"], "x": [1.5], "at": [datetime(2026, 1, 1, tzinfo=UTC)], "day": [date(2026, 1, 1)]})
    pq.write_table(table, tmp_path / "in.parquet")
    source = Source(str(tmp_path / "in.parquet"))
    for name in ("x", "at"):
        with pytest.raises(Refused, match=f"column '{name}' is .* an id may be made of string, integer, boolean and"):
            outcome(source, ids=("id", name))
    with pytest.raises(Refused, match="there is no column 'no' to take the id from"):
        outcome(source, ids=("no",))
    assert set(outcome(source, ids=("day",)).messages) == {"2026-01-01"}


def body_of(account: str | None, at: str | None, n: str | None, pad: str) -> str:
    """The body of a row, as it is made."""
    named = {"account": account, "at": at, "n": n, "pad": pad}
    return json.dumps({k: v for k, v in named.items() if v is not None}, ensure_ascii=False, separators=(",", ":"))


def test_up_to_each_limit_a_row_is_sent_and_over_it_the_first_reason_is_told() -> None:
    longest, session, time = "i" * ID_LENGTH_MAX, "ü" * BROKER_ID_LENGTH_MAX, "978307200000"  # characters, not bytes
    fits = (session, time, str(-(1 << 63)), "ü" * 20)
    given = [
        ("", (longest, fits)),
        ("missing-id", (None, fits)),
        ("missing-id", ("", fits)),
        ("long-id", (longest + "i", fits)),
        ("", ("ü" * ID_LENGTH_MAX, fits)),  # characters, not bytes
        ("oversize", ("a", (*fits[:3], "ü" * 20 + "x"))),
        ("bad-created", ("b", ("", "soon", "x", ""))),  # the session and the order are wrong as well
        ("missing-session", ("c", ("", time, "x", ""))),
        ("missing-session", ("d", (None, time, "7", ""))),
        ("long-session", ("e", (session + "s", time, "x", ""))),
        ("bad-order", ("f", ("s", time, "1x", ""))),
        ("bad-order", ("g", ("s", time, str(1 << 63), ""))),
    ]

    def text(value: str | None) -> bytes | None:
        return None if value is None else f'"{value}"'.encode()

    rows = [row for _, (_, row) in given]
    marks: Any = {name: [text(row[at]) for row in rows] for at, name in enumerate(("account", "at", "n"))}
    keys: Any = [[None if id is None else id.encode() for _, (id, _) in given]]
    bodies = [body_of(*row).encode() for row in rows]
    shape = Shape("at", "account", "n", body_bytes_max=len(body_of(*fits).encode()))
    batch = Batch(bodies, keys, marks, range(1, 1 + len(rows)), bodies, {})
    found = judged(batch, Judge(("id",), shape), "in.csv", 0).to_pylist()
    assert [row["reason"] or "" for row in found] == [reason for reason, _ in given]
    sent = found[0]
    assert (sent["body"], sent["created_ms"], sent["session"], sent["position"]) == (
        body_of(*fits), 978307200000, session, -(1 << 63),
    )  # fmt: skip


def test_a_reason_of_the_grammar_is_told_before_all_others() -> None:
    batch = Batch([b"{}"], [[None]], {}, [1], [b"x"], {0: "wrong-type: column x"})
    judge = Judge(("id",), check_body=lambda body: "none of ours")
    [row] = judged(batch, judge, "in.csv", 0).to_pylist()
    assert (row["reason"], row["detail"], row["text"], row["line"]) == ("wrong-type", "column x", "x", 1)


def test_a_row_stands_where_it_stood_in_all_files(tmp_path: Path) -> None:
    written(tmp_path, "id,session\na,s\nb,s\n", "in.csv/1.csv")
    written(tmp_path, "id,session\nc,s\n", "in.csv/2.csv")
    found = outcome(Source(str(tmp_path / "in.csv")), Shape(session="session"))
    assert [(row["id"], row["session"], row["line"]) for row in found.rows] == [
        ("a", "s", 2),
        ("b", "s", 3),
        ("c", "s", 2),
    ]


def test_the_rows_of_a_later_file_stand_behind_all_of_an_earlier_one() -> None:
    lines = [(rank, Batch([b"{}"], [[b"a"]], {}, [line], [b"x"], {})) for rank, line in ((0, 1 << 38), (1, 1))]
    first, second = (judged(batch, Judge(("id",)), "in.csv", rank).to_pylist()[0] for rank, batch in lines)
    assert first["position"] < second["position"]
    told = Batch([b"{}"], [[b"a"]], {}, [0], [b"x"], {}, positions=[7])  # as a frame has them
    assert judged(told, Judge(("id",)), "", 0).to_pylist()[0]["position"] == 7


def test_an_id_of_several_columns_misses_none_of_them(tmp_path: Path) -> None:
    found = outcome(Source(written(tmp_path, "a,b\n1,\n,1\n1,1\n")), ids=("a", "b"))
    assert found.aside == [("", "missing-id")] * 2 and len(found.messages) == 1


def test_a_row_of_another_folder_is_another_row(tmp_path: Path) -> None:
    for name in ("1/day=1/a.csv", "2/day=2/a.csv"):
        written(tmp_path, "id\na\n", name)
        written(tmp_path, '{"id":"a"}\n', name.replace("/", "j/", 1).replace(".csv", ".jsonl"))
    sources = [Source(str(tmp_path / name), "json" if "j" in name else "csv") for name in ("1", "2", "1j", "2j")]
    assert len({outcome(source).survey.digest for source in sources}) == 4


def test_the_survey_of_an_input_is_the_sum_of_its_parts() -> None:
    whole, seen = Survey(1, 10, DIGEST_MASK, ["a"], {"x": (1, 0, False, "")}), {"y": (2, 0, False, "")}
    whole.add(Survey(2, 20, 6, ["b"], seen))
    assert (whole.rows, whole.size, whole.digest, whole.found) == (3, 30, 5, ["a", "b"])
    assert whole.seen == {"x": (1, 0, False, ""), **seen}


def test_a_row_that_was_cut_stays_one_in_a_slice() -> None:
    [found] = sliced([Records([b"x"], [1], frozenset({0}), is_whole=False)])
    assert (found.cut, found.is_whole) == (frozenset({0}), False)


def test_a_header_that_ends_as_windows_has_it_names_the_same_columns(tmp_path: Path) -> None:
    assert outcome(Source(written(tmp_path, "id,n\r\na,1\r\n"))).sent == {"a": {"id": "a", "n": 1}}


def test_a_long_row_is_shown_by_its_beginning() -> None:
    assert text_of(b"x" * SHOWN_BYTES_MAX) == b"x" * SHOWN_BYTES_MAX
    assert text_of(b"x" * (SHOWN_BYTES_MAX + 1)) == b"x" * SHOWN_BYTES_MAX + b" ..."


def test_a_task_has_a_bounded_part_of_a_large_input() -> None:
    """A worker may hold all of it at once: PySpark hands parted values on by their number."""
    spans = [Span(0, at * SPAN_BYTES_MAX, (at + 1) * SPAN_BYTES_MAX) for at in range(160)]  # 10 GiB
    tasks = tasks_of(spans, 8)
    assert [span for task in tasks for span in task] == spans
    assert max(sum(span.size for span in task) for task in tasks) == TASK_BYTES_MAX
    assert len(tasks) == 80 and list(map(len, tasks_of(spans[:8], 8))) == [1] * 8
    assert list(map(len, tasks_of([Span(0, at, at + 1) for at in range(5_000)], 1))) == [2_000, 2_000, 1_000]


def test_what_lies_behind_a_span_is_read_to_the_end_in_parts_that_grow(tmp_path: Path) -> None:
    data = bytes(range(251)) * 15_000  # a row may begin in a span and go on for megabytes
    (tmp_path / "rows.csv").write_bytes(data)
    files = Files(Folder(tmp_path))
    [file] = files.list()
    parts = list(files.owned(file, 100, 200))
    assert b"".join(parts) == data[100:] and max(map(len, parts)) == CHUNK_BYTES
