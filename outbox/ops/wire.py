"""The requests of the control endpoint, with limits; its answers are `values`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from outbox.ops.values import BATCH_COUNT_MAX, KeyKind, NewMessage, Text

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]


class SendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to one queue or topic."""

    queue: Name
    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=BATCH_COUNT_MAX)]


class StateQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which state."""

    type: Name
    key: Annotated[str, msgspec.Meta(max_length=65_536)]
    kind: KeyKind = "text"


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters: a page of them, or the one of an id."""

    queue: Name
    id: Text = ""
    after: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] = 0
    count: Annotated[int, msgspec.Meta(ge=0, le=BATCH_COUNT_MAX)] = 0


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters to resubmit or discard: the newest of an id, or (null) all."""

    queue: Name
    id: Text | None
