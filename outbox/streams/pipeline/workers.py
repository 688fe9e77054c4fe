"""Workers: processes that run a replica's operators, which have its states by their keys.

Theory of operation: a key belongs to a slot and a slot to a worker, so all records of a key meet in one process, in the
order of the source (`grouping`).  The runner alone has ports.  Where a worker dies or no longer answers, nothing of
this incarnation is worth keeping: the states of the others are ahead of what can be made again.  So all begin again at
the checkpoint, the living ones empty, and what comes from before is dropped until they answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import msgspec

from outbox.errors import CorruptRecord, FormatTooNew, NotRegistrable, OutboxError, Refused, TooLarge
from outbox.lineage import Key
from outbox.streams.cells import Position
from outbox.streams.pipeline.barrier import OutputUnstorable
from outbox.streams.pipeline.checkpoint import Section
from outbox.streams.pipeline.core import OperatorFailed
from outbox.streams.pipeline.cores import refused_entries
from outbox.streams.pipeline.exchange import (
    SINK,
    Answer,
    Begin,
    Exchange,
    Failed,
    FromWorker,
    Load,
    Look,
    Moved,
    Save,
    ToWorker,
    Unframed,
    came_aside,
    framed,
    identity_of,
    owner_of,
)
from outbox.streams.pipeline.grouping import Buffered
from outbox.streams.pipeline.operators import Frame, Record
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.states import SLOTS, key_of, text_of
from outbox.streams.pipeline.tasks import BeginAgain, Deliver, LocalTasks

IN_FLIGHT_MAX = 4
"""The frames of the source that are under way at once."""
STALLED_S = 30.0
"""How long a worker may say nothing."""
START_S = 60.0
"""How much longer it may while it starts."""
RESTARTS_MAX = 5
"""How often workers are started anew without a checkpoint between."""
SPARE = -1
"""The number of a worker that is there for when another dies."""
READ_BYTES = 1 << 18
_START = "import sys; sys.path[:] = sys.argv[1].split(chr(10)); from outbox.streams.pipeline.worker import main; main()"
_STOPS = {
    each.__name__: each
    for each in (OperatorFailed, OutputUnstorable, TooLarge, NotRegistrable, CorruptRecord, FormatTooNew)
}


class WorkerLost(OutboxError):
    """A pipeline's workers have ended too often without a checkpoint between."""


class WorkerDied(BeginAgain):
    """A worker has ended, or no longer answers."""


class Link:
    """A worker process, and the socket to it."""

    def __init__(self, number: int, process: Process, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.process = process
        self.writer = writer
        self.heard_s = time.monotonic() + START_S
        self.receiving: asyncio.Task[None] | None = None

    def end(self) -> None:
        """End the process at once."""
        self.writer.close()
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)  # `Process.kill` would take the news of its end from asyncio


class Workers:
    """The worker processes of one replica, through all its incarnations."""

    def __init__(self, plan: PipelinePlan, imported: str, number: int) -> None:
        """Take the name by which they import the pipeline, and how many they are.

        Raises:
            NotRegistrable: what goes between them has no known type.
        """
        self.exchange = Exchange(plan, number)
        self.grouping = plan.release.grouping
        self.stalled_s = STALLED_S
        self.restarts = -number
        """How often they were started anew since the last checkpoint."""
        self.ids = count(1)
        self.links: dict[int, Link] = {}
        self._name = plan.name
        self._imported = imported
        self._tasks: WorkerTasks | None = None
        self._reason = ""

    async def begin(self, tasks: WorkerTasks) -> None:
        """Start missing workers; messages go to these tasks from now on.

        Raises:
            WorkerLost: they have ended too often.
        """
        self._tasks = tasks
        for number in range(self.exchange.count):
            if number not in self.links:
                self.restarts += 1
                if self.restarts > RESTARTS_MAX:
                    raise WorkerLost(
                        f"pipeline {self._name}: its workers ended {self.restarts} times without a checkpoint between "
                        f"({self._reason}); see what they wrote, and whether there is memory for them, and run it again"
                    )
                spare = self.links.pop(SPARE, None) or await self._started()
                spare.number = number
                self.links[number] = spare

    async def have_spare(self) -> None:
        """Start one that takes the place of the next one that dies: to start takes a while."""
        if SPARE not in self.links:
            self.links[SPARE] = await self._started()

    async def _started(self) -> Link:
        path = "\n".join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109  # an entry is a text
        here, there = socket.socketpair()
        with there:
            words = ("-c", _START, path, str(there.fileno()), self._imported)
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, *words, stdin=DEVNULL, stdout=2, pass_fds=[there.fileno()]
                )
            except OSError as error:
                here.close()
                raise Refused(f"pipeline {self._name}: a worker could not be started ({error})") from error
        reader, writer = await asyncio.open_unix_connection(sock=here)
        link = Link(SPARE, process, writer)
        link.receiving = asyncio.create_task(self._receive(link, reader))
        return link

    async def _receive(self, link: Link, reader: asyncio.StreamReader) -> None:
        unframed = Unframed[FromWorker](FromWorker)
        reason = "it ended"
        try:
            while data := await reader.read(READ_BYTES):
                link.heard_s = time.monotonic()
                for message in unframed.feed(data):
                    if self._tasks is not None:
                        self._tasks.take(link.number, message)
        except Exception as error:
            reason = str(error)
        self._lose(link, reason)

    def send(self, number: int, message: ToWorker) -> None:
        """Send a message, if the worker is there."""
        link = self.links.get(number)
        if link is not None:
            link.writer.write(framed(message))

    def look(self) -> None:
        """Send heartbeats, and end workers that have been silent for too long."""
        for number, link in list(self.links.items()):
            if time.monotonic() - link.heard_s > self.stalled_s:
                self._lose(link, f"it said nothing for {self.stalled_s:g} s")
            else:
                self.send(number, Look(0))

    def _lose(self, link: Link, reason: str) -> None:
        """End a worker, and with it the incarnation."""
        link.end()
        if self.links.get(link.number) is link:
            del self.links[link.number]
            self._reason = f"worker {link.number}: {reason}"
            if self._tasks is not None and link.number != SPARE:
                self._tasks.fail(WorkerDied(f"pipeline {self._name}: {self._reason}"))

    async def stop(self) -> None:
        """End all."""
        links, self.links = self.links, {}
        for link in links.values():
            link.end()
            await link.process.wait()


class WorkerTasks:
    """All operators at work in workers."""

    def __init__(self, plan: PipelinePlan, deliver: Deliver, workers: Workers) -> None:
        self.at = Position(0)
        """The position that was fed last."""
        self._plan = plan
        self._deliver = deliver
        self._workers = workers
        self._exchange = workers.exchange
        self._local = LocalTasks(plan, deliver)
        """Operators without states, by which those of the workers are known and read."""
        self._sinks: dict[str, Buffered] = {}
        self._in_flight: deque[tuple[Frame, Sequence[str]]] = deque()
        self._begun: set[int] = set()
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._has_moved = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: BaseException = BeginAgain()
        self.beside: list[asyncio.Task[None]] = []
        """Tasks of asyncio beside it, which end with an error when nothing can go on."""

    async def begin(self, at: Position) -> None:
        """Start what workers are missing, and have all begin at a position, without states.

        Raises:
            WorkerDied: one died meanwhile.
            WorkerLost: they have ended too often.
            NotRegistrable: they have another pipeline.
        """
        self.at = at
        self._sinks = {SINK + name: Buffered(self._exchange.channels(SINK + name), at) for name in self._plan.sinks}
        self.beside.append(asyncio.create_task(self._watch()))
        await self._workers.begin(self)
        number = self._exchange.count
        begin = partial(Begin, count=number, at=at, grouping=self._workers.grouping)
        asked = [self._ask(each, partial(begin, worker=each)) for each in range(number)]
        if any(answer.data != [identity_of(self._plan)] for answer in await self._answers(asked)):
            raise NotRegistrable(
                f"pipeline {self._plan.name}: its workers import another one; give the imported= that names this"
            )
        await self._workers.have_spare()

    async def load(self, section: Section) -> bool:
        """Hand saved states to their owner; whether they are of another schema version than today's.

        Raises:
            GraphChanged: they are of none of the operators.
        """
        states, data = self._local.states_for(section), msgspec.json.encode(section)
        await self._answers([self._ask(section.slot % self._exchange.count, lambda id: Load(id, data))])
        return section.schema != states.schema

    async def feed(self, frame: Frame, ids: Sequence[str]) -> None:
        """Send a frame on its way, when there is room; `ids` are those of its entries."""
        self.at = frame.watermark
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            await self.arrived()
        self._check()
        self._in_flight.append((frame, ids))
        for moved in self._exchange.entries(frame):
            self._workers.send(moved.worker, Moved(moved.to, 0, moved.frame))

    async def arrived(self) -> bool:
        """Wait for outputs of frames that were fed; whether there are or may be any."""
        if not self._in_flight and not self._has_moved.is_set():
            return False
        await self._has_moved.wait()
        self._has_moved.clear()
        self._check()
        return True

    async def saved(self, since: Position | None) -> dict[tuple[str, int], Section]:
        """Sections of the states, behind the last frame fed, that have changed at or behind `since`.

        None: all states.
        """
        at = self.at
        asked = [self._ask(each, lambda id: Save(id, at, since)) for each in range(self._exchange.count)]
        data = [each for answer in await self._answers(asked) for each in answer.data]
        sections = [msgspec.json.decode(each, type=Section) for each in data]
        return {(section.operator, section.slot): section for section in sections}

    async def state(self, operator: str, key: Key) -> tuple[Any, Position]:
        """A copy of a key's state, None without one, and the position that it rests on."""
        found, at = await self._looked(operator, owner_of(key, self._exchange.count), key=text_of(key))
        return (found[0][1] if found else None), at

    async def items(self, operator: str) -> AsyncIterator[tuple[list[tuple[Key, Any]], Position]]:
        """The keys of each slot with copies of their states, and the position that these rest on."""
        for slot in range(SLOTS):
            yield await self._looked(operator, slot % self._exchange.count, slot=slot)

    async def _looked(
        self, operator: str, worker: int, *, key: str = "", slot: int = 0
    ) -> tuple[list[tuple[Key, Any]], Position]:
        states = self._local.states_of(operator)
        (answer,) = await self._answers([self._ask(worker, lambda id: Look(id, operator, key, slot))])
        pairs = zip(answer.data[::2], answer.data[1::2], strict=True)
        return [(key_of(text.decode()), states.decode(state, states.schema)) for text, state in pairs], answer.at

    def end(self) -> None:
        """Leave nobody waiting: the incarnation is over."""
        self.fail(BeginAgain())

    # What comes back

    def _ask(self, worker: int, make: Callable[[int], ToWorker]) -> asyncio.Future[Answer]:
        """Send a message to be answered, at once."""
        self._check()
        id = next(self._workers.ids)
        self._asked[id] = asyncio.get_running_loop().create_future()
        self._workers.send(worker, make(id))
        return self._asked[id]

    async def _answers(self, asked: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
        await asyncio.wait(asked)
        self._check()
        return [each.result() for each in asked]

    def _check(self) -> None:
        if self._ended.is_set():
            raise self._error

    def fail(self, error: BaseException) -> None:
        """End the incarnation; whoever waits for something of it gets this error."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()
            self._has_moved.set()
            for asked in self._asked.values():
                asked.cancel()

    async def _watch(self) -> None:
        """Wait for the end, and see that all workers are there."""
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._workers.stalled_s / 4):
                    await self._ended.wait()
            self._workers.look()
        raise self._error

    def take(self, worker: int, message: FromWorker) -> None:
        """Take what a worker sends; what it sends before its first answer is of an earlier incarnation.

        Raises:
            CorruptRecord, LookupError: it cannot be read.
        """
        match message:
            case Answer() if message.id in self._asked:
                self._begun.add(worker)
                asked = self._asked.pop(message.id)
                if not asked.done():
                    asked.set_result(message)
            case Failed():
                kind = _STOPS.get(message.kind, OutboxError)
                error = kind.__new__(kind, message.text)
                if isinstance(error, OperatorFailed) and message.at is not None:
                    error.position = message.at
                self.fail(error)
            case Moved() if worker in self._begun:
                self._moved(worker, message)

    def _moved(self, worker: int, moved: Moved) -> None:
        if not moved.to.startswith(SINK):
            self._workers.send(moved.worker, Moved(moved.to, worker, moved.frame))
            return
        channel = worker + self._exchange.count * moved.worker
        frame = self._sinks[moved.to].feed(channel, self._exchange.frame(moved))
        if frame is not None:
            is_refused = moved.to == self._exchange.refused
            try:
                if is_refused:
                    frame = frame._replace(records=self._refused(frame.records))
                self._deliver(moved.to.removeprefix(SINK), frame, not is_refused)
            except OutboxError as error:
                self.fail(error)
            least = min(sink.watermark for sink in self._sinks.values())
            while self._in_flight and self._in_flight[0][0].watermark <= least:
                self._in_flight.popleft()
            self._has_moved.set()

    def _refused(self, stored: Sequence[Record]) -> list[Record]:
        entries = [record for frame, _ in self._in_flight for record in frame.records]
        ids = [id for _, each in self._in_flight for id in each]
        return refused_entries(self._plan, entries, ids, came_aside(stored))
