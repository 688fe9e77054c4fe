"""Malformed requests break nothing, and faults drawn by a seed come again."""

from __future__ import annotations

import asyncio
import random

import pytest

from outbox.emulator.cosmos.server import CosmosEmulator
from tests.fuzz.nonsense import mutated
from tests.wire.cosmos.asking import ask, signed
from tests.wire.cosmos.every import EVERY

# Hostile bytes

REQUESTS = [
    *(request.signed() for name, request in EVERY.items() if name not in ("database.delete", "container.delete")),
    b'POST /_outbox/faults HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n{"kind":"explode"}',
    signed("POST", "/dbs", "dbs", "", b'9\r\n{"id":"e"}\r\n0\r\n\r\n', Content_Length="", Transfer_Encoding="chunked"),
]


def nonsense(chance: random.Random) -> bytes:
    """A request with some of its bytes changed, whose length mostly is that of its body, so that the body is read."""
    head, split, body = mutated(chance, chance.choice(REQUESTS)).partition(b"\r\n\r\n")
    if chance.random() < 0.8:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        head = b"\r\n".join([*lines, b"Content-Length: %d" % len(body)])
    return head + split + body


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_malformed_requests_break_nothing(
    emulator: CosmosEmulator, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(count)
    codes: set[int] = set()
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
        writer.write(nonsense(chance))
        writer.write_eof()
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        codes.add(int(answer[9:12]) if answer[:5] == b"HTTP/" and answer[9:12].isdigit() else 0)
    assert 500 not in codes and {200, 400, 401} <= codes
    assert (await ask(emulator, signed("GET", "/", "", "")))[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR" and "outbox" in record.name]
