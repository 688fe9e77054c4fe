"""HTTP requests to answers: who may ask is settled before anything of a body is read or room is taken for it.

*Theory of operation.*  aiohttp parses and writes; a request comes here with its head alone.  Host header and signature
(or the control token) are checked first, and a connection that is refused there is closed.  Then the body is read, up
to a limit of its own and to what all bodies together may take; what is counted is what has come, so a client that
announces a body and sends none takes nothing from others.  aiohttp begins a request only when the client takes the
answer before it; here it has to be that all unread answers together leave room.

Only what clients of this service use is understood: no upgrades, no compression.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

from aiohttp import web

from outbox.emulator.cosmos.answers import (
    ERROR,
    FORBIDDEN,
    THROTTLED,
    TOO_LARGE,
    UNAVAILABLE,
    Answer,
    Rejection,
    bad,
)
from outbox.emulator.cosmos.connections import HEAD_MAX_BYTES, IDLE_MAX_S, Connection, Connections
from outbox.emulator.cosmos.control import PREFIX, Control
from outbox.emulator.cosmos.gateway import Dropped, Gateway
from outbox.emulator.cosmos.requests import Call

log = logging.getLogger(__name__)
_quiet = logging.getLogger("outbox.cosmos.http")
_quiet.setLevel(logging.CRITICAL)  # any process of this machine can send nonsense; it is answered without a traceback

BODY_MAX_BYTES = 4 << 20
BODIES_MAX_BYTES = 64 << 20
"""Of all requests that are being read or answered; more are throttled."""
UNREAD_MAX_BYTES = 64 << 20
"""Of all answers that their clients have not read; more requests are throttled."""
LARGE_BYTES = 64 << 10
"""Answers of reads that are larger are throttled where there is no room among the unread any more."""
REQUEST_COUNT_MAX = 1_024
"""Requests that are being read or answered, those of clients that have gone among them."""
LINGER_S = 2.0
"""How long what a client still sends of a body that is refused is read, so that it comes to read why."""
LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))

_UNREAD = "too many answers were not read; read them, then ask again"
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_JSON = "application/json"

Respond = Callable[[bytes], Awaitable[Answer]]


class Http:
    """Answers the requests of all connections of one endpoint."""

    def __init__(self, gateway: Gateway, control: Control, connections: Connections, *, is_local: bool) -> None:
        """`is_local` says that only loopback can reach it, so that every Host header has to name that."""
        self._gateway = gateway
        self._control = control
        self._connections = connections
        self._is_local = is_local
        self._request_count = self._under_way_count = 0
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
        """What makes speakers of HTTP, one for each connection."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; what is answered to the network's nonsense is aiohttp's."""
        connection = self._connections.of(request.protocol)
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

    async def _answer(self, request: web.BaseRequest, connection: Connection) -> web.Response:
        try:
            respond = self._admitted(request)
        except Rejection as rejected:
            return self._response(rejected.answer(), request, connection, is_last=True)
        body = b""
        try:
            if request.body_exists:
                body = await self._body(request, connection)
            connection.begin_answer()
            answer = await respond(body)
        except Rejection as rejected:
            answer = rejected.answer()
        except (Dropped, ConnectionError):
            raise
        except Exception:
            log.exception("a request failed; this is a bug, please report it")
            answer = Rejection(ERROR, "the emulator failed on this request and logged why").answer()
        finally:
            self.body_bytes -= len(body)
        return self._response(answer, request, connection, is_last=not request.content.is_eof())

    def _admitted(self, request: web.BaseRequest) -> Respond:
        """What answers a request whose sender may ask.

        Raises:
            Rejection: it may not, or there is no room.
        """
        method, path, headers = request.method, request.raw_path, request.headers
        hosts = headers.getall("Host", ())
        if self._is_local and (len(hosts) != 1 or not names_loopback(hosts[0])):
            raise Rejection(FORBIDDEN, "the Host header must be a loopback address")
        if not path.startswith("/"):
            raise bad("the first line must name a path")
        if len(headers.getall("Authorization", ())) > 1:
            raise bad("the header Authorization is there twice")
        if path.startswith(PREFIX):
            self._control.check(headers)
            return partial(self._controlled, method, path)
        call = Call(method, path, headers, b"")
        self._gateway.admit(call)
        if self._under_way_count > REQUEST_COUNT_MAX:
            raise Rejection(UNAVAILABLE, f"{REQUEST_COUNT_MAX} requests are under way; try again")
        if self._connections.unread_bytes > UNREAD_MAX_BYTES:
            raise Rejection(THROTTLED, _UNREAD)
        return partial(self._asked, call)

    async def _controlled(self, method: str, path: str, body: bytes) -> Answer:
        return self._control.answer(method, path, body)

    async def _asked(self, call: Call, body: bytes) -> Answer:
        call.body = body
        answer = await self._gateway.answer(call)
        is_read = call.method == "GET" or call.route.operation == "query"  # who writes has to have the answer
        if is_read and len(answer.body) > LARGE_BYTES and self._connections.unread_bytes > UNREAD_MAX_BYTES:
            raise Rejection(THROTTLED, _UNREAD)  # others that asked beside it have filled the room
        return answer

    async def _body(self, request: web.BaseRequest, connection: Connection) -> bytes:
        """A body as far as it may go; it counts in `body_bytes` until its request is answered.

        Raises:
            Rejection: 400, it is not what its headers say; 413 or 429, there is no room for it.
        """
        if (request.content_length or 0) > BODY_MAX_BYTES:
            raise Rejection(TOO_LARGE, f"a body of {request.content_length} bytes is over {BODY_MAX_BYTES}")
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
                if size_bytes > BODY_MAX_BYTES:
                    raise Rejection(TOO_LARGE, f"a body is over {BODY_MAX_BYTES} bytes")
                if self.body_bytes > BODIES_MAX_BYTES:
                    raise Rejection(THROTTLED, "too many bodies are being read")
        except (web.RequestPayloadError, ConnectionError) as error:
            self.body_bytes -= size_bytes
            raise bad("the body is not what its headers say") from error
        except BaseException:
            self.body_bytes -= size_bytes
            raise
        return b"".join(parts)

    def _response(
        self, answer: Answer, request: web.BaseRequest, connection: Connection, *, is_last: bool
    ) -> web.Response:
        self._request_count += 1
        headers = answer.headers
        headers["x-ms-activity-id"] = f"00000000-0000-0000-0000-{self._request_count:012x}"
        if answer.body:
            headers["Content-Type"] = _JSON
        reason = _REASONS.get(answer.status, "Answer")
        response = web.Response(status=answer.status, reason=reason, headers=headers, body=answer.body or None)
        if connection.finish(is_last=is_last or not request.keep_alive):
            response.force_close()
        return response


def names_loopback(host: str) -> bool:
    """Whether a request's Host is this machine: a page whose name was rebound to it is not let in."""
    name, colon, port = host.lower().rpartition(":") if not host.endswith("]") else (host.lower(), "", "")
    return (name if colon else host.lower()) in LOOPBACK and (not colon or port.isdecimal())
