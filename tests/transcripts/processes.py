"""The processes of a story: workers, a sweeper, an HTTP entry, a client, an operator, over one backend.

They are those of production: the scopes, the sweeper, `HttpEntry` and `Client` over the embedded engine on a disk in
memory, in partition and item scope with its documents and its queues as two systems.  What a story adds is a clock that
it moves, transactions with numbers for names, and when a process does its next step.  A process that is killed
leaves everything where it lies; in engine scope its log is opened again from what was synced.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec

from outbox import App, Client, Engine
from outbox.engine.backend.operations import EngineOperations, dead_letters
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine.state.documents import STATES
from outbox.http_entry import HttpEntry
from outbox.lineage import as_key, inbox_key
from outbox.message import Message
from outbox.ports import Delivery, Document, DocumentKey, First, Output, Ports, StorePorts, Version
from outbox.runtime.commit.sweeper import sweep
from outbox.runtime.delivery.intake import BusIntake, Intake
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.scopes import scope_over, stores_of
from outbox.runtime.start.notes import register_retention
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreScope
from outbox.testing.http import ServedPorts
from outbox.verify.faults import SimulatedCrash
from tests.transcripts.recording import (
    Fault,
    FaultKind,
    Page,
    RecordedBlobs,
    RecordedBus,
    RecordedJournal,
    RecordedStore,
    Watch,
)
from tests.transcripts.wording import brief, span

Scope = Literal["engine", "partition", "item"]

Ran = Callable[[str, object], None]
"""Writes down that a handler runs: its name and what state it sees."""

CLAIM_COUNT_MAX = 8


async def no_wait(_: float) -> None:
    """Pause without time."""
    await asyncio.sleep(0)


class Site:
    """The backend of a story, and everybody who is at it."""

    def __init__(self, page: Page, scope: Scope, app_of: Callable[[Ran], App], *, item_bytes_max: int = 0) -> None:
        self.page = page
        self.scope = scope
        self._app_of = app_of
        self._item_bytes_max = item_bytes_max
        self._tx_count = 0
        self._watches: list[Watch] = []
        self._disk = MemoryDisk("transcript")
        self._open()

    def _open(self) -> None:
        self.engine = Engine.open(self._disk, clock=self.page.clock, log_id=bytes(16))
        self.client, self.operator = self._outsider("client"), self._outsider("operator")

    async def begin(self) -> None:
        """Declare what the application has."""
        await self.client.declare()

    def new_tx(self) -> str:
        """The next transaction's name."""
        self._tx_count += 1
        return f"tx{self._tx_count}"

    # Who is there

    def app(self) -> App:
        """The application, for those who handle nothing."""
        return self._app_of(lambda *_: None)

    def process(self, name: str, app_of: Callable[[Ran], App] | None = None) -> Process:
        """A process of the application, of another version of it with `app_of`."""
        return Process(self, name, app_of or self._app_of)

    def _outsider(self, name: str) -> Client:
        return Client(self.app(), ServedPorts(self.ports(self.watch(name))))

    def watch(self, name: str) -> Watch:
        """What writes down the calls of one process."""
        watch = Watch(self.page, name, meet=self._meet)
        self._watches.append(watch)
        return watch

    def ports(self, watch: Watch) -> Ports | StorePorts:
        """The ports of one process, which are written down."""
        blobs, operations = RecordedBlobs(self.engine.blobs, watch), SeenOperations(self.engine, watch, self._name)
        if self.scope == "engine":
            return Ports(RecordedJournal(self.engine.ports().journal, watch), operations, blobs)
        known = NarrowEngine(self.engine, self.scope).ports()
        store = RecordedStore(known.store, watch, item_bytes_max=self._item_bytes_max)
        return StorePorts(store, RecordedBus(known.bus, watch), operations, blobs)

    # Names

    def _meet(self, delivery: Delivery) -> None:
        self._name(delivery.queue, delivery.message)

    def _name(self, queue: str, message: Message) -> None:
        """Learn what the digests of a message are made of."""
        names = self.page.words.names
        for handler in self.app().handlers:
            value = self.client.decode(queue, message) if handler.source == queue else None
            if value is not None and handler.key is not None:
                inbox = inbox_key(handler.prefix, as_key(handler.key(value)), message.identity)
                names[inbox.hex()] = self.page.words.name(message.identity)
        session = f"{len(queue)}:{queue}{message.session_id}"
        names[sha256(session.encode()).hexdigest()] = message.session_id

    def name_request(self, key: str) -> None:
        """Learn what the digest of a request under an idempotency key is made of."""
        for route in self.app().routes:
            self.page.words.names[inbox_key(route.handler.prefix, None, key).hex()] = key

    # Time, and the end of a process

    def pass_time(self, **units: float) -> None:
        """Let time pass; locks run out, records expire."""
        lengths = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
        seconds = sum(lengths[unit] * count for unit, count in units.items())
        self.page.clock.seconds += seconds
        self.page.event(f"{span(seconds)} later")
        self.engine.tick()

    def power_fails(self) -> None:
        """Engine scope: what was not synced is gone, and the log is opened again."""
        self._disk = self._disk.crash(Crash.POWER, random.Random(0))
        self._open()
        self.page.event("the engine is opened again on what was synced")

    # The end

    async def ending(self, queue: str, *, left: str = "") -> None:
        """Say how things are in the end: states, records, what is still queued, dead letters, and what left."""
        left_over = [fault.call for watch in self._watches for fault in watch.faults]
        assert not left_over, f"these calls were to fail and were never made: {left_over}"
        self.engine.tick()
        words, tasks = self.page.words, self.engine.state.paths[queue].tasks
        letters = [f"{words.message(b.message)} {b.reason!r}" for b in dead_letters(self.engine.broker, queue)]
        sent = self.engine.state.paths[left].tasks.values() if left else ()
        self.page.ending(
            [
                *self._kept(),
                ("still queued", ", ".join(words.message(task.message) for task in tasks.values()) or "nothing"),
                ("dead letters", ", ".join(letters) or "none"),
                *((("left", ", ".join(words.content(task.message) for task in sent) or "nothing"),) if left else ()),
            ]
        )
        self.engine.close()

    def _kept(self) -> list[tuple[str, str]]:
        """What is kept of states and messages, and for how long."""
        words, now_ms, state = self.page.words, self.engine.now_ms(), self.engine.state
        lines = [("state", words.state(id, found)) for id, found in sorted(state.documents.spaces[STATES].items())]
        lines += [("marker", words.marker(inbox, marker)) for inbox, marker in state.markers.known.items()]
        for namespace, space in sorted(state.documents.spaces.items()):
            partition = namespace.removeprefix("p/")
            if partition in (STATES, "notes"):
                continue
            for key, found in [(DocumentKey(partition, id), space[id]) for id in sorted(space, key=words.name)]:
                life = f"expires in {span((found.expires_ms - now_ms) / 1_000)}" if found.expires_ms else "no ttl"
                lines.append(("stored", f"{words.place(key)}: {words.body(key, found.value)}; {life}"))
        return lines


class SeenOperations(EngineOperations):
    """An engine's operations, with a line for what a client or an operator does to its queues."""

    def __init__(self, engine: Engine, watch: Watch, name: Callable[[str, Message], None]) -> None:
        super().__init__(engine.core, engine.broker, engine.topology, engine.documents, engine.dead_letters)
        self._engine = engine
        self._watch = watch
        self._name = name

    async def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._name(output.destination, output.message)
        said = [self._sent(output) for output in outputs]
        call = super().send
        await self._watch.call("send", said, lambda: call(outputs), done)

    async def resubmit(
        self, queue: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        if first is not None:
            await first()
        call, said = super().resubmit, self._of(queue, sequence)
        await self._watch.call("resubmit", said, lambda: call(queue, sequence, attempt=attempt, edit=edit), done)

    async def discard(self, queue: str, sequence: int, *, first: First | None = None) -> None:
        if first is not None:
            await first()
        call = super().discard
        await self._watch.call("discard", self._of(queue, sequence), lambda: call(queue, sequence), done)

    async def note(self, name: str) -> Document | None:
        call = super().note
        said, words = [f"notes/{name}"], self._watch.words
        return await self._watch.call("read", said, lambda: call(name), words.document, name="note")

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        call, words, key = super().write_note, self._watch.words, DocumentKey("notes", name)
        condition = f" if {words.etag(key, version)}" if version else ""
        said = [f"note: {'replace' if version else 'create'} notes/{name}{condition}: {words.body(key, body)}"]
        return await self._watch.call(
            "write", said, lambda: call(name, body, version), lambda is_won: "won" if is_won else "lost", name="note"
        )

    def _sent(self, output: Output) -> str:
        message, words = output.message, self._watch.words
        age_s = (self._engine.now_ms() - message.created_ms) / 1_000
        return f"{words.content(message)} to {output.destination}{f', created {span(age_s)} ago' if age_s else ''}"

    def _of(self, queue: str, sequence: int) -> list[str]:
        found = [
            dead_letter for dead_letter in dead_letters(self._engine.broker, queue) if dead_letter.sequence == sequence
        ]
        return [f"dead letter {self._watch.words.message(dead_letter.message)} of {queue}" for dead_letter in found]


class Process:
    """One process of the application: it handles what it is handed, until it is killed."""

    def __init__(self, site: Site, name: str, app: Callable[[Ran], App]) -> None:
        self.site = site
        self.name = name
        self._watch = watch = site.watch(name)
        self._app = app(self._ran)
        self._plan = compile_app(self._app)
        self._tasks: list[asyncio.Task[None]] = []
        self._ports = ports = site.ports(watch)
        self._intake: Intake = ports.journal if isinstance(ports, Ports) else BusIntake(ports.bus)
        self._failure_log = FailureLog(site.engine.now_ms, lambda *_: None)
        self._scope = scope_over(
            self._plan,
            ports,
            now_ms=site.engine.now_ms,
            backoff=Backoff(no_wait),
            spawn=self._spawn,
            settled=lambda _: None,
            is_stopping=lambda: False,
            new_tx=site.new_tx,
            failure_log=self._failure_log,
        )

    def _ran(self, name: str, state: object) -> None:
        self.site.page.line(self.name, "run", f"{name} on {brief(msgspec.json.encode(state))}")

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        return task

    def next(self, call: str, kind: FaultKind, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let the next call of this name fail, or something happen before it."""
        self._watch.faults.append(Fault(call, kind, meanwhile))

    # What it does

    async def start(self) -> None:
        """Register the retention, as a worker does when it starts."""
        await register_retention(self._app.name, self._plan.retention, operations_over(self._ports))

    async def handle(self) -> None:
        """Take one batch of what is due, and handle it to its end, or until this process is killed."""
        await self._until_killed(self._batch())

    async def _batch(self) -> None:
        deliveries = await self._intake.claim(self._plan.paths, count_max=CLAIM_COUNT_MAX, wait_s=0)
        if deliveries:
            await self._scope.attempt(deliveries)
        while self._tasks:
            await self._tasks.pop(0)

    async def sweep(self) -> None:
        """Finish what crashes have left."""
        await self._until_killed(self._swept())

    async def _swept(self) -> None:
        assert isinstance(self._scope, StoreScope) and isinstance(self._ports, StorePorts), (
            "engine scope leaves nothing"
        )
        found = await sweep(self._scope.protocol, *stores_of(self._ports), now_ms=self.site.engine.now_ms)
        said = f"{found.seen_count} seen, {found.finished_count} finished, {found.young_count} too young"
        self.site.page.line(self.name, "swept", said)

    async def request(self, method: str, path: str, key: str, body: object) -> None:
        """Answer a request of the client's, or be killed by it."""
        self.site.name_request(key)
        page = self.site.page
        data = msgspec.json.encode(body)
        page.line("client", method, f"{path}, Idempotency-Key {key}, {brief(data)}")
        await self._until_killed(self._answer(method, path, key, data))

    async def _answer(self, method: str, path: str, key: str, data: bytes) -> None:
        scope = self._scope
        entry = HttpEntry(
            self._app,
            ServedPorts(self._ports),
            plan=self._plan,
            protocol=scope.protocol if isinstance(scope, StoreScope) else None,
            mark_after_s=0,
            sleep=no_wait,
            spawn=self._spawn,
            failure_log=self._failure_log,
        )
        response, _ = await entry.answered(method, path, {"Idempotency-Key": key}, data)
        assert response is not None, "no request is cut off here"
        self.site.page.line(self.name, "answer", f"{response.status} {brief(response.body)}")
        while self._tasks:
            await self._tasks.pop(0)

    async def _until_killed(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SimulatedCrash:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def done(_: object) -> str:
    """What a call answers that returns nothing."""
    return "done"
