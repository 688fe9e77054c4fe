"""Resubmission: which dead letter of an id may run again, and what its message carries.

A dead letter may be resubmitted while the record of its refusal proves that it was not applied: the resubmission is a
later attempt, which replaces that record under its version.  A refusal by the age fence proves nothing, and a record
that has expired proves nothing any more; such a message is discarded, or sent again under a new id.

The engine and the operations of a store and a bus ask here, so every door does: client, command line, control
endpoint.  The client has the application's code and also reads whether the record is still there; the engine knows when
it expires.  Without either, as from the command line on Azure, the message is sent and refused again as too old:
nothing is lost.

An edit is a resubmission with another body.  It names the digest of the payload that it replaces, and runs over the
refused record of that payload only: not after another edit, not after the message was applied, not where nothing is on
record.  So it needs a refusal that is on record under the key of the message, and a body of the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from outbox.deliveries import SUBSCRIPTIONS, DeadLetterEntry
from outbox.errors import Refused
from outbox.lineage import fingerprint
from outbox.message import PROPERTY_REPLACES, Message, with_error

REJECTED = "rejected by the handler"
"""The stored description of a refusal by the handler itself, whatever its reason."""
RETRY_PAST_RETENTION = "put off until it is too old: "
"""How the stored description of a `Retry` beyond retention begins: the message ran, and was not applied.

Dead letters of earlier builds have this text."""
EDIT_WITHOUT_RECORD = "edit-without-record"
"""The reason of an edit that found nothing on record under its key: neither what it replaces nor itself."""
NO_RECORD_OF_ITS_OWN = frozenset(
    (
        "payload-differs",
        "undecodable",
        "unknown-type",
        "missing-key",
        "no-identity",
        "from-the-future",
        "MaxDeliveryCountExceeded",
        "TTLExpiredException",
    )
)
"""Reasons of messages that were refused without a record under their key, so that an edit has none to replace."""


REPLACED_COUNT_MAX = 100
"""How many replaced payloads a record remembers: those of the last edits."""


class Replaced(msgspec.Struct, frozen=True):
    """A refused payload that an edit took the place of: its digest, the attempt that it was of, and when."""

    fingerprint: bytes
    attempt: int
    at_ms: int


class Dead(Protocol):
    """A dead letter."""

    @property
    def reason(self) -> str:
        """The text of a `Reject`, else a code."""


AnyDead = TypeVar("AnyDead", bound=Dead)


def newest(dead: Sequence[AnyDead]) -> AnyDead:
    """The one to resubmit of an id's dead letters, oldest first: the newest that did not reuse another message's id."""
    return next((one for one in reversed(dead) if one.reason != "payload-differs"), dead[-1])


def may_have_been_applied(reason: str, description: str) -> bool:
    """Whether a refusal leaves open if its message was applied before: only one by the age fence does."""
    return reason == "too-old" and description != REJECTED and not description.startswith(RETRY_PAST_RETENTION)


def is_edit_without_record(reason: str, description: str) -> bool:
    """Whether a message was refused as an edit of nothing, and not by a handler that says the same."""
    return reason == EDIT_WITHOUT_RECORD and description != REJECTED


def check_resubmittable(where: str, reason: str, description: str, *, is_remembered: bool = True) -> None:
    """Refuse to resubmit a message that may have been applied, or whose record (`is_remembered`) has expired.

    Raises:
        Refused: no record proves that it was not applied.
    """
    if may_have_been_applied(reason, description):
        raise Refused(
            f"{where} was too old to run, and whether it was applied before is not on record any more; look at its "
            "state, discard it, and if it was not applied send it again under a new id"
        )
    if is_edit_without_record(reason, description):
        raise Refused(
            f"{where} replaces a refusal that is not on record, so it would be refused again; look at its state, "
            "discard it, and if it is still to be done send it again under a new id"
        )
    if not is_remembered:
        raise Refused(
            f"{where} was refused so long ago that the record of it is gone, and would be refused as too-old now; look "
            "at its state, discard it, and if it is still to be done send it again under a new id"
        )


def check_editable(where: str, reason: str, description: str) -> None:
    """Refuse to edit a message whose refusal is not on record under its key.

    Raises:
        Refused: an edit would have nothing to replace.
    """
    if reason in NO_RECORD_OF_ITS_OWN and description != REJECTED:
        raise Refused(
            f"{where} was refused as {reason}, without a record that an edit could replace; discard it, and send the "
            "corrected message under a new id"
        )


def sequence_identity(sequence: int) -> str:
    """The identity of a message without one, in a queue with `identity="sequence-number"`."""
    return f"sequence-{sequence}"


def dead_letter_identity(queue: str, sequence: int, message: Message, reason: str) -> str:
    """The identity under which a dead letter was handled: its own, else its sequence number where that counts."""
    if message.identity or reason == "no-identity" or SUBSCRIPTIONS in queue:
        return message.identity
    return sequence_identity(sequence)


def identified(letter: DeadLetterEntry) -> DeadLetterEntry:
    """A dead letter under the identity of its handling."""
    identity = dead_letter_identity(letter.queue, letter.sequence, letter.message, letter.reason)
    if identity == letter.message.identity:
        return letter
    return msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, outbox_id=identity))


def dead_letter_name(queue: str, sequence: int, message: Message, reason: str) -> str:
    """The name of a dead letter or message for operators: its identity, else its number; never empty."""
    return dead_letter_identity(queue, sequence, message, reason) or sequence_identity(sequence)


def is_copy(one: Message, other: Message) -> bool:
    """Whether two messages are copies of one, of any attempts; without an identity they never are."""
    return bool(one.identity) and alike(one) == alike(other)


def alike(message: Message) -> tuple[str, str, bytes, str]:
    """The fields in which all copies of a message agree."""
    return message.identity, message.type, message.body, message.claim


def resubmission(message: Message, *, attempt: int, enqueued_ms: int) -> Message:
    """The message of a resubmission: a later attempt, with its first creation time.

    Its failure count and its hops start again, and it says no error.
    """
    created_ms = message.created_ms or enqueued_ms
    return with_error(msgspec.structs.replace(message, attempt=attempt, created_ms=created_ms, failures=0, hops=0), "")


def edited(message: Message, body: bytes) -> Message:
    """A refused message, whose body is at hand, with another body; the same message if the body is unchanged."""
    if body == message.body:
        return message
    properties = {**(message.properties or {}), **{PROPERTY_REPLACES: fingerprint(message.body, message.type).hex()}}
    return msgspec.structs.replace(message, body=body, claim="", wire_body=b"", properties=properties)


def next_attempt(message: Message, others: Iterable[Message]) -> int:
    """The attempt of a resubmission: above all copies, because an earlier attempt follows its record."""
    return 1 + max(message.attempt, *(other.attempt for other in others if is_copy(other, message)), 0)
