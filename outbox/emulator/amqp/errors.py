"""Faults of an AMQP connection, as the conditions that peers know.

    AmqpFault                 a condition, a text, and how far it reaches
    |-- ConnectionFault       the connection must close
    |-- SessionFault          the session must end; the connection lives on
    |-- LinkFault             the link must detach
    `-- OperationFault        this transfer, settlement or request fails; link and connection live on

The conditions with `com.microsoft:` in front are Service Bus's own; the SDK maps them to its exceptions.
"""

from __future__ import annotations

INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
FRAMING_ERROR = "amqp:connection:framing-error"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
DETACH_FORCED = "amqp:link:detach-forced"

DEAD_LETTER = "com.microsoft:dead-letter"
MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
SESSION_NOT_FOUND = "com.microsoft:session-not-found"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
TIMEOUT = "com.microsoft:timeout"
SERVER_BUSY = "com.microsoft:server-busy"
ARGUMENT_ERROR = "com.microsoft:argument-error"


class AmqpFault(Exception):
    """A fault with the AMQP condition by which the peer knows it."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class ConnectionFault(AmqpFault):
    """The peer broke the protocol or a limit; nothing more can be trusted on this connection."""


class SessionFault(AmqpFault):
    """The session asks for more than there is; it ends, with its links, and others go on."""


class LinkFault(AmqpFault):
    """The link cannot be opened or go on."""


class OperationFault(AmqpFault):
    """One transfer, settlement or request is refused; nothing was done."""
