"""The way from HTTP requests to answers: access is settled before a body is read or gets room.

*Theory of operation.*  aiohttp parses and writes; a request comes here with its head alone.  Host header and signature
(or the control token) are checked first, and a connection that is refused there is closed.  Then the body is read, up
to a limit of its own and to what all bodies together may take; what is counted is what has come, so a client that
announces a body and sends none takes nothing from others.  aiohttp begins a request only when the client takes the
answer before it; here it has to be that all unread answers together leave room.  An answer in pieces is sent piece by
piece, each when the client has taken most of those before it.

How a refusal reads, and which headers every answer has, is each service's own (`dialect`).  Only what clients of these
services use is understood: no upgrades, no compression.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from outbox.emulator.connections import HEAD_MAX_BYTES, IDLE_MAX_S, Connection, Connections
from outbox.emulator.dialect import (
    BAD_REQUEST,
    BUSY,
    ERROR,
    FORBIDDEN,
    TOO_LARGE,
    UNAVAILABLE,
    Answer,
    Asked,
    Dialect,
    Dropped,
    Refusal,
)
from outbox.emulator.faults import PREFIX, Control

log = logging.getLogger(__name__)
_quiet = logging.getLogger("outbox.emulator.http.quiet")
_quiet.setLevel(logging.CRITICAL)  # any process of this machine can send nonsense; it is answered without a traceback

UNREAD_MAX_BYTES = 64 << 20
"""Of all answers that their clients have not read; more requests are throttled."""
LARGE_BYTES = 64 << 10
"""Answers of reads that are larger are throttled where there is no room among the unread any more."""
REQUEST_COUNT_MAX = 1_024
"""Requests that are being read or answered, those of clients that have gone among them."""
LINGER_S = 2.0
"""The time for reading the rest of a refused body, so that its client comes to read why."""
PIECE_BYTES = 256 << 10
"""The bytes of an answer that are handed on at a time."""
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE)
"""A Host header that is this machine: a page whose name was rebound to it is not let in."""

_UNREAD = "too many answers were not read; read them, then ask again"
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Http:
    """Answers the requests of all connections of one endpoint."""

    def __init__(self, dialect: Dialect, control: Control, connections: Connections, *, is_local: bool) -> None:
        """`is_local` says that only loopback can reach it, so that every Host header has to name that."""
        self._dialect = dialect
        self._control = control
        self._connections = connections
        self._is_local = is_local
        self._request_count = self._under_way_count = 0
        self.bodies_max_bytes = dialect.bodies_max_bytes
        self.body_bytes = 0
        """Of the bodies that are held."""
        self.server = web.Server(
            self.handle,
            access_log=None,
            logger=_quiet,
            auto_decompress=False,
            max_line_size=HEAD_MAX_BYTES,
            max_field_size=HEAD_MAX_BYTES,
            keepalive_timeout=2 * IDLE_MAX_S,  # never: the connection looks at the time
            tcp_keepalive=False,
            lingering_time=LINGER_S,
        )
        """The factory of HTTP protocols, one for each connection."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; aiohttp answers malformed bytes."""
        connection = self._connections.by_speaker.get(request.protocol)
        if connection is None:  # the client went before its request was begun
            return web.Response(status=UNAVAILABLE)
        connection.begin()
        self._under_way_count += 1
        try:
            return await self._answer(request, connection)
        except Dropped:
            connection.reset()
            return web.Response(status=UNAVAILABLE)  # which is not read
        finally:
            self._under_way_count -= 1

    async def _answer(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        try:
            asked = self._admitted(request)
        except Refusal as refused:
            return await self._response(refused.answer(), request, connection, is_last=True)
        body = b""
        try:
            if request.body_exists:
                body = await self._body(request, connection)
            connection.begin_answer()
            answer = await asked.respond(body)
            is_large = isinstance(answer.body, bytes) and len(answer.body) > LARGE_BYTES
            if is_large and asked.is_read and self._connections.unread_bytes > UNREAD_MAX_BYTES:
                raise self._dialect.refusal(BUSY, _UNREAD)  # others that asked beside it may have filled the room
        except Refusal as refused:
            answer = refused.answer()
        except (Dropped, ConnectionError):
            raise
        except Exception:
            log.exception("a request failed; this is a bug, please report it")
            answer = self._dialect.refusal(ERROR, "the emulator failed on this request and logged why").answer()
        finally:
            self.body_bytes -= len(body)
        return await self._response(answer, request, connection, is_last=not request.content.is_eof())

    def _admitted(self, request: web.BaseRequest) -> Asked:
        """Admit a request by its head.

        Raises:
            Refusal: it may not, or there is no room.
        """
        method, path, headers, refusal = request.method, request.raw_path, request.headers, self._dialect.refusal
        hosts = headers.getall("Host", ())
        if self._is_local and (len(hosts) != 1 or _LOOPBACK.fullmatch(hosts[0]) is None):
            raise refusal(FORBIDDEN, "the Host header must be a loopback address")
        if not path.startswith("/"):
            raise refusal(BAD_REQUEST, "the first line must name a path")
        if len(headers.getall("Authorization", ())) > 1:
            raise refusal(BAD_REQUEST, "the header Authorization is there twice")
        if path.startswith(PREFIX):
            self._control.check(headers)
            return Asked(partial(self._control.answer, method, path))
        asked = self._dialect.admit(method, path, headers)
        if self._under_way_count > REQUEST_COUNT_MAX:
            raise refusal(UNAVAILABLE, f"{REQUEST_COUNT_MAX} requests are under way; try again")
        if self._connections.unread_bytes > UNREAD_MAX_BYTES:
            raise refusal(BUSY, _UNREAD)
        return asked

    async def _body(self, request: web.BaseRequest, connection: Connection) -> bytes:
        """A body as far as it may go; it counts in `body_bytes` until its request is answered.

        Raises:
            Refusal: it is not what its headers say, or there is no room for it.
        """
        refusal, most_bytes = self._dialect.refusal, self._dialect.body_max_bytes
        if (request.content_length or 0) > most_bytes:
            raise refusal(TOO_LARGE, f"a body of {request.content_length} bytes is over {most_bytes}")
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        content, parts, size_bytes = request.content, list[bytes](), 0
        try:
            connection.read(content)
            while not content.at_eof():
                part = content.read_nowait() if content.is_eof() else await content.readany()
                parts.append(part)
                size_bytes += len(part)
                self.body_bytes += len(part)
                if size_bytes > most_bytes:
                    raise refusal(TOO_LARGE, f"a body is over {most_bytes} bytes")
                if self.body_bytes > self.bodies_max_bytes:
                    raise refusal(BUSY, "too many bodies are being read")
        except (web.RequestPayloadError, ConnectionError) as error:
            self.body_bytes -= size_bytes
            raise refusal(BAD_REQUEST, "the body is not what its headers say") from error
        except BaseException:
            self.body_bytes -= size_bytes
            raise
        return b"".join(parts)

    async def _response(
        self, answer: Answer, request: web.BaseRequest, connection: Connection, *, is_last: bool
    ) -> web.StreamResponse:
        self._request_count += 1
        self._dialect.stamp(answer, self._request_count, request.headers)
        head: dict[str, Any] = {
            "status": answer.status,
            "reason": _REASONS.get(answer.status, "Answer"),
            "headers": answer.headers,
        }
        body, is_last = answer.body, is_last or not request.keep_alive
        if isinstance(body, bytes):
            response = web.Response(**head, body=body or None)
            if connection.finish(is_last=is_last):
                response.force_close()
            return response
        stream = web.StreamResponse(**head)
        if is_last:
            stream.force_close()
        stream.content_length = sum(map(len, body))
        await stream.prepare(request)
        for piece in body:
            view = memoryview(piece)
            for at in range(0, len(view), PIECE_BYTES):  # as fast as the client takes it
                await stream.write(view[at : at + PIECE_BYTES])
        await stream.write_eof()
        if connection.finish(is_last=is_last):  # as where the client has ended its side meanwhile
            stream.force_close()
        return stream
