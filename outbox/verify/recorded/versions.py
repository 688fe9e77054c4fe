"""Versions of states along a history: each is made once, from the one before it.

A change from version 3 to 5 took two messages.  One that starts behind the newest version is a fork: it overwrote
what another commit had written, or what it had built on was lost after it had been acknowledged.  One that starts
ahead of it follows a version that no commit wrote.  A state that must stay as it was seen may have been overtaken only
by what was under way at the same time.
"""

from __future__ import annotations

from outbox.verify.recorded.events import Change, Seen
from outbox.verify.recorded.verdict import Counts, Findings

Tip = tuple[int, int, bool]
"""The newest version of a state, the line that made it, and whether that deleted the state."""


class Versions:
    """The newest version of every state."""

    def __init__(self, findings: Findings, counts: Counts) -> None:
        self._findings = findings
        self._counts = counts
        self._tips: dict[str, Tip] = {}
        self._overtaken: dict[str, list[tuple[int, int]]] = {}
        """For states that changed while something else was under way: versions, and the lines that replaced them."""
        self.is_complete = False
        """Whether the history begins where the system does, so that an unknown state must be absent."""
        self._excused: set[str] | None = None

    def tip(self, state: str) -> int | None:
        """The newest version of a state; None if it is unknown."""
        found = self._tips.get(state)
        return None if found is None else found[0]

    def excuse(self) -> None:
        """From here on a state may once be ahead of what the history tells: its lines were lost."""
        self._excused = set()

    def put(self, state: str, version: int) -> None:
        """A state was written by other means."""
        self._tips[state] = (version, self._findings.line, False)

    def assume(self, state: str, version: int) -> None:
        """An unknown commit made a version while others were under way."""
        tip = self._tips.get(state)
        self._overtaken.setdefault(state, []).append((0 if tip is None else tip[0], self._findings.line))
        self._tips[state] = (version, self._findings.line, False)

    def fits(self, change: Change) -> bool:
        """Whether a change starts from the newest version."""
        tip = self._tips.get(change.state)
        return tip is None or change.before in (tip[0], -1) or (tip[2] and change.before == 0)

    def change(self, change: Change, *, is_alone: bool) -> None:
        """A change took effect; `is_alone` says that nothing else was under way."""
        state, before = change.state, change.before
        tip = self._tips.get(state)
        if tip is None:
            if before > 0 and self.is_complete:
                self._ahead(state, before, 0)
        elif before not in (tip[0], -1) and not (tip[2] and before == 0):
            if before > tip[0]:
                self._ahead(state, before, tip[0], against=tip[1])
            else:
                self._fork(change, tip)
        if before >= change.version and before != -1 and not (tip is not None and tip[2]):
            text = f"state {state} went from version {before} to {change.version}: versions only rise"
            self._findings.add("version fell", text, state)
        if not is_alone:
            self._overtaken.setdefault(state, []).append((before if tip is None else tip[0], self._findings.line))
        self._tips[state] = (change.version, self._findings.line, change.digest == 0)
        self._counts.changes += 1

    def seen(self, seen: Seen, begun: int) -> None:
        """A commit that began at a line took effect on the condition that a state is still as seen."""
        tip = self._tips.get(seen.state)
        if tip is None:
            if seen.version > 0:
                if self.is_complete:
                    self._ahead(seen.state, seen.version, 0)
                self._tips[seen.state] = (seen.version, self._findings.line, False)
            return
        if seen.version in (tip[0], -1) or (tip[2] and seen.version == 0):
            return
        if seen.version > tip[0]:
            self._ahead(seen.state, seen.version, tip[0], against=tip[1])
            self._tips[seen.state] = (seen.version, self._findings.line, False)
        elif not any(v == seen.version and at > begun for v, at in self._overtaken.get(seen.state, ())):
            text = (
                f"state {seen.state} was taken for version {seen.version}, but line {tip[1]} had made it {tip[0]}: "
                "decided on a stale read"
            )
            self._findings.add("stale read", text, seen.state, against=tip[1])

    def forget_overtaken(self) -> None:
        """Nothing is under way: from now on no commit may build on an old version."""
        self._overtaken.clear()

    def _ahead(self, state: str, before: int, tip: int, *, against: int = 0) -> None:
        if self._excused is not None and state not in self._excused:
            self._excused.add(state)
            self._counts.unrecorded += max(1, before - tip)
            return
        text = f"state {state} is at version {before}, but the newest that was written is {tip}"
        self._findings.add("ghost version", text, state, against=against)

    def _fork(self, change: Change, tip: Tip) -> None:
        text = (
            f"state {change.state} was changed from version {change.before} to {change.version}, but line {tip[1]} had "
            f"made it {tip[0]} before: a fork, or that commit was lost"
        )
        self._findings.add("forked version", text, change.state, against=tip[1])
