"""Blob Storage as a blob store: write-once bytes.

A blob is written under the condition that nothing is there, so a second write changes nothing.  Names are written as
Azure takes them: everything but letters, digits, `_`, `-` and slashes between them as `~` and two hexadecimal digits,
which also keeps `..` out of URLs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from typing import TypeVar

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient

from outbox.azure.blobs.account import TIMEOUT_S, BlobAccount
from outbox.azure.blobs.outcomes import FAILURES, as_error, is_no_container
from outbox.azure.usage import Usage
from outbox.errors import TooLarge
from outbox.ports import BlobStore

T = TypeVar("T")

NAME_LENGTH_MAX = 900
NO_SUCH_RANGE = 416
_ESCAPED = re.compile(r"[^A-Za-z0-9_/-]|(?<![A-Za-z0-9_-])/|/(?![A-Za-z0-9_-])")


class AzureBlobStore:
    """Write-once blobs of one container."""

    def __init__(self, account: BlobAccount, *, timeout_s: float = TIMEOUT_S, usage: Usage | None = None) -> None:
        self.usage = Usage() if usage is None else usage
        self._account = account
        self._timeout_s = timeout_s

    async def write(self, name: str, data: bytes) -> bool:
        what, fixed = f"write of blob {name}", bytes(data)
        try:
            await self._call(
                "write blob",
                lambda container: container.upload_blob(encode_name(name), fixed, overwrite=False, max_concurrency=1),
            )
        except ResourceExistsError:
            return False
        except FAILURES as error:
            raise as_error(error, what) from error
        return True

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        async def download(container: ContainerClient) -> bytes:
            stream = await container.download_blob(encode_name(name), offset=0, length=bytes_max + 1)
            found: bytes = await stream.readall()
            return found

        what = f"read of blob {name}"
        try:
            data = await self._call("read blob", download)
        except ResourceNotFoundError as error:
            if is_no_container(error):
                raise as_error(error, what) from error
            return None
        except FAILURES as error:
            if getattr(error, "status_code", None) == NO_SUCH_RANGE:
                return b""  # of an empty blob no range can be read
            raise as_error(error, what) from error
        if len(data) > bytes_max:
            raise TooLarge(f"blob {name} is over {bytes_max} bytes; raise the limit or split it")
        return data

    async def delete(self, name: str) -> None:
        what = f"deletion of blob {name}"
        try:
            await self._call("delete blob", lambda container: container.delete_blob(encode_name(name)))
        except ResourceNotFoundError:
            return
        except FAILURES as error:
            raise as_error(error, what) from error

    async def names(self, folder: str) -> AsyncIterator[str]:
        """The names in a folder that need no escape there, up to 5,000 a request."""
        begins = f"{encode_name(folder)}/"
        pages = self._account.container().list_blobs(name_starts_with=begins).by_page()
        async for blob in self._account.items(pages, usage=self.usage, timeout_s=self._timeout_s):
            yield f"{folder}/{blob['name'].removeprefix(begins)}"

    async def _call(self, kind: str, send: Callable[[ContainerClient], Awaitable[T]]) -> T:
        return await self._account.call(kind, send, usage=self.usage, timeout_s=self._timeout_s)


def encode_name(name: str) -> str:
    """A name as Azure takes it; different names stay different."""
    encoded = _ESCAPED.sub(_escape, name)
    if len(encoded) > NAME_LENGTH_MAX:
        return f"~long/{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return encoded or "~empty"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"~{byte:02x}" for byte in match[0].encode("utf-8", "surrogatepass"))


_conforms: type[BlobStore] = AzureBlobStore
