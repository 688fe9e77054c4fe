"""Engine scope on the embedded engine: queues, states and markers share its log, so that one record commits a batch.

What the journal hands to handlers has not passed the gate, and need not: their effects can only leave through a later
record of the same log.  A claim's write has returned before its messages are handed out, a commit's flush before its
caller hears of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from outbox.engine.broker import Broker, as_deliveries
from outbox.engine.core import Core, check_room
from outbox.engine.entities import Settlement
from outbox.engine.log import records
from outbox.engine.state.documents import STATES
from outbox.engine.state.queues import Queue
from outbox.engine.state.tasks import LOCKED, Task
from outbox.errors import LockLost, UnknownDestination
from outbox.ports import Commit, Conflict, Delivery, Journal, Marker, Output, Refusal, StateDocument

SUSPECT_EVERY = 4
"""The claims from one suspect-first claim to the next, so that a steady stream does not keep suspects waiting."""
BLOCKED_EVERY = 16
"""The claims between two that prefer messages behind a dead letter, which need records before they are old."""


class EngineJournal:
    """Engine scope over an embedded engine."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker
        self._state = core.state
        self._turn = 0
        self._take_wary = partial(broker.take, wary=True)

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = self._take(queues, count_max)
        if not deliveries and wait_s > 0 and await self._broker.wait_any(queues, wait_s, blocked=True):
            deliveries = self._take(queues, count_max)
        if deliveries:
            self._core.write()
        return deliveries

    def _take(self, queues: Sequence[str], count_max: int) -> list[Delivery]:
        """Take messages to handle, else messages behind a dead letter, which come first now and then."""
        self._turn += 1
        found = [self._broker.queue(path) for path in queues]
        is_their_turn = self._turn % BLOCKED_EVERY == 0
        are_first = is_their_turn and any(queue.order.has_blocked for queue in found)
        tasks = [] if are_first else self._ready(found, count_max)
        if tasks:
            return as_deliveries(tasks)
        return as_deliveries(_filled(found, count_max, self._broker.take_blocked), waits=True)

    def _ready(self, found: Sequence[Queue], count_max: int) -> list[Task]:
        """Messages never delivered before, or a suspect alone: if there is nothing else, and now and then."""
        broker, first = self._broker, self._turn % len(found)
        taken = broker.take_suspect(found) if self._turn % SUSPECT_EVERY == 0 else []
        taken = taken or _filled((*found[first:], *found[:first]), count_max, self._take_wary)
        return taken or broker.take_suspect(found)

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        state = self._state
        known, seen = state.documents.spaces[STATES], state.markers.known
        documents = {id: found for id in states if (found := known.get(id)) is not None}
        if seen.keys().isdisjoint(markers):  # as nearly always: most messages come once
            return documents, {}
        return documents, {key: seen[key] for key in markers if key in seen}

    async def commit(self, commit: Commit) -> Conflict | None:
        core = self._core
        if commit.outputs:
            self._check_outputs(commit.outputs)
        consumed, locks = self.held(commit.consumed)
        unique_count = sum(map(len, map(set, consumed.values())))
        if commit.dead_lettered or commit.postponed or unique_count < len(commit.consumed):
            others = [dead.delivery for dead in commit.dead_lettered] + [later.delivery for later in commit.postponed]
            locks += self.held(others)[1] + _repeated([*commit.consumed, *others])
        states, markers = self.moved(commit), self.taken(commit)
        if locks or states or markers:
            return Conflict(frozenset(locks), frozenset(states), frozenset(markers))
        is_request = not (commit.consumed or commit.dead_lettered or commit.postponed)
        if is_request:
            check_room(self._state, core.limits)
        core.do(self.record(commit, consumed))
        self._broker.wake()
        await core.gate(alone=not is_request)  # requests come side by side: those of one turn share a flush
        return None

    def _check_outputs(self, outputs: Sequence[Output]) -> None:
        """Refuse what could be logged but not take effect; a destination may be declared after its sender.

        Raises:
            UnknownDestination: no such queue or topic, or one that is ordered by key for a message without one.
        """
        routes = self._state.routes
        unordered: str | None = None
        for output in outputs:
            path, message = output.destination, output.message
            if path == unordered:  # mostly a batch has one
                continue
            queues = routes.get(path)
            if queues is None:
                raise UnknownDestination(
                    f"queue or topic {path!r} does not exist; declare it before {message.identity}"
                )
            if not any(queue.settings.ordering == "per_key" for queue in queues):
                unordered = path
            elif not message.session_id:
                raise UnknownDestination(
                    f"{path!r} is ordered by key and message {message.identity} has none; declare the queue as per_key "
                    "in the application that sends to it"
                )

    def held(self, deliveries: Sequence[Delivery]) -> tuple[dict[int, list[int]], list[int]]:
        """The sequences of deliveries by queue number, and those of them whose lock is not ours any more."""
        paths = self._state.paths
        held: dict[int, list[int]] = {}
        lost: list[int] = []
        path = None
        for delivery in deliveries:
            if delivery.queue != path:  # mostly a batch is of one queue
                path = delivery.queue
                queue = paths[path]
                find, sequences = queue.tasks.get, held.setdefault(queue.number, [])
            sequence = delivery.sequence
            task = find(sequence)
            if task is None or task.lock != delivery.lock or task.status != LOCKED:
                lost.append(sequence)
            sequences.append(sequence)
        return held, lost

    def moved(self, commit: Commit) -> list[str]:
        """The states that do not have the version any more under which they were read."""
        known = self._state.documents.spaces[STATES]
        moved: list[str] = []
        for id, version in commit.if_versions.items():
            found = known.get(id)
            if version != (0 if found is None else found.version):
                moved.append(id)
        return moved

    def taken(self, commit: Commit) -> list[bytes]:
        """The markers that are there already and may not be replaced."""
        markers, replacing = self._state.markers.known, commit.replacing
        seen = markers.keys()
        if seen.isdisjoint(commit.applied) and seen.isdisjoint(commit.refused):
            return []
        keys = [*(commit.applied.keys() & seen), *(commit.refused.keys() & seen)]
        return [key for key in keys if not _may_replace(markers[key], replacing.get(key))]

    def record(self, commit: Commit, consumed: dict[int, list[int]]) -> records.Committed:
        """The log's record of a commit whose conditions hold."""
        paths = self._state.paths
        return records.Committed(
            commit.now_ms,
            commit.markers_expire_ms,
            consumed,
            commit.states,
            commit.outputs,
            commit.applied,
            commit.refused,
            [
                records.DeadLettered(
                    paths[b.delivery.queue].number,
                    b.delivery.sequence,
                    b.reason,
                    b.description,
                    b.failures,
                    b.stops_key,
                )
                for b in commit.dead_lettered
            ],
            [
                records.Postponed(paths[p.delivery.queue].number, p.delivery.sequence, p.due_ms, p.failures, p.error)
                for p in commit.postponed
            ],
        )

    async def durable(self) -> None:
        await self._core.gate()

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        renewed = 0
        for delivery in deliveries:
            with suppress(LockLost):  # one that ran out does not keep the others from it
                self._broker.renew(self._broker.token(delivery))
                renewed += 1
        return renewed

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(LockLost):
                self._broker.settle(self._broker.token(delivery), Settlement.RELEASE)
        self._core.write()


def _may_replace(marker: Marker, attempt: int | None) -> bool:
    return isinstance(marker, Refusal) and attempt is not None and marker.attempt < attempt


def _filled(queues: Sequence[Queue], count_max: int, take: Callable[[Queue, int], list[Task]]) -> list[Task]:
    """Fill one claim from these queues; a message that may be delivered once only comes alone.

    Otherwise a kill within the first handler is the only delivery of all that were claimed with it.
    """
    taken: list[Task] = []
    for queue in queues:
        is_single = queue.settings.max_delivery_count == 1
        if not (is_single and taken):
            taken += take(queue, 1 if is_single else count_max - len(taken))
        if taken and (is_single or len(taken) >= count_max):
            break
    return taken


def _repeated(settled: Sequence[Delivery]) -> list[int]:
    """The sequences that are settled more than once in one commit."""
    counts = Counter([delivery.sequence for delivery in settled])
    return [sequence for sequence, count in counts.items() if count > 1]


_conforms: type[Journal] = EngineJournal
