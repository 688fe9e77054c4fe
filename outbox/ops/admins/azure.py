"""Connect an admin to an application on Azure or on emulators, or to ordered logs in a store alone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from outbox.errors import OutcomeUnknown, Refused, Unreachable
from outbox.ops.admins.store import StoreAdmin, stream_admin
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.streams.logs import on_store
from outbox.ops.values.requests import Admin
from outbox.streams.log_places import Place


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses or connection strings of an application's store and bus, which no text here repeats."""

    cosmos: str
    servicebus: str
    database: str
    container: str
    states: str = ""
    blobs: str = ""
    blob_states: str = ""

    def __repr__(self) -> str:
        return f"Addresses(database={self.database!r}, container={self.container!r}, states={self.states!r})"


def addresses_of(options: Any) -> Addresses:
    """The addresses that the options of a command name, or its environment."""
    logging.getLogger("azure").addHandler(logging.NullHandler())  # its lines about connections are no answer
    return Addresses(**{each.name: getattr(options, each.name, "") for each in fields(Addresses)})


def imported(name: str) -> ModuleType:
    """A module of `outbox.azure`, which may not be installed.

    Raises:
        Refused: its SDKs are missing.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed; pip install outbox-azure[azure]") from error


@asynccontextmanager
async def connect_azure_admin(addresses: Addresses) -> AsyncIterator[Admin]:
    """Connect an admin to an application on Azure or on emulators; plain addresses need an identity.

    Raises:
        Refused: an address cannot be used, or its resource is missing or forbidden.
        OutcomeUnknown, Unreachable: the service does not answer.
    """
    connect = imported("outbox.azure.connecting").connect
    try:
        backend = connect(
            cosmos=addresses.cosmos,
            servicebus=addresses.servicebus,
            database=addresses.database,
            container=addresses.container,
            states=addresses.states or None,
            blobs=addresses.blobs or None,
            user_agent="outbox-cli",
        )
    except ValueError as error:  # ours name the parameter and not its value
        raise Refused(f"{error}; look at --cosmos, --servicebus and --blobs, or at their variables") from None
    async with backend:
        try:
            try:
                await backend.operations.declare({}, {})  # checks that the container exists, and makes nothing
            except Unreachable:
                raise
            except Refused as error:
                text = f"{error}; look at --cosmos, --database and --container, or at their variables"
                raise Refused(text) from error
            bus = backend.operations
            more = {
                "pause": bus.pause,
                "asked_paused": bus.is_paused,
                "asked_ordered": bus.is_ordered,
                "names": bus.names,
            }
            more |= {"discard_some": bus.discard_some, "waiting_since_ms": bus.waiting_since_ms}
            more["index"] = backend.infrastructure or backend.store
            yield StoreAdmin(StoreSite(backend.ports(), bus.counts, bus.peek, bus.cancel, **more))
        except ValueError as error:  # an SDK's, whose text may repeat a key
            text = f"an address or a key cannot be used ({type(error).__name__}); look at how it was copied"
            raise Refused(text) from None
        except (OutcomeUnknown, Unreachable) as error:
            where = f"{host_of(addresses.cosmos)} (--cosmos) and {host_of(addresses.servicebus)} (--servicebus)"
            text = f"{error}; see whether {where} answer from here, and look again before you repeat a change"
            raise type(error)(text) from error


def host_of(address: str) -> str:
    """Where an address or a connection string leads, without any key."""
    is_plain = "=" not in address or "//" in address.partition("=")[0]
    parts = {"": address} if is_plain else dict(part.partition("=")[::2] for part in address.split(";"))
    found = next((parts[name] for name in _ADDRESS_PARTS if name in parts), "")
    return urlsplit(found if "//" in found else f"//{found}").netloc.rpartition("@")[2]


_ADDRESS_PARTS = ("AccountEndpoint", "Endpoint", "BlobEndpoint", "AccountName", "")
"""The parts of a connection string that hold its address, the exact ones first; a plain address has no name."""


@asynccontextmanager
async def connect_stream_admin(addresses: Addresses) -> AsyncIterator[Admin]:
    """Connect an admin to the ordered logs in a store, as `connect_streams` does."""
    async with connect_streams(addresses) as (_, admin):
        yield admin


@asynccontextmanager
async def connect_streams(addresses: Addresses) -> AsyncIterator[tuple[Place, Admin]]:
    """Connect to the logs in Cosmos DB, or with `blob_states` in that container of blobs; no bus is needed.

    Nothing is made.  A store that does not answer, or refuses, is named with the options that say where it is.

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
            place = Place(states.store, states.blobs)
            yield place, stream_admin(on_store(place, name))
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
