"""Inputs of a comparison beside the ledger: ids, their rows set aside, dead letters, states.

An id is one message, whichever input it came from: `feed` sends equal ids, the receiver's inbox takes the first and
drops or refuses the others.  So an id of several inputs is one input here, and must have its effects once.  It was sent
where any of these inputs has more rows of it than its feed set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from spark_jobs.reading.files import Files
from spark_jobs.reading.input import Input
from spark_jobs.reading.judging import Judge
from spark_jobs.reading.source import Source

WHOLE_ID = 1 << 62
"""More rows than any input has."""
Part = tuple[DataFrame, DataFrame | None]
"""One input's {id}, a row for each of its rows, and {id, count} of its rows set aside."""


def together(parts: Sequence[Part]) -> Part:
    """Join several inputs to one: an id is set aside where each has set all its rows of it aside.

    "All rows" are counted in the input itself, or a corrected row of another would be set aside with them; so the ids
    of an input with a quarantine are read twice.
    """
    if len(parts) == 1:
        return parts[0]
    given = reduce(DataFrame.unionByName, [ids for ids, _ in parts])
    asides = [aside_in(ids, quarantined) for ids, quarantined in parts if quarantined is not None]
    if not asides:
        return given, None
    return given, reduce(DataFrame.unionByName, asides).groupBy("id").agg(fn.sum("count").alias("count"))


def aside_in(ids: DataFrame, quarantined: DataFrame) -> DataFrame:
    """{id, count} of the quarantined ids that an input has, each with no more rows than are there."""
    there = ids.join(quarantined.select("id"), "id", "left_semi").groupBy("id").agg(fn.count(fn.lit(1)).alias("rows"))
    count = fn.least(fn.coalesce("count", fn.lit(WHOLE_ID)), "rows")
    return quarantined.join(there, "id").select("id", count.alias("count"))


def read_dead_letters(spark: SparkSession, files: Files) -> DataFrame:
    """Read {id} of an export's dead letters: the input that caused each, by correlation id, else its own id."""
    cause = fn.expr("coalesce(nullif(correlation_id, ''), id)")
    return lines_of(spark, files, "id", "correlation_id").select(cause.alias("id"))


def read_states(spark: SparkSession, files: Files, state: str, field: str) -> DataFrame:
    """{key, balance} of an export: JSON lines {"state": ..., "key": ..., "value": {...}}."""
    value = fn.get_json_object("value", f"$.{field}").alias("held")
    chosen = lines_of(spark, files, "state", "key", "value").where(fn.col("state") == state).select("key", value)
    return chosen.select("key", fn.expr("try_cast(held as bigint)").alias("balance"))


def lines_of(spark: SparkSession, files: Files, *names: str) -> DataFrame:
    """Fields of JSON lines as texts, by the reader of the inputs.

    Raises:
        Refused: there is no such file; a line that is no object is refused when it is read.
    """
    source = Source(str(files.place), "json")
    return Input(spark, source, Judge(()), replace(files, may_be_empty=True)).picked(*names)
