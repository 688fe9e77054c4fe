"""Every handling alone, in turn: whether a second run does the same, and whether its message ends.

What shows in one handling is reported here, in terms of the handler, before anything is explored: an exploration
would find it too, as port calls that differ.  Each handling is run twice at the same state; what it changes and sends
is then taken as done, and what it sends is handled in its turn.  The functions that it calls are listened to, so that
the clock or the chance that has a say is named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from outbox.message import Message
from outbox.ports import Output
from outbox.runtime.start.plan import compile_app
from outbox.verify.explorer.ops import short
from outbox.verify.explorer.run import ProgramSpins
from outbox.verify.explorer.scenario import START_MS, Scenario, queues_of
from outbox.verify.findings.nondeterminism import AHEADS, ProfiledCalls, shifted_clock
from outbox.verify.findings.report import Anomaly
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
from outbox.verify.promises.responses import handling_of

HANDLING_COUNT_MAX = 1_000
"""The number of handlings rehearsed; further ones are explored, or are a circle that ends by its hops."""

PAUSE_COUNT_MAX = 64
"""Over how many pauses messages may schedule each other before that is taken to have no end."""

PAUSES_FOLLOWED = 3
"""Over how many pauses messages without an end are explored."""

ROUND_COUNT_MAX = 50
"""How often a message may be rescheduled."""

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
        """The turns of what a handling sends."""
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
