"""What is found can be read, written down, run again and made short."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outbox.runtime.commit.store_transaction import StoreTransaction
from outbox.runtime.partition_scope import PartitionScope
from outbox.verify.explorer import replay
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import Finding
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly, sample, search, shrink
from tests.simulation.explored import GIVEN, T1, T2, Account, Transfer, bank, conserved, desk


class Forgetful(PartitionScope):
    """Pushes nothing, now and then: where a message was delivered before."""

    async def _push(self, batch: StoreTransaction) -> None:
        if not self._forgets(batch):
            await super()._push(batch)

    def _mark(self, batch: StoreTransaction, state_id: str | None) -> None:
        if not self._forgets(batch):
            super()._mark(batch, state_id)

    @staticmethod
    def _forgets(batch: StoreTransaction) -> bool:
        return any(entry.attempt.work.delivery.delivery_count for entry in batch.entries)


def scenario(**options: Any) -> Scenario:
    known: dict[str, Any] = {"app": desk(), "messages": [T1], "given": GIVEN}
    cell = {"scope": "partition", "budgets": Budgets(crash=1), "workers": 1, "make": Forgetful}
    return Scenario(**(known | cell | options))


def found(**options: Any) -> Anomaly:
    return search(scenario(**options)).anomalies[0]


def test_a_trace_says_who_did_what_and_what_is_left() -> None:
    text = found().trace.text.splitlines()
    assert text[0].split() == ["1", "worker", "1", "receive", "->", "t1", "(delivery", "1)"]
    assert any("*** CRASH ***" in line for line in text)
    assert any('"balance":5' in line for line in text[-4:])


def test_a_trace_that_was_written_down_runs_again() -> None:
    anomaly = found()
    data = replay.write(scenario(), Finding(anomaly.promise, anomaly.text), anomaly.trace)
    written = replay.read(data)
    again = dataclasses.replace(replay.scenario_of(written, desk()), make=Forgetful)
    replayed = replay.replay(again, written.steps)
    assert replayed.finding == Finding(anomaly.promise, anomaly.text)
    assert replayed.trace == anomaly.trace


def test_a_trace_that_the_code_does_not_take_any_more_says_where() -> None:
    anomaly = found()
    replayed = replay.replay(scenario(make=None), anomaly.trace.steps)
    assert replayed.finding is None and replayed.stopped.startswith("step "), replayed.text


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 1}', b"\xff"])
def test_what_is_no_trace_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a trace"):
        replay.read(data)


def test_the_command_line_runs_a_trace_again(tmp_path: Path) -> None:
    reported = search(scenario(app=bank(), make=None, workers=1, invariant=conserved))
    assert not reported.anomalies
    anomaly = found()
    file = tmp_path / "trace.json"
    file.write_bytes(
        replay.write(scenario(), Finding("NoLost", "x"), anomaly.trace, app="tests.simulation.explored:desk")
    )
    command = [sys.executable, "-m", "outbox.verify", "replay", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "cannot be taken here" in done.stdout, done.stdout + done.stderr


def test_a_long_way_is_made_short() -> None:
    whole = scenario(app=bank(), messages=[T1, T2], workers=2, symmetric=False, invariant=conserved)
    report = sample(whole, seed=3, runs=200)
    anomaly = report.anomalies[0]
    direct = found(app=bank())
    assert anomaly.promise == direct.promise
    assert anomaly.steps <= 3 * direct.steps, anomaly.trace.text
    assert shrink(whole, anomaly.trace.steps, "NoGhost") is None


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
def test_a_way_to_what_does_not_hold_at_the_end_is_made_short(scope: str) -> None:
    """A crash is not needed for it, so what is left of a drawn way has none."""
    options: dict[str, Any] = {"scope": scope, "make": None, "at_end": lambda world: len(world.states(Account)) > 2}
    [direct] = search(scenario(**options, budgets=Budgets())).anomalies
    whole = scenario(**options, messages=[T1, T2], workers=2, budgets=Budgets(crash=2, expire=2))
    drawn = sample(whole, seed=3, runs=200).anomalies[0]
    assert drawn.promise == direct.promise == "AtEnd"
    assert "CRASH" not in drawn.trace.text and drawn.steps <= 3 * direct.steps, drawn.trace.text


def test_drawn_runs_find_a_mutant_and_nothing_in_the_real_runtime() -> None:
    options: dict[str, Any] = {"app": bank(), "messages": [T1, T2], "workers": 2}
    assert sample(scenario(**options), seed=1, runs=300).anomalies
    budgets = Budgets.any_of(2, "crash", "lost", "delay", "error", "expire", "stale")
    clean = sample(scenario(**options, make=None, budgets=budgets), seed=1, runs=60)
    assert not clean.anomalies and clean.finals == 60 and not clean.exhausted, clean.text


def test_the_same_seed_draws_the_same_runs() -> None:
    options: dict[str, Any] = {"messages": [T1, T2], "workers": 2}
    first, second = (sample(scenario(**options), seed=5, runs=50) for _ in range(2))
    assert first.anomalies == second.anomalies and first.transitions == second.transitions


def many(count: int, keys: Sequence[str]) -> list[tuple[str, Transfer, str]]:
    return [("transfers", Transfer(f"m{n}", keys[n % len(keys)], "bob", 1), f"m{n}") for n in range(count)]


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
def test_large_worlds_break_no_promise_in_drawn_runs(scope: str) -> None:
    budgets = Budgets.any_of(3, "crash", "lost", "delay", "error", "expire")
    messages = many(20, ["a", "b", "c", "d", "e"])
    whole = Scenario(desk(), messages, workers=4, copies=[2], budgets=budgets, scope=scope, allow=frozenset({"alarm"}))
    report = sample(whole, seed=11, runs=5)
    assert not report.anomalies and report.finals == 5, report.text
