"""Cancellations: a scheduled message that is not to be handled after all.

A cancellation is a message of its own, to the queue of the message that it cancels, with that one's body under a type
of its own.  Whoever admits it finds the same handlers, keys and inbox keys as for the message, runs no handler, and
commits the message's record: applied, with nothing changed.  So the record decides which of the two was first, as it
does between copies: a message that comes behind its cancellation is completed as a duplicate, and a cancellation that
comes behind its message is.  That record lives until the message was due, and from then on as long as any other.

A build that knows no cancellations refuses the type, and so never handles a message before it is due.

What a handler keeps of a scheduled message is its ticket: a text that begins with its identity and holds what a
cancellation needs.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import msgspec

from outbox.errors import PoisonMessage
from outbox.message import Message, Scalar, schema_properties
from outbox.resubmission import Replaced

CANCELLATION_TYPE = "outbox:cancellation"
"""The type of every cancellation; no message type of Python has a colon in its name."""
PROPERTY_CANCELS = "outbox-cancels"
PROPERTY_CANCELS_TYPE = "outbox-cancels-type"
PROPERTY_CANCELS_DUE = "outbox-cancels-due"
TICKET_MARK = "!"
"""Between the identity in a ticket and the rest of it."""
NOTHING = b""
"""In place of the digest of a replaced payload: the message was cancelled."""


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """The ticket to cancel a scheduled message; `due_ms` is in milliseconds since 1970."""

    id: str
    destination: str
    type: str
    body: bytes
    session_id: str
    schema: int
    due_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ticket).decode


def ticket_text(destination: str, message: Message, due_ms: int) -> str:
    """The ticket of a scheduled message, for `Context.cancel`."""
    session, schema = message.session_id, message.schema
    ticket = Ticket(message.identity, destination, message.type, message.body, session, schema, due_ms)
    return f"{message.identity}{TICKET_MARK}{urlsafe_b64encode(_encode(ticket)).decode()}"


def read_ticket(text: str) -> Ticket:
    """The ticket in a text.

    Raises:
        ValueError: it is none.
    """
    cure = "it is no ticket; give ctx.cancel the text that ctx.schedule returned, unchanged"
    if not isinstance(text, str):
        raise ValueError(f"a {type(text).__name__}: {cure}")
    id, mark, rest = text.partition(TICKET_MARK)
    try:
        ticket = _decode(urlsafe_b64decode(rest.encode("ascii")))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r}: {cure}") from error
    if not mark or ticket.id != id:
        raise ValueError(f"{text[:80]!r}: {cure}")
    return ticket


def cancelling_properties(ticket: Ticket) -> dict[str, Scalar]:
    """The properties of the cancellation of a ticket's message."""
    return {
        **(schema_properties(ticket.schema) or {}),
        PROPERTY_CANCELS: ticket.id,
        PROPERTY_CANCELS_TYPE: ticket.type,
        PROPERTY_CANCELS_DUE: ticket.due_ms,
    }


def cancelled_by(cancellation: Message) -> tuple[Message, int]:
    """The message that a cancellation cancels, and when that is due, in milliseconds since 1970 and at least 1.

    Its creation time is the cancellation's: it says nothing about its age.

    Raises:
        PoisonMessage: it names none.
    """
    found = cancellation.properties or {}
    id, type, due_ms = (found.get(name) for name in (PROPERTY_CANCELS, PROPERTY_CANCELS_TYPE, PROPERTY_CANCELS_DUE))
    if not (isinstance(id, str) and id and isinstance(type, str) and isinstance(due_ms, int) and due_ms < 1 << 53):
        raise PoisonMessage(
            "undecodable",
            f"a cancellation needs the properties {PROPERTY_CANCELS}, {PROPERTY_CANCELS_TYPE} and "
            f"{PROPERTY_CANCELS_DUE}; discard it, and cancel the message by its number: outbox schedule cancel",
        )
    properties = schema_properties(cancellation.schema)
    return msgspec.structs.replace(cancellation, outbox_id=id, type=type, properties=properties), max(1, due_ms)


def handled_identity(message: Message) -> str:
    """The identity under which a message is on record: of a cancellation that of the message that it cancels."""
    found = message.properties.get(PROPERTY_CANCELS) if message.properties and message.type == CANCELLATION_TYPE else ""
    return found if found and isinstance(found, str) else message.identity


def cancelled(attempt: int, now_ms: int) -> Replaced:
    """The replacement that the record of a cancelled message remembers: nothing in place of its handling."""
    return Replaced(NOTHING, attempt, now_ms)


def cancelled_ms(replaced: Sequence[Replaced]) -> int:
    """When a record's message was cancelled, in milliseconds since 1970; 0: it was not."""
    return next((each.at_ms for each in replaced if each.fingerprint == NOTHING), 0)
