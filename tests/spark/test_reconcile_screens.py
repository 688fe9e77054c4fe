"""The cheap pass suspects whatever the expectations would find, and what it found is kept."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from spark_jobs.common.folder import Folder
from spark_jobs.common.places import place_of
from spark_jobs.comparing.expectations import RULES, BalancesAgree, Books, Expectation, Fields
from spark_jobs.comparing.screens import accounts_screen, marks_of
from spark_jobs.comparing.steps import Steps, folder_of
from spark_jobs.ledger import LEDGER
from spark_jobs.reading.files import Files
from spark_jobs.reconcile import main, reconcile
from tests.spark.lakes import PLACES
from tests.spark.ledgers import Died, dies_at
from tools.soak.reconcile_books import make

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 400
KINDS = ("withdraw", "deposit", "refund", "refused", "opened", "odd", None)


def drawn_ledger(spark: Any, chance: random.Random) -> Any:
    """Rows over so few ids, accounts and identities that everything happens that can."""
    names, rows = [part.split()[0] for part in LEDGER.split(", ")], []
    for number in range(ROWS):
        transfer, account = f"t{chance.randrange(150)}", f"a{chance.randrange(60)}"
        posting = {"transfer": transfer, "account": account, "amount": chance.choice([1, 5, -5, -1, 1 << 50])}
        kind = chance.choice(KINDS)
        body = json.dumps({**posting, **({"kind": kind} if kind else {})}) if chance.random() < 0.97 else "no JSON"
        row = {
            "message_id": f"m{chance.randrange(ROWS * 20)}" if chance.random() < 0.9 else f"n{number}",
            "type": chance.choice(["Posting", ""]),
            "correlation_id": transfer if chance.random() < 0.98 else None,
            "body": body,
            "fingerprint": str(crc32(body.encode()) if chance.random() < 0.5 else 0),
        }
        rows.append(tuple(row.get(name) for name in names))
    # Of two rows with one identity an expectation takes either: they must not differ, or nothing is comparable.
    once = {row[0]: row for row in rows}
    return spark.createDataFrame([once[row[0]] for row in rows], LEDGER)


def drawn_states(spark: Any, chance: random.Random) -> BalancesAgree:
    held = [(f"a{n}", chance.choice([0, 1, 5, 1 << 50, None])) for n in range(70) if chance.random() < 0.9]
    return BalancesAgree(spark.createDataFrame(held, "key string, balance bigint"))


def unscreened(expectation: Expectation) -> Expectation:
    def whole(books: Books, fields: Fields) -> Any:
        return expectation(books, fields)

    return whole


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_with_and_without_the_cheap_pass_the_same_is_found(spark: Any, seed: int) -> None:
    chance = random.Random(seed)
    ledger, balances = drawn_ledger(spark, chance).persist(), drawn_states(spark, chance)
    given = spark.createDataFrame([(f"t{chance.randrange(160)}",) for _ in range(170)] + [("",)], "id string")
    aside = spark.createDataFrame([("t1", 1), ("t2", None), ("t999", 2)], "id string, count bigint")
    dead = spark.createDataFrame([("t3",), ("t3",), ("t998",)], "id string")
    rules: list[Expectation] = [*RULES["bank"], balances]
    reports = [
        reconcile(given, ledger, quarantined=aside, dead_letters=dead, expectations=each)
        for each in (rules, [unscreened(rule) for rule in rules])
    ]
    assert reports[0].found == reports[1].found and all(reports[0].found.values()), reports[0].text
    assert reports[0].examples == reports[1].examples
    assert (reports[0].inputs, reports[0].quarantined, reports[0].effects) == (
        reports[1].inputs, reports[1].quarantined, ROWS,
    )  # fmt: skip


def test_a_message_that_is_there_for_two_inputs_is_doubled(spark: Any) -> None:
    names = [part.split()[0] for part in LEDGER.split(", ")]
    rows = [
        {"message_id": "m", "type": "Posting", "correlation_id": id, "body": "{}", "fingerprint": id} for id in "ab"
    ]
    ledger = spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], LEDGER)
    report = reconcile(spark.createDataFrame([("a",), ("b",)], "id string"), ledger)
    assert report.found == {"lost": 0, "doubled": 1, "phantom": 0}
    assert report.examples["doubled"] == [("m", "the same message in 2 rows")]


@pytest.mark.soak
def test_what_is_planted_in_thousands_is_found_and_nothing_else(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    books = make(spark, tmp_path / "books", 4_000, seed=7, each=3)
    command = ["--input", str(books.inputs), "--ledger", str(books.ledger), "--rule", "bank", "--quiet", "--json"]
    command += ["--state", str(books.states), "--opening", str(books.opening), "--progress", str(tmp_path / "steps")]
    command += ["--everything"]  # phantoms among it
    assert main(command) == 1
    report = json.loads(capsys.readouterr().out)
    assert {category: sorted(id for id, _ in found) for category, found in report["examples"].items()} == books.planted
    assert report["inputs"] == 4_000  # and it keeps its steps in a folder for just these files
    [folder] = (tmp_path / "steps").iterdir()
    assert (folder / "findings.json").exists()


@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_a_job_that_was_killed_goes_on_behind_the_last_step(spark: Any, address: str) -> None:
    chance, place = random.Random(3), place_of(address, os.environ)
    given, ledger = spark.createDataFrame([("t1",), ("t2",)], "id string"), drawn_ledger(spark, chance)
    whole = reconcile(given, ledger, expectations=RULES["bank"])
    for point in ("inputs written", "inputs", "few", "findings written"):
        with pytest.raises(Died):
            reconcile(given, ledger, expectations=RULES["bank"], steps=Steps(spark, place, crash_point=dies_at(point)))
    said: list[str] = []
    again = reconcile(given, ledger, expectations=RULES["bank"], steps=Steps(spark, place, said.append))
    assert said == ["reconcile: findings"]
    assert (again.found, again.examples) == (whole.found, whole.examples)


def test_of_two_jobs_at_one_step_both_go_on_with_what_the_first_has_written(spark: Any, tmp_path: Path) -> None:
    place = Folder(tmp_path)

    def frame(n: int) -> Any:
        return spark.createDataFrame([(n,)], "n bigint")

    def other(point: str) -> None:
        if point == "x written":
            Steps(spark, place).kept("x", lambda: frame(1))

    assert [row.n for row in Steps(spark, place, crash_point=other).kept("x", lambda: frame(2)).collect()] == [1]
    assert len({folder for item in place.list() if (folder := item.name.rpartition("/")[0])}) == 1
    assert place.read("x.begun") == b""  # for whoever watches


@pytest.mark.parametrize("change", ["length", "time", "settings", "ledger", ""])
def test_what_is_kept_is_of_these_files_as_they_are_by_these_settings(tmp_path: Path, change: str) -> None:
    given = tmp_path / "in.csv"
    given.write_text("old")
    os.utime(given, (1, 1))
    inputs = [Files(Folder(tmp_path), given.name)]
    before = folder_of(Folder(tmp_path / "steps"), ["1.parquet"], inputs, "bank")
    given.write_text("longer" if change == "length" else "new")
    os.utime(given, (1, 2 if change == "time" else 1))
    ledger = ["2.parquet"] if change == "ledger" else ["1.parquet"]
    after = folder_of(Folder(tmp_path / "steps"), ledger, inputs, "generic" if change == "settings" else "bank")
    assert (str(after) == str(before)) is (not change)


def test_balances_that_agree_are_in_no_bucket_and_huge_ones_always_are(spark: Any) -> None:
    def screen(*held: tuple[str, int]) -> int:
        rows = [("m", "t", "Posting", json.dumps({"account": "a", "amount": 5, "kind": "deposit"}), "f")]
        effects = spark.createDataFrame(
            [(*row[:3], "deposit", "a", 5, row[4]) for row in rows],
            "message_id string, correlation_id string, type string, kind string, account string, amount bigint, "
            "digest string",
        )
        states = spark.createDataFrame(list(held), "key string, balance bigint")
        found: int = accounts_screen(effects, BalancesAgree(states), Fields()).count()
        return found

    assert screen(("a", 5)) == 0
    assert screen(("a", 4), ("b", 1)) == 2  # together they are what they should be
    assert screen(("a", 5), ("b", 1 << 60)) == 1


def test_effects_that_are_the_same_share_all_their_bits(spark: Any) -> None:
    frame = spark.createDataFrame(
        [("Posting", "deposit"), ("Posting", "deposit"), ("Posting", "x")], "type string, digest string"
    )
    first, again, other = (tuple(row) for row in frame.select(*marks_of()).collect())
    assert first == again != other
    assert all(bin(mark & ((1 << 64) - 1)).count("1") == 1 for mark in (*first, *other))
