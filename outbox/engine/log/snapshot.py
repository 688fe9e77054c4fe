"""A snapshot: the engine's memory as a pure function of the records up to exactly one ordinal.

Three ways lead to one: at open (the memory just replayed), on request of a running host, and as a separate job over
the snapshot and the sealed segments of a folder that a host is using.  All three call `encode` on a `State`; whoever
owns the log decodes a snapshot whole before it retires the segments that it replaces.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.engine.log import records
from outbox.engine.log.disk import Disk
from outbox.engine.log.segments import Recovery, read_sealed
from outbox.engine.log.wal import Log, store_snapshot
from outbox.engine.state.rules import Rule
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.state import State
from outbox.engine.state.tasks import Task, held_bytes, version_of
from outbox.errors import CorruptRecord, FormatTooNew, Refused
from outbox.ports import Refusal, StateDocument

FORMAT_VERSION = 2
"""2 has rules of subscriptions and the numbers of deleted queues."""
PLAIN_VERSION = 1
"""What a snapshot without either is written as, so that older code can still read it."""
_DIGEST_SIZE = 32


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
    now_ms = state.time_ms
    state.forget(now_ms)
    queues = []
    for number in sorted(set(range(0, len(state.queues), 2)) - set(state.free)):
        queue, dead = state.queues[number], state.queues[number + 1]
        queue.forget_seen(now_ms)
        order = queue.order
        sessions = order.sessions.values() if isinstance(order, SessionOrder) else ()
        states = {session.id: session.state for session in sessions if session.state}
        tasks, letters = list(queue.tasks.values()), list(dead.tasks.values())
        queues.append(QueueImage(queue.settings, tasks, letters, queue.seen, states, queue.received_count))
    documents = {
        name: {id: doc for id, doc in space.items() if not doc.expires_ms or doc.expires_ms > now_ms}
        for name, space in state.documents.spaces.items()
    }
    markers = state.markers.known
    image = Image(
        FORMAT_VERSION if state.rules or state.free else PLAIN_VERSION,
        ordinal,
        now_ms,
        state.sequence,
        queues,
        list(state.topics.values()),
        documents,
        {key: marker for key, marker in markers.items() if isinstance(marker, bytes)},
        {key: marker for key, marker in markers.items() if isinstance(marker, Refusal)},
        sorted(state.markers.ages),
        state.markers.renewed,
        state.operations,
        {path: list(rules.values()) for path, rules in state.rules.items()},
        state.free,
    )
    body = _encoder.encode(image)
    return sha256(body).digest() + body


def decode(data: bytes) -> tuple[State, int]:
    """The state that a snapshot holds, and the ordinal up to which.

    Raises:
        CorruptRecord: the bytes are not a whole snapshot.
        FormatTooNew: a newer version of the code wrote it.
    """
    body = data[_DIGEST_SIZE:]
    if sha256(body).digest() != data[:_DIGEST_SIZE]:
        raise CorruptRecord("the snapshot's digest does not match; an older snapshot or the log itself is used")
    try:
        image = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(f"the snapshot cannot be read ({error}); an older one or the log itself is used") from error
    if image.format > FORMAT_VERSION:
        raise FormatTooNew(f"the snapshot has format {image.format}, this code reads {FORMAT_VERSION}; upgrade it")
    return _restore(image), image.ordinal


def _restore(image: Image) -> State:
    state = State()
    slots = range(0, 2 * (len(image.queues) + len(image.free)), 2)
    for number in slots:
        state.free_slot(number)
    state.free = [number for number in slots if number not in image.free]  # each queue takes its own again, in order
    state.apply(records.Declared([queue.settings for queue in image.queues], image.topics), 0)
    state.free = list(image.free)
    for path, rules in image.rules.items():
        state.apply(records.Ruled(path, rules), 0)
    state.time_ms, state.sequence = image.time_ms, image.sequence
    for found in image.queues:
        queue = state.paths[found.settings.name]
        queue.seen, queue.received_count = found.seen, found.received_count
        for session, kept in found.sessions.items():
            queue.sessions.session(session).state = kept
        for target, tasks in ((queue, found.tasks), (state.queues[queue.number + 1], found.dead_letters)):
            target.tasks.update((task.sequence, task) for task in tasks)
            state.message_bytes += sum(held_bytes(task.message) for task in tasks)
    for name, space in image.documents.items():
        state.documents.spaces.setdefault(name, {})
        for id, document in space.items():
            state.documents.put(name, id, document)
    state.markers.restore(image.applied, image.refused, image.marker_ages, image.renewed)
    state.operations = image.operations
    state.rebuild()
    return state


def accept(ordinal: int, data: bytes) -> bool:
    """Whether a snapshot decodes and is the one that its name says."""
    try:
        return decode(data)[1] == ordinal
    except CorruptRecord:
        return False


def replay(recovered: Recovery) -> State:
    """The state after a snapshot and the records behind it; the records are dropped as they are applied."""
    state = State() if recovered.snapshot_data is None else decode(recovered.snapshot_data)[0]
    recovered.snapshot_data = None
    for record in recovered.records:
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
    recovered.records.clear()
    state.rebuild()
    return state


def store(log: Log, state: State, ordinal: int) -> None:
    """Store a snapshot of the owner's own state, decode whole what then has its name, and retire what it replaces.

    Raises:
        CorruptRecord: it does not decode; nothing was retired.
    """
    log.store_snapshot(ordinal, encode(state, ordinal))
    if decode(log.read_snapshot(ordinal))[1] != ordinal:
        raise CorruptRecord(f"the snapshot at {ordinal} is of another ordinal; nothing was retired, compact again")
    log.retire(ordinal)


def compact_sealed(disk: Disk) -> int:
    """Write a snapshot of the sealed segments of a folder that a host may be using; the ordinal that it ends with.

    0 where nothing is sealed.  A host adopts it within seconds, or at its next open.

    Raises:
        Refused: a host opened the folder meanwhile and removed what was half written.
    """
    recovered = read_sealed(disk, accept_snapshot=accept)
    ordinal = recovered.last_ordinal
    if not recovered.records:
        return 0
    try:
        store_snapshot(disk, ordinal, encode(replay(recovered), ordinal))
    except FileNotFoundError as error:
        raise Refused(f"{disk.where}: a host opened the folder meanwhile; run the compaction again") from error
    return ordinal


def adopt(log: Log) -> int:
    """Take over the newest snapshot that a separate job wrote: decode it whole, then retire what it replaces.

    Its ordinal; 0 where there is none that is new and decodes.  One of a newer format is left for a newer host.
    """
    ordinal, data = log.newest_snapshot()
    try:
        if not ordinal or not accept(ordinal, data):
            return 0
    except FormatTooNew:
        return 0
    log.retire(ordinal)
    return ordinal
