"""Applications for tests of resubmission: they refuse a withdrawal that the drawer's state cannot cover yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from outbox import App, Context, Reject
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from outbox.verify.promises.view import Invariant

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale")
SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])


@dataclass
class Draw:
    id: str
    drawer: str
    amount: int


@dataclass
class Put:
    drawer: str
    amount: int


@dataclass
class Drawer:
    amount: int = 0


@dataclass
class Drawn:
    id: str
    left: int


def drawers(policy: Literal["continue", "stop_key"] = "continue") -> App:
    app = App("drawers", retention=timedelta(hours=1), margin=timedelta(minutes=20))
    app.queue("draws", "per_key" if policy == "stop_key" else "unordered")
    app.queue("drawn")

    @app.handler("draws", key="drawer", on_dead_letter=policy)
    def draw(message: Draw, drawer: Drawer, ctx: Context) -> None:
        if drawer.amount < message.amount:
            raise Reject("too little")
        drawer.amount -= message.amount
        ctx.send("drawn", Drawn(message.id, drawer.amount))

    @app.handler("puts", key="drawer")
    def put(message: Put, drawer: Drawer) -> None:
        drawer.amount += message.amount

    return app


LARGE, SMALL = ("draws", Draw("d1", "a", 5), "d1"), ("draws", Draw("d2", "a", 1), "d2")
PUT = ("puts", Put("a", 5), "p1")


def explored(scope: str, *messages: Any, app: App | None = None, **options: Any) -> Report:
    known: dict[str, Any] = {"workers": 1, "resubmissions": 1, "given": [("a", Drawer(3))]}
    known |= {"allow": frozenset({"dead-letter"}), "sweepers": int(scope != "engine")}
    report = search(Scenario(app or drawers(), messages, scope=scope, **(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


def broken(scope: str, *messages: Any, invariant: Invariant, app: App | None = None, **options: Any) -> bool:
    """Whether there is a world in which an invariant does not hold."""
    known: dict[str, Any] = {"given": [("a", Drawer(3))], "allow": frozenset({"dead-letter"}), "resubmissions": 1}
    report = search(
        Scenario(app or drawers(), messages, scope=scope, workers=1, invariant=invariant, **(known | options))
    )
    return [anomaly.promise for anomaly in report.anomalies] == ["Invariant"]
