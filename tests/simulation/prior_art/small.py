"""A scenario that is not the framework's own: models, programs and a monitor, put before the explorer as they are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.ops import Event, Finding, Model, Monitor, Op
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search


class Resource:
    """A model in which nothing happens by itself, nothing is locked and no call is anybody's private matter."""

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: Any, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: Any, now_ms: int) -> int | None:
        return None

    def moments_ms(self, state: Any, now_ms: int) -> tuple[int, ...]:
        return ()

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: Any, op: Op) -> bool:
        return False

    def show(self, state: Any, now_ms: int) -> list[str]:
        return []


@dataclass(frozen=True)
class Small:
    """What a search asks of a scenario."""

    models: Sequence[Model]
    programs: Sequence[Program]
    monitor: Monitor
    budgets: Budgets

    @property
    def workers(self) -> int:
        return len(self.programs)

    def describe(self) -> str:
        return f"{', '.join(program.name for program in self.programs)}; {self.budgets.describe()}"

    def kernel(self) -> Kernel:
        return Kernel(self.models, self.programs, self.monitor, self.budgets, start_ms=0)


def explored(models: Sequence[Model], programs: Sequence[Program], monitor: Monitor, budgets: Budgets) -> Report:
    """Every interleaving of some programs, up to the first promise that is broken."""
    small: Any = Small(models, programs, monitor, budgets)
    return search(cast(Scenario, small))  # it asks for a scenario's kernel, its words and how many work in it


class Watch:
    """A monitor of chosen promises, so that one scope can show several counter-examples, each by its own name."""

    def __init__(self, *promises: str) -> None:
        self._promises = frozenset(promises)

    def initial(self) -> Hashable:
        return ()

    def outcome(self, ghost: Hashable, states: Sequence[Any]) -> Hashable:
        """What an end comes to."""
        return ghost

    def chosen(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those findings that are asked for; all where no promise was named."""
        return [finding for finding in findings if not self._promises or finding.promise in self._promises]


def clean(report: Report) -> Report:
    """A report of a scope that has nothing wrong in it."""
    assert report.exhausted and not report.anomalies, report.text
    assert report.finals, report.text
    return report


def broken(report: Report, promise: str, *, steps: int) -> Report:
    """A report of a promise that was broken, in so many steps at most."""
    assert [anomaly.promise for anomaly in report.anomalies] == [promise], report.text
    assert report.anomalies[0].steps <= steps, report.text
    return report
