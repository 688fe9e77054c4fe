"""Documents, conditional writes and their outcomes.

A conditional write that does not take effect is the value `Lost`, not an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Version = str
"""An opaque version (ETag) of a document; only its store may order or interpret it."""

Session = str
"""An opaque session token: a read with it is at least as fresh as the response that carried it."""


class Tag(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The meaning of a write, for simulations, recorded histories and audits; stores ignore it.

    `what` is the step's name (`commit`, `state`, `stage`, `mark`, ...), `inbox` the handlings that it is about, and
    `tx` the attempt that makes it.
    """

    what: str
    inbox: tuple[bytes, ...] = ()
    tx: str = ""


UNTAGGED = Tag("")
"""The tag of a write without a meaning for them."""


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A document's partition and id; documents of one partition can be written together."""

    partition: str
    id: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document as read; `session` is the token of that response."""

    key: DocumentKey
    body: bytes
    version: Version
    session: Session = ""


@dataclass(frozen=True, slots=True)
class Create:
    """Write a document that must not exist; with `ttl_s` it expires that many seconds after its last write."""

    key: DocumentKey
    body: bytes
    ttl_s: float | None = None
    tag: Tag = UNTAGGED


@dataclass(frozen=True, slots=True)
class Replace:
    """Write a document that must still have the version `if_match`."""

    key: DocumentKey
    body: bytes
    if_match: Version
    ttl_s: float | None = None
    tag: Tag = UNTAGGED


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a document that must still have the version `if_match`."""

    key: DocumentKey
    if_match: Version
    tag: Tag = UNTAGGED


Write = Create | Replace | Delete
"""One operation of a write, under its condition."""


@dataclass(frozen=True, slots=True)
class Won:
    """The write took effect; one new version for each operation (empty for a delete)."""

    versions: tuple[Version, ...] = ()
    session: Session = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """A condition did not hold and nothing was written: the operation, and its current document if returned."""

    operation: int
    current: Document | None = None
    session: Session = ""


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """The capabilities of a store, by which the runtime chooses its protocol."""

    atomic_scope: Literal["item", "partition"]
    batch_count_max: int
    item_bytes_max: int
    tells_current: bool
    """Whether a lost write carries the current document, read at least as fresh as the loss."""
    ambiguous_replies: bool
    """Whether a write may end in `OutcomeUnknown`."""
    ordered_versions: bool = False
    partition_bytes_max: int = 0
    """The limit of one partition's total size; 0 without one."""
    dispatch_ledger: bool = False
    """Whether workers keep a dispatch ledger in place of marks; the store has `unsent` then."""
    inline_bytes_max: int = 256 << 10
    """The largest record, with its outputs, that item scope keeps inside its state; a larger one is staged.

    Whoever reads the state before its pointer is cleared reads that too.
    """


class _Unfinished(msgspec.Struct):
    pending: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def is_pending(body: bytes) -> bool:
    """Whether a body is a JSON object with a member `pending`."""
    try:
        return msgspec.json.decode(body, type=_Unfinished).pending is not msgspec.UNSET
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
