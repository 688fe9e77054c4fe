"""An input on Spark: tasks read spans, Spark gathers what they give.

Passes over the bytes: `edges`, only where a file has several spans; `survey`, always; `packets` or `judged`, whenever
rows are asked for.  Each is one function over the spans, so no row is parsed by Spark; only `judged` makes a frame.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from typing import TypeVar

import pyarrow as pa
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from outbox.errors import Refused
from spark_jobs.common import tasks as spark_tasks
from spark_jobs.reading import opened as opening
from spark_jobs.reading.files import Files
from spark_jobs.reading.judging import JUDGED, VALID_NAMES, Judge
from spark_jobs.reading.kinds import Kind, Seen, inferred
from spark_jobs.reading.lexer import START, STATES
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import (
    SPAN_BYTES_MAX,
    Edges,
    Reading,
    Span,
    Survey,
    begun,
    edges,
    judged_span,
    picked,
    surveyed,
)

PARTS_A_CORE = 4
HERE_BYTES_MAX = 64 * 1024 * 1024
"""The bytes up to which the driver counts line feeds itself, because a stage of Spark would take longer."""
TASK_SPANS_MAX = 2_000
TASK_BYTES_MAX = 128 * 1024 * 1024
"""About the bytes that a task reads at most: a worker may hold all rows of it that it parts."""
MARK = "outbox.errors.Refused: "

_T = TypeVar("_T")
Read = Callable[[Reading, Span], Iterator[_T]]
Pack = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[int, bytes]]]
"""A task's packing of the rows {id, body, created_ms, session, position} that can be sent, many in one value."""


class Input:
    """The rows of files, as Spark reads them."""

    def __init__(self, spark: SparkSession, source: Source, judge: Judge, files: Files) -> None:
        """Open the files that the source names.

        Raises:
            Refused: they are no such input, or lack what the judge needs.
        """
        self._spark, self._source, self._judge = spark, source, judge
        self._parts = PARTS_A_CORE * spark.sparkContext.defaultParallelism
        found = opening.opened(source, files, self._parts)
        opening.check(found, judge)
        self._reading, self._groups = found.reading, found.groups
        self._spans = self._begun(found.spans)

    @property
    def path(self) -> str:
        """The path of the source."""
        return self._source.path

    @property
    def files(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the files."""
        return tuple((self._reading.files.address(file), file.size) for file in self._reading.listed)

    @property
    def listing(self) -> tuple[tuple[str, int, str], ...]:
        """Names below the place, sizes and versions of the files."""
        return tuple((file.name, file.size, file.version) for file in self._reading.listed)

    def _begun(self, spans: Sequence[Span]) -> list[Span]:
        """The spans with the state in which each begins."""
        if self._reading.kind == "parquet":
            return list(spans)
        if len({span.rank for span in spans}) == len(spans):
            found = [Edges(0, [START] * len(STATES), True)] * len(spans)  # nothing follows in their files
        elif sum(span.size for span in spans) <= HERE_BYTES_MAX:
            found = [edges(self._reading, span) for span in spans]
        else:
            found = self._told(edges, spans)
        return begun(spans, found, int(self._reading.kind == "csv"))

    @cached_property
    def survey(self) -> Survey:
        """The survey of all rows, by one pass over them."""
        asked = {*self._judge.ids, *self._judge.shape.columns} if self._reading.kind == "json" else set()
        whole = Survey()
        for part in self._told(partial(surveyed, asked=sorted(asked)), self._spans):
            whole.add(part)
        missing = sorted(asked - {*whole.found})
        if missing and whole.rows:
            raise Refused(f"there is no column {missing[0]!r} in any row of {self._source.path}")
        return whole

    @property
    def digest(self) -> str:
        """A digest of the rows in any order."""
        names = ",".join(sorted(self._reading.names))
        return sha256(f"2:{self.survey.rows}:{self.survey.digest}:{self._reading.kind}:{names}".encode()).hexdigest()

    def judged(self, *, texts: bool = False) -> DataFrame:
        """Every row as a message or with its fault; `texts`: each with its text, file and line."""
        reading = self._typed()
        return self._mapped(partial(judged_by, replace(self._judge, texts=texts)), reading, JUDGED)

    def packets(self, pack: Pack) -> RDD[tuple[int, bytes]]:
        """Pack the rows of each span that can be sent, by `pack`."""
        return self._tasks(partial(packed_by, self._judge, pack), self._typed(), self._spans)

    @property
    def size(self) -> int:
        """How many bytes the rows have."""
        return self.survey.size

    def ids(self) -> DataFrame:
        """The identity of every row that has one.

        Raises:
            Refused: no row of JSON has such a field; what others lack is refused when they are opened.
        """
        if self._reading.kind == "json":
            _ = self.survey  # refuses a field that no row has
        csv: dict[str, Kind] | None = {} if self._reading.kind == "csv" else None
        reading = replace(self._reading, kinds=csv, columns=self._judge.ids)
        rows = self._mapped(partial(judged_by, Judge(self._judge.ids)), reading, JUDGED)
        return rows.select("id").where("id is not null")

    def ids_of(self, name: str) -> DataFrame:
        """The same of one file, by its name below the place."""
        file = replace(self._reading.files, name=name)
        return Input(self._spark, self._source, Judge(self._judge.ids), file).ids()

    def picked(self, *names: str) -> DataFrame:
        """Fields of JSON lines as texts."""
        return self._mapped(partial(picked_by, names), self._reading, ", ".join(f"`{name}` string" for name in names))

    def check_unchanged(self) -> None:
        """Refuse files that have changed since they were listed.

        Raises:
            Refused: one has.
        """
        opening.check_unchanged(self._reading)

    def _typed(self) -> Reading:
        """The reading with the types of CSV's columns: the schema's, or inferred ones that hold all values."""
        if self._reading.kind != "csv" or self._reading.kinds is not None:
            return self._reading
        seen = {name: Seen(*self.survey.seen.get(name, (0, 0, False, ""))) for name in self._reading.names}
        return replace(self._reading, kinds=inferred(seen, self._judge.ids))

    def _mapped(self, read: Read[pa.RecordBatch], reading: Reading, schema: str) -> DataFrame:
        tasks = tasks_of(self._spans, self._parts)
        numbers = self._spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return numbers.mapInArrow(partial(run_rows, read, lent(reading), tasks), schema)

    def _tasks(self, read: Read[_T], reading: Reading, spans: Sequence[Span]) -> RDD[_T]:
        tasks = tasks_of(spans, self._parts)
        return spark_tasks.tasks(self._spark, len(tasks), partial(run, read, lent(reading), tasks))

    def _told(self, look: Callable[[Reading, Span], _T], spans: Sequence[Span]) -> list[_T]:
        """Look at each span in a task, and return the results in the order of the spans."""
        with refusals(self.check_unchanged):
            return spark_tasks.collected(self._tasks(partial(one_of, look), self._reading, spans))


def lent(reading: Reading) -> Reading:
    """The same for executors, with tokens of now."""
    return replace(reading, files=reading.files.lend())


def tasks_of(spans: Sequence[Span], parts: int) -> list[list[Span]]:
    """Spans that are read by one task after each other, so that each has about as many bytes."""
    total = sum(min(span.size, SPAN_BYTES_MAX * 64) for span in spans)
    share, tasks, held = min(total // max(1, parts), TASK_BYTES_MAX), list[list[Span]](), 0
    for span in spans:
        if not tasks or held >= share or len(tasks[-1]) >= TASK_SPANS_MAX:
            tasks.append([])
            held = 0
        tasks[-1].append(span)
        held += span.size
    return tasks


def run(
    read: Read[_T], reading: Reading, tasks: Sequence[Sequence[Span]], numbers: Iterable[int]
) -> Iterator[_T]:  # fmt: skip
    """Read the spans of the tasks whose numbers come; executors run it."""
    gc.disable()
    try:
        for number in numbers:
            for span in tasks[number]:
                yield from read(reading, span)
    finally:
        gc.enable()


def run_rows(
    read: Read[pa.RecordBatch],
    reading: Reading,
    tasks: Sequence[Sequence[Span]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The same where the numbers come as a frame."""
    return run(read, reading, tasks, (number for batch in batches for number in batch.column(0).to_pylist()))


def one_of(look: Callable[[Reading, Span], _T], reading: Reading, span: Span) -> Iterator[_T]:
    """Yield what `look` finds in a span."""
    yield look(reading, span)


def judged_by(judge: Judge, reading: Reading, span: Span) -> Iterator[pa.RecordBatch]:
    """The rows of a span."""
    return judged_span(reading, span, judge)


def packed_by(judge: Judge, pack: Pack, reading: Reading, span: Span) -> Iterator[tuple[int, bytes]]:
    """The rows of a span that can be sent, packed."""
    return pack(valid_rows(judged_span(reading, span, judge)))


def valid_rows(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Judged rows that can be sent, without what others need."""
    for batch in found:
        kept = batch if batch.column(5).null_count == batch.num_rows else batch.filter(batch.column(5).is_null())
        if kept.num_rows:
            yield kept.select(VALID_NAMES)


def picked_by(names: Sequence[str], reading: Reading, span: Span) -> Iterator[pa.RecordBatch]:
    """Fields of a span's rows."""
    return picked(reading, span, names)


@contextmanager
def refusals(check: Callable[[], None]) -> Iterator[None]:
    """Raise a task's refusal without the stacks round it; a changed file is reported first.

    Raises:
        Refused: a task did.
    """
    try:
        yield
    except PySparkException as error:
        check()
        lines = [line for line in str(error).splitlines() if MARK in line]
        if not lines:
            raise
        raise Refused(lines[-1].partition(MARK)[2]) from None
