"""Ordered logs along a history: where each identity lies, and which entries each processor has taken.

An identity lies in one cell of a log and a cell never changes, whoever appends or reads it.  A processor's steps take
the entries of a log one after the other: each begins where the one before has ended.  A register moves on only when
what its newest step emitted is in its logs; at `quiesce` every processor has taken all that lies there.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox.verify.recorded.events import Commit, Taken
from outbox.verify.recorded.flow import Flow
from outbox.verify.recorded.verdict import Counts, Findings

UNKNOWN = (-1, -1)


class _Cell(NamedTuple):
    """The cell at an index, and the line that showed it."""

    id: str
    digest: int
    line: int


class Logs:
    """Every cell that is known to lie in a log, and how far each processor has come."""

    def __init__(self, flow: Flow, findings: Findings, counts: Counts) -> None:
        self._flow = flow
        self._findings = findings
        self._counts = counts
        self._cells: dict[str, dict[int, _Cell]] = {}
        self._places: dict[tuple[str, str], int] = {}
        """The index of an identity, by log and identity."""
        self._taken: dict[tuple[str, str], tuple[tuple[int, int], int]] = {}
        """By processor and log, the position behind the entries last taken, and the line of that."""
        self._owed: dict[str, tuple[list[str], int]] = {}
        """By processor what its newest step emitted, and the line of that."""

    def lies(self, log: str, index: int, id: str, digest: int) -> None:
        """A cell lies at an index: it was appended, or read."""
        self._flow.lies(log, id, digest)
        cells = self._cells.setdefault(log, {})
        known = cells.get(index)
        if known is None:
            cells[index] = _Cell(id, digest, self._findings.line)
        elif known.id != id:
            text = f"cell {index} of {log} is {id}, and was {known.id} in line {known.line}"
            self._findings.add("overwritten cell", text, id, known.id, against=known.line)
        elif known.digest != digest:
            text = f"cell {index} of {log} has another payload than in line {known.line}"
            self._findings.add("changed payload", text, id, against=known.line)
        at = self._places.setdefault((log, id), index)
        if at != index:
            against = cells[at].line
            text = f"{id} lies at {index} of {log}, and at {at} since line {against}"
            self._findings.add("appended twice", text, id, against=against)

    def step(self, commit: Commit) -> None:
        """A step of a processor took effect."""
        processor, _, _ = commit.step.rpartition("#")
        self._counts.steps += 1
        for taken in commit.taken:
            self._take(processor, taken)
        ids, against = self._owed.get(processor, ([], 0))
        for id in ids:
            if self._flow.is_unpushed(id):
                text = f"{commit.step} took effect before output {id} of line {against} was in its log"
                self._findings.add("moved on", text, id, against=against)
        self._owed[processor] = [output.id for output in commit.outputs], self._findings.line

    def _take(self, processor: str, taken: Taken) -> None:
        log, since, until = taken.log, taken.since, taken.until
        known, against = self._taken.get((processor, log), (UNKNOWN, 0))
        self._taken[processor, log] = until, self._findings.line
        since = known if since == UNKNOWN else since
        if known not in (UNKNOWN, since):
            text = f"{processor} takes {log} from {_shown(since)}, and had taken it up to {_shown(known)} before"
            what = "entries taken twice" if since < known else "entries left out"
            self._findings.add(what, text, log, against=against)
        if until < since or until == since == known:
            text = f"{processor} takes {log} from {_shown(since)} to {_shown(until)}: cursors only rise"
            self._findings.add("cursor fell", text, log)
        cells = self._cells.get(log, {})
        for index in range(since[0], until[0] + (until[1] > 0)) if since != UNKNOWN else ():
            if index not in cells:
                text = f"{processor} has taken cell {index} of {log}, which was neither appended nor read"
                self._findings.add("ghost entries", text, log)
                return

    def took(self, pipeline: str, log: str, until: tuple[int, int]) -> None:
        """A replica of a pipeline has taken what lies below a position; others may be ahead of it."""
        known, _ = self._taken.get((pipeline, log), (UNKNOWN, 0))
        self._taken[pipeline, log] = max(known, until), self._findings.line

    def quiesce(self, queues: list[str]) -> None:
        """Nothing more comes: what lies in these logs must have been taken."""
        for (processor, log), (until, against) in self._taken.items():
            end = max(self._cells.get(log, {-1: None})) + 1
            if log in queues and until < (end, 0):
                text = f"{processor} has taken {log} up to {_shown(until)}, and it ends at {end}"
                self._findings.add("unread entries", text, log, against=against)


def _shown(position: tuple[int, int]) -> str:
    return f"{position[0]}.{position[1]}"
