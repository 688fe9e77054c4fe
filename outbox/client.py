"""The client of an application: send messages, read states, resubmit or discard dead letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from outbox.app import App
from outbox.cancellation import CANCELLATION_TYPE, cancelled_by
from outbox.context import BlobRef, to_ms
from outbox.deliveries import split_stack
from outbox.errors import OutcomeUnknown, PoisonMessage, Refused, TooLarge, UnknownDestination
from outbox.lineage import Key, as_key
from outbox.message import PROPERTY_SCHEMA, Message, Scalar, excess, message_from_properties
from outbox.name_checks import known_state, known_state_id, named_states
from outbox.ports import Backend, DeadLetterEntry, Delivery, Output, Ports, StorePorts
from outbox.resubmission import check_resubmittable, newest
from outbox.runtime.commit.marker_replies import as_record
from outbox.runtime.delivery.admission import admit, edit_of
from outbox.runtime.delivery.claim_check import check_in, redeem
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_operations import operations_over
from outbox.runtime.verdict import LEAVES_OPEN, kind_of
from outbox.runtime.work import Work
from outbox.stored import Record, decode, processed_key, record_key

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused message.

    `reason` is the text of a `Reject`, else a code (`failed`, `undecodable`, `unknown-type`, `missing-key`,
    `no-identity`, `payload-differs`, `edit-without-record`, `too-old`, `unstorable`, `oversize`, `no-blob-store`);
    `description` is the detail.  `message` is the decoded message, None where it cannot be decoded; `created` is in
    seconds since 1970.  `traceback` is the stack of the application's error (empty without one), bounded and redacted.
    """

    id: str
    queue: str
    reason: str
    description: str
    message: Any
    body: bytes
    delivery_count: int
    created: float
    traceback: str = ""


class Client:
    """Talks to an application on a backend without handling its messages."""

    def __init__(self, app: App, backend: Backend, *, new_id: Callable[[], str] | None = None) -> None:
        self.app = app
        self._ports: Ports | StorePorts = backend.ports()
        self._operations = operations_over(self._ports)
        self._new_id = new_id or (lambda: str(uuid4()))

    async def declare(self) -> None:
        """Create the queues and topics that the application declares, where they are missing."""
        queues = {spec.name: spec.ordering for spec in self.app.queues.values()}
        topics = {name: list(subs) for name, subs in self.app.topics.items()}
        stop_keys = {handler.source for handler in self.app.handlers if handler.on_dead_letter == "stop_key"}
        await self._operations.declare(queues, topics, stop_keys=stop_keys)

    async def send(
        self,
        queue: str,
        message: Any,
        *,
        id: str | None = None,
        created: datetime | float | None = None,
        after_s: float = 0.0,
        correlation_id: str = "",
        traceparent: str = "",
        reply_to: str = "",
        key: Key | None = None,
    ) -> str:
        """Send a message from outside; on return it is durable.  Returns its identity: `id`, or a fresh one.

        A duplicate of that id has no further effect within retention.  A repeated send should carry the first `created`
        (seconds since 1970 or a datetime): without it deduplication is promised within retention of each send only.
        `key` orders a message on a `per_key` queue without a handler in this application.

        Raises:
            UnknownDestination: the application never declared the queue, or `declare()` has not created it here yet.
            ValueError: `id` is empty, or the queue is ordered by key and the message's key is unknown.
            TooLarge: its ids are too long to be inherited by the messages that a handler sends.
            PoisonMessage: it holds what JSON cannot (NaN, an infinity, half of a surrogate pair).
        """
        destination = self.app.destination(queue)
        if id is not None and (not isinstance(id, str) or not id):
            raise ValueError(
                f"id={id!r}: a message's identity is a text that is not empty; leave it out for a fresh one"
            )
        body, wire_type = self.app.encode(message)
        sent = Message(
            body=body,
            outbox_id=id or self._new_id(),
            type=wire_type,
            correlation_id=correlation_id,
            traceparent=traceparent,
            reply_to=reply_to,
            session_id=self.app.session_of(destination, message, key),
            properties=self.app.properties_of(type(message)),
        )
        if too_much := excess(sent):
            raise TooLarge(f"a message to {queue!r} was not sent: {too_much}")
        return await self._send(self._output(destination, sent, created, after_s))

    async def publish(self, topic: str, message: Any, **options: Any) -> str:
        """Send a message to a topic; the options are those of `send`."""
        return await self.send(topic, message, **options)

    async def send_raw(self, queue: str, body: bytes, *, properties: dict[str, Scalar] | None = None) -> None:
        """Send bytes with application properties as they are, as a foreign sender would."""
        await self._send(Output(self.app.destination(queue), 0, message_from_properties(body, properties or {})))

    def _output(self, destination: str, message: Message, created: datetime | float | None, after_s: float) -> Output:
        now_ms = self._operations.now_ms()
        due_ms = to_ms(now_ms / 1_000 + after_s) if after_s > 0 else 0
        created_ms = due_ms or now_ms if created is None else to_ms(created)
        return Output(destination, due_ms, replace(message, created_ms=created_ms))

    async def _send(self, output: Output) -> str:
        message = output.message
        if message.identity:  # a claim check names its message's identity
            message = await check_in(message, self._ports.blobs, above_bytes=self.app.claim_check_bytes)
        try:
            await self._operations.send([Output(output.destination, output.due_ms, message)])
        except UnknownDestination as error:  # declared in the application, but not in the backend
            raise UnknownDestination(
                f"{output.destination!r} is declared in {self.app.name}, but the backend does not have it; call "
                f"`await client.declare()` once before sending, or start a worker ({error})"
            ) from error
        return message.identity

    async def state(self, kind: type[State], key: Key) -> State | None:
        """The state of a key; None where there is none or it was deleted.

        Raises:
            UnknownType: no handler has this state type, and `@app.state` does not name it.
            TypeError: its handlers have keys of another kind.
        """
        known = named_states(self.app)
        codec, id = known_state(self.app, kind, known), known_state_id(self.app, kind, key, known)
        found = await self._operations.state(id)
        if found is None:
            return None
        value: State = codec.decode(found.value, found.schema)
        return value

    async def dead_letters(self, queue: str) -> list[DeadLetter]:
        """The dead letters of a queue, oldest first."""
        found = await self._operations.dead_letters(queue)
        return [self.dead_letter(replace(b, message=await self.with_body(b.message))) for b in found]

    async def with_body(self, message: Message) -> Message:
        """A message with its body from the blob store, if it can be read."""
        try:
            return await redeem(message, self._ports.blobs) if message.claim else message
        except (PoisonMessage, OutcomeUnknown, Refused):
            return message

    async def blob(self, ref: BlobRef) -> bytes:
        """Read a blob that a handler wrote with `ctx.write_blob`.

        Raises:
            LookupError: it is missing or was changed.
        """
        data = await self._ports.blobs.read(ref.name, bytes_max=ref.size_bytes)
        if data is None or sha256(data).hexdigest() != ref.digest:
            raise LookupError(f"blob {ref.name} is gone or was changed; check that its handler committed")
        return data

    def dead_letter(self, dead: DeadLetterEntry) -> DeadLetter:
        """A dead letter with its message decoded."""
        message = dead.message
        description, stack = split_stack(dead.description)
        return DeadLetter(
            message.identity,
            dead.queue,
            dead.reason,
            description,
            self.decode(dead.queue, message),
            message.body,
            dead.delivery_count,
            (message.created_ms or dead.enqueued_ms) / 1_000,
            stack,
        )

    def decode(self, source: str, message: Message) -> Any:
        """A message of a queue, decoded, and a cancellation as what it cancels; None where that is not possible."""
        if message.type == CANCELLATION_TYPE:
            try:
                message, _ = cancelled_by(message)
            except PoisonMessage:
                return None
        codecs = [self.app.codec(kind) for h in self.app.handlers if h.source == source for kind in h.binding.messages]
        codecs += [codec for codec in self.app.codecs() if codec not in codecs]
        matching = [codec for codec in codecs if codec.name == message.type] if message.type else codecs[:1]
        for codec in matching:
            try:
                return codec.read(message.body, message.schema)
            except Exception:  # a validator or an upcast may raise anything
                continue
        return None

    async def resubmit(self, queue: str, id: str, *, message: Any = None) -> None:
        """Run the newest dead letter of an id again, as a new attempt; its copies are discarded.

        With a `message` it is edited: that runs in its place, under its identity, if its refusal is still what is on
        record; from then on copies of the dead letter are copies of the edit.  A dead letter refused as
        `payload-differs` is chosen only if there is no other.

        Raises:
            LookupError: the queue has no dead letter of that id.
            Refused: it was too old, or is by now; whether it was applied before is not on record any more.  Or the edit
                has another type or key, or nothing on record that it could replace.
        """
        dead = newest(await self._find(queue, id))
        is_remembered = await self._is_remembered(dead)
        check_resubmittable(f"{queue}/{id}", dead.reason, dead.description, is_remembered=is_remembered)
        edit = None if message is None else await self._edited(dead, message)
        await self._operations.resubmit(queue, dead.sequence, edit=edit)

    async def _edited(self, dead: DeadLetterEntry, message: Any) -> Message | None:
        body, wire_type = self.app.encode(message)
        if dead.message.type and dead.message.type != wire_type:
            raise Refused(
                f"{dead.queue}/{dead.message.identity} is a {dead.message.type}, not a {wire_type}; an edit has the "
                "type of its message"
            )
        return await edit_of(
            dead,
            body,
            self._ports.blobs,
            above_bytes=self.app.claim_check_bytes,
            schema=int((self.app.properties_of(type(message)) or {}).get(PROPERTY_SCHEMA) or 1),
            plan=compile_app(self.app),
        )

    async def _is_remembered(self, dead: DeadLetterEntry) -> bool:
        """Whether a dead letter is younger than retention, has a record, or is of a queue without handlers here."""
        plan, now_ms = compile_app(self.app), self._operations.now_ms()
        created_ms = dead.message.created_ms or dead.enqueued_ms
        if dead.queue not in plan.sources or created_ms > plan.retention.oldest_ms(now_ms):
            return True
        delivery = Delivery(dead.queue, dead.sequence, await self.with_body(dead.message), 0, dead.enqueued_ms, 0)
        (work,) = admit(plan, [delivery], now_ms)
        for branch in (work, *work.others):
            if branch.inbox and await self._has_record(branch):
                return True
        return False

    async def _has_record(self, work: Work) -> bool:
        """Whether a message has a record, other than a refusal for its age."""
        ports, id = self._ports, work.state_id
        if isinstance(ports, Ports):
            _, markers = await ports.journal.load([], [work.inbox])
            return kind_of(as_record(markers.get(work.inbox))) not in LEAVES_OPEN
        is_item = ports.store.capabilities.atomic_scope == "item"
        key = processed_key(id, work.inbox) if is_item and id is not None else record_key(id, work.inbox)
        document = await (ports.infrastructure or ports.store).read(key)
        return kind_of(None if document is None else decode(document, Record)) not in LEAVES_OPEN

    async def discard(self, queue: str, id: str, *, key: Key | None = None) -> None:
        """Delete the dead letters of an id.

        If they were removed by other means, `key` names the key that this id still blocks, and unblocks it.

        Raises:
            LookupError: the queue has no dead letter of that id, and the id does not block the key.
        """
        try:
            found = await self._find(queue, id)
        except LookupError:
            if key is None or not await self._operations.unblock(queue, str(as_key(key)), id):
                raise
            return
        for dead in found:
            await self._operations.discard(queue, dead.sequence)

    async def _find(self, queue: str, id: str) -> list[DeadLetterEntry]:
        found = [b for b in await self._operations.dead_letters(queue) if b.message.identity == id]
        if not found:
            raise LookupError(f"queue {queue!r} has no dead letter {id!r}; list them to see what is there")
        return found
