"""A broker as a model: peek-lock, competing consumers in any order, copies, delayed and ordered messages.

A send may break off in the middle: some of its messages have arrived, and the sender cannot tell which.  Each arrival
of a message is a copy of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import msgspec

from outbox.ports import Delivery, Output, Settle
from outbox.verify.explorer.models.queues import DELIVERY_COUNT_MAX, LOCK_MS, Dead, QueueModel, Queues, QueueState
from outbox.verify.explorer.ops import NO_LOCKS, Locks, Op, Outcome, Raised, Reach, short

GONE = Raised("LockLost", "the lock is gone; the message was settled or its lock ran out")


class BusState(QueueState, frozen=True):
    """The state of a broker; where copies are distinct, `arrivals` counts those of each message in each queue.

    One that drops duplicates remembers the queue or topic and the broker's id of all that `arrived`.
    """

    arrivals: tuple[tuple[int, int, int], ...] = ()
    arrived: frozenset[tuple[str, str]] = frozenset()


def _describe(op: Op) -> str:
    match op.verb:
        case "send":
            return f"send {', '.join(f'{short(o.message.identity)} to {o.destination}' for o in op.args[0])}"
        case "settle":
            delivery, settle = op.args
            return f"{settle.how} {short(delivery.message.identity)} {settle.reason}".strip()
        case "renew":
            return f"renew {short(op.args[0].message.identity)}"
        case "choose":
            return "decide to resubmit"
        case "dead-letters":
            return f"list the dead letters of {op.args[0]}"
        case "take-dead-letters":
            return f"take a dead letter from {op.args[0]}"
    return "receive"


class BusModel:
    """A model of a message bus; from `closes_ms` on (0: never) it hands out nothing.

    One that `drops_duplicates` takes a message once under each id, as with a window of duplicate detection that does
    not end within the exploration.

    Where `locks_hold` as long as their owners live, what an owner does with its message concerns no other.
    """

    def __init__(
        self,
        queues: Sequence[QueueModel],
        routes: Mapping[str, Sequence[str]],
        *,
        sent: Sequence[Output] = (),
        start_ms: int = 0,
        retentions_ms: Collection[int] = (),
        merges_copies: bool = True,
        locks_hold: bool = False,
        resubmissions: int = 0,
        edits: Sequence[tuple[str, bytes]] = (),
        pauses_max: int = 0,
        drops_duplicates: bool = False,
        delivery_count_max: int = DELIVERY_COUNT_MAX,
        name: str = "bus",
        closes_ms: int = 0,
        describe: Callable[[Op], str] = _describe,
    ) -> None:
        self.name = name
        self.describe = describe
        self.closes_ms = closes_ms
        self.queues = Queues(
            queues,
            routes,
            retentions_ms=retentions_ms,
            merges_copies=merges_copies,
            is_bus=True,
            pauses_max=pauses_max,
            delivery_count_max=delivery_count_max,
            edits=edits,
        )
        self.tokens, self.events, self.due_ms = self.queues.tokens, self.queues.events, self.queues.due_ms
        self.moments_ms, self.show = self.queues.fences_ms, self.queues.show
        self._merges_copies = merges_copies
        self._locks_hold = locks_hold
        self._drops_duplicates = drops_duplicates
        arrived = frozenset((o.destination, o.message.broker_id) for o in sent if drops_duplicates)
        filled = self.queues.filled(sent, start_ms)
        self._initial = self.queues.plain(BusState(filled, (), resubmissions, arrived=arrived))

    def initial(self) -> BusState:
        return self._initial

    def reach(self, verb: str) -> Reach:
        if verb in ("send", "settle", "take-dead-letters"):
            return "write"
        return "take" if verb.startswith("receive") or verb == "choose" else "read"

    def outcomes(self, state: BusState, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        found = self._outcomes(state, op, now_ms, in_use)
        return [outcome._replace(state=self.queues.plain(cast("BusState", outcome.state))) for outcome in found]

    def _outcomes(self, state: BusState, op: Op, now_ms: int, in_use: Locks) -> list[Outcome]:
        if op.verb.startswith("receive"):
            until_ms = min([ms for ms in (self.closes_ms, *op.args[2:3]) if ms], default=now_ms + 1)
            if until_ms <= now_ms:
                return []
        match op.verb:
            case "receive":
                return self.queues.claim(state, [op.args[0]], op.args[1], now_ms, in_use)
            case "receive-any":
                return self.queues.claim(state, op.args[0], op.args[1], now_ms, in_use)
            case "send":
                return self._send(state, op.args[0], now_ms)
            case "settle":
                return [self._settle(state, op.args[0], op.args[1], now_ms)]
            case "choose":
                return self.queues.chosen(state)
            case "dead-letters":
                return [Outcome("", state, self.queues.dead_letters(state, op.args[0]))]
            case "take-dead-letters":
                return [Outcome("", self.queues.without_dead(state, op.args[0], op.args[1]), None)]
        held = self.queues.holder(state, op.args[0]) is not None
        return [Outcome("" if held else "-> lock lost", state, now_ms + LOCK_MS if held else GONE)]

    # Sending

    def _send(self, state: BusState, outputs: Sequence[Output], now_ms: int) -> list[Outcome]:
        for output in outputs:
            if output.destination not in self.queues.routes:
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
        arrived = set(state.arrived)
        for output in outputs:
            if (named := (output.destination, output.message.broker_id)) in arrived:
                continue
            if self._drops_duplicates:
                arrived.add(named)
            for number in self.queues.routes[output.destination]:
                place = number, self.queues.message_number(output.message)
                copy = arrivals.get(place, 0)
                if self._merges_copies:
                    is_read = self.queues.specs[number].is_read
                    if not is_read and any(task.message == place[1] for task in tasks[number]):
                        continue  # how many there are makes no difference
                else:
                    arrivals[place] = copy + 1
                self.queues.put(tasks[number], number, output, now_ms, copy)
        counted = tuple((*place, count) for place, count in sorted(arrivals.items()))
        return BusState(tuple(map(tuple, tasks)), state.dead, state.resubmissions, counted, frozenset(arrived))

    def is_private(self, op: Op) -> bool:
        if op.verb == "send":
            numbers = [number for output in op.args[0] for number in self.queues.routes.get(output.destination, (-1,))]
            return all(number >= 0 and not self.queues.specs[number].is_read for number in numbers)
        return self._locks_hold and op.verb == "settle" and op.args[1].how in ("complete", "dead-letter")

    def is_spent(self, state: BusState, op: Op) -> bool:
        """A settlement whose lock is gone."""
        return op.verb == "settle" and self.queues.holder(state, op.args[0]) is None

    # Settling

    def _settle(self, state: BusState, delivery: Delivery, settle: Settle, now_ms: int) -> Outcome:
        index = self.queues.holder(state, delivery)
        if index is None:
            return Outcome("-> lock lost", state, GONE)
        number = self.queues.numbers[delivery.queue]
        task = state.tasks[number][index]
        match settle.how:
            case "release":
                ordered = self.queues.specs[number].is_ordered and settle.due_ms > now_ms
                rest = {"due_ms": settle.due_ms, "rests": ordered} if settle.due_ms else {}
                return Outcome("", self.queues.changed(state, number, index, is_locked=False, **rest), None)
            case "abandon":
                if not settle.due_ms:
                    return Outcome("", self.queues.lapsed(state, number, index), None)
                again = {
                    "failures": task.failures + 1,
                    "due_ms": settle.due_ms,
                    "rests": self.queues.specs[number].is_ordered,
                }
                return Outcome("", self.queues.changed(state, number, index, is_locked=False, **again), None)
        tasks = [list(queue) for queue in state.tasks]
        del tasks[number][index]
        died = [Dead(number, task.message, settle.reason, task.failures + 1)] if settle.how == "dead-letter" else []
        dead = tuple(sorted((*state.dead, *died)))
        return Outcome("", msgspec.structs.replace(state, tasks=tuple(map(tuple, tasks)), dead=dead), None)
