"""The operator of an engine: send, look, resubmit or discard dead letters, without application code.

Types go by their wire names and bodies are JSON.  Nothing is returned before it has passed the engine's gate; answers
are data, so that the same calls work over HTTP.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from uuid import UUID

import msgspec

from outbox.app import CLAIM_CHECK_BYTES, App
from outbox.deliveries import split_stack
from outbox.engine.backend.store import EngineStore
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.engine.state.queues import oldest_enqueued_ms
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import ACTIVE, DEFERRED, LOCKED, SCHEDULED, Task
from outbox.errors import PoisonMessage, Refused, TooLarge, UnknownDestination
from outbox.lineage import Key, parse_state_id, state_id
from outbox.message import Message, schema_properties
from outbox.ops.meter import Meter
from outbox.ops.sending import as_handled
from outbox.ops.streams import list_streams, on_engine, read_stream, trim_stream, unregister_stream
from outbox.ops.values import (
    BATCH_COUNT_MAX,
    Compacted,
    DeadLetterView,
    KeyKind,
    Moved,
    NewMessage,
    Operator,
    QueueStatus,
    Status,
    StreamQuery,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    TrimRequest,
    UnregisterRequest,
)
from outbox.ports import BlobStore, DeadLetterEntry
from outbox.resubmission import dead_letter_identity, newest
from outbox.runtime.delivery.claim_check import check_in, redeem
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES, states_of, types_of

EXPORT_PAGE_COUNT = 500
NAMES_SHOWN_MAX = 12

_line = msgspec.json.Encoder().encode


class ExportedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an export; for a key too long to be stored in clear `key` is None, and `id` names the state."""

    state: str
    key: str | int | None
    value: msgspec.Raw
    id: str = ""


class EngineOperator:
    """An operator with direct access to an engine; a host with workers passes their `meter` and application."""

    def __init__(self, engine: Engine, meter: Meter | None = None, app: App | None = None) -> None:
        self._engine = engine
        self._meter = meter
        self._app = app

    # Send

    async def send(self, queue: str, messages: Sequence[NewMessage]) -> None:
        engine = self._engine
        routes = engine.state.routes.get(queue)
        if routes is None:
            raise self._unknown(queue, [*engine.topology.queues, *engine.topology.topics])
        if len(messages) > BATCH_COUNT_MAX:
            raise TooLarge(f"{len(messages)} messages in one batch; send at most {BATCH_COUNT_MAX} at a time")
        types = await self._types(queue)
        is_keyed = any(route.settings.ordering == "per_key" for route in routes)
        outgoing = []
        for new in messages:
            message = new if self._app is None else as_handled(self._app, queue, new, versions=types)
            if is_keyed and not message.key:
                raise Refused(f"{queue} is ordered by key and message {message.id} has none; give --key")
            if len(types) > 1 and not message.type:
                raise Refused(f"{queue} takes several types of message; say by --type which: {listed(types)}")
            outgoing.append(await self._outgoing(message, types))
        engine.broker.send(queue, outgoing)
        await engine.core.gate()

    async def _outgoing(self, new: NewMessage, types: dict[str, int]) -> Message:
        """The message, of the newest schema that a handler of its type has registered."""
        now_ms = self._engine.now_ms()
        version = types.get(new.type, 1) if new.type else max(types.values(), default=1)
        message = Message(
            body=compact_json(new.id, bytes(new.body)),
            outbox_id=new.id,
            type=new.type,
            created_ms=now_ms if new.created is None else round(new.created * 1_000),
            correlation_id=new.correlation_id,
            session_id=new.key,
            properties=schema_properties(version),
        )
        return await check_in(message, self._engine.blobs, above_bytes=CLAIM_CHECK_BYTES)

    async def _types(self, queue: str) -> dict[str, int]:
        return await types_of(
            queue, EngineStore(self._engine.core, self._engine.documents).scan(NOTES, prefix=NOTE_PREFIX)
        )

    async def _only_type(self, queue: str) -> str:
        """The only type of a queue's handlers, which a message without a type has; empty if there are several."""
        types = await self._types(queue)
        return next(iter(types)) if len(types) == 1 else ""

    # Look

    async def check(self) -> None:
        """Pass the gate.

        Raises:
            EngineStopped: the engine answers nothing more.
        """
        await self._engine.core.gate()

    async def status(self) -> Status:
        engine, queues, pending = self._engine, {}, 0
        now_ms = engine.now_ms()
        for path in sorted(engine.topology.queues):
            queue = engine.broker.queue(path)
            counts = Counter(task.status for task in queue.tasks.values())
            pending += counts[LOCKED]
            oldest_ms = oldest_enqueued_ms(task for task in queue.tasks.values() if task.status in (ACTIVE, LOCKED))
            queues[path] = QueueStatus(
                active=counts[ACTIVE] + counts[LOCKED],
                scheduled=counts[SCHEDULED],
                deferred=counts[DEFERRED],
                dead_letters=len(engine.broker.queue(dead_letter_path(path)).tasks),
                oldest_s=None if oldest_ms is None else max(0, now_ms - oldest_ms) / 1_000,
                received=queue.received_count,
                standing=sum(bool(s.blocked_by) for s in queue.order.sessions.values())
                if isinstance(queue.order, SessionOrder)
                else 0,
            )
        streams = await list_streams(on_engine(engine))
        await engine.core.gate()
        handling = None if self._meter is None else self._meter.read()
        return Status(queues, pending, handling, streams if streams.logs or streams.processors else None)

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        found = self._engine.documents.read(STATES, state_id(type, parse_key(key, kind)))
        await self._engine.core.gate()
        if found is None:
            await self._check_type(type)
        return found.value if found is not None and found.value else None

    async def export(self, type: str = "") -> AsyncIterator[bytes]:
        prefix = f"{type}:" if type else ""
        # Documents never change, so the list is a consistent snapshot however slow the reader is.
        found = [(id, document.value) for id, document in self._engine.state.documents.spaces[STATES].items()]
        await self._engine.core.gate()
        if type:
            await self._check_type(type)
        for start in range(0, len(found), EXPORT_PAGE_COUNT):
            page = found[start : start + EXPORT_PAGE_COUNT]
            lines = [_line(_exported(id, value)) for id, value in page if value and id.startswith(prefix)]
            if lines:
                yield b"\n".join(lines) + b"\n"

    async def _check_type(self, type: str) -> None:
        """Check that a state or a handler has this type, so that a misspelt one does not look empty."""
        ids = self._engine.state.documents.spaces[STATES]
        known = {id.rpartition(":")[0] for id in ids}  # a key's own colons are escaped in an id
        known |= await states_of(EngineStore(self._engine.core, self._engine.documents).scan(NOTES, prefix=NOTE_PREFIX))
        known |= set() if self._app is None else self._app.states().keys()
        if type not in known:
            raise LookupError(f"no state is of type {type[:80]!r}; there are: {listed(known)}.  Check the spelling")

    # Dead letters

    async def dead_letters(
        self, queue: str, *, after: int = 0, count_max: int = BATCH_COUNT_MAX
    ) -> list[DeadLetterView]:
        tasks = self._engine.broker.peek(self._dead(queue), after + 1, min(count_max, BATCH_COUNT_MAX))
        only = await self._only_type(queue)
        await self._engine.core.gate()
        return [view_of(_identity(queue, task), _entry(queue, task), only) for task in tasks]

    async def dead_letter(self, queue: str, id: str) -> DeadLetterView:
        id, same = self._of(queue, id)
        only = await self._only_type(queue)
        await self._engine.core.gate()
        return await with_body(id, _entry(queue, same[-1]), only, self._engine.blobs)

    async def resubmit(self, queue: str, id: str | None) -> Moved:
        if id is None:
            return await self._move_all(queue, self._engine.dead_letters.resubmit)
        id, same = self._of(queue, id)
        self._engine.dead_letters.resubmit(queue, newest(same).sequence)
        await self._engine.core.gate()
        return Moved(1, id=id)

    async def discard(self, queue: str, id: str | None) -> Moved:
        if id is None:
            return await self._move_all(queue, self._engine.dead_letters.discard)
        id, same = self._of(queue, id)
        for task in same:
            self._engine.dead_letters.discard(queue, task.sequence)
        await self._engine.core.gate()
        return Moved(len(same), id=id)

    async def _move_all(self, queue: str, move: Callable[[str, int], None]) -> Moved:
        tasks = list(self._engine.broker.queue(self._dead(queue)).tasks.values())
        count = 0
        for start in range(0, len(tasks), BATCH_COUNT_MAX):
            for task in tasks[start : start + BATCH_COUNT_MAX]:
                with suppress(LookupError, Refused):  # refused; or a receiver has it, or settled it between two batches
                    move(queue, task.sequence)
                    count += 1
            await self._engine.core.gate()
        return Moved(count, len(tasks) - count)

    def _of(self, queue: str, text: str) -> tuple[str, list[Task]]:
        """The full id of a text, and its dead letters, oldest first."""
        tasks = self._engine.broker.queue(self._dead(queue)).tasks.values()
        by_id: dict[str, list[Task]] = {}
        for task in sorted(tasks, key=lambda task: task.sequence):
            by_id.setdefault(_identity(queue, task), []).append(task)
        id = full_id(queue, text, by_id.keys())
        return id, by_id[id]

    def _dead(self, queue: str) -> str:
        if queue not in self._engine.topology.queues:
            raise self._unknown(queue, list(self._engine.topology.queues))
        return dead_letter_path(queue)

    def _unknown(self, name: str, known: list[str]) -> UnknownDestination:
        return UnknownDestination(
            f"{name!r} does not exist; there are: {listed(known)}.  Check the spelling, or start `outbox run` with the "
            "application that declares it"
        )

    # Ordered logs

    async def streams(self) -> Streams:
        return await list_streams(on_engine(self._engine, measured=True))

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        return read_stream(on_engine(self._engine), asked)

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        return await unregister_stream(on_engine(self._engine), asked)

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        return await trim_stream(on_engine(self._engine), asked)

    # Upkeep

    async def compact(self) -> Compacted:
        log = self._engine.log
        before_bytes = 0 if log is None else log.size_bytes
        ordinal = await self._engine.compact_in_background()
        await self._engine.core.gate()
        return Compacted(ordinal, before_bytes, 0 if log is None else log.size_bytes)


def full_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The id that equals a text, or the only one of a queue's dead letters with this prefix.

    Raises:
        LookupError: no id has this prefix.
        Refused: several do.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        raise LookupError(f"{queue} has no dead letter {text!r}; list them to see what is there")
    if len(found) > 1:
        shown = listed([f"{id[:ID_SHOWN_LENGTH]!r}" for id in found])
        raise Refused(f"{len(found)} dead letters of {queue} begin with {text!r}: {shown}; give more of it")
    return next(iter(found))


def begins(text: str, id: str) -> bool:
    """Whether a text may stand for an id with this prefix.

    It needs four characters, and must not end within a number: `order-1` is not `order-12`, because the dead letter of
    `order-1` may just have gone.  The digits of random ids are not numbers.
    """
    if len(text) < PREFIX_LENGTH_MIN or not id.startswith(text):
        return False
    random = _RANDOM(id)
    is_random = random is not None and len(text) <= random.end("digits")
    return is_random or not (text[-1].isdigit() and id[len(text) :][:1].isdigit())


PREFIX_LENGTH_MIN = 4
ID_SHOWN_LENGTH = 100
_RANDOM = re.compile(r"(?P<digits>[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(-\d+)?").fullmatch
"""A UUID, or the id of an output: a digest and a number."""


def compact_json(id: str, text: bytes) -> bytes:
    """JSON without white space, so that formatting does not make another message.

    Raises:
        Refused: it is not JSON.
    """
    try:
        text.decode()
        return msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body of message {id} is not JSON: {error}") from error


def parse_key(text: str, kind: KeyKind) -> Key:
    """The key that a text means.

    Raises:
        Refused: the text is not of that kind.
    """
    try:
        match kind:
            case "int":
                return int(text)
            case "uuid":
                return UUID(text)
            case _:
                text.encode()
                return text
    except ValueError as error:
        raise Refused(f"key {text[:80]!r} is not {'a UUID' if kind == 'uuid' else kind}; check it") from error


def listed(names: Collection[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return (", ".join(sorted(names)[:NAMES_SHOWN_MAX]) or "none yet") + more


def _exported(id: str, value: bytes) -> ExportedState:
    known = parse_state_id(id)
    if known is None:
        return ExportedState(id.rpartition(":")[0], None, msgspec.Raw(value), id)
    type, key = known
    return ExportedState(type, str(key) if isinstance(key, UUID) else key, msgspec.Raw(value))


def _identity(queue: str, task: Task) -> str:
    return dead_letter_identity(queue, task.sequence, task.message, task.reason)


def _entry(queue: str, task: Task) -> DeadLetterEntry:
    delivery_count = task.failures + task.delivery_count
    return DeadLetterEntry(
        queue, task.sequence, task.message, task.reason, task.description, delivery_count, task.enqueued_ms
    )


def view_of(id: str, dead: DeadLetterEntry, only_type: str) -> DeadLetterView:
    """A dead letter without its body; `only_type` is the only type of its queue's handlers, if there is one."""
    message = dead.message
    description, stack = split_stack(dead.description)
    return DeadLetterView(
        id=id,
        sequence=dead.sequence,
        queue=dead.queue,
        reason=dead.reason,
        description=description,
        type=message.type,
        delivery_count=dead.delivery_count,
        created=(message.created_ms or dead.enqueued_ms) / 1_000,
        key=message.session_id,
        correlation_id=message.correlation_id,
        size_bytes=len(message.body),
        handled_as=message.type or only_type,
        traceback=stack,
    )


async def with_body(id: str, dead: DeadLetterEntry, only_type: str, blobs: BlobStore) -> DeadLetterView:
    """A dead letter with its body as JSON, else as text, else as base64.

    Raises:
        Refused: the body lies in a blob that is gone.
    """
    message = dead.message
    if message.claim:
        try:
            message = await redeem(message, blobs)
        except PoisonMessage as gone:
            text = f"{dead.queue}/{id}: {gone.description}; it can only be discarded"
            raise Refused(text) from gone
    letter = msgspec.structs.replace(view_of(id, dead, only_type), size_bytes=len(message.body))
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return msgspec.structs.replace(letter, body_base64=b64encode(message.body).decode())
    try:
        return msgspec.structs.replace(letter, body=msgspec.Raw(compact_json(id, message.body)))
    except Refused:
        return msgspec.structs.replace(letter, body_text=text)


_conforms: type[Operator] = EngineOperator
