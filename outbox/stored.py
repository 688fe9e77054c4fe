"""The documents that the store protocols keep: states, records, staged results and processed markers.

Bodies are JSON objects, so that a user can query them where they lie.  A document with a member `pending` is unfinished
business: a record whose outputs may not have left yet, or a state that points to the transaction which changed it.
What has no time to live stays until it is finished.

    partition = state id      `state`          the state, its version, and in item scope its pointer
                              `inbox:<key>`    partition scope: the record of one handled message, or of one that waits
                              `done:<key>`     item scope: the processed marker of one handled message, or that it waits
                              `staged:<tx>`    item scope: what an attempt will do if its state is swapped in
                              `overflow:<tx>`  the blob that an attempt may have written outputs to that did not fit
                              `failures:<key>` how often a message of an ordered source has failed
    partition = inbox:<key>   `inbox:<key>`    the record of a stateless handler's message
    partition = claim:<key>   `claim`          which HTTP request an idempotency key stands for
    partition = session:<..>  `stopped`        the dead letter behind which a session stands still

Markers and staged records share a partition, because a session token is good for the partition that it came from.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outbox.errors import CorruptRecord, PoisonMessage
from outbox.http import Reply
from outbox.ports import Document, DocumentKey, Output, Session, Version

STATE = "state"
STAGED_PREFIX = "staged:"
RECORD_PREFIX = "inbox:"
OVERFLOW_PREFIX = "overflow:"
NO_VALUE = msgspec.Raw(b"null")


class StateItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as stored: its value (null: a tombstone), schema version, and a version that only grows.

    `at_ms` is when this version was written.  `pending` is the transaction that wrote it, until everything that one
    emitted has left; `token` a session token at which its staged record, or the marker of the last, can be read.
    """

    value: msgspec.Raw = NO_VALUE
    schema: int = 1
    version: int = 0
    at_ms: int = 0
    pending: str = ""
    token: Session = ""

    @property
    def is_tombstone(self) -> bool:
        """Whether there is no state here."""
        return bytes(self.value) == b"null"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one handled message did: the outputs of its effect, or the reason of its refusal.

    `fingerprint` is the digest of its payload, `at_ms` the time of its commit, `attempt` the resubmission that it
    answers, `spilled` the blob that holds the outputs where they do not fit in here, `reply` what an HTTP request is
    answered with, for as long as the record lives.  `life_ms` is how long that is to be when its outputs have left,
    whoever sends them: of several applications in one container each has a retention of its own.
    """

    tx: str
    fingerprint: bytes
    at_ms: int
    pending: bool = False
    outputs: tuple[Output, ...] = ()
    spilled: str = ""
    reason: str = ""
    description: str = ""
    attempt: int = 0
    reply: Reply | None = None
    life_ms: int = 0

    @property
    def refusal(self) -> PoisonMessage | None:
        """Why the message was refused; None where it was applied."""
        return PoisonMessage(self.reason, self.description) if self.reason else None

    def marked(self) -> Record:
        """The same when its outputs have left: without them, they are not needed any more."""
        return msgspec.structs.replace(self, pending=False, outputs=(), spilled="", life_ms=0)


class Staged(msgspec.Struct, frozen=True, omit_defaults=True):
    """Item scope: what the transaction `pending` does if the state's swap lands; kept until the pointer is cleared.

    `version` is the state version that the attempt had loaded: once the state is past it without ever having pointed
    here, the transaction can not take effect any more.
    """

    pending: str
    inbox: bytes
    state: str
    version: int
    record: Record
    dispatched: bool = False


class Found(msgspec.Struct, frozen=True):
    """A staged record as it was read or written: its version, and a session in which it can be read."""

    staged: Staged
    version: Version
    session: Session


class Overflow(msgspec.Struct, frozen=True):
    """The blob that the attempt `pending` may have written, for which message, over which version of which state.

    `attempt` is the resubmission that it answers; None: whoever announced it did not say.  At the age of `life_ms` no
    write of that attempt can be in flight any more.
    """

    pending: str
    blob: str
    inbox: bytes
    state: str
    version: int
    at_ms: int
    attempt: int | None = None
    life_ms: int = 0


class IdempotencyClaim(msgspec.Struct, frozen=True):
    """Which request an idempotency key stands for: its payload's digest, its state and key, and when it came first."""

    fingerprint: bytes
    state: str
    key: str
    created_ms: int


class Failures(msgspec.Struct, frozen=True):
    """How often a message of an ordered source has failed; it may undercount."""

    count: int


def state_key(state_id: str) -> DocumentKey:
    """Where a state lies."""
    return DocumentKey(state_id, STATE)


def record_key(state_id: str | None, inbox: bytes) -> DocumentKey:
    """Where the record of a message lies: beside its state, or in a partition of its own."""
    id = RECORD_PREFIX + inbox.hex()
    return DocumentKey(state_id or id, id)


def failures_key(state_id: str | None, inbox: bytes) -> DocumentKey:
    """Where the failures of a message are counted."""
    return DocumentKey(state_id or RECORD_PREFIX + inbox.hex(), "failures:" + inbox.hex())


def claim_key(inbox: bytes) -> DocumentKey:
    """Where the idempotency key of a request is claimed, whatever state it names."""
    return DocumentKey("claim:" + inbox.hex(), "claim")


def staged_key(state_id: str, tx: str) -> DocumentKey:
    """Where an attempt's result is staged."""
    return DocumentKey(state_id, STAGED_PREFIX + tx)


def overflow_key(partition: str, tx: str) -> DocumentKey:
    """Where an attempt says which blob it is about to write."""
    return DocumentKey(partition, OVERFLOW_PREFIX + tx)


def processed_key(state_id: str, inbox: bytes) -> DocumentKey:
    """Where the marker of a message lies in item scope."""
    return DocumentKey(state_id, "done:" + inbox.hex())


encode = msgspec.json.Encoder().encode

Item = TypeVar("Item", StateItem, Record, Staged, Overflow, IdempotencyClaim, Failures)


def decode(document: Document, kind: type[Item]) -> Item:
    """A document as what it must be.

    Raises:
        CorruptRecord: it is not; somebody else writes to this container.
    """
    try:
        return msgspec.json.decode(document.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"{document.key.partition}/{document.key.id}"
        raise CorruptRecord(f"document {where} is not a {kind.__name__}: {error}; who else writes here?") from error


def state_in(document: Document | None) -> StateItem:
    """What a read of a state found; one without a value where there is none."""
    return StateItem() if document is None else decode(document, StateItem)
