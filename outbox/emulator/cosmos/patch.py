"""Patching an item: add, set, replace, remove, increment and move, under a condition.

All operations apply in order to a copy, or none does.  Paths are JSON pointers; `-` is the end of an array.
Source: learn.microsoft.com/azure/cosmos-db/partial-document-update.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from outbox.emulator.cosmos.wire import PRECONDITION_FAILED, SYSTEM_NAMES, UNDEFINED, Json, Rejection, bad

OPERATION_COUNT_MAX = 10
PATH_LENGTH_MAX = 4_096

_BARE_TILDE = re.compile(r"~(?![01])")

Condition = Callable[[dict[str, Json]], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a patch: what, where, and its value or the path that it moves from."""

    op: str
    path: tuple[str, ...]
    value: Json = UNDEFINED
    source: tuple[str, ...] = ()


class Patch:
    """A patch, checked."""

    def __init__(self, body: dict[str, Json], condition: Condition | None) -> None:
        """Take a patch's body; `condition` is what its text was compiled to.

        Raises:
            Rejection: 400, naming the operation that cannot be.
        """
        operations = body.get("operations")
        if not isinstance(operations, list) or not 1 <= len(operations) <= OPERATION_COUNT_MAX:
            raise bad(f"a patch needs operations, 1 to {OPERATION_COUNT_MAX} of them")
        self.steps = [_step(operation) for operation in operations]
        self._condition = condition

    def apply(self, item: dict[str, Json]) -> dict[str, Json]:
        """Change an item, which is the caller's own copy.

        Raises:
            Rejection: 412, the condition does not hold; 400, an operation cannot be done.
        """
        if self._condition is not None and not self._condition(item):
            raise Rejection(PRECONDITION_FAILED, "the patch's condition does not hold for the item")
        for step in self.steps:
            _APPLY[step.op](item, step)
        return item


def _step(operation: Json) -> Step:
    if not isinstance(operation, dict):
        raise bad("an operation of a patch must be a JSON object")
    op = operation.get("op")
    op = {"incr": "increment"}.get(op, op) if isinstance(op, str) else op
    if not isinstance(op, str) or op not in _APPLY:
        raise bad(f"patch operation {str(op)[:80]!r} is unknown; use add, set, replace, remove, incr or move")
    path = _path(operation.get("path"))
    if op == "move":
        return Step(op, path, source=_path(operation.get("from")))
    if op == "remove":
        return Step(op, path)
    if "value" not in operation:
        raise bad(f"patch operation {op!r} on {operation.get('path')!r} needs a value")
    return Step(op, path, operation["value"])


def _path(text: Json) -> tuple[str, ...]:
    if not isinstance(text, str) or not text.startswith("/") or len(text) < 2 or len(text) > PATH_LENGTH_MAX:
        raise bad(f"patch path {str(text)[:80]!r} must look like /name or /list/0")
    if _BARE_TILDE.search(text):
        raise bad(f"patch path {text[:80]!r}: a ~ in a name is written ~0, a / is written ~1")
    names = tuple(name.replace("~1", "/").replace("~0", "~") for name in text[1:].split("/"))
    if names[0] == "id" or names[0] in SYSTEM_NAMES:
        raise bad(f"patch path {text[:80]!r}: the id and the system's properties cannot be patched")
    return names


def _parent(item: Json, path: tuple[str, ...]) -> tuple[dict[str, Json] | list[Json], str]:
    for name in path[:-1]:
        found = item.get(name, UNDEFINED) if isinstance(item, dict) else _element(item, name)
        if not isinstance(found, dict | list):
            raise bad(f"patch path {_shown(path)} leads through {name!r}, which is neither object nor array")
        item = found
    return item, path[-1]


def _element(array: list[Json], name: str) -> Json:
    index = _index(array, name)
    return UNDEFINED if index is None or index >= len(array) else array[index]


def _index(array: list[Json], name: str) -> int | None:
    if name == "-":
        return len(array)
    if not name.isascii() or not name.isdecimal() or len(name) > 9:
        return None
    return int(name)


def _slot(array: list[Json], step: Step, *, end: bool) -> int:
    """The index that a step names in an array; with `end` the one behind the last will do."""
    index = _index(array, step.path[-1])
    if index is None or index > len(array) or (index == len(array) and not end):
        raise bad(f"patch path {_shown(step.path)} is outside its array of {len(array)}")
    return index


def _shown(path: tuple[str, ...]) -> str:
    return repr("/" + "/".join(path))[:120]


def _add(item: dict[str, Json], step: Step) -> None:
    parent, name = _parent(item, step.path)
    if isinstance(parent, dict):
        parent[name] = step.value
    else:
        parent.insert(_slot(parent, step, end=True), step.value)


def _set(item: dict[str, Json], step: Step) -> None:
    parent, name = _parent(item, step.path)
    if isinstance(parent, dict):
        parent[name] = step.value
        return
    index = _slot(parent, step, end=True)
    parent[index : index + 1] = [step.value]


def _replace(item: dict[str, Json], step: Step) -> None:
    _existing(item, step)
    _set(item, step)


def _existing(item: dict[str, Json], step: Step) -> Json:
    parent, name = _parent(item, step.path)
    if isinstance(parent, list):
        return parent[_slot(parent, step, end=False)]
    if name not in parent:
        raise bad(f"patch path {_shown(step.path)} is not there; use add or set to make it")
    return parent[name]


def _remove(item: dict[str, Json], step: Step) -> None:
    _existing(item, step)
    parent, name = _parent(item, step.path)
    if isinstance(parent, dict):
        del parent[name]
    else:
        del parent[_slot(parent, step, end=False)]


def _increment(item: dict[str, Json], step: Step) -> None:
    by = step.value
    if isinstance(by, bool) or not isinstance(by, int | float):
        raise bad(f"patch path {_shown(step.path)}: an increment needs a number")
    parent, name = _parent(item, step.path)
    if isinstance(parent, dict) and name not in parent:
        parent[name] = by
        return
    old = _existing(item, step)
    if isinstance(old, bool) or not isinstance(old, int | float):
        raise bad(f"patch path {_shown(step.path)} is no number and cannot be incremented")
    try:
        total = old + by
        is_finite = math.isfinite(total)
    except OverflowError:  # a whole number that no double holds
        is_finite = False
    if not is_finite:
        raise bad(
            f"patch path {_shown(step.path)}: {str(old)[:40]} + {str(by)[:40]} is no number that clients can read"
        )
    _set(item, Step("set", step.path, total))


def _move(item: dict[str, Json], step: Step) -> None:
    if step.path[: len(step.source)] == step.source:
        raise bad(f"patch path {_shown(step.source)} cannot be moved into itself")
    value = _existing(item, Step("remove", step.source))
    _remove(item, Step("remove", step.source))
    _add(item, Step("add", step.path, value))


_APPLY: dict[str, Callable[[dict[str, Json], Step], None]] = {
    "add": _add,
    "set": _set,
    "replace": _replace,
    "remove": _remove,
    "increment": _increment,
    "move": _move,
}
