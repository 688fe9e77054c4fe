"""An application's HTTP entries on a port of loopback.

Lines, headers, bodies and connections have limits, and every wait has a timeout.  The limits of the network are checked
here, the request itself by its entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from aiohttp import web

from outbox.asgi import BODIES_MAX_BYTES, BODY_WITHIN_S
from outbox.errors import EngineStopped
from outbox.http import KEY_HEADER, Response, problem
from outbox.http_entry import HttpEntry
from outbox.ops.net.connection_guard import LOOPBACK, named_host, serve_guarded

log = logging.getLogger("outbox.http")

LINE_MAX_BYTES = 8 << 10
CONNECTION_COUNT_MAX = 1_024
HEAD_WITHIN_S = 10.0
"""How long a connection may take for a request's head, the first or the next."""
LINGER_S = 2.0
"""How long the rest of a refused body is read, so that the client reads the response."""
STOP_WITHIN_S = 30.0
"""How long requests in progress may take when the host stops."""
STOP_BODY_WITHIN_S = 1.0
"""How long a body may then still take to arrive: without it the request has not begun."""


class Site:
    """Passes HTTP requests to one entry, under the host's names."""

    def __init__(self, entry: HttpEntry, names: Collection[str]) -> None:
        self._entry = entry
        self._names = LOOPBACK | {name.lower() for name in names}
        self._reading: set[asyncio.Timeout] = set()
        self._is_stopping = False
        self.body_bytes = 0
        """The size of all bodies held."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    def stop(self) -> None:
        """Shorten the timeout of bodies still arriving."""
        self._is_stopping = True
        for limit in self._reading:
            limit.reschedule(asyncio.get_running_loop().time() + STOP_BODY_WITHIN_S)

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            response = await self._answer(request)
        except EngineStopped:
            response = problem(
                503, "stopped", "the host is stopping; the same request again, under the same key, is safe"
            )
        except Exception:
            log.exception("a request failed; this is a bug, please report it")
            response = problem(500, "failed", "the host failed on this request and logged why")
        return web.Response(
            status=response.status, headers={"server": "outbox", **response.headers}, body=response.body or None
        )

    async def _answer(self, request: web.Request) -> Response:
        if named_host(request.headers.getall("host", [])) not in self._names:
            text = "this host has another name; use 127.0.0.1, or declare the name by --http-name"
            return problem(421, "unknown-host", text)
        if len(request.headers.getall(KEY_HEADER, [])) > 1:
            return problem(400, "idempotency-key-unfit", "send one Idempotency-Key header")
        parts: list[bytes] = []
        try:
            return await self._read(request, parts) or await self._asked(request, b"".join(parts))
        finally:
            self.body_bytes -= sum(map(len, parts))

    async def _read(self, request: web.Request, parts: list[bytes]) -> Response | None:
        """Read a body, counted in `body_bytes` until the request ends; the problem if it cannot be read."""
        size_bytes, size_max_bytes = 0, self._entry.body_bytes_max
        try:
            async with asyncio.timeout(STOP_BODY_WITHIN_S if self._is_stopping else BODY_WITHIN_S) as limit:
                self._reading.add(limit)
                async for part in request.content.iter_any():
                    parts.append(part)
                    size_bytes += len(part)
                    self.body_bytes += len(part)
                    if size_bytes > size_max_bytes:
                        return problem(413, "too-large", f"the body is over {size_max_bytes} bytes")
                    if self.body_bytes > BODIES_MAX_BYTES:
                        text = "too many bodies are being read; send the same request again, under the same key"
                        return problem(503, "try-again", text, retry_after_s=1)
        except TimeoutError:
            return problem(408, "too-slow", f"the body did not arrive within {BODY_WITHIN_S:.0f} s")
        except (web.RequestPayloadError, ConnectionError):  # a client that hung up does not read this
            return problem(400, "undecodable", "the body is not what its headers say")
        finally:
            self._reading.discard(limit)
        return None

    async def _asked(self, request: web.Request, body: bytes) -> Response:
        headers = {name: ", ".join(request.headers.getall(name)) for name in request.headers}
        url = request.rel_url
        path = f"{url.raw_path}?{url.raw_query_string}" if url.raw_query_string else url.raw_path
        return await self._entry.handle(request.method, path, headers, body)


@asynccontextmanager
async def serve_http(entry: HttpEntry, port: int, names: Collection[str] = ()) -> AsyncIterator[int]:
    """Serve an entry on loopback, under a loopback name or one of `names`; the port.

    On exit it takes no more connections and lets requests in progress end.

    Raises:
        OSError: the port cannot be used.
    """
    site = Site(entry, names)
    async with serve_guarded(
        site.application(),
        port,
        connection_count_max=CONNECTION_COUNT_MAX,
        idle_max_s=HEAD_WITHIN_S,
        stop=site.stop,
        max_line_size=LINE_MAX_BYTES,
        max_field_size=LINE_MAX_BYTES,
        shutdown_timeout=STOP_WITHIN_S,
        lingering_time=LINGER_S,
    ) as served:
        yield served
