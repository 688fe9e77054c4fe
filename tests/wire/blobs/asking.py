"""Requests to Blob Storage as a client would send them, byte by byte, and the emulator to send them to."""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
from typing import Any

from outbox.emulator.blobs.auth import ACCOUNT, WELL_KNOWN_KEY, string_to_sign
from outbox.emulator.blobs.server import BlobEmulator

DATE = "Sun, 22 Nov 2026 00:00:00 GMT"


class Reply:
    """An answer: its status, headers in lower case, body.  Status 0: there was none."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self) -> str:
        """The error code."""
        return self.headers.get("x-ms-error-code", "")

    def texts(self, name: str) -> list[str]:
        """The texts of the elements of a name."""
        return re.findall(f"<{name}>([^<]*)</{name}>", self.body.decode())


def signed(method: str, path: str, body: bytes = b"", key: str = WELL_KNOWN_KEY, **headers: str) -> bytes:
    """A request under the account's name; underscores in names of headers stand for hyphens."""
    target = f"/{ACCOUNT}{path}"
    fields = {"Host": "localhost", "Content-Length": str(len(body)), "x-ms-date": DATE, "x-ms-version": "2024-11-04"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lower = {name.lower(): value for name, value in fields.items()}
    text = string_to_sign(method, target, lower, ACCOUNT)
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), "sha256")).decode()
    fields["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body


async def ask(emulator: BlobEmulator, request: bytes) -> Reply:
    """Send a request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    try:
        async with asyncio.timeout(5):
            writer.write(request)
            return await _read(reader, is_head=request.startswith(b"HEAD"))
    finally:
        writer.close()


async def put(emulator: BlobEmulator, name: str = "b", body: bytes = b"hello", **headers: Any) -> Reply:
    """Put a block blob into `box`."""
    return await ask(emulator, signed("PUT", f"/box/{name}", body, x_ms_blob_type="BlockBlob", **headers))


async def _read(reader: asyncio.StreamReader, *, is_head: bool) -> Reply:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return Reply(0, {}, b"")
    pairs = (line.partition(": ") for line in lines[1:] if line)
    headers = {name.lower(): value for name, _, value in pairs}
    length = 0 if is_head else int(headers.get("content-length", 0))
    return Reply(int(lines[0][9:12]), headers, await reader.readexactly(length))
