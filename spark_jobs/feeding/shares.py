"""A chunk of staged messages to its senders: who sends which rows of which files.

Without sessions the rows of a chunk are one line, in the order of its files, and each sender has an equal stretch of
it, so that nothing is shuffled.  With sessions a sender has all messages of each of its own, in their order; for that
Spark's SQL sorts them, in as little memory as it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.common.identity import Access
from spark_jobs.common.places import Place
from spark_jobs.common.staging import StagedFile, read_file, staged
from spark_jobs.common.tasks import collected, rows_of, tasks
from spark_jobs.feeding.grouping import STAGED

SENT_NAMES = ["id", "body", "created_ms", "session"]
RESULT = "accepted bigint, sent bigint, batches bigint, retries bigint, oversize array<string>, failed string"
RESULT_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("accepted", "sent", "batches", "retries")]
    + [("oversize", pa.list_(pa.string())), ("failed", pa.string())]
)


@dataclass(frozen=True, slots=True)
class Sending:
    """Where to and how; `rate_per_s` 0 is without limit."""

    access: Access
    queue: str
    type: str
    timeout_s: float
    rate_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of a file, from `begin` on."""

    name: str
    begin: int
    count: int


Share = list[Stretch]


def send(
    spark: SparkSession,
    folder: Place,
    files: Sequence[StagedFile],
    settings: Sending,
    senders: int,
    *,
    by_session: bool,
) -> list[dict[str, Any]]:
    """Send the rows of some files; gives what each sender says, as rows of `RESULT`.

    What is sent here is collected once and used in no other job: another one would send it again.
    """
    if by_session:
        frame = staged(spark, folder, files, STAGED, senders).repartition(senders, "session")
        columns = frame.sortWithinPartitions("session", "position").select(*SENT_NAMES)
        return [row.asDict() for row in columns.mapInArrow(partial(sent, settings), RESULT).collect()]
    shares = shares_of(files, senders)
    return collected(tasks(spark, len(shares), partial(send_shares, settings, folder.lend(), shares)))


def shares_of(files: Sequence[StagedFile], count: int) -> list[Share]:
    """Share the rows of files equally, in at most `count` shares; none is empty."""
    total, found, begin = sum(file.rows for file in files), list[Share](), 0
    for end in sorted({total * (number + 1) // count for number in range(count)} - {0}):
        share, before = Share(), 0
        for file in files:
            first, last = max(begin, before), min(end, before + file.rows)
            if first < last:
                share.append(Stretch(file.name, first - before, last - first))
            before += file.rows
        found.append(share)
        begin = end
    return found


def send_shares(
    settings: Sending, place: Place, shares: Sequence[Share], numbers: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Send the shares whose numbers come."""
    for number in numbers:
        yield from rows_of(sent(settings, rows_in(place, shares[number])))


def rows_in(place: Place, share: Share) -> Iterator[pa.RecordBatch]:
    """The rows {id, body, created_ms, session} of a share.

    Raises:
        CorruptRecord: a file is not there, or is no Parquet file.
    """
    for stretch in share:
        left, skipped = stretch.count, stretch.begin
        for batch in read_file(place, stretch.name):
            part = batch.slice(skipped, left)
            skipped, left = max(0, skipped - batch.num_rows), left - part.num_rows
            if part.num_rows:
                yield part.select(SENT_NAMES)
            if not left:
                break


def sent(settings: Sending, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send all rows {id, body, created_ms, session}; gives one row of `RESULT`."""
    from spark_jobs.feeding.sending import send_partition  # with the SDK, half a second that a driver does without

    return send_partition(settings, parts)
