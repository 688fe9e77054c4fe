"""The HTTP server of the Cosmos DB emulator: connections, limits, bodies in, answers out.

It listens on loopback under the port and the public key of Microsoft's emulator, so that existing settings work; on
any other address it insists on a key of one's own.  Many may run in one process.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from outbox.emulator.cosmos.answers import THROTTLED, TOO_LARGE, Answer, Rejection, bad
from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY, Signatures
from outbox.emulator.cosmos.catalog import Catalog
from outbox.emulator.cosmos.catalog_operations import CatalogOperations
from outbox.emulator.cosmos.charges import Meter, Usage
from outbox.emulator.cosmos.control import PREFIX, Control
from outbox.emulator.cosmos.door import Door
from outbox.emulator.cosmos.feed_operations import FeedOperations
from outbox.emulator.cosmos.gateway import Call, Dropped, Gateway
from outbox.emulator.cosmos.item_operations import ItemOperations
from outbox.emulator.cosmos.store import Store
from outbox.emulator.faults import Faults
from outbox.engine.engine import Engine
from outbox.errors import Refused

log = logging.getLogger(__name__)
_quiet = logging.getLogger("outbox.emulator.cosmos.http")
_quiet.setLevel(logging.CRITICAL)  # anybody on this machine can send nonsense; it is answered and not worth a traceback

PORT = 8081
BODY_MAX_BYTES = 4 << 20
BODIES_MAX_BYTES = 64 << 20
"""Of all requests that are being read; more are throttled."""
BODY_WITHIN_S = 30.0
WRITE_WITHIN_S = 30.0
UNSENT_MAX_BYTES = 1 << 20
LINE_MAX_BYTES = 16 << 10
IDLE_MAX_S = 120.0
SWEEP_EVERY_S = 1.0
STOP_WITHIN_S = 1.0
LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))


@dataclass(frozen=True, slots=True)
class Connection:
    """What the SDK takes: `CosmosClient(connection.url, credential=connection.key)`."""

    url: str
    key: str

    @property
    def connection_string(self) -> str:
        """What the SDK's `from_connection_string` takes.  It holds the key."""
        return f"AccountEndpoint={self.url};AccountKey={self.key};"

    def __repr__(self) -> str:
        return f"Connection(url={self.url!r})"


class CosmosEmulator:
    """Serve an engine's documents as a Cosmos DB account.  Use it as an async context manager, or start and stop it."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        key: str = WELL_KNOWN_KEY,
        faults: Faults | None = None,
        history_s: float = 0.0,
        control_token: str | None = None,
        connection_count_max: int = 512,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Take the engine to serve; port 0 lets the system choose one.

        `history_s` is how long writes are remembered for stale reads, besides while a rule for them is installed.
        One engine is served by one emulator at a time.

        Raises:
            Refused: a host that others can reach with the public key; a key that is none.
        """
        self._is_local = _is_loopback(host)
        if key == WELL_KNOWN_KEY and not self._is_local:
            raise Refused(f"{host} can be reached by others and the key is public; give key=..., or use 127.0.0.1")
        self.engine = engine
        self.host = host
        self.port = port
        self.faults = Faults() if faults is None else faults
        self.control_token = control_token or secrets.token_urlsafe(32)
        self._key = key
        self._meter = Meter()
        store = Store(engine, Catalog(engine, draw), self.faults, history_s)
        operations = {**CatalogOperations(store).by_name(), **ItemOperations(store).by_name()}
        operations |= FeedOperations(store).by_name()
        self._store = store
        self._gateway = Gateway(engine, operations, Signatures(key), self.faults, self._meter)
        self._control = Control(self.faults, self._meter, self.control_token)
        self._connection_count_max = connection_count_max
        self._body_bytes = 0
        self._doors: set[Door] = set()
        self._web: web.Server | None = None
        self._listening: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._request_count = 0

    @property
    def connection(self) -> Connection:
        """Where it listens, and its key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Connection(f"http://{host}:{self.port}/", self._key)

    def usage(self) -> dict[str, Usage]:
        """Requests and request units by operation, since the start or `reset_usage`."""
        return self._meter.usage()

    def reset_usage(self) -> None:
        """Count requests from zero."""
        self._meter.reset()

    async def start(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        server = self._web = web.Server(
            self._handle,
            request_factory=_request,
            access_log=None,
            logger=_quiet,
            handler_cancellation=False,  # a write whose client went away is finished all the same
            auto_decompress=False,
            max_line_size=LINE_MAX_BYTES,
            max_field_size=LINE_MAX_BYTES,
            keepalive_timeout=IDLE_MAX_S,
            lingering_time=1.0,
        )
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: Door(server, self._doors, self._connection_count_max), self.host, self.port, reuse_address=True
        )
        self.port = self._listening.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep(), name="cosmos expiry")
        return self

    async def stop(self) -> None:
        """Answer what is under way, for a moment, and close."""
        if self._listening is not None:
            self._listening.close()
        if self._web is not None:
            await self._web.shutdown(STOP_WITHIN_S)
        for door in list(self._doors):
            door.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        self._listening = self._web = self._sweeper = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self._store.sweep_quietly()

    # Requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._answer(request)
        except Rejection as rejected:
            answer = rejected.answer()
        except Dropped:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        self._request_count += 1
        headers = {**answer.headers, "x-ms-activity-id": f"00000000-0000-0000-0000-{self._request_count:012x}"}
        response = web.Response(status=answer.status, body=answer.body or None, headers=headers)
        if answer.body:
            response.content_type = "application/json"
        await self._write(request, response)
        return response

    async def _answer(self, request: web.BaseRequest) -> Answer:
        if self._is_local and not _names_loopback(request.headers.getall("Host", [])):
            raise Rejection(403, "the Host header must be a loopback address")
        body = await self._body(request)
        if request.raw_path.startswith(PREFIX):
            return self._control.answer(request.method, request.raw_path, request.headers, body)
        return await self._gateway.answer(Call(request.method, request.raw_path, request.headers, body))

    async def _body(self, request: web.BaseRequest) -> bytes:
        if not request.body_exists:
            return b""
        size_bytes = BODY_MAX_BYTES if request.content_length is None else request.content_length
        if size_bytes > BODY_MAX_BYTES:
            raise Rejection(TOO_LARGE, f"a body of {size_bytes} bytes is over {BODY_MAX_BYTES}")
        if self._body_bytes + size_bytes > BODIES_MAX_BYTES:
            raise Rejection(THROTTLED, "too many bodies are being read", retry_after_s=0.1)
        self._body_bytes += size_bytes
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                return await request.read()
        except TimeoutError:
            raise Rejection(408, f"the body did not arrive within {BODY_WITHIN_S:.0f} s") from None
        except web.HTTPRequestEntityTooLarge:
            raise Rejection(TOO_LARGE, f"a body is over {BODY_MAX_BYTES} bytes") from None
        except web.RequestPayloadError as error:
            raise bad("the body ended early, or is not framed as its headers say") from error
        finally:
            self._body_bytes -= size_bytes

    async def _write(self, request: web.BaseRequest, response: web.Response) -> None:
        """Write an answer; a client that does not read is waited for a while, and not answered any more."""
        transport = request.transport
        await response.prepare(request)
        await response.write_eof()
        waited_s = 0.0
        while transport is not None and not transport.is_closing():
            if transport.get_write_buffer_size() <= UNSENT_MAX_BYTES:
                return
            if waited_s >= WRITE_WITHIN_S:
                transport.abort()
                return
            await asyncio.sleep(0.01)
            waited_s += 0.01


def _request(message, payload, protocol, writer, task) -> web.BaseRequest:  # type: ignore[no-untyped-def]  # aiohttp keeps these types to itself
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_MAX_BYTES)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_loopback(hosts: list[str]) -> bool:
    """Whether a request's Host is this machine: a page whose name was rebound to it is not let in."""
    host = hosts[0].lower() if len(hosts) == 1 else ""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    return (name if colon else host) in LOOPBACK and (not colon or port.isdecimal())
