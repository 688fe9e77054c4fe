"""The place of a word as one number of 64 bits: page 24 | position 20 | version 8 | range 12."""

from __future__ import annotations

from typing import NamedTuple

PAGES_MAX = 1 << 24
POSITIONS_MAX = 1 << 20
VERSIONS = 1 << 8
RANGE_MAX = (1 << 12) - 1
NEXT = 1 << 20
"""What the next position of a page is more, as a number."""


class Place(NamedTuple):
    """Where a word is: the page, the number of the word in it, the page's version modulo 256.

    `range` is 1 for one place; a start of several, which are removed, says how many they are.
    """

    page: int
    position: int
    version: int
    range: int = 1

    def packed(self) -> int:
        """One number; numbers are in the order of their places."""
        return self.page << 40 | self.position << 20 | self.version % VERSIONS << 12 | self.range


def start_of(packed: int, range: int) -> int:
    """The start of a range that begins at a place."""
    return packed & ~RANGE_MAX | range


def place_of(packed: int) -> Place:
    """The place that a number is."""
    return Place(packed >> 40, packed >> 20 & POSITIONS_MAX - 1, packed >> 12 & VERSIONS - 1, packed & RANGE_MAX)
