"""The programs of an exploration's processes: workers, sweepers, operators, and processes that answer requests.

The code that runs is the runtime's own.  An attempt begins with a claim and ends when everything that it began has
ended; what a worker learns for its next attempt is handed on, and lost in a crash.

Each part of a store protocol says what it remembers (`remembered`), and at its checkpoints what else the rest of the
attempt uses.  Two attempts with different answers that say the same there do the same from there on, so explorations
follow one of them (see `trie`).

The clients of HTTP requests do not give up.  They are a resource, modelled as a queue of requests: an answering process
takes one under a lock, and answers by settling it.  A lock that runs out is a client without a response, because the
process died or because it takes too long, and that sends the same request again under the same key; so does one whose
response said so.  A copy of a request is a client that asks twice at once.  What answers is the runtime's own
`HttpEntry`, over the scope's ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import msgspec

from outbox.app import App
from outbox.encoding import encoded
from outbox.errors import Refused, Throttled
from outbox.http import Request, Response
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.ports import Delivery, Journal, Output, Ports, Settle, StoreCapabilities, StorePorts
from outbox.registration.routes import Place, find
from outbox.runtime.commit.marks import Mark
from outbox.runtime.commit.state_cache import CachedState
from outbox.runtime.commit.sweeper import sweep
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.retrying import MAY_RETRY, Backoff, NothingCommitted
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.failures.failure_log import FailureLog, write_nowhere
from outbox.runtime.http.requests import Reader
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_operations import StoreOperations
from outbox.runtime.store_scope import Checkpoint, StoreParts, StoreProtocol, StoreScope
from outbox.runtime.work import Attempt, Outcome, Work, outcome_data
from outbox.stored import StateItem, encode
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.models.queues import NEVER_MS, QueueModel
from outbox.verify.explorer.ops import Op, canonical, short
from outbox.verify.explorer.ports import (
    ExploredBlobs,
    ExploredBus,
    ExploredJournal,
    ExploredOperations,
    ExploredStore,
)
from outbox.verify.explorer.run import Calls, begin


async def at_once(seconds: float) -> None:
    """A pause between two tries: others may go first whenever a call waits, so it need not last."""
    await asyncio.sleep(0)


BACKOFF = Backoff(at_once, count_max=1)
"""The retry of an attempt: once.  An attempt that gives up releases its message for a fresh one."""


class Tasks:
    """The tasks that an attempt has started."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        """Wait until all have ended, and whatever they started; an error of one is raised."""
        while self._tasks:
            await self._tasks.pop(0)


@dataclass(frozen=True, slots=True)
class EngineWorker:
    """A worker of engine scope that claims up to `batch` messages at a time, until `until_ms` (0: for ever)."""

    plan: CompiledApp
    journal: int
    blobs: int
    batch: int
    make: Callable[..., EngineScope]
    name: str = "worker"
    until_ms: int = 0
    gated: bool = False

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        begin(calls)
        journal: Journal = ExploredJournal(calls, self.journal, until_ms=self.until_ms, gated=self.gated)
        tasks = Tasks()
        scope = self.make(
            self.plan,
            journal,
            ExploredBlobs(calls, self.blobs),
            now_ms=calls.now_ms,
            backoff=BACKOFF,
            spawn=tasks.spawn,
            settled=lambda _: None,
            is_stopping=lambda: False,
        )
        scope.suspending.update(carried or ())  # what a worker has seen of its handlers outlives an attempt
        try:
            deliveries = await journal.claim(self.plan.paths, count_max=self.batch, wait_s=0)
        except MAY_RETRY:  # as a worker does: claim again; what was claimed is locked until its lock runs out
            return carried  # type: ignore[no-any-return]  # handed on unchanged
        await scope.attempt(deliveries)
        await tasks.end()
        return scope.remembered() or None


@dataclass(frozen=True, slots=True)
class StoreResources:
    """Where the resources of a store scope are, and what its stores can do; `infrastructure` may be apart."""

    capabilities: StoreCapabilities
    store: int = 0
    bus: int = 1
    blobs: int = 2
    infrastructure: int | None = None


Protocol = PartitionScope | ItemScope
MakeProtocol = Callable[[StoreParts], Protocol]


def store_ports(calls: Calls, at: StoreResources, operations: Any = None) -> StorePorts:
    """The ports of a store scope; a worker asks for nothing that a client would, and needs no `operations`."""
    store = ExploredStore(calls, at.store, at.capabilities)
    apart = None if at.infrastructure is None else ExploredStore(calls, at.infrastructure, at.capabilities)
    return StorePorts(store, ExploredBus(calls, at.bus), operations, ExploredBlobs(calls, at.blobs), apart)


def engine_ports(calls: Calls, operations: Any, *, journal: int = 0, blobs: int = 1, gated: bool = False) -> Ports:
    """The ports of engine scope."""
    return Ports(ExploredJournal(calls, journal, gated=gated), operations, ExploredBlobs(calls, blobs))


def protocol_over(
    calls: Calls, ports: StorePorts, plan: CompiledApp, make: MakeProtocol, settlement: Settlement | None = None
) -> Protocol:
    """The protocol of a store scope, as an attempt makes it; with the `settlement` of the worker's scope."""
    settlement = settlement or settlement_over(plan, ports, calls)
    return make(StoreParts(plan, ports, settlement, calls.now_ms, calls.new_id, is_stopping=lambda: False))


class Remembering:
    """A protocol that says at each checkpoint, and after each try at a message, all that the rest depends on."""

    def __init__(self, protocol: Protocol, calls: Calls) -> None:
        self._protocol = protocol
        self._calls = calls
        self.lanes: StoreScope | None = None
        """The lanes in which the only message of an attempt is about to be handled."""
        self._attempt: Attempt | None = None
        self._tries = 0
        self._is_loaded = False
        """Whether this try has its state: a transaction that it finishes before is another's."""
        self.checkpoint: Checkpoint = self._pass
        protocol.checkpoint = self._pass
        self.hold, self.together, self.redo = protocol.hold, protocol.together, protocol.redo
        self.finish, self.remembered = protocol.finish, protocol.remembered
        self.group_count_max, self.lingering, self.ledger = (
            protocol.group_count_max,
            protocol.lingering,
            protocol.ledger,
        )

    async def once(self, attempt: Attempt) -> Outcome:
        self._tries, self._attempt, self._is_loaded = self._tries + 1, attempt, False
        try:
            outcome = await self._protocol.once(attempt)
        except NothingCommitted:
            self._say("again")
            raise
        self._say("done", outcome_data(outcome))
        return outcome

    def _pass(self, step: str, *known: Any) -> None:
        self._is_loaded |= step == "loaded"
        self._say(step, self._is_loaded, *known)

    def _say(self, *known: Any) -> None:
        attempt, lanes = self._attempt, self.lanes
        if lanes is not None and attempt is not None and not attempt.others and attempt.fan_out is None:
            self._calls.remembers(encode((known, self._tries, attempt.remembered(), lanes.remembered())))


class NeverWritten:
    """Marks that wait for a batch of their partition for ever."""

    async def write(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreWorker:
    """A worker of partition or item scope; what the store can do decides which.

    One that `merges` says between two tries what it remembers, so that what led there need not be kept apart.
    A `warm` one hands on the states that it has at hand, and the staged records that lost; one that `lingers` hands on
    the marks that are due, which ride in a later batch or are left to a sweeper.  From `until_ms` on it receives
    nothing (0: never).
    """

    plan: CompiledApp
    at: StoreResources
    batch: int
    warm: bool
    lingers: bool
    merges: bool
    make: MakeProtocol
    name: str = "worker"
    until_ms: int = 0

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        begin(calls)
        plan, tasks, ports = self.plan, Tasks(), store_ports(calls, self.at)
        settlement = settlement_over(plan, ports, calls)
        protocol = protocol_over(calls, ports, plan, self.make, settlement)
        known, staged, due, ledger = carried or ((), (), (), None)
        for marks, waiting in zip(protocol.lingering, due, strict=False):
            marks.put_back(waiting)
        if protocol.ledger is not None and ledger is not None:
            protocol.ledger.recall(ledger)
        for id, body, version, session in known:  # it knows what it knew when its last attempt ended
            protocol.cache.remember(id, CachedState(msgspec.json.decode(body, type=StateItem), version, session))
        if isinstance(protocol, ItemScope):
            protocol.orphans.by_state.update({state_id: list(left) for state_id, left in staged})
        remembering = Remembering(protocol, calls)
        lanes = StoreScope(
            plan,
            remembering,
            settlement,
            BlockedSessions(ports.infrastructure or ports.store, ports.blobs),
            ports.blobs,
            now_ms=calls.now_ms,
            backoff=BACKOFF,
            spawn=tasks.spawn,
            lingering=NeverWritten() if self.lingers else None,
        )
        try:
            deliveries = await ExploredBus(calls, self.at.bus).receive_any(plan.paths, self.batch, self.until_ms)
        except MAY_RETRY:  # as a worker does: receive again; what came is locked until its lock runs out
            return carried  # type: ignore[no-any-return]  # handed on unchanged
        if self.merges and len(deliveries) == 1:
            remembering.lanes = lanes
        await lanes.attempt(deliveries)
        await tasks.end()
        handed = (
            _known(protocol) if self.warm else (),
            _left(protocol) if self.warm else (),
            _due(protocol) if self.lingers else (),
            protocol.ledger.remembered() if protocol.ledger is not None else None,
        )
        return handed if any(handed) else None


@dataclass(frozen=True, slots=True)
class Sweeper:
    """A sweeper of one store: it looks whenever something is unfinished, not again for what it could not finish.

    It leaves alone what is younger than `grace_ms`.
    """

    plan: CompiledApp
    at: StoreResources
    make: MakeProtocol
    store: int = 0
    name: str = "sweeper"
    grace_ms: int = 0

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        plan, ports = self.plan, store_ports(calls, self.at)
        protocol = protocol_over(calls, ports, plan, self.make)
        store = ExploredStore(calls, self.store, self.at.capabilities, seen=carried or "")
        with suppress(*MAY_RETRY):
            woken = await calls(self.store, "wake", store.seen) if self.grace_ms else ""
            now_ms = calls.now_ms if self.grace_ms else lambda: NEVER_MS  # when nothing is young
            swept = await sweep(protocol, store, now_ms=now_ms, grace_s=self.grace_ms / 1_000)
            was_whole = swept.seen_count == store.found_count  # time may have passed in between
            if was_whole and not swept.finished_count:
                before, _, looks = (carried or "").partition("/")
                seen = woken or store.seen  # what is young is so as of the beginning of a sweep
                return f"{seen}/{int(looks) + 1 if before == seen else 1}"
        return None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator who resubmits any dead letter, edited or unchanged, as often as the scenario allows.

    What our own doors refuse is sent by another program, which asks nobody: the protocols must stand that too.  Dead
    letters that hosts have stored are resubmitted `letter_count` times at most.
    """

    at: StoreResources | None
    resource: int
    name: str = "operator"
    letter_count: int = 0

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        if self.at is not None and self.letter_count:
            return await self._resubmit_letter(calls, self.at, carried or 0)
        with suppress(*MAY_RETRY, LookupError):  # the operator looks at the dead letters again
            path, number, edit = await calls(self.resource, "choose")
            if self.at is None:
                await calls(self.resource, "resubmit", path, number, edit)
            else:
                operations: Any = ExploredOperations(calls, self.at.bus)  # it needs no other of them
                try:
                    await StoreOperations(store_ports(calls, self.at, operations)).resubmit(path, number, edit=edit)
                except Throttled:
                    raise
                except Refused:
                    await operations.resubmit(path, number, edit=edit)
        return None

    async def _resubmit_letter(self, calls: Calls, at: StoreResources, count: int) -> int:
        operations: Any = ExploredOperations(calls, at.bus)
        ports = store_ports(calls, at, operations)
        store, left = at.store if at.infrastructure is None else at.infrastructure, self.letter_count - count
        with suppress(*MAY_RETRY, LookupError):
            path, number = await calls(store, "letters", left)
            count += 1
            await StoreOperations(ports).resubmit(path, number)
        return count


def settlement_over(plan: CompiledApp, ports: StorePorts, calls: Calls) -> Settlement:
    return Settlement(
        plan, ports.bus, ports.blobs, backoff=BACKOFF, now_ms=calls.now_ms, new_tx=calls.new_id, settled=lambda _: None
    )


def _known(protocol: Protocol) -> Hashable:
    """The states that a process knows when an attempt has ended."""
    return tuple((id, encode(held.item), held.version, held.session) for id, held in protocol.cache.content())


def _left(protocol: Protocol) -> Hashable:
    """The staged records of its own that may be orphans."""
    left = protocol.orphans.by_state if isinstance(protocol, ItemScope) else {}
    return tuple((state_id, tuple(staged)) for state_id, staged in sorted(left.items()) if staged)


def _due(protocol: Protocol) -> tuple[tuple[Mark, ...], ...]:
    """The marks that are due, by store; none at all is empty."""
    due = tuple(marks.content() for marks in protocol.lingering)
    return due if any(due) else ()


REQUESTS = "requests"
"""The queue in which clients' requests lie until they are answered."""


class ClientRequest(msgspec.Struct, frozen=True):
    """A request as a client sends it, each time alike: `POST /payments`, an idempotency key, what makes its body.

    A read has a key too, by which it is named here.
    """

    line: str
    key: str
    content: Any

    @property
    def message(self) -> Message:
        """The same as it lies among the clients' requests."""
        return Message(body=encoded(self.content), outbox_id=self.key, correlation_id=self.line)


def request_in(message: Message) -> Request:
    """The request that lies among the clients' as this message."""
    method, _, path = message.correlation_id.partition(" ")
    return Request(method, path, {"idempotency-key": message.outbox_id}, message.body)


def work_of(app: App, message: Message, now_ms: int) -> Work:
    """The work of a request, as the protocols see it.

    Raises:
        LookupError: the application serves nothing there.
        Unfit: it cannot be one.
    """
    request = request_in(message)
    places = [Place(route.method, route.template, Reader(app, route)) for route in app.routes]
    found = find(places, request.method, request.path)
    if found.target is None:
        raise LookupError(f"{message.correlation_id}: nothing is served there; declare it with @app.http")
    if found.target.route.is_read:
        return found.target.read_work(request, found.parameters, "", now_ms)
    return found.target.work(request, found.parameters, "", now_ms)


def digest_of(response: Response) -> str:
    """The digest that tells responses apart."""
    return blake2b(canonical((response.status, dict(response.headers), response.body)), digest_size=6).hexdigest()


def clients_model(asked: Sequence[Output], *, until_ms: int, merges_copies: bool, locks_hold: bool) -> BusModel:
    """A model of the clients.  They know how long a key is remembered, and do not ask again after `until_ms`."""
    return BusModel(
        [QueueModel(REQUESTS)],
        {REQUESTS: [REQUESTS]},
        sent=asked,
        merges_copies=merges_copies,
        locks_hold=locks_hold,
        name="clients",
        closes_ms=until_ms,
        describe=_describe,
    )


def _describe(op: Op) -> str:
    if op.verb != "settle":
        return "take a request"
    delivery, settle = op.args
    return f"answer {short(delivery.message.identity)} {settle.description or 'ask again'}"


@dataclass(frozen=True, slots=True)
class Front:
    """A process that answers up to `batch` requests at a time; `ports` and `protocol` are those of its scope."""

    app: App
    plan: CompiledApp
    ports: Callable[[Calls, Any], Ports | StorePorts]
    protocol: Callable[[Calls, Any], StoreProtocol | None]
    clients: int
    batch: int
    name: str = "front"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        clients, tasks = ExploredBus(calls, self.clients), Tasks()
        try:
            deliveries = await clients.receive_any([REQUESTS], self.batch)
        except MAY_RETRY:
            return None
        ports = self.ports(calls, SimpleNamespace(now_ms=calls.now_ms))  # all that an entry asks of its backend
        backend: Any = SimpleNamespace(ports=lambda: ports)
        entry = HttpEntry(
            self.app,
            backend,
            plan=self.plan,
            protocol=self.protocol(calls, ports),
            mark_after_s=0,
            sleep=at_once,
            backoff=BACKOFF,
            spawn=tasks.spawn,
            failure_log=FailureLog(lambda: 0, write_nowhere),
        )
        await asyncio.gather(*[self._answer(entry, clients, delivery) for delivery in deliveries])
        await tasks.end()
        return None

    @staticmethod
    async def _answer(entry: HttpEntry, clients: ExploredBus, delivery: Delivery) -> None:
        request = request_in(delivery.message)
        response = await entry.handle(request.method, request.path, request.headers, request.body)
        is_done = "retry-after" not in response.headers
        settle = Settle("complete", digest_of(response), str(response.status)) if is_done else Settle("release")
        with suppress(*MAY_RETRY):  # the client has gone
            await clients.settle(delivery, settle)
