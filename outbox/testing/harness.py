"""A harness for tests: the real engine in virtual time, on a disk in memory that knows its synced bytes.

    async with Harness(app) as bank:
        await bank.send("transfers", Transfer("t1", "alice", "bob", 5), id="t1")
        await bank.wait_idle()
        assert await bank.state(Account, "bob") == Account(balance=5)

The runtime and the engine are those of production; only the disk, the clock and chance are the harness's, so the same
seed runs the same way.  With `faults` the worker's ports fail as planned: after a crash the harness reopens the engine
on the durable bytes and continues.  The log lines of failed handlers, with their tracebacks, are added as a note to the
exception of a failing test.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast

import msgspec

from outbox import stored
from outbox.app import App
from outbox.cancellation import PROPERTY_CANCELS
from outbox.client import Client, DeadLetter
from outbox.context import BlobRef
from outbox.engine.backend.operations import dead_letters
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine.state.documents import STATES
from outbox.http import Response
from outbox.lineage import Key
from outbox.message import Message, Scalar, properties_of
from outbox.name_checks import check_source, check_taken, kept_states, known_state, known_state_id
from outbox.ports import (
    Backend,
    Commit,
    Create,
    Delivery,
    DocumentKey,
    Output,
    Ports,
    Replace,
    StateStore,
    StorePorts,
)
from outbox.runtime.commit.state_cache import cached_state
from outbox.runtime.counts import Counts
from outbox.runtime.delivery.intake import BusIntake, Intake
from outbox.runtime.delivery.retrying import MAY_RETRY, Backoff
from outbox.runtime.failures.failure_log import FailureLog, write_to_log
from outbox.runtime.scopes import scope_over, stores_of
from outbox.runtime.shell import Recovery
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_scope import StoreScope
from outbox.stored import state_key
from outbox.streams.log import OrderedLog
from outbox.testing.clock import START_S, VirtualClock
from outbox.testing.http import HttpClients
from outbox.testing.streams import Stream, Streams
from outbox.verify.faults import FaultPlan, Faults, FaultyBlobs, FaultyBus, FaultyJournal, FaultyStore, SimulatedCrash
from outbox.verify.recorded.committed_outputs import BusRecorder, JournalRecorder, Sent, StoreRecorder

State = TypeVar("State")

FAILURE_COUNT_MAX = 8
"""How many log lines the note of a failing test holds."""

_ANY_CLOCK = EngineLimits(clock_ahead_max_s=math.inf)
STEP_COUNT_MAX = 100_000
BATCH_COUNT_MAX = 8


class SentRecord(msgspec.Struct, frozen=True):
    """A committed output: its identity, decoded message, properties and due time.

    `due` is in seconds since 1970, None for a message that is visible at once.
    """

    id: str
    message: Any
    properties: dict[str, Scalar]
    due: float | None


class Harness:
    """An application, or `streams`, on an engine under test; Processors and Pipelines have `replicas` replicas each."""

    def __init__(
        self,
        app: App | None = None,
        *,
        streams: Sequence[Stream] = (),
        replicas: int = 1,
        faults: Faults | None = None,
        seed: int = 0,
        scope: Literal["engine", "partition", "item"] = "engine",
    ) -> None:
        if scope not in ("engine", "partition", "item"):
            raise ValueError(f'scope={scope!r} is not there; the harness runs "engine", "partition" or "item"')
        streams = list(streams)
        if app is None and not streams:
            raise ValueError("a harness of nothing; give it an App, or streams=[...]")
        self._faults = FaultPlan(faults or Faults())
        self._chance = random.Random(seed)  # the same seed must run the same way
        self._streams = Streams(streams, replicas=replicas, faults=self._faults, chance=self._chance)
        self.app = app = app or _app_of(self._streams)
        self._scope_name = scope
        self._plan = compile_app(app, counts=Counts())
        self._clock = VirtualClock(START_S)
        self._disk = MemoryDisk("harness")
        self._outputs: list[Output] = []
        self._undecided: list[Commit] = []
        self._id_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._failures: deque[str] = deque(maxlen=FAILURE_COUNT_MAX)
        self._failure_log = FailureLog(self._clock.wall_ms, self._note_failure)
        self._http_clients = HttpClients(
            app, self._plan, spawn=self._spawn, crash=self.restart, failure_log=self._failure_log
        )

    async def __aenter__(self) -> Self:
        self._open(self._disk)
        await self._client.declare()
        await self._begin_streams()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._abandon()
        self._engine.close()
        if error is not None and self._failures:
            error.add_note("\n".join(["the harness saw, last:", *self._failures]))

    def _note_failure(self, level: int, event: str, fields: dict[str, Any], traceback: str) -> None:
        """Keep a line of a worker's log for the note of a failing test; requests' lines are logged too."""
        if event.startswith("request"):
            write_to_log(level, event, fields, traceback)
        if level >= logging.WARNING:
            line = " ".join([event, *(f"{name}={value}" for name, value in fields.items())])
            self._failures.append(f"{line}\n{traceback}" if traceback else line)

    def _open(self, disk: MemoryDisk) -> None:
        former = self.__dict__.get("_engine")
        self._disk = disk
        self._engine = Engine.open(disk, clock=self._clock, log_id=self._chance.randbytes(16), limits=_ANY_CLOCK)
        if former is not None:
            self._engine.blobs = former.blobs  # a blob store is durable by itself
        for commit in self._undecided:
            if commit.applied and commit.applied.keys() <= self._engine.state.markers.known.keys():
                self._outputs += commit.outputs
        self._undecided.clear()
        backend: Backend = self._engine
        if self._scope_name != "engine":
            backend = NarrowEngine(self._engine, self._scope_name)
        self._client = Client(self.app, backend, new_id=self._new_id)
        self._ports = backend.ports()
        ports = self._watched(self._ports)
        self._intake: Intake = ports.journal if isinstance(ports, Ports) else BusIntake(ports.bus)
        self._scope = scope_over(
            self._plan,
            ports,
            now_ms=self._engine.now_ms,
            backoff=Backoff(lambda _: asyncio.sleep(0)),
            spawn=self._spawn,
            settled=lambda _: None,
            is_stopping=lambda: self._stopping,
            new_tx=lambda: self._chance.randbytes(16).hex(),
            failure_log=self._failure_log,
        )
        self._http_clients.open(ports, self._scope)

    def __getattr__(self, name: str) -> Any:
        """Name the cure for the use of an unopened harness."""
        if name in ("_engine", "_client", "_ports", "_intake", "_scope"):
            raise RuntimeError(
                "the harness is not open; write `async with Harness(app) as world:` and use `world` in it"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _watched(self, ports: Ports | StorePorts) -> Ports | StorePorts:
        """Ports that fail as planned and record the commits."""
        plan = self._faults
        blobs = FaultyBlobs(ports.blobs, plan)
        if isinstance(ports, Ports):
            journal = FaultyJournal(JournalRecorder(ports.journal, self._outputs, self._undecided), plan, self._double)
            return Ports(journal, ports.operations, blobs)
        sent = Sent(ports.blobs, self._outputs)
        store = FaultyStore(StoreRecorder(ports.store, sent), plan)
        bus = FaultyBus(BusRecorder(ports.bus, sent), plan, self._double)
        return StorePorts(store, bus, ports.operations, blobs)

    def _new_id(self) -> str:
        self._id_count += 1
        return f"id-{self._id_count}"

    # What the worker did

    @property
    def port_calls(self) -> int:
        """How many port calls the worker has made."""
        return self._faults.call_count

    @property
    def faults_fired(self) -> int:
        """How many planned faults have happened; `fault_log` lists them."""
        return len(self._faults.fired)

    @property
    def fault_log(self) -> Sequence[str]:
        """The faults that have happened, in order."""
        return tuple(self._faults.fired)

    @property
    def engine(self) -> Engine:
        """The open engine; a restart opens another."""
        return self._engine

    # Arrange

    async def given(self, kind: type[Any], key: Key, state: Any) -> None:
        """Set the state of a key.

        Raises:
            UnknownType: no handler has such a state.
            TypeError: the state is of another type, or the key of another kind than handlers have.
            PoisonMessage: a handler could not read it back.
        """
        known = kept_states(self.app)
        codec, id = known_state(self.app, kind, known), known_state_id(self.app, kind, key, known)
        if not isinstance(state, kind):
            raise TypeError(f"the state is a {type(state).__name__}, not a {kind.__name__}")
        value = codec.encode(state)
        codec.decode(value, codec.version)
        if isinstance(self._ports, StorePorts):
            await self._given(self._ports.store, state_key(id), value, codec.version)
            return
        write = records.DocWrite(STATES, id, value, self._engine.documents.version(STATES, id), 0, codec.version)
        self._engine.documents.modify(records.Modify(documents=[write]))
        await self._engine.core.gate()

    async def _given(self, store: StateStore, key: DocumentKey, value: bytes, schema: int) -> None:
        found = cached_state(await store.read(key))
        version, at_ms = found.item.version + 1, self._clock.wall_ms()
        item = msgspec.structs.replace(
            found.item, value=msgspec.Raw(value), schema=schema, version=version, at_ms=at_ms
        )
        body = stored.encode(item)
        await store.write([Replace(key, body, found.version) if found.version else Create(key, body)])

    async def send(self, queue: str, message: Any, **options: Any) -> str:
        """Send a message from outside; the options are those of `Client.send`.

        Raises:
            UnknownDestination: the application never declared the queue.
            UnknownType: the queue has handlers, and none takes a message of this type.
        """
        check_taken(self.app, queue, message)
        return await self._client.send(queue, message, **options)

    async def publish(self, topic: str, message: Any, **options: Any) -> str:
        """Send a message to a topic from outside; UnknownType where no subscription takes a message of this type."""
        check_taken(self.app, topic, message)
        return await self._client.publish(topic, message, **options)

    async def send_raw(self, queue: str, body: bytes, *, properties: dict[str, Scalar] | None = None) -> None:
        """Send bytes with application properties as they are, as a foreign sender would."""
        await self._client.send_raw(queue, body, properties=properties)

    # Act

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Response:
        """Send an HTTP request, with `key` as its Idempotency-Key; after a crash it is sent again, as clients do."""
        return await self._http_clients.request(method, path, json, key, headers, body)

    async def wait_idle(self) -> None:
        """Handle everything that is due; time does not move.  RuntimeError if messages form a cycle."""
        for _ in range(STEP_COUNT_MAX):
            try:
                is_busy = await self._step()
                if not await self._streams.step() and not is_busy:
                    return
            except SimulatedCrash:
                await self.restart()
        raise RuntimeError(f"the application is not idle after {STEP_COUNT_MAX} steps; messages seem to go in a circle")

    async def _step(self) -> bool:
        """Claim and handle one batch; False when nothing is due."""
        self._engine.tick()
        if not self._plan.paths:
            return False
        count_max = self._chance.randint(1, BATCH_COUNT_MAX)
        try:
            deliveries = await self._intake.claim(self._plan.paths, count_max=count_max, wait_s=0)
        except MAY_RETRY:
            self._engine.broker.lapse_locks()
            return True
        if deliveries:
            self._spawn(self._scope.attempt(deliveries))
        elif not self._tasks:
            return self._engine.broker.lapse_locks() > 0  # claims whose reply was lost
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self._tasks -= done
            for task in done:
                task.result()
        return True

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        return task

    async def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move time, and handle what falls due, in order; ValueError below a millisecond."""
        span_ms = round(timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days).total_seconds() * 1_000)
        if span_ms < 1:
            raise ValueError(f"advance by {span_ms} ms: give a time to pass; wait_idle() lets run what is due already")
        end_ms = self._clock.wall_ms() + span_ms
        await self.wait_idle()
        while (due_ms := self._next_due_ms()) is not None and due_ms <= end_ms:
            self._clock.seconds = max(self._clock.seconds, due_ms / 1_000)
            await self.wait_idle()
        self._clock.seconds = end_ms / 1_000
        await self._sweep()
        await self.wait_idle()

    def _next_due_ms(self) -> int | None:
        due = (self._engine.next_due_ms(), self._streams.next_due_ms())
        return min((ms for ms in due if ms is not None), default=None)

    async def _sweep(self) -> None:
        """Sweep once, as a worker does every 30 s."""
        if isinstance(self._scope, StoreScope) and isinstance(self._ports, StorePorts):
            try:
                scope, stores = self._scope, stores_of(self._ports)
                await Recovery(
                    scope.protocol, stores, scope.failed_pushes, now_ms=self._engine.now_ms, counts=self._plan.counts
                ).sweep()
            except SimulatedCrash:
                await self.restart()
            except MAY_RETRY:
                pass  # the next one will

    async def restart(self) -> None:
        """Kill the process and reopen the engine on the durable bytes."""
        await self._abandon()
        self._open(self._disk.crash(Crash.POWER, self._chance))
        await self._begin_streams()

    async def _begin_streams(self) -> None:
        for _ in range(STEP_COUNT_MAX):
            try:
                return await self._streams.open(self._engine)
            except MAY_RETRY:
                continue
            except SimulatedCrash:
                self._open(self._disk.crash(Crash.POWER, self._chance))
        raise RuntimeError(f"the streams do not begin in {STEP_COUNT_MAX} tries; plan fewer faults")

    async def _abandon(self) -> None:
        tasks, self._tasks = self._tasks, set()
        self._stopping = True
        self._http_clients.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stopping = False

    async def _double(self, deliveries: Sequence[Delivery]) -> None:
        """Deliver a second time: a duplicate from outside, or an expired lock."""
        for delivery in deliveries:
            if delivery.from_outside:
                copy = msgspec.structs.replace(delivery.message, message_id=f"copy-{self._new_id()}")
                self._engine.broker.send(delivery.queue.split("/Subscriptions/")[0], [copy])
            else:
                self._engine.broker.lapse_lock(delivery.queue, delivery.sequence)

    # Streams

    def kill(self, replica: str) -> None:
        """Kill a replica, `<name>/<number from 0>`; a new one begins in its place; ValueError where none is.

        Of a pipeline it may be one task, `<name>/<number>/<operator>`: all tasks of that replica begin again with it.
        """
        self._streams.kill(replica)

    def stall(self, stream: str, *, replica: int, s: float) -> None:
        """Let a replica do nothing for `s` seconds; ValueError where none is."""
        self._streams.stall(stream, replica=replica, s=s)

    def log(self, name: str) -> OrderedLog[Any]:
        """A log of the streams, to append to and read from, until the next restart; ValueError where none is."""
        return self._streams.log(name)

    async def stream_state(self, processor: str) -> Any:
        """The state of a processor, a fresh one where it has not begun; ValueError where none is."""
        return await self._streams.state(processor)

    # Assert

    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._clock.seconds

    async def state(self, kind: type[State], key: Key) -> State | None:
        """The state of a key; None where there is none or it was deleted.

        Raises:
            UnknownType: no handler has such a state.
            TypeError: its handlers have keys of another kind.
        """
        known_state(self.app, kind, kept_states(self.app))
        return await self._client.state(kind, key)

    def sent(self, destination: str) -> list[Any]:
        """The decoded messages that commits sent to a queue or topic, once each, in commit then capture order.

        A cancellation is not among them; `sent_records` has it.

        Raises:
            UnknownDestination: the application never declared it.
        """
        return [sent.message for sent in self.sent_records(destination) if PROPERTY_CANCELS not in sent.properties]

    def sent_records(self, destination: str) -> list[SentRecord]:
        """The same with identity, properties and due time; UnknownDestination where it was never declared.

        A cancellation is shown as what it cancels, with that one's identity in the property `outbox-cancels`.
        """
        self.app.destination(destination)
        return [
            SentRecord(
                output.message.identity,
                self._client.decode(destination, self._with_body(output.message)),
                properties_of(output.message),
                output.due_ms / 1_000 if output.due_ms else None,
            )
            for output in self._outputs
            if output.destination == destination
        ]

    @property
    def counts(self) -> Counts:
        """The counts so far by queue: applied, duplicates, failed, rescheduled, refused by reason."""
        return self._plan.counts

    def dead_letters(self, queue: str) -> list[DeadLetter]:
        """The dead letters of a queue, oldest first; UnknownDestination where it was never declared."""
        check_source(self.app, queue)
        return [
            self._client.dead_letter(msgspec.structs.replace(dead, message=self._with_body(dead.message)))
            for dead in dead_letters(self._engine.broker, queue)
        ]

    def _with_body(self, message: Message) -> Message:
        """A message with its body; the harness's blobs are in memory, so nothing waits."""
        try:
            self._client.with_body(message).send(None)
        except StopIteration as stop:
            return cast(Message, stop.value)
        raise RuntimeError("the harness's blob store waited; it must answer at once")

    async def blob(self, ref: BlobRef) -> bytes:
        """Read a blob that a handler wrote with `ctx.write_blob`."""
        return await self._client.blob(ref)

    async def resubmit(self, queue: str, id: str, *, message: Any = None) -> None:
        """Run a dead letter again under its identity, with another `message` if one is given."""
        await self._client.resubmit(queue, id, message=message)

    async def discard(self, queue: str, id: str) -> None:
        """Delete a dead letter."""
        await self._client.discard(queue, id)


def _app_of(streams: Streams) -> App:
    """An application without handlers, for the queues of ingests."""
    app = App("streams")
    for queue in streams.queues:
        app.queue(queue)
    return app
