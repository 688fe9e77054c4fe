"""Edits: a dead letter with another body, checked before it is sent.

An edit keeps the identity of its message and names the payload that it replaces.  It runs over the refused record of
that payload only, whoever sends it (`runtime.verdict`).  What is checked here is what its sender can be spared: a
refusal without a record, a body that no handler takes, another key.  Under another key lies another record, so the edit
would be refused there, and the refused payload could still be resubmitted.
"""

from __future__ import annotations

import msgspec

from outbox.errors import NoBlobStore, PoisonMessage, Refused
from outbox.message import PROPERTY_SCHEMA, Message, excess, schema_properties
from outbox.ports import BlobStore, DeadLetterEntry, Delivery
from outbox.resubmission import check_editable, check_resubmittable, edited
from outbox.runtime.delivery.admission import admit
from outbox.runtime.delivery.claim_check import check_in, redeem
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Later, Work


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
