"""The control endpoint of a running host: an `Operator` over HTTP on loopback.

The right to read `control.json` (mode 0600, in the data folder) is the right to ask.  Every request carries the token,
compared in constant time, and a loopback Host header, against DNS rebinding.  Routes take and return data; an error
travels as the name of its class.
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
from msgspec import UnsetType

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
from outbox.ops.bodies import compact_json
from outbox.ops.connection_guard import LOOPBACK, named_host, serve_guarded
from outbox.ops.control_file import ControlFile, remove_control_file, write_control_file
from outbox.ops.metrics_server import CONTENT_TYPE
from outbox.ops.operator import Operator
from outbox.ops.pending_values import FinishRequest
from outbox.ops.state_values import StatesQuery, StateWrites
from outbox.ops.stream_values import StreamQuery, TrimRequest, UnregisterRequest
from outbox.ops.trail_values import TrailQuery
from outbox.ops.values import (
    BATCH_COUNT_MAX,
    AmongQuery,
    BlockedQuery,
    CancelRequest,
    DiscardRequest,
    DiscardSomeRequest,
    FindQuery,
    MoveRequest,
    PageQuery,
    PauseRequest,
    PeekQuery,
    ResubmitRequest,
    Sealed,
    SendRequest,
    StateQuery,
)

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

    def __init__(self, operator: Operator, token: str) -> None:
        self._operator = operator
        self._token = token.encode()
        self._free = REQUEST_COUNT_MAX

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_MAX_BYTES)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/send", self._send),
                web.get("/status", self._status),
                web.get("/signs", self._signs),
                web.get("/metrics", self._metrics),
                web.get("/state", self._state),
                web.get("/export", self._export, allow_head=False),
                web.get("/states", self._states, allow_head=False),
                web.post("/states/write", self._write_states),
                web.get("/messages", self._messages),
                web.get("/message", self._message),
                web.post("/message/trail", self._trail),
                web.post("/schedule/cancel", self._cancel),
                web.post("/schedule/now", self._make_due),
                web.get("/pending", self._pending),
                web.post("/pending/finish", self._finish),
                web.get("/dead-letters", self._dead_letters),
                web.post("/dead-letters/among", self._dead_among),
                web.get("/dead-letter", self._dead_letter),
                web.post("/dead-letters/resubmit", self._resubmit),
                web.post("/dead-letters/discard", self._discard),
                web.post("/dead-letters/discard-some", self._discard_some),
                web.get("/dead-letters/discarded", self._discarded),
                web.post("/dead-letters/restore", self._restore),
                web.post("/blocked", self._blocked),
                web.post("/queue/pause", self._pause),
                web.get("/streams", self._streams),
                web.get("/stream", self._stream, allow_head=False),
                web.post("/stream/unregister", self._unregister_stream),
                web.post("/stream/trim", self._trim_stream),
                web.post("/compact", self._compact),
                web.post("/seal", self._seal),
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
        given = request.headers.get("Authorization", "")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode("utf-8", "replace"), self._token):
            return _error(401, "Refused", "the token is missing or wrong; it is in the folder's control.json")
        return None

    # Routes

    async def _health(self, request: web.Request) -> web.Response:
        await self._operator.check()
        return _json({"healthy": True, "pid": os.getpid()})

    async def _send(self, request: web.Request) -> web.Response:
        asked = await _body(request, SendRequest)
        await self._operator.send(asked.queue, asked.messages, due=asked.due)
        return _json({"count": len(asked.messages)})

    async def _status(self, request: web.Request) -> web.Response:
        return _json(await self._operator.status())

    async def _signs(self, request: web.Request) -> web.Response:
        return _json(await self._operator.signs())

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=(await self._operator.metrics()).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _state(self, request: web.Request) -> web.Response:
        asked = _query(request, StateQuery)
        found = await self._operator.state(asked.type, asked.key, asked.kind)
        return _json({"state": None if found is None else msgspec.Raw(found)})

    async def _export(self, request: web.Request) -> web.StreamResponse:
        return await self._lines(request, self._operator.export(request.query.get("type", "")))

    async def _states(self, request: web.Request) -> web.StreamResponse:
        return await self._lines(request, self._operator.states(_query(request, StatesQuery).type))

    async def _write_states(self, request: web.Request) -> web.Response:
        return _json(await self._operator.write_states(await _body(request, StateWrites)))

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

    async def _messages(self, request: web.Request) -> web.Response:
        return _json(await self._operator.peek(_query(request, PeekQuery)))

    async def _message(self, request: web.Request) -> web.Response:
        return _json(await self._operator.find(_query(request, FindQuery)))

    async def _trail(self, request: web.Request) -> web.Response:
        return _json(await self._operator.trail(await _body(request, TrailQuery)))

    async def _cancel(self, request: web.Request) -> web.Response:
        asked = await _body(request, CancelRequest)
        return _json(await self._operator.cancel(asked.queue, asked.id, after=asked.after))

    async def _make_due(self, request: web.Request) -> web.Response:
        asked = await _body(request, CancelRequest)
        return _json(await self._operator.make_due(asked.queue, asked.id, after=asked.after))

    async def _pending(self, request: web.Request) -> web.Response:
        return _json(await self._operator.pending())

    async def _finish(self, request: web.Request) -> web.Response:
        return _json(await self._operator.finish((await _body(request, FinishRequest)).tx))

    async def _dead_letters(self, request: web.Request) -> web.Response:
        asked = _query(request, PageQuery)
        count_max = min(asked.count or BATCH_COUNT_MAX, BATCH_COUNT_MAX)
        page = await self._operator.dead_letters(asked.queue, after=asked.after, count_max=count_max, where=asked)
        return _json(page)

    async def _dead_among(self, request: web.Request) -> web.Response:
        asked = await _body(request, AmongQuery)
        return _json(await self._operator.dead_among(asked.queue, asked.ids))

    async def _dead_letter(self, request: web.Request) -> web.Response:
        asked = _query(request, PageQuery)
        return _json(await self._operator.dead_letter(asked.queue, asked.id, sequence=asked.sequence))

    async def _resubmit(self, request: web.Request) -> web.Response:
        asked = await _body(request, ResubmitRequest)
        if isinstance(asked.body, UnsetType):
            return _json(await self._operator.resubmit(asked.queue, asked.id, sequence=asked.sequence))
        if asked.id is None:
            raise web.HTTPBadRequest(reason="a body is for a single id")
        body = compact_json(asked.id, bytes(asked.body))
        return _json(await self._operator.resubmit(asked.queue, asked.id, body=body, sequence=asked.sequence))

    async def _discard(self, request: web.Request) -> web.Response:
        asked = await _body(request, DiscardRequest)
        good, number = asked.for_good, asked.sequence
        return _json(await self._operator.discard(asked.queue, asked.id, for_good=good, sequence=number))

    async def _discard_some(self, request: web.Request) -> web.Response:
        asked = await _body(request, DiscardSomeRequest)
        return _json(await self._operator.discard_some(asked.queue, asked.sequences, for_good=asked.for_good))

    async def _discarded(self, request: web.Request) -> web.Response:
        return _json(await self._operator.discarded(_query(request, PageQuery).queue))

    async def _restore(self, request: web.Request) -> web.Response:
        asked = await _body(request, MoveRequest)
        return _json(await self._operator.restore(asked.queue, asked.id))

    async def _blocked(self, request: web.Request) -> web.Response:
        return _json(await self._operator.blocked(await _body(request, BlockedQuery)))

    async def _pause(self, request: web.Request) -> web.Response:
        return _json(await self._operator.pause(await _body(request, PauseRequest)))

    async def _streams(self, request: web.Request) -> web.Response:
        return _json(await self._operator.streams())

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return await self._lines(request, self._operator.stream(_query(request, StreamQuery)))

    async def _unregister_stream(self, request: web.Request) -> web.Response:
        return _json(await self._operator.unregister_stream(await _body(request, UnregisterRequest)))

    async def _trim_stream(self, request: web.Request) -> web.Response:
        return _json(await self._operator.trim_stream(await _body(request, TrimRequest)))

    async def _compact(self, request: web.Request) -> web.Response:
        return _json(await self._operator.compact())

    async def _seal(self, request: web.Request) -> web.Response:
        return _json(Sealed(await self._operator.seal()))


@asynccontextmanager
async def serve_control(operator: Operator, folder: Path) -> AsyncIterator[int]:
    """Serve an operator on a port of loopback, and write its control file; the port.  The caller holds the folder."""
    token = secrets.token_urlsafe(32)
    async with serve_guarded(
        Control(operator, token).application(),
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


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            data = await request.read()
        return msgspec.json.decode(data, type=kind)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body did not arrive within {BODY_WITHIN_S:.0f} s") from None
    except (*DECODE_ERRORS, web.RequestPayloadError) as error:
        raise _bad(error) from error


def _query(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except DECODE_ERRORS as error:
        raise _bad(error) from error


def _bad(error: Exception) -> web.HTTPException:
    return web.HTTPBadRequest(reason=" ".join(str(error).split())[:200])


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(status: int, kind: str, text: str) -> web.Response:
    return _json({"kind": kind, "error": text}, status)
