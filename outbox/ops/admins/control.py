"""The control endpoint of a running host: an `Admin` over HTTP on loopback.

The right to read `control.json` (mode 0600, in the data folder) is the right to ask.  Every request carries the token,
compared in constant time, and a loopback Host header, against DNS rebinding.  `POST /ask/NAME` takes a
request by the name of its class and returns its answer; an error travels as the name of its class.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from outbox.codec import DECODE_ERRORS
from outbox.errors import (
    CorruptRecord,
    EngineStopped,
    OutboxError,
    PoisonMessage,
    Refused,
    Throttled,
    TooLarge,
    UnknownDestination,
)
from outbox.ops.admins import engine as engine_admin
from outbox.ops.net.connection_guard import LOOPBACK, named_host, serve_guarded
from outbox.ops.shared.control_file import ControlFile, remove_control_file, write_control_file
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import Check

REQUESTS = {kind.__name__: kind for kind in engine_admin.ANSWERS}
LINES = {kind.__name__: kind for kind in engine_admin.LINES}

log = logging.getLogger("outbox.control")

BODY_MAX_BYTES = 32 << 20
BODY_WITHIN_S = 30.0
LINE_MAX_BYTES = 16 << 10
REQUEST_COUNT_MAX = 64
CONNECTION_COUNT_MAX = 64
IDLE_MAX_S = 5.0
"""How long a connection may take for a request's head, the first or the next."""
STOP_WITHIN_S = 1.0

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownDestination, 404),
    (LookupError, 404),
    (TooLarge, 413),
    (Throttled, 429),
    (Refused, 409),
    (CorruptRecord, 500),
    (EngineStopped, 503),
    (PoisonMessage, 409),
    (OutboxError, 409),
)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Control:
    """The routes, behind the token."""

    def __init__(self, admin: Admin, token: str) -> None:
        self._admin = admin
        self._token = token.encode()
        self._free = REQUEST_COUNT_MAX

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_MAX_BYTES)
        app.add_routes(
            [
                web.get("/health", self._health, expect_handler=_expect),
                web.post("/ask/{name}", self._ask, expect_handler=_expect),
                web.route("*", "/{path:.*}", self._nowhere, expect_handler=_expect),
            ]
        )
        return app

    # Authorization and errors

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if (refused := self._refusal(request)) is not None:
            refused.force_close()
            return refused
        if not self._free:
            return _error(503, "Refused", f"{REQUEST_COUNT_MAX} requests are under way; try again")
        self._free -= 1
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _error(error.status, "Refused", f"{request.method} {request.path[:80]}: {error.reason}")
        except (OutboxError, LookupError) as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
            return _error(status, type(error).__name__, text)
        except Exception:
            log.exception("a request failed; this is a bug, please report it")
            return _error(500, "OutboxError", "the host failed on this request and logged why")
        finally:
            self._free += 1

    def _refusal(self, request: web.Request) -> web.Response | None:
        if named_host(request.headers.getall("Host", [])) not in LOOPBACK:
            return _error(403, "Refused", "the Host header must be a loopback address")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode("utf-8", "replace"), self._token):
            return _error(401, "Refused", "the token is missing or wrong; it is in the folder's control.json")
        return None

    # Routes

    async def _health(self, request: web.Request) -> web.Response:
        await self._admin.ask(Check())
        return _json({"healthy": True, "pid": os.getpid()})

    async def _nowhere(self, request: web.Request) -> web.Response:
        raise web.HTTPNotFound

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if (lines := LINES.get(name)) is not None:
            return await self._lines(request, self._admin.stream(await _body(request, lines)))
        if (kind := REQUESTS.get(name)) is None:
            raise web.HTTPNotFound
        return _json(await self._admin.ask(await _body(request, kind)))

    async def _lines(self, request: web.Request, pages: AsyncIterator[bytes]) -> web.StreamResponse:
        """Answer with JSON lines as they are made."""
        first = await anext(pages, b"")  # a refusal must precede the response's first byte
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(first)
        async for page in pages:
            await response.write(page)
            await asyncio.sleep(0)  # a write that does not wait would starve the loop
        await response.write_eof()
        return response


@asynccontextmanager
async def serve_control(admin: Admin, folder: Path) -> AsyncIterator[int]:
    """Serve an admin on a port of loopback, and write its control file; the port.  The caller holds the folder."""
    token = secrets.token_urlsafe(32)
    async with serve_guarded(
        Control(admin, token).application(),
        0,
        connection_count_max=CONNECTION_COUNT_MAX,
        idle_max_s=IDLE_MAX_S,
        handler_cancellation=True,
        max_line_size=LINE_MAX_BYTES,
        max_field_size=LINE_MAX_BYTES,
        shutdown_timeout=STOP_WITHIN_S,
    ) as port:
        try:
            write_control_file(folder, ControlFile(port, os.getpid(), token))
            yield port
        finally:
            remove_control_file(folder)


async def _expect(request: web.Request) -> None:
    """Leave `Expect` aside: aiohttp's own answer fails of a value that is no text, and comes before the token."""


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            data = await request.read()
        return msgspec.json.decode(data, type=kind)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body did not arrive within {BODY_WITHIN_S:.0f} s") from None
    except (*DECODE_ERRORS, web.RequestPayloadError) as error:
        raise web.HTTPBadRequest(reason=" ".join(str(error).split())[:200]) from error


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(status: int, kind: str, text: str) -> web.Response:
    return _json({"kind": kind, "error": text}, status)
