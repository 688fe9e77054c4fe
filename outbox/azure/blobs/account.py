"""A container of a storage account: one client for a process, opened when it is first needed.

Nothing is sent again: a write whose answer was lost would meet itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from azure.core.exceptions import ResourceExistsError
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from outbox.azure.blobs.outcomes import FAILURES, as_error
from outbox.azure.transport import OnceTransport
from outbox.azure.usage import Usage

T = TypeVar("T")

TIMEOUT_S = 60.0


class BlobAccount:
    """One container of a storage account; its client belongs to the loop that first uses it."""

    def __init__(
        self,
        address: str,
        container: str,
        credential: Any = None,
        *,
        api_version: str | None = None,
        create: bool = False,
    ) -> None:
        """Take a connection string, or a URL and a credential of azure.identity.aio.

        `create` makes the container at the first call; without it only `prepare` does.
        """
        self._address = address
        self._container = container
        self._credential = credential
        self._api_version = api_version
        self._create = create
        self._client: BlobServiceClient | None = None

    def __repr__(self) -> str:
        return f"BlobAccount({self._container!r})"

    def container(self) -> ContainerClient:
        """The container, which need not exist."""
        if self._client is None:
            options: dict[str, Any] = {"retry_total": 0, "transport": OnceTransport()}
            if self._api_version is not None:
                options["api_version"] = self._api_version
            self._client = (
                BlobServiceClient.from_connection_string(self._address, **options)
                if self._credential is None
                else BlobServiceClient(self._address, self._credential, **options)
            )
        return self._client.get_container_client(self._container)

    async def prepare(self, *, create: bool) -> None:
        """Make the container where it is not there yet.

        Raises:
            Refused: it cannot be made.
            OutcomeUnknown: no answer says whether.
        """
        if create:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self.container().create_container()
            except ResourceExistsError:
                pass
            except FAILURES as error:
                raise as_error(error, f"container {self._container}") from error
            self._create = False

    async def call(
        self, kind: str, send: Callable[[ContainerClient], Awaitable[T]], *, usage: Usage, timeout_s: float
    ) -> T:
        """Send one request and count it; failures come as the SDK raises them."""
        if self._create:
            await self.prepare(create=True)
        failed = True
        try:
            async with asyncio.timeout(timeout_s):
                result = await send(self.container())
            failed = False
            return result
        finally:
            usage.note(kind, failed=failed)

    async def items(self, pages: Any, *, usage: Usage, timeout_s: float) -> AsyncIterator[Any]:
        """The items of a list, a request a page.

        Raises:
            Refused, OutcomeUnknown: the service refuses, or does not answer.
        """

        async def turn(_: ContainerClient) -> list[Any] | None:
            page = await anext(pages, None)
            return None if page is None else [item async for item in page]

        while True:
            try:
                page = await self.call("list", turn, usage=usage, timeout_s=timeout_s)
            except FAILURES as error:
                raise as_error(error, "list of blobs") from error
            if page is None:
                return
            for item in page:
                yield item

    async def close(self) -> None:
        """Close the client; a later use opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
