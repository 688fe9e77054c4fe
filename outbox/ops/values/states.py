"""States as operators export and import them: a line for each, and what became of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from outbox.ops.values.requests import BATCH_COUNT_MAX, Change, KeyKind, Lines, Name, Read


class ReadState(Read[bytes | None], frozen=True):
    """Read the JSON of a state; None where there is none or it was deleted."""

    type: Name
    key: Annotated[str, msgspec.Meta(max_length=65_536)]
    kind: KeyKind = "text"


class Export(Lines, frozen=True):
    """Read every state of one instant, or those of one type."""

    type: Annotated[str, msgspec.Meta(max_length=1_024)] = ""


LINES_COUNT_MAX = 200
"""The most states of one request."""

StateName = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
StateId = Annotated[str, msgspec.Meta(max_length=2_048)]
VersionText = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9]\d{0,19})$")]
"""A text, because programs that read JSON round large numbers."""

ABSENT = "0"
"""The version of a state that does not exist."""


class StateLine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A state: its type, key and value, the value's schema version, and the version under which it was stored.

    `kind` is `uuid` where the key is one.  For a key too long to be stored in clear `key` is null, and `id` names the
    state.  `version` is `0` where the state is to be written only if it does not exist.
    """

    type: StateName
    key: Annotated[str, msgspec.Meta(max_length=65_536)] | int | None
    version: VersionText
    schema: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
    value: msgspec.Raw
    kind: Literal["", "uuid"] = ""
    id: StateId = ""


Written = Literal["written", "same", "changed", "refused"]


class StateWritten(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a line: `written` (or would be), `same` as stored, `changed` meanwhile, or `refused`."""

    outcome: Written
    id: str
    why: str = ""


class WriteStates(Change[list[StateWritten]], frozen=True):
    """Write states, each if it still has the version of its line; a dry run writes nothing."""

    states: Annotated[list[StateLine], msgspec.Meta(max_length=LINES_COUNT_MAX)]
    dry_run: bool = False


class ReadStates(Lines, frozen=True):
    """Read every state, or those of one type, as lines of `StateLine`.

    On an engine they are of one instant, on a store each as it was read.
    """

    type: Annotated[str, msgspec.Meta(max_length=1_024)] = ""


class StateEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state in a list, named as a `StateLine` names it: the version of its value, and its size."""

    type: str
    key: str | int | None
    version: str
    size_bytes: int
    kind: Literal["", "uuid"] = ""
    id: str = ""


class StatesPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of states in the order of their ids; `more` is the id to continue after (empty: none follow)."""

    states: list[StateEntry]
    more: str = ""


class ListStates(Read[StatesPage], frozen=True):
    """List at most `count` states of a type, or (empty) of all, after an id.

    With a `key` only those whose key of this `kind` begins so; with another kind than text alone, those of that kind.
    """

    type: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""
    kind: KeyKind = "text"
    after: StateId = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=BATCH_COUNT_MAX)] = 20


class MadeBy(msgspec.Struct, frozen=True):
    """A message that made a version, or may have: its id, and the queue that it came from."""

    id: str
    queue: str


class StateVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a state: what it was `before` (0: absent; -1: not known), when, and which messages made it.

    `is_sure` says that all of these did; else they are those of its commit.  `how` is `handled`, `deleted` or
    `written` by an operator; `why` is what is not known of it.
    """

    version: int
    how: str
    at: float
    before: int = -1
    messages: list[MadeBy] = []
    is_sure: bool = True
    tx: str = ""
    why: str = ""


class StateHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state's versions, oldest first; with `more` there are earlier ones."""

    state: str
    versions: list[StateVersion]
    more: bool = False
