"""HTTP entries on any backend, and requests to them, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from outbox import App
from outbox.http import Response
from outbox.http_entry import HttpEntry
from outbox.lineage import inbox_key, inbox_prefix
from tests.unit.runtime.purse import paying

INBOX = inbox_key(inbox_prefix("purse", "http POST /payments", ""), None, "k")
"""The inbox key of a payment under the key `k`."""


async def no_wait(_: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def serving(backend: Any, app: App | None = None, **options: Any) -> AsyncIterator[HttpEntry]:
    async with HttpEntry(app or paying(), backend, sleep=no_wait, mark_after_s=0, **options) as entry:
        yield entry


async def post(
    entry: HttpEntry, message: Any, key: str = "k", path: str = "/payments", method: str = "POST"
) -> Response:
    return await entry.handle(method, path, {"Idempotency-Key": key}, msgspec.json.encode(message))


async def settled(entry: HttpEntry) -> None:
    """Wait until nothing goes on behind the responses."""
    while entry._tasks.running:
        await asyncio.gather(*entry._tasks.running)
