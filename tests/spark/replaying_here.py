"""Rows between the tasks of a pipeline in lists of this process, sorted as Spark does it: a job without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from spark_jobs.reading.arrow import integer_column
from spark_jobs.replaying.on_spark import Tables, Work
from spark_jobs.replaying.rows import TICK, Stored, batch_of, rows_in

TASKS = 3


class Here:
    """Tables as lists of rows."""

    def numbered(self, count: int, work: Work) -> list[Stored]:
        numbers = [pa.RecordBatch.from_arrays([integer_column([number])], names=["id"]) for number in range(count)]
        return [row for number in numbers for row in _rows(work, [number])]

    def by_slot(self, given: Sequence[list[Stored]], target: str, work: Work) -> list[Stored]:
        wanted = [row for rows in given for row in rows if row.target == target and row.kind != TICK]
        wanted.sort(key=lambda row: (row.slot % TASKS, row.slot, row.kind, row.cell, row.entry, row.path))
        tasks = [[*found] for _, found in groupby(wanted, lambda row: row.slot % TASKS)]
        return [
            row for task in tasks for row in _rows(work, [batch_of(task[n : n + 7]) for n in range(0, len(task), 7)])
        ]

    def rows(
        self, given: Sequence[list[Stored]], kind: int, target: str = "", *, are_few: bool = True
    ) -> Iterator[Stored]:
        wanted = [row for rows in given for row in rows if row.kind == kind and target in ("", row.target)]
        return iter(sorted(wanted, key=lambda row: (row.target, row.slot, row.cell, row.entry, row.path)))

    def end(self) -> None: ...


def _rows(work: Work, batches: Sequence[pa.RecordBatch]) -> list[Stored]:
    return [row for batch in work(batches) for row in rows_in(batch)]


_conforms: type[Tables[list[Stored]]] = Here
