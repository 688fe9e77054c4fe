"""Rows between tasks as Spark has them: tasks by number, tasks by slot, and rows in order for the driver.

What a task makes is kept on the executors' disks, because others read it more than once.  Whatever is lost there is
made again, and is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from outbox.streams.pipeline.states import SLOTS
from spark_jobs.replaying.rows import BATCH_COUNT, ROWS, TICK, Stored

T = TypeVar("T")
ORDER = ("cell", "entry", "path")
PARTITION_BYTES, ROW_BYTES = 32 << 20, 100
"""Roughly the bytes that the driver takes from a task at once, and a row's beside its value."""


class Work(Protocol):
    """The work of a task on the batches that come in."""

    def __call__(self, batches: Iterable[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows."""


class Tables(Protocol, Generic[T]):
    """Rows of several tasks, and more tasks over them."""

    def numbered(self, count: int, work: Work) -> T:
        """Run `count` tasks, each of which gets its number, from 0."""

    def by_slot(self, given: Sequence[T], target: str, work: Work) -> T:
        """Run tasks over the rows for a target but for ticks, each with all of some slots.

        They come by slot, then by kind, then in the order of their places.
        """

    def rows(self, given: Sequence[T], kind: int, target: str = "") -> Iterator[Stored]:
        """The rows of a kind for a target (empty: any), in the order of targets, slots and places."""

    def end(self) -> None:
        """Let go of everything."""


class OnSpark:
    """Tables of Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", f"{BATCH_COUNT}")
        self._kept: list[DataFrame] = []

    def numbered(self, count: int, work: Work) -> DataFrame:
        return self._keep(self._spark.range(0, count, 1, max(1, count)).mapInArrow(work, ROWS))

    def by_slot(self, given: Sequence[DataFrame], target: str, work: Work) -> DataFrame:
        tasks = min(SLOTS, int(str(self._spark.conf.get("spark.sql.shuffle.partitions"))))
        found = reduce(DataFrame.union, given).where((fn.col("kind") != TICK) & (fn.col("target") == target))
        return self._keep(
            found.repartition(tasks, "slot").sortWithinPartitions("slot", "kind", *ORDER).mapInArrow(work, ROWS)
        )

    def rows(self, given: Sequence[DataFrame], kind: int, target: str = "") -> Iterator[Stored]:
        found = reduce(DataFrame.union, given).where(fn.col("kind") == kind)
        if target:
            found = found.where(fn.col("target") == target)
        order = ("target", "slot", *ORDER)
        count, size = found.agg(fn.count("*"), fn.sum(fn.length("value"))).first() or (0, 0)
        tasks = -(-(count * ROW_BYTES + (size or 0)) // PARTITION_BYTES)
        found = found.coalesce(1) if tasks <= 1 else found.repartitionByRange(tasks, *order)
        found = found.sortWithinPartitions(*order)
        for row in found.toLocalIterator(prefetchPartitions=True):
            target, slot, kind, cell, entry, path, at_ms, value, type = row
            yield Stored(target, slot, kind, cell, entry, bytes(path), at_ms, bytes(value), type)

    def end(self) -> None:
        for kept in self._kept:
            kept.unpersist()
        self._kept = []

    def _keep(self, found: DataFrame) -> DataFrame:
        kept = found.persist(StorageLevel.DISK_ONLY)
        self._kept.append(kept)
        return kept
