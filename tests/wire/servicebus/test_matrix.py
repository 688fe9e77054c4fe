"""The table of SDK calls in the documentation is what a run gives, and nothing in it was left untried."""

from __future__ import annotations

from tests.docs.bus_matrix import PAGE, with_matrix
from tests.wire.conftest import MODES
from tests.wire.servicebus.sdk_matrix import public_calls, table, worked


def test_every_public_call_of_the_sdk_works_as_the_page_says() -> None:
    found = {mode: worked(mode) for mode in MODES}
    for mode in MODES:
        assert set(public_calls(mode)) - found[mode] == set()
    page = PAGE.read_text()
    assert with_matrix(page, table(found)) == page, "run python -m tests.docs.bus_matrix"
