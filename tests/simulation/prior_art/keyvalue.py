"""A store of values with versions, as a model: compare-and-swap, blind writes, small batches, reads of the past.

It is the store that the older algorithms were written for.  A cell's version counts its writes and is 0 where there is
no value.  With `sessions` a read may answer from the past of its partition (a fault, `stale`), but never from before
the moment that its token names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from outbox.verify.explorer.ops import NO_LOCKS, Locks, Op, Outcome, Reach, canonical
from tests.simulation.prior_art.small import Resource


class Cell(NamedTuple):
    """A value (None: there is none) and how often its cell was written."""

    value: Any
    writes: int


class Put(NamedTuple):
    """A write of one cell; with `if_version` only over that version (0: over nothing), without it blindly."""

    key: str
    value: Any
    if_version: int | None = None


class Found(NamedTuple):
    """What a read tells."""

    value: Any
    version: int
    token: int


class Wrote(NamedTuple):
    """The version of the last cell that was written."""

    version: int
    token: int


class Lost(NamedTuple):
    """Nothing was written: some cell has another version; what lies there instead."""

    current: Found


class Shelf(NamedTuple):
    """A partition: its cells by key, how often it was written, and its past as (moment, key, cell)."""

    cells: tuple[tuple[str, Cell], ...] = ()
    moment: int = 0
    past: tuple[tuple[int, str, Cell], ...] = ()


Shelves = tuple[tuple[str, Shelf], ...]
EMPTY = Cell(None, 0)


class KeyValue(Resource):
    """What such a store does."""

    name = "store"

    def __init__(self, given: Mapping[str, Mapping[str, Any]] | None = None, *, sessions: bool = False) -> None:
        self._sessions = sessions
        self._initial = tuple(
            (name, Shelf(tuple(sorted((key, Cell(value, 1)) for key, value in cells.items()))))
            for name, cells in sorted((given or {}).items())
        )

    def initial(self) -> Shelves:
        return self._initial

    def reach(self, verb: str) -> Reach:
        return "write" if verb == "write" else "read"

    def outcomes(self, state: Shelves, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        match op.verb:
            case "read":
                return list(self._read(state, *op.args))
            case "wait":  # until there is something to read
                found = fresh(state, op.args[0], op.args[1])
                return [] if found.value is None else [Outcome(f"-> v{found.version}", state, found)]
            case "write":
                return [self._write(state, *op.args)]
        partition, prefix, seen = op.args  # a sweep, which waits until something is new to it
        keys = tuple(key for key in cells(state, partition) if key.startswith(prefix))
        mark = blake2b(canonical(state), digest_size=8).hexdigest()
        return [Outcome(f"-> {len(keys)}", state, (keys, mark))] if keys and mark != seen else []

    def _read(self, state: Shelves, partition: str, key: str, token: int) -> Iterator[Outcome]:
        now = fresh(state, partition, key)
        yield Outcome(_told(now), state, now)
        if not self._sessions:
            return
        reported, shelf, value = {now.value}, shelf_of(state, partition), now
        for moment, written, before in reversed(shelf.past):
            if written == key:
                value = _found(before, moment)
            if moment < token:
                return
            if value.value not in reported:
                reported.add(value.value)
                yield Outcome(f"{_told(value)} (stale)", state, value._replace(token=moment), "stale")

    def _write(self, state: Shelves, partition: str, puts: Sequence[Put]) -> Outcome:
        shelf = shelf_of(state, partition)
        known, past = dict(shelf.cells), list(shelf.past)
        for put in puts:
            current = fresh(state, partition, put.key)
            if put.if_version is not None and put.if_version != current.version:
                return Outcome(f"-> lost to {_told(current)}", state, Lost(current))
        for put in puts:
            before = known.get(put.key, EMPTY)
            past.append((shelf.moment, put.key, before))
            known[put.key] = Cell(put.value, before.writes + 1)
        moment = shelf.moment + 1 if self._sessions else 0
        after = Shelf(tuple(sorted(known.items(), key=_key)), moment, tuple(past) if self._sessions else ())
        wrote = Wrote(known[puts[-1].key].writes, moment)
        return Outcome("", tuple(sorted({**dict(state), partition: after}.items(), key=_key)), wrote)

    def describe(self, op: Op) -> str:
        if op.verb != "write":
            return f"{op.verb} {op.args[0]}/{op.args[1]}"
        return "; ".join(_said(op.args[0], put) for put in op.args[1])


def shelf_of(state: Shelves, partition: str) -> Shelf:
    """A partition; an empty one where nothing was ever written."""
    return next((shelf for name, shelf in state if name == partition), Shelf())


def cells(state: Shelves, partition: str) -> dict[str, Any]:
    """The values of a partition that are there."""
    return {key: cell.value for key, cell in shelf_of(state, partition).cells if cell.value is not None}


def fresh(state: Shelves, partition: str, key: str) -> Found:
    """What lies in a cell now."""
    shelf = shelf_of(state, partition)
    return _found(dict(shelf.cells).get(key, EMPTY), shelf.moment)


def _found(cell: Cell, moment: int) -> Found:
    return Found(cell.value, 0 if cell.value is None else cell.writes, moment)


def _told(found: Found) -> str:
    return "-> nothing" if found.value is None else f"-> v{found.version} {found.value}"


def _said(partition: str, put: Put) -> str:
    if put.value is None:
        return f"remove {partition}/{put.key}"
    condition = "" if put.if_version is None else f" over v{put.if_version}"
    return f"write {partition}/{put.key} {put.value}{condition}"


def _key(pair: tuple[str, Any]) -> str:
    return pair[0]
