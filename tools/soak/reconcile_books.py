"""Inputs, ledger and exported state of a bank that moved money `rows` times, with faults of each kind planted.

    python -m tools.soak.reconcile_books FOLDER ROWS SEED [FAULTS]       prints what was planted as JSON

Transfer `n` has the id md5(n) and goes between two accounts that a hash of `n` and the seed chooses; the ledger has a
withdrawal and a deposit of each, in the order of hashes, and the export has every account.  Which transfers are
spoilt, and how, is drawn by the seed, so what must be found is known without looking.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from spark_jobs.common import java
from spark_jobs.common.folder import Folder
from spark_jobs.draining.entries import Progress
from spark_jobs.draining.merging import DATA, LEDGER_NAME
from spark_jobs.draining.tables import Table
from spark_jobs.draining.taking_over import found
from spark_jobs.session import session

ROWS_AN_ACCOUNT = 10
OPENING_BALANCE = 1_000
KINDS = ("lost", "half", "doubled", "repeated", "phantom", "unbalanced")
"""Without any posting; without its deposit; its deposit under two identities; a row twice; of no input; not zero."""
STATE_KINDS = ("wrong", "missing", "extra")
"""An account whose balance is not what was posted, one that is not in the export, and one that is only there."""


@dataclass(frozen=True, slots=True)
class Books:
    """Where all of it is, and the ids that must be found by category."""

    inputs: Path
    ledger: Path
    states: Path
    opening: Path
    planted: dict[str, list[str]]


def planted_in(rows: int, accounts: int, seed: int, each: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Which transfers and which accounts are spoilt, by kind."""
    chance = random.Random(seed)
    transfers = chance.sample(range(rows), each * len(KINDS))
    holders = chance.sample(range(accounts), each * len(STATE_KINDS))
    return (
        {kind: sorted(transfers[at * each : (at + 1) * each]) for at, kind in enumerate(KINDS)},
        {kind: sorted(holders[at * each : (at + 1) * each]) for at, kind in enumerate(STATE_KINDS)},
    )


def expected(rows: int, accounts: int, seed: int, each: int) -> dict[str, list[str]]:
    """What the bank's rule and the balances must find, by category."""
    spoilt, held = planted_in(rows, accounts, seed, each)
    ids = {kind: [id_of(n) for n in numbers] for kind, numbers in spoilt.items()}
    names = {kind: [name_of(n) for n in numbers] for kind, numbers in held.items()}
    doubled = [f"{id_of(n)}-d" for n in spoilt["repeated"]]  # found by the message's identity
    return {
        "lost": sorted(ids["lost"] + ids["half"]),
        "doubled": sorted(ids["doubled"] + doubled),
        "phantom": sorted(f"no-{id}" for id in ids["phantom"]),
        "broken": sorted(ids["unbalanced"] + ids["doubled"]),
        "state": sorted([*names["wrong"], *names["missing"], *(f"no-{name}" for name in names["extra"])]),
    }


def id_of(number: int) -> str:
    """A transfer's id."""
    return md5(str(number).encode(), usedforsecurity=False).hexdigest()


def name_of(number: int) -> str:
    """An account's name."""
    return f"account-{number:08}"


def make(spark: SparkSession, folder: Path, rows: int, seed: int, each: int = 10) -> Books:
    """Write the books, and commit the ledger as `consume` does."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    accounts = max(1, rows // ROWS_AN_ACCOUNT)
    spoilt, held = planted_in(rows, accounts, seed, each)
    moved = transfers(spark, rows, accounts, seed)
    inputs, ledger, states, opening = (
        folder / name for name in ("transfers.parquet", "ledger", "states.jsonl", "opening.jsonl")
    )
    books = Books(inputs, ledger, states, opening, expected(rows, accounts, seed, each))
    moved.select("id", "source", "target", "amount").write.parquet(str(books.inputs))
    data = books.ledger / DATA / "00000001-made"
    postings(moved, spoilt).write.parquet(str(data))
    place = Folder(books.ledger)
    files = [
        found(place, f"{DATA}/{data.name}/{name}")
        for name in sorted(item.name for item in Folder(data).list(suffix=".parquet"))
    ]
    Table(place, LEDGER_NAME).create(files, Progress(token="made", number=0, files=len(files), consumed=[]))
    holders = spark.range(accounts).select("id", named(fn.col("id")).alias("key"))
    opened = holders.select("key", fn.lit(OPENING_BALANCE).cast("bigint").alias("balance"))
    exported(opened).write.text(str(books.opening))
    exported(balances(spark, holders, data, held)).write.text(str(books.states))
    return books


def named(number: Column) -> Column:
    return fn.concat(fn.lit("account-"), fn.lpad(number.cast("string"), 8, "0"))


def transfers(spark: SparkSession, rows: int, accounts: int, seed: int) -> DataFrame:
    """{n, id, source, target, amount}."""
    n = fn.col("n")

    def drawn(what: int, count: int) -> Column:
        return fn.pmod(fn.xxhash64(n, fn.lit(seed), fn.lit(what)), fn.lit(count))

    return spark.range(0, rows, 1, max(2, rows // 500_000)).select(
        fn.col("id").alias("n"),
        fn.md5(fn.col("id").cast("string")).alias("id"),
    ).select("n", "id", named(drawn(1, accounts)).alias("source"), named(drawn(2, accounts)).alias("target"),
             (drawn(3, 100) + 1).alias("amount"))  # fmt: skip


def postings(moved: DataFrame, spoilt: dict[str, list[int]]) -> DataFrame:
    """The ledger's rows: two of each transfer, but for the spoilt ones."""
    n = fn.col("n")

    def of(kind: str) -> Column:
        return n.isin(*spoilt[kind])

    withdrawn = posting(moved.where(~of("lost")), "withdraw", "source", -fn.col("amount"), "-w")
    skewed = fn.col("amount") + fn.when(of("unbalanced"), 1).otherwise(0)
    deposited = posting(moved.where(~of("lost") & ~of("half")), "deposit", "target", skewed, "-d")
    again = posting(moved.where(of("doubled")), "deposit", "target", fn.col("amount"), "-e")
    repeated = posting(moved.where(of("repeated")), "deposit", "target", fn.col("amount"), "-d")
    others = moved.where(of("phantom")).withColumn("id", fn.concat(fn.lit("no-"), "id"))
    phantom = posting(others, "deposit", "target", fn.col("amount"), "-d")
    found = withdrawn
    for part in (deposited, again, repeated, phantom):
        found = found.unionByName(part)
    return found


def posting(moved: DataFrame, kind: str, account: str, amount: Column, tail: str) -> DataFrame:
    body = fn.to_json(
        fn.struct(
            fn.col("id").alias("transfer"),
            fn.col(account).alias("account"),
            fn.lit(kind).alias("kind"),
            amount.alias("amount"),
        )
    )
    none, zero = fn.lit(None), fn.lit(0).cast("bigint")
    return moved.select(
        fn.concat("id", fn.lit(tail)).alias("message_id"),
        fn.lit("Posting").alias("type"),
        fn.col("id").alias("correlation_id"),
        fn.col("id").alias("causation_id"),
        none.cast("string").alias("traceparent"),
        zero.alias("created_ms"),
        zero.alias("enqueued_ms"),
        fn.col("n").alias("sequence_number"),
        zero.alias("delivery_count"),
        none.cast("string").alias("session_id"),
        body.alias("body"),
        none.cast("binary").alias("raw"),
        none.cast("string").alias("properties"),
        fn.sha2(body, 256).alias("fingerprint"),
    )


def balances(spark: SparkSession, holders: DataFrame, data: Path, held: dict[str, list[int]]) -> DataFrame:
    """{key, balance}: what was posted, but for the spoilt accounts."""
    rows = spark.read.parquet(str(data)).dropDuplicates(["message_id"])
    body = fn.from_json("body", "account string, amount bigint")
    posted = rows.select(body.alias("b")).groupBy(fn.col("b.account").alias("key")).agg(fn.sum("b.amount").alias("sum"))
    all_held = holders.join(posted, "key", "left").select(
        "id", "key", (fn.coalesce("sum", fn.lit(0)) + OPENING_BALANCE).alias("balance")
    )
    wrong = fn.when(fn.col("id").isin(*held["wrong"]), 1).otherwise(0)
    kept = all_held.where(~fn.col("id").isin(*held["missing"])).select(
        "key", (fn.col("balance") + wrong).alias("balance")
    )
    extra = holders.where(fn.col("id").isin(*held["extra"]))
    return kept.unionByName(
        extra.select(fn.concat(fn.lit("no-"), "key").alias("key"), fn.lit(5).cast("bigint").alias("balance"))
    )


def exported(balances: DataFrame) -> DataFrame:
    """Lines of an export, as `outbox export` writes them."""
    value = fn.struct(fn.col("balance"))
    return balances.select(
        fn.to_json(fn.struct(fn.lit("Account").alias("state"), fn.col("key"), value.alias("value"))).alias("value")
    )


def main(argv: Sequence[str]) -> None:
    """Run from a command line."""
    java.prepare(os.environ)
    folder, rows, seed = Path(argv[0]), int(argv[1]), int(argv[2])
    books = make(session("books", "local[2]"), folder, rows, seed, int(argv[3]) if len(argv) > 3 else 10)
    print(json.dumps(books.planted), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
