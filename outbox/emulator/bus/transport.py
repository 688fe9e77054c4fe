"""The lower half of a connection: bytes in and out behind the gate, room, and work under way.

Decides when a client is written to and read from; what its messages mean is for `peer`, which stands on this together
with receivers, sessions and faults.  What all connections of one endpoint share is here too.

*Theory of operation.*  Everything that one read brought is handled at once, in memory; its answers stand in the
connection's buffer.  `Writer` passes the engine's gate between `take_answers` and `write`: so nothing leaves before
what it depends on is safe, and a hundred transfers cost one gate and one write.  While answers pile up, or the client
does not read, nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from outbox.emulator.amqp.connection import Connection
from outbox.emulator.amqp.errors import INTERNAL_ERROR
from outbox.emulator.amqp.limits import Limits, Pool
from outbox.emulator.amqp.states import State
from outbox.emulator.faults import Faults
from outbox.engine.engine import Engine
from outbox.errors import EngineStopped
from outbox.log_throttle import LogThrottle

log = logging.getLogger(__name__)

OUTPUT_MAX_BYTES = 1 << 20
"""Deliveries are added to the buffer up to here."""
KEEPALIVE_IDLE_S = 60
KEEPALIVE_COUNT = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts that all connections of one server share."""

    engine: Engine
    limits: Limits
    pool: Pool
    key: str | None
    """Signs the tokens; without one every token is taken."""
    faults: Faults
    log_lines: LogThrottle
    container_id: str = "outbox-servicebus"


class Room(Generic[T]):
    """The connections of one kind, up to a limit."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._guests: set[T] = set()
        self.deserted = asyncio.Event()
        """Set while none is here."""
        self.deserted.set()

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[T]:
        """The present guests; they may leave meanwhile."""
        return iter(list(self._guests))

    def admit(self, guest: T) -> bool:
        """Whether there is room for another."""
        if len(self._guests) >= self._count_max:
            return False
        self._guests.add(guest)
        self.deserted.clear()
        return True

    def leave(self, guest: T) -> None:
        """One is gone, if it was here."""
        self._guests.discard(guest)
        if not self._guests:
            self.deserted.set()


class Transport:
    """One client's bytes, and what runs on its behalf."""

    def __init__(
        self,
        endpoint: Endpoint,
        writer: Writer,
        *,
        on_room: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> None:
        """`on_room` is called when more may be sent, `on_failed` when a failure here ended the connection."""
        self.engine = endpoint.engine
        self.faults = endpoint.faults
        self.connection = Connection(container_id=endpoint.container_id, limits=endpoint.limits, pool=endpoint.pool)
        self.client = ""
        """The client's container id."""
        self.blocked = False
        """A receiver stopped for want of room."""
        self.broken = False
        """It was aborted: whatever the client still sends is passed over."""
        self.written_s = loop_time()
        self.ended_s: float | None = None
        """When the last bytes were written, with which the connection ends."""
        self._log_lines = endpoint.log_lines
        self._writer = writer
        self._on_room = on_room
        self._on_failed = on_failed
        self._wire: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writable = self._reading = True
        self._paused = False

    # The bytes

    def open(self, wire: asyncio.Transport) -> None:
        """Take the connection that was made."""
        self._wire = wire
        connection = wire.get_extra_info("socket")
        if connection is None:
            return
        # the system notices a client whose machine or network is gone; it says nothing and may wait for messages
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_IDLE_S),
            ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ):
            if hasattr(socket, name):  # not every system has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def abort(self) -> None:
        """Drop the connection without another byte, in or out."""
        self.broken = True
        if self._wire is not None:
            self._wire.abort()

    def pause_reading(self) -> None:
        """Read no more until there is room again."""
        if self._reading and self._wire is not None and not self._wire.is_closing():
            self._wire.pause_reading()
            self._reading = False

    def pause_writing(self) -> None:
        """The client does not read."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client reads again."""
        self._writable = True
        self._resume()

    def _resume(self) -> None:
        """Room was made: go on reading and sending."""
        if self._wire is None or self._wire.is_closing() or not self.has_room:
            return
        self.blocked = False
        if not self._reading:
            self._wire.resume_reading()
            self._reading = True
        asyncio.get_running_loop().call_soon(self._on_room)

    def pause(self, pause_s: float) -> None:
        """Neither read nor write for a while."""
        self._paused = True
        self.pause_reading()
        self.call_later(pause_s, self._end_pause)

    def _end_pause(self) -> None:
        self._paused = False
        self._resume()

    @property
    def backlog_bytes(self) -> int:
        """Answers that the client has not taken."""
        waiting = self._wire.get_write_buffer_size() if self._wire is not None else 0
        return waiting + self.connection.output.size_bytes

    @property
    def has_room(self) -> bool:
        """Whether more may be put into the buffer."""
        return self._writable and not self._paused and self.connection.output.size_bytes < OUTPUT_MAX_BYTES

    def flush_soon(self) -> None:
        """Have the buffer written once the gate is passed."""
        if not self._paused:
            self._writer.flush_soon(self)

    def take_answers(self) -> tuple[bytes, bool]:
        """The bytes to write once the gate is passed, and whether the connection ends with them."""
        if self._paused:
            return b"", False
        return self.connection.take_output(), self.connection.state is State.OVER

    def write(self, data: bytes, last: bool) -> None:
        """Write the taken bytes; the gate is passed."""
        wire = self._wire
        if wire is None or wire.is_closing():
            return
        if data:
            wire.write(data)
            self.written_s = loop_time()
        if last:
            self.ended_s = loop_time()
            wire.close()
        elif not self._reading or self.blocked:
            self._resume()

    # The work

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the connection lives."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, EngineStopped):
                self._log_failure(error)
            self.abort()

    def cancel_all(self) -> None:
        """Cancel the connection's tasks, because it is over."""
        for task in self._tasks:
            task.cancel()

    def call_later(self, delay_s: float, work: Callable[[], object]) -> None:
        """Do something once, if the connection still lives then, and write what came of it."""

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            with self.guarded():
                work()
            self.flush_soon()

        self.spawn(wait())

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let a failure here end this connection and nothing else."""
        try:
            yield
        except EngineStopped:
            self.abort()
        except Exception as error:
            self._log_failure(error)
            self.connection.fail(INTERNAL_ERROR, "the server failed on this; its log has the details")
            self._on_failed()

    def _log_failure(self, error: BaseException) -> None:
        is_due, left_out = self._log_lines.due("failed")
        if is_due:
            log.error("service bus connection failed; this is a bug", exc_info=error, extra={"left_out": left_out})


class Writer:
    """Writes the answers of all connections, those of one turn of the loop behind one passage of the gate."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dirty: set[Transport] = set()
        self._answers = asyncio.Event()

    def flush_soon(self, transport: Transport) -> None:
        """Write a connection's answers once the gate is passed."""
        if self._engine.log is None:  # nothing can be lost that is not lost with this process: the gate stands open
            transport.write(*transport.take_answers())
            return
        self._dirty.add(transport)
        self._answers.set()

    async def run(self) -> None:
        """Write answers as they come, until this is cancelled.

        Raises:
            EngineStopped: what was taken last is not safe, and was not written.
        """
        while True:
            await self._answers.wait()
            self._answers.clear()
            dirty, self._dirty = self._dirty, set()
            answers = [(transport, *transport.take_answers()) for transport in dirty]
            await self._engine.core.gate(alone=True)
            for transport, data, last in answers:
                transport.write(data, last)


def loop_time() -> float:
    """Monotonic seconds of the running loop."""
    return asyncio.get_running_loop().time()
