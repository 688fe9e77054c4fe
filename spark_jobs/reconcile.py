"""Inputs, ledger and exported state side by side: missing, doubled and phantom effects.

    python -m spark_jobs.reconcile --input transfers.csv --ledger ledger/
    python -m spark_jobs.reconcile --input transfers.csv --ledger ledger/ --rule bank --state accounts.jsonl
    python -m spark_jobs.reconcile --input day/28 --input corrected.csv --dead-letters queue:transfers --since 41 ...

Exit code 0: each input has its effects exactly once; 1: it says what is wrong; 2: usage.  Every effect names the input
that caused it by `correlation-id`, so what others caused is counted and not judged, unless it is asked for
(`--everything`).

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
from collections.abc import Sequence
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
from spark_jobs.common.arguments import (
    CONNECTION_HELP,
    add_common,
    add_input,
    connection_of,
    ended,
    silent,
    source_of,
    start,
    to_stderr,
)
from spark_jobs.common.identity import CredentialSource
from spark_jobs.common.ids import check_key_columns, identity_column
from spark_jobs.common.places import joined, place_of
from spark_jobs.comparing.dead_letters import QUEUE, peeked
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
from spark_jobs.comparing.given import WHOLE_ID, Part, read_dead_letters, read_states, together
from spark_jobs.comparing.older import Older
from spark_jobs.comparing.quarantines import read_quarantine
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
    rows_of_messages,
    within,
)
from spark_jobs.comparing.steps import Kept, Steps, folder_of
from spark_jobs.ledger import Version, newest_version, read_files
from spark_jobs.reading.files import files_at
from spark_jobs.reading.input import Input, refusals
from spark_jobs.reading.judging import Judge

SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """`found` counts findings by category, `examples` has the first twenty (id, detail) of each.

    `effects` are the rows that were judged, `others` those that other inputs, or none, have caused; `version` is that
    of the ledger.
    """

    inputs: int
    quarantined: int
    effects: int
    others: int = 0
    version: int | None = None
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
        about = [f"of other inputs: {self.others:,}"] if self.others else []
        about += [] if self.version is None else [f"version {self.version}"]
        lines = [", ".join([sides, *about, f"{self.seconds:.1f} s"])]
        for category, count in self.found.items():
            lines.append(f"{category:<8} {count:>10,}")
            lines += [f"    {id}: {detail}" for id, detail in self.examples.get(category, [])]
            if count > SHOWN:
                lines.append(f"    ... and {count - SHOWN:,} more")
        verdict = (
            "exactly once" if self.inputs or self.quarantined or self.effects else "no inputs, nothing was compared"
        )
        lines.append(verdict if self.ok else "NOT exactly once")
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
    everything: bool = True,
    older: Older | None = None,
) -> ReconcileReport:
    """Compare inputs with the ledger's rows (as `read_ledger` gives them).

    `quarantined` {id, count} are rows that `feed` set aside (count null: the whole id), which may have no effects;
    `dead_letters` {id} inputs that were refused, which need none: corrected and applied, they are like others.
    Without `everything` only effects are judged whose `correlation_id` is one of `id`; then `ledger` may leave files
    out that `older` asks.  Balances are sums over all rows of `ledger` in any case.

    Raises:
        Refused: columns that are no id; `older` with what needs all rows.
    """
    if older is not None and (everything or any(isinstance(one, BalancesAgree) for one in expectations)):
        raise Refused("balances and everything in a ledger need all of its rows; leave the older version out")
    started_s = time.monotonic()
    ids = (id,) if isinstance(id, str) else tuple(id)
    check_key_columns(inputs, ids)
    given = inputs.select(identity_column(ids).alias("id"))
    steps = steps or Steps(inputs.sparkSession)
    sides = Sides(given, ledger, quarantined, dead_letters, fields or Fields(), everything)
    left = 0
    try:
        if older is not None:
            sides, left = with_older(sides, older, steps.kept)
        met = steps.kept("inputs", lambda: inputs_screen_of(sides, expectations))
        findings = steps.kept("findings", lambda: findings_of(sides, expectations, met, steps))
        sums = [fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in ("given", "sent", "rows", "others")]
        totals = met.agg(*sums).collect()[0]
        counted = {row["category"]: row["count"] for row in findings.groupBy("category").count().collect()}
        return ReconcileReport(
            inputs=totals["sent"],
            quarantined=totals["given"] - totals["sent"],
            effects=totals["rows"],
            others=totals["others"] + left,
            found={category: counted.get(category, 0) for category in (*CATEGORIES[:3], *sorted(counted))},
            examples=examples(findings) if counted else {},
            seconds=time.monotonic() - started_s,
        )
    finally:
        steps.let_go()


@dataclass(frozen=True, slots=True)
class Sides:
    """The sides of a comparison: `given` {id} has a row for each of the input.

    Without `everything` effects of other inputs are not judged.
    """

    given: DataFrame
    ledger: DataFrame
    quarantined: DataFrame | None
    dead_letters: DataFrame | None
    fields: Fields
    everything: bool

    @property
    def effects(self) -> DataFrame:
        """All of the ledger as expectations see it; each use of it reads every body."""
        return effects_of(self.ledger, self.fields)

    @property
    def asked(self) -> DataFrame:
        """{h1, h2} of the inputs, each once."""
        return self.given.where(fn.coalesce("id", fn.lit("")) != "").select(*pair("id")).distinct()

    def books(self, given: DataFrame, effects: DataFrame) -> Books:
        """Some of both sides as expectations see them."""
        counted = given.groupBy("id").agg(fn.count(fn.lit(1)).alias("rows"))
        expected, excused = expected_of(counted, self.quarantined, self.dead_letters)
        return Books(expected, effects, excused)


def inputs_screen_of(sides: Sides, expectations: Sequence[Expectation]) -> DataFrame:
    """The screen that all these expectations need."""
    chosen = [SCREENS[expectation](sides.fields) for expectation in expectations if expectation in SCREENS]
    everything = sides.everything
    return inputs_screen(
        sides.given, sides.effects, sides.quarantined, sides.dead_letters, chosen, everything=everything
    )


def findings_of(sides: Sides, expectations: Sequence[Expectation], met: DataFrame, steps: Steps) -> DataFrame:
    """The findings of all expectations: with a screen over the suspects, without one over everything."""
    messages = steps.kept("messages", lambda: messages_screen(sides.ledger))
    repeated = steps.kept("repeated", lambda: rows_of_messages(sides.ledger, messages)) if messages.count() else None
    suspects = suspects_of(sides, met, repeated)
    few = steps.kept("few", lambda: within(sides.ledger, "correlation_id", suspects))
    books = sides.books(within(sides.given, "id", suspects), effects_of(few, sides.fields))
    parts = [nothing(few)]
    for number, expectation in enumerate(expectations):
        if isinstance(expectation, BalancesAgree):
            parts.append(balances_of(sides, expectation, repeated, steps.of(f"accounts-{number}")))
        elif is_screened(expectation):
            parts.append(expectation(books, sides.fields))
        else:
            ledger = sides.ledger if sides.everything else within(sides.ledger, "correlation_id", sides.asked)
            parts.append(expectation(sides.books(sides.given, effects_of(ledger, sides.fields)), sides.fields))
    return reduce(DataFrame.unionByName, parts)


def suspects_of(sides: Sides, met: DataFrame, repeated: DataFrame | None) -> DataFrame:
    """{h1, h2}: the inputs that are suspect by themselves, and those to which rows of a repeated message belong."""
    suspects = met.where("h1 is not null").select(*PAIR)
    if repeated is None:
        return suspects
    causes = repeated.select(*pair("correlation_id"))
    if not sides.everything:
        causes = causes.join(sides.asked, list(PAIR), "left_semi")
    return suspects.unionByName(causes).distinct()


def with_older(sides: Sides, older: Older, kept: Kept) -> tuple[Sides, int]:
    """The same with what the older files have of these inputs, and how many of their rows are of others."""
    asked = kept("asked", lambda: sides.asked)
    found = kept("older", lambda: older.caused_by(asked))
    return replace(sides, ledger=sides.ledger.unionByName(found)), older.count - found.count()


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


def expected_of(
    given: DataFrame, quarantined: DataFrame | None, dead_letters: DataFrame | None
) -> tuple[DataFrame, DataFrame | None]:
    """The ids that must have effects, with a row that was sent; and the ids that a dead letter excuses."""
    named = given.where(fn.coalesce(fn.col("id"), fn.lit("")) != "")
    expected, excused = named, None
    if quarantined is not None:
        aside = quarantined.select("id", fn.coalesce("count", fn.lit(WHOLE_ID)).alias("aside"))
        expected = expected.join(aside, "id", "left").where(fn.col("rows") > fn.coalesce("aside", fn.lit(0)))
    if dead_letters is not None:
        dead = dead_letters.select("id").distinct()
        expected, excused = expected.join(dead, "id", "left_anti"), named.join(dead, "id", "left_semi").select("id")
    return expected.select("id"), excused


def examples(findings: DataFrame) -> dict[str, list[tuple[str, str]]]:
    """The first twenty of each category."""
    order = Window.partitionBy("category").orderBy("id", "detail")
    first = findings.withColumn("n", fn.row_number().over(order)).where(fn.col("n") <= SHOWN).collect()
    found: dict[str, list[tuple[str, str]]] = {}
    for row in sorted(first, key=lambda row: (row["category"], row["n"])):
        found.setdefault(row["category"], []).append((row["id"], row["detail"]))
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.reconcile", description="Compare inputs, ledger and state.")
    add_input(found, several=True)
    found.add_argument("--ledger", required=True, metavar="PLACE", help="what spark_jobs.consume wrote")
    found.add_argument(
        "--since", type=int, metavar="VERSION", help="of the ledger: of what it has from before ask only who caused it"
    )
    found.add_argument(
        "--quarantine", action="append", metavar="PLACE", help="one for each input, in order; default: beside the input"
    )
    found.add_argument(
        "--dead-letters",
        action="append",
        metavar="FILE|queue:NAME",
        help='refused on purpose: JSON lines with "id", or a queue (or topic/Subscriptions/name), which is only looked '
        "at; may be repeated",
    )
    found.add_argument("--connection", default="", help=f"of queues with dead letters: {CONNECTION_HELP}")
    found.add_argument(
        "--everything", action="store_true", help="judge all rows of the ledger, not only what these inputs caused"
    )
    found.add_argument("--rule", choices=sorted(RULES), default="generic")
    found.add_argument("--kind", default="kind", metavar="FIELD", help="a body's field that tells effects apart")
    found.add_argument("--own-kind", action="append", metavar="KIND", help="effects without an input; default: opened")
    found.add_argument(
        "--state",
        default="",
        metavar="FILE",
        help="an export of all accounts: balances must be the sums of all postings, whatever caused them",
    )
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
    """Compare what the arguments name.

    Raises:
        Refused: options that do not go together, or something is not there.
    """
    sources = [source_of(arguments, path) for path in arguments.input]
    asides = quarantines_of(arguments)
    if arguments.since is not None and (arguments.everything or arguments.state):
        raise Refused("--everything and --state need all rows of the ledger; leave --since out")
    version = newest_version(arguments.ledger, arguments.since)
    if version is None:
        raise Refused(f"there is no ledger in {arguments.ledger}; spark_jobs.consume writes one")
    for path in (*arguments.input, *(name for name in arguments.dead_letters or [] if not name.startswith(QUEUE))):
        files_at(path, os.environ).check()
    dead = dead_letters_of(arguments)
    spark = start("reconcile", arguments, os.environ)
    judge = Judge(tuple(arguments.id or ["id"]))
    inputs = [Input(spark, source, judge, files_at(source.path, os.environ)) for source in sources]

    def check_unchanged() -> None:
        for each in inputs:
            each.check_unchanged()

    with refusals(check_unchanged):
        report = compared(spark, arguments, list(zip(inputs, asides, strict=True)), version, dead)
        check_unchanged()
    report = replace(report, version=version.number)
    print(msgspec.json.encode(asdict(report)).decode() if arguments.json else report.text, flush=True)
    return 0 if report.ok else 1


def quarantines_of(arguments: argparse.Namespace) -> list[str]:
    """The place of each input's quarantine.

    Raises:
        Refused: which belongs to which input is not clear.
    """
    given = arguments.quarantine or [joined(path, ".quarantine") for path in arguments.input]
    if len(given) != len(arguments.input):
        raise Refused(
            f"{len(given)} --quarantine for {len(arguments.input)} --input; give one for each input, in their order, "
            "or none where each lies beside its input"
        )
    return list(given)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Exports of dead letters, and the ids that those of queues were caused by; `is_given`: some are named at all."""

    paths: list[str]
    ids: list[str]
    is_given: bool

    def frame(self, spark: SparkSession) -> DataFrame | None:
        """{id}, None where none are named."""
        if not self.is_given:
            return None
        parts = [read_dead_letters(spark, files_at(path, os.environ)) for path in self.paths]
        return reduce(DataFrame.unionByName, [*parts, spark.createDataFrame([(id,) for id in self.ids], "id string")])


def dead_letters_of(arguments: argparse.Namespace) -> DeadLetters:
    """Look at the queues that are named.

    Raises:
        Refused: there is no connection, or too many dead letters.
        OutcomeUnknown: a queue cannot be looked at.
    """
    given = arguments.dead_letters or []
    queues = [name.removeprefix(QUEUE) for name in given if name.startswith(QUEUE)]
    ids = set[str]()
    if queues:
        source = CredentialSource.of(connection_of(arguments, os.environ), os.environ)
        for queue in queues:
            ids |= peeked(source.access(), queue)
    return DeadLetters([name for name in given if not name.startswith(QUEUE)], sorted(ids), bool(given))


def compared(
    spark: SparkSession,
    arguments: argparse.Namespace,
    inputs: Sequence[tuple[Input, str]],
    version: Version,
    dead: DeadLetters,
) -> ReconcileReport:
    """Compare as the arguments ask."""
    expectations, at = list(RULES[arguments.rule]), partial(files_at, environ=os.environ)
    if arguments.state:
        state, _, field = arguments.balance.partition(".")
        opening = read_states(spark, at(arguments.opening), state, field) if arguments.opening else None
        expectations.append(BalancesAgree(read_states(spark, at(arguments.state), state, field), opening))
    parts, paths = list[Part](), [path for path in (arguments.state, arguments.opening, *dead.paths) if path]
    for each, quarantine in inputs:
        aside = read_quarantine(spark, place_of(quarantine, os.environ), each, to_stderr)
        parts.append((each.ids(), aside))
        paths += [each.path] if aside is None else [each.path, quarantine]
    given, quarantined = together(parts)
    return reconcile(
        given,
        read_files(spark, version.place, version.newer),
        quarantined=quarantined,
        dead_letters=dead.frame(spark),
        expectations=expectations,
        fields=Fields(
            kind=arguments.kind,
            account=arguments.account,
            amount=arguments.amount,
            own_kinds=tuple(arguments.own_kind or Fields().own_kinds),
        ),
        steps=steps_of(spark, arguments, version, paths, dead),
        everything=arguments.everything,
        older=None if arguments.since is None else Older(spark, version.place, version.older),
    )


def steps_of(
    spark: SparkSession, arguments: argparse.Namespace, version: Version, paths: Sequence[str], dead: DeadLetters
) -> Steps:
    """The steps of a comparison, kept in its folder, or in memory."""
    if not arguments.progress:
        return Steps(spark)
    ways = {"progress", "master", "quiet", "json", "connection"}
    settings = {name: value for name, value in vars(arguments).items() if name not in ways}
    place = place_of(arguments.progress, os.environ)
    inputs = [replace(files_at(path, os.environ), may_be_empty=True) for path in paths]
    folder = folder_of(place, version.names, inputs, repr((sorted(settings.items()), dead.ids)))
    return Steps(spark, folder, silent if arguments.quiet else to_stderr)


if __name__ == "__main__":
    sys.exit(main())
