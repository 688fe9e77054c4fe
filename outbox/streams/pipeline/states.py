"""The states of an operator, by key, and what a checkpoint saves of them.

A checkpoint takes the states as they are at one position while records go on to change them: a key is saved before the
next record touches it, and the rest a few at a time.  A key belongs to one of 64 slots for the pipeline's life,
whatever process has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from outbox.lineage import Key, field
from outbox.streams.cells import Position

SLOTS = 64
GONE = b"null"
"""In place of the state of a key that has none any more."""


class KeyedStates:
    """The states of one operator, and which of them have changed since when."""

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes, int], Any], schema: int) -> None:
        """Take how a state is stored, and read from an older schema version; `schema` is today's."""
        self.by_key: dict[Key, Any] = {}
        self.schema = schema
        self.encode = encode
        self._decode = decode
        self._changed: dict[Key, Position] = {}
        """The position of the last change of each key that may not be in the checkpoint that stands."""
        self._waiting: dict[Key, Any] = {}
        """The states that the checkpoint under way has yet to save, as they were at its position."""
        self._saved: dict[int, dict[str, msgspec.Raw]] = {}

    def touch(self, key: Key, at: Position) -> None:
        """Say that the state of a key is about to change, at a position."""
        if key in self._waiting:
            self._save(key)
        self._changed[key] = at

    def begin(self, since: Position) -> None:
        """Begin to save the states that changed at or behind `since`, where a checkpoint stands."""
        self._changed = {key: at for key, at in self._changed.items() if at >= since}
        self._waiting = {key: self.by_key.get(key) for key in self._changed}
        self._saved = {}

    def begin_all(self) -> None:
        """Begin to save all states."""
        self._waiting, self._saved = dict(self.by_key), {}

    def save(self, count: int) -> bool:
        """Save up to `count` states; whether all are saved."""
        for _ in range(min(count, len(self._waiting))):
            self._save(next(iter(self._waiting)))
        return not self._waiting

    def saved(self) -> dict[int, dict[str, msgspec.Raw]]:
        """The saved states, by slot and key."""
        return self._saved

    def copied(self, state: Any) -> Any:
        """A copy of a state, as it would be read back."""
        return self._decode(self.encode(state), self.schema)

    def _save(self, key: Key) -> None:
        state = self._waiting.pop(key)
        raw = msgspec.Raw(GONE if state is None else self.encode(state))
        self._saved.setdefault(slot_of(key), {})[text_of(key)] = raw

    def load(self, states: Mapping[str, msgspec.Raw], schema: int) -> None:
        """Take states that were saved.

        Raises:
            FormatTooNew: a newer version of the code saved them.
        """
        for text, raw in states.items():
            if bytes(raw) == GONE:
                self.by_key.pop(key_of(text), None)
            else:
                self.by_key[key_of(text)] = self._decode(bytes(raw), schema)


def slot_of(key: Key) -> int:
    """The slot of a key, 0 to 63; the same on every machine."""
    return int.from_bytes(sha256(field(key)).digest()[:8], "big") % SLOTS


def text_of(key: Key) -> str:
    """A key as the text that a checkpoint has: `s`, `i` or `u` in front."""
    return f"s{key}" if isinstance(key, str) else f"i{key}" if isinstance(key, int) else f"u{key}"


def key_of(text: str) -> Key:
    """A key of a checkpoint."""
    kind, rest = text[0], text[1:]
    return rest if kind == "s" else int(rest) if kind == "i" else UUID(rest)
