"""What operators send and get of commits whose outputs have not left: the values of `outbox pending`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from outbox.ops.values.requests import Change, Read


class PendingOutput(msgspec.Struct, frozen=True):
    """An output that is not known to have left: its id, its queue or topic, and the size of its body."""

    id: str
    destination: str
    size_bytes: int


class PendingView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something committed that is not finished: the transaction, its document, when it was committed, and why.

    `committed` is in seconds since 1970, 0 where it is not known; `more` counts outputs that are not listed.
    """

    tx: str
    document: str
    committed: float
    why: str
    outputs: list[PendingOutput] = []
    more: int = 0


class PendingFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many documents were finished, were too young for that, and are left; and what stands in the way."""

    finished: int
    young: int
    left: int
    troubles: list[str] = []


class ListPending(Read[list[PendingView]], frozen=True):
    """List what was committed and is not finished, at most a thousand documents."""


class Finish(Change[PendingFinished], frozen=True):
    """Finish what a transaction left, or (null) everything, if it is older than a minute."""

    tx: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)] | None
