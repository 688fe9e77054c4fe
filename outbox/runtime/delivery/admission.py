"""Admit messages: find the handler, key and identity of each, or the reason to refuse or reschedule it.

A message becomes a `Work` with a branch for each handler; without a handler the work carries the reason.  `admit`
decides, without I/O and without a clock; `Admission` first fetches the bodies from the blob store.

*Edits.*  An edit is a dead letter with another body, checked before it is sent.  It keeps the identity of its message
and names the payload that it replaces.  It runs over the refused record of that payload only, whoever sends it
(`runtime.verdict`).  What is checked here is what its sender can be spared: a refusal without a record, a body that no
handler takes, another key.  Under another key lies another record, so the edit would be refused there, and the refused
payload could still be resubmitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from outbox.app import Handler
from outbox.cancellation import CANCELLATION_TYPE, cancelled_by
from outbox.errors import NoBlobStore, PoisonMessage, Refused, TooLarge
from outbox.lineage import TEXT_TAGS, Key, as_key, fingerprint, inbox_key, state_id
from outbox.message import PROPERTY_SCHEMA, Message, excess, is_slight, schema_properties
from outbox.ports import BlobStore, DeadLetterEntry, Delivery
from outbox.resubmission import check_editable, check_resubmittable, edited, sequence_identity
from outbox.runtime.delivery.claim_check import check_in, redeem, without_blobs
from outbox.runtime.delivery.retrying import MAY_RETRY, Backoff, NothingCommitted, RetryError, cause_of
from outbox.runtime.failures.error_text import FAILURES, as_text, described, failure_text, fit, safe_text
from outbox.runtime.start.plan import CompiledApp, Route, Source
from outbox.runtime.work import Later, Work

REDELIVER_AFTER_S = 5.0
_DAY_MS = 86_400_000
"""When to redeliver a message that this worker cannot handle yet."""


class Admission:
    """Makes works of deliveries."""

    def __init__(self, plan: CompiledApp, blobs: BlobStore, backoff: Backoff) -> None:
        self._plan = plan
        self._blobs = blobs
        self._backoff = backoff

    async def admit(self, deliveries: Sequence[Delivery], now_ms: int) -> list[Work]:
        """A work for each delivery, in order."""
        works = admit(self._plan, deliveries, now_ms)
        for index in [index for index, delivery in enumerate(deliveries) if delivery.message.claim]:
            works[index] = await self._redeemed(deliveries[index], now_ms)
        return works

    async def _redeemed(self, delivery: Delivery, now_ms: int) -> Work:
        """The work of a message whose body lies in the blob store; rescheduled while the body cannot be read."""
        plan, replace = self._plan, msgspec.structs.replace
        refusal: PoisonMessage | Later
        try:
            async for attempt in self._backoff.attempts():
                with attempt:
                    whole = replace(delivery, message=await self._redeem(delivery), fingerprint=b"")
                    return admit(plan, [whole], now_ms)[0]
        except PoisonMessage as poison:
            refusal = poison
        except RetryError as error:
            text = failure_text(cause_of(error) or error)
            refusal = Later(REDELIVER_AFTER_S, delivery.failures, f"its body cannot be fetched: {text}")
        return unhandled(plan, delivery, refusal)

    async def _redeem(self, delivery: Delivery) -> Message:
        try:
            return await redeem(delivery.message, self._blobs)
        except TooLarge as error:
            raise PoisonMessage("oversize", str(error)) from error
        except NoBlobStore as error:
            raise without_blobs(error) from error
        except MAY_RETRY as error:
            raise NothingCommitted from error


def admit(plan: CompiledApp, deliveries: Sequence[Delivery], now_ms: int) -> list[Work]:
    """Decide for each message which handler gets it under which key, or why none can.

    The plain case is written out here, because it is most of what a message costs before its handler runs: an identity,
    one handler, a text as key, a body that decodes.  `_admit_with_care` takes every other message from the start; for a
    plain one both make the same `Work`.
    """
    works: list[Work] = []
    sources, latest_ms = plan.sources, now_ms + plan.clock_skew_ms
    queue: str | None = None
    kind, is_plain = "", False
    for delivery in deliveries:
        message = delivery.message
        if delivery.queue != queue or message.type != kind:  # most batches have one of each
            queue, kind = delivery.queue, message.type
            source = sources[queue]
            route = source.routes.get(kind) if kind else source.only
            is_plain = route is not None and route.key is not None
            if route is not None and route.key is not None:
                decode, key_of, key_ids, handler = route.decode, route.key, route.key_ids, route.handlers[0]
                version = route.version
        identity = message.outbox_id or message.message_id
        inbox = None
        properties = message.properties
        schema = 1 if properties is None else message.schema
        is_bare = properties is None and not (
            message.traceparent or message.correlation_id or message.causation_id or message.reply_to
        )  # so it is slight, if its identity is plain
        if (
            is_plain
            and identity
            and message.created_ms <= latest_ms
            and schema == version
            and (is_bare or not delivery.from_outside or is_slight(message) or not excess(message))
        ):
            try:
                value = decode(message.body)
                key = key_of(value)
                if type(key) is str:
                    ids = key_ids.get(key) or key_ids.make(key)
                    name = identity.encode()
                    inbox = sha256(ids.prefix + TEXT_TAGS[len(name)] + name).digest()
            except FAILURES:  # the body, the key function, or a key or an identity that is not plain
                inbox = None
        if inbox is None:
            works.append(_admit_with_care(plan, source, delivery, now_ms))
            continue
        remembered = delivery.from_outside or message.attempt > 0
        digest = (delivery.fingerprint or fingerprint(message.body, message.type)) if remembered else b""
        id = ids.state_id
        lane, in_order, blocks_key = id, source.ordered, False
        if in_order:
            lane, blocks_key = _session_lane(source, message), handler.on_dead_letter == "stop_key"
        works.append(Work(delivery, handler, value, key, id, lane, remembered, inbox, digest, in_order, blocks_key))
    return works


def _branch(
    source: Source,
    route: Route,
    handler: Handler,
    delivery: Delivery,
    *,
    others: tuple[Work, ...] = (),
    shared: bool,
    blocks_key: bool,
) -> Work:
    """One handler's branch of a message: its value decoded, its key taken, its inbox key computed."""
    message, identity = delivery.message, delivery.message.identity
    key: Key | None = None
    id: str | None = None
    value: Any = None
    refusal: PoisonMessage | None = None
    try:
        value = route.read(message.body, message.schema)
    except PoisonMessage as poison:
        refusal = fit(poison)
    except FAILURES as error:  # a validator may raise anything
        text = safe_text(f"does not fit {route.wire_type}: {as_text(error)}")
        refusal = PoisonMessage("undecodable", described(text, error))
    if handler.key is not None and refusal is None:
        try:
            key = handler.key(value)
            if type(key) is not str or not key:
                key = _checked_key(handler, key)
            if handler.state is not None:
                id = state_id(handler.state.name, key)
            inbox = inbox_key(handler.prefix, key, identity)
        except PoisonMessage as poison:
            key, refusal = None, fit(poison)
        except FAILURES as error:  # the key function's own, or half of a surrogate pair in a key
            text = f"the key for {handler.name} cannot be taken: {as_text(error, repr)}"
            key, id, refusal = None, None, PoisonMessage("missing-key", described(safe_text(text), error))
    if key is None:
        inbox = inbox_key(handler.prefix, None, identity)
    remembered = shared or delivery.from_outside or message.attempt > 0 or refusal is not None
    digest = (delivery.fingerprint or fingerprint(message.body, message.type)) if remembered else b""
    lane = id
    if source.ordered:
        lane = _session_lane(source, message)
    elif others:
        lane = None  # several handlers, several states
    return Work(
        delivery,
        handler,
        value,
        key,
        id,
        lane,
        remembered,
        inbox,
        digest,
        in_order=source.ordered,
        blocks_key=blocks_key,
        refusal=refusal,
        others=others,
    )


def _session_lane(source: Source, message: Message) -> str:
    return f"{source.path}\0{message.session_id}"


def _admit_with_care(plan: CompiledApp, source: Source, delivery: Delivery, now_ms: int) -> Work:
    """Admit any message: without an identity, ahead of time, of an unknown type, or with several handlers."""
    if delivery.message.type == CANCELLATION_TYPE:
        return _admit_cancellation(plan, source, delivery, now_ms)
    try:
        if not delivery.message.identity:
            delivery = _identified(source, delivery)
        message = delivery.message
        if not message.identity.isascii():
            _check_text(message.identity)
        if too_much := excess(message):
            raise PoisonMessage("oversize", too_much)
        _check_not_ahead(plan, delivery, now_ms)
        route = source.routes.get(message.type) if message.type else source.only
        if route is None:
            known = ", ".join(sorted(source.routes))
            raise PoisonMessage("unknown-type", f"{message.type!r} has no handler on {source.path}; known are {known}")
        if message.schema > route.version:  # for a newer worker
            text = (
                f"schema {message.schema} of {route.wire_type} is newer than {route.version}, the newest known here; "
                "deploy the newer build"
            )
            return unhandled(plan, delivery, Later(REDELIVER_AFTER_S, delivery.failures, text, is_newer=True))
    except PoisonMessage as poison:
        return unhandled(plan, delivery, poison)
    shared = len(route.handlers) > 1
    blocking = any(handler.on_dead_letter == "stop_key" for handler in route.handlers)  # whichever handler refuses it
    blocks_key = source.ordered and blocking
    first, *rest = route.handlers
    others = tuple([_branch(source, route, h, delivery, shared=shared, blocks_key=blocks_key) for h in rest])
    return _branch(source, route, first, delivery, others=others, shared=shared, blocks_key=blocks_key)


def _admit_cancellation(plan: CompiledApp, source: Source, delivery: Delivery, now_ms: int) -> Work:
    """Admit a cancellation as the message that it cancels, whose records it writes; it is settled as itself."""
    try:
        message, due_ms = cancelled_by(delivery.message)
    except PoisonMessage as poison:
        return unhandled(plan, delivery, poison)
    target = msgspec.structs.replace(delivery, fingerprint=b"", message=message)
    work, digest = _admit_with_care(plan, source, target, now_ms), fingerprint(message.body, message.type)

    def cancelling(branch: Work) -> Work:
        others = tuple(map(cancelling, branch.others))
        fields = {"remembered": bool(branch.inbox), "fingerprint": digest, "cancels_due_ms": due_ms, "others": others}
        return msgspec.structs.replace(branch, delivery=delivery, **fields)

    return cancelling(work)


def value_again(plan: CompiledApp, work: Work) -> Any:
    """Decode the message of a work anew: the handler of an earlier attempt may have changed the value."""
    message = work.delivery.message
    source = plan.sources.get(work.delivery.queue)
    if source is None:  # a request
        assert work.handler is not None, "a request has a handler"
        return plan.app.codec(work.handler.binding.messages[0]).decode(message.body)
    route = source.routes.get(message.type) or source.only
    assert route is not None, "it was decoded before"
    return route.read(message.body, message.schema)


def unhandled(plan: CompiledApp, delivery: Delivery, refusal: PoisonMessage | Later) -> Work:
    """Admit a message that no handler takes, for good or for now; on an ordered queue it keeps its place.

    There its dead letter blocks its key if a handler of its type, or of any type if its own is unknown, asks for that.
    """
    if isinstance(refusal, PoisonMessage):  # without the traceback, whose frames hold the work: a reference cycle
        refusal = PoisonMessage(refusal.reason, refusal.description)
    source = plan.sources[delivery.queue]
    if not source.ordered:
        return Work(delivery, refusal=refusal)
    route = source.routes.get(delivery.message.type)
    routes = source.routes.values() if route is None else [route]
    blocks_key = any(handler.on_dead_letter == "stop_key" for route in routes for handler in route.handlers)
    lane = _session_lane(source, delivery.message)
    return Work(delivery, lane=lane, in_order=True, blocks_key=blocks_key, refusal=refusal)


def _checked_key(handler: Handler, key: Any) -> Key:
    """Check a key that is not a plain text: an int, a UUID, an empty one."""
    try:
        return as_key(key)
    except ValueError as error:
        raise PoisonMessage("missing-key", f"handler {handler.name}: {error}") from error


def _identified(source: Source, delivery: Delivery) -> Delivery:
    if not source.takes_sequence_number:
        raise PoisonMessage(
            "no-identity",
            "the message has neither an outbox-id property nor a message id; set one, or declare the queue with "
            'identity="sequence-number"',
        )
    message = msgspec.structs.replace(delivery.message, outbox_id=sequence_identity(delivery.sequence))
    return msgspec.structs.replace(delivery, message=message)


def _check_text(identity: str) -> None:
    """Refuse an identity with half of a surrogate pair, which no wire or log can carry."""
    try:
        identity.encode()
    except UnicodeEncodeError as error:
        raise PoisonMessage("no-identity", safe_text(f"the identity is not valid text: {error}")) from error


def _check_not_ahead(plan: CompiledApp, delivery: Delivery, now_ms: int) -> None:
    """Refuse a creation time in the future; a scheduled message has its due time, which is past on delivery."""
    ahead_ms = delivery.message.created_ms - max(now_ms, delivery.enqueued_ms)
    if ahead_ms > plan.clock_skew_ms:
        text = f"{ahead_ms / 1_000:,.3f} s" if ahead_ms < _DAY_MS else f"{ahead_ms / _DAY_MS:,.1f} days"
        raise PoisonMessage("from-the-future", f"its creation time is {text} ahead; correct the sender's clock")


async def edit_of(
    dead: DeadLetterEntry,
    body: bytes,
    blobs: BlobStore,
    *,
    above_bytes: int,
    schema: int | None = None,
    plan: CompiledApp | None = None,
) -> Message | None:
    """Make the message of an edit, of this `schema` or the dead letter's; None if the body is unchanged.

    A body above the limit is in the blob store on return.  With the application's `plan` the body is decoded, and its
    key compared.

    Raises:
        Refused: nothing is on record that it could replace, it would be refused, or its key is another.
    """
    where = f"{dead.queue}/{dead.message.identity or dead.sequence}"
    check_resubmittable(where, dead.reason, dead.description)
    check_editable(where, dead.reason, dead.description)
    message = await _whole(where, dead.message, blobs)
    edit = edited(message, body)
    if edit is message:
        return None
    if schema is not None:
        others = {name: value for name, value in (edit.properties or {}).items() if name != PROPERTY_SCHEMA}
        edit = msgspec.structs.replace(edit, properties=others | (schema_properties(schema) or {}))
    if too_much := excess(edit):
        raise Refused(f"{where} cannot be edited: {too_much}")
    if plan is not None and dead.queue in plan.sources:
        _check_handled_alike(plan, where, dead, message, edit)
    try:
        return await check_in(edit, blobs, above_bytes=above_bytes)
    except NoBlobStore as error:
        raise Refused(f"{where}: the edited body is too large for the bus: {error}") from error


async def _whole(where: str, message: Message, blobs: BlobStore) -> Message:
    """A message with its body, whose digest names the refused payload."""
    if not message.claim:
        return message
    try:
        return await redeem(message, blobs)
    except (PoisonMessage, NoBlobStore) as gone:
        raise Refused(f"{where}: its body cannot be read, so no edit can replace it: {gone}") from gone


def _check_handled_alike(plan: CompiledApp, where: str, dead: DeadLetterEntry, message: Message, edit: Message) -> None:
    """Check that an edit comes to the records of the message that it edits."""
    both = [Delivery(dead.queue, dead.sequence, each, 0, dead.enqueued_ms, 0) for each in (message, edit)]
    was, now = admit(plan, both, dead.enqueued_ms)
    for before, after in zip((was, *was.others), (now, *now.others), strict=True):
        _check_branch(where, before, after)


def _check_branch(where: str, before: Work, after: Work) -> None:
    if isinstance(after.refusal, Later):
        raise Refused(f"{where} cannot be edited here: {after.refusal.why}")
    if after.refusal is not None:
        raise Refused(
            f"the edited body of {where} would be refused as {after.refusal.reason}: {after.refusal.description}; "
            "nothing was sent"
        )
    if before.inbox != after.inbox:
        raise Refused(
            f"the edited body of {where} has the key {after.key!r}, and was refused under {before.key!r}, where its "
            "record is; keep the key, or discard the dead letter and send the corrected message under a new id"
        )
