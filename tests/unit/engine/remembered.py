"""Two states of an engine compared field by field, as they live in memory.

Neither side passes the snapshot's encoder, so that what a snapshot forgets is seen.  The walk goes over whatever fields
the objects have, so that a new one is compared without a word here; what is left out is left out by name, with why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from outbox.engine.state.documents import DocumentSpaces
from outbox.engine.state.markers import Markers
from outbox.engine.state.plain_order import PlainOrder
from outbox.engine.state.queues import Letters, Queue
from outbox.engine.state.session_order import Session, SessionOrder
from outbox.engine.state.state import State
from outbox.engine.state.tasks import Task

LEFT_OUT = {
    (State, "_apply"): "the methods that apply a record, no memory",
    (State, "apply"): "with what an engine under test writes its history down, no memory",
    (State, "on_dead_lettered"): "whom a host calls for its log, no memory",
    (Task, "locked_until_ms"): "means nothing without a lock, and locks are compared by `lock`",
    (Session, "locked_until_ms"): "the same",
    (PlainOrder, "_tasks"): "those of its queue",
    (SessionOrder, "_tasks"): "the same",
    (Letters, "_tasks"): "the same",
}
HEAPS = frozenset(("_returned", "_suspects", "_scheduled", "_expiring", "_held", "expiring", "ready", "ages"))
"""Lists of which only the content counts."""
IN_ORDER = frozenset(("operations", "seen", "_waiting", "rules"))
"""Dictionaries of which the order counts: the oldest is forgotten first."""


def settle(state: State, now_ms: int) -> None:
    """Let time do to a state what it does to every other by the next look, and make the indexes anew.

    Whether what is over was looked at already is no memory; nor is what an index still holds of things that are gone.
    """
    state.forget(now_ms)
    for queue in state.queues:
        queue.promote(now_ms)
        queue.forget_seen(now_ms)
    state.rebuild()
    documents = state.documents
    documents.expiring = sorted(
        {(ms, name, id) for ms, name, id in documents.expiring if is_at(documents.spaces.get(name, {}).get(id), ms)}
    )


def is_at(document: Any, expires_ms: int) -> bool:
    return document is not None and document.expires_ms == expires_ms


def fields_of(value: object) -> list[str]:
    """The fields that an object of the engine has, whatever kind of class it is."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return [*vars(value)] if hasattr(value, "__dict__") else [*type(value).__slots__]  # type: ignore[attr-defined]  # one of both


def remembered(state: State) -> dict[str, Any]:
    """Everything that a settled state holds, by the path of each field."""
    return dict(_walk(state, "", ""))


def differences(found: State, expected: State, now_ms: int) -> list[str]:
    """The fields in which two states differ once time has done its part to both."""
    for state in (found, expected):
        settle(state, now_ms)
    ours, theirs = remembered(found), remembered(expected)
    return [
        f"{path}: {ours.get(path, 'absent')!r} instead of {theirs.get(path, 'absent')!r}"
        for path in sorted(ours.keys() | theirs.keys())
        if ours.get(path, KeyError) != theirs.get(path, KeyError)
    ]


def _walk(value: Any, path: str, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Queue) and name in ("paths", "routes"):
        yield path, value.number  # a reference: the queue itself stands in `queues`
    elif isinstance(
        value, State | DocumentSpaces | Markers | Queue | PlainOrder | SessionOrder | Session | Letters | msgspec.Struct
    ):
        yield path, type(value).__name__
        for field in fields_of(value):
            if not any(isinstance(value, kind) and field == left for kind, left in LEFT_OUT):
                yield from _walk(getattr(value, field), f"{path}.{field}", field)
    elif isinstance(value, dict):
        yield path, list(value) if name in IN_ORDER else sorted(value, key=repr)
        for key, entry in value.items():
            yield from _walk(entry, f"{path}[{key!r}]", name)
    elif isinstance(value, set):
        yield path, sorted(value)
    elif isinstance(value, list | tuple | deque):
        entries = sorted(value) if name in HEAPS else list(value)
        yield path, len(entries)
        for index, entry in enumerate(entries):
            yield from _walk(entry, f"{path}[{index}]", "" if name in HEAPS else name)
    elif value is None or value is msgspec.UNSET or isinstance(value, bool | int | float | str | bytes):
        yield path, value
    else:
        raise TypeError(f"{path} is a {type(value).__name__}; say how it is compared, or why it is not")
