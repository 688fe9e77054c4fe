"""Operations whose outcome is not known (yet), and what would show that they took effect.

A commit that was asked for and has no answer is *open*; when its answer is `unknown`, or its process died, it is
*optional*: it may have taken effect then, may do so later, or never.  What is seen afterwards decides.  Another
follows the version that it would have made, or holds a message that it would have sent: it took effect.  A message
that it would have ended is handed out again: it did not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from outbox.verify.recorded.events import Change, Commit, Emitted

OPEN, OPTIONAL, EFFECTIVE = range(3)

Key = TypeVar("Key", str, tuple[str, int])
Number = tuple[int, int]
"""The life and number of an operation."""
Step = tuple[str, int, int]
"""A state, and from which version to which; or an output, with -1 twice."""


@dataclass(slots=True, eq=False)
class Pending:
    """One commit without a known outcome."""

    commit: Commit
    line: int
    number: Number
    status: int = OPEN


class Undecided:
    """All commits without a known outcome, found by what would show it."""

    def __init__(self) -> None:
        self._open: dict[Number, Pending] = {}
        self._optional: dict[Number, Pending] = {}
        self._by_output: dict[str, list[Pending]] = {}
        self._by_state: dict[str, list[Pending]] = {}
        self._by_delivery: dict[tuple[str, int], list[Pending]] = {}
        self._by_tx: dict[str, Pending] = {}
        self._assumed: dict[Step, list[Pending]] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._optional)

    def begin(self, pending: Pending) -> None:
        """A commit was asked for."""
        self._open[pending.number] = pending
        if pending.commit.tx:
            self._by_tx[pending.commit.tx] = pending
        for output in pending.commit.outputs:
            self._by_output.setdefault(output.id, []).append(pending)
        for change in pending.commit.changes:
            self._by_state.setdefault(change.state, []).append(pending)

    def answered(self, number: Number) -> Pending | None:
        """The commit with this number, which is open no more; None if there is none."""
        return self._open.pop(number, None)

    def make_optional(self, pending: Pending) -> None:
        """The outcome of a commit is unknown."""
        pending.status = OPTIONAL
        self._optional[pending.number] = pending
        for place in places_of(pending.commit):
            self._by_delivery.setdefault(place, []).append(pending)

    def orphans(self) -> list[Pending]:
        """The open commits, which are open no more: their process died."""
        found = list(self._open.values())
        self._open.clear()
        return found

    def drop(self, pending: Pending) -> None:
        """The outcome of a commit is known now."""
        self._optional.pop(pending.number, None)
        if pending.commit.tx:
            self._by_tx.pop(pending.commit.tx, None)
        for output in pending.commit.outputs:
            _remove(self._by_output, output.id, pending)
        for change in pending.commit.changes:
            _remove(self._by_state, change.state, pending)
        if pending.status == OPTIONAL:
            for place in places_of(pending.commit):
                _remove(self._by_delivery, place, pending)

    def sending(self, output: str, digest: int | None = None) -> list[Pending]:
        """The commits that would have sent this (with this digest), oldest first."""
        return [
            pending
            for pending in self._by_output.get(output, ())
            if digest is None or any(o.id == output and o.digest == digest for o in pending.commit.outputs)
        ]

    def of_transaction(self, tx: str) -> Pending | None:
        """The commit of a transaction."""
        return self._by_tx.get(tx)

    def making(self, state: str, version: int) -> list[tuple[Step, Pending]]:
        """The commits that would have made this version of a state, oldest first, each with its step."""
        return [
            ((state, change.before, version), pending)
            for pending in self._by_state.get(state, ())
            for change in pending.commit.changes
            if change.state == state and change.version == version
        ]

    # Assumptions

    def assume(self, step: Step, candidates: list[Pending]) -> None:
        """One of these has made a step."""
        self._assumed[step] = candidates

    def is_assumed(self, step: Step) -> bool:
        """Whether a step was made, by an unknown commit."""
        return step in self._assumed

    def settle(self, step: Step) -> bool:
        """A step has its maker; whether it had been assumed."""
        return self._assumed.pop(step, None) is not None

    def exclude(self, pending: Pending) -> list[tuple[Step, list[Pending]]]:
        """A commit did not take effect: the steps assumed that it might have made, and who else may have."""
        found: list[tuple[Step, list[Pending]]] = []
        if not self._assumed:
            return found
        for step in (*map(step_of, pending.commit.changes), *map(step_of, pending.commit.outputs)):
            left = self._assumed.get(step)
            if left is not None and pending in left:
                left.remove(pending)
                found.append((step, left))
        return found

    def ending(self, queue: str, sequence: int) -> list[Pending]:
        """The optional commits that would have ended this delivery."""
        return list(self._by_delivery.get((queue, sequence), ()))

    def optional(self) -> list[Pending]:
        """The optional commits, oldest first."""
        return list(self._optional.values())


def places_of(commit: Commit) -> list[tuple[str, int]]:
    """Queue and sequence of every delivery that a commit ends."""
    return [*((e.queue, e.sequence) for e in commit.ended), *((b.queue, b.sequence) for b in commit.buried)]


def step_of(part: Change | Emitted) -> Step:
    """The step of a part of a commit, as something that can be assumed."""
    return (part.state, part.before, part.version) if isinstance(part, Change) else (part.id, -1, -1)


def _remove(index: dict[Key, list[Pending]], key: Key, pending: Pending) -> None:
    found = index.get(key)
    if found is not None:
        found.remove(pending)
        if not found:
            del index[key]
