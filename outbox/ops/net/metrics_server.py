"""A host's metrics for Prometheus to scrape, on loopback; numbers and names of queues are all that they tell."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from outbox.errors import OutboxError
from outbox.ops.net.connection_guard import LOOPBACK, named_host, serve_guarded

log = logging.getLogger("outbox.host")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONNECTION_COUNT_MAX = 20
IDLE_MAX_S = 30.0


@asynccontextmanager
async def serve_metrics(read: Callable[[], Awaitable[str]], port: int) -> AsyncIterator[int]:
    """Answer `GET /metrics` with what `read` gives; the port.

    Raises:
        OSError: the port cannot be used.
    """

    async def answer(request: web.Request) -> web.Response:
        if named_host(request.headers.getall("Host", [])) not in LOOPBACK:
            return web.Response(status=403, text="the Host header must be a loopback address\n")
        try:
            text = await read()
        except OutboxError as error:
            log.warning("metrics cannot be read", extra={"error": str(error)})
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    application = web.Application(client_max_size=1)
    application.add_routes([web.get("/metrics", answer)])
    async with serve_guarded(
        application, port, connection_count_max=CONNECTION_COUNT_MAX, idle_max_s=IDLE_MAX_S, shutdown_timeout=1.0
    ) as served:
        yield served
