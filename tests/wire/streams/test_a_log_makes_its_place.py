"""A log on `azure.connect(..., create=True)` makes its database and container at its first use, and asks once."""

from __future__ import annotations

import asyncio

import pytest

from outbox.errors import Refused
from outbox.streams import OrderedLog
from tests.wire.on_azure.ground import place


async def test_a_log_makes_its_container_once_at_its_first_use() -> None:
    async with place() as at, at.connect() as backend:
        logs = [OrderedLog(f"numbers{n}", backend, type=int) for n in range(4)]
        await asyncio.gather(*(log.append(7, id="a") for log in logs))
        made = {name: each.count for name, each in at.cosmos.usage().items() if not name.startswith("item")}
        assert made
        assert [[entry.value async for entry in log.read()] for log in logs] == [[7]] * 4
        later = {name: each.count for name, each in at.cosmos.usage().items() if not name.startswith("item")}
        assert later == made and max(made.values()) <= 2


async def test_a_log_that_may_not_make_its_container_says_what_would() -> None:
    async with place() as at, at.connect(create=False) as backend:
        with pytest.raises(Refused, match="create=True"):
            await OrderedLog("numbers", backend, type=int).append(7, id="a")
