"""Inputs, ledger and exported state side by side: what is lost, doubled or phantom.

    python -m spark_jobs.reconcile --input transfers.csv --ledger ledger/
    python -m spark_jobs.reconcile --input transfers.csv --ledger ledger/ --rule bank --state accounts.jsonl

Exit code 0: each input has its effects exactly once; 1: it says what is wrong; 2: usage.  Every effect names the input
that caused it by `correlation-id`.

Theory of operation.  First a cheap pass over hashes and sums (`spark_jobs.comparing.screens`) tells which inputs,
messages and accounts may be wrong; only these are put beside each other by the expectations, and only findings come to
the driver.  Nothing is written but, with `--progress DIR`, what each step has found: killed and run again, the same
comparison goes on behind the last step; one of other files or by other rules begins anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from spark_jobs.common.installed import check_installed

    check_installed("reconcile", "pyspark")

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from outbox.errors import Refused
from spark_jobs.common.arguments import add_common, add_input, ended, silent, source_of, start, to_stderr
from spark_jobs.common.ids import check_key_columns, identity_column
from spark_jobs.common.places import Place, joined, place_of
from spark_jobs.comparing.expectations import (
    CATEGORIES,
    GENERIC,
    RULES,
    BalancesAgree,
    Books,
    Expectation,
    Fields,
    effects_of,
    finding,
)
from spark_jobs.comparing.screens import (
    PAIR,
    SCREENS,
    accounts_screen,
    bucket_of,
    in_buckets,
    inputs_screen,
    is_screened,
    messages_screen,
    pair,
    rows_of_inputs,
    rows_of_messages,
    within,
)
from spark_jobs.comparing.steps import Kept, Steps, folder_of
from spark_jobs.ledger import is_ledger, newest_files, read_ledger
from spark_jobs.reading.files import Files, files_at
from spark_jobs.reading.input import Input, refusals
from spark_jobs.reading.judging import Judge
from spark_jobs.reading.source import Source

SHOWN = 20


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
    steps: Steps | None = None,
) -> ReconcileReport:
    """Compare inputs with the ledger's rows (as `read_ledger` gives them).

    `quarantined` {id, count} are rows that `feed` set aside (count null: the whole id), `dead_letters` {id} inputs
    that were refused on purpose; neither may have effects.
    """
    started_s = time.monotonic()
    ids = (id,) if isinstance(id, str) else tuple(id)
    check_key_columns(inputs, ids)
    given = inputs.select(identity_column(ids).alias("id"))
    sides = Sides(given, ledger, quarantined, dead_letters, fields or Fields())
    steps = steps or Steps(inputs.sparkSession)
    try:
        met = steps.kept("inputs", lambda: inputs_screen_of(sides, expectations))
        findings = steps.kept("findings", lambda: findings_of(sides, expectations, met, steps))
        totals = met.agg(*(fn.sum(name).alias(name) for name in ("given", "expected", "rows"))).collect()[0]
        counted = {row["category"]: row["count"] for row in findings.groupBy("category").count().collect()}
        return ReconcileReport(
            inputs=totals["expected"],
            quarantined=totals["given"] - totals["expected"],
            effects=totals["rows"],
            found={category: counted.get(category, 0) for category in (*CATEGORIES[:3], *sorted(counted))},
            examples=examples(findings) if counted else {},
            seconds=time.monotonic() - started_s,
        )
    finally:
        steps.let_go()


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: `given` {id} has a row for each of the input."""

    given: DataFrame
    ledger: DataFrame
    quarantined: DataFrame | None
    dead_letters: DataFrame | None
    fields: Fields

    @property
    def effects(self) -> DataFrame:
        """All of the ledger as expectations see it; each use of it reads every body."""
        return effects_of(self.ledger, self.fields)

    def books(self, given: DataFrame, effects: DataFrame) -> Books:
        """Some of both sides as expectations see them."""
        counted = given.groupBy("id").agg(fn.count(fn.lit(1)).alias("rows"))
        return Books(expected_of(counted, self.quarantined, self.dead_letters), effects)


def inputs_screen_of(sides: Sides, expectations: Sequence[Expectation]) -> DataFrame:
    """The screen that all these expectations need."""
    chosen = [SCREENS[expectation](sides.fields) for expectation in expectations if expectation in SCREENS]
    return inputs_screen(sides.given, sides.effects, sides.quarantined, sides.dead_letters, chosen)


def findings_of(sides: Sides, expectations: Sequence[Expectation], met: DataFrame, steps: Steps) -> DataFrame:
    """What all expectations find: those with a screen in what is suspect, others of your own in everything."""
    messages = steps.kept("messages", lambda: messages_screen(sides.ledger))
    repeated = steps.kept("repeated", lambda: rows_of_messages(sides.ledger, messages)) if messages.count() else None
    few = steps.kept("few", lambda: rows_of_inputs(sides.ledger, met, repeated))
    books = few_books(sides, few, met)
    parts = [nothing(few)]
    for number, expectation in enumerate(expectations):
        if isinstance(expectation, BalancesAgree):
            parts.append(balances_of(sides, expectation, repeated, steps.of(f"accounts-{number}")))
        elif is_screened(expectation):
            parts.append(expectation(books, sides.fields))
        else:
            parts.append(expectation(sides.books(sides.given, sides.effects), sides.fields))
    return reduce(DataFrame.unionByName, parts)


def few_books(sides: Sides, few: DataFrame, met: DataFrame) -> Books:
    """The books of the inputs that are suspect, and of those to which rows of a repeated message belong."""
    suspects = met.where("h1 is not null").select(*PAIR)
    suspects = suspects.unionByName(few.select(*pair("correlation_id"))).distinct()
    return sides.books(within(sides.given, "id", suspects), effects_of(few, sides.fields))


def balances_of(sides: Sides, balances: BalancesAgree, repeated: DataFrame | None, kept: Kept) -> DataFrame:
    """The balances of the accounts in suspect buckets, and in those of messages that are there twice."""
    buckets = kept("buckets", lambda: accounts_screen(sides.effects, balances, sides.fields))
    if repeated is not None:
        again = effects_of(repeated, sides.fields).where(fn.col("account").isNotNull())
        buckets = buckets.unionByName(again.select(bucket_of("account").alias("bucket"))).distinct()
    effects = kept("postings", lambda: in_buckets(sides.effects, "account", buckets))
    states = in_buckets(balances.states, "key", buckets)
    openings = None if balances.openings is None else in_buckets(balances.openings, "key", buckets)
    return BalancesAgree(states, openings)(Books(sides.given, effects), sides.fields)


def nothing(rows: DataFrame) -> DataFrame:
    """No findings."""
    return finding(rows.where(fn.lit(False)).withColumn("id", fn.col("message_id")), "", fn.lit(""))


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


def read_quarantine(spark: SparkSession, place: Place, digest: Callable[[], str]) -> DataFrame | None:
    """The set-aside rows {id, count} of this input's feed; where several feeds left some, each row counts once."""
    runs = sorted({item.name.partition("/")[0] for item in place.list(suffix=".json") if "/" in item.name})
    if any(not run.endswith(".first") for run in runs):
        own = digest()[:16]  # a feed by --created keeps one folder for each state of the input
        runs = [run for run in runs if run.endswith(f".{own}")] or runs
    if not runs:
        return None
    counted = []
    for run in runs:
        rows = lines_of(spark, Files(place / run), "id", "row")
        whole = fn.count(fn.when(fn.col("row").isNull(), 1)) > 0
        count = fn.when(~whole, fn.count(fn.lit(1)))
        counted.append(rows.where(fn.col("id").isNotNull()).groupBy("id").agg(count.alias("count")))
    least_first = fn.max(fn.coalesce("count", fn.lit(1 << 62)))
    return reduce(DataFrame.unionByName, counted).groupBy("id").agg(least_first.alias("count"))


def lines_of(spark: SparkSession, files: Files, *names: str) -> DataFrame:
    """Fields of JSON lines as texts, by the reader of the inputs.

    Raises:
        Refused: there is no such file; a line that is no object is refused when it is read.
    """
    source = Source(str(files.place), "json")
    return Input(spark, source, Judge(()), replace(files, may_be_empty=True)).picked(*names)


def read_states(spark: SparkSession, files: Files, state: str, field: str) -> DataFrame:
    """{key, balance} of an export: JSON lines {"state": ..., "key": ..., "value": {...}}."""
    value = fn.get_json_object("value", f"$.{field}").alias("held")
    chosen = lines_of(spark, files, "state", "key", "value").where(fn.col("state") == state).select("key", value)
    return chosen.select("key", fn.expr("try_cast(held as bigint)").alias("balance"))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.reconcile", description="Compare inputs, ledger and state.")
    add_input(found)
    found.add_argument("--ledger", required=True, metavar="PLACE", help="what spark_jobs.consume wrote")
    found.add_argument("--quarantine", default="", metavar="PLACE", help="default: beside the input")
    found.add_argument("--dead-letters", default="", metavar="FILE", help='JSON lines with "id": refused on purpose')
    found.add_argument("--rule", choices=sorted(RULES), default="generic")
    found.add_argument("--kind", default="kind", metavar="FIELD", help="a body's field that tells effects apart")
    found.add_argument("--own-kind", action="append", metavar="KIND", help="effects without an input; default: opened")
    found.add_argument("--state", default="", metavar="FILE", help="an export: balances must be the sums of postings")
    found.add_argument("--opening", default="", metavar="FILE", help="an export from before the first input")
    found.add_argument("--balance", default="Account.balance", metavar="STATE.FIELD")
    found.add_argument("--account", default="account", metavar="FIELD", help="of a posting's body")
    found.add_argument("--amount", default="amount", metavar="FIELD", help="of a posting's body")
    found.add_argument("--progress", default="", metavar="PLACE", help="keep what each step finds, and go on behind it")
    add_common(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    arguments = parser().parse_args(argv)
    return ended("reconcile", lambda: command(arguments))


def command(arguments: argparse.Namespace) -> int:
    source = source_of(arguments)
    if not is_ledger(arguments.ledger):
        raise Refused(f"there is no ledger in {arguments.ledger}; spark_jobs.consume writes one")
    spark = start("reconcile", arguments, os.environ)
    inputs = Input(spark, source, Judge(tuple(arguments.id or ["id"])), files_at(source.path, os.environ))
    with refusals(inputs.check_unchanged):
        report = compared(spark, arguments, inputs)
        inputs.check_unchanged()
    print(msgspec.json.encode(asdict(report)).decode() if arguments.json else report.text, flush=True)
    return 0 if report.ok else 1


def compared(spark: SparkSession, arguments: argparse.Namespace, inputs: Input) -> ReconcileReport:
    """What the arguments ask for."""
    files, expectations = newest_files(arguments.ledger), list(RULES[arguments.rule])
    at = partial(files_at, environ=os.environ)
    if arguments.state:
        state, _, field = arguments.balance.partition(".")
        opening = read_states(spark, at(arguments.opening), state, field) if arguments.opening else None
        expectations.append(BalancesAgree(read_states(spark, at(arguments.state), state, field), opening))
    quarantine = arguments.quarantine or joined(arguments.input, ".quarantine")
    quarantined = read_quarantine(spark, place_of(quarantine, os.environ), lambda: inputs.digest)
    dead_letters = lines_of(spark, at(arguments.dead_letters), "id") if arguments.dead_letters else None
    given = [arguments.input, arguments.state, arguments.opening, arguments.dead_letters]
    paths = [*filter(None, given), *([quarantine] if quarantined is not None else [])]
    return reconcile(
        inputs.ids(),
        read_ledger(spark, arguments.ledger, files),
        quarantined=quarantined,
        dead_letters=dead_letters,
        expectations=expectations,
        fields=Fields(
            kind=arguments.kind,
            account=arguments.account,
            amount=arguments.amount,
            own_kinds=tuple(arguments.own_kind or Fields().own_kinds),
        ),
        steps=steps_of(spark, arguments, [file.name for file in files], paths),
    )


def steps_of(spark: SparkSession, arguments: argparse.Namespace, ledger: Sequence[str], paths: Sequence[str]) -> Steps:
    """Where what is found is kept: in the folder of this comparison, or in memory."""
    if not arguments.progress:
        return Steps(spark)
    ways = {"progress", "master", "quiet", "json"}
    settings = {name: value for name, value in vars(arguments).items() if name not in ways}
    place = place_of(arguments.progress, os.environ)
    inputs = [replace(files_at(path, os.environ), may_be_empty=True) for path in paths]
    folder = folder_of(place, ledger, inputs, repr(sorted(settings.items())))
    return Steps(spark, folder, silent if arguments.quiet else to_stderr)


if __name__ == "__main__":
    sys.exit(main())
