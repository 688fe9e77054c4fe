"""A Cosmos DB account as this package uses it: one client for a process, opened when it is first needed.

The client is made so that it sends each request once:

    retry_read, retry_connect, retry_status = 0    the asynchronous client re-sends writes whose answer was lost, and a
                                                   write that meets itself looks as if it had lost
    enable_endpoint_discovery = False              no second try elsewhere, and the endpoint that was given is used
    retry_throttle_total = 2                       throttling does nothing, so it may be waited out; 0 would mean nine
    OnceTransport                                  aiohttp would repeat a PUT or DELETE by itself
    enable_compact_utf8_item_writes                the size of a body on the wire is the size that was counted
"""

from __future__ import annotations

import asyncio
from typing import Any

from azure.cosmos.aio import ContainerProxy, CosmosClient

from outbox.azure.cosmos.containers import ContainerSpec, check_containers, create_containers
from outbox.azure.cosmos.outcomes import FAILURES, as_error
from outbox.azure.transport import OnceTransport

CONNECT_S = 5.0
READ_S = 10.0
THROTTLED_COUNT_MAX = 2
THROTTLED_WAIT_S_MAX = 2


class CosmosAccount:
    """One database of an account; the client belongs to the loop that first uses it."""

    def __init__(self, endpoint: str, database: str, credential: Any, *, user_agent: str = "outbox") -> None:
        """Take where it is and who asks: a key, or a credential of azure.identity.aio."""
        self.endpoint = endpoint
        self.database = database
        self._credential = credential
        self._user_agent = user_agent
        self._client: CosmosClient | None = None
        self._opening = asyncio.Lock()
        self._containers: dict[str, ContainerProxy] = {}
        self._making = asyncio.Lock()
        self._made = set[str]()
        """The containers that are known to be there, because this process made them or found them."""

    def __repr__(self) -> str:
        return f"CosmosAccount({self.endpoint!r}, {self.database!r})"

    async def client(self) -> CosmosClient:
        """The client, open."""
        async with self._opening:
            if self._client is None:
                self._client = await self._open()
            return self._client

    async def _open(self) -> CosmosClient:
        client = CosmosClient(
            self.endpoint,
            self._credential,
            transport=OnceTransport(),
            retry_read=0,
            retry_connect=0,
            retry_status=0,
            retry_throttle_total=THROTTLED_COUNT_MAX,
            retry_throttle_backoff_max=THROTTLED_WAIT_S_MAX,
            enable_endpoint_discovery=False,
            enable_compact_utf8_item_writes=True,
            connection_timeout=CONNECT_S,
            read_timeout=READ_S,
            user_agent_suffix=self._user_agent,
        )
        try:
            await client.__aenter__()
        except BaseException:
            await client.close()
            raise
        return client

    async def container(self, name: str) -> ContainerProxy:
        """A container, which need not exist."""
        known = self._containers.get(name)
        if known is None:
            client = await self.client()
            known = self._containers[name] = client.get_database_client(self.database).get_container_client(name)
        return known

    async def made(self, spec: ContainerSpec) -> ContainerProxy:
        """A container, made at its first use where it is not there yet.

        Raises:
            Refused: it cannot be made, or used as it is.
            OutcomeUnknown: no answer says whether.
        """
        if spec.name not in self._made:
            async with self._making:
                if spec.name not in self._made:
                    await self.prepare(spec, create=True)
        return await self.container(spec.name)

    async def prepare(self, *specs: ContainerSpec, create: bool) -> None:
        """Make the containers, or look whether they are as they have to be.

        Raises:
            Refused: they are not, or cannot be made.
            OutcomeUnknown: no answer says whether.
        """
        handle = create_containers if create else check_containers
        try:
            client = await self.client()
        except FAILURES as error:
            raise as_error(error, f"account {self.endpoint}") from error
        await handle(client, self.database, *specs)
        self._made.update([spec.name for spec in specs])

    async def close(self) -> None:
        """Close the client; a later use opens another."""
        client, self._client = self._client, None
        self._containers.clear()
        if client is not None:
            await client.close()
