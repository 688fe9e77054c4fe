"""Small scopes, smallest first: most bugs show in one of them, and there the way to them is shortest.

One large scope with every kind of fault finds less in the same time than many small ones, because the interleavings
that matter need few processes, few messages and one or two faults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly, Limits, Report, search

KINDS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump")


@dataclass(slots=True)
class LatticeReport:
    """What the scopes of a lattice came to, up to the first that broke a promise."""

    reports: list[Report] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Scopes that no time was left for."""

    @property
    def exhausted(self) -> bool:
        """Whether every scope was."""
        return bool(self.reports) and not self.skipped and all(report.exhausted for report in self.reports)

    @property
    def anomalies(self) -> list[Anomaly]:
        """What was found."""
        return [anomaly for report in self.reports for anomaly in report.anomalies]

    @property
    def states(self) -> int:
        """How many worlds were visited."""
        return sum(report.states for report in self.reports)

    @property
    def transitions(self) -> int:
        """How many steps were taken."""
        return sum(report.transitions for report in self.reports)

    @property
    def cpu_s(self) -> float:
        """What it took, in seconds of CPU."""
        return sum(report.cpu_s for report in self.reports)

    @property
    def text(self) -> str:
        """All of it in words; of scopes in which nothing was found a line."""
        lines = [report.text for report in self.reports if report.anomalies]
        reported = "exhausted" if self.exhausted else f"not exhausted, {len(self.skipped)} scope(s) skipped"
        return "\n".join(
            [f"{len(self.reports)} scopes, {self.states} worlds, {self.cpu_s:.1f} CPU s: {reported}", *lines]
        )


SIZE_MAX = 99


def scopes(largest: Scenario, *, kinds: Sequence[FaultKind] = KINDS, size_max: int = SIZE_MAX) -> Iterator[Scenario]:
    """The scopes within a scenario, by size: how many messages, workers, copies and faults they have together.

    `copies` of the largest counts for its first message.
    """
    count_max, workers_max, copies_max = len(largest.messages), largest.workers, max(largest.copy_counts)
    found: list[tuple[int, int, Scenario]] = []
    for messages in range(1, count_max + 1):
        for workers in range(1, workers_max + 1):
            for copies in range(1, copies_max + 1):
                for kind in (None, *kinds):
                    budgets = Budgets() if kind is None else Budgets.any_of(1, kind)
                    size = messages + workers + copies + (kind is not None)
                    small = replace(
                        largest, messages=largest.messages[:messages], workers=workers, copies=[copies], budgets=budgets
                    )
                    if size <= size_max:
                        found.append((size, len(found), small))
    return (scenario for _, _, scenario in sorted(found, key=lambda item: item[:2]))


def search_lattice(
    largest: Scenario,
    *,
    kinds: Sequence[FaultKind] = KINDS,
    size_max: int = SIZE_MAX,
    cpu_s: float = 60.0,
    limits: Limits | None = None,
) -> LatticeReport:
    """Explore the scopes within a scenario, smallest first, up to the first broken promise or the end of the time."""
    began_s = time.process_time()
    report = LatticeReport()
    for scenario in scopes(largest, kinds=kinds, size_max=size_max):
        left_s = cpu_s - (time.process_time() - began_s)
        if left_s <= 0 or report.anomalies:
            report.skipped.append(scenario.describe())
            continue
        bounds = limits or Limits()
        report.reports.append(search(scenario, limits=replace(bounds, cpu_s=min(bounds.cpu_s, left_s))))
    return report
