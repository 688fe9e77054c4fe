"""The demo, small: 1,000 transfers through Spark, host and ledger, the host killed three times."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_jobs.ledger import merge
from tests.spark.ledgers import land
from tools.demo.__main__ import parser, prepare
from tools.demo.query import asked

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 420


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(WITHIN_S + 30)
def test_a_thousand_transfers_survive_three_kills(disk_path: Path) -> None:
    folder = disk_path / "demo"
    options = ["--transfers", "1000", "--accounts", "100", "--kills", "1,2"]
    command = [sys.executable, "-m", "tools.demo", "--folder", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "every transfer took effect exactly once" in output
    assert "the recorded history is exactly-once, consistent and recoverable" in output
    resent = re.search(r"sent a second time +(\d+) of", output)
    suppressed = re.search(r"duplicates suppressed +(\d+) ", output)
    refused = re.search(r"; (\d+) cop(?:y|ies) of them likewise", output)
    assert resent is not None and suppressed is not None and int(resent[1]) >= 40, output
    assert int(suppressed[1]) + (int(refused[1]) if refused else 0) >= int(resent[1]), output
    assert not re.search(r" 0 duplicates ended", output), output
    crashes = re.search(r"crashes survived +(\d+) x", output)
    assert crashes is not None and int(crashes[1]) == 3, output
    exported = [json.loads(line) for line in (folder / "states.jsonl").read_text().splitlines()]
    assert sum(line["value"]["balance"] for line in exported) == 1_000 * len(exported)
    [line, answer] = output.rstrip().splitlines()[-2:]
    assert f" amounts {1_000 * len(exported)} in all, newest " in answer, output
    again = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout.strip() == answer


def test_the_query_of_the_ledger_is_a_line_to_copy(tmp_path: Path) -> None:
    for number, amount in enumerate((1_000, -300, 300)):
        land(tmp_path / "ledger", f"{number}", f"m{number}", body=f'{{"amount": {amount}}}', created_ms=1_000 * number)
    merge(tmp_path / "ledger")
    _, head, line, answer = asked(tmp_path / "ledger").splitlines()
    assert head.startswith("the ledger") and answer == f"3 rows, amounts 1000 in all, newest {time.ctime(2)}"
    again = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout.strip() == answer


def test_a_ledger_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ledger cannot be read: "):
        asked(tmp_path / "ledger")


@pytest.mark.parametrize("others", [["--transfers", "30"], ["--seed", "2"], ["--input", "mine.csv"]])
def test_transfers_other_than_those_that_lie_there_are_refused(tmp_path: Path, others: list[str]) -> None:
    few = ["--folder", str(tmp_path), "--transfers", "20"]
    _, transfers = prepare(parser().parse_args(few))
    before = transfers.read_bytes()
    for same in (few, few[:2]):
        assert prepare(parser().parse_args(same)) == (tmp_path, transfers)
    with pytest.raises(ValueError, match=f"other transfers than .*{' '.join(others)}; give --fresh"):
        prepare(parser().parse_args([*few, *others]))
    assert transfers.read_bytes() == before and list(tmp_path.iterdir()) == [transfers]
    prepare(parser().parse_args([*few, *others, "--fresh"]))
