"""Inputs, ledger and exported state side by side: what is lost, doubled or phantom.

    python -m spark_jobs.reconcile --input transfers.csv --ledger ledger/
    python -m spark_jobs.reconcile --input transfers.csv --ledger ledger/ --rule bank --state accounts.jsonl

Exit code 0: each input has its effects exactly once; 1: it says what is wrong; 2: usage.  Every effect names the input
that caused it by `correlation-id`, so both sides meet in joins, and only findings come to the driver.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from outbox.errors import Refused
from spark_jobs.arguments import add_common, add_input, ended, source_of, start
from spark_jobs.expectations import CATEGORIES, GENERIC, RULES, BalancesAgree, Books, Expectation, Fields, effects_of
from spark_jobs.folder import local_path
from spark_jobs.ids import check_key_columns, identity_column
from spark_jobs.inputs import read
from spark_jobs.ledger import read_ledger
from spark_jobs.plan import snapshot_of

SHOWN = 20
QUARANTINED = "id string, reason string, detail string, row string"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """`found` counts findings by category, `examples` has the first twenty (id, detail) of each."""

    inputs: int
    quarantined: int
    effects: int
    found: dict[str, int]
    examples: dict[str, list[tuple[str, str]]]
    seconds: float

    @property
    def ok(self) -> bool:
        """Each input has its effects exactly once, and nothing else happened."""
        return not any(self.found.values())

    @property
    def text(self) -> str:
        """The verdict, and what speaks against it."""
        sides = f"{self.inputs:,} inputs ({self.quarantined:,} set aside), {self.effects:,} rows in the ledger"
        lines = [f"{sides}, {self.seconds:.1f} s"]
        for category, count in self.found.items():
            lines.append(f"{category:<8} {count:>10,}")
            lines += [f"    {id}: {detail}" for id, detail in self.examples.get(category, [])]
            if count > SHOWN:
                lines.append(f"    ... and {count - SHOWN:,} more")
        lines.append("exactly once" if self.ok else "NOT exactly once")
        return "\n".join(lines)


def reconcile(
    inputs: DataFrame,
    ledger: DataFrame,
    *,
    id: str | Sequence[str] = "id",
    quarantined: DataFrame | None = None,
    dead_letters: DataFrame | None = None,
    expectations: Sequence[Expectation] = GENERIC,
    fields: Fields | None = None,
) -> ReconcileReport:
    """Compare inputs with the ledger's rows (as `read_ledger` gives them).

    `quarantined` {id, count} are rows that `feed` set aside (count null: the whole id), `dead_letters` {id} inputs
    that were refused on purpose; neither may have effects.
    """
    started_s = time.monotonic()
    ids = (id,) if isinstance(id, str) else tuple(id)
    check_key_columns(inputs, ids)
    given = inputs.select(identity_column(ids).alias("id")).groupBy("id").agg(fn.count(fn.lit(1)).alias("rows"))
    expected = expected_of(given, quarantined, dead_letters).persist()
    effects = effects_of(ledger, fields or Fields()).persist()
    books = Books(expected, effects)
    parts = [expectation(books, fields or Fields()) for expectation in expectations]
    findings = reduce(DataFrame.unionByName, parts).persist()
    try:
        counted = {row["category"]: row["count"] for row in findings.groupBy("category").count().collect()}
        given_count = given.where(fn.coalesce(fn.col("id"), fn.lit("")) != "").count()
        expected_count = expected.count()
        return ReconcileReport(
            inputs=expected_count,
            quarantined=given_count - expected_count,
            effects=effects.count(),
            found={category: counted.get(category, 0) for category in (*CATEGORIES[:3], *sorted(counted))},
            examples=examples(findings) if counted else {},
            seconds=time.monotonic() - started_s,
        )
    finally:
        for frame in (findings, effects, expected):
            frame.unpersist()


def expected_of(given: DataFrame, quarantined: DataFrame | None, dead_letters: DataFrame | None) -> DataFrame:
    """The ids that must have effects: those with at least one row that was sent."""
    expected = given.where(fn.coalesce(fn.col("id"), fn.lit("")) != "")
    if quarantined is not None:
        aside = quarantined.select("id", fn.coalesce("count", fn.lit(1 << 62)).alias("aside"))
        expected = expected.join(aside, "id", "left").where(fn.col("rows") > fn.coalesce("aside", fn.lit(0)))
    if dead_letters is not None:
        expected = expected.join(dead_letters.select("id").distinct(), "id", "left_anti")
    return expected.select("id")


def examples(findings: DataFrame) -> dict[str, list[tuple[str, str]]]:
    """The first twenty of each category."""
    order = Window.partitionBy("category").orderBy("id", "detail")
    first = findings.withColumn("n", fn.row_number().over(order)).where(fn.col("n") <= SHOWN).collect()
    found: dict[str, list[tuple[str, str]]] = {}
    for row in sorted(first, key=lambda row: (row["category"], row["n"])):
        found.setdefault(row["category"], []).append((row["id"], row["detail"]))
    return found


def read_quarantine(spark: SparkSession, folder: str, raw: DataFrame) -> DataFrame | None:
    """The set-aside rows {id, count} of this input's feed; where several feeds left some, each row counts once."""
    place = local_path(folder)
    runs = sorted(path for path in place.glob("*") if path.is_dir()) if place.is_dir() else []
    if any(not run.name.endswith(".first") for run in runs):
        digest = snapshot_of(raw).digest[:16]  # a feed by --created keeps one folder for each state of the input
        runs = [run for run in runs if run.name.endswith(f".{digest}")] or runs
    if not runs:
        return None
    counted = []
    for run in runs:
        rows = spark.read.schema(QUARANTINED).option("recursiveFileLookup", "true").json(str(run))
        whole = fn.count(fn.when(fn.col("row").isNull(), 1)) > 0
        count = fn.when(~whole, fn.count(fn.lit(1)))
        counted.append(rows.where(fn.col("id").isNotNull()).groupBy("id").agg(count.alias("count")))
    least_first = fn.max(fn.coalesce("count", fn.lit(1 << 62)))
    return reduce(DataFrame.unionByName, counted).groupBy("id").agg(least_first.alias("count"))


def read_states(spark: SparkSession, path: str, state: str, field: str) -> DataFrame:
    """{key, balance} of an export: JSON lines {"state": ..., "key": ..., "value": {...}}."""
    lines = spark.read.schema("state string, key string, value string").json(path)
    value = fn.get_json_object("value", f"$.{field}").alias("held")
    chosen = lines.where(fn.col("state") == state).select("key", value)
    return chosen.select("key", fn.expr("try_cast(held as bigint)").alias("balance"))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.reconcile", description="Compare inputs, ledger and state.")
    add_input(found)
    found.add_argument("--ledger", required=True, metavar="DIR", help="what spark_jobs.consume wrote")
    found.add_argument("--quarantine", default="", metavar="DIR", help="default: beside the input, where there is one")
    found.add_argument("--dead-letters", default="", metavar="FILE", help='JSON lines with "id": refused on purpose')
    found.add_argument("--rule", choices=sorted(RULES), default="generic")
    found.add_argument("--kind", default="kind", metavar="FIELD", help="a body's field that tells effects apart")
    found.add_argument("--own-kind", action="append", metavar="KIND", help="effects without an input; default: opened")
    found.add_argument("--state", default="", metavar="FILE", help="an export: balances must be the sums of postings")
    found.add_argument("--opening", default="", metavar="FILE", help="an export from before the first input")
    found.add_argument("--balance", default="Account.balance", metavar="STATE.FIELD")
    found.add_argument("--account", default="account", metavar="FIELD", help="of a posting's body")
    found.add_argument("--amount", default="amount", metavar="FIELD", help="of a posting's body")
    add_common(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    arguments = parser().parse_args(argv)
    return ended("reconcile", lambda: command(arguments))


def command(arguments: argparse.Namespace) -> int:
    source = source_of(arguments)
    if not local_path(arguments.ledger).is_dir():
        raise Refused(f"there is no ledger in {arguments.ledger}; spark_jobs.consume writes one")
    spark = start("reconcile", arguments, os.environ)
    raw = read(spark, source)
    expectations = list(RULES[arguments.rule])
    if arguments.state:
        state, _, field = arguments.balance.partition(".")
        opening = read_states(spark, arguments.opening, state, field) if arguments.opening else None
        expectations.append(BalancesAgree(read_states(spark, arguments.state, state, field), opening))
    beside = "" if "://" in source.path else f"{source.path.rstrip('/')}.quarantine"
    quarantine = arguments.quarantine or beside
    report = reconcile(
        raw,
        read_ledger(spark, arguments.ledger),
        id=arguments.id or ["id"],
        quarantined=read_quarantine(spark, quarantine, raw) if quarantine else None,
        dead_letters=spark.read.schema("id string").json(arguments.dead_letters) if arguments.dead_letters else None,
        expectations=expectations,
        fields=Fields(
            kind=arguments.kind,
            account=arguments.account,
            amount=arguments.amount,
            own_kinds=tuple(arguments.own_kind or Fields().own_kinds),
        ),
    )
    print(msgspec.json.encode(asdict(report)).decode() if arguments.json else report.text, flush=True)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
