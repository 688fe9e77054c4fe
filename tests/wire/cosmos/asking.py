"""Requests as a client would send them, byte by byte, and an emulator to send them to."""

from __future__ import annotations

import asyncio
import base64
import hmac
from typing import Any
from urllib.parse import quote

import msgspec

from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.emulator.cosmos.server import CosmosEmulator

DATE = "Sun, 22 Nov 2026 00:00:00 GMT"


def signed(verb: str, path: str, kind: str, link: str, body: bytes = b"", **headers: str) -> bytes:
    """A request as a client would send it."""
    text = f"{verb.lower()}\n{kind}\n{link}\n{DATE.lower()}\n\n".encode()
    signature = base64.b64encode(hmac.digest(base64.b64decode(WELL_KNOWN_KEY), text, "sha256")).decode()
    fields = {
        "Host": "localhost",
        "Authorization": quote(f"type=master&ver=1.0&sig={signature}"),
        "x-ms-date": DATE,
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def of_items(verb: str, id: str = "", body: bytes = b"", **headers: str) -> bytes:
    """A request to the items of the container `c` of the database `d`, or to one of them."""
    link = f"dbs/d/colls/c/docs/{id}" if id else "dbs/d/colls/c"
    return signed(verb, f"/{link}" if id else f"/{link}/docs", "docs", link, body, **headers)


async def with_container(emulator: CosmosEmulator, **options: Any) -> None:
    """Make the database `d`, and in it the container `c` of the partition key `/pk`."""
    assert (await ask(emulator, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}')))[0] == 201
    body = msgspec.json.encode({"id": "c", "partitionKey": {"paths": ["/pk"]}, **options})
    assert (await ask(emulator, signed("POST", "/dbs/d/colls", "colls", "dbs/d", body)))[0] == 201


async def ask(emulator: CosmosEmulator, *requests: bytes, within_s: float = 5) -> tuple[int, bytes]:
    """Send bytes on a connection of their own; the last answer's status and body, 0 where the connection closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    answer = (0, b"")
    try:
        async with asyncio.timeout(within_s):
            for request in requests:
                writer.write(request)
                answer = await read_answer(reader)
    finally:
        writer.close()
    return answer


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return int(head[9:12]), await reader.readexactly(length)
