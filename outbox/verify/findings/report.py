"""The report of an exploration for a person: the finding, the shortest way there, and the cure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import fill, indent

from outbox.app import App
from outbox.verify.explorer.ops import Finding
from outbox.verify.explorer.replay import write
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly as Found

WIDTH = 110
MORE = "explore fewer messages, requests, workers or faults, or give more seconds="
LINES_SHOWN = 24
"""The lines shown of a long way, at each of its ends; the middle is mostly repetition."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A kind of finding, explained: its title, and the cure."""

    title: str
    cure: str


_NOT_DETERMINISTIC = Advice(
    "a handler that is not deterministic",
    "A handler is run again after crashes and lost races, and must give the same result. Use ctx.now() for the "
    "time, ctx.random() and ctx.uuid() for chance, await ctx.call(...) for what others answer, and keep in the state "
    "what it has to remember.",
)
_NEVER_ENDS = Advice(
    "a message that never ends",
    "Let what it waits for arrive in what is explored, raise Reject when enough is enough, or end the circle of "
    "messages by a count that they carry.",
)

ADVICE: dict[str, Advice] = {
    "OneCall": Advice(
        "a side effect happens twice",
        "A call is at least once until its handling commits. Hand its key on, `await ctx.call(lambda key: ...)`, to a "
        "side that knows it again, and say idempotent=True; or send a message to a handler that does nothing else.",
    ),
    "StaysInside": Advice(
        "an effect outside ctx",
        "What a handler opens by itself happens again with every attempt, and is not taken back by any. Use "
        "await ctx.call(...) for other systems, ctx.write_blob(...) for files, ctx.send(...) for the rest.",
    ),
    "Deterministic": _NOT_DETERMINISTIC,
    "Serializable": _NOT_DETERMINISTIC,
    "ConsistentOutput": _NOT_DETERMINISTIC,
    "Order": Advice(
        "the order of messages shows",
        'Let the handler give the same whatever comes first; or declare the queue per_key, app.queue(name, "per_key"); '
        'or, where every order is right, say allow={"order"}.',
    ),
    "Invariant": Advice(
        "the invariant is broken",
        "It has to hold after every commit, not only at the end: change in one handling what belongs together, or "
        "count what is on its way by world.in_flight(...).",
    ),
    "AtEnd": Advice(
        "what must hold at the end does not",
        "Nothing is under way any more, so no later message mends it: look on the way for a handling that was not to "
        "be, or for a message that nobody sent.",
    ),
    "NoDeadLetter": Advice(
        "a dead letter",
        'Mend what the reason says; or, where messages may be refused, say allow={"dead-letter"}.',
    ),
    "Ends": _NEVER_ENDS,
    "Progress": _NEVER_ENDS,
    "EveryMessageEnds": _NEVER_ENDS,
}
"""By the promise that is broken."""

OURS = Advice(
    "a promise of outbox itself is broken",
    "No handler should be able to do this, unless it decides by something other than its message, its state and ctx. "
    "If yours does not, please report it with the trace.",
)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that is wrong: the promise that is broken, how, the shortest way there, and the cure.

    `trace` is the way as a file for `python -m outbox.verify replay`; empty where it is not one of port calls, where
    no module has the application, and for an invariant or what must hold at the end, which no file can hold.
    """

    promise: str
    what: str
    way: str
    steps: int
    trace: bytes = b""

    @classmethod
    def of(cls, scenario: Scenario, found: Found, raised: Mapping[str, str]) -> Anomaly:
        """A search's finding, for a person; `raised` has the errors of handlers by message."""
        name = "" if found.promise in ("Invariant", "AtEnd") else name_of(scenario.app)
        trace = write(scenario, Finding(found.promise, found.text), found.trace, app=name) if name else b""
        what, way = found.text, shortened(found.trace.text)
        if found.promise == "OneCall":
            way += "\n      and its call is made once more"
        if found.promise == "Progress" and raised:
            what = "; ".join((what, *raised.values()))
        if found.promise == "NoDeadLetter" and what.endswith(": failed"):
            what = "; ".join((what, *filter(None, [raised.get(what.partition(" ")[0])])))
        return cls(found.promise, what, way, found.steps, trace)

    @property
    def title(self) -> str:
        """The kind of the finding."""
        return ADVICE.get(self.promise, OURS).title

    @property
    def cure(self) -> str:
        """The cure of the finding."""
        return ADVICE.get(self.promise, OURS).cure

    @property
    def text(self) -> str:
        """The whole as text."""
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        return "\n".join(
            (
                _filled(f"{self.title}: {self.what}"),
                "",
                f"The shortest way there that was found, {steps}:",
                "",
                self.way,
                "",
                _filled(f"Cure: {self.cure}"),
            )
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an exploration: its scope as text, and the counts of its visits."""

    scope: str
    states: int
    transitions: int
    ends: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The report of an exploration.

    `exhausted` says that nothing was found and that there is nothing else within its scope; where it is False and
    there are no anomalies, `stopped` says why.
    """

    scope: str
    exhausted: bool
    anomalies: tuple[Anomaly, ...]
    parts: tuple[Part, ...]
    stopped: str
    cpu_s: float

    @property
    def states(self) -> int:
        """How many worlds were visited."""
        return sum(part.states for part in self.parts)

    @property
    def transitions(self) -> int:
        """How many steps were taken."""
        return sum(part.transitions for part in self.parts)

    @property
    def text(self) -> str:
        """The whole as text."""
        head = f"{self.scope}: {self.states:,} worlds, {self.transitions:,} steps, {self.cpu_s:.1f} s"
        if self.anomalies:
            return "\n\n".join((head, *(indent(anomaly.text, "  ") for anomaly in self.anomalies)))
        verdict = "nothing is wrong in any of them" if self.exhausted else f"not exhausted: {self.stopped}; {MORE}"
        return f"{head}\n{verdict}"


def shortened(way: str) -> str:
    """A way without its middle, where it is long."""
    lines = way.splitlines()
    if len(lines) <= 3 * LINES_SHOWN:
        return way
    return "\n".join((*lines[:LINES_SHOWN], "      ...", *lines[-LINES_SHOWN:]))


def name_of(app: App) -> str:
    """Where an application is found, as module:attribute, rather not in a test; empty where no module has it."""
    found = [
        f"{module_name}:{name}"
        for module_name, module in list(sys.modules.items())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app and module_name != "__main__"
    ]
    tests = ("test_", "conftest")
    return min(found, key=lambda name: name.partition(":")[0].rpartition(".")[2].startswith(tests), default="")


def _filled(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
