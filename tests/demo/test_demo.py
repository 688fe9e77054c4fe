"""The demo, small: 1,000 transfers through Spark, host and ledger, the host killed three times."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.demo.__main__ import parser, prepare

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
