"""Rows to messages: what is sent, what is set aside and why.  Pure functions from frame to frame.

    rows      {id, row, problem, text}                                            (spark_jobs.common.inputs)
    judged    {id, body, created_ms, session, position, reason, text}             one per row, `reason` null if valid
    messages  {id, body, created_ms, session, position, copies}                    one per identity
    rejected  {id, reason, detail, row}                                            one per row that is set aside

A body is made of input columns only, in the order of their names and without nulls, so that the same row always gives
the same bytes.  Rows of equal identity and body are one message; of equal identity and unequal body none at all: which
of them a broker or an inbox would keep would be chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as ty

from outbox.errors import Refused
from spark_jobs.common.ids import BROKER_ID_LENGTH_MAX, ID_LENGTH_MAX

BODY_BYTES_MAX = 192 * 1024  # a Standard-tier message is 256 KB with everything; above this a claim check is due
CONFLICT = "conflicting-duplicates"

MESSAGES = ("id", "body", "created_ms", "session", "position", "copies")


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns say when a message was created, which session it belongs to and where it stands in it."""

    created: str = ""
    session: str = ""
    order: str = ""
    body_bytes_max: int = BODY_BYTES_MAX


def judged(rows: DataFrame, shape: Shape) -> DataFrame:
    """Every row with its body and, where it cannot be sent, the reason."""
    fields = {part.name: part.dataType for part in row_type(rows).fields}
    for name in filter(None, (shape.created, shape.session, shape.order)):
        if name not in fields:
            raise Refused(f"there is no column {name!r}; the input has {', '.join(fields)}")
    body = fn.to_json(fn.struct(*(fn.col(f"row.`{name}`") for name in sorted(fields))), {"ignoreNullFields": "true"})
    session = fn.col(f"row.`{shape.session}`").cast("string") if shape.session else fn.lit(None).cast("string")
    created = created_ms(fn.col(f"row.`{shape.created}`"), fields[shape.created]) if shape.created else fn.lit(None)
    # A position orders messages within a session and nothing else; no id or body depends on it.
    position = fn.col(f"row.`{shape.order}`").cast("bigint") if shape.order else fn.monotonically_increasing_id()
    columns = rows.select(
        "id",
        body.alias("body"),
        created.cast("bigint").alias("created_ms"),
        session.alias("session"),
        position.alias("position"),
        "problem",
        "text",
    )
    return columns.select("id", "body", "created_ms", "session", "position", reason(shape).alias("reason"), "text")


def reason(shape: Shape) -> Column:
    """`code: detail` of the first thing that is wrong with a row, null if nothing is."""
    checks = [
        fn.col("problem"),
        fn.when(fn.coalesce(fn.col("id"), fn.lit("")) == "", "missing-id: a column of the id is empty"),
        fn.when(fn.length("id") > ID_LENGTH_MAX, f"long-id: more than {ID_LENGTH_MAX} characters"),
        fn.when(
            fn.octet_length("body") > shape.body_bytes_max,
            f"oversize: a body of more than {shape.body_bytes_max} bytes",
        ),
    ]
    if shape.created:
        checks.append(fn.when(fn.col("created_ms").isNull(), f"bad-created: column {shape.created} tells no time"))
    if shape.session:
        checks.append(
            fn.when(fn.coalesce(fn.col("session"), fn.lit("")) == "", f"missing-session: column {shape.session}")
        )
        checks.append(fn.when(fn.length("session") > BROKER_ID_LENGTH_MAX, f"long-session: column {shape.session}"))
    if shape.order:
        checks.append(fn.when(fn.col("position").isNull(), f"bad-order: column {shape.order} holds no integer"))
    return fn.coalesce(*checks)


def created_ms(column: Column, kind: ty.DataType) -> Column:
    """Milliseconds since 1970 of a column of integers (milliseconds), timestamps, dates or texts of them (UTC)."""
    if isinstance(kind, ty.IntegralType):
        return column.cast("bigint")
    if isinstance(kind, ty.DateType | ty.TimestampType | ty.TimestampNTZType):
        return fn.unix_millis(column.cast("timestamp"))
    if isinstance(kind, ty.StringType):
        as_time = fn.unix_millis(fn.try_to_timestamp(column))
        return fn.coalesce(fn.when(column.rlike("^[0-9]{1,15}$"), column.cast("bigint")), as_time)
    raise Refused(f"a creation time cannot be {kind.simpleString()}; give integers (milliseconds), timestamps or dates")


def messages(judged_rows: DataFrame) -> DataFrame:
    """One message for each identity whose rows all say the same."""
    return grouped(judged_rows).where(fn.col("body") == fn.col("other")).select(*MESSAGES)


def rejected(judged_rows: DataFrame) -> DataFrame:
    """The rows that are set aside: the invalid ones, and all of an identity whose rows differ."""
    conflicting = grouped(judged_rows).where(fn.col("body") != fn.col("other")).select("id")
    conflicts = judged_rows.where(fn.col("reason").isNull()).join(conflicting, "id", "left_semi")
    invalid = judged_rows.where(fn.col("reason").isNotNull())
    told = fn.split(fn.col("reason"), ": ", 2)
    return invalid.select(
        "id", told[0].alias("reason"), told[1].alias("detail"), fn.col("text").alias("row")
    ).unionByName(
        conflicts.select(
            "id",
            fn.lit(CONFLICT).alias("reason"),
            fn.lit("rows of this id differ; which one is meant?").alias("detail"),
            fn.col("text").alias("row"),
        )
    )


def grouped(judged_rows: DataFrame) -> DataFrame:
    """The valid rows by identity, with the least and the greatest of their bodies."""
    return (
        judged_rows.where(fn.col("reason").isNull())
        .groupBy("id")
        .agg(
            fn.min("body").alias("body"),
            fn.max("body").alias("other"),
            fn.min("created_ms").alias("created_ms"),
            fn.min("session").alias("session"),
            fn.min("position").alias("position"),
            fn.count(fn.lit(1)).alias("copies"),
        )
    )


def chunk_of(key: Column, chunks: int) -> Column:
    """The chunk, from 0, that a message belongs to: a pure function of its identity or session."""
    return fn.pmod(fn.xxhash64(key), fn.lit(chunks)).cast("int")


def row_type(rows: DataFrame) -> ty.StructType:
    kind = rows.schema["row"].dataType
    assert isinstance(kind, ty.StructType)
    return kind
