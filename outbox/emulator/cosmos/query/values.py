"""How values compare: by type first, and never across types.

Values of different types are never equal, and one is neither smaller nor greater than the other: that is undefined.
For ORDER BY every value has a place: undefined, null, booleans, numbers, texts, arrays, objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outbox.emulator.cosmos.wire import UNDEFINED, Json

SortKey = tuple[int, Any]

_RANKS: dict[type, int] = {type(None): 1, bool: 2, int: 3, float: 3, str: 4, list: 5, dict: 6}
_canonical = msgspec.json.Encoder(order="sorted").encode


def rank_of(value: Json) -> int:
    """The place of a value's type; 0 for undefined."""
    return _RANKS.get(type(value), 0)


def equal(left: Json, right: Json) -> bool:
    """Whether two defined values are the same, structure and all."""
    kind = type(left)
    if kind is str or kind is not type(right):
        return rank_of(left) == rank_of(right) and bool(left == right)
    if kind is list:
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if kind is dict:
        return left.keys() == right.keys() and all(equal(value, right[name]) for name, value in left.items())
    return bool(left == right)


def compare(left: Json, right: Json) -> int | None:
    """Below, at or above 0 as `left` is smaller, the same or greater; None where that is undefined."""
    rank = rank_of(left)
    if rank != rank_of(right) or rank in (0, 5, 6):
        return None
    return 0 if left == right or rank == 1 else -1 if left < right else 1


def sort_key(value: Json) -> SortKey:
    """The key that orders a value among all others; it survives JSON."""
    rank = rank_of(value)
    if rank in (0, 1):
        return (rank, 0)
    return (rank, identity(value).decode() if rank >= 5 else value)


def identity(value: Json) -> bytes:
    """The same bytes for equal values, other bytes for others; for DISTINCT and GROUP BY."""
    return b"undefined" if value is UNDEFINED else _canonical(plain(value))


def plain(value: Json) -> Json:
    """A value with whole numbers as integers, however they came: JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer() and -(1 << 63) <= value < 1 << 64:  # as JSON may have it whole
        return int(value)
    if isinstance(value, list):
        return [plain(element) for element in value]
    return {name: plain(member) for name, member in value.items()} if isinstance(value, dict) else value
