"""The states of an operator, by key, and what a checkpoint saves of them.

A checkpoint takes the states as they are at one position while records go on to change them: a key is saved before the
next record touches it, and the rest a few at a time.  Of a state with boxes only what changed is saved.  A loaded state
is decoded when it is first asked for.  A key belongs to one of 64 slots for the pipeline's life, whatever process has
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from outbox.errors import CorruptRecord, OutboxError
from outbox.lineage import Key, field
from outbox.runtime.failures.error_text import failure_text
from outbox.streams.cells import Position
from outbox.streams.pipeline.changes import applied, changes_of
from outbox.streams.pipeline.state_fields import StateFields

SLOTS = 64
GONE = msgspec.Raw(b"null")
"""In place of the state of a key that has none any more."""


class StateUnstorable(OutboxError):
    """A checkpoint cannot store a state; the pipeline stands still."""


class Loaded(NamedTuple):
    """A state of a checkpoint, and what later parts changed of it."""

    whole: msgspec.Raw
    schema: int
    changes: list[msgspec.Raw]


class KeyedStates:
    """The states of one operator, and which of them have changed since when."""

    def __init__(
        self,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes, int], Any],
        schema: int,
        fields: StateFields | None = None,
        *,
        operator: str = "",
    ) -> None:
        """Take how a state of an operator is stored, and read from an older schema version; `schema` is today's.

        `fields` are those of its class, where it has boxes.
        """
        self.by_key: dict[Key, Any] = {}
        """The states, but for loaded ones that nobody has asked for."""
        self._loaded: dict[Key, Loaded] = {}
        self.schema = schema
        self._operator = operator
        self.encode = encode
        self.decode = decode
        self._changed: dict[Key, Position] = {}
        """The position of the last change of each key that changed behind the checkpoint under way."""
        self._taken: dict[Key, Position] = {}
        """The same of each key that is in that checkpoint, and may not be in the one that stands."""
        self._waiting: dict[Key, Any] = {}
        """The keys that the checkpoint under way has yet to save."""
        self._stood: dict[Key, Position] = {}
        """Keys whose changes are in the checkpoint that stands, and are not forgotten yet."""
        self._at = Position(0)
        """Where the checkpoint under way is."""
        self._saved: dict[int, dict[str, msgspec.Raw]] = {}
        self._saved_changes: dict[int, dict[str, msgspec.Raw]] = {}
        self._fields = fields
        self._look = fields.look if fields is not None and len(fields.boxes) > 1 else None
        """Notes a box that was moved to another field, where there are several."""
        self._since: Position | None = None
        """Where the checkpoint under way begins to save from; None: it saves all."""

    def __len__(self) -> int:
        return len(self.by_key) + len(self._loaded)

    def touch(self, key: Key, at: Position) -> Any:
        """The state of a key, None without one, which is about to change at a position."""
        if key in self._waiting:
            del self._waiting[key]
            self._save(key)
        self._changed[key] = at
        state = self.state(key) if key in self._loaded else self.by_key.get(key)
        if state is not None and self._look is not None:
            self._look(state)
        return state

    def state(self, key: Key) -> Any:
        """The state of a key; None without one."""
        loaded = self._loaded.get(key)
        if loaded is not None:
            self.by_key[key] = self._read(loaded)
            del self._loaded[key]
        return self.by_key.get(key)

    def all(self) -> Mapping[Key, Any]:
        """All states."""
        for key in [*self._loaded]:
            self.state(key)
        return self.by_key

    def begin(self, since: Position | None, at: Position) -> None:
        """Begin to save at a position the states that changed at or behind `since`, where a checkpoint stands.

        None: all.
        """
        self._saved, self._saved_changes = {}, {}
        if since == self._at:
            self._stood, self._taken = self._taken, self._changed
        else:  # another checkpoint stands than the last that was begun
            found = {**self._taken, **self._changed}
            self._taken = {key: each for key, each in found.items() if since is None or each >= since}
            self._stood = {key: each for key, each in found.items() if key not in self._taken}
        self._since, self._at, self._changed = since, at, {}
        self._waiting = dict(self._taken if since is not None else self.all())

    def save(self, count: int) -> bool:
        """Save up to `count` states; whether all are saved."""
        for _ in range(count):
            if self._waiting:
                self._save(self._waiting.popitem()[0])
            elif self._stood:
                self._forget(self._stood.popitem()[0])
        return not self._waiting and not self._stood

    def _forget(self, key: Key) -> None:
        state = self.by_key.get(key)
        if self._fields is not None and state is not None and key not in self._taken and key not in self._changed:
            self._fields.forget(state)

    def saved(self) -> dict[int, dict[str, msgspec.Raw]]:
        """The saved states, by slot and key."""
        return self._saved

    def saved_changes(self, slot: int) -> dict[str, msgspec.Raw]:
        """The saved changes of a slot's states, by key; these are not saved as a whole."""
        return self._saved_changes.get(slot, {})

    def copied(self, state: Any) -> Any:
        """A copy of a state, as it would be read back."""
        if self._fields is not None:
            return self._fields.copied(state)
        return self.decode(self.encode(state), self.schema)

    def _save(self, key: Key) -> None:
        try:
            slot, text, state = slot_of(key), text_of(key), self.by_key.get(key)
            saved = self._saved.setdefault(slot, {})
            if self._fields is not None and state is not None and self._since is not None:
                changes = self._fields.changed(state, self._at, self._since)
                if changes is not None:
                    self._saved_changes.setdefault(slot, {})[text] = changes
                    return
            saved[text] = GONE if state is None else msgspec.Raw(self.encode(state))
        except Exception as error:
            raise StateUnstorable(
                f"operator {self._operator}: the state of key {key!r} cannot be stored ({failure_text(error)}); "
                "mend the operator and give the pipeline the next version="
            ) from error

    def load(
        self, states: Mapping[str, msgspec.Raw], schema: int, changes: Mapping[str, msgspec.Raw] | None = None
    ) -> None:
        """Take saved states, and changes of states that earlier parts had.

        Raises:
            FormatTooNew: a newer version of the code saved them.
            CorruptRecord: a state is missing of which there are changes.
        """
        for text, raw in states.items():
            if raw == GONE:
                self._loaded.pop(key_of(text), None)
            else:
                self._loaded[key_of(text)] = Loaded(raw, schema, [])
        for text, each in (changes or {}).items():
            if (loaded := self._loaded.get(key_of(text))) is None:
                what = f"a checkpoint has changes of {key_of(text)!r}, and no state"
                raise CorruptRecord(f"{what}; restore its parts from a backup")
            loaded.changes.append(each)
        for text in (*states, *(changes or {})) if schema != self.schema else ():
            if (loaded := self._loaded.get(key_of(text))) is not None:
                self._read(loaded)  # what cannot be read is said at once

    def _read(self, loaded: Loaded) -> Any:
        changes = [changes_of(each) for each in loaded.changes]
        if loaded.schema != self.schema or self._fields is None or not all(map(self._fields.has_kinds_of, changes)):
            whole = applied(loaded.whole, loaded.changes) if changes else loaded.whole
            return self.decode(bytes(whole), loaded.schema)
        state = self.decode(bytes(loaded.whole), loaded.schema)
        for each in changes:
            self._fields.apply(state, each)
        return state


@lru_cache(maxsize=1 << 16)
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
