"""Inputs that cannot be fed at all: one text each, which names the file and the cure."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox.errors import Refused
from spark_jobs.reading import files, parquet_rows
from spark_jobs.reading.csv_rows import Csv
from spark_jobs.reading.files import files_at
from spark_jobs.reading.judging import BODY_BYTES_MAX, Judge
from spark_jobs.reading.lexer import QUOTED, SHOWN_BYTES, START, Begin, Lexer, records
from spark_jobs.reading.opened import check_unchanged, opened
from spark_jobs.reading.source import Dialect, Source
from spark_jobs.reading.spans import begun, cut, edges, judged_span
from tests.spark.reading import outcome

PACKED = gzip.compress(b"id,amount\n" + b"".join(b"%d,5\n" % n for n in range(5_000)), mtime=0)

REFUSED = [
    ("duplicate.csv", b"id,amount,amount\n1,5,6\n", "the header has 'amount' 2 times; rename all but one"),
    ("blank.csv", b"id,,amount\n1,x,5\n", "column 2 of the header has no name"),
    ("padded.csv", b"id, amount\n1,5\n", "the header has ' amount', with a blank at its end or beginning"),
    ("early.csv", b"\nid,amount\n1,5\n", "begins with an empty line"),
    ("open.csv", b'id,"amount\n1,5\n', "the header cannot be read: quotes that do not close"),
    ("bytes.csv", b"id,\xffmount\n1,5\n", "the header cannot be read: byte 4 of the row is not utf-8; --encoding"),
    ("sixteen.csv", "id,amount\n1,5\n".encode("utf-16"), "is UTF-16; convert it"),
    ("sixteen.json", '{"id":1}\n'.encode("utf-16"), "is UTF-16; convert it"),
    ("empty.csv", b"", "has 0 bytes; is it still being written"),
    ("empty.parquet", b"", "has 0 bytes; is it still being written"),
    ("packed.csv.zst", b"x", "packed.csv.zst is packed; unpack it, or pack it by gzip"),
    ("cut.csv.gz", PACKED[:-20], "is no whole gzip archive .*; fetch or pack it again"),
    ("broken.csv.gz", PACKED[:200] + b"x" * 50 + PACKED[250:], "is no whole gzip archive"),
    ("table.csv", b"PAR1\x15\x04\x15\nPAR1", "is Parquet by its first bytes; give --format parquet"),
    ("unnamed.csv", PACKED, "is a gzip archive by its first bytes; give it a name that ends with .gz"),
    ("CUT.CSV.GZ", PACKED[:-20], "is no whole gzip archive"),
    ("array.json", b'[\n  {"id": 1},\n  {"id": 2}\n]\n', "is one array; feed takes one object a line"),
    ("pretty.json", b'{\n  "id": 1\n}\n', "has an object over several lines; feed takes one object a line"),
    ("text.parquet", b"id,amount\n1,5\n", "is no whole Parquet file"),
    ("in.csv/_SUCCESS", b"", "has no files with data; names that begin with _ or . are left out"),
]


@pytest.mark.parametrize(("name", "data", "told"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_a_file_that_is_no_input_is_refused_by_name(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    kind = "csv" if name.endswith(".zst") else ""
    with pytest.raises(Refused, match=told) as error:
        outcome(Source(str(tmp_path / name.partition("/")[0]), kind))
    assert name.partition("/")[0] in str(error.value) and "\n" not in str(error.value)


def test_an_archive_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "in.csv.gz"
    path.write_bytes(PACKED + gzip.compress(b"more,6\n"))  # two archives behind each other are one
    found = outcome(Source(str(path)))
    assert len(found.messages) == 5_001 and found.messages["more"] == b'{"amount":6,"id":"more"}'
    assert found.rows[-1]["line"] == 5_002


def test_files_of_other_headers_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("id,amount\na,5\n")
    (tmp_path / "two.csv").write_text("amount,id\n5,b\n")
    with pytest.raises(Refused, match=r"two.csv has the columns amount, id, .*one.csv has id, amount; feed files of"):
        outcome(Source(str(tmp_path), "csv"))


def test_folders_of_other_columns_are_refused_together(tmp_path: Path) -> None:
    for folder in ("day=1", "week=1"):
        (tmp_path / "in.csv" / folder).mkdir(parents=True)
        (tmp_path / "in.csv" / folder / "x.csv").write_text("id\na\n")
    with pytest.raises(Refused, match=r"week=1/x.csv lies in other folders name=value than the first file \(day\)"):
        outcome(Source(str(tmp_path / "in.csv")))


def test_a_column_of_both_files_and_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "id=7").mkdir()
    (tmp_path / "id=7" / "x.csv").write_text("id\na\n")
    with pytest.raises(Refused, match="column 'id' is in the files and in the name of their folder"):
        outcome(Source(str(tmp_path), "csv"))


def test_a_path_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"there is no .*nowhere.csv, or no file in it; --input takes a file or a folder"):
        outcome(Source(str(tmp_path / "nowhere.csv")))
    with pytest.raises(Refused, match="tells no format by its name"):
        outcome(Source(str(tmp_path)))


def test_more_files_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_COUNT_MAX", 20)
    for number in range(20):
        (tmp_path / f"{number % 3}").mkdir(exist_ok=True)
        (tmp_path / f"{number % 3}" / f"{number}.csv").write_text(f"id\n{number}\n")
    assert len(outcome(Source(str(tmp_path), "csv")).messages) == 20
    (tmp_path / "more.csv").write_text("id\nmore\n")
    with pytest.raises(Refused, match="has more than 20 files; feed it folder by folder"):
        outcome(Source(str(tmp_path), "csv"))


def test_a_folder_that_is_linked_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path)
    with pytest.raises(Refused, match="is one of them linked to itself"):
        files_at(str(tmp_path), {}).list()


@pytest.mark.parametrize("change", ["longer", "other bytes", "gone", "new"])
def test_an_input_that_changes_while_it_is_read_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "in.csv" / "a.csv"
    path.parent.mkdir()
    path.write_text("id\na\n")
    (path.parent / "b.csv").write_text("id\nb\n")
    reading = opened(Source(str(path.parent)), files_at(str(path.parent), {}), 1).reading
    check_unchanged(reading)
    if change == "longer":
        path.write_text("id\na\nb\n")
    elif change == "other bytes":
        path.write_text("id\nc\n")
        os.utime(path, (1, 1))
    elif change == "gone":
        path.unlink()
    else:
        path.with_name("0.csv").write_text("id\nb\n")
    told = {"gone": "is gone", "new": "is new"}.get(change, "has changed")
    with pytest.raises(Refused, match=f"{told} since the input was first looked at; nothing was sent"):
        check_unchanged(reading)


def test_a_file_that_became_shorter_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id\n" + "abc\n" * 100)
    found = files_at(str(path), {})
    [file] = found.list()
    path.write_text("id\n")
    with pytest.raises(Refused, match="has changed while it was read"):
        list(found.chunks(file))


@pytest.mark.parametrize("mess", [b"x" * 900, b'"' + b"x\n" * 450 + b'"', b'"' + b"x" * 900])
def test_a_row_beyond_the_limit_is_set_aside_and_the_next_is_read(mess: bytes) -> None:
    """With a limit of 300 bytes, in chunks of 50."""
    data = b"a,1\nb," + mess + (b"" if mess.count(b'"') == 1 else b"\nc,3\n")
    chunks = [data[at : at + 50] for at in range(0, len(data), 50)]
    found = list(records(Lexer(Dialect()), chunks, Begin(), len(data), limit=300))
    rows = [Csv(Dialect(multiline=True), 2).rows(part, limit=300) for part in found]
    broken = [row for each in rows for row in each.broken]
    assert [(row.line, row.reason) for row in broken] == [
        (2, "oversize: a row of more than 300 bytes, the most that is read of one")
    ]
    assert len(broken[0].raw) <= min(350, SHOWN_BYTES)
    sent = [(line, value) for each in rows for line, value in zip(each.lines, each.values, strict=True)]
    last = 3 + mess.count(b"\n")
    assert sent == [(1, [b"a", b"1"]), *([(last, [b"c", b"3"])] if data.endswith(b"3\n") else [])]


def test_a_range_within_a_row_reads_no_further_than_itself() -> None:
    """A file whose first quote is never closed is not read to its end by each of its ranges."""
    given = [b"1,x\n" * 10] * 100
    for begin in (Begin(QUOTED, 5, False), Begin(START, 5)):  # of a row of an earlier range, and of one that is its own
        read = list[bytes]()

        def chunks(first: bytes, data: list[bytes] = read) -> Iterator[bytes]:
            for chunk in (first, *given):
                data.append(chunk)
                yield chunk

        found = list(records(Lexer(Dialect()), chunks(b'"' * begin.is_record), begin, 200, limit=100))
        assert len(read) <= 6 and [part.cut for part in found] == [frozenset({0})] * begin.is_record


@pytest.mark.parametrize("span_bytes", [7, 100, 1 << 20])
def test_a_span_that_lies_within_a_long_row_has_no_row(tmp_path: Path, span_bytes: int) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,t\na,"' + b"1,x\n" * 300 + b'"\nb,y\n')
    source = Source(str(path), schema="id string, t string", dialect=Dialect(multiline=True))
    reading = opened(source, files_at(source.path, {}), 1).reading
    spans = cut(0, reading.listed[0], len("id,t\n"), span_bytes)
    spans = begun(spans, [edges(reading, span) for span in spans], 1)
    found = [batch.to_pylist() for span in spans for batch in judged_span(reading, span, Judge(("id",)))]
    assert [(row["id"], row["position"]) for rows in found for row in rows] == [("a", 2), ("b", 303)]


def test_a_row_group_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"id": [str(n) for n in range(1_000)]}), tmp_path / "in.parquet")
    monkeypatch.setattr(parquet_rows, "GROUP_BYTES_MAX", 1_000)
    with pytest.raises(Refused, match=r"row group 0 has [0-9,]+ bytes; write groups of at most 1,000"):
        outcome(Source(str(tmp_path / "in.parquet")))


def test_a_column_that_has_no_json_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "d": pa.array([1], pa.duration("s"))}), tmp_path / "in.parquet")
    with pytest.raises(Refused, match=r"in.parquet: column d: a value of type duration\[s\] has no JSON"):
        outcome(Source(str(tmp_path / "in.parquet")))


def test_a_parquet_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [str(n) for n in range(1_000)]}), path)
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(Refused, match=r"in.parquet: row group 0 cannot be read: .*; write the file again"):
        outcome(Source(str(path)))


def test_the_last_row_needs_no_line_end(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\na\r\nb")
    assert set(outcome(Source(str(tmp_path / "in.csv"))).messages) == {"a", "b"}


@pytest.mark.parametrize("quote", [b"", b'"'])
def test_a_row_of_any_length_takes_no_more_memory_than_the_limit(quote: bytes) -> None:
    """A row of 50 MB with a limit of 1 MB; what is held is measured."""
    chunk, data = b"x" * 65_536, b"a,1\nb," + quote
    size = len(data) + 800 * len(chunk)
    tracemalloc.start()
    try:
        limit, dialect = 1_000_000, Dialect(multiline=True)
        found = records(Lexer(dialect), chain([data], repeat(chunk, 800)), Begin(), size, limit=limit)
        rows = [Csv(dialect, 2).rows(part, limit=limit) for part in found]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [row.reason.partition(":")[0] for each in rows for row in each.broken] == ["oversize"]
    assert [value for each in rows for value in each.values] == [[b"a", b"1"]] and peak < 5 * limit


def test_the_body_of_a_row_that_is_set_aside_goes_nowhere(tmp_path: Path) -> None:
    long = "x" * BODY_BYTES_MAX
    pq.write_table(pa.table({"id": ["a", "b", ""], "t": ["1", long, "3"]}), tmp_path / "in.parquet")
    found = outcome(Source(str(tmp_path / "in.parquet")))
    assert [(row["id"], row["reason"], row["body"]) for row in found.rows] == [
        ("a", None, '{"id":"a","t":"1"}'),
        ("b", "oversize", None),
        ("", "missing-id", None),
    ]
    assert found.rows[1]["text"].startswith('{"id":"b","t":"xxx')
