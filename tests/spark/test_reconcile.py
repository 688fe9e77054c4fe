"""What is planted is found, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.comparing.expectations import RULES, BalancesAgree, Books, Fields, finding
from spark_jobs.ledger import LEDGER
from spark_jobs.reconcile import main, read_quarantine, read_states, reconcile

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def ledger(spark: Any, *rows: tuple[str, str, str, int]) -> Any:
    """Postings (correlation, kind, account, amount), each a message of its own."""
    names = [part.split()[0] for part in LEDGER.split(", ")]
    found = []
    for number, (correlation, kind, account, amount) in enumerate(rows):
        body = json.dumps({"transfer": correlation, "account": account, "kind": kind, "amount": amount})
        row = {"message_id": f"m{number}", "type": "Posting", "correlation_id": correlation, "body": body}
        found.append(tuple(row.get(name) for name in names))
    return spark.createDataFrame(found, LEDGER)


def inputs(spark: Any, *ids: str) -> Any:
    return spark.createDataFrame([(id,) for id in ids], "id string")


MOVED = (("t1", "withdraw", "alice", -5), ("t1", "deposit", "bob", 5))
REFUSED = (("t2", "refused", "bob", 9),)
OPENED = (("o1", "opened", "alice", 10),)


def test_each_exactly_once_is_ok(spark: Any) -> None:
    report = reconcile(inputs(spark, "t1", "t2"), ledger(spark, *MOVED, *REFUSED, *OPENED), expectations=RULES["bank"])
    assert report.ok, report.text
    assert (report.inputs, report.effects) == (2, 4)


def test_lost_doubled_and_phantom_are_distinguished(spark: Any) -> None:
    rows = ledger(spark, *MOVED, ("t1", "deposit", "bob", 5), ("t9", "withdraw", "eve", -1))
    report = reconcile(inputs(spark, "t1", "t3"), rows)
    assert report.found == {"lost": 1, "doubled": 1, "phantom": 1}
    assert report.examples["lost"] == [("t3", "no row in the ledger")]
    assert report.examples["doubled"] == [("t1", "Posting deposit x 2")]
    assert report.examples["phantom"][0][0] == "t9"


def test_a_message_that_is_in_the_ledger_twice_is_doubled(spark: Any) -> None:
    rows = ledger(spark, *MOVED)
    report = reconcile(inputs(spark, "t1"), rows.unionByName(rows.limit(1)))
    assert report.found == {"lost": 0, "doubled": 1, "phantom": 0}


def test_the_bank_misses_the_other_half_and_money_from_nowhere(spark: Any) -> None:
    rows = ledger(spark, ("t1", "withdraw", "alice", -5), ("t2", "withdraw", "bob", -3), ("t2", "refund", "bob", 4))
    report = reconcile(inputs(spark, "t1", "t2"), rows, expectations=RULES["bank"])
    assert report.found == {"lost": 1, "doubled": 0, "phantom": 0, "broken": 1}
    assert report.examples["broken"] == [("t2", "postings add up to 1")]


def test_balances_that_do_not_follow_from_postings_are_found(spark: Any, tmp_path: Path) -> None:
    export = tmp_path / "accounts.jsonl"
    lines = [{"state": "Account", "key": key, "value": {"balance": held}} for key, held in (("alice", 5), ("bob", 6))]
    export.write_text("\n".join(map(json.dumps, lines)))
    states = read_states(spark, str(export), "Account", "balance")
    rows = ledger(spark, *OPENED, *MOVED, *REFUSED)
    report = reconcile(inputs(spark, "t1", "t2"), rows, expectations=[BalancesAgree(states)])
    assert report.examples["state"] == [("bob", "state holds 6, postings add up to 5")]


def test_rows_that_were_set_aside_must_have_no_effects(spark: Any) -> None:
    aside = spark.createDataFrame([("t2", 1), ("t3", 1), ("t4", None)], "id string, count bigint")
    given = inputs(spark, "t1", "t2", "t3", "t3", "t4", "t4")
    report = reconcile(given, ledger(spark, *MOVED, *REFUSED), quarantined=aside)
    assert report.found == {"lost": 1, "doubled": 0, "phantom": 1}
    assert [report.examples[name][0][0] for name in ("lost", "phantom")] == ["t3", "t2"]
    assert report.quarantined == 2


def test_rows_that_several_feeds_set_aside_count_once(spark: Any, tmp_path: Path) -> None:
    def aside(*rows: str | None) -> str:
        lines = ({"id": "t1", "reason": "bad", "detail": "", "row": row} for row in rows)
        return "\n".join(map(json.dumps, lines))

    for run, rows in (("q.1.first", ("x",)), ("q.2.first", ("x", "y"))):
        (tmp_path / run).mkdir()
        (tmp_path / run / "rows.json").write_text(aside(*rows))
    found = read_quarantine(spark, str(tmp_path), inputs(spark, "t1"))
    assert found is not None and [tuple(row) for row in found.collect()] == [("t1", 2)]


def test_an_expectation_of_ones_own_joins_in(spark: Any) -> None:
    def no_eve(books: Books, fields: Fields) -> Any:
        return finding(books.effects.where("account = 'eve'").withColumnRenamed("message_id", "id"), "eve", fields_of())

    def fields_of() -> Any:
        from pyspark.sql import functions as fn

        return fn.lit("is not welcome")

    report = reconcile(inputs(spark, "t1"), ledger(spark, ("t1", "withdraw", "eve", -1)), expectations=[no_eve])
    assert report.found["eve"] == 1 and not report.ok


def test_the_command_says_so_by_its_exit_code(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "transfers.csv"
    given.write_text("id\nt1\n")
    assert main(["--input", str(given), "--ledger", str(tmp_path / "nowhere")]) == 1
    assert "spark_jobs.consume writes one" in capsys.readouterr().err
    (tmp_path / "ledger").mkdir()
    assert main(["--input", str(given), "--ledger", str(tmp_path / "ledger")]) == 1
    assert "t1: no row in the ledger" in capsys.readouterr().out
