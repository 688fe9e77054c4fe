"""What is planted is found, and nothing else."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.comparing.expectations import RULES, BalancesAgree, Books, Expectation, Fields, effects_of, finding
from spark_jobs.comparing.given import read_states
from spark_jobs.feed import snapshot_of
from spark_jobs.ledger import LEDGER, merge
from spark_jobs.reading.files import files_at
from spark_jobs.reading.frame import FrameRows
from spark_jobs.reading.judging import Judge
from spark_jobs.reconcile import main, reconcile

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def ledger(spark: Any, *rows: tuple[str, str | None, str, int]) -> Any:
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
    report = reconcile(inputs(spark, "t1"), rows.unionByName(rows.limit(1)), expectations=RULES["bank"])
    assert report.found == {"lost": 0, "doubled": 1, "phantom": 0}


def test_the_bank_misses_the_other_half_and_money_from_nowhere(spark: Any) -> None:
    huge = 1 << 50
    rows = ledger(spark, ("t1", "withdraw", "a", -5), ("t2", "withdraw", "b", -huge), ("t2", "refund", "b", huge + 1))
    report = reconcile(inputs(spark, "t1", "t2"), rows, expectations=RULES["bank"])
    assert report.found == {"lost": 1, "doubled": 0, "phantom": 0, "broken": 1}
    assert report.examples["broken"] == [("t2", "postings add up to 1")]


def test_balances_that_do_not_follow_from_postings_are_found(spark: Any, tmp_path: Path) -> None:
    export = tmp_path / "accounts.jsonl"
    lines = [{"state": "Account", "key": key, "value": {"balance": held}} for key, held in (("alice", 5), ("bob", 6))]
    export.write_text("\n".join(map(json.dumps, lines)))
    states = read_states(spark, files_at(str(export), {}), "Account", "balance")
    rows = ledger(spark, *OPENED, *MOVED, *REFUSED)
    report = reconcile(inputs(spark, "t1", "t2"), rows, expectations=[BalancesAgree(states)])
    assert report.examples["state"] == [("bob", "state holds 6, postings add up to 5")]


def test_a_balance_that_a_doubled_message_moved_twice_is_found(spark: Any) -> None:
    """With the message counted twice it adds up."""
    once, again = ledger(spark, *OPENED, *MOVED), ledger(spark, *OPENED).limit(1)
    states = spark.createDataFrame([("alice", 15), ("bob", 5)], "key string, balance bigint")
    report = reconcile(inputs(spark, "t1"), once.unionByName(again), expectations=[BalancesAgree(states)])
    assert report.examples["state"] == [("alice", "state holds 15, postings add up to 5")]


def test_rows_that_were_set_aside_must_have_no_effects(spark: Any) -> None:
    aside = spark.createDataFrame([("t2", 1), ("t3", 1), ("t4", None)], "id string, count bigint")
    given = inputs(spark, "t1", "t2", "t3", "t3", "t4", "t4")
    report = reconcile(given, ledger(spark, *MOVED, *REFUSED), quarantined=aside)
    assert report.found == {"lost": 1, "doubled": 0, "phantom": 1}
    assert [report.examples[name][0][0] for name in ("lost", "phantom")] == ["t3", "t2"]
    assert report.quarantined == 2


def findings(books: Books, *expectations: Expectation, fields: Fields | None = None) -> list[tuple[str, str, str]]:
    """What these expectations find: category, id and detail."""
    found = [expectation(books, fields or Fields()) for expectation in expectations]
    return sorted(tuple(row) for row in reduce(lambda one, other: one.unionByName(other), found).collect())


def test_each_finding_says_what_is_there(spark: Any) -> None:
    rows = ledger(
        spark,
        ("t1", "withdraw", "a", -5),
        *(("t2", "withdraw", "a", -5), ("t2", "deposit", "b", 3), ("t2", "refund", "a", 2)),
        ("t3", "refused", "a", 7),
        *(("t5", "withdraw", "a", -5), ("t5", "deposit", "b", 4)),
        *(("t8", None, "eve", 1), ("t9", "deposit", "eve", 1)),
        *OPENED,
    )
    books = Books(inputs(spark, "t1", "t2", "t3", "t4", "t5"), effects_of(rows, Fields()))
    assert findings(books, *RULES["bank"]) == [
        ("broken", "t2", "withdraw 1, deposit 1, refund 1, refused 0"),
        ("broken", "t5", "postings add up to -1"),
        ("lost", "t1", "its other half: withdraw 1, deposit 0, refund 0, refused 0"),
        ("lost", "t4", "no row in the ledger"),
        ("phantom", "t8", "Posting message m7 has no input"),
        ("phantom", "t9", "Posting deposit message m8 has no input"),
    ]


def test_a_balance_begins_with_its_opening_and_an_account_on_one_side_holds_nothing_on_the_other(spark: Any) -> None:
    def balances(**held: int) -> Any:
        return spark.createDataFrame(list(held.items()), "key string, balance bigint")

    rows = ledger(spark, ("t1", "deposit", "a", 5), ("t2", None, "b", 5), ("t3", "refused", "a", 9))
    agree = BalancesAgree(balances(a=15, c=1, e=2), balances(a=10, d=3, e=2))
    assert findings(Books(inputs(spark), effects_of(rows.unionByName(rows), Fields())), agree) == [
        ("state", "b", "state holds 0, postings add up to 5"),
        ("state", "c", "state holds 1, postings add up to 0"),
        ("state", "d", "state holds 0, postings add up to 3"),
    ]


def test_fields_of_a_body_may_have_other_names_and_kinds_other_meanings(spark: Any) -> None:
    fields = Fields(kind="transfer", account="kind", amount="amount", own_kinds=("t1",), still_kinds=("t2",))
    rows = ledger(spark, ("t1", "a", "x", 5), ("t2", "a", "x", 7), ("t3", "b", "x", 1))
    states = spark.createDataFrame([("a", 5)], "key string, balance bigint")
    books = Books(inputs(spark, "t2"), effects_of(rows, fields))
    assert findings(books, *RULES["generic"], BalancesAgree(states), fields=fields) == [
        ("phantom", "t3", "Posting t3 message m2 has no input"),
        ("state", "b", "state holds 0, postings add up to 1"),
    ]


def test_an_input_is_known_by_what_its_rows_say_in_any_order(spark: Any) -> None:
    def of(*rows: tuple[str, int], schema: str = "id string, n bigint") -> Any:
        return snapshot_of(FrameRows(spark.createDataFrame(list(rows), schema), Judge(("id",))))

    first = of(("a", 1), ("b", 2))
    assert of(("b", 2), ("a", 1)) == first and first.rows == 2
    others = [
        of(("a", 2), ("b", 1)),
        of(("a", 1), ("b", 2), ("b", 2)),
        of(("a", 1), ("b", 2), schema="id string, n int"),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 4


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
    merge(tmp_path / "ledger")
    assert main(["--input", str(given), "--ledger", str(tmp_path / "ledger")]) == 1
    assert "t1: no row in the ledger" in capsys.readouterr().out
    given.write_text('id,note\nt1,"dear sir\nt9,thanks"\n')  # t9 is no row
    dead = tmp_path / "dead.jsonl"
    dead.write_text('{"id":"t1"}\n')
    ledgers = ["--ledger", str(tmp_path / "ledger"), "--dead-letters", str(dead)]
    assert main(["--input", str(given), "--multiline", *ledgers]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.startswith("0 inputs (1 set aside), 0 rows in the ledger")
    dead.write_text("")  # no dead letters
    assert main(["--input", str(given), "--multiline", *ledgers, "--progress", str(tmp_path / "steps")]) == 1
    assert "t1: no row in the ledger" in capsys.readouterr().out
    dead.write_text('{"id":"t1"} {"id":"t2"}\n')
    assert main(["--input", str(given), "--multiline", *ledgers]) == 1
    assert "dead.jsonl, line 1: something behind the object; one object a line" in capsys.readouterr().err
