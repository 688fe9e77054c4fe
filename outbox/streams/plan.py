"""The plan of a processor: its handler and its arguments, inputs and outputs, and how emitted values are stored.

def average(window: Window, inputs: Inputs, step: Step) -> None:
    window.items += [(step.now_ms, entry.value.degrees) for entry in inputs]
    step.emit("averages", Average(...))

A queue as an output: what a step emits to it is sent as messages.  Their bytes, types and keys are in the register
before one is sent, and their ids follow from the step: `<identity of the step>-<offset>`.  So any replica sends them,
as often as it takes, and a handler takes each once for as long as its application remembers ids.  They were created at
the time of their step, by the clock of the replica that took it: the processor's own time may be ahead, where one
replica's clock was.  The next step begins when all of one have been sent.  A replica that was paused sends them again
later, all with their own ids: copies, and never another order of the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.codec import DECODE_ERRORS, Codec, StateCodec, codec_for
from outbox.errors import NotRegistrable, OutboxError, PoisonMessage, TooLarge, UnknownDestination
from outbox.lineage import as_key
from outbox.message import ID_BYTES_MAX, Message, schema_properties
from outbox.ports import BLOBS_CURE, NoBlobs, Output, QueueRef
from outbox.retries import Retries
from outbox.runtime.delivery.claim_check import check_in
from outbox.streams.callables import check_call
from outbox.streams.cells import Cell
from outbox.streams.horizon import trimmed
from outbox.streams.log import LogReader, LogWriter, OrderedLog
from outbox.streams.log_places import Place
from outbox.streams.register import Out
from outbox.streams.row import Entry, Row
from outbox.streams.values import ENTRIES_MAX


class QueueOutput:
    """A queue as an output: values as messages, and sending them."""

    def __init__(self, queue: QueueRef) -> None:
        self.queue = queue
        self._codecs: dict[type[Any], Codec] = {}

    def out(self, name: str, values: Sequence[Any]) -> Out:
        """Values as the messages that the register holds.

        Raises:
            PoisonMessage: a value cannot be a message of this queue.
        """
        raws = [self._encoded(value) for value in values]
        types = [self.queue.type or self._codecs[type(value)].name for value in values]
        keys = [] if self.queue.key is None else [self._key(self.queue.key(value)) for value in values]
        return Out(name, raws, types, self.queue.version, keys)

    def _encoded(self, value: Any) -> msgspec.Raw:
        kind = type(value)
        try:
            codec = self._codecs.get(kind)
            if codec is None:
                codec = self._codecs[kind] = codec_for(kind, kind.__name__)
            data = codec.encode(value)
            if b"null" in data:
                codec.decode(data)  # None may stand in a field of numbers
        except (TypeError, NotRegistrable, PoisonMessage, *DECODE_ERRORS) as error:
            raise self._unstorable(f"a {kind.__name__} cannot be sent: {error}; emit plain data of a class") from error
        if len(data) > CLAIM_CHECK_BYTES and isinstance(self.queue.blobs, NoBlobs):
            raise self._unstorable(f"a message of {len(data)} bytes needs a blob store; {BLOBS_CURE}")
        return msgspec.Raw(data)

    def _key(self, given: Any) -> str:
        try:
            key = str(as_key(given))
            size_bytes = len(key.encode())
        except ValueError as error:  # a text that is no UTF-8 as well
            raise self._unstorable(f"a message has no key ({error}); let key= give one for every value") from error
        if size_bytes > ID_BYTES_MAX:
            raise self._unstorable(f"a key of over {ID_BYTES_MAX} bytes; give a shorter one, a digest for example")
        return key

    def _unstorable(self, text: str) -> PoisonMessage:
        return PoisonMessage("unstorable", f"queue {self.queue.name!r}: {text}")

    async def write(self, id: str, out: Out, *, since: int, at_ms: int, until_ms: int) -> int:
        """Send what a step emitted; again, by any replica, they are the same messages.

        Raises:
            UnknownDestination: the queue is not there.
            OutcomeUnknown, Refused: not all are known to be sent; send them again.
        """
        messages = [await self._message(id, offset, out, at_ms) for offset in range(len(out.v))]
        await self.queue.send([Output(self.queue.name, 0, message) for message in messages])
        return since

    async def _message(self, id: str, offset: int, out: Out, at_ms: int) -> Message:
        message = Message(
            body=bytes(out.v[offset]),
            outbox_id=f"{id}-{offset}",
            type=out.types[offset],
            created_ms=at_ms,
            session_id=out.keys[offset] if out.keys else "",
            properties=schema_properties(out.schema),
        )
        return await check_in(message, self.queue.blobs, above_bytes=CLAIM_CHECK_BYTES)


BATCH_MAX = 64
HANDLER_S = 30.0
REFUSED = "refused~"
"""The output of refused entries; no name that a user gives."""


class Skip:
    """Emitted in place of a value: nothing."""


class Inputs:
    """The entries that a step handles: all, ordered by their inputs' names and positions, or those of one input."""

    def __init__(self, found: Mapping[str, Sequence[Entry[Any]]]) -> None:
        self._found = {name: list(found[name]) for name in sorted(found)}

    def __iter__(self) -> Iterator[Entry[Any]]:
        return (entry for entries in self._found.values() for entry in entries)

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def __getitem__(self, name: str) -> list[Entry[Any]]:
        return self._found[name]


class Step:
    """The step of a processor, as its handler sees it.

    `now_ms` is the time of the step, milliseconds since 1970: the same on each try, and never earlier than before;
    `serial` counts the swaps of the processor's register.
    """

    def __init__(self, outputs: Sequence[str], now_ms: int, serial: int) -> None:
        self.now_ms = now_ms
        self.serial = serial
        self.emitted: dict[str, list[Any]] = {}
        self.wake_ms = 0
        self.saved: list[Any] = []
        self.outputs = outputs

    def emit(self, output: str, value: Any) -> None:
        """Append a value to an output; a `Skip` is nothing.

        Raises:
            UnknownDestination: the processor has no such output.
            TooLarge: the step has emitted too much to it.
        """
        if output not in self.outputs:
            raise UnknownDestination(
                f"the processor has no output {output!r}, it has {', '.join(self.outputs) or 'none'}; declare it"
            )
        if value is Skip or isinstance(value, Skip):
            return
        values = self.emitted.setdefault(output, [])
        if len(values) >= ENTRIES_MAX:
            raise TooLarge(
                f"a step emits at most {ENTRIES_MAX} entries to {output!r}; handle fewer at once: batch_max="
            )
        values.append(value)

    def save(self, state: Any) -> None:
        """Replace the state, where it is not changed in place."""
        self.saved = [state]

    def wake_at(self, ms: int) -> None:
        """Ask for a step at a time, `ms` since 1970 in milliseconds, whether there is input then or not.

        Raises:
            ValueError: that is no time.
        """
        if not isinstance(ms, int | float) or isinstance(ms, bool) or not 0 < ms < 1 << 62:
            raise ValueError(f"wake_at({ms!r}): give milliseconds since 1970, such as step.now_ms + 60_000")
        ms = int(ms)
        self.wake_ms = ms if not self.wake_ms else min(self.wake_ms, ms)


Handler = Callable[[Any, Inputs, Step], Any]


class Target(Protocol):
    """Where the outs of one row of an output go."""

    async def write(self, id: str, out: Out, *, since: int, at_ms: int, until_ms: int) -> int:
        """Write what a step emitted, once under its identity; from where on the next is looked for."""


@dataclass(frozen=True, slots=True)
class RowTarget:
    """A row of a log as a target."""

    row: Row[Any]

    async def write(self, id: str, out: Out, *, since: int, at_ms: int, until_ms: int) -> int:
        await self.check_reaches(since)  # a blob of what was trimmed would stay
        made = Cell(id, at_ms, len(out.v), out.v, out.types, out.schema)
        cell = await self.row.fitted(made, owner=id)  # of one step of one register, and so of all replicas
        placed = await self.row.place_cell(cell, since, until_ms=until_ms)
        if placed is None:  # the register has gone on
            raise trimmed(self.row.name, since, self.row.horizon.index)
        index, found, walked_count = placed
        await self.row.discard_unless_named(cell, found)
        if not found.gone and (found.v, found.digest) != (cell.v, cell.digest):
            raise NotRegistrable(
                f"{self.row.name}: cell {index} has the identity of this step and other entries: another processor of "
                "this name, with a register elsewhere, writes to this log; give one of them another name"
            )
        await self.row.cells.raise_hint_if_due(walked_count)
        return index + 1

    async def check_reaches(self, since: int) -> None:
        """Check that a cell may be looked for, and written, from an index on; see `Row.check_reaches`."""
        await self.row.check_reaches(since, "where an output goes on")


async def check_reached(targets: Mapping[str, Target], since: Mapping[str, int]) -> None:
    """Check that these rows can be written from their indexes on, before a register holds the writes.

    Raises:
        Refused: a log was trimmed beyond that, or ends before it.
    """
    for key, index in since.items():
        target = targets[key]
        if isinstance(target, RowTarget):
            await target.check_reaches(index)


def until_ms(target: Target, left_ms: int, now_ms: Callable[[], int]) -> int:
    """The time by which a write with `left_ms` left must end, by the clock of its target.

    A row's clock is its own store's, and may be far from the register's.
    """
    clock = target.row.place.now_ms if isinstance(target, RowTarget) else now_ms
    return clock() + left_ms


class RefusedEntry(msgspec.Struct, frozen=True):
    """An entry that a handler or an operator refused, and why; what a `refused` log holds.

    Where the function of a window refuses, `value` is an array of the values of the window, `position` that of the
    entry that closed it, and `id` is empty.
    """

    input: str
    position: str
    id: str
    reason: str
    value: msgspec.Raw


class HandlerFailed(OutboxError):
    """A processor's handler fails on the next step; the processor stands still, nothing is lost."""


@dataclass(frozen=True)
class ProcessorPlan:
    """The plan of a processor: its handler, its state, its inputs and outputs by name, and its limits."""

    name: str
    handler: Handler
    codec: StateCodec
    inputs: Mapping[str, LogReader[Any]]
    outputs: Mapping[str, Any]
    version: int = 1
    refuses: bool = False
    retries: Retries = field(default_factory=Retries)
    batch_max: int = BATCH_MAX
    handler_s: float = HANDLER_S

    @property
    def code(self) -> str:
        """The handler by name."""
        return f"{getattr(self.handler, '__module__', '')}.{getattr(self.handler, '__qualname__', 'handler')}"

    @property
    def emits_to(self) -> list[str]:
        """The outputs that a handler may emit to."""
        return [name for name in self.outputs if name != REFUSED]

    def on(self, place: Callable[[OrderedLog[Any]], Place]) -> ProcessorPlan:
        """The same processor over its logs on other places, as a process sees them that has just begun."""
        known: dict[int, OrderedLog[Any]] = {}

        def moved(shard: Any) -> Any:
            if not isinstance(shard, LogReader | LogWriter):
                return shard
            return replace(shard, log=known.setdefault(id(shard.log), shard.log.on(place(shard.log))))

        inputs = {name: moved(shard) for name, shard in self.inputs.items()}
        return replace(self, inputs=inputs, outputs={name: moved(shard) for name, shard in self.outputs.items()})

    def rows(self) -> dict[str, dict[str, Row[Any]]]:
        """The rows of each input, by the names that they have in the register."""
        return {
            name: {row_key(name, row.writer, reader.log.writers): row for row in reader.rows()}
            for name, reader in self.inputs.items()
        }

    def targets(self) -> dict[str, Target]:
        """Where outs go, by the name that they have in the register."""
        found: dict[str, Target] = {}
        for name, output in self.outputs.items():
            found |= rows_written(name, output) if isinstance(output, LogWriter) else {name: output}
        return found

    def outs(self, emitted: Mapping[str, Sequence[Any]]) -> list[Out]:
        """Encode the emitted values of a step: one cell for each row.

        Raises:
            PoisonMessage: a value cannot be stored.
        """
        outs: list[Out] = []
        for name in sorted(emitted):
            output = self.outputs[name]
            if not isinstance(output, LogWriter):
                outs.append(output.out(name, emitted[name]))
                continue
            shares: dict[int, list[Any]] = {}
            for value in emitted[name]:
                shares.setdefault(output.log.reader_of(value), []).append(value)
            for reader in sorted(shares):
                raws, types = output.log.values.encoded(shares[reader])
                outs.append(Out(row_key(name, reader, output.log.readers), raws, types, output.log.values.version))
        return outs


def row_key(name: str, shard: int, count: int) -> str:
    """The name of a row in a register: that of its input or output, and which of several it is."""
    return name if count == 1 else f"{name}/{shard}"


def names_of(rows: Mapping[str, Row[Any]]) -> dict[str, str]:
    """Rows by name."""
    return {key: row.name for key, row in rows.items()}


def rows_written(name: str, writer: LogWriter[Any]) -> dict[str, RowTarget]:
    """The rows of a writer shard as targets, one for each reader, by their names in a register."""
    rows = [writer.log.row(writer.writer, reader) for reader in range(writer.log.readers)]
    return {row_key(name, row.reader, len(rows)): RowTarget(row) for row in rows}


def input_of(name: str, given: Any) -> LogReader[Any]:
    """Take a user's input as one reader.

    Raises:
        NotRegistrable: it cannot be one.
    """
    if isinstance(given, OrderedLog) and given.readers == 1:
        return given.reader(0)
    if not isinstance(given, LogReader):
        raise NotRegistrable(f"input {name!r} is no log with one reader; give an OrderedLog, or one of its .reader(n)")
    return given


def output_of(name: str, given: Any) -> Any:
    """Take a user's output as one writer or a queue.

    Raises:
        NotRegistrable: it cannot be one.
    """
    if isinstance(given, OrderedLog):
        if given.writers > 1:
            raise NotRegistrable(f"processor {name}: log {given.name} has {given.writers} writers; give .writer(n)")
        return given.writer(0)
    if isinstance(given, QueueRef):
        if given.key is not None:
            check_call(f"processor {name}: key= of queue {given.name}", given.key, "value")
        return QueueOutput(given)
    if not isinstance(given, LogWriter) and not hasattr(given, "out"):
        raise NotRegistrable(f"processor {name}: {type(given).__name__} is no output; give a log, or a backend's queue")
    return given
