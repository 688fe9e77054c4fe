"""Every handling alone, in turn: whether a second run does the same, and whether its message ends.

What shows in one handling is reported here, in terms of the handler, before anything is explored: an exploration
would find it too, as port calls that differ.  Each handling is run twice at the same state; what it changes and sends
is then taken as done, and what it sends is handled in its turn.  The functions that it calls are listened to, so that
the clock or the chance that has a say is named.

Then whether the order shows in which messages are handled: every order without faults, and the end of each.  One worker
is enough, because whatever several do is like some order of whole handlings.  What is compared is what outsiders see
when all is done: states, dead letters, and what is in queues without a handler.  The way to each of two ends that
differ is shown by its commits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec

from outbox.message import Message
from outbox.ports import Output, StateDocument
from outbox.runtime.start.plan import compile_app
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.models.journal import JournalModel
from outbox.verify.explorer.ops import GHOST, World, short
from outbox.verify.explorer.run import ProgramSpins
from outbox.verify.explorer.scenario import START_MS, Scenario, queues_of
from outbox.verify.explorer.search import trace_of
from outbox.verify.findings.nondeterminism import AHEADS, ProfiledCalls, shifted_clock
from outbox.verify.findings.report import Anomaly, Part
from outbox.verify.promises.journal import JOURNAL
from outbox.verify.promises.reference import (
    Declined,
    Effect,
    Handling,
    Reference,
    SideEffect,
    SideEffects,
    StoredState,
    watched,
    watched_app,
)
from outbox.verify.promises.view import handling_of

HANDLING_COUNT_MAX = 1_000
"""The number of handlings rehearsed; further ones are explored, or are a circle that ends by its hops."""

PAUSE_COUNT_MAX = 64
"""Over how many pauses messages may schedule each other before that is taken to have no end."""

PAUSES_FOLLOWED = 3
"""Over how many pauses messages without an end are explored."""

ROUND_COUNT_MAX = 50

DAY_MS = 86_400_000
LEAVES_LOOP = "a handler under exploration may not use threads, sockets or processes; use ctx.call"
"""The error of a handler that asks its loop for any of them."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A handling whose turn comes, how often it was rescheduled, when its message is due, behind how many pauses."""

    handling: Handling
    round: int = 0
    due_ms: int = 0
    pauses: int = 0


class Rehearsal:
    """Handlings one after the other; `raised` is what those of a message have failed with.

    `endless` names the handler whose messages schedule each other without an end; empty where there is none.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.raised: dict[str, str] = {}
        self.endless = ""
        self._hops_max = scenario.app.hops_max
        plan = compile_app(scenario.app)
        self._reference = Reference(watched(plan))
        _, self._routes = queues_of(scenario.app, plan)
        self._states = {
            id: StoredState(document.value, document.schema, document.serial)
            for id, document in scenario.documents().items()
        }
        self._now_ms = START_MS
        self._turns: deque[_Turn] = deque()
        self._way: list[str] = []
        for output in scenario.sent():
            self._turns.extend(self._turns_of(output.destination, output.message))
        app = watched_app(scenario.app)
        self._turns.extend(_Turn(handling_of(app, request.message, START_MS)[0]) for request in scenario.requests)

    def run(self) -> Anomaly | None:
        """Rehearse, and return the first finding in a handling by itself."""
        for _ in range(HANDLING_COUNT_MAX):
            if not self._turns:
                break
            found = self._take(self._turns.popleft())
            if found is not None:
                return found
        last = max(self._turns, key=lambda turn: turn.pauses, default=None)
        if last is not None and last.pauses > PAUSES_FOLLOWED:
            self.endless = self.endless or last.handling.handler.name
        return None

    def _turns_of(self, destination: str, message: Message, *, due_ms: int = 0, pauses: int = 0) -> Iterator[_Turn]:
        for path in self._routes.get(destination, ()):
            for handling in self._reference.handlings(path, message):
                yield _Turn(handling, due_ms=due_ms, pauses=pauses)

    def _next(self, turn: _Turn, output: Output) -> Iterator[_Turn]:
        pauses = turn.pauses + (output.message.hops == 0)  # one that is scheduled begins its chain anew
        if pauses > PAUSE_COUNT_MAX:
            self.endless = self.endless or turn.handling.handler.name
            return iter(())
        due_ms = max(turn.due_ms, output.due_ms)
        return self._turns_of(output.destination, output.message, due_ms=due_ms, pauses=pauses)

    def _take(self, turn: _Turn) -> Anomaly | None:
        handling, now_ms = turn.handling, max(self._now_ms, turn.due_ms)
        before = None if handling.state_id is None else self._states.get(handling.state_id)
        try:
            with ProfiledCalls() as calls, SideEffects() as watch:
                first = self._reference.run(handling, before, now_ms)
                watch.side_effects.clear()  # what is imported is imported by now
                again = self._reference.run(handling, before, now_ms)
                side_effects = tuple(watch.side_effects)
            asks = first == again and calls.clock_readers
            third = self._another_day(handling, before, now_ms, calls, first) if asks else first
        except ProgramSpins as error:
            return self._wrong("Ends", f"{_name(handling)} loops without end: {error}")
        self._way.append(f"{handling.handler.name} handles {short(handling.message.identity)}{_at(handling, before)}")
        if first != again:
            return self._differs(handling, first, again, calls, "twice")
        if first != third:
            return self._differs(handling, first, third, calls, "twice, and another time on another day")
        outside = next((side_effect for side_effect in side_effects if side_effect.what == "leaves"), None)
        if outside is not None:
            return self._wrong("StaysInside", f"{_name(handling)} {opened(outside)}, not through ctx")
        return self._done(turn, handling, first)

    def _another_day(
        self,
        handling: Handling,
        before: StoredState | None,
        now_ms: int,
        calls: ProfiledCalls,
        first: Effect | Declined,
    ) -> Effect | Declined:
        """Run a handling on other days, and return the effect of the day on which it differs, else `first`."""
        for ahead in AHEADS:
            with shifted_clock(calls.clock_readers, ahead):
                found = self._reference.run(handling, before, now_ms)
            if found != first:
                return found
        return first

    def _done(self, turn: _Turn, handling: Handling, effect: Effect | Declined) -> Anomaly | None:
        """Take an effect as committed, or a message as rescheduled."""
        if isinstance(effect, Declined):
            if handling.message.hops >= self._hops_max:
                text = f"{_name(handling)} is the {self._hops_max}th in a row of messages that cause each other"
                return self._wrong("Ends", f"{text}, where it is cut: they go in a circle", last=6)
            if effect.error == LEAVES_LOOP:
                return self._wrong("StaysInside", f"{_name(handling)} starts a thread, a connection or a process")
            if not effect.later:
                name = short(handling.message.identity)
                self.raised.setdefault(name, f"{handling.handler.name} raises {effect.error!r}")
                return None  # what becomes of it is explored
            if turn.round >= ROUND_COUNT_MAX:
                reason = effect.error or "without a reason"
                text = f"{_name(handling)} was rescheduled {turn.round} times, with days in between: Retry, {reason}"
                return self._wrong("Ends", text, last=3)
            self._turns.append(replace(turn, round=turn.round + 1))
            self._now_ms += min(1_000 << turn.round, DAY_MS)  # it may wait for a time
            return None
        if handling.state_id is not None and effect.state is not None:
            self._states[handling.state_id] = effect.state
        turns = [each for output in effect.outputs for each in self._next(turn, output)]
        self._turns.extendleft(reversed(turns))  # what follows from it first: a circle shows soon
        return None

    # Words

    def _wrong(self, promise: str, what: str, *, last: int = 0) -> Anomaly:
        lines = [f"{number:4}  {line}" for number, line in enumerate(self._way, 1)]
        is_cut = 0 < last < len(lines)
        return Anomaly(promise, what, "\n".join(["      ...", *lines[-last:]] if is_cut else lines), len(self._way))

    def _differs(
        self, handling: Handling, first: Effect | Declined, again: Effect | Declined, calls: ProfiledCalls, how: str
    ) -> Anomaly:
        read = f"; it calls {', '.join(calls.names)}" if calls.names else ", and it calls no clock and no chance"
        differences = " and ".join(difference(handling, first, again))
        text = f"{_name(handling)} was run {how}, with the same message and state: {differences}{read}"
        if not calls.names:
            text += ", so it remembers something outside its state, such as a variable of its module"
        return self._wrong("Deterministic", text)


def difference(handling: Handling, first: Effect | Declined, again: Effect | Declined) -> Iterator[str]:
    """The differences between two runs of a handling."""
    if isinstance(first, Declined) or isinstance(again, Declined):
        yield f"first it {_ended(first)}, then it {_ended(again)}"
        return
    if first.state != again.state:
        yield f"first {handling.state_id} became {_shown(first.state)}, then {_shown(again.state)}"
    if first.reply != again.reply:
        yield f"first it answered {_answered(first)}, then {_answered(again)}"
    if len(first.outputs) != len(again.outputs):
        yield f"first it sent {len(first.outputs)} message(s), then {len(again.outputs)}"
    for one, other in zip(first.outputs, again.outputs, strict=False):
        if one != other:
            yield f"first it sent {_sent(one)}, then {_sent(other)}"


def opened(side_effect: SideEffect) -> str:
    """The opened thing, as text."""
    event, _, what = side_effect.key.partition(" ")
    match event:
        case "open":
            return f"opens the file {what}"
        case "socket.connect" | "socket.bind" | "socket.sendto" | "urllib.Request":
            return "opens a connection"
        case "subprocess.Popen" | "os.system" | "os.posix_spawn" | "os.fork" | "os.exec":
            return f"starts a process, {what}" if what else "starts a process"
    return f"does {event} {what}".strip()


def _name(handling: Handling) -> str:
    return f"{handling.handler.name}, handling {short(handling.message.identity)},"


def _at(handling: Handling, before: StoredState | None) -> str:
    return f" at {handling.state_id} = {_shown(before)}" if handling.state_id is not None else ""


def _ended(effect: Effect | Declined) -> str:
    if isinstance(effect, Effect):
        return "ended well"
    return f"raised{' Retry' if effect.later else ''} {effect.error!r}"


def _shown(state: StoredState | None) -> str:
    return "nothing" if state is None or not state.value else state.value.decode(errors="replace")


def _answered(effect: Effect) -> str:
    reply = effect.reply
    return "nothing" if reply is None else f"{reply.status} {reply.body.decode(errors='replace')}"


def _sent(output: Output) -> str:
    body = output.message.body.decode(errors="replace")
    due = f" due at {output.due_ms / 1_000:g}" if output.due_ms else ""
    return f"{output.message.type} {body} to {output.destination}{due}"


STATE_COUNT_MAX = 500_000
COMMIT = "commit "

Outcome = tuple[tuple[str, str], ...]
"""The names and values seen at an end."""


def order_that_shows(scenario: Scenario, *, cpu_s: float) -> tuple[Anomaly | None, Part, str]:
    """Two orders of a scenario's messages with different ends, of as few messages as show it; what stopped the search.

    And the counts of the search.
    """
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
        return None, part, orders.stopped
    message_count = len(whole.messages)
    every = range(message_count + len(whole.requests))
    for count in (1, 2):
        for some in combinations(every, count) if count < len(every) else ():
            messages = [whole.messages[index] for index in some if index < message_count]
            requests = [whole.requests[index - message_count] for index in some if index >= message_count]
            fewer = _Orders(replace(whole, messages=messages, requests=requests), until_s)
            fewer.run()
            if len(fewer.ends) > 1:
                return fewer.anomaly(), part, ""
    return orders.anomaly(), part, ""


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
