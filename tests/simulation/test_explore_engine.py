"""Engine scope, every interleaving of small scopes: nothing is found, and planted mutants are, by a short way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from outbox import App
from outbox.lineage import output_id
from outbox.ports import Commit, Conflict, Journal
from outbox.runtime import engine_scope
from outbox.runtime.commit import run_handler as handling
from outbox.runtime.commit.engine_transaction import EngineTransaction
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.work import Work, attempt_at
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, REFUSED, T1, T2, Account, Transfer, bank, clean, conserved

SINGLE = {kind: Budgets.any_of(1, kind) for kind in ("crash", "lost", "delay", "error", "expire", "jump")}


def explored(**options: Any) -> Report:
    known: dict[str, Any] = {"app": bank(), "given": GIVEN, "invariant": conserved, "messages": [T1]}
    return search(Scenario(**(known | options)))


@pytest.mark.parametrize("fault", SINGLE)
def test_two_workers_and_a_duplicate_break_no_promise_under_any_single_fault(fault: str) -> None:
    report = explored(messages=[T1, T2], copies=[2, 1], budgets=SINGLE[fault])
    assert report.exhausted and not report.anomalies, report.text
    assert report.states > 1_000


def test_batches_of_two_break_no_promise() -> None:
    clean(explored(messages=[T1, T2], copies=[2, 1], batch=2, budgets=Budgets(crash=1)))


def test_a_refusal_and_its_duplicates_end_in_one_verdict() -> None:
    allow = frozenset({"dead-letter"})
    clean(explored(messages=[REFUSED, T1], copies=[2, 1], allow=allow, budgets=Budgets.any_of(1, "crash", "lost")))


def test_three_faults_on_one_message_break_no_promise() -> None:
    budgets = Budgets(crash=1, lost=1, expire=1)
    clean(explored(copies=2, budgets=budgets))


# Mutants


def committing(change: Callable[[Commit], Commit]) -> Callable[..., EngineScope]:
    """A scope whose commits are changed before the journal sees them."""

    class Mutant(EngineScope):
        def __init__(self, plan: Any, journal: Journal, *others: Any, **options: Any) -> None:
            class Changed:
                claim, load, durable = journal.claim, journal.load, journal.durable
                renew, release = journal.renew, journal.release

                async def commit(self, commit: Commit) -> Conflict | None:
                    return await journal.commit(change(commit))

            super().__init__(plan, Changed(), *others, **options)

    return Mutant


def without(**parts: Any) -> Callable[..., EngineScope]:
    return committing(lambda commit: msgspec.structs.replace(commit, **parts))


class CompletesFirst(EngineScope):
    """Settles the inputs in a commit of their own, ahead of their effects."""

    async def _commit(self, group: EngineTransaction) -> Conflict | None:
        commit = group.commit
        empty = Commit(commit.now_ms, commit.markers_expire_ms, commit.consumed, {}, {}, [], {}, {}, {}, [], [], [])
        await self._journal.commit(empty)
        return await super()._commit(group)


def ids_by_lock(commit: Commit) -> Commit:
    """Output ids that differ from one delivery to the next."""
    lock = commit.consumed[0].lock if commit.consumed else 0
    outputs = [
        msgspec.structs.replace(o, message=msgspec.structs.replace(o.message, outbox_id=output_id(b"%d" % lock, i)))
        for i, o in enumerate(commit.outputs)
    ]
    return msgspec.structs.replace(commit, outputs=outputs)


MUTANTS: dict[str, tuple[Callable[..., EngineScope], dict[str, Any], str, int]] = {
    "no marker": (without(applied={}), {"workers": 1, "copies": 2}, "NoDuplicate", 6),
    "state version is not checked": (
        without(if_versions={}), {"messages": [T1, T2], "workers": 2}, "OneChangePerETag", 6,
    ),
    "outputs are lost": (without(outputs=[]), {"workers": 1}, "NoLost", 3),
    "outputs are emitted twice": (
        committing(lambda c: msgspec.structs.replace(c, outputs=c.outputs * 2)), {"workers": 1}, "NoDuplicate", 3,
    ),
    "completed before the commit": (CompletesFirst, {"workers": 1}, "NothingLeavesEarly", 3),
    "another id at every delivery": (committing(ids_by_lock), {"workers": 1}, "NoGhost", 3),
    "states are not written": (without(states={}), {"workers": 1}, "Serializable", 3),
    "inputs stay": (without(consumed=[]), {"workers": 1}, "NoGhost", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_by_a_short_way(name: str) -> None:
    make, scope, promise, steps = MUTANTS[name]
    report = explored(make=make, **scope)
    assert [anomaly.promise for anomaly in report.anomalies] == [promise], report.text
    assert report.anomalies[0].steps <= steps and report.states < 2_000, report.text


def test_a_state_that_is_not_decoded_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharing(EngineTransaction):
        """Hands one object to all messages of a group, so that one that raises leaves its changes to the next."""

        def state(self, work: Work) -> Any:
            self.kept = getattr(self, "kept", None) or super().state(work)
            return self.kept

    def start_each(plan: Any, group: Any, works: Any, first: int, end: int) -> tuple[int, Any, Any]:
        for index in range(first, end):
            attempt = attempt_at(works[index])
            outcome = handling.start(plan, group, attempt)
            if outcome is not None:
                return index, attempt, outcome
            group.complete(works[index])
        return end, None, None

    app = App("careless")

    @app.handler("transfers", key="source")
    def withdraw(transfer: Transfer, account: Account) -> None:
        account.balance -= transfer.amount
        if transfer.amount > 4:
            raise ValueError("not enough")

    monkeypatch.setattr(engine_scope, "EngineTransaction", Sharing)
    monkeypatch.setattr(engine_scope, "start_all", start_each)  # what is written out there for speed, by its parts
    report = explored(app=app, messages=[T1, T2], batch=2, workers=1, invariant=None, allow=frozenset({"dead-letter"}))
    assert [anomaly.promise for anomaly in report.anomalies] == ["Serializable"], report.text
