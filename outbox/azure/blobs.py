"""Blob Storage as a blob store: write-once bytes.

A blob is written under the condition that nothing is there, so a second write changes nothing.  Nothing is sent
again: an upload whose answer was lost would meet itself.  Names are written as Azure takes them: everything but
letters, digits, `_`, `-` and slashes between them as `~` and two hexadecimal digits, which also keeps `..` out of URLs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, TypeVar

import aiohttp
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from outbox.azure.transport import OnceTransport
from outbox.azure.usage import Usage
from outbox.errors import OutboxError, OutcomeUnknown, Refused, Throttled, TooLarge
from outbox.ports import BlobStore

T = TypeVar("T")

FAILURES = (AzureError, aiohttp.ClientError, TimeoutError, OSError)
NAME_LENGTH_MAX = 900
TIMEOUT_S = 60.0
BUSY_PAUSE_S = 1.0
NO_SUCH_RANGE = 416
_ESCAPED = re.compile(r"[^A-Za-z0-9_/-]|(?<![A-Za-z0-9_-])/|/(?![A-Za-z0-9_-])")


class BlobAccount:
    """One container of a storage account; its client belongs to the loop that first uses it."""

    def __init__(self, address: str, container: str, credential: Any = None, *, api_version: str | None = None) -> None:
        """Take a connection string, or a URL and a credential of azure.identity.aio."""
        self._address = address
        self._container = container
        self._credential = credential
        self._api_version = api_version
        self._client: BlobServiceClient | None = None

    def __repr__(self) -> str:
        return f"BlobAccount({self._container!r})"

    def container(self) -> ContainerClient:
        """The container, which need not exist."""
        if self._client is None:
            options: dict[str, Any] = {"retry_total": 0, "transport": OnceTransport()}
            if self._api_version is not None:
                options["api_version"] = self._api_version
            if self._credential is None:
                self._client = BlobServiceClient.from_connection_string(self._address, **options)
            else:
                self._client = BlobServiceClient(self._address, self._credential, **options)
        return self._client.get_container_client(self._container)

    async def prepare(self, *, create: bool) -> None:
        """Make the container where it is not there yet.

        Raises:
            Refused: it cannot be made.
            OutcomeUnknown: nobody can tell.
        """
        if create:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self.container().create_container()
            except ResourceExistsError:
                return
            except FAILURES as error:
                raise as_error(error, f"container {self._container}") from error

    async def close(self) -> None:
        """Close the client; a later use opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


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

    async def _call(self, kind: str, send: Callable[[ContainerClient], Awaitable[T]]) -> T:
        failed = True
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await send(self._account.container())
            failed = False
            return result
        finally:
            self.usage.note(kind, failed=failed)


def encode_name(name: str) -> str:
    """A name as Azure takes it; different names stay different."""
    encoded = _ESCAPED.sub(_escape, name)
    if len(encoded) > NAME_LENGTH_MAX:
        return f"~long/{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return encoded or "~empty"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"~{byte:02x}" for byte in match[0].encode("utf-8", "surrogatepass"))


def is_no_container(error: BaseException) -> bool:
    """Whether it is the container that was not found."""
    return getattr(error, "error_code", None) == "ContainerNotFound"


def as_error(error: BaseException, what: str) -> OutboxError:
    """What may be concluded from a failure of the storage client."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if status == 429 or (status == 503 and getattr(error, "error_code", None) == "ServerBusy"):
        return Throttled(f"{what}: the storage account is busy; try again later", retry_after_s=BUSY_PAUSE_S)
    if status == 413:
        return TooLarge(f"{what}: larger than Blob Storage takes")
    if status in (400, 401, 403, 404) or isinstance(error, ClientAuthenticationError):
        return Refused(f"{what}: refused ({status}); look at keys, roles and the container")
    return OutcomeUnknown(f"{what}: no answer that tells ({status or type(error).__name__})")


_conforms: type[BlobStore] = AzureBlobStore
