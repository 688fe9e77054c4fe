"""Queues as values: what both the engine and a broker do with messages, locks and order.

Sequences and locks are numbers that do not depend on the order in which others act, so that worlds which differ in
that order only are one: a sequence follows from the message's identity, a lock counts the claims of its message.  A
claim gives any of the messages that are ready, not the oldest; of an ordered queue the head of each free session.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import DeadLetterEntry, Delivery, Output
from outbox.resubmission import edited
from outbox.verify.explorer.ops import NO_LOCKS, Event, Locks, Outcome, Table, canonical, delivery_text, short

LOCK_MS = 60_000
NEVER_MS = 1 << 62
"""When a message is due that an exploration leaves out."""
OVER_DELIVERED = "MaxDeliveryCountExceeded"
"""Why a broker takes a message away whose lock has run out too often."""
DELIVERY_COUNT_MAX = 100
LOCK_COUNT = 16
"""The claims of a message after which its lock names repeat, so that endless abandoning has finitely many worlds.

No process keeps a lock that ran out through so many others.
"""
NAME_COUNT = 1_000


class Task(msgspec.Struct, frozen=True, gc=False):
    """A message in a queue; `message` is its number, `lock` how often it was claimed."""

    sequence: int
    message: int
    enqueued_ms: int
    due_ms: int = 0
    is_locked: bool = False
    lock: int = 0
    delivery_count: int = 0
    failures: int = 0
    from_outside: bool = True
    has_digest: bool = True
    """Whether the queue knows the digest of the sent message, as of one that came from outside first."""
    rests: bool = False
    """Whether it was abandoned with a delay in an ordered queue: its session waits with it."""
    is_shown: bool = False
    """Whether it was delivered while its session is blocked; it is delivered again when the session is unblocked."""


class Dead(msgspec.Struct, frozen=True, gc=False, order=True):
    """A dead letter."""

    queue: int
    message: int
    reason: str
    failures: int
    stops_key: bool = False


class QueueState(msgspec.Struct, frozen=True):
    """The messages in the queues, by queue, in order where the queue has one; and the dead letters."""

    tasks: tuple[tuple[Task, ...], ...]
    dead: tuple[Dead, ...] = ()
    resubmissions: int = 0
    """How many dead letters may still be resubmitted."""


@dataclass(frozen=True, slots=True)
class QueueModel:
    """A queue or subscription; `is_read` says that workers claim from it."""

    path: str
    is_ordered: bool = False
    is_read: bool = True


Claim = tuple[tuple[int, int], ...]
"""The places of messages that are claimed together: (queue, index), in the order in which they are handed out."""

State = TypeVar("State", bound=QueueState)


class Queues:
    """A model of queues: the part that the engine and a broker have in common.

    Messages that schedule each other without end are followed over so many pauses (`pauses_max`, 0: all) and no
    further: what is due behind them lies there and is never due.
    """

    def __init__(
        self,
        queues: Sequence[QueueModel],
        routes: Mapping[str, Sequence[str]],
        *,
        retentions_ms: Collection[int] = (),
        merges_copies: bool = True,
        is_bus: bool = False,
        pauses_max: int = 0,
        delivery_count_max: int = DELIVERY_COUNT_MAX,
        edits: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Take the parts; an operator may give messages of an identity the bodies that `edits` have for it."""
        self._edits = tuple(edits)
        self._delivery_count_max = delivery_count_max
        self.specs = tuple(queues)
        self.messages: Table[Message] = Table()
        self.numbers = {queue.path: number for number, queue in enumerate(self.specs)}
        self.routes = {name: tuple(self.numbers[path] for path in paths) for name, paths in routes.items()}
        self._retentions_ms = retentions_ms
        self._merges_copies = merges_copies
        self._is_bus = is_bus
        self._names_locks = is_bus and merges_copies
        """Whether a lock is the smallest name not in use, and a message that is not held has none."""
        self._pauses_max = pauses_max
        self._pauses: dict[str, int] = {}
        """How many pauses lie before each message, by identity: one that is scheduled begins its chain anew."""

    def filled(self, sent: Sequence[Output], start_ms: int) -> tuple[tuple[Task, ...], ...]:
        """The queues with the messages sent to them from outside."""
        tasks: list[list[Task]] = [[] for _ in self.specs]
        for index, output in enumerate(sent, start=1):
            for number in self.routes[output.destination]:
                message = self.message_number(output.message)
                tasks[number].append(Task(index, message, max(output.due_ms, start_ms), output.due_ms))
        return tuple(map(tuple, tasks))

    def message_number(self, message: Message) -> int:
        """The number of a message."""
        return self.messages.number(canonical(message), message)

    # Dead letters

    def chosen(self, state: State) -> list[Outcome]:
        """The choices of a resubmission: a dead letter's queue, its number, and an edit of it or None."""
        if not state.resubmissions:
            return []
        after = msgspec.structs.replace(state, resubmissions=state.resubmissions - 1)
        found = dict.fromkeys((self.specs[dead.queue].path, dead.message) for dead in state.dead)
        return [
            Outcome(f"-> {short(self.messages[message].identity)} of {path}{how}", after, (path, message, edit))
            for path, message in found
            for how, edit in self._ways(self.messages[message])
        ]

    def _ways(self, message: Message) -> list[tuple[str, Message | None]]:
        bodies = [body for identity, body in self._edits if identity == message.identity and body != message.body]
        return [("", None), *((f", edited: {body.decode()}", edited(message, body)) for body in bodies)]

    def dead_letters(self, state: QueueState, path: str) -> tuple[DeadLetterEntry, ...]:
        """The dead letters of a queue; copies have one number."""
        found = [dead for dead in state.dead if dead.queue == self.numbers[path]]
        return tuple(
            DeadLetterEntry(path, dead.message, self.messages[dead.message], dead.reason, "", dead.failures, 0)
            for dead in found
        )

    def without_dead(self, state: State, path: str, numbers: Sequence[int]) -> State:
        """Remove some dead letters, of each number as many as its count in `numbers`."""
        left = list(state.dead)
        for number in numbers:
            found = next((d for d in left if (d.queue, d.message) == (self.numbers[path], number)), None)
            if found is not None:
                left.remove(found)
        return msgspec.structs.replace(state, dead=tuple(left))

    # Claiming

    def claim(
        self, state: State, paths: Sequence[str], count_max: int, now_ms: int, in_use: Locks = NO_LOCKS
    ) -> list[Outcome]:
        """Every way to claim up to `count_max` messages of some queues."""
        if count_max != 1:
            return [self.claimed(state, run, now_ms, in_use) for run in self._runs(state, paths, count_max, now_ms)]
        ready = (choice for path in paths for choice in self._ready(state, self.numbers[path], now_ms))
        return [self.claimed(state, (choice,), now_ms, in_use) for choice in ready]

    def _runs(self, state: QueueState, paths: Sequence[str], count_max: int, now_ms: int) -> list[Claim]:
        """Every choice and order of up to `count_max` messages; those of one session stay together and in order."""
        units: list[list[Claim]] = []
        for number in (self.numbers[path] for path in paths):
            for place in self._ready(state, number, now_ms):
                if not self.specs[number].is_ordered:
                    units.append([(place,)])
                    continue
                session, queue = self.session(state, *place), state.tasks[number]
                line = [i for i in range(len(queue)) if self.session(state, number, i) == session]
                line = [i for i in line if queue[i].due_ms <= now_ms][:count_max]
                units.append([tuple((number, i) for i in line[:n]) for n in range(1, len(line) + 1)])
        return list(selections(units, count_max))

    def _ready(self, state: QueueState, number: int, now_ms: int) -> list[tuple[int, int]]:
        """The places of the messages that can be claimed now: of an ordered queue the head of each free session."""
        tasks = state.tasks[number]
        if not self.specs[number].is_ordered:
            ready = [(number, i) for i, task in enumerate(tasks) if not task.is_locked and task.due_ms <= now_ms]
            return self._distinct(tasks, ready) if self._merges_copies else ready
        closed = self.blocked(state, number)
        closed |= {self.session(state, number, i) for i, task in enumerate(tasks) if task.is_locked}
        closed |= {self.session(state, number, i) for i, t in enumerate(tasks) if t.rests and t.due_ms > now_ms}
        found = []
        for i, task in enumerate(tasks):
            session = self.session(state, number, i)
            if session not in closed and task.due_ms <= now_ms:
                closed.add(session)
                found.append((number, i))
        return found

    def blocked(self, state: QueueState, number: int) -> set[str]:
        """The sessions of a queue that are blocked behind a dead letter."""
        return {
            self.messages[dead.message].session_id for dead in state.dead if dead.queue == number and dead.stops_key
        }

    def _distinct(self, tasks: Sequence[Task], ready: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The places of different tasks: of copies that were never handed out any may be taken."""
        if self._names_locks:
            return list({tasks[index]: (number, index) for number, index in reversed(ready)}.values())[::-1]
        untouched: set[int] = set()
        found = []
        for place in ready:
            task = tasks[place[1]]
            if task.lock or task.message not in untouched:
                found.append(place)
            if not task.lock:
                untouched.add(task.message)
        return found

    def session(self, state: QueueState, number: int, index: int) -> str:
        """The session of the message at a place."""
        return self.messages[state.tasks[number][index].message].session_id

    def claimed(self, state: State, run: Claim, now_ms: int, in_use: Locks, *, waits: bool = False) -> Outcome:
        """The outcome of a claim; it `waits` behind a blocked session."""
        tasks = list(state.tasks)
        deliveries = []
        taken = {*in_use, *((n, t.sequence, t.lock) for n, queue in enumerate(tasks) for t in queue if t.is_locked)}
        for number, index in run:
            queue = list(tasks[number])
            queue[index] = task = self._locked(number, queue[index], taken)
            tasks[number] = tuple(queue)
            taken.add((number, task.sequence, task.lock))
            deliveries.append(self._delivery(number, task, now_ms, waits=waits))
        label = ", ".join(delivery_text(delivery) for delivery in deliveries)
        return Outcome(f"-> {label}", msgspec.structs.replace(state, tasks=tuple(tasks)), tuple(deliveries))

    def _locked(self, number: int, task: Task, in_use: Set[Hashable]) -> Task:
        if not self._names_locks:
            return msgspec.structs.replace(task, is_locked=True, lock=task.lock % LOCK_COUNT + 1)
        names = ((task.message * NAME_COUNT + lock, lock) for lock in range(1, NAME_COUNT))
        sequence, lock = next(name for name in names if (number, *name) not in in_use)
        return msgspec.structs.replace(task, is_locked=True, sequence=sequence, lock=lock)

    def plain(self, state: State) -> State:
        """The same without the names of messages that are not held, and in one order where order means nothing."""
        if not self._names_locks:
            return state
        tasks = []
        for queue, found in zip(self.specs, state.tasks, strict=True):
            plain = [t if t.is_locked else msgspec.structs.replace(t, sequence=0, lock=0) for t in found]
            tasks.append(tuple(plain if queue.is_ordered else sorted(plain, key=msgspec.structs.astuple)))
        return msgspec.structs.replace(state, tasks=tuple(tasks))

    def _delivery(self, number: int, task: Task, now_ms: int, *, waits: bool = False) -> Delivery:
        message = self.messages[task.message]
        return Delivery(
            self.specs[number].path,
            task.sequence,
            message,
            task.lock,
            task.enqueued_ms,
            now_ms + LOCK_MS,
            task.delivery_count + (task.failures if self._is_bus else 0),
            0 if self._is_bus else task.failures,
            task.from_outside,
            fingerprint(message.body, message.type) if task.has_digest else b"",
            waits,
        )

    def tokens(self, result: Any) -> frozenset[Hashable]:
        if not isinstance(result, tuple) or not result or not isinstance(result[0], Delivery):
            return frozenset()
        return frozenset((self.numbers[d.queue], d.sequence, d.lock) for d in result)

    def holder(self, state: QueueState, delivery: Delivery) -> int | None:
        """Where the task of a delivery is, while its lock is held."""
        for index, task in enumerate(state.tasks[self.numbers[delivery.queue]]):
            if task.sequence == delivery.sequence:
                return index if task.is_locked and task.lock == delivery.lock else None
        return None

    def release(self, state: State, deliveries: Sequence[Delivery]) -> State:
        """The queues without the locks of some deliveries."""
        for delivery in deliveries:
            index = self.holder(state, delivery)
            if index is not None:
                state = self.changed(state, self.numbers[delivery.queue], index, is_locked=False)
        return state

    @staticmethod
    def changed(state: State, number: int, index: int, **fields: Any) -> State:
        """The queues with other fields of the task at a place."""
        queue = list(state.tasks[number])
        queue[index] = msgspec.structs.replace(queue[index], **fields)
        tasks = list(state.tasks)
        tasks[number] = tuple(queue)
        return msgspec.structs.replace(state, tasks=tuple(tasks))

    # What is put in and taken out

    @staticmethod
    def taken(queue: list[Task], delivery: Delivery) -> tuple[int, Task]:
        """Take a delivery's task out of its queue; where it was."""
        index = next(i for i, task in enumerate(queue) if task.sequence == delivery.sequence)
        return index, queue.pop(index)

    def put(self, queue: list[Task], number: int, output: Output, now_ms: int, copy: int = 0) -> None:
        """Put an output into a queue; `copy` tells it from others of its identity."""
        message = self.message_number(output.message)
        name = b"%d/%d/%b" % (number, copy, canonical(output.message))
        sequence = int.from_bytes(sha256(name).digest()[:6], "big")
        is_remembered = self._is_bus or output.due_ms > 0  # a scheduled message may be cancelled
        kind = {"from_outside": is_remembered, "has_digest": is_remembered}
        due_ms = NEVER_MS if self._is_beyond(output.message) else output.due_ms
        queue.append(Task(sequence, message, max(output.due_ms, now_ms), due_ms, **kind))
        if not self.specs[number].is_ordered:
            queue.sort(key=lambda task: task.sequence)

    def _is_beyond(self, message: Message) -> bool:
        """Whether a message lies behind more pauses than are followed."""
        if not self._pauses_max:
            return False
        before = self._pauses.get(message.causation_id, 0)
        begins_anew = bool(message.causation_id) and message.hops == 0
        return self._pauses.setdefault(message.identity, before + begins_anew) > self._pauses_max

    def is_left_out(self, state: QueueState, path: str, identity: str) -> bool:
        """Whether a message in a queue is due behind everything that is explored."""
        tasks = state.tasks[self.numbers[path]]
        return any(task.due_ms == NEVER_MS and self.messages[task.message].identity == identity for task in tasks)

    def is_there(self, state: QueueState, path: str, identity: str, but: int = -1) -> bool:
        """Whether a copy of a message is in a queue, other than the one of sequence `but`."""
        tasks = state.tasks[self.numbers[path]]
        return any(self.messages[task.message].identity == identity and task.sequence != but for task in tasks)

    # What happens by itself

    def events(self, state: QueueState, now_ms: int) -> list[Event]:
        found = []
        for number, queue in enumerate(state.tasks):
            for index, task in enumerate(queue):
                if task.is_locked:
                    label = f"the lock on {self.messages[task.message].identity} runs out"
                    token = (number, task.sequence, task.lock)
                    found.append(Event(label, self.plain(self.lapsed(state, number, index)), token, "expire"))
        return found

    def lapsed(self, state: State, number: int, index: int) -> State:
        """The queues when the lock at a place has run out."""
        task = state.tasks[number][index]
        count = task.delivery_count + 1
        if count < self._delivery_count_max:
            return self.changed(state, number, index, is_locked=False, delivery_count=count)
        tasks = list(state.tasks)
        tasks[number] = tasks[number][:index] + tasks[number][index + 1 :]
        dead = tuple(sorted((*state.dead, Dead(number, task.message, OVER_DELIVERED, task.failures))))
        return msgspec.structs.replace(state, tasks=tuple(tasks), dead=dead)

    def due_ms(self, state: QueueState, now_ms: int) -> int | None:
        times = [task.due_ms for queue in state.tasks for task in queue if now_ms < task.due_ms < NEVER_MS]
        return min(times, default=None)

    def fences_ms(self, state: QueueState, now_ms: int) -> tuple[int, ...]:
        """When messages grow too old."""
        created_ms = {self.messages[task.message].created_ms for queue in state.tasks for task in queue}
        fences = {made_ms + retention_ms for made_ms in created_ms for retention_ms in self._retentions_ms}
        return tuple(sorted(fence for fence in fences if fence > now_ms))

    def show(self, state: QueueState, now_ms: int) -> list[str]:
        """Show the messages in the queues, a line a queue."""
        found = [
            f"{queue.path}: {', '.join(self._shown(task, now_ms) for task in tasks)}"
            for queue, tasks in zip(self.specs, state.tasks, strict=True)
            if tasks
        ]
        dead = [
            f"{short(self.messages[d.message].identity)} ({d.reason}) from {self.specs[d.queue].path}"
            for d in state.dead
        ]
        return [*found, *(f"dead letter: {line}" for line in dead)]

    def _shown(self, task: Task, now_ms: int) -> str:
        name = short(self.messages[task.message].identity)
        return f"{name} locked" if task.is_locked else f"{name} due later" if task.due_ms > now_ms else name


def selections(units: Sequence[list[Claim]], room: int) -> Iterator[Claim]:
    """Every way to take one option each of some units, in any order, with up to `room` places in all."""
    for index, unit in enumerate(units):
        others = [*units[:index], *units[index + 1 :]]
        for option in unit:
            if len(option) <= room:
                yield option
                for rest in selections(others, room - len(option)):
                    yield option + rest
