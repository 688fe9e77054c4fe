"""The error tree, and what a caller may conclude from each.

    OutboxError
    |-- Refused              nothing was written
    |   |-- Throttled        nothing was written; try again after `retry_after_s`
    |   |   `-- Unreachable  nothing was written; no connection could be made
    |   |-- LockLost         nothing was settled; the message will be, or was, redelivered
    |   |-- NoBlobStore      nothing was written; a blob store is needed, and there is none
    |   |-- Trimmed          nothing was read or written; that part of a log is gone
    |   |-- OtherLog         nothing was read or written; a log of this name is another one than before
    |   |-- DeadlinePassed   nothing more was written; an attempt took too long
    |   `-- TooLarge         nothing was written; the limit is named
    |-- OutcomeUnknown       it may have been written: read before acting
    |-- PoisonMessage        this message can never be handled unchanged
    |-- UnknownDestination   a name that the application never declared
    |-- UnknownType          a state or message type that the application has no use for
    |-- NotRegistrable       a handler, message or state that cannot be registered
    |-- CorruptRecord        durable bytes are damaged, not only an unsynced tail
    |-- AlreadyOpen          another process holds the folder
    |-- FormatTooNew         written by a newer version of the code
    |-- HandlingEnded        a context was used after its handling had ended: nothing of that attempt is committed
    `-- EngineStopped        the engine stopped for good; nothing more is acknowledged

A lost condition is the value `outbox.ports.Lost`, not an error.  Every message holds the id and the next step.
"""

from __future__ import annotations


class OutboxError(Exception):
    """Root of everything this package raises on purpose."""


class Refused(OutboxError):
    """Nothing was written; undoing what depends on it is safe."""


class Throttled(Refused):
    """Nothing was written; the resource asks for a pause of `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unreachable(Throttled):
    """Nothing was written; no connection could be made, so no request left."""


class LockLost(Refused):
    """Nothing was settled; the lock on the message or session expired or was voided by a restart."""


class NoBlobStore(Refused):
    """Nothing was written or read; the application runs without a blob store, so a retry cannot succeed."""


class TooLarge(Refused):
    """Nothing was written; a stated limit was exceeded."""


class Trimmed(Refused):
    """That part of an ordered log is gone; the first index that is left is `floor`."""

    def __init__(self, message: str, *, floor: int = 0) -> None:
        super().__init__(message)
        self.floor = floor


class OtherLog(Refused):
    """Another log is in this one's place: of another store, or restored; nothing was read or written."""


class DeadlinePassed(Refused):
    """An attempt took too long and wrote nothing more; what it wrote before is stored, so begin again."""


class OutcomeUnknown(OutboxError):
    """The operation may have taken effect; read before acting on it."""


REASON_LENGTH_MAX = 1_000
"""The longest text of a refusal that is kept, in characters."""


class PoisonMessage(OutboxError):
    """The message can never be handled unchanged; `reason` is the dead-letter code."""

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(f"{reason}: {description}")
        self.reason = reason
        self.description = description


class UnknownDestination(OutboxError):
    """A message was sent to a name that the application never declared."""


class UnknownType(OutboxError, TypeError):
    """A state or a message is of a type that nothing in the application uses."""


class NotRegistrable(OutboxError, TypeError):
    """A handler, message type or state type whose declaration cannot be registered."""


class CorruptRecord(OutboxError):
    """Durable bytes are damaged at a place that cannot be an unsynced tail."""


class AlreadyOpen(OutboxError):
    """Another process holds the folder."""


class FormatTooNew(OutboxError):
    """The bytes were written by a newer version of the code than this one."""


class HandlingEnded(OutboxError):
    """A context was used after its handling was cut off; nothing of that attempt is committed, so return."""


class EngineStopped(OutboxError):
    """The engine stopped after a failed write or was closed; nothing more is acknowledged."""
