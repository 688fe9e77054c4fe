"""A history of what a system did, as JSON lines: written while it runs, read by a judge.

Theory of operation.  `append` buffers; `begin` appends an invocation and hands everything to the operating system
before it returns.  So when a process dies, by `kill -9` too, every operation that can have taken effect stands in the
file, and what the file lacks at the end are only answers: an operation without one counts as unknown, which a judge
resolves by what is seen of it later.  A new process appends a `life`; it holds the name of the machine's run (`boot`).
In the same run nothing can be missing; after a power loss the file's tail may be, and only then does a judge take a
version or message without a writer for one whose line was lost, and counts it.  Nothing is fsynced here.

A history never stands in the way of the system: when the file reaches its limit or cannot be written, recording stops
with a `cut` and says why in `stopped`.  A line that a dying process wrote half is `torn`; damage elsewhere is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from outbox.errors import CorruptRecord, TooLarge
from outbox.verify.recorded.events import (
    AnyEvent,
    Commit,
    Cut,
    End,
    Event,
    Fail,
    Life,
    Ok,
    Operation,
    Quiesce,
    Tally,
    Torn,
    Unknown,
)

log = logging.getLogger("outbox.history")

BUFFER_BYTES_MAX = 1 << 18
SIZE_BYTES_MAX = 16 << 30
MEMORY_BYTES_MAX = 1 << 30
LINE_BYTES_MAX = 64 << 20
"""A commit of a hundred messages takes some 60 kB; a line beyond this is not one of ours."""


class History:
    """Writes a history: to a file, which it continues, or to memory without one.

    `bodies` keeps whole messages, so that handlings can be run again: then the file holds people's data.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        bodies: bool = False,
        size_bytes_max: int | None = None,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self.bodies = bodies
        self.stopped = ""
        """Why nothing more is recorded; empty while it is."""
        self.now_ms = now_ms
        """The recorder's time, milliseconds since 1970."""
        self._ops = 0
        self._buffer = bytearray()
        self._memory = bytearray()
        self._encode = msgspec.json.Encoder().encode_into
        self._buffer_bytes_max = buffer_bytes_max
        self._size_bytes_max = size_bytes_max or (MEMORY_BYTES_MAX if path is None else SIZE_BYTES_MAX)
        self._file: BinaryIO | None = None
        self.size_bytes = 0
        if path is not None:
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  # open for as long as this object
            self.size_bytes = self._file.tell()
            if self.size_bytes and not _ends_in_newline(Path(path)):
                self._buffer += b"\n"  # a process died while it wrote: its line stays torn, ours is whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What recorders call

    def next_op(self) -> int:
        """A number for an operation; none repeats within a life."""
        self._ops += 1
        return self._ops

    def append(self, event: Event) -> None:
        """Add an event; it may stay in this process's memory for a while."""
        if self.stopped:
            return
        buffer = self._buffer
        self._encode(event, buffer, -1)
        buffer += b"\n"
        if len(buffer) > self._buffer_bytes_max:
            self.flush()

    def begin(self, operation: Operation) -> None:
        """Add an invocation; on return it survives this process."""
        self.append(operation)
        self.flush()

    def ok(self, op: int) -> None:
        """The operation took effect."""
        self.append(Ok(op=op, at_ms=self.now_ms()))

    def fail(self, op: int, why: str) -> None:
        """The operation had no effect."""
        self.append(Fail(op=op, why=why, at_ms=self.now_ms()))

    def unknown(self, op: int, why: str) -> None:
        """The outcome of the operation is unknown."""
        self.append(Unknown(op=op, why=why, at_ms=self.now_ms()))

    # What the host calls

    def life(
        self,
        *,
        name: str = "",
        boot: str = "",
        sequence: int = 0,
        is_empty: bool = False,
        tallies: dict[str, Tally] | None = None,
    ) -> None:
        """A process begins to record; see `Life`."""
        self.append(
            Life(
                at_ms=self.now_ms(),
                name=name,
                boot=boot,
                sequence=sequence,
                is_empty=is_empty,
                tallies=tallies or {},
            )
        )
        self.flush()

    def quiesce(
        self,
        queues: Iterable[str],
        *,
        tallies: dict[str, Tally] | None = None,
        dead: dict[str, list[int]] | None = None,
    ) -> None:
        """Nothing waits in these queues or is being handled: whatever is to happen has happened."""
        self.append(Quiesce(at_ms=self.now_ms(), queues=list(queues), tallies=tallies or {}, dead=dead or {}))
        self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        buffer = self._buffer
        if not buffer:
            return
        if self.size_bytes + len(buffer) > self._size_bytes_max:
            buffer.clear()
            self._stop(f"the history has reached {self._size_bytes_max} bytes; move it away")
            return
        try:
            self._write(buffer)
        except OSError as error:
            self._stop(f"the history cannot be written ({error}); free the disk")
        buffer.clear()

    def close(self) -> None:
        """Say that the process stops of its own accord, and let the file go."""
        self.append(End(at_ms=self.now_ms()))
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        self.stopped = self.stopped or "the history is closed"

    def events(self) -> Iterator[AnyEvent]:
        """The events of a history in memory."""
        self.flush()
        return parse(line for line in bytes(self._memory).split(b"\n") if line)

    def _write(self, data: bytearray) -> None:
        if self._file is None:
            self._memory += data
        else:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        self.size_bytes += len(data)

    def _stop(self, why: str) -> None:
        """Record nothing more; the system goes on; a `cut` says so where the disk takes one."""
        self.stopped = why
        log.error("recording stopped: %s", why)
        line = bytearray(msgspec.json.encode(Cut(at_ms=self.now_ms(), why=why)) + b"\n")
        try:
            self._write(line)
        except OSError:
            return  # said in the log already


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_history(path: str | os.PathLike[str]) -> Iterator[AnyEvent]:
    """The events of a file, one for each line, so that an event's number from 1 is its line.

    Raises:
        CorruptRecord: a line that is not the last of its process is no event.
        TooLarge: a line is longer than any event can be.
    """
    with Path(path).open("rb") as file:
        yield from parse(_lines(file), name=str(path))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise TooLarge(f"line {number} is over {LINE_BYTES_MAX} bytes; this is no history, look where it came from")
        yield line


_decode: Callable[[bytes], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode


def parse(lines: Iterable[bytes], *, name: str = "the history") -> Iterator[AnyEvent]:
    """The events that lines mean.  A line that cannot be read is `torn` if its process wrote nothing after it."""
    torn = 0
    error: Exception | None = None
    for number, line in enumerate(lines, 1):
        try:
            event = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as found:
            torn, error = torn or number, error or found
            yield Torn(size_bytes=len(line))
            continue
        if torn and not isinstance(event, Life):
            raise CorruptRecord(f"{name}: line {torn} is no event ({error}); restore the file from where it was copied")
        torn, error = 0, None
        yield event


def count_of(event: AnyEvent) -> int:
    """How much happened in a line: one for each message, state and output that it tells of, at least one."""
    if isinstance(event, Commit):
        return max(1, len(event.ended) + len(event.buried) + len(event.changes) + len(event.outputs))
    parts = getattr(event, "deliveries", None) or getattr(event, "messages", None) or getattr(event, "outputs", None)
    return len(parts) if parts else 1
