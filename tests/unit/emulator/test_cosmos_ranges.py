"""Ranges of hashed keys: their parts hold every hash once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outbox.azure.cosmos.store import KeyRange
from outbox.emulator.cosmos.hashing import effective_key

HASHES = st.text(min_size=1, max_size=20).map(
    lambda text: effective_key(f'["{text.encode().hex()}"]', is_hierarchical=False)
)
BOUNDS = st.lists(HASHES, min_size=0, max_size=4, unique=True).map(lambda inner: ["", *sorted(inner), "FF"])


def holders(parts: list[KeyRange], hash: str) -> list[KeyRange]:
    return [part for part in parts if part.start <= hash < part.end]


@given(BOUNDS, st.integers(1, 40), HASHES)
def test_every_hash_is_in_one_part_of_one_range(bounds: list[str], count: int, hash: str) -> None:
    parts = [part for start, end in pairwise(bounds) for part in KeyRange(start, end).split(count)]
    assert len(holders(parts, hash)) == 1
    assert len(parts) == len(set(parts)) <= count * (len(bounds) - 1)


def test_the_parts_of_all_hashes_are_equally_large() -> None:
    whole = KeyRange().split(4)
    assert whole == [
        ("", "1" + 31 * "0"), ("1" + 31 * "0", "2" + 31 * "0"), ("2" + 31 * "0", "3" + 31 * "0"), ("3" + 31 * "0", "FF")
    ]  # fmt: skip


def test_a_range_that_is_too_small_is_not_split() -> None:
    narrow = KeyRange("0A", "0A" + 29 * "0" + "1")
    assert narrow.split(8) == [narrow]


def test_a_range_is_listed_and_read_as_the_sdk_has_it() -> None:
    reported = {"Range": {"min": "05C1", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}}
    assert KeyRange.of(reported) == KeyRange("05C1", "FF") and KeyRange.of(reported).feed_range == reported
