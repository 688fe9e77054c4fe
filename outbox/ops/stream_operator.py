"""The operator of ordered logs in a store of its own: a container of Cosmos DB, or of blobs.

No bus is needed, and nothing is made.  A store that does not answer, or refuses, is named with the options that say
where it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from outbox.errors import OutcomeUnknown, Refused, Unreachable
from outbox.ops.store_operator import Addresses, host_of, imported
from outbox.ops.stream_values import (
    StreamQuery,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    TrimRequest,
    UnregisterRequest,
)
from outbox.ops.streams import StreamPlace, list_streams, on_store, read_stream, trim_stream, unregister_stream
from outbox.streams.log_places import Place


class StreamOperator(Protocol):
    """The operations on ordered logs."""

    async def streams(self) -> Streams:
        """All ordered logs and registers."""

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        """The entries of a log as stored."""

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        """Forget a reader or writer of a log."""

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        """Trim a log up to what its readers and writers need."""


class PlacedStreams:
    """An operator of the ordered logs in one place."""

    def __init__(self, place: StreamPlace) -> None:
        self._place = place

    async def streams(self) -> Streams:
        return await list_streams(self._place)

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        return read_stream(self._place, asked)

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        return await unregister_stream(self._place, asked)

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        return await trim_stream(self._place, asked)


@asynccontextmanager
async def connect_stream_operator(addresses: Addresses) -> AsyncIterator[StreamOperator]:
    """Connect to the logs in Cosmos DB, or with `blob_states` in that container of blobs.

    Raises:
        Refused: an address cannot be used, or its container is missing or forbidden.
        OutcomeUnknown, Unreachable: the store does not answer.
    """
    is_blobs = bool(addresses.blob_states)
    options = "--blobs and --blob-states" if is_blobs else "--cosmos, --database and --container"
    try:
        states = _blobs(addresses) if is_blobs else _cosmos(addresses)
        name = (
            f"container {addresses.blob_states} of Blob Storage"
            if is_blobs
            else f"container {addresses.database}/{addresses.container} of Cosmos DB"
        )
        async with states:
            if not is_blobs:  # a missing container of blobs is known by the first answer
                await states.check()
            yield PlacedStreams(on_store(Place(states.store, states.blobs), name))
    except ValueError as error:  # ours name the parameter and not its value; an SDK's may repeat a key
        ours = (
            str(error)
            if str(error).startswith(("cosmos=", "blobs="))
            else f"an address or a key: {type(error).__name__}"
        )
        raise Refused(f"{ours}; look at {options}, or at their variables") from None
    except (OutcomeUnknown, Unreachable) as error:
        where = host_of(addresses.blobs if is_blobs else addresses.cosmos)
        raise type(error)(
            f"{error}; is {where} there and reachable?  Look at {options} and the network, and ask again"
        ) from error
    except Refused as error:
        if type(error) is not Refused or "look at keys" not in str(error):
            raise
        raise Refused(f"{error}, as {options} name them; a role that reads data, for a trim one that writes") from error


def _cosmos(addresses: Addresses) -> Any:
    return imported("outbox.azure.cosmos_place").cosmos_states(
        addresses.cosmos,
        database=addresses.database,
        container=addresses.container,
        blobs=addresses.blobs or None,
        user_agent="outbox-cli",
    )


def _blobs(addresses: Addresses) -> Any:
    return imported("outbox.azure.blob_place").blob_states(addresses.blobs, container=addresses.blob_states)


_conforms: type[StreamOperator] = PlacedStreams
