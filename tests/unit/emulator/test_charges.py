"""What requests are estimated to cost: the figures that Microsoft publishes, and what lies between them."""

from __future__ import annotations

import pytest

from outbox.emulator.cosmos.charges import read_ru, write_ru
from outbox.emulator.cosmos.indexing import TERM_COUNT_MAX, Indexing

KIB = 1024
PENDING_ONLY = {"includedPaths": [{"path": "/pending/?"}], "excludedPaths": [{"path": "/*"}]}


@pytest.mark.parametrize(
    ("kib", "expected_ru"),
    [(0, 5), (1, 5), (64, 22.7), (1024, 625), (32, 13.71), (512, 303.77), (2048, 1267.45)],
)
def test_a_write_costs_what_is_published_and_between_that_by_the_line(kib: int, expected_ru: float) -> None:
    assert write_ru("create", kib * KIB) == pytest.approx(expected_ru, abs=0.01)
    assert write_ru("delete", kib * KIB) == write_ru("create", kib * KIB)
    assert write_ru("replace", kib * KIB) == 2 * write_ru("create", kib * KIB)


def test_a_further_byte_begins_a_further_kilobyte() -> None:
    assert write_ru("create", KIB) < write_ru("create", KIB + 1) == write_ru("create", 2 * KIB)
    assert read_ru(KIB) == 1 < read_ru(KIB + 1) and read_ru(101 * KIB) == 10


def test_index_terms_and_patched_properties_are_charged() -> None:
    assert write_ru("create", 1, term_count=3) == pytest.approx(5.6)
    assert write_ru("replace", 1, term_count=1, patched_count=2) == pytest.approx(11.0)


def test_the_terms_of_an_item_are_its_indexed_values() -> None:
    item = {"id": "1", "pending": True, "_ts": 5, "at": {"city": "x"}, "tags": ["a", "a", "b"], "none": {}}
    assert Indexing(PENDING_ONLY).terms(item) == {(("pending",), "True")}
    assert len(Indexing(None).terms(item)) == 4  # pending, at/city, and two tags
    assert Indexing({"indexingMode": "none"}).terms(item) == frozenset()
    assert len(Indexing(None).terms({"many": list(range(2 * TERM_COUNT_MAX))})) == TERM_COUNT_MAX
