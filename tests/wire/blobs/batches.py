"""Bodies of Blob Batch as a client would send them, part by part."""

from __future__ import annotations

from typing import Any

from tests.wire.blobs.asking import signed

BOUNDARY = "batch_1"
BATCH_TYPE = f"multipart/mixed; boundary={BOUNDARY}"
ABOUT = b"Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"


def deletes(*paths: str, **headers: Any) -> list[bytes]:
    """A signed delete for each path, without the account's name, as a part."""
    heads = (signed("DELETE", path, x_ms_version="", **headers) for path in paths)
    return [ABOUT + b"Content-ID: %d\r\n\r\n%b" % (number, head) for number, head in enumerate(heads)]


def batch(*parts: bytes) -> bytes:
    """Parts as a body."""
    return b"".join(b"--batch_1\r\n%b\r\n" % part for part in parts) + b"--batch_1--\r\n"
