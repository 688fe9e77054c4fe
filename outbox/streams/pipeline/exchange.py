"""The messages between the processes of a pipeline, their frames, and the owner of each record.

Everything is bytes of a known shape: a length, and as many bytes of MessagePack; values are as logs store them.  What a
worker sends on to another goes through the runner, which does not look into it.  Channels are first in, first out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

import msgspec

from outbox.errors import CorruptRecord, NotRegistrable, TooLarge
from outbox.lineage import Key, as_key
from outbox.streams.cells import DECODE_ERRORS, Position
from outbox.streams.pipeline.barrier import stored_records
from outbox.streams.pipeline.core import Refusal
from outbox.streams.pipeline.cores import ENTRIES, WITH_STATES
from outbox.streams.pipeline.event_time import NOW
from outbox.streams.pipeline.operators import Frame, Operator, Path, Record, emitted_kind
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.states import slot_of
from outbox.streams.plan import REFUSED
from outbox.streams.values import Values

T = TypeVar("T")

BYTES_MAX = 256 << 20
"""The most bytes of a message."""
_length = struct.Struct(">I")
SINK = "/"
"""The beginning of where the records of a sink go; its name follows."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To a worker: forget everything, and be number `worker` of `count` from a position on."""

    id: int
    worker: int
    count: int
    at: Position
    grouping: str


class Load(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To a worker: take a section of a checkpoint's part."""

    id: int
    section: bytes


class Save(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To a worker: save the states at a position, of which something changed since another; None: all."""

    id: int
    at: Position
    since: Position | None


class Look(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To a worker: say the state of a key, or of all keys of a slot.

    Without an operator it is a heartbeat."""

    id: int
    operator: str = ""
    key: str = ""
    slot: int = 0


class Moved(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Records on their way to an operator or a sink.

    `worker` is their owner; in a message to a worker it is the sender."""

    to: str
    worker: int
    frame: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From a worker: what it was asked for, and the position that this rests on."""

    id: int
    at: Position
    data: list[bytes] = []


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From a worker: an error that another try does not change, of this class, and its position in the source."""

    kind: str
    text: str
    at: Position | None = None


ToWorker = Begin | Load | Save | Look | Moved
FromWorker = Answer | Moved | Failed


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A frame on its way: places of records, values as JSON, and types where there are several."""

    watermark: Position
    ticks: Sequence[tuple[Position, int]]
    places: list[tuple[Position, Path, int]]
    values: bytes
    types: list[str]


_stored = msgspec.msgpack.Decoder(Stored)


def framed(message: ToWorker | FromWorker) -> bytes:
    """A message with its length.

    Raises:
        TooLarge: it has too many bytes.
    """
    data = msgspec.msgpack.encode(message)
    if len(data) > BYTES_MAX:
        raise TooLarge(
            f"{len(data)} bytes for another process are over {BYTES_MAX}; emit less for one entry, or give workers=0"
        )
    return _length.pack(len(data)) + data


class Unframed(Generic[T]):
    """The messages in what comes through a socket."""

    def __init__(self, kind: Any) -> None:
        """Take the type of all messages."""
        self._data = bytearray()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def feed(self, data: bytes) -> Iterator[T]:
        """The messages that end in these bytes.

        Raises:
            CorruptRecord: there is something else.
        """
        self._data += data
        while len(self._data) >= _length.size:
            (size,) = _length.unpack_from(self._data)
            if size > BYTES_MAX:
                raise CorruptRecord(f"a message of {size} bytes, over {BYTES_MAX}")
            end = _length.size + size
            if len(self._data) < end:
                return
            try:
                yield self._decoder.decode(bytes(self._data[_length.size : end]))
            except DECODE_ERRORS as error:
                raise CorruptRecord(f"a message that cannot be read ({error})") from error
            del self._data[:end]


class Exchange:
    """How the records of a pipeline go between its processes, of which `count` are workers."""

    def __init__(self, plan: PipelinePlan, count: int) -> None:
        """Take the plan.

        Raises:
            NotRegistrable: the type of what goes to another process is not known.
        """
        self.count = count
        self._plan = plan
        self.values = {ENTRIES: plan.source.log.values}
        """How the values are stored that go to an operator or a sink."""
        self.stages = [ENTRIES]
        """Where frames come in: the operators with states, which have those of some keys."""
        self.refused = ""
        """The sink of refused entries; empty without one."""
        for name, (operator, log) in plan.sinks.items():
            self.values[SINK + name] = log.values
            if operator.name == REFUSED:
                self.refused, self.values[SINK + name] = SINK + name, Values(name, tuple[str, str])
        for operator in plan.operators:
            if operator.kind in WITH_STATES:
                self.stages.append(operator.name)
                kind = emitted_kind(operator.upstream, plan.source.log.values.kind)
                if _is_timed(operator) and operator.window is not None:
                    kind = tuple[int, bool, operator.window[2]]  # type: ignore[name-defined]  # known when it runs
                if kind is None:
                    before = operator.upstream.name if operator.upstream else ""
                    raise NotRegistrable(
                        f"pipeline {plan.name}: with workers, what {before} emits goes to other processes; declare "
                        "emits= there, or give workers=0"
                    )
                self.values[operator.name] = Values(operator.name, kind)

    def channels(self, to: str) -> int:
        """How many processes send to an operator or a sink."""
        first = to == ENTRIES or any(one.name == to and one.upstream is None for one in self._plan.operators)
        return 1 if first else self.count * len(self.stages) if to == self.refused else self.count

    def shares(self, made: dict[str, Frame]) -> Iterator[tuple[str, int, Frame]]:
        """Split the outputs of operators by their next operator and its worker; the source's have no name."""
        for operator in self._plan.operators:
            before = made.get(operator.upstream.name if operator.upstream else ENTRIES)
            if operator.kind in WITH_STATES and before is not None:
                yield from zip(repeat(operator.name), range(self.count), self._split(operator, before))
        for name, (operator, _) in self._plan.sinks.items():
            if operator.name in made:
                yield SINK + name, 0, made[operator.name]

    def entries(self, frame: Frame) -> Iterator[Moved]:
        """The entries of the source: to operators with keys by those, to others in turn."""
        shares = list(self.shares({ENTRIES: frame}))
        if any(one.upstream is None and one.kind not in WITH_STATES for one in self._plan.operators) or self.refused:
            records = frame.records
            shares += [(ENTRIES, n, frame._replace(records=records[n :: self.count])) for n in range(self.count)]
        for share in shares:
            yield self.moved(*share)

    def _split(self, operator: Operator, frame: Frame) -> list[Frame]:
        shares: list[Frame] = [frame._replace(records=[]) for _ in range(self.count)]
        for record in frame.records:
            shares[slot_in(operator, record) % self.count].records.append(record)
        return shares

    def aside(self, made: Mapping[str, Frame], watermark: Position) -> Frame:
        """Refused records on their way to their sink: in the order of operators, by a number in the path."""
        records: list[Record] = [
            (at, (number, *path), at_ms, (reason, bytes(value or b"").decode()))
            for number, operator in enumerate(self._plan.operators)
            if operator.name in made
            for at, path, at_ms, (reason, value) in made[operator.name].refused
        ]
        return Frame(records, watermark)

    def moved(self, to: str, worker: int, frame: Frame) -> Moved:
        """A frame on its way.

        Raises:
            OutputUnstorable: a value cannot be stored.
        """
        raws, types = stored_records(self.values[to], frame.records, self._plan.name, f"on its way to {to}")
        places = [record[:3] for record in frame.records]
        stored = Stored(frame.watermark, frame.ticks, places, msgspec.json.encode(raws), types)
        return Moved(to, worker, msgspec.Raw(msgspec.msgpack.encode(stored)))

    def frame(self, moved: Moved) -> Frame:
        """A frame that has arrived; those of a sink have values as they are stored.

        Raises:
            CorruptRecord: it is none.
        """
        try:
            stored = _stored.decode(moved.frame)
            if moved.to.startswith(SINK) and moved.to != self.refused:
                raws = msgspec.json.decode(stored.values, type=list[msgspec.Raw])
                values: list[Any] = list(zip(raws, stored.types, strict=True)) if stored.types else raws
            else:
                values = self.values[moved.to].read(stored.values, stored.types)
            records = [(*place, value) for place, value in zip(stored.places, values, strict=True)]
        except (KeyError, ValueError, *DECODE_ERRORS) as error:
            raise CorruptRecord(f"what came for {moved.to} cannot be read ({error})") from error
        return Frame(records, stored.watermark, stored.ticks)


def came_aside(records: Sequence[Record]) -> list[Record]:
    """Refused records that were on their way, in order, as `refused_entries` takes them."""
    return [
        (at, path, at_ms, Refusal(reason, msgspec.Raw(value) if value else None))
        for at, path, at_ms, (reason, value) in records
    ]


def _is_timed(operator: Operator) -> bool:
    """Whether it takes values with their time."""
    return operator.upstream is not None and operator.upstream.kind == "time"


def identity_of(plan: PipelinePlan) -> bytes:
    """Text by which two processes know that they run the same pipeline."""
    return f"{plan.name} {plan.version} {plan.graph}".encode()


def slot_in(operator: Operator, record: Record) -> int:
    """The slot of an operator's states that has a record's key; 0 where it has none, which the operator says."""
    value = record[3][2] if _is_timed(operator) else record[3]
    try:
        return slot_of(NOW if operator.key is None else as_key(operator.key(value)))
    except Exception:
        return 0


def owner_of(key: Key, count: int) -> int:
    """The worker that a key belongs to."""
    return slot_of(key) % count
