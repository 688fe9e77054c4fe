"""Ranges of hashed partition keys: what a container is read by when several read it side by side.

Cosmos DB places a partition by the hash of its key (its effective partition key), 32 hexadecimal digits of which the
first is 0 to 3, and compares these as text.  A container names the ranges by which its hashes lie apart; a part of such
a range is a range as well, so one that lies in one place can still be read by several.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

DIGITS = 32
END = "FF"
"""Behind every hash."""
_BEHIND = 0x40 << 120
"""The least number that is no hash."""


class KeyRange(NamedTuple):
    """The hashes from `start` up to `end`, which is not one of them."""

    start: str = ""
    end: str = END

    @classmethod
    def of(cls, feed_range: Mapping[str, Any]) -> KeyRange:
        """The range that the SDK calls a feed range."""
        found = feed_range["Range"]
        return cls(str(found["min"]), str(found["max"]))

    @property
    def feed_range(self) -> dict[str, Any]:
        """The same as the SDK takes it."""
        return {"Range": {"min": self.start, "max": self.end, "isMinInclusive": True, "isMaxInclusive": False}}

    def split(self, count: int) -> list[KeyRange]:
        """Split this range into `count` ranges; fewer where it is too small."""
        first, behind = _number(self.start), min(_number(self.end), _BEHIND)
        width = behind - first
        inner = [first + width * part // count for part in range(1, count)]
        bounds = [self.start, *(f"{bound:0{DIGITS}X}" for bound in dict.fromkeys(inner) if bound > first), self.end]
        return [KeyRange(start, end) for start, end in pairwise(bounds)]


def _number(digits: str) -> int:
    return int(digits[:DIGITS].ljust(DIGITS, "0"), 16)
