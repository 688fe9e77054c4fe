"""The cost of requests: estimated request units by kind, size and index terms, and a count of each kind.

The figures are those that Microsoft publishes, illustrative by its own word, and what lies between them on a line: a
point read of 1 KB and 100 KB costs 1 and 10, a write of 1 KB, 64 KB and 1 MB about 5, 22.7 and 625; a replacement is a
deletion and an insertion, so twice that; a patch costs 0.4 more for each property; each index term that is inserted or
removed 0.2.  A deletion costs as much as the insertion did.
Source: learn.microsoft.com/azure/cosmos-db/key-value-store-cost and request-units.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

KIB = 1024
QUERY_RU = 2.3
EXAMINED_RU = 0.02
METADATA_RU = 1.0
WRITES_RU = ((1, 5.0), (64, 22.7), (1024, 625.0))
"""The request units of writing an item, by its KiB."""
TERM_RU = 0.2
PATCHED_RU = 0.4


def read_ru(size_bytes: int) -> float:
    """Of a point read."""
    return 1.0 + 0.09 * _further_kib(size_bytes)


def write_ru(kind: str, size_bytes: int, *, term_count: int = 0, patched_count: int = 0) -> float:
    """Of a write of one item by its kind: create, replace or delete.

    `term_count` index terms are inserted or removed; of a replacement by a patch, `patched_count` properties change.
    """
    kib = 1 + _further_kib(size_bytes)
    known = next((line for line in pairwise(WRITES_RU) if kib <= line[1][0]), WRITES_RU[-2:])
    (less_kib, less_ru), (more_kib, more_ru) = known
    once_ru = less_ru + (kib - less_kib) * (more_ru - less_ru) / (more_kib - less_kib)
    return once_ru * (2 if kind == "replace" else 1) + TERM_RU * term_count + PATCHED_RU * patched_count


def query_ru(examined_count: int, size_bytes: int) -> float:
    """The request units of a page of a query, by documents examined and bytes returned."""
    return QUERY_RU + EXAMINED_RU * examined_count + 0.05 * (size_bytes // KIB)


def _further_kib(size_bytes: int) -> float:
    return max(0, size_bytes - 1) // KIB


class Usage(msgspec.Struct, frozen=True):
    """The use by one kind of operation."""

    count: int
    charge_ru: float
    failed_count: int
    """Answered with a status of 400 or more, or not at all."""
