"""Where the documents of runs are: what `--runs` and OUTBOX_SPARK_RUNS say.

cosmos:DATABASE[/CONTAINER]    the application's own container, reached by OUTBOX_COSMOS (a connection string) or
                               OUTBOX_COSMOS__accountEndpoint (an identity)
a folder                       of this machine, for runs that stay on it
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from outbox.errors import Refused
from outbox.ports import Document, Version
from spark_jobs.submitting.documents import FolderRuns, NotedRuns, Notes, RunDocuments, StoreNotes

CONTAINER = "outbox"


def documents_of(place: str, environ: Mapping[str, str]) -> RunDocuments:
    """The documents that a place names; nothing is opened yet.

    Raises:
        Refused: the place or the environment does not tell enough.
    """
    kind, colon, name = place.partition(":")
    if kind == "cosmos":
        database, _, container = name.partition("/")
        if not database:
            raise Refused(f"{place!r}: say cosmos:DATABASE or cosmos:DATABASE/CONTAINER")
        endpoint, key = _account_of(environ)
        return NotedRuns(CosmosNotes(endpoint, key, database, container or CONTAINER))
    if not place or (colon and "/" not in kind and kind != "file"):
        raise Refused(f"{place!r}: the documents of runs are in cosmos:DATABASE or in a folder")
    return FolderRuns(place)


def _account_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """Endpoint and key; the key is empty where an identity asks."""
    parts = dict(part.partition("=")[::2] for part in environ.get("OUTBOX_COSMOS", "").strip().split(";") if part)
    endpoint = parts.get("AccountEndpoint") or environ.get("OUTBOX_COSMOS__accountEndpoint", "")
    if not endpoint:
        raise Refused("the documents of runs are in Cosmos DB; set OUTBOX_COSMOS or OUTBOX_COSMOS__accountEndpoint")
    return endpoint, parts.get("AccountKey", "")


class CosmosNotes:
    """Notes in a container, by a client for each call: they are few, and come from loops that end."""

    def __init__(self, endpoint: str, key: str, database: str, container: str) -> None:
        self._endpoint = endpoint
        self._key = key
        self._database = database
        self._container = container

    def __repr__(self) -> str:
        return f"CosmosNotes({self._endpoint!r}, {self._database!r}, {self._container!r})"

    async def note(self, name: str) -> Document | None:
        """The note of a name."""
        async with self._open() as notes:
            return await notes.note(name)

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        """Write a note that still has this version."""
        async with self._open() as notes:
            return await notes.write_note(name, body, version)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[StoreNotes]:
        from outbox.azure.cosmos.account import CosmosAccount
        from outbox.azure.cosmos.store import CosmosStateStore  # the SDK takes a second to import

        async with AsyncExitStack() as stack:
            credential: Any = self._key
            if not credential:
                from azure.identity.aio import DefaultAzureCredential

                credential = await stack.enter_async_context(DefaultAzureCredential())
            account = CosmosAccount(self._endpoint, self._database, credential, user_agent="outbox-spark")
            stack.push_async_callback(account.close)
            yield StoreNotes(CosmosStateStore(partial(account.container, self._container)))


_conforms: type[Notes] = CosmosNotes
