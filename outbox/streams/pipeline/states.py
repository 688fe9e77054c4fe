"""The states of an operator, by key, and what a checkpoint saves of them.

A checkpoint takes the states as they are at one position while records go on to change them: a key is saved before the
next record touches it, and the rest a few at a time.  Of a state with boxes only what changed is saved.  A loaded state
is decoded when it is first asked for.  A key belongs to one of 64 slots for the pipeline's life, whatever process has
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from outbox.errors import CorruptRecord, OutboxError
from outbox.lineage import Key, field
from outbox.runtime.failures.error_text import failure_text
from outbox.streams.cells import Position
from outbox.streams.pipeline.changes import Changes, applied, changes_of
from outbox.streams.pipeline.state_fields import Marked, StateFields

SLOTS = 64
MEMBER_BYTES = 64
"""The bytes of a state's member, roughly."""
GONE = msgspec.Raw(b"null")
"""In place of the state of a key that has none any more."""


class StateUnstorable(OutboxError):
    """A checkpoint cannot store a state; the pipeline stands still."""


class Saved(NamedTuple):
    """The saved states of a slot, by key, and of others what changed; see `Changes`."""

    states: dict[str, msgspec.Raw]
    changes: dict[str, msgspec.Raw]


def _nothing() -> Saved:
    return Saved({}, {})


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
        self._at = Position(0)
        """Where the checkpoint under way is."""
        self._saved = defaultdict[int, Saved](_nothing)
        self._unstored: list[tuple[Key, Changes, int]] = []
        """Saved changes that are not encoded yet, and the weight of each."""
        self._marked: dict[Key, list[tuple[Position, Marked]]] = {}
        """The saved members of each key, behind the position of their checkpoint: the one under way, and a lost one."""
        self._lost: dict[Key, list[tuple[Position, Marked]]] = {}
        """The same of the checkpoints before it, which may not stand."""
        self._old: list[dict[Any, Any]] = []
        """Leftovers of earlier checkpoints, which take milliseconds to let go of at once."""
        self._fields = fields
        self._look = fields.look if fields is not None and len(fields.boxes) > 1 else None
        """Notes a box that was moved to another field, where there are several."""
        self._since: Position | None = None
        """Where the checkpoint under way begins to save from; None: it saves all."""

    def __len__(self) -> int:
        return len(self.by_key) + len(self._loaded)

    def touch(self, key: Key, at: Position) -> Any:
        """The state of a key, None without one, which is about to change at a position."""
        if self._waiting and key in self._waiting:
            del self._waiting[key]
            self._save(key)
        self._changed[key] = at
        if self._loaded and key in self._loaded:
            self.state(key)
        state = self.by_key.get(key)
        if self._look is not None and state is not None:
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
        self._old = [self._taken, self._lost, self._marked, *chain.from_iterable(self._saved.values())]
        self._saved, self._unstored = defaultdict(_nothing), []
        if since == self._at:
            self._taken, self._lost = self._changed, {}
        else:  # another checkpoint stands than the last that was begun
            found, lost = {**self._taken, **self._changed}, {**self._lost, **self._marked}
            self._taken = {key: each for key, each in found.items() if since is None or each >= since}
            self._lost = {key: each for key, each in lost.items() if key in self._taken}
        self._marked = {}
        self._since, self._at, self._changed = since, at, {}
        self._waiting = dict(self._taken if since is not None else self.all())

    def save(self, count: int) -> bool:
        """Save up to `count` states, or as many members of some; whether all are saved."""
        self._let_go(6 * count)
        left = count
        while self._waiting and left > 0 and len(self._unstored) < count:
            left -= self._save(self._waiting.popitem()[0])
        found = []
        while self._unstored and count > 0:
            found.append(self._unstored.pop())
            count -= found[-1][2]
        if found:
            self._store(found)
        return not (self._waiting or self._unstored)

    def _let_go(self, count: int) -> None:
        while self._old and count > 0:
            if self._old[-1]:
                self._old[-1].popitem()
                count -= 1
            else:
                self._old.pop()

    def saved(self) -> Mapping[int, Saved]:
        """The saved states and changes, by slot."""
        return self._saved

    def copied(self, state: Any) -> Any:
        """A copy of a state, as it would be read back."""
        if self._fields is not None:
            return self._fields.copied(state)
        return self.decode(self.encode(state), self.schema)

    def _save(self, key: Key) -> int:
        """Save a state; how many states of one member it is about as much as."""
        try:
            state = self.by_key.get(key)
            if self._fields is not None and state is not None and self._since is not None:
                changes = self._changes(self._fields, key, state, self._since)
                if changes is not None:
                    members = weight(changes)
                    self._unstored.append((key, changes, members))
                    return members
            raw = GONE if state is None else msgspec.Raw(self.encode(state))
            self._saved[slot_of(key)].states[text_of(key)] = raw
            return 1 + len(memoryview(raw)) // MEMBER_BYTES
        except Exception as error:
            raise self._unstorable(key, error) from error

    def _changes(self, fields: StateFields, key: Key, state: Any, since: Position) -> Changes | None:
        """Take the changes of a key's state; None: all of it changed."""
        lost = [each for each in self._lost.get(key, ()) if each[0] > since] if self._lost else []
        changes, marked = fields.changed(state, [each for _, each in lost])
        if lost:
            both = [{**one, **other} for one, other in zip(lost[0][1], lost[-1][1], strict=True)]
            self._marked[key] = [(lost[-1][0], both), (self._at, marked)]
        else:
            self._marked[key] = [(self._at, marked)]
        return changes

    def _store(self, found: Sequence[tuple[Key, Changes, int]]) -> None:
        """Encode changes, all at once."""
        try:
            raws = self._fields.stored([changes for _, changes, _ in found]) if self._fields is not None else ()
        except Exception as error:
            if len(found) == 1:
                raise self._unstorable(found[0][0], error) from error
            for each in found:
                self._store([each])
        else:
            for (key, *_), raw in zip(found, raws, strict=True):
                self._saved[slot_of(key)].changes[text_of(key)] = raw

    def _unstorable(self, key: Key, error: Exception) -> StateUnstorable:
        return StateUnstorable(
            f"operator {self._operator}: the state of key {key!r} cannot be stored ({failure_text(error)}); "
            "mend the operator and give the pipeline the next version="
        )

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


def weight(changes: Changes) -> int:
    """How many members changed, and 1 at least."""
    return max(1, sum(map(len, changes.members.values())))


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
