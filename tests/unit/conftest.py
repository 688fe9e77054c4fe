"""What tests of all parts share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outbox.engine.engine import Engine


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """An engine without a disk; tests of operators and others have one of their own."""
    async with Engine.in_memory() as engine:
        yield engine
