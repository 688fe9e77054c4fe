"""A broker as a model: peek-lock, competing consumers in any order, copies, delayed and ordered messages.

A send may break off in the middle: some of its messages have arrived, and the sender cannot tell which.  Each arrival
of a message is a copy of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import cast

import msgspec

from outbox.message import Message
from outbox.ports import Delivery, Output, Settle
from outbox.verify.explorer.models.queues import LOCK_MS, Dead, QueueModel, Queues, QueueState, State, Task
from outbox.verify.explorer.ops import NO_LOCKS, Locks, Op, Outcome, Raised, Reach
from outbox.verify.explorer.trace_text import short

GONE = Raised("LockLost", "the lock is gone; the message was settled or its lock ran out")


NAME_COUNT = 1_000
"""So many names there are for the deliveries of one message."""


class BusState(QueueState, frozen=True):
    """What a broker holds; where copies are distinct, `arrivals` counts those of each message in each queue."""

    arrivals: tuple[tuple[int, int, int], ...] = ()


class BusModel(Queues):
    """What a message bus does.

    Where `locks_hold` as long as their owners live, what an owner does with its message is nobody else's business.
    """

    name = "bus"

    def __init__(
        self,
        queues: Sequence[QueueModel],
        routes: Mapping[str, Sequence[str]],
        *,
        sent: Sequence[Output] = (),
        start_ms: int = 0,
        retention_ms: int = 0,
        merges_copies: bool = True,
        locks_hold: bool = False,
        resubmissions: int = 0,
        pauses_max: int = 0,
    ) -> None:
        super().__init__(
            queues,
            routes,
            retention_ms=retention_ms,
            merges_copies=merges_copies,
            is_bus=True,
            pauses_max=pauses_max,
        )
        self._locks_hold = locks_hold
        self._initial = self._plain(BusState(self.filled(sent, start_ms), (), resubmissions))

    def initial(self) -> BusState:
        return self._initial

    def reach(self, verb: str) -> Reach:
        if verb in ("send", "settle", "unbury"):
            return "write"
        return "take" if verb.startswith("receive") or verb == "choose" else "read"

    def outcomes(self, state: BusState, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        found = self._outcomes(state, op, now_ms, in_use)
        return [outcome._replace(state=self._plain(cast("BusState", outcome.state))) for outcome in found]

    def _outcomes(self, state: BusState, op: Op, now_ms: int, in_use: Locks) -> list[Outcome]:
        match op.verb:
            case "receive":
                return self.claim(state, [op.args[0]], op.args[1], now_ms, in_use)
            case "receive-any":
                return self.claim(state, op.args[0], op.args[1], now_ms, in_use)
            case "send":
                return self._send(state, op.args[0], now_ms)
            case "settle":
                return [self._settle(state, op.args[0], op.args[1], now_ms)]
            case "choose":
                return self.chosen(state)
            case "letters":
                return [Outcome("", state, self.letters(state, op.args[0]))]
            case "unbury":
                return [Outcome("", self.unburied(state, op.args[0], op.args[1]), None)]
        held = self.holder(state, op.args[0]) is not None
        return [Outcome("" if held else "-> lock lost", state, now_ms + LOCK_MS if held else GONE)]

    # Names

    def _locked(self, number: int, task: Task, in_use: Set[Hashable]) -> Task:
        if not self._merges_copies:
            return super()._locked(number, task, in_use)
        names = ((task.message * NAME_COUNT + lock, lock) for lock in range(1, NAME_COUNT))
        sequence, lock = next(name for name in names if (number, *name) not in in_use)
        return msgspec.structs.replace(task, is_locked=True, sequence=sequence, lock=lock)

    def _plain(self, state: State) -> State:
        """The same without the names of messages that nobody holds, and in one order where order means nothing."""
        if not self._merges_copies:
            return state
        tasks = []
        for queue, found in zip(self.queues, state.tasks, strict=True):
            plain = [t if t.is_locked else msgspec.structs.replace(t, sequence=0, lock=0) for t in found]
            tasks.append(tuple(plain if queue.is_ordered else sorted(plain, key=msgspec.structs.astuple)))
        return msgspec.structs.replace(state, tasks=tuple(tasks))

    def _distinct(self, tasks: Sequence[Task], ready: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return list({tasks[index]: (number, index) for number, index in reversed(ready)}.values())[::-1]

    def lapsed(self, state: State, number: int, index: int) -> State:
        return self._plain(super().lapsed(state, number, index))

    # Sending

    def _send(self, state: BusState, outputs: Sequence[Output], now_ms: int) -> list[Outcome]:
        for output in outputs:
            if output.destination not in self.routes:
                text = f"queue or topic {output.destination!r} does not exist"
                return [Outcome("-> unknown destination", state, Raised("UnknownDestination", text))]
        found = [Outcome("", self._sent(state, outputs, now_ms), None, note=len(outputs))]
        unknown = Raised("OutcomeUnknown", "the connection broke while sending")
        for count in range(1, len(outputs)):
            label = f"-> only {count} arrived, the connection broke"
            found.append(Outcome(label, self._sent(state, outputs[:count], now_ms), unknown, "lost", note=count))
        return found

    def _sent(self, state: BusState, outputs: Sequence[Output], now_ms: int) -> BusState:
        tasks = [list(queue) for queue in state.tasks]
        arrivals = {(queue, message): count for queue, message, count in state.arrivals}
        for output in outputs:
            for number in self.routes[output.destination]:
                place = number, self.message_number(output.message)
                copy = arrivals.get(place, 0)
                if self._merges_copies:
                    if not self.queues[number].is_read and any(task.message == place[1] for task in tasks[number]):
                        continue  # nobody will ever tell how many there are
                else:
                    arrivals[place] = copy + 1
                self.put(tasks[number], number, output, now_ms, copy)
        counted = tuple((*place, count) for place, count in sorted(arrivals.items()))
        return BusState(tuple(map(tuple, tasks)), state.dead, state.resubmissions, counted)

    def is_private(self, op: Op) -> bool:
        if op.verb == "send":
            numbers = [number for output in op.args[0] for number in self.routes.get(output.destination, (-1,))]
            return all(number >= 0 and not self.queues[number].is_read for number in numbers)
        return self._locks_hold and op.verb == "settle" and op.args[1].how in ("complete", "dead-letter")

    def is_spent(self, state: BusState, op: Op) -> bool:
        """A settlement whose lock is gone."""
        return op.verb == "settle" and self.holder(state, op.args[0]) is None

    def lies(self, state: BusState, path: str, identity: str, but: int = -1) -> bool:
        """Whether a copy of a message lies in a queue, other than the one of sequence `but`."""
        return any(
            self.messages[task.message].identity == identity and task.sequence != but
            for task in state.tasks[self.numbers[path]]
        )

    # Settling

    def _settle(self, state: BusState, delivery: Delivery, settle: Settle, now_ms: int) -> Outcome:
        index = self.holder(state, delivery)
        if index is None:
            return Outcome("-> lock lost", state, GONE)
        number = self.place(delivery)
        task = state.tasks[number][index]
        match settle.how:
            case "release":
                ordered = self.queues[number].is_ordered and settle.due_ms > now_ms
                rest = {"due_ms": settle.due_ms, "rests": ordered} if settle.due_ms else {}
                return Outcome("", self.changed(state, number, index, is_locked=False, **rest), None)
            case "abandon":
                if not settle.due_ms:
                    return Outcome("", self.lapsed(state, number, index), None)
                again = {
                    "failures": task.failures + 1,
                    "due_ms": settle.due_ms,
                    "rests": self.queues[number].is_ordered,
                }
                return Outcome("", self.changed(state, number, index, is_locked=False, **again), None)
        tasks = [list(queue) for queue in state.tasks]
        del tasks[number][index]
        dead = state.dead
        if settle.how == "dead-letter":
            dead = tuple(sorted((*dead, Dead(number, task.message, settle.reason, task.failures + 1))))
        return Outcome("", msgspec.structs.replace(state, tasks=tuple(map(tuple, tasks)), dead=dead), None)

    def moments_ms(self, state: BusState, now_ms: int) -> tuple[int, ...]:
        return self.fences_ms(state, now_ms)

    def show(self, state: BusState, now_ms: int) -> list[str]:
        return self.show_queues(state, now_ms)

    def describe(self, op: Op) -> str:
        match op.verb:
            case "send":
                return f"send {', '.join(_output(output) for output in op.args[0])}"
            case "settle":
                delivery, settle = op.args
                return f"{settle.how} {_message(delivery.message)} {settle.reason}".strip()
            case "renew":
                return f"renew {_message(op.args[0].message)}"
            case "choose":
                return "decide to resubmit"
            case "letters":
                return f"list the dead letters of {op.args[0]}"
            case "unbury":
                return f"take a dead letter from {op.args[0]}"
        return "receive"


def _output(output: Output) -> str:
    return f"{_message(output.message)} to {output.destination}"


def _message(message: Message) -> str:
    return short(message.identity)
