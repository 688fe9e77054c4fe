"""The rows of a DataFrame, judged as those of files are: by the JSON of their Arrow columns.

A row has no line.  It is shown by its body, and stands where Spark numbers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256

import msgspec
import pyarrow as pa
from pyspark import RDD
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema

from outbox.errors import Refused
from spark_jobs.common.ids import check_key_columns
from spark_jobs.reading.arrow import binary_column, groups_of, integer_column, text_column
from spark_jobs.reading.input import Pack, refusals, valid_rows
from spark_jobs.reading.judging import JUDGED, Judge, check_columns, judged, of_arrow
from spark_jobs.reading.opened import TIME_GROUPS
from spark_jobs.reading.spans import Survey

PACKED = "number bigint, rows binary"


class FrameRows:
    """The rows of a frame, once the frame is known to have what the judge needs."""

    def __init__(self, frame: DataFrame, judge: Judge) -> None:
        """Check the frame's columns.

        Raises:
            Refused: one cannot be in a message, or is not what it is named for.
        """
        self._frame, self._judge = frame, judge
        check_key_columns(frame, judge.ids)
        check_columns(frame.columns, judge)
        groups = groups_of(to_arrow_schema(frame.schema), "the frame")
        created = judge.shape.created
        if created and groups[created] not in TIME_GROUPS:
            raise Refused(
                f"a creation time cannot be {frame.schema[created].dataType.simpleString()}; give integers "
                "(milliseconds), timestamps or dates"
            )

    @property
    def files(self) -> tuple[tuple[str, int], ...]:
        """None: a frame tells the names of its files only."""
        return ()

    @property
    def listing(self) -> tuple[tuple[str, int, str], ...]:
        """None, as above."""
        return ()

    @cached_property
    def survey(self) -> Survey:
        """How many rows there are, and their digest."""
        whole = Survey()
        with refusals(self.check_unchanged):
            for row in self._numbered().mapInArrow(surveyed, "told string").collect():
                whole.add(msgspec.json.decode(row["told"], type=Survey))
        return whole

    @property
    def digest(self) -> str:
        """A digest of the rows in any order."""
        schema = self._frame.schema.simpleString()
        return sha256(f"2:{self.survey.rows}:{self.survey.digest}:{schema}".encode()).hexdigest()

    @property
    def size(self) -> int:
        """How many bytes the rows have."""
        return self.survey.size

    def packets(self, pack: Pack) -> RDD[tuple[int, bytes]]:
        """Pack the rows of each partition that can be sent, by `pack`."""
        return self._numbered().mapInArrow(partial(packets_of, self._judge, pack), PACKED).rdd.map(packet_of)

    def judged(self, *, texts: bool = False) -> DataFrame:
        """Every row as a message, or with the reason why it is none."""
        return self._numbered().mapInArrow(partial(judged_of, replace(self._judge, texts=texts)), JUDGED)

    def check_unchanged(self) -> None:
        """Nothing: what a frame is made of is not known here."""

    def _numbered(self) -> DataFrame:
        return self._frame.select(fn.struct("*").alias("row"), fn.monotonically_increasing_id().alias("position"))


def judged_of(judge: Judge, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows, judged."""
    for batch in batches:
        rows = pa.RecordBatch.from_struct_array(batch.column(0))
        found = of_arrow(rows, range(rows.num_rows), judge, {})
        found.positions = batch.column(1).to_pylist()
        yield judged(found, judge, "", 0)


def packets_of(judge: Judge, pack: Pack, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack the rows that can be sent, one batch a packet."""
    for number, rows in pack(valid_rows(judged_of(judge, batches))):
        yield pa.RecordBatch.from_arrays([integer_column([number]), binary_column([rows])], names=["number", "rows"])


def packet_of(row: Row) -> tuple[int, bytes]:
    """Return a packet as `pack` made it."""
    return row["number"], bytes(row["rows"])


def surveyed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count rows and sum up their digests."""
    found = Survey()
    for batch in batches:
        rows = pa.RecordBatch.from_struct_array(batch.column(0))
        found.look(of_arrow(rows, range(rows.num_rows), Judge(()), {}).bodies)
    yield pa.RecordBatch.from_arrays([text_column([msgspec.json.encode(found)])], names=["told"])
