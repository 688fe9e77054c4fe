"""A snapshot: the engine's memory as a pure function of the records up to exactly one ordinal.

Three ways lead to one: at open (the memory just replayed), on request of a running host, and as a separate job over
the snapshot and the sealed segments of a folder that a host is using.  All three encode a `State` that nobody changes
meanwhile: that of an engine which does nothing else, or one of the job's own.  So the slices of a large snapshot are of
one moment however long they take to write.

Theory of operation.  A snapshot is encoded, written and read back one slice at a time, so that none of it needs more
memory than the state and a slice.  Nothing is retired before what then has the snapshot's name was read whole, as an
open will read it: every checksum, every image as its type, every queue declared.  A crash anywhere before the
retirement leaves what the snapshot replaces, and at most a temporary file more.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.engine.log import records
from outbox.engine.log.disk import Disk
from outbox.engine.log.segments import Recovery, read_sealed, snapshot_name
from outbox.engine.log.slices import SLICED_FORMAT, bodies, sliced, whole
from outbox.engine.log.wal import Log, store_snapshot
from outbox.engine.state.queues import Queue
from outbox.engine.state.rules import Rule
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.state import State
from outbox.engine.state.tasks import Task, held_bytes_of, reply_bytes_of, version_of
from outbox.errors import CorruptRecord, FormatTooNew, Refused
from outbox.ports import Marker, Refusal, StateDocument

FORMAT_VERSION = SLICED_FORMAT
"""The format with slices; a snapshot without any is written in an older one, for older code to read."""
RULED_VERSION = 2
"""2 has rules of subscriptions and the numbers of deleted queues."""
PLAIN_VERSION = 1
SMALL_BYTES = 8 << 20
"""A snapshot up to this size is written anew by every open that finds records behind it."""
GROWTH_MIN = 1 / 4
"""The growth of a larger one, as a part of its size, that lets an open write it anew."""
SEGMENT_COUNT_MAX = 64
"""Or this many segments, because every open starts one."""
SLICE_BYTES = 1 << 20
"""The estimated bytes of a state that go into one slice, or into a snapshot without slices."""
_RUN_COUNT = 256
_ENTRY_BYTES = 200

T = TypeVar("T")


class QueueImage(msgspec.Struct, array_like=True, gc=False):
    """One primary queue with its dead letters."""

    settings: QueueSettings
    tasks: list[Task]
    dead_letters: list[Task]
    seen: dict[str, int]
    sessions: dict[str, bytes]
    received_count: int = 0


class Image(msgspec.Struct, array_like=True, gc=False):
    """Everything that the engine remembers."""

    format: int
    ordinal: int
    time_ms: int
    sequence: int
    queues: list[QueueImage]
    topics: list[TopicSettings]
    documents: dict[str, dict[str, StateDocument]]
    applied: dict[bytes, bytes]
    refused: dict[bytes, Refusal]
    marker_ages: list[tuple[int, list[bytes]]]
    renewed: dict[bytes, int]
    operations: dict[str, tuple[int, list[int]]]
    rules: dict[str, list[Rule]] = {}
    free: list[int] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Image)


def encode(state: State, ordinal: int) -> bytes:
    """The state as bytes; expiry is judged by the time that the log knows, never by a clock."""
    return b"".join(encoded(state, ordinal))


def encoded(state: State, ordinal: int) -> Iterator[bytes]:
    """The same piece by piece; nothing may change the state before the last one."""
    state.forget(state.time_ms)
    for queue in state.queues:
        if queue.is_primary:
            queue.forget_seen(state.time_ms)
    parts = _cut(state, ordinal)
    first = next(parts)
    count = 1 + sum(1 for _ in parts)
    if count == 1:
        yield whole(_encoder.encode(first))
    else:
        yield from sliced(ordinal, count, lambda: map(_encoder.encode, _cut(state, ordinal, SLICED_FORMAT)))


@dataclass(slots=True)
class _Part:
    """One image while it is filled, its queues by name."""

    image: Image
    queues: dict[str, QueueImage] = field(default_factory=dict)
    size_bytes: int = 0

    def queue(self, settings: QueueSettings) -> QueueImage:
        """The image of a queue, added where it is missing."""
        found = self.queues.get(settings.name)
        if found is None:
            found = self.queues[settings.name] = QueueImage(settings, [], [], {}, {})
            self.image.queues.append(found)
        return found


_Put = Callable[[_Part], object]


def _cut(state: State, ordinal: int, format: int = 0) -> Iterator[Image]:
    """Images that together hold the state; the first one declares everything."""
    part = _declared(state, ordinal, format)
    for size_bytes, put in _runs(state):
        if part.size_bytes and part.size_bytes + size_bytes > SLICE_BYTES:
            yield part.image
            part = _Part(Image(format, ordinal, 0, 0, [], [], {}, {}, {}, [], {}, {}))
        part.size_bytes += size_bytes
        put(part)
    yield part.image


def _declared(state: State, ordinal: int, format: int) -> _Part:
    """The first image, with every queue and nothing in them."""
    version = format or (RULED_VERSION if state.rules or state.free else PLAIN_VERSION)
    part = _Part(Image(version, ordinal, state.time_ms, state.sequence, [], [], {}, {}, {}, [], {}, {}))
    for queue in _queues(state):
        part.queue(queue.settings).received_count = queue.received_count
    image = part.image
    image.topics = list(state.topics.values())
    image.documents = {name: {} for name in state.documents.spaces}
    image.rules = {path: list(rules.values()) for path, rules in state.rules.items()}
    image.free = state.free
    return part


def _queues(state: State) -> Iterator[Queue]:
    """Every primary queue in the order of the numbers."""
    return (state.queues[number] for number in sorted(set(range(0, len(state.queues), 2)) - set(state.free)))


def _runs(state: State) -> Iterator[tuple[int, _Put]]:
    """Everything that grows, in runs of which each fits into a slice unless it is a single thing."""
    for queue in _queues(state):
        dead, put = state.queues[queue.number + 1], partial(_put_queued, queue.settings)
        sessions = queue.order.sessions.values() if isinstance(queue.order, SessionOrder) else ()
        states = [(session.id, session.state) for session in sessions if session.state]
        yield from _in_runs(queue.tasks.values(), _task_bytes, partial(put, "tasks"))
        yield from _in_runs(dead.tasks.values(), _task_bytes, partial(put, "dead_letters"))
        yield from _in_runs(queue.seen.items(), _entry_bytes, partial(put, "seen"))
        yield from _in_runs(states, _text_bytes, partial(put, "sessions"))
    for name, space in state.documents.spaces.items():
        lasting = (item for item in space.items() if not 0 < item[1].expires_ms <= state.time_ms)
        yield from _in_runs(lasting, _document_bytes, partial(_put_documents, name))
    markers = state.markers
    yield from _in_runs(markers.known.items(), _marker_bytes, _put_markers)
    yield from _in_runs(sorted(markers.ages), _age_bytes, partial(_put, "marker_ages"))
    yield from _in_runs(markers.renewed.items(), _entry_bytes, partial(_put, "renewed"))
    yield from _in_runs(state.operations.items(), _operation_bytes, partial(_put, "operations"))


def _in_runs(
    items: Iterable[T], size_of: Callable[[Sequence[T]], int], put: Callable[[Sequence[T], _Part], None]
) -> Iterator[tuple[int, _Put]]:
    source = iter(items)
    while run := list(islice(source, _RUN_COUNT)):
        for size_bytes, half in _halved(run, size_of):
            yield size_bytes, partial(put, half)


def _halved(run: Sequence[T], size_of: Callable[[Sequence[T]], int]) -> Iterator[tuple[int, Sequence[T]]]:
    size_bytes = size_of(run)
    if size_bytes <= SLICE_BYTES or len(run) == 1:
        yield size_bytes, run
    else:
        middle = len(run) // 2
        yield from _halved(run[:middle], size_of)
        yield from _halved(run[middle:], size_of)


def _task_bytes(tasks: Sequence[Task]) -> int:
    return held_bytes_of([task.message for task in tasks]) + _ENTRY_BYTES * len(tasks)


def _entry_bytes(entries: Sequence[object]) -> int:
    return _ENTRY_BYTES * len(entries)


def _text_bytes(entries: Sequence[tuple[str, bytes]]) -> int:
    return sum([len(text) for _, text in entries]) + _ENTRY_BYTES * len(entries)


def _document_bytes(entries: Sequence[tuple[str, StateDocument]]) -> int:
    return sum([len(document.value) for _, document in entries]) + _ENTRY_BYTES * len(entries)


def _marker_bytes(entries: Sequence[tuple[bytes, Marker]]) -> int:
    return reply_bytes_of([marker for _, marker in entries]) + _ENTRY_BYTES * len(entries)


def _age_bytes(entries: Sequence[tuple[int, list[bytes]]]) -> int:
    return _ENTRY_BYTES * sum([len(keys) for _, keys in entries])


def _operation_bytes(entries: Sequence[tuple[str, tuple[int, list[int]]]]) -> int:
    return sum([9 * len(sequences) for _, (_, sequences) in entries]) + _ENTRY_BYTES * len(entries)


def _put(field: str, entries: Sequence[Any], part: _Part) -> None:
    _add(getattr(part.image, field), entries)


def _put_queued(settings: QueueSettings, field: str, entries: Sequence[Any], part: _Part) -> None:
    _add(getattr(part.queue(settings), field), entries)


def _put_documents(name: str, documents: Sequence[tuple[str, StateDocument]], part: _Part) -> None:
    part.image.documents.setdefault(name, {}).update(documents)


def _put_markers(known: Sequence[tuple[bytes, Marker]], part: _Part) -> None:
    part.image.applied.update((key, marker) for key, marker in known if isinstance(marker, bytes))
    part.image.refused.update((key, marker) for key, marker in known if isinstance(marker, Refusal))


def _add(held: list[Any] | dict[Any, Any], entries: Sequence[Any]) -> None:
    if isinstance(held, list):
        held.extend(entries)
    else:
        held.update(entries)


def decode(data: bytes) -> tuple[State, int]:
    """The state that a snapshot holds, and the ordinal up to which.

    Raises:
        CorruptRecord: the bytes are not a whole snapshot.
        FormatTooNew: a newer version of the code wrote it.
    """
    state, ordinal = restored((data,))
    state.rebuild()
    return state, ordinal


def restored(pieces: Iterable[bytes]) -> tuple[State, int]:
    """The same, piece by piece and without its indexes."""
    state, ordinal = State(), 0
    for index, image in enumerate(_images(pieces)):
        if not index:
            ordinal = image.ordinal
            _declare(state, image)
        _fill(state, image)
    return state, ordinal


def verify(pieces: Iterable[bytes]) -> int:
    """Read a snapshot whole, as `restored` does, and keep nothing of it; the ordinal up to which it goes.

    Raises:
        CorruptRecord: the bytes are not a whole snapshot.
        FormatTooNew: a newer version of the code wrote it.
    """
    ordinal, names = 0, set[str]()
    for index, image in enumerate(_images(pieces)):
        found = {queue.settings.name for queue in image.queues}
        if not index:
            ordinal, names = image.ordinal, found
        if not found <= names:
            raise CorruptRecord("a slice of the snapshot holds a queue that the first one does not declare")
    return ordinal


def _images(pieces: Iterable[bytes]) -> Iterator[Image]:
    """The images of a snapshot, of one ordinal; what they gave counts only once this came to its end."""
    ordinal = -1
    for body in bodies(pieces):
        try:
            image = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptRecord(
                f"the snapshot cannot be read ({error}); an older one or the log itself is used"
            ) from error
        if image.format > FORMAT_VERSION:
            raise FormatTooNew(f"the snapshot has format {image.format}, this code reads {FORMAT_VERSION}; upgrade it")
        if ordinal not in (-1, image.ordinal):
            raise CorruptRecord(f"a slice of the snapshot is of ordinal {image.ordinal}, not of {ordinal}")
        ordinal = image.ordinal
        yield image


def _declare(state: State, image: Image) -> None:
    slots = range(0, 2 * (len(image.queues) + len(image.free)), 2)
    for number in slots:
        state.free_slot(number)
    state.free = [number for number in slots if number not in image.free]  # each queue takes its own again, in order
    state.apply(records.Declared([queue.settings for queue in image.queues], image.topics), 0)
    state.free = list(image.free)
    for path, rules in image.rules.items():
        state.apply(records.Ruled(path, rules), 0)
    state.time_ms, state.sequence = image.time_ms, image.sequence


def _fill(state: State, image: Image) -> None:
    """Add what one image holds."""
    for found in image.queues:
        queue = state.paths[found.settings.name]
        queue.seen.update(found.seen)
        queue.received_count += found.received_count
        for session, kept in found.sessions.items():
            queue.sessions.session(session).state = kept
        for target, tasks in ((queue, found.tasks), (state.queues[queue.number + 1], found.dead_letters)):
            target.tasks.update([(task.sequence, task) for task in tasks])
            state.message_bytes += held_bytes_of([task.message for task in tasks])
    for name, space in image.documents.items():
        state.documents.spaces.setdefault(name, {})
        for id, document in space.items():
            state.documents.put(name, id, document)
    state.markers.restore(image.applied, image.refused, image.marker_ages, image.renewed)
    state.operations.update(image.operations)


def accept(ordinal: int, data: bytes) -> bool:
    """Whether a snapshot decodes and is the one that its name says."""
    try:
        return verify((data,)) == ordinal
    except CorruptRecord:
        return False


class Restorer:
    """The state of the snapshot that a recovery takes: each is decoded once, as its bytes come."""

    def __init__(self) -> None:
        self.state = State()
        self.size_bytes = 0

    def take(self, ordinal: int, pieces: Iterator[bytes]) -> bool:
        """Keep the state of a snapshot if it decodes and is the one that its name says."""
        self.state, self.size_bytes = State(), 0
        try:
            state, found = restored(self._counted(pieces))
        except CorruptRecord:
            return False
        if found == ordinal:
            self.state = state
        return found == ordinal

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.size_bytes += len(piece)
            yield piece


def replay(recovered: Recovery, state: State) -> State:
    """Let the records behind a snapshot take effect on its state; they are dropped as they are applied."""
    state.rebuild()
    recovered.records.reverse()
    while recovered.records:
        record = recovered.records.pop()
        try:
            change = records.decode(record.type, record.payload)
        except (KeyError, msgspec.ValidationError) as error:
            raise FormatTooNew(
                f"record {record.ordinal} is of a kind that this code does not know; upgrade it"
            ) from error
        try:
            state.apply(change, version_of(record.epoch, record.ordinal))
        except Exception as error:
            raise CorruptRecord(
                f"record {record.ordinal} ({type(change).__name__}) cannot take effect ({error!r}); records before it "
                "are missing. Copy the folder, then salvage the copy"
            ) from error
    return state


def pays(log: Log, snapshot_bytes: int) -> bool:
    """Whether an open that read this snapshot and the log behind it should write a new one."""
    if snapshot_bytes <= SMALL_BYTES or log.recovered.refused_snapshots:
        return True
    return log.size_bytes >= GROWTH_MIN * snapshot_bytes or log.segment_count > SEGMENT_COUNT_MAX


def store(log: Log, state: State, ordinal: int) -> None:
    """Store a snapshot of the owner's own state, read whole what then has its name, and retire what it replaces.

    Raises:
        CorruptRecord: it does not decode; nothing was retired.
    """
    log.store_snapshot(ordinal, encoded(state, ordinal))
    if log.read_snapshot(ordinal, verify) != ordinal:
        raise CorruptRecord(f"the snapshot at {ordinal} is of another ordinal; nothing was retired, compact again")
    log.retire(ordinal)


def compact_sealed(disk: Disk) -> int:
    """Write a snapshot of a folder's sealed segments, beside its host, and return the ordinal that it ends with.

    0 where nothing is sealed.  A host adopts it within seconds, or at its next open.

    Raises:
        CorruptRecord: what reads back does not decode, or a sealed segment is damaged.
        Refused: a host opened the folder meanwhile and removed what was half written.
    """
    restorer = Restorer()
    recovered = read_sealed(disk, restore_snapshot=restorer.take)
    ordinal = recovered.last_ordinal
    if not recovered.records:
        return 0
    try:
        store_snapshot(disk, ordinal, encoded(replay(recovered, restorer.state), ordinal))
        if not is_whole(disk, ordinal):
            raise CorruptRecord(f"{disk.where}: the snapshot at {ordinal} does not read back; compact again")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        raise Refused(f"{disk.where}: a host opened the folder meanwhile; run the compaction again") from error
    return ordinal


def is_whole(disk: Disk, ordinal: int) -> bool:
    """Whether a snapshot's file reads back whole as that snapshot; a newer format is left for a newer host."""
    try:
        return verify(disk.pieces(snapshot_name(ordinal))) == ordinal
    except (CorruptRecord, FormatTooNew):
        return False


def adopt(log: Log) -> int:
    """Take over the newest snapshot that a separate job wrote: read it whole, then retire what it replaces.

    Its ordinal; 0 where there is none that is new and decodes.  One of a newer format is left for a newer host.
    """
    ordinal = log.newest_snapshot()
    try:
        if not ordinal or log.read_snapshot(ordinal, verify) != ordinal:
            return 0
    except (CorruptRecord, FormatTooNew):
        return 0
    log.retire(ordinal)
    return ordinal
