"""The embedded engine as a model: queues, states and markers under one log.

Sequences, locks and versions are numbers that do not depend on the order in which others act, so that worlds which
differ in that order only are one: a sequence follows from the message's identity, a lock counts the claims of its
message, a version those of its document.  A claim gives any of the messages that are ready, not the oldest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import permutations
from typing import Any

import msgspec

from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import Commit, Conflict, Delivery, Marker, Output, Refusal, StateDocument
from outbox.verify.models.told import said, told
from outbox.verify.ops import Event, Op, Outcome, Raised, Reach, Table, canonical

LOCK_MS = 60_000
DELIVERY_COUNT_MAX = 100


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
    rests: bool = False
    """Given back with a delay in an ordered queue: nothing of its session overtakes it."""


class Dead(msgspec.Struct, frozen=True, gc=False, order=True):
    """A dead letter."""

    queue: int
    message: int
    reason: str
    failures: int
    stops_key: bool = False


class JournalState(msgspec.Struct, frozen=True):
    """All that the engine remembers; tasks by queue, in their order where the queue has one."""

    tasks: tuple[tuple[Task, ...], ...]
    documents: tuple[tuple[str, StateDocument], ...] = ()
    markers: tuple[tuple[bytes, Marker, int], ...] = ()
    dead: tuple[Dead, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueModel:
    """A queue or subscription; `is_read` says that workers claim from it."""

    path: str
    is_ordered: bool = False
    is_read: bool = True


class JournalModel:
    """What the engine's journal does."""

    name = "journal"

    def __init__(
        self,
        queues: Sequence[QueueModel],
        routes: Mapping[str, Sequence[str]],
        *,
        documents: Mapping[str, StateDocument] | None = None,
        sent: Sequence[Output] = (),
        start_ms: int = 0,
        retention_ms: int = 0,
        merges_copies: bool = True,
    ) -> None:
        self._retention_ms = retention_ms
        self.queues = tuple(queues)
        self._merges_copies = merges_copies
        self.messages: Table[Message] = Table()
        self._numbers = {queue.path: number for number, queue in enumerate(self.queues)}
        self._routes = {name: tuple(self._numbers[path] for path in paths) for name, paths in routes.items()}
        tasks: list[list[Task]] = [[] for _ in self.queues]
        for index, output in enumerate(sent, start=1):
            for number in self._routes[output.destination]:
                message = self.message_number(output.message)
                tasks[number].append(Task(index, message, max(output.due_ms, start_ms), output.due_ms))
        known = tuple(sorted((documents or {}).items()))
        self._initial = JournalState(tuple(map(tuple, tasks)), known)

    def initial(self) -> JournalState:
        return self._initial

    def message_number(self, message: Message) -> int:
        """The number of a message."""
        return self.messages.number(canonical(message), message)

    def reach(self, verb: str) -> Reach:
        return "write" if verb == "commit" else "take" if verb == "claim" else "read"

    def outcomes(self, state: JournalState, op: Op, now_ms: int) -> list[Outcome]:
        match op.verb:
            case "claim":
                return self._claim(state, op.args[0], op.args[1], now_ms)
            case "load":
                return [Outcome("", state, self._load(state, op.args[0], op.args[1], now_ms))]
            case "commit":
                return [self._commit(state, op.args[0], now_ms)]
            case "renew":
                held = sum(self._holder(state, delivery) is not None for delivery in op.args[0])
                return [Outcome(f"-> {held} held", state, held)]
            case "release":
                return [Outcome("", self._release(state, op.args[0]), None)]
        return [Outcome("", state, None)]

    # Claiming

    def _claim(self, state: JournalState, paths: Sequence[str], count_max: int, now_ms: int) -> list[Outcome]:
        runs: list[tuple[tuple[int, int], ...]]
        if count_max == 1:
            runs = [(choice,) for path in paths for choice in self._ready(state, self._numbers[path], now_ms)]
        else:
            runs = self._runs(state, paths, count_max, now_ms)
        return [self._claimed(state, run, now_ms) for run in runs]

    def _runs(
        self, state: JournalState, paths: Sequence[str], count_max: int, now_ms: int
    ) -> list[tuple[tuple[int, int], ...]]:
        """Every choice and order of up to `count_max` messages; those of one session stay in order."""
        found: list[tuple[tuple[int, int], ...]] = []
        singles: list[tuple[int, int]] = []
        for number in (self._numbers[path] for path in paths):
            if not self.queues[number].is_ordered:
                singles += self._ready(state, number, now_ms)
                continue
            for head in self._ready(state, number, now_ms):
                session = self._session(state, number, head[1])
                line = [i for i in range(len(state.tasks[number])) if self._session(state, number, i) == session]
                line = [i for i in line if state.tasks[number][i].due_ms <= now_ms]
                found += [tuple((number, i) for i in line[:n]) for n in range(1, min(count_max, len(line)) + 1)]
        for count in range(1, min(count_max, len(singles)) + 1):
            found += permutations(singles, count)
        return found

    def _ready(self, state: JournalState, number: int, now_ms: int) -> list[tuple[int, int]]:
        """The places of the messages that can be claimed now: of an ordered queue the head of each free session."""
        tasks = state.tasks[number]
        if not self.queues[number].is_ordered:
            ready = [(number, i) for i, task in enumerate(tasks) if not task.is_locked and task.due_ms <= now_ms]
            return self._told_apart(tasks, ready) if self._merges_copies else ready
        closed = {
            self.messages[dead.message].session_id for dead in state.dead if dead.queue == number and dead.stops_key
        }
        closed |= {self._session(state, number, i) for i, task in enumerate(tasks) if task.is_locked}
        found = []
        for i, task in enumerate(tasks):
            session = self._session(state, number, i)
            if session not in closed and (task.due_ms <= now_ms or task.rests):
                closed.add(session)
                if task.due_ms <= now_ms:
                    found.append((number, i))
        return found

    @staticmethod
    def _told_apart(tasks: Sequence[Task], ready: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those that differ: of copies that nobody has had yet it does not matter which is taken."""
        untouched: set[int] = set()
        found = []
        for place in ready:
            task = tasks[place[1]]
            if task.lock or task.message not in untouched:
                found.append(place)
            if not task.lock:
                untouched.add(task.message)
        return found

    def _session(self, state: JournalState, number: int, index: int) -> str:
        return self.messages[state.tasks[number][index].message].session_id

    def _claimed(self, state: JournalState, run: Sequence[tuple[int, int]], now_ms: int) -> Outcome:
        tasks = list(state.tasks)
        deliveries = []
        for number, index in run:
            queue = list(tasks[number])
            task = queue[index]
            queue[index] = task = msgspec.structs.replace(task, is_locked=True, lock=task.lock + 1)
            tasks[number] = tuple(queue)
            deliveries.append(self._delivery(number, task, now_ms))
        label = ", ".join(told(delivery) for delivery in deliveries)
        return Outcome(f"-> {label}", msgspec.structs.replace(state, tasks=tuple(tasks)), tuple(deliveries))

    def _delivery(self, number: int, task: Task, now_ms: int) -> Delivery:
        message = self.messages[task.message]
        return Delivery(
            self.queues[number].path,
            task.sequence,
            message,
            task.lock,
            task.enqueued_ms,
            now_ms + LOCK_MS,
            task.delivery_count,
            task.failures,
            task.from_outside,
            fingerprint(message.body, message.type) if task.from_outside else b"",
        )

    def tokens(self, result: Any) -> frozenset[Hashable]:
        if not isinstance(result, tuple) or not result or not isinstance(result[0], Delivery):
            return frozenset()
        return frozenset((self._numbers[d.queue], d.sequence, d.lock) for d in result)

    def _holder(self, state: JournalState, delivery: Delivery) -> int | None:
        """Where the task of a delivery is, while its lock is held."""
        for index, task in enumerate(state.tasks[self._numbers[delivery.queue]]):
            if task.sequence == delivery.sequence:
                return index if task.is_locked and task.lock == delivery.lock else None
        return None

    def _release(self, state: JournalState, deliveries: Sequence[Delivery]) -> JournalState:
        for delivery in deliveries:
            index = self._holder(state, delivery)
            if index is not None:
                number = self._numbers[delivery.queue]
                state = self._changed(state, number, index, is_locked=False)
        return state

    @staticmethod
    def _changed(state: JournalState, number: int, index: int, **fields: Any) -> JournalState:
        queue = list(state.tasks[number])
        queue[index] = msgspec.structs.replace(queue[index], **fields)
        tasks = list(state.tasks)
        tasks[number] = tuple(queue)
        return msgspec.structs.replace(state, tasks=tuple(tasks))

    # Reading

    @staticmethod
    def _load(
        state: JournalState, states: Sequence[str], markers: Sequence[bytes], now_ms: int
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        documents = {id: d for id, d in state.documents if id in states and not 0 < d.expires_ms <= now_ms}
        return documents, {key: m for key, m, expires_ms in state.markers if key in markers and expires_ms > now_ms}

    # Committing

    def _commit(self, state: JournalState, commit: Commit, now_ms: int) -> Outcome:
        for output in commit.outputs:
            if output.destination not in self._routes:
                text = f"queue or topic {output.destination!r} does not exist"
                return Outcome("-> unknown destination", state, Raised("UnknownDestination", text))
        conflict = self._conflict(state, commit, now_ms)
        if conflict is not None:
            return Outcome("-> conflict", state, conflict)
        return Outcome("", self._committed(state, commit, now_ms), None)

    def _conflict(self, state: JournalState, commit: Commit, now_ms: int) -> Conflict | None:
        settled = [*commit.consumed, *(b.delivery for b in commit.buried), *(p.delivery for p in commit.postponed)]
        sequences = [delivery.sequence for delivery in settled]
        locks = {d.sequence for d in settled if self._holder(state, d) is None or sequences.count(d.sequence) > 1}
        documents, _ = self._load(state, list(commit.if_versions), (), now_ms)
        moved = {
            id
            for id, version in commit.if_versions.items()
            if (0 if (found := documents.get(id)) is None else found.version) != version
        }
        _, seen = self._load(state, (), [*commit.applied, *commit.refused], now_ms)
        taken = {key for key, marker in seen.items() if not _may_replace(marker, commit.replacing.get(key))}
        if locks or moved or taken:
            return Conflict(frozenset(locks), frozenset(moved), frozenset(taken))
        return None

    def _committed(self, state: JournalState, commit: Commit, now_ms: int) -> JournalState:
        tasks = [list(queue) for queue in state.tasks]
        dead = list(state.dead)
        for delivery in commit.consumed:
            self._taken(tasks, delivery)
        for burial in commit.buried:
            number, _, task = self._taken(tasks, burial.delivery)
            dead.append(Dead(number, task.message, burial.reason, burial.failures, burial.stops_key))
        for postponed in commit.postponed:
            number, index, task = self._taken(tasks, postponed.delivery)
            fields = {"due_ms": postponed.due_ms, "failures": postponed.failures, "rests": postponed.due_ms > 0}
            again = msgspec.structs.replace(task, is_locked=False, from_outside=True, **fields)
            tasks[number].insert(index, again)
        for output in commit.outputs:
            for number in self._routes[output.destination]:
                self._put(tasks[number], number, output, now_ms)
        documents = dict(state.documents)
        for id, change in commit.states.items():
            old = documents.get(id)
            expires_ms = 0 if change.value else commit.markers_expire_ms
            version = 1 if old is None else old.version + 1
            documents[id] = StateDocument(change.value, version, change.schema, change.serial, expires_ms)
        markers = {key: (marker, until_ms) for key, marker, until_ms in state.markers}
        fresh: dict[bytes, Marker] = {**commit.applied, **commit.refused}
        for inbox, marker in fresh.items():
            markers[inbox] = (marker, commit.markers_expire_ms)
        return JournalState(
            tuple(map(tuple, tasks)),
            tuple(sorted(documents.items(), key=_first)),
            tuple((key, *markers[key]) for key in sorted(markers)),
            tuple(sorted(dead)),
        )

    def _taken(self, tasks: list[list[Task]], delivery: Delivery) -> tuple[int, int, Task]:
        number = self._numbers[delivery.queue]
        index = next(i for i, task in enumerate(tasks[number]) if task.sequence == delivery.sequence)
        return number, index, tasks[number].pop(index)

    def _put(self, queue: list[Task], number: int, output: Output, now_ms: int) -> None:
        message = self.message_number(output.message)
        copy = sum(task.message == message for task in queue)
        name = f"{number}/{output.message.identity}/{copy}"
        sequence = int.from_bytes(sha256(name.encode()).digest()[:6], "big")
        queue.append(Task(sequence, message, max(output.due_ms, now_ms), output.due_ms, from_outside=False))
        if not self.queues[number].is_ordered:
            queue.sort(key=_sequence)

    # What happens by itself

    def events(self, state: JournalState, now_ms: int) -> list[Event]:
        found = []
        for number, queue in enumerate(state.tasks):
            for index, task in enumerate(queue):
                if task.is_locked:
                    label = f"the lock on {self.messages[task.message].identity} runs out"
                    token = (number, task.sequence, task.lock)
                    found.append(Event(label, self._lapsed(state, number, index), token, "expire"))
        return found

    def _lapsed(self, state: JournalState, number: int, index: int) -> JournalState:
        task = state.tasks[number][index]
        count = task.delivery_count + 1
        if count < DELIVERY_COUNT_MAX:
            return self._changed(state, number, index, is_locked=False, delivery_count=count)
        tasks = list(state.tasks)
        tasks[number] = tasks[number][:index] + tasks[number][index + 1 :]
        dead = tuple(sorted((*state.dead, Dead(number, task.message, "MaxDeliveryCountExceeded", task.failures))))
        return msgspec.structs.replace(state, tasks=tuple(tasks), dead=dead)

    def due_ms(self, state: JournalState, now_ms: int) -> int | None:
        times = [task.due_ms for queue in state.tasks for task in queue if task.due_ms > now_ms]
        return min(times, default=None)

    def moments_ms(self, state: JournalState, now_ms: int) -> tuple[int, ...]:
        times = {expires_ms for _, _, expires_ms in state.markers if expires_ms > now_ms}
        times |= {document.expires_ms for _, document in state.documents if document.expires_ms > now_ms}
        if self._retention_ms:
            messages = {task.message for queue in state.tasks for task in queue}
            fences = {self.messages[message].created_ms + self._retention_ms for message in messages}
            times |= {fence for fence in fences if fence > now_ms}
        return tuple(sorted(times))

    def describe(self, op: Op) -> str:
        match op.verb:
            case "commit":
                return f"commit {said(op.args[0])}"
            case "load":
                return f"load {', '.join(op.args[0]) or 'markers'}"
            case "renew" | "release":
                return f"{op.verb} {', '.join(map(told, op.args[0]))}"
        return op.verb


def _may_replace(marker: Marker, attempt: int | None) -> bool:
    return isinstance(marker, Refusal) and attempt is not None and marker.attempt < attempt


def _first(pair: tuple[str, StateDocument]) -> str:
    return pair[0]


def _sequence(task: Task) -> int:
    return task.sequence
