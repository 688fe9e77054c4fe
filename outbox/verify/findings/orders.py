"""Whether the order shows in which messages are handled: every order without faults, and the end of each.

One worker is enough, because whatever several do is like some order of whole handlings.  What is compared is what
outsiders see when all is done: states, dead letters, and what is in queues without a handler.  The way to each of
two ends that differ is shown by its commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec

from outbox.ports import StateDocument
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.models.journal import JournalModel
from outbox.verify.explorer.ops import GHOST, World, short
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.trace import trace_of
from outbox.verify.findings.report import Anomaly, Part
from outbox.verify.promises.journal import JOURNAL

STATE_COUNT_MAX = 500_000
COMMIT = "commit "

Outcome = tuple[tuple[str, str], ...]
"""The names and values seen at an end."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of comparing the orders."""

    anomaly: Anomaly | None
    part: Part
    stopped: str = ""


def order_that_shows(scenario: Scenario, *, cpu_s: float) -> Shown:
    """Two orders of a scenario's messages with different ends; of as few messages as show it."""
    until_s = time.process_time() + cpu_s
    whole = replace(
        scenario,
        copies=1,
        asked_times=1,
        sweepers=0,
        budgets=Budgets(),
        scope="engine",
        invariant=None,
        at_end=None,
        allow=frozenset({"dead-letter"}),
    )
    orders = _Orders(whole, until_s)
    orders.run()
    part = Part(f"every order, {whole.describe()}", len(orders.parents), orders.step_count, len(orders.ends))
    if len(orders.ends) < 2:
        return Shown(None, part, orders.stopped)
    message_count = len(whole.messages)
    every = range(message_count + len(whole.requests))
    for count in (1, 2):
        for some in combinations(every, count) if count < len(every) else ():
            messages = [whole.messages[index] for index in some if index < message_count]
            requests = [whole.requests[index - message_count] for index in some if index >= message_count]
            fewer = _Orders(replace(whole, messages=messages, requests=requests), until_s)
            fewer.run()
            if len(fewer.ends) > 1:
                return Shown(fewer.anomaly(), part)
    return Shown(orders.anomaly(), part)


class _Orders:
    """Every order, breadth first, until two ends differ."""

    def __init__(self, scenario: Scenario, until_s: float) -> None:
        self._kernel: Kernel = scenario.kernel()
        self._scenario = scenario
        self._codecs = scenario.app.states()
        self._until_s = until_s
        self.parents: dict[World, World | None] = {self._kernel.start: None}
        self.ends: dict[Outcome, World] = {}
        self.step_count = 0
        self.stopped = ""

    def run(self) -> None:
        kernel, frontier = self._kernel, [self._kernel.start]
        while frontier and len(self.ends) < 2 and not self._is_over():
            level, frontier = frontier, []
            for world in level:
                steps, is_free = kernel.successors(world)
                self.step_count += len(steps)
                if not is_free:
                    self.ends.setdefault(self._outcome(world), world)
                for after, _, _ in steps:
                    if after not in self.parents and after[GHOST] not in kernel.bad:
                        self.parents[after] = world
                        frontier.append(after)

    def _is_over(self) -> bool:
        if len(self.parents) >= STATE_COUNT_MAX or time.process_time() >= self._until_s:
            self.stopped = "the limit of CPU seconds is reached before every order was looked at"
        return bool(self.stopped)

    def _outcome(self, world: World) -> Outcome:
        """A world as an outsider sees it."""
        state, model = self._kernel.state(world, JOURNAL), self._kernel.models[JOURNAL]
        assert isinstance(model, JournalModel), "orders are looked at in engine scope"
        found = [(id, self._shown(id, document)) for id, document in state.documents if document.value]
        messages = model.queues.messages
        found += sorted({(short(messages[d.message].identity), f"a dead letter: {d.reason}") for d in state.dead})
        for queue, tasks in zip(model.queues.specs, state.tasks, strict=True):
            lying = [messages[task.message] for task in tasks]
            bodies = [(m.session_id if queue.is_ordered else "", f"{m.type} {m.body.decode()}") for m in lying]
            bodies.sort(key=(lambda pair: pair[0]) if queue.is_ordered else None)
            if bodies:
                found.append((f"in {queue.path}", ", ".join(text for _, text in bodies)))
        return tuple(found)

    def _shown(self, id: str, document: StateDocument) -> str:
        """A state as text; sets and dictionaries that are equal are one text, however they came about."""
        codec = self._codecs[id.rpartition(":")[0]]
        try:
            return msgspec.json.encode(codec.decode(document.value, document.schema), order="sorted").decode()
        except TypeError:  # not a type that msgspec writes by itself
            return msgspec.json.encode(msgspec.json.decode(document.value), order="sorted").decode()

    def anomaly(self) -> Anomaly:
        """The two ends as a finding."""
        (one, first), (other, second) = self.ends.items()
        scenario = self._scenario
        unordered = sorted({*(queue for queue, _, _ in scenario.messages), *(each.line for each in scenario.requests)})
        ways = [self._commits(world) for world in (first, second)]
        what = f"{'; '.join(_differences(dict(one), dict(other)))}, depending on what is handled first"
        way = "\n".join(("one order:", *ways[0], "another:", *ways[1]))
        return Anomaly("Order", f"{what} ({', '.join(unordered)})", way, max(map(len, ways)))

    def _commits(self, end: World) -> list[str]:
        """The commits on the way to an end."""
        way = [end]
        while (before := self.parents[way[-1]]) is not None:
            way.append(before)
        steps = trace_of(self._kernel, way[::-1]).steps
        commits = [step.describe().removeprefix(COMMIT) for step in steps if step.what.startswith(COMMIT)]
        return [f"{number:4}  {commit}" for number, commit in enumerate(commits, 1)]


def _differences(one: dict[str, str], other: dict[str, str]) -> Iterator[str]:
    for name in dict.fromkeys((*one, *other)):
        values = [each.get(name, "nothing") for each in (one, other)]
        if values[0] != values[1]:
            yield f"{name} is {values[0]} or {values[1]}"
