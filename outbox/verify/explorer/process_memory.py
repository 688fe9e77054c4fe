"""What a piece of the runtime remembers: everything that can be reached from it and may have changed, as a value.

Two attempts with different answers and equal memories do the same from there on, so explorations need not
follow both (see `trie`).  What its content does not identify makes the whole unknown: nothing is merged then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import msgspec

from outbox.app import App, Handler
from outbox.log_throttle import LogThrottle
from outbox.runtime.delivery.retrying import Backoff, RetryBackoff
from outbox.runtime.start.plan import Plan
from outbox.verify.explorer.ops import canonical
from outbox.verify.explorer.ports import ExploredBlobs, ExploredBus, ExploredStore
from outbox.verify.explorer.run import Calls

PLAIN = (type(None), bool, int, float, str, bytes)
CONSTANT = (Plan, App, Handler, Backoff, ExploredStore, ExploredBus, ExploredBlobs, Calls)
"""Made once and the same for every run of a program."""
TIMERS = (LogThrottle, RetryBackoff)
"""When something was last logged, and how long to rest: a protocol decides nothing by them."""
CODE = (FunctionType, MethodType, partial, type)
"""What a bound method belongs to is reached another way."""
METERS = frozenset({"hit_count", "miss_count"})
"""Figures, for people to read."""


class Unknown(Exception):
    """Something has content that cannot be compared."""


def remembered(*roots: Any) -> Hashable:
    """All that can be reached from some objects, as a hashable value; None where it cannot be compared."""
    try:
        return tuple([_value(root, {}) for root in roots])
    except Unknown:
        return None


def _value(value: Any, known: dict[int, int]) -> Hashable:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, CONSTANT + TIMERS + CODE):
        return None
    if id(value) in known:
        return ("known", known[id(value)])
    known[id(value)] = len(known)
    if isinstance(value, BaseException):
        return (type(value).__name__, _value(value.args, known), _value(vars(value), known))
    if isinstance(value, Mapping):
        return tuple((_value(key, known), _value(item, known)) for key, item in value.items())
    if isinstance(value, Set):
        return frozenset(_value(item, known) for item in value)
    if isinstance(value, Sequence | deque):
        return tuple(_value(item, known) for item in value)
    return (type(value).__name__, *_fields(value, known))


def _fields(value: Any, known: dict[int, int]) -> list[Hashable]:
    """The attributes of an object of the runtime's, or of a message of the application's."""
    if isinstance(value, msgspec.Raw):
        return [bytes(value)]
    if isinstance(value, asyncio.Future):
        raise Unknown
    if type(value).__module__.startswith("outbox."):
        names = getattr(value, "__struct_fields__", None) or _attributes(value)
        return [_value(getattr(value, name, None), known) for name in names if name not in METERS]
    try:
        return [canonical(value)]
    except (TypeError, ValueError) as error:
        raise Unknown from error


def _attributes(value: Any) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", ())]
