"""Rows between tasks in lists of the driver, for epochs that end before Spark has started a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from spark_jobs.reading.arrow import integer_column
from spark_jobs.replaying.on_spark import Tables, Work
from spark_jobs.replaying.rows import TICK, Batches, Stored, rows_in


class Here:
    """Tables as lists of rows; `tasks` at most share the slots, one behind the other."""

    def __init__(self, tasks: int = 1) -> None:
        self._tasks = tasks

    def numbered(self, count: int, work: Work) -> list[Stored]:
        numbers = [pa.RecordBatch.from_arrays([integer_column([number])], names=["id"]) for number in range(count)]
        return [row for number in numbers for row in _made(work, [number])]

    def by_slot(self, given: Sequence[list[Stored]], target: str, work: Work) -> list[Stored]:
        def task_of(row: Stored) -> int:
            return row.slot % self._tasks

        wanted = [row for rows in given for row in rows if row.target == target and row.kind != TICK]
        wanted.sort(key=lambda row: (task_of(row), row.slot, row.kind, row.cell, row.entry, row.path))
        return [row for _, found in groupby(wanted, task_of) for row in _made(work, _batches(found))]

    def rows(self, given: Sequence[list[Stored]], kind: int, target: str = "") -> Iterator[Stored]:
        wanted = [row for rows in given for row in rows if row.kind == kind and target in ("", row.target)]
        return iter(sorted(wanted, key=lambda row: (row.target, row.slot, row.cell, row.entry, row.path)))

    def end(self) -> None:
        """Nothing outlives the lists."""


def _made(work: Work, given: Iterable[pa.RecordBatch]) -> Iterator[Stored]:
    return (row for batch in work(given) for row in rows_in(batch))


def _batches(rows: Iterable[Stored]) -> Iterator[pa.RecordBatch]:
    batches = Batches()
    for row in rows:
        yield from batches.add(row)
    yield from batches.rest()


_conforms: type[Tables[list[Stored]]] = Here
