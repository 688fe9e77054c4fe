"""The endpoints of a host for clients: Service Bus, and on request Cosmos DB, Blob Storage and HTTP, on loopback.

A host with an application checks the folder's access key (`access_key`); without one the endpoints are as open as
Microsoft's emulators.  The emulators take fault rules under a token, made anew for each host and written to the
folder's control file, which only the folder's owner can read.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from outbox.app import App
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.errors import Refused
from outbox.http_entry import HttpEntry
from outbox.ports import Backend
from outbox.runtime.commit.handler_threads import HandlerThreads
from outbox.runtime.counts import Counts

log = logging.getLogger("outbox.host")

T = TypeVar("T")
ReadMetrics = Callable[[], Awaitable[str]]

AMQP_PORT = 5672
AMQP_OPTION, COSMOS_OPTION, BLOB_OPTION, HTTP_OPTION = "--amqp-port", "--cosmos-port", "--blob-port", "--http"
METRICS_OPTION = "--metrics-port"


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The ports to listen on: None is no endpoint, 0 any free port.

    `http_names` are the names of the HTTP endpoint besides those of loopback.
    """

    amqp_port: int | None = AMQP_PORT
    cosmos_port: int | None = None
    blob_port: int | None = None
    http_port: int | None = None
    http_names: tuple[str, ...] = ()
    metrics_port: int | None = None
    faults_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def ports(self) -> tuple[tuple[int, str], ...]:
        """The wanted ports, each with its command-line option."""
        wanted = (
            (self.amqp_port, AMQP_OPTION),
            (self.cosmos_port, COSMOS_OPTION),
            (self.blob_port, BLOB_OPTION),
            (self.http_port, HTTP_OPTION),
            (self.metrics_port, METRICS_OPTION),
        )
        return tuple((port, option) for port, option in wanted if port is not None)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The open endpoints of a host: ports (0: none), and connection strings."""

    amqp_port: int
    cosmos_port: int
    blob_port: int
    lines: tuple[str, ...] = field(repr=False)
    """A connection string for each endpoint."""


async def listen(
    stack: AsyncExitStack, engine: Engine, settings: EndpointSettings, key: str | None = None
) -> Endpoints:
    """Open the endpoints, which check `key` if there is one; they close with the stack.

    Raises:
        Refused: a port cannot be used.
    """
    amqp_port = cosmos_port = blob_port = 0
    lines: list[str] = []
    if settings.amqp_port is not None:
        server = ServiceBusServer(engine, port=settings.amqp_port, key=key, control_token=settings.faults_token)
        await _opened(stack, server, settings.amqp_port, AMQP_OPTION)
        amqp_port = server.port
        lines.append(server.connection_string)
    if settings.cosmos_port is not None:
        from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
        from outbox.emulator.cosmos.server import CosmosEmulator  # here, because few hosts need it

        emulator = CosmosEmulator(
            engine, port=settings.cosmos_port, key=key or WELL_KNOWN_KEY, control_token=settings.faults_token
        )
        await _opened(stack, emulator, settings.cosmos_port, COSMOS_OPTION)
        cosmos_port = emulator.port
        lines.append(emulator.connection.connection_string)
    if settings.blob_port is not None:
        from outbox.emulator.blobs.auth import WELL_KNOWN_KEY as BLOB_KEY
        from outbox.emulator.blobs.server import BlobEmulator

        blobs = BlobEmulator(engine, port=settings.blob_port, key=key or BLOB_KEY, control_token=settings.faults_token)
        await _opened(stack, blobs, settings.blob_port, BLOB_OPTION)
        blob_port = blobs.port
        lines.append(blobs.connection.connection_string)
    return Endpoints(amqp_port, cosmos_port, blob_port, tuple(lines))


async def listen_http(
    stack: AsyncExitStack,
    app: App,
    backend: Backend,
    settings: EndpointSettings,
    threads: HandlerThreads,
    counts: Counts,
) -> tuple[str, ...]:
    """Serve an application's HTTP entries, if a port is given, blocking ones in `threads`; its address.

    Raises:
        Refused: the port cannot be used.
    """
    if settings.http_port is None:
        if app.routes:
            log.info("%s has HTTP entries that are not served here; give %s PORT", app.name, HTTP_OPTION)
        return ()
    if not app.routes:
        raise Refused(f"{app.name} has no HTTP entries; declare one with @app.http, or leave {HTTP_OPTION} out")
    from outbox.ops.net.http_server import serve_http  # here, because its library takes longer to import than all else

    entry = await stack.enter_async_context(HttpEntry(app, backend, threads=threads, counts=counts))
    serving = serve_http(entry, settings.http_port, settings.http_names)
    port = await _opened(stack, serving, settings.http_port, HTTP_OPTION)
    return (f"http://127.0.0.1:{port}",)


async def listen_metrics(stack: AsyncExitStack, read: ReadMetrics, settings: EndpointSettings) -> tuple[str, ...]:
    """Serve a host's metrics to Prometheus, if a port is given; the address.

    Raises:
        Refused: the port cannot be used.
    """
    if settings.metrics_port is None:
        return ()
    from outbox.ops.net.metrics_server import serve_metrics

    port = await _opened(stack, serve_metrics(read, settings.metrics_port), settings.metrics_port, METRICS_OPTION)
    return (f"http://127.0.0.1:{port}/metrics",)


async def _opened(stack: AsyncExitStack, endpoint: AbstractAsyncContextManager[T], port: int, option: str) -> T:
    """Open an endpoint; it closes with the stack."""
    try:
        return await stack.enter_async_context(endpoint)
    except OSError as error:
        raise port_refused(error, port, option) from error


def check_ports(settings: EndpointSettings) -> None:
    """Check that the ports are free before the start; they are opened last.

    Raises:
        Refused: a port is in use.
    """
    for port, option in settings.ports:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise port_refused(error, port, option) from error


def port_refused(error: OSError, port: int, option: str) -> Exception:
    """The refusal for a port in use or without permission; any other error is returned unchanged."""
    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
        return error
    why = os.strerror(error.errno).lower()
    return Refused(f"port {port} cannot be used ({why}); give another by {option}, or {option} 0 for a free one")
