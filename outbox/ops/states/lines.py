"""The meaning of a line of exported states: which state, and whether it may replace the stored one.

One table for an engine and for a store: a line is written where the stored version is that of the line, or where the
state does not exist and the line says so.  A value that is stored already needs no write, so an import whose answer was
lost can be repeated.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

import msgspec

from outbox.app import App
from outbox.errors import FormatTooNew, PoisonMessage, Refused
from outbox.lineage import Key, as_key, parse_state_id, state_id
from outbox.ops.shared.names import parse_key
from outbox.ops.shared.text import compact_json
from outbox.ops.values.states import ABSENT, ListStates, StateEntry, StateLine, StateWritten


class Stored(NamedTuple):
    """A stored state: its version as a text, its value (empty: it was deleted) and schema version."""

    version: str
    value: bytes
    schema: int


def line_of(id: str, stored: Stored) -> StateLine:
    """A stored state as a line."""
    what = stored.version, stored.schema, msgspec.Raw(stored.value)
    if (known := parse_state_id(id)) is None:
        return StateLine(id.rpartition(":")[0], None, *what, id=id)
    type, key = known
    return StateLine(type, str(key), *what, kind="uuid") if isinstance(key, UUID) else StateLine(type, key, *what)


class Beginning:
    """The ids that a list of states asks for.

    Raises:
        Refused: a beginning of a key is given without a type, or is none of its kind.
    """

    def __init__(self, asked: ListStates) -> None:
        tag = {"text": "", "int": "i.", "uuid": "u."}[asked.kind]
        if (asked.key or tag) and not asked.type:
            raise Refused("a key, or the beginning of one, is of one type of state; name the TYPE")
        if tag and not _BEGINNING[tag](asked.key):
            raise Refused(f"key {asked.key[:80]!r} is no beginning of {'a UUID' if tag == 'u.' else 'an integer'}")
        self._type, self._is_text = asked.type, bool(asked.key) and not tag
        beginning = f"{asked.type}:{tag}{asked.key.lower()}" if asked.type else ""
        self.prefix = state_id(asked.type, parse_key(asked.key, "text")) if self._is_text else beginning
        self._after = asked.after

    def has(self, id: str) -> bool:
        """Return whether the list asks for a state, by its id. A point marks a key of another kind, or a digest."""
        type, _, key = id.rpartition(":")
        is_of_type = id.startswith(self.prefix) and (not self._type or type == self._type)
        return is_of_type and id > self._after and not (self._is_text and key[1:2] == ".")


_BEGINNING = {"i.": re.compile(r"-?[0-9]*").fullmatch, "u.": re.compile(r"[0-9a-fA-F-]*").fullmatch}


def entry_of(id: str, stored: Stored) -> StateEntry:
    """A stored state in a list."""
    line = line_of(id, stored)
    return StateEntry(line.type, line.key, line.version, len(stored.value), line.kind, line.id)


def id_in(line: StateLine) -> str:
    """The id of a line's state.

    Raises:
        Refused: it names none.
    """
    if line.key is None:
        type, _, rest = line.id.rpartition(":")
        if type != line.type or not rest.startswith("h."):
            raise Refused(f"a line of {line.type!r} has neither a key nor the id of a long one; export it again")
        return line.id
    try:
        key: Key = UUID(line.key) if line.kind == "uuid" and isinstance(line.key, str) else as_key(line.key)
        return state_id(line.type, key)
    except (ValueError, UnicodeError) as error:
        raise Refused(f"key {str(line.key)[:80]!r} of {line.type!r} is no key ({error}); export it again") from error


def value_in(line: StateLine, app: App | None) -> bytes:
    """The value to store, checked by the application where there is one.

    Raises:
        Refused: it is null, is not what the type's handlers read, or is of a newer schema than they know.
    """
    value = compact_json(line.type, bytes(line.value))
    if value == b"null":
        raise Refused("the value is null: states are deleted by their handlers, not by an import")
    codec = None if app is None else app.states().get(line.type)
    if codec is not None:
        try:
            codec.decode(value, line.schema)
        except (PoisonMessage, FormatTooNew) as error:
            raise Refused(f"the application cannot read the value: {error}") from error
    return value


def judged(line: StateLine, id: str, value: bytes, found: Stored | None) -> StateWritten:
    """Decide whether a line may replace the stored state."""
    there = found if found is not None and found.value else None
    if there is not None and (there.value, there.schema) == (value, line.schema):
        return StateWritten("same", id)
    if line.version == (ABSENT if there is None else there.version):
        return StateWritten("written", id)
    if there is None:
        why = f"it does not exist any more, and the line has version {line.version}"
    elif line.version == ABSENT:
        why = f"it exists, with version {there.version}, and the line says that it does not"
    else:
        why = f"it has version {there.version}, and the line has {line.version}"
    return StateWritten("changed", id, why)
