"""An opened input: its files listed, their headers and footers read and compared, its spans cut.  No Spark here.

What is wrong with a file as a whole is one text that names it and the cure; nothing is read further then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from outbox.errors import Refused
from spark_jobs.reading import csv_rows, json_rows, kinds
from spark_jobs.reading.files import File, Files
from spark_jobs.reading.judging import Judge, check_columns
from spark_jobs.reading.lexer import Begin
from spark_jobs.reading.parquet_rows import Footer, footer_of
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import SPAN_BYTES_MAX, SPAN_BYTES_MIN, Reading, Span, cut
from spark_jobs.reading.texts import quoted

HEADS_AT_ONCE = 8
JSON_HEAD_BYTES = 64 * 1024
KEY_GROUPS = ("string", "integer", "boolean", "date")
TIME_GROUPS = ("string", "integer", "date", "timestamp")
NO_TIMES = ("boolean", "float", "double", "decimal")

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Opened:
    """An input, and the spans to read it by; `groups` are the types of Parquet's columns."""

    reading: Reading
    spans: tuple[Span, ...]
    groups: Mapping[str, str]

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns, where they are known before the rows are."""
        return self.reading.names or None


def opened(source: Source, files: Files, parts: int) -> Opened:
    """List and open the files of an input, to be read in about `parts` parts.

    Raises:
        Refused: there is no such input, or its files are not of one kind.
    """
    kind, listed = source.kind, tuple(files.list())
    reading = Reading(files, listed, kind, source.dialect, kinds=kinds.parsed(source.schema) if source.schema else None)
    span_bytes = max(SPAN_BYTES_MIN, min(SPAN_BYTES_MAX, sum(file.size for file in listed) // max(1, parts)))
    if kind == "parquet":
        return of_parquet(reading, source)
    heads = [] if kind == "json" else of_all(listed, lambda file: header_of(reading, file))
    begins = [begin for _, begin in heads] or of_all(listed, lambda file: first_of(reading, file))
    names = same_headers(reading, [names for names, _ in heads])
    reading = with_partitions(replace(reading, names=names), names)
    if kind == "csv" and reading.kinds is not None:
        check_named(reading.kinds, reading.names, source.path)
    spans = [
        span
        for rank, (file, begin) in enumerate(zip(listed, begins, strict=True))
        for span in cut(rank, file, begin, span_bytes)
    ]
    return Opened(reading, tuple(spans), {})


def of_all(listed: Sequence[File], look: Callable[[File], _T]) -> list[_T]:
    """The results of `look` at each file, several at once."""
    if len(listed) == 1:
        return [look(listed[0])]
    with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
        return list(pool.map(look, listed))


def header_of(reading: Reading, file: File) -> tuple[list[str], int]:
    """A file's columns, and where its rows begin."""
    head = reading.files.head(file, csv_rows.HEADER_BYTES_MAX)
    return csv_rows.header_of(head, reading.files.shown(file), reading.dialect)


def first_of(reading: Reading, file: File) -> int:
    """Where the lines of a JSON file begin: behind its byte order mark."""
    head = reading.files.head(file, JSON_HEAD_BYTES)
    json_rows.check_head(head, reading.files.shown(file))
    return len(csv_rows.UTF8_MARK) if head.startswith(csv_rows.UTF8_MARK) else 0


def same_headers(reading: Reading, headers: Sequence[list[str]]) -> tuple[str, ...]:
    """The columns that all files have.

    Raises:
        Refused: one has others, or the same in another order.
    """
    for file, names in zip(reading.listed, headers, strict=False):
        if names != headers[0]:
            first, other = (reading.files.shown(each) for each in (reading.listed[0], file))
            raise Refused(
                f"{other} has the columns {', '.join(names)}, {first} has {', '.join(headers[0])}; feed files of "
                "different headers apart, or write them with one"
            )
    return tuple(headers[0]) if headers else ()


def with_partitions(reading: Reading, own: Sequence[str]) -> Reading:
    """The same with the columns that names of folders tell.

    Raises:
        Refused: some files have others, or the files have such a column themselves.
    """
    parts = [file.partition for file in reading.listed]
    names = [name for name, _ in parts[0]]
    for file, part in zip(reading.listed, parts, strict=True):
        if [name for name, _ in part] != names:
            told = ", ".join(names) or "none"
            raise Refused(f"{reading.files.shown(file)} lies in other folders name=value than the first file ({told})")
    both = [name for name in names if name in own] + [name for name in names if names.count(name) > 1]
    if both:
        raise Refused(f"column {both[0]!r} is in the files and in the name of their folder; rename one")
    if not names:
        return reading
    if reading.kind == "csv":
        given = [{name: (value or "").encode() for name, value in part} for part in parts]
    else:
        values = {name: [dict(part)[name] for part in parts] for name in names}
        whole = {name for name in names if all(value is None or _INTEGER.fullmatch(value) for value in values[name])}
        given = [
            {
                name: (value if name in whole else quoted(value)).encode()
                for name, value in part
                if value is not None
            }
            for part in parts
        ]  # fmt: skip
    return replace(reading, names=(*reading.names, *names) if reading.names else (), given=tuple(given))


def of_parquet(reading: Reading, source: Source) -> Opened:
    """Open Parquet files: a column is of one group of types in all files that have it.

    Raises:
        Refused: it is not, or a schema was given.
    """
    if source.schema:
        raise Refused("--schema is for CSV and JSON lines; Parquet brings its types")
    footers = of_all(reading.listed, lambda file: footer_of(reading.files, file))
    groups, first = dict[str, str](), dict[str, File]()
    for file, footer in zip(reading.listed, footers, strict=True):
        for name, group in footer.columns:
            if groups.setdefault(name, group) != group and "null" not in (group, groups[name]):
                other = reading.files.shown(first[name])
                raise Refused(
                    f"column {name} is {group} in {reading.files.shown(file)} and {groups[name]} in {other}; write "
                    "it as one type, or feed the files apart"
                )
            if groups[name] == "null":
                groups[name] = group
            first.setdefault(name, file)
    reading = with_partitions(replace(reading, names=tuple(groups)), tuple(groups))
    groups |= dict.fromkeys(reading.names[len(groups) :], "string")
    return Opened(reading, tuple(spans_of(footers)), groups)


def spans_of(footers: Sequence[Footer]) -> list[Span]:
    """A span for each row group; lines are the numbers of rows in a file."""
    spans = []
    for rank, footer in enumerate(footers):
        line = 1
        for group, (rows, size) in enumerate(footer.groups):
            if rows:
                spans.append(Span(rank, 0, size, Begin(line=line), group, rows))
            line += rows
    return spans


def check_named(schema: Mapping[str, kinds.Kind], names: Sequence[str], path: str) -> None:
    """Refuse a schema that names other columns than the files have.

    Raises:
        Refused: it does.
    """
    missing = [name for name in schema if name not in names]
    if missing:
        raise Refused(f"--schema names {', '.join(missing)}; {path} has {', '.join(names)}")


def check(found: Opened, judge: Judge) -> None:
    """Refuse columns that cannot be what they are named for, as far as types are known before rows are read.

    Raises:
        Refused: one of them.
    """
    if found.columns is not None:
        check_columns(found.columns, judge)
    schema = found.reading.kinds or {}
    for name in judge.shape.columns:
        if schema and name not in schema:
            raise Refused(f"--schema leaves column {name!r} out, which is needed; name it there")
    for name in judge.ids:
        if found.groups.get(name, "string") not in KEY_GROUPS:
            raise Refused(
                f"column {name!r} is {found.groups[name]}, and its text differs between machines or versions; an id "
                "may be made of string, integer, boolean and date columns"
            )
    created = judge.shape.created
    told = found.groups.get(created, "string")
    if told not in TIME_GROUPS or (created in schema and schema[created].name in NO_TIMES):
        told = str(schema[created]) if created in schema else told
        raise Refused(f"a creation time cannot be {told}; give integers (milliseconds), timestamps or dates")


def check_unchanged(reading: Reading) -> None:
    """Refuse files that are not what they were when they were listed.

    Raises:
        Refused: one has changed, is gone or is new.
    """
    before = {file.name: file for file in reading.listed}
    now = {file.name: file for file in reading.files.list()}
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            told = "is new" if name not in before else "is gone" if name not in now else "has changed"
            file = before.get(name) or now[name]
            raise Refused(
                f"{reading.files.shown(file)} {told} since the input was first looked at; nothing was sent. Run the "
                "same command again once nobody writes there"
            )
