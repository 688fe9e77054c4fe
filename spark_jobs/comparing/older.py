"""The files of a ledger that a comparison expects to say nothing of its inputs, and asks nevertheless.

What caused a row is read of each of them, and nothing else; of a file that has a row of these inputs the rows of these
inputs are read whole, and judged with all others.  So an effect that is older than was said is found, and one that is
there a second time: the verdict is that of a comparison which reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.common.places import Place
from spark_jobs.comparing.screens import PAIR, pair, within
from spark_jobs.draining.parquet import DataFile, batches, row_count
from spark_jobs.ledger import read_files

CAUSE = "correlation_id"
PARTS_A_CORE = 4


@dataclass(frozen=True, slots=True)
class Older:
    """The older data files of a ledger."""

    spark: SparkSession
    place: Place
    files: Sequence[DataFile]

    @property
    def count(self) -> int:
        """How many rows they have."""
        return sum(row_count(self.place, file) if file.rows is None else file.rows for file in self.files)

    def caused_by(self, asked: DataFrame) -> DataFrame:
        """The rows of these inputs {h1, h2}, one row for each of them."""
        causes = self._causes().select("file", *pair(CAUSE))
        met = causes.join(asked, list(PAIR), "left_semi").select("file").distinct().collect()
        files = [self.files[number] for number in sorted(row["file"] for row in met)]
        return within(read_files(self.spark, self.place, files), CAUSE, asked)

    def _causes(self) -> DataFrame:
        """{correlation_id, file}: what caused the rows of each file."""
        parts = min(len(self.files), PARTS_A_CORE * self.spark.sparkContext.defaultParallelism)
        numbers = self.spark.range(0, len(self.files), 1, max(1, parts))
        return numbers.mapInArrow(
            partial(causes_of, self.place.lend(), tuple(self.files)), f"{CAUSE} string, file bigint"
        )


def causes_of(place: Place, files: Sequence[DataFile], parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the causes of the rows in the files whose numbers come in; executors run it."""
    for part in parts:
        for number in part.column(0).to_pylist():
            for batch in batches(place, files[number], [CAUSE]):
                causes = batch.column(0).unique().cast(pa.string())
                numbers = pa.array([number] * len(causes), pa.int64())
                yield pa.RecordBatch.from_arrays([causes, numbers], names=[CAUSE, "file"])
