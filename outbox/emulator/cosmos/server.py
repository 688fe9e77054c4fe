"""The server of the Cosmos DB emulator: where it listens, what it is made of, and how it starts and stops.

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

from outbox.emulator.cosmos.answers import FORBIDDEN, Answer, Rejection
from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY, Signatures
from outbox.emulator.cosmos.catalog import Catalog
from outbox.emulator.cosmos.catalog_operations import CatalogOperations
from outbox.emulator.cosmos.charges import Meter, Usage
from outbox.emulator.cosmos.control import PREFIX, Control
from outbox.emulator.cosmos.feed_operations import FeedOperations
from outbox.emulator.cosmos.gateway import Call, Dropped, Gateway
from outbox.emulator.cosmos.http import Connection as HttpConnection
from outbox.emulator.cosmos.http import Request, response_of
from outbox.emulator.cosmos.item_operations import ItemOperations
from outbox.emulator.cosmos.store import Store
from outbox.emulator.faults import Faults
from outbox.engine.engine import Engine
from outbox.errors import Refused

log = logging.getLogger(__name__)

PORT = 8081
CONNECTION_COUNT_MAX = 512
BODIES_MAX_BYTES = 64 << 20
"""Of all requests that are being read or answered; more are throttled."""
TIME_CHECK_S = 1.0
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
        connection_count_max: int = CONNECTION_COUNT_MAX,
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
        self.store = store
        self._gateway = Gateway(engine, operations, Signatures(key), self.faults, self._meter)
        self._control = Control(self.faults, self._meter, self.control_token)
        self._connection_count_max = connection_count_max
        self._body_bytes = 0
        self._connections: set[HttpConnection] = set()
        self._deserted = asyncio.Event()
        self._listening: asyncio.Server | None = None
        self._timekeeper: asyncio.Task[None] | None = None
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
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: HttpConnection(self, _malformed), self.host, self.port, reuse_address=True
        )
        self.port = self._listening.sockets[0].getsockname()[1]
        self._timekeeper = loop.create_task(self._keep_time(), name="cosmos timekeeper")
        return self

    async def stop(self) -> None:
        """Answer what is under way, for a moment, and close."""
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._deserted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    await self._deserted.wait()
        for connection in list(self._connections):
            connection.abort()
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._timekeeper
        self._listening = self._timekeeper = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _keep_time(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TIME_CHECK_S)
            self.store.sweep_quietly()
            for connection in list(self._connections):
                connection.check_time(loop.time())

    # What connections ask

    def admit(self, connection: HttpConnection) -> bool:
        """Whether there is room for another connection."""
        if len(self._connections) >= self._connection_count_max:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: HttpConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._deserted.set()

    def reserve(self, size_bytes: int) -> bool:
        """Whether there is room for a body that is to be read; a negative size gives the room back."""
        if size_bytes > 0 and self._body_bytes + size_bytes > BODIES_MAX_BYTES:
            return False
        self._body_bytes += size_bytes
        return True

    async def respond(self, request: Request) -> bytes | None:
        """The bytes of the answer to a request; None where there is to be none."""
        try:
            answer = await self._answer(request)
        except Rejection as rejected:
            answer = rejected.answer()
        except Dropped:
            return None
        self._request_count += 1
        headers = answer.headers
        headers["x-ms-activity-id"] = f"00000000-0000-0000-0000-{self._request_count:012x}"
        has_body = request.method != "HEAD"
        return response_of(answer.status, headers, answer.body, is_last=request.is_last, has_body=has_body)

    async def _answer(self, request: Request) -> Answer:
        if self._is_local and not _names_loopback(request.headers.get("host", "")):
            raise Rejection(FORBIDDEN, "the Host header must be a loopback address")
        if request.target.startswith(PREFIX):
            return self._control.answer(request.method, request.target, request.headers, request.body)
        return await self._gateway.answer(Call(request.method, request.target, request.headers, request.body))


def _malformed(status: int, text: str) -> bytes:
    answer = Rejection(status, text).answer()
    return response_of(status, answer.headers, answer.body, is_last=True)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_loopback(host: str) -> bool:
    """Whether a request's Host is this machine: a page whose name was rebound to it is not let in."""
    name, colon, port = host.lower().rpartition(":") if not host.endswith("]") else (host.lower(), "", "")
    return (name if colon else host.lower()) in LOOPBACK and (not colon or port.isdecimal())
