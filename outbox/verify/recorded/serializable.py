"""Whether a run is one that could have been serial: every handling run again, along the versions of the states.

Each state has versions in a row, and each commit names those that it started from; so there is an order in which every
commit follows whatever it depended on.  The handlers run again in that order, from what they themselves have made so
far, must come to the same states and outputs.  A decision on a stale read, a change that slipped past its condition,
a handler that remembers something between messages: all of them come out differently.

Needs a history with bodies that begins where the states do.  What cannot be run again (a handler that waits for the
outside, a body that lies elsewhere) is left out, with every later handling of its states, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from outbox.verify.recorded.commits import places_of
from outbox.verify.recorded.events import Change, Claim, Commit, Emitted, Whole
from outbox.verify.recorded.verdict import Counts, Findings

Place = tuple[str, int]
"""Queue and sequence of a delivery."""


class Redone(msgspec.Struct, frozen=True):
    """The result of handling a commit's messages again; the texts of a refusal do not matter."""

    changes: tuple[Change, ...]
    outputs: tuple[Emitted, ...]
    applied: tuple[str, ...]
    refused: tuple[str, ...]


class Rerun(Protocol):
    """Handles messages again and remembers the states that this makes."""

    def run(self, commit: Commit, deliveries: Sequence[tuple[Place, Whole]]) -> Redone | None:
        """Handle again what a commit did, in order of delivery; None if that cannot be done."""


class Serial:
    """Runs the commits of a history again, each as soon as the versions that it starts from are there."""

    def __init__(self, rerun: Rerun, findings: Findings, counts: Counts) -> None:
        self._rerun = rerun
        self._findings = findings
        self._counts = counts
        self._wholes: dict[Place, Whole] = {}
        self._versions: dict[str, int] = {}
        self._lost: set[str] = set()
        """States of which the value is not known."""
        self.is_complete = False
        """Whether the history begins where the states do."""
        self._waiting: dict[tuple[str, int], list[tuple[Commit, int]]] = {}

    def claimed(self, claim: Claim) -> None:
        """Keep the messages of a claim until they end."""
        for delivery, whole in zip(claim.deliveries, claim.wholes, strict=False):
            place = (delivery.queue, delivery.sequence)
            self._wholes.pop(place, None)  # so that the order is that of the newest claim
            self._wholes[place] = whole

    def took_effect(self, commit: Commit) -> None:
        """Run a commit again, or let it wait for the versions that it starts from."""
        todo = [(commit, self._findings.line)]
        while todo:
            commit, line = todo.pop()
            missing = self._missing(commit)
            if missing is not None:
                self._waiting.setdefault(missing, []).append((commit, line))
                continue
            self._redo(commit, line)
            for change in commit.changes:
                self._versions[change.state] = change.version
                todo += self._waiting.pop((change.state, change.version), [])

    def _missing(self, commit: Commit) -> tuple[str, int] | None:
        """A version that a commit starts from and that is not there yet."""
        for state, before in [
            *((c.state, c.before) for c in commit.changes),
            *((s.state, s.version) for s in commit.seen),
        ]:
            known = self._versions.get(state)
            if known is None and before > 0 and not self.is_complete:
                self._lost.add(state)
                self._versions[state] = before
            elif before > (known or 0):
                return state, before
        return None

    def _redo(self, commit: Commit, line: int) -> None:
        wanted = set(places_of(commit))
        order = wanted if len(wanted) == 1 else self._wholes  # that of the newest claims
        held = [(place, self._wholes[place]) for place in order if place in wanted and place in self._wholes]
        for place in wanted:
            self._wholes.pop(place, None)
        if not commit.applied and not commit.refused:
            return
        touched = [*(change.state for change in commit.changes), *(seen.state for seen in commit.seen)]
        redone = None
        if len(held) == len(wanted) and self._lost.isdisjoint(touched):
            redone = self._rerun.run(commit, held)
        if redone is None:
            self._counts.not_rerun += 1
            self._lost.update(change.state for change in commit.changes)
            return
        self._counts.rerun += 1
        difference = _difference(commit, redone)
        if difference:
            ids = tuple([ended.id for ended in commit.ended[:4]])
            self._lost.update(change.state for change in commit.changes)
            self._findings.add("not serializable", f"run again, {difference}", *ids, at=line)

    def finish(self) -> None:
        """Commits whose versions never came are in no order."""
        for (state, version), waiting in self._waiting.items():
            text = f"{len(waiting)} commits start from version {version} of state {state}, which no commit made"
            self._findings.add("not serializable", text, state, against=waiting[0][1])


def _difference(commit: Commit, redone: Redone) -> str:
    """The first thing that came out otherwise."""
    if (sorted(commit.applied), sorted(commit.refused)) != (sorted(redone.applied), sorted(redone.refused)):
        return f"{len(redone.applied)} messages are applied and {len(redone.refused)} refused, not as recorded"
    again = {change.state: change for change in redone.changes}
    for change in commit.changes:
        other = again.pop(change.state, None)
        if other is None or (other.version, other.digest) != (change.version, change.digest):
            return f"state {change.state} is not what was recorded as version {change.version}"
    for state in again:
        return f"state {state} changes, which it did not"
    known = [(output.id, output.destination, output.digest) for output in commit.outputs]
    found = [(output.id, output.destination, output.digest) for output in redone.outputs]
    if sorted(known) != sorted(found):
        wrong = sorted(set(known) ^ set(found))
        return f"output {wrong[0][0] if wrong else known[0][0]} is not what was recorded"
    return ""
