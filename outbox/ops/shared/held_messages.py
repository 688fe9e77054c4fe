"""A queue's messages as an operator sees them: the state of each, and the reason for it."""

from __future__ import annotations

import time

from msgspec import UNSET

from outbox.deliveries import HeldMessage
from outbox.errors import PoisonMessage
from outbox.message import Message
from outbox.ops.shared.names import word
from outbox.ops.shared.text import age, shown
from outbox.ops.values.messages import FoundMessage, MessageState, MessageView
from outbox.ports import BlobStore
from outbox.resubmission import dead_letter_name
from outbox.runtime.delivery.claim_check import redeem

ERROR_LENGTH_MAX = 300
"""How much of an error is shown; a foreign sender may have written any text there."""


def identity_of(queue: str, held: HeldMessage) -> str:
    """The identity of a message; one without an id of its own has its number for one."""
    return dead_letter_name(queue, held.sequence, held.message, "")


def state_of(held: HeldMessage, now_ms: int) -> MessageState:
    match held.status:
        case "locked":
            return "in-hand"
        case "deferred":
            return "deferred"
        case "scheduled":
            return "retrying" if held.error or held.failures else "scheduled"
    if held.blocked_by is not None:
        return "blocked"
    return "retrying" if held.due_ms > now_ms and not held.behind else "waiting"


WORKER = "a worker to take it"


def waits_for(queue: str, *, paused: bool, app_without_handler: str = "") -> str:
    """Whom the messages of a queue wait for, whose turn it is."""
    if paused:
        return f"its queue, which is paused until `outbox queue resume {word(queue)}`"
    if app_without_handler:
        return f"another receiver to take it: {app_without_handler}, which runs here, has no handler for {queue}"
    return WORKER


def view_of(queue: str, held: HeldMessage, now_ms: int, taker: str = WORKER) -> MessageView:
    """Return a message's view; `taker` names whom it waits for when its turn has come."""
    message = held.message
    created_ms = message.created_ms or held.enqueued_ms
    return MessageView(
        id=identity_of(queue, held),
        sequence=held.sequence,
        queue=queue,
        state=state_of(held, now_ms),
        why=why(held, now_ms, taker),
        type=message.type,
        key=message.session_id,
        created=created_ms / 1_000,
        # An engine has only the due time of a scheduled message.
        enqueued=UNSET if held.status == "scheduled" and held.enqueued_ms >= held.due_ms else held.enqueued_ms / 1_000,
        due=held.due_ms / 1_000 if held.due_ms else UNSET,
        locked_until=held.locked_until_ms / 1_000 if held.locked_until_ms else UNSET,
        handler=held.handler,
        since=held.since_ms / 1_000 if held.since_ms else UNSET,
        at=held.at,
        failures=held.failures,
        deliveries=held.delivery_count,
        error=held.error[:ERROR_LENGTH_MAX],
        correlation_id=message.correlation_id,
        size_bytes=len(message.body),
    )


def why(held: HeldMessage, now_ms: int, taker: str = WORKER) -> str:
    """Why a message is where it is, and for how long, in one line."""
    in_s = max(0, held.due_ms - now_ms) / 1_000
    so_far = _so_far(held)
    match state_of(held, now_ms):
        case "in-hand":
            over_s = (held.locked_until_ms - now_ms) / 1_000
            lock = f"the lock ends in {age(over_s)}" if over_s > 0 else "the lock has just run out"
            if not held.handler:
                return f"a receiver has it, {lock}{so_far}"
            where = f" at {held.at}" if held.at else ""
            return (
                f"handler {held.handler} has waited for {age((now_ms - held.since_ms) / 1_000)}{where}; {lock}{so_far}"
            )
        case "blocked":
            return f"its key is blocked by dead letter {held.blocked_by!r}: resubmit or discard that one{so_far}"
        case "retrying":
            return f"next try in {age(in_s)}{so_far}"
        case "scheduled":
            return f"due in {age(in_s)}, at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(held.due_ms / 1_000))}"
        case "deferred":
            return f"its receiver deferred it, and has to ask for it by its number, {held.sequence}{so_far}"
    if held.behind:
        first = f"behind number {held.behind} of its key"
        return f"{first}, which is tried again in {age(in_s)}" if held.due_ms > now_ms else f"{first}, which is in hand"
    return f"for {taker}{so_far}"


def _so_far(held: HeldMessage) -> str:
    """List a message's failed attempts, unsettled deliveries and the error it was put back for."""
    parts = []
    if held.failures:
        parts.append(f"{held.failures} failed attempt{'s' if held.failures > 1 else ''}")
    if held.delivery_count:
        parts.append(f"{held.delivery_count} deliver{'ies' if held.delivery_count > 1 else 'y'} that nobody settled")
    if held.error:
        parts.append(f"put back for: {held.error[:ERROR_LENGTH_MAX]}")
    return "; " + ", ".join(parts) if parts else ""


async def found_with_body(view: MessageView, message: Message, blobs: BlobStore) -> FoundMessage:
    """Return a queued message with its body as JSON, text or base64; without it where its blob is gone."""
    if message.claim:
        try:
            message = await redeem(message, blobs)
        except PoisonMessage:
            return FoundMessage(view)
    return FoundMessage(view, **shown(view.id, message.body))
