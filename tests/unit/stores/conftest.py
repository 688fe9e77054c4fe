"""What a store is asked for, in both of its scopes unless a test says which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.stores.store_site import Site, site


@pytest.fixture(params=["partition", "item"])
def scope(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def at() -> AsyncIterator[Site]:
    """A site of partition scope."""
    async with site() as at:
        yield at
