"""Ordered logs along a history: where each identity lies, and which entries each processor has taken.

An identity lies in one cell of a log and a cell never changes, whoever appends or reads it.  A processor's steps take
the entries of a log one after the other: each begins where the one before has ended.  A register moves on only when
what its newest step emitted is in its logs; at `quiesce` every processor has taken all that lies there.

A pipeline's results are the same each time, and each lies in one bundle of its sink.  The bundles of a sink are a
chain, each from where the one before ends, and hold what operators made at the positions that they cover.  A checkpoint
stands only where all below it has left; at `quiesce` everything has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from outbox.verify.recorded.events import Commit, Durable, Left, Result, Taken
from outbox.verify.recorded.flow import Flow
from outbox.verify.recorded.verdict import CONSISTENT, EXACTLY_ONCE, RECOVERABLE, Findings

UNKNOWN = (-1, -1)


class _Cell(NamedTuple):
    """The cell at an index, and the line that showed it."""

    id: str
    digest: int
    line: int


class Logs:
    """Every cell that is known to lie in a log, and how far each processor has come."""

    def __init__(self, flow: Flow, findings: Findings) -> None:
        self._flow = flow
        self._findings = findings
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
        self._findings.counts.steps += 1
        for taken in commit.taken:
            self._take(processor, taken)
        ids, against = self._owed.get(processor, ([], 0))
        for id in ids:
            if id in self._flow.unpushed:
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


Place = tuple[int, int]


class _Made(NamedTuple):
    """A result at a position: its identity, its items' digests, and the line that told it first."""

    id: str
    items: list[int]
    line: int


@dataclass(slots=True)
class _Sink:
    """A sink's results by version and position, its bundles by index, and how far these reach."""

    made: dict[int, dict[Place, _Made]] = field(default_factory=dict)
    places: dict[int, list[Place]] = field(default_factory=dict)
    """Of each version the positions of its results, sorted."""
    chain: dict[int, tuple[Left, int]] = field(default_factory=dict)
    until: Place = (-1, -1)

    def between(self, version: int, since: Place, until: Place | None = None) -> list[_Made]:
        """The results of a version from one position to before another."""
        places = self.places.get(version, [])
        last = len(places) if until is None else bisect_left(places, until)
        return [self.made[version][at] for at in places[bisect_left(places, since) : last]]


class Bundles:
    """Every result of a pipeline, and the bundles that are known to lie in its sinks."""

    def __init__(self, logs: Logs, findings: Findings) -> None:
        self._logs = logs
        self._findings = findings
        self._sinks: dict[str, _Sink] = {}

    def result(self, result: Result) -> None:
        """A replica made something for a sink, or has come to a position."""
        sink = self._sinks.setdefault(result.sink, _Sink())
        if not result.items:
            for parent in result.parents:
                self._logs.took(result.id, parent.rpartition("/")[0], result.at)
            return
        known = sink.made.setdefault(result.version, {})
        made = known.setdefault(result.at, _Made(result.id, result.items, self._findings.line))
        if made.items != result.items:
            text = f"result {result.id} is another than in line {made.line}: {_differs(made.items, result.items)}"
            also = (CONSISTENT, EXACTLY_ONCE, RECOVERABLE)
            self._findings.add("attempts differ", text, result.id, against=made.line, also=also)
        elif made.line == self._findings.line:
            insort(sink.places.setdefault(result.version, []), result.at)

    def left(self, left: Left) -> list[str]:
        """A bundle lies in a sink; the results that it holds."""
        sink = self._sinks.setdefault(left.sink, _Sink())
        self._logs.lies(left.sink, left.index, left.id, left.digest)
        if left.index in sink.chain:
            return []
        sink.chain[left.index] = replace(left, items=[], values=[]), self._findings.line
        sink.until = max(sink.until, left.until)
        self._findings.counts.outputs += len(left.items)
        for index in (left.index - 1, left.index):
            self._check_joined(sink, index)
        made = sink.between(left.version, left.since, left.until)
        owed = [item for each in made for item in each.items]
        if owed != left.items:
            text = f"bundle {left.id} at {left.index} of {left.sink} holds something else from {_shown(left.since)} to "
            text += f"{_shown(left.until)} than version {left.version} has made: {_differs(owed, left.items)}"
            self._findings.add("changed payload" if made else "ghost output", text, left.id, also=(RECOVERABLE,))
        return [each.id for each in made]

    def _check_joined(self, sink: _Sink, index: int) -> None:
        """Check that a bundle ends where the next begins."""
        if index not in sink.chain or index + 1 not in sink.chain:
            return
        (one, first), (other, second) = sink.chain[index], sink.chain[index + 1]
        if one.until == other.since:
            return
        earlier = [known for at, (known, _) in sink.chain.items() if at <= index]  # in no order without a chain
        is_twice = any(known.since < other.until and other.since < known.until for known in earlier)
        if is_twice or other.since > max(known.until for known in earlier):
            text = f"cell {index} of {one.sink} ends at {_shown(one.until)} of the source, and the next begins at "
            what = "doubled output" if is_twice else "lost output"
            against = min(first, second)
            self._findings.add(what, text + _shown(other.since), one.id, other.id, against=against)

    def durable(self, durable: Durable) -> None:
        """A checkpoint stands: what lies below it is never made again."""
        for name in durable.sinks:
            sink = self._sinks.setdefault(name, _Sink())
            for made in sink.between(durable.version, sink.until, durable.until)[:1]:
                text = f"checkpoint {durable.id} stands at {_shown(durable.until)}, and result {made.id} has not left"
                self._findings.add("moved on", text, made.id, against=made.line, also=(RECOVERABLE,))

    def quiesce(self) -> None:
        """Nothing more comes: what the newest version of a pipeline has made lies in its sinks."""
        for name, sink in self._sinks.items():
            for made in sink.between(max(sink.made, default=0), sink.until):
                text = f"result {made.id} of line {made.line} never came to {name}"
                self._findings.add("lost output", text, made.id, against=made.line)


def _differs(one: Iterable[int], other: Iterable[int]) -> str:
    """Where two rows of items differ first."""
    pairs = enumerate(zip_longest(one, other))
    return next((f"item {index} is {b or 'none'}, not {a or 'none'}" for index, (a, b) in pairs if a != b), "")
