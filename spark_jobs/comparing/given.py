"""What a comparison is given beside the ledger: ids of inputs, what their feeds set aside, dead letters, states.

An id is one message, whichever input it came from: `feed` sends equal ids, the receiver's inbox takes the first and
drops or refuses the others.  So an id of several inputs is one input here, and must have its effects once.  It was sent
where any of these inputs has more rows of it than its feed set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from spark_jobs.common.places import Place
from spark_jobs.reading.files import Files
from spark_jobs.reading.input import Input
from spark_jobs.reading.judging import Judge
from spark_jobs.reading.source import Source

WHOLE_ID = 1 << 62
"""More rows than any input has."""
Part = tuple[DataFrame, DataFrame | None]
"""Of one input: {id}, a row for each of its rows, and {id, count}, those that were set aside."""


def together(parts: Sequence[Part]) -> Part:
    """Several inputs as one: an id is set aside where each of them has set all its rows of it aside.

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


def read_quarantine(spark: SparkSession, place: Place, digest: Callable[[], str]) -> DataFrame | None:
    """The set-aside rows {id, count} of this input's feed; where several feeds left some, each row counts once.

    A watch has one folder for each file; what the feeds of different files left is added up.
    """
    by_file = dict[str, list[str]]()
    for run in sorted({run_of(item.name) for item in place.list(suffix=".json") if "/" in item.name}):
        by_file.setdefault(run.rpartition("/")[0], []).append(run)
    if not by_file:
        return None
    asides = [aside_by(spark, place, runs_of(runs, digest)) for runs in by_file.values()]
    return reduce(DataFrame.unionByName, asides).groupBy("id").agg(fn.sum("count").alias("count"))


def run_of(name: str) -> str:
    """The folder of the feed that has left a file."""
    return name.rpartition("/")[0].removesuffix("/rows")


def runs_of(runs: list[str], digest: Callable[[], str]) -> list[str]:
    """The feeds of this state of an input; a feed by --created keeps one folder for each state, the others one."""
    if all(run.endswith(".first") for run in runs):
        return runs
    own = digest()[:16]
    return [run for run in runs if run.endswith(f".{own}")] or runs


def aside_by(spark: SparkSession, place: Place, runs: Sequence[str]) -> DataFrame:
    """{id, count}: the rows that feeds of one input have set aside, each once."""
    counted = []
    for run in runs:
        rows = lines_of(spark, Files(place / run), "id", "row", "file", "line").where(fn.col("id").isNotNull())
        placed = rows.where(
            fn.col("line").isNotNull()
        ).distinct()  # two feeds with progress of their own write it twice
        whole = fn.count(fn.when(fn.col("row").isNull(), 1)) > 0
        count = fn.when(~whole, fn.count(fn.lit(1)))
        each = placed.unionByName(rows.where(fn.col("line").isNull()))
        counted.append(each.groupBy("id").agg(count.alias("count")))
    least_first = fn.max(fn.coalesce("count", fn.lit(WHOLE_ID)))
    return reduce(DataFrame.unionByName, counted).groupBy("id").agg(least_first.alias("count"))


def read_dead_letters(spark: SparkSession, files: Files) -> DataFrame:
    """{id}: of each dead letter of an export the input that caused it, which is its correlation id, else its own."""
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
