"""Spans: the parts of an input that are read apart, and what a task does with one.  No Spark here.

    edges     line feeds, and the states of the lexer at a span's end         tells where the records of each begin
    survey    rows, a digest of them, what the values of CSV's columns are     tells the types, and whether it changed
    judged    the rows as messages, or set aside
    picked    some fields of JSON lines as texts

A span of CSV or JSON lines owns the records that begin in its bytes; an archive is one span, and so is a row group of
Parquet.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import msgspec
import pyarrow as pa

from outbox.errors import Refused
from spark_jobs.reading import parquet_rows
from spark_jobs.reading.arrow import text_column
from spark_jobs.reading.csv_rows import Csv
from spark_jobs.reading.files import File, Files
from spark_jobs.reading.json_rows import Objects, is_blank, objects
from spark_jobs.reading.judging import (
    Judge,
    broken_rows,
    judged,
    key_of,
    of_arrow,
    of_fields,
    of_objects,
)
from spark_jobs.reading.kinds import Kind, Seen
from spark_jobs.reading.lexer import NO_QUOTES, START, Begin, Lexer, Records, records, survey
from spark_jobs.reading.rows import Fields
from spark_jobs.reading.source import Dialect
from spark_jobs.reading.texts import quoted

ROWS_AT_ONCE = 8_192
DIGEST_MASK = (1 << 64) - 1
SPAN_BYTES_MIN, SPAN_BYTES_MAX = 1024 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a ranked file: bytes from `begin` to `end`, or a row group of `rows` rows."""

    rank: int
    begin: int
    end: int
    start: Begin = field(default_factory=Begin)
    group: int = -1
    rows: int = 0

    @property
    def size(self) -> int:
        """Its bytes, packed as they are."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Reading:
    """The description of an input for a task; `kinds` are the types of CSV, and of JSON with a schema.

    `names` are CSV's columns, those of folders at their end; `given` the values of those by file.
    """

    files: Files
    listed: tuple[File, ...]
    kind: str
    dialect: Dialect
    names: tuple[str, ...] = ()
    kinds: Mapping[str, Kind] | None = None
    given: tuple[Mapping[str, bytes], ...] = ()
    columns: tuple[str, ...] | None = None
    """The columns of Parquet that are read; None: all."""

    def given_of(self, span: Span) -> Mapping[str, bytes]:
        """The values that a file's folder names give: texts for CSV, JSON else."""
        return self.given[span.rank] if self.given else {}

    @property
    def lexer(self) -> Lexer:
        """The states of this format."""
        return Lexer(self.dialect if self.kind == "csv" else NO_QUOTES)


class Edges(msgspec.Struct, frozen=True):
    """The effect of a span's bytes on line numbers and states."""

    lines: int
    ends: list[int]
    ends_line: bool


class Survey(msgspec.Struct):
    """The survey of a span, or of an input."""

    rows: int = 0
    size: int = 0
    """The bytes of all rows."""
    digest: int = 0
    found: list[str] = []
    """The asked-for names that JSON lines have."""
    seen: dict[str, tuple[int, int, bool, str]] = {}
    """The counts of `Seen`, by column of CSV."""

    def look(self, rows: Sequence[bytes]) -> None:
        """Count more rows."""
        self.rows += len(rows)
        self.size += sum(map(len, rows))
        self.digest = (self.digest + digest_of(rows)) & DIGEST_MASK

    def add(self, other: Survey) -> None:
        """Count what another part holds."""
        self.rows += other.rows
        self.size += other.size
        self.digest = (self.digest + other.digest) & DIGEST_MASK
        self.found = sorted({*self.found, *other.found})
        for name, counts in other.seen.items():
            both = Seen(*self.seen[name]) if name in self.seen else Seen()
            both.add(Seen(*counts))
            self.seen = {**self.seen, name: both.counts}


def cut(rank: int, file: File, begin: int, span_bytes: int) -> list[Span]:
    """The spans of a file of lines that begin behind its header."""
    if file.is_gzip:
        return [Span(rank, begin, sys.maxsize)]
    ends = [*range(begin + span_bytes, file.size, span_bytes), file.size]
    return [Span(rank, at, end) for at, end in zip([begin, *ends], ends, strict=False) if at < end]


def edges(reading: Reading, span: Span) -> Edges:
    """The effect of a span's bytes."""
    file = reading.listed[span.rank]
    return Edges(*survey(reading.lexer, reading.files.chunks(file, span.begin, span.end)))


def begun(spans: Sequence[Span], found: Sequence[Edges], header_lines: int) -> list[Span]:
    """Set the start of each span by the effects of the ones before; a file's spans are in order."""
    begin, placed, rank = Begin(), list[Span](), -1
    for span, edge in zip(spans, found, strict=True):
        if span.rank != rank:
            rank, begin = span.rank, Begin(line=1 + header_lines)
        placed.append(replace(span, start=begin))
        state = edge.ends[begin.state]
        begin = Begin(state, begin.line + edge.lines, edge.ends_line and state == START)
    return placed


def records_of(reading: Reading, span: Span) -> Iterator[Records]:
    """The records of a span of lines."""
    chunks = reading.files.owned(reading.listed[span.rank], span.begin, span.end)
    return records(reading.lexer, chunks, span.start, span.size)


def csv_of(reading: Reading, judge: Judge | None) -> Csv:
    """The grammar of the files' own columns."""
    own = len(reading.names) - (len(reading.given[0]) if reading.given else 0)
    at = reading.names.index(judge.ids[0]) if judge is not None and len(judge.ids) == 1 else None
    return Csv(reading.dialect, own, None if at is not None and at >= own else at)


def with_given(rows: Fields, given: Mapping[str, bytes]) -> Fields:
    """Rows of CSV with the columns that folders tell; an empty text stands for none."""
    if not given:
        return rows
    values = [value or None for value in given.values()]
    return replace(rows, values=[[*row, *values] for row in rows.values])


def surveyed(reading: Reading, span: Span, asked: Sequence[str]) -> Survey:
    """Survey a span; `asked` are names that JSON lines should have."""
    if reading.kind == "parquet":
        return surveyed_groups(reading, span)
    return surveyed_csv(reading, span) if reading.kind == "csv" else surveyed_lines(reading, span, asked)


def surveyed_groups(reading: Reading, span: Span) -> Survey:
    """The same of a row group, whose rows are known by their bodies."""
    found, judge = Survey(), Judge(())
    for batch, lines in arrow_batches(reading, span):
        found.look(of_arrow(batch, lines, judge, reading.given_of(span)).bodies)
    return found


def surveyed_csv(reading: Reading, span: Span) -> Survey:
    """The same of CSV, with what the values of its columns are where no schema tells."""
    found, seen, given = Survey(), dict[str, Seen](), reading.given_of(span)
    grammar = csv_of(reading, None)
    for part in sliced(records_of(reading, span)):
        rows = with_given(grammar.rows(part), given)
        found.look(marked([*rows.raw, *(row.raw for row in rows.broken)], given))
        if reading.kinds is None and rows.values:
            for name, column in zip(reading.names, zip(*rows.values, strict=True), strict=True):
                seen.setdefault(name, Seen()).look(column)
    found.seen = {name: each.counts for name, each in seen.items()}
    return found


def surveyed_lines(reading: Reading, span: Span, asked: Sequence[str]) -> Survey:
    """The same of JSON lines, with the asked-for names that are in any of them."""
    found, has, given = Survey(), set[str](), reading.given_of(span)
    missing = {name: quoted(name).encode() for name in asked}
    for part in sliced(records_of(reading, span)):
        raw = [record for record in part.raw if not is_blank(record)]
        found.look(marked(raw, given))
        if missing:
            whole = b"\n".join(raw)
            has |= {name for name, sign in missing.items() if sign in whole}
            missing = {name: sign for name, sign in missing.items() if name not in has}
    found.found = sorted(has | ({*given} & {*asked}))
    return found


def marked(rows: list[bytes], given: Mapping[str, bytes]) -> list[bytes]:
    """Rows with what the names of their folders tell, so that a row of another folder is another row."""
    suffix = b"".join(b"\x00%b\x00%b" % (name.encode(), value) for name, value in given.items())
    return [row + suffix for row in rows] if suffix else rows


def digest_of(rows: Iterable[bytes]) -> int:
    """The sum of the rows' digests: the same in any order."""
    return sum(array("Q", b"".join([blake2b(row, digest_size=8).digest() for row in rows]))) & DIGEST_MASK


def arrow_batches(reading: Reading, span: Span) -> Iterator[tuple[pa.RecordBatch, range]]:
    """The rows of a row group, with their numbers in the file, from 1."""
    line = span.start.line
    file = reading.listed[span.rank]
    for batch in parquet_rows.batches(reading.files, file, span.group, span.rows, span.size, reading.columns):
        yield batch, range(line, line + batch.num_rows)
        line += batch.num_rows


def judged_span(reading: Reading, span: Span, judge: Judge) -> Iterator[pa.RecordBatch]:
    """The rows of a span, judged."""
    name, given = reading.files.address(reading.listed[span.rank]), reading.given_of(span)
    if reading.kind == "parquet":
        for batch, lines in arrow_batches(reading, span):
            yield judged(of_arrow(batch, lines, judge, given), judge, name, span.rank)
        return
    grammar = csv_of(reading, judge) if reading.kind == "csv" else None
    for part in sliced(records_of(reading, span)):
        if grammar is not None:
            assert reading.kinds is not None
            rows = with_given(grammar.rows(part), given)
            broken, batch = rows.broken, of_fields(rows, reading.names, reading.kinds, judge)
        else:
            told = objects(part)
            broken, batch = told.broken, of_objects(told, judge, given, reading.kinds)
        if batch.bodies:
            yield judged(batch, judge, name, span.rank)
        if broken:
            yield broken_rows(broken, name, span.rank)


def sliced(found: Iterable[Records]) -> Iterator[Records]:
    """Records, few at once."""
    for part in found:
        for at in range(0, len(part.raw), ROWS_AT_ONCE):
            end = at + ROWS_AT_ONCE
            yield Records(part.raw[at:end], part.lines[at:end], part.cut, part.is_whole)


def picked(reading: Reading, span: Span, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Fields of JSON lines as texts: a string's text, the JSON of anything else.

    Raises:
        Refused: a line that is no object; it names the line.
    """
    name = reading.files.shown(reading.listed[span.rank])
    for part in sliced(records_of(reading, span)):
        found: Objects = objects(part)
        if found.broken:
            first = min(found.broken, key=lambda row: row.line)
            raise Refused(f"{name}, line {first.line}: {first.reason.partition(': ')[2]}")
        columns = [text_column([text_of(row.get(each)) for row in found.values]) for each in names]
        yield pa.RecordBatch.from_arrays(columns, names=list(names))


def text_of(value: bytes | None) -> bytes | None:
    """A string's text, the JSON of anything else."""
    if value is None or not value.startswith(b'"'):
        return value
    found = key_of(value)
    assert isinstance(found, bytes)
    return found
