"""The findings of a judge of histories: the broken promise, the event, and the verdict over all."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

AT_MOST_ONCE = "at-most-once"
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
CONSISTENT = "consistent"
DETERMINISTIC = "deterministic"
RECOVERABLE = "recoverable"
SERIALIZABLE = "serializable"

USUAL = (AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE, CONSISTENT, RECOVERABLE)
"""The promises of every system here.  Two attempts may differ (`deterministic`) as long as one takes effect."""
KNOWN = (*USUAL, DETERMINISTIC, SERIALIZABLE)

TWICE = (AT_MOST_ONCE, EXACTLY_ONCE)
LOST = (AT_LEAST_ONCE, EXACTLY_ONCE)
GHOST = (CONSISTENT, EXACTLY_ONCE)
"""The promises broken by an effect that is double, lost, or made by no one commit."""

NO_QUIESCE = "no quiesce"
"""The finding of a history that ends before its queues were seen empty."""

BREAKS: dict[str, tuple[str, ...]] = {
    "applied twice": TWICE,
    "ended twice": TWICE,
    "doubled output": TWICE,
    "appended twice": TWICE,
    "entries taken twice": TWICE,
    "change without a message": TWICE,
    "output without a message": (*TWICE, CONSISTENT),
    "lost message": LOST,
    "lost output": LOST,
    "lost commit": LOST,
    "completed without a commit": LOST,
    "moved on": LOST,
    "entries left out": LOST,
    "unread entries": LOST,
    "cut": LOST,
    NO_QUIESCE: LOST,
    "overwritten cell": (*LOST, CONSISTENT),
    "ghost commit": GHOST,
    "ghost entries": GHOST,
    "ghost output": GHOST,
    "ghost version": GHOST,
    "changed blob": GHOST,
    "changed payload": GHOST,
    "cursor fell": GHOST,
    "forked version": GHOST,
    "stale read": GHOST,
    "version fell": GHOST,
    "left early": (RECOVERABLE,),
    "attempts differ": (DETERMINISTIC,),
    "not serializable": (SERIALIZABLE,),
}
"""The promises that each kind of finding breaks."""

FINDING_COUNT_MAX = 100


class Finding(msgspec.Struct, frozen=True, gc=False):
    """A broken promise: at which line of the history it shows, and which earlier line it contradicts (0: none)."""

    line: int
    what: str
    text: str
    breaks: tuple[str, ...]
    ids: tuple[str, ...] = ()
    against: int = 0

    @property
    def how(self) -> str:
        """Where it shows, and whether the promise is broken or not decided."""
        return f"{'not decided' if self.what == NO_QUIESCE else 'BROKEN'} at line {self.line}: {self.text}"


class Counts(msgspec.Struct):
    """The counts of a history.

    `unrecorded` are changes and messages that only what followed tells of, because a power loss took their lines;
    `optional` operations had no known outcome, and `resolved` of them took effect.  Of `rerun` commits the handlers
    were run again, of `not_rerun` they could not be.  `steps` are those of processors and ingests.
    """

    lines: int = 0
    events: int = 0
    lives: int = 0
    applied: int = 0
    duplicates: int = 0
    refused: int = 0
    outputs: int = 0
    changes: int = 0
    pushes: int = 0
    optional: int = 0
    resolved: int = 0
    unrecorded: int = 0
    unexplained: int = 0
    torn: int = 0
    rerun: int = 0
    not_rerun: int = 0
    steps: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The verdict over a history: the first finding of each kind, in the order of the history."""

    guarantees: tuple[str, ...]
    findings: tuple[Finding, ...]
    counts: Counts
    finding_count: int

    @property
    def ok(self) -> bool:
        """Whether every promise that was asked for holds."""
        return not self.findings

    def first(self, guarantee: str) -> Finding | None:
        """The first event that breaks a promise; None if it holds."""
        return next((finding for finding in self.findings if guarantee in finding.breaks), None)

    @property
    def is_open(self) -> bool:
        """Whether nothing is broken, and the history ends before it is known what became of all messages."""
        return not self.ok and all(finding.what == NO_QUIESCE for finding in self.findings)

    @property
    def text(self) -> str:
        """The verdict for a person: the counts, each promise, and where the broken ones break first."""
        c = self.counts
        what = (
            f"{c.lines:,} lines, {c.lives:,} {'life' if c.lives == 1 else 'lives'}: {c.applied:,} messages applied, "
            f"{c.duplicates:,} duplicates ended, {c.refused:,} refused, {c.changes:,} states, {c.outputs:,} outputs"
            + (f", {c.steps:,} steps" if c.steps else "")
        )
        unclear = (
            f"{c.optional:,} commits without an answer, {c.resolved:,} of them took effect; "
            f"{c.unrecorded:,} changes missing from the history, {c.unexplained:,} messages left unseen"
        )
        lines = [what, unclear]
        if SERIALIZABLE in self.guarantees:
            lines.append(f"{c.rerun:,} commits run again, {c.not_rerun:,} could not be")
        width = max((len(name) for name in self.guarantees), default=0) + 2
        for name in self.guarantees:
            first = self.first(name)
            lines.append(f"{name:<{width}}{'holds' if first is None else first.how}")
        if self.finding_count > len(self.findings):
            lines.append(f"{self.finding_count:,} findings in all, the first {len(self.findings):,} are kept")
        return "\n".join(lines)


class Findings:
    """Collects what breaks the promises asked for; bounded, for a broken history has as many findings as events."""

    def __init__(self, asked: Iterable[str] = KNOWN) -> None:
        self.asked = tuple(asked)
        self.counts = Counts()
        self.kept: list[Finding] = []
        self.count = 0
        self.line = 0
        """The line that is being read."""

    def add(self, what: str, text: str, *ids: str, against: int = 0, also: tuple[str, ...] = (), at: int = 0) -> None:
        """Note a finding, if it breaks a promise that was asked for.

        It breaks what the table says and `also` others; `at` is its line (0: the one being read).
        """
        breaks = (*BREAKS[what], *also)
        if set(self.asked).isdisjoint(breaks):
            return
        self.count += 1
        if len(self.kept) < FINDING_COUNT_MAX:
            self.kept.append(Finding(at or self.line, what, text, breaks, ids[:8], against))

    def verdict(self, counts: Counts) -> Verdict:
        """The verdict over the promises that were asked for."""
        return Verdict(self.asked, tuple(sorted(self.kept, key=lambda finding: finding.line)), counts, self.count)
