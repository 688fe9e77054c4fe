"""What a client sends before there is anything to speak HTTP is kept, also by a Python that forgets a first pause."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.emulator import connections as module
from outbox.emulator.connections import Connections

REQUEST = b"GET /\r\n\r\n"


class Speaker(asyncio.Protocol):
    """Notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.seen.append(b"made")

    def data_received(self, data: bytes) -> None:
        self.seen.append(data)


async def test_what_is_read_before_anything_speaks_is_handed_on_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    is_loaded, speaker, nothing = threading.Event(), Speaker(), cast("Any", None)

    def load(name: str) -> SimpleNamespace:
        is_loaded.wait(5)
        return SimpleNamespace(Http=lambda *args, **options: SimpleNamespace(server=lambda: speaker))

    monkeypatch.setattr(module, "import_module", load)
    connections = Connections(nothing, nothing, is_local=True, count_max=None, upkeep=lambda: None)
    server = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(5):
        while not connections.open:  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0.001)
        [connection] = connections.open
        transport = connection._transport
        assert transport is not None
        connection.data_received(REQUEST[:5])
        assert not transport.is_reading() and speaker.seen == []
        writer.write(REQUEST[5:])
        is_loaded.set()
        while len(speaker.seen) < 3:  # noqa: ASYNC110  # the same
            await asyncio.sleep(0.001)
    assert speaker.seen == [b"made", REQUEST[:5], REQUEST[5:]]
    connections.abort()
    writer.close()
    server.close()
