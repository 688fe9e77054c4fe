"""The documents that the store protocols keep: states, records, staged results and processed markers.

Bodies are JSON objects, so that users can query them.  A document with a member `pending` is unfinished: a record whose
outputs may not be pushed yet, or a state with a pointer to the transaction that changed it.  A pending document has no
time to live, but for a dispatch ledger, which is renewed while it has records.

    partition = state id      `state`          the state, its version, and in item scope its pointer
                              `inbox:<key>`    partition scope: the record of a handled message, or a waiting record
                              `done:<key>`     item scope: the processed marker of a handled message, or a waiting one
                              `staged:<tx>`    item scope: the effects of an attempt if its swap lands
                              `overflow:<tx>`  the blob with an attempt's outputs that did not fit
                              `failures:<key>` the failure count of a message of an ordered source
    partition = inbox:<key>   `inbox:<key>`    the record of a stateless handler's message
    partition = claim:<key>   `claim`          the HTTP request of an idempotency key
    partition = session:<..>  `stopped`        the dead letter that blocks a session
    partition = ledger:<id>   `ledger:<id>`    a worker's dispatch ledger: which of its records' outputs have left

Markers and staged records share a partition, because a session token is valid for its own partition only.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outbox.errors import CorruptRecord, PoisonMessage
from outbox.http import Reply
from outbox.ports import Document, DocumentKey, Output, Session, Version
from outbox.resubmission import Replaced

STATE = "state"
STAGED_PREFIX = "staged:"
RECORD_PREFIX = "inbox:"
OVERFLOW_PREFIX = "overflow:"
LEDGER_PREFIX = "ledger:"
NO_VALUE = msgspec.Raw(b"null")


class StateItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as stored: its value (null: a tombstone), schema version, and a version that only grows.

    `at_ms` is the write time of this version.  `pending` points to the transaction that wrote it, until its outputs
    are pushed: to its staged record, or it holds them itself.  With the session token `token` that staged record, and
    the markers of all earlier transactions, can be read.
    """

    value: msgspec.Raw = NO_VALUE
    schema: int = 1
    version: int = 0
    at_ms: int = 0
    pending: str | Inline = ""
    token: Session = ""

    @property
    def pointer(self) -> str:
        """The transaction whose outputs may not be pushed yet; empty: none."""
        return self.pending.record.tx if isinstance(self.pending, Inline) else self.pending

    @property
    def is_tombstone(self) -> bool:
        """Whether the state was deleted, or never existed."""
        return bytes(self.value) == b"null"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a handled message: its outputs, or the reason of its refusal.

    `fingerprint` is the digest of its payload, `at_ms` the time of its commit, `attempt` the resubmission that it
    records, `spilled` the blob with outputs that do not fit, `reply` the reply to an HTTP request.  `life_ms` is the
    record's time to live once its outputs are pushed, whichever application pushes them: several applications in one
    container have retentions of their own.  `entry` is its place in a dispatch ledger, which says whether its outputs
    have left; a record with one is not pending.  `replaced` are the refused payloads that edits took the place of, the
    earliest first; earlier versions of the code skip it.
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
    entry: str = ""
    replaced: tuple[Replaced, ...] = ()

    @property
    def refusal(self) -> PoisonMessage | None:
        """Why the message was refused; None where it was applied."""
        return PoisonMessage(self.reason, self.description) if self.reason else None

    def marked(self) -> Record:
        """The record once its outputs are pushed: without them."""
        return msgspec.structs.replace(self, pending=False, outputs=(), spilled="", life_ms=0)


class Inline(msgspec.Struct, frozen=True, omit_defaults=True):
    """Item scope: the message and the record, with its outputs, of the transaction that wrote a state; in that state.

    It stands where the id of a staged transaction would.  Earlier versions of the code cannot decode such a state: they
    reschedule its messages and touch nothing.
    """

    inbox: bytes
    record: Record


class Staged(msgspec.Struct, frozen=True, omit_defaults=True):
    """Item scope: the effects of the transaction `pending` if its swap lands; kept until the pointer is cleared.

    `version` is the state version that the attempt loaded: once the state is past it without a pointer to this record,
    the transaction can not take effect any more.
    """

    pending: str
    inbox: bytes
    state: str
    version: int
    record: Record
    dispatched: bool = False


class LedgerItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's dispatch ledger `pending`: numbers up to `last` were handed out, and of those `open` are not closed.

    `at_ms` is when the oldest of them was handed out, else the time of this version; `life_ms` is that of its records.
    """

    pending: str
    at_ms: int
    life_ms: int
    last: int = 0
    open: tuple[int, ...] = ()


class FoundStaged(msgspec.Struct, frozen=True):
    """A staged record as read or written: its version, and a session token that sees it."""

    staged: Staged
    version: Version
    session: Session


class Overflow(msgspec.Struct, frozen=True):
    """The announcement of a blob of the attempt `pending`: its message, and the state version that it loaded.

    `attempt` is the message's resubmission; None: an older version of the code did not store it.  At the age of
    `life_ms` no write of that attempt can be in flight any more.
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
    """The request of an idempotency key: its payload's digest, its state and key, and its first creation time."""

    fingerprint: bytes
    state: str
    key: str
    created_ms: int


class Failures(msgspec.Struct, frozen=True):
    """The failure count of a message of an ordered source; it may undercount."""

    count: int


def state_key(state_id: str) -> DocumentKey:
    return DocumentKey(state_id, STATE)


def record_key(state_id: str | None, inbox: bytes) -> DocumentKey:
    """The key of a record: in the state's partition, or in a partition of its own."""
    id = RECORD_PREFIX + inbox.hex()
    return DocumentKey(state_id or id, id)


def failures_key(state_id: str | None, inbox: bytes) -> DocumentKey:
    return DocumentKey(state_id or RECORD_PREFIX + inbox.hex(), "failures:" + inbox.hex())


def claim_key(inbox: bytes) -> DocumentKey:
    """The key of a claim: it depends on the idempotency key, not on the request's state."""
    return DocumentKey("claim:" + inbox.hex(), "claim")


def staged_key(state_id: str, tx: str) -> DocumentKey:
    return DocumentKey(state_id, STAGED_PREFIX + tx)


def overflow_key(partition: str, tx: str) -> DocumentKey:
    return DocumentKey(partition, OVERFLOW_PREFIX + tx)


def ledger_key(id: str) -> DocumentKey:
    return DocumentKey(LEDGER_PREFIX + id, LEDGER_PREFIX + id)


def entry_of(ledger: str, number: int) -> str:
    """The entry of a record; entries of one ledger sort by number."""
    return f"{ledger}/{number:012d}"


def number_of(entry: str) -> int:
    """The number of an entry.

    Raises:
        ValueError: it is none.
    """
    return int(entry.rpartition("/")[2])


def processed_key(state_id: str, inbox: bytes) -> DocumentKey:
    """The key of a message's marker in item scope."""
    return DocumentKey(state_id, "done:" + inbox.hex())


encode = msgspec.json.Encoder().encode

Item = TypeVar("Item")


def decode(document: Document, kind: type[Item], noun: str = "", *, cure: str = "who else writes here?") -> Item:
    """Decode a document; the error calls it a `noun`.

    Raises:
        CorruptRecord: it is of another kind; another program, or a newer version of this one, writes to this container.
    """
    try:
        return msgspec.json.decode(document.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(
            f"document {document.key.partition}/{document.key.id} is not a {noun or kind.__name__}: {error}; {cure}"
        ) from error


def state_in(document: Document | None) -> StateItem:
    """The state in a document that was read; an empty one for None."""
    return StateItem() if document is None else decode(document, StateItem)
