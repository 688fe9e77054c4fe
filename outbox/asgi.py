"""An application's HTTP entries as an ASGI application: alone under any server, or mounted in FastAPI or Starlette.

    bank = AsgiApp(app, backend)

    @asynccontextmanager
    async def lifespan(_):
        async with bank:
            yield

    api = FastAPI(lifespan=lifespan)
    api.mount("/bank", bank)

Alone it begins and ends with the server's lifespan.  What is mounted gets no lifespan of its own, so there it is
entered in the outer one.  Bodies have a limit and a time within which they have to arrive; how long a client may take
to read is the server's.  A client that hangs up after its body stops nothing, and gets the same response under the same
key.

Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from outbox.app import App
from outbox.errors import EngineStopped
from outbox.http import KEY_HEADER, Response, Unfit, problem
from outbox.http_entry import HttpEntry
from outbox.ports import Backend

log = logging.getLogger("outbox.http")

BODY_WITHIN_S = 30.0
BODIES_MAX_BYTES = 64 << 20
"""The bodies of all requests in progress; above it requests get 503."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiApp:
    """The HTTP entries of an application on a backend; `options` are those of `HttpEntry`.

    Use it as an async context manager, unless a server runs it alone.
    """

    def __init__(self, app: App, backend: Backend, **options: Any) -> None:
        self._made = app, backend, options
        self._entry: HttpEntry | None = None
        self.body_bytes = 0
        """The size of all bodies held."""

    async def __aenter__(self) -> Self:
        app, backend, options = self._made
        self._entry = await HttpEntry(app, backend, **options).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            await entry.drain()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise ValueError(f"{other!r} is no ASGI protocol that this application speaks")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Begin and end with the server."""
        await receive()
        try:
            await self.__aenter__()
        except Exception as error:
            log.exception("the application's HTTP entries cannot start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self.__aexit__(None, None, None)
        except Exception as error:
            log.exception("the application's HTTP entries did not end as they should")
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        parts: list[bytes] = []
        try:
            response = await self._answered(scope, receive, parts)
        except Unfit as unfit:
            response = unfit.response
        except _HungUp:
            return
        except EngineStopped:
            text = "the host is stopping; the same request again, under the same key, is safe"
            response = problem(503, "stopped", text)
        except Exception:
            log.exception("a request failed; this is a bug, please report it")
            response = problem(500, "failed", "the host failed on this request and logged why")
        finally:
            self.body_bytes -= sum(map(len, parts))
        body = response.body or b""
        headers = {"content-length": str(len(body)), **response.headers}
        encoded = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": encoded})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answered(self, scope: MutableMapping[str, Any], receive: Receive, parts: list[bytes]) -> Response:
        entry = self._entry
        if entry is None:
            text = "the HTTP entries are not open; enter them in the lifespan of the application around them"
            return problem(503, "not-started", text)
        headers = _headers(scope)
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                await self._read(receive, parts, entry.body_bytes_max)
        except TimeoutError:
            return problem(408, "too-slow", f"the body did not arrive within {BODY_WITHIN_S:.0f} s")
        return await entry.handle(scope["method"], _path(scope), headers, b"".join(parts))

    async def _read(self, receive: Receive, parts: list[bytes], size_max_bytes: int) -> None:
        """Read a body, counted in `body_bytes` until the request ends.

        Raises:
            Unfit: it is too large, or too many are being read.
        """
        size_bytes, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _HungUp
            part, has_more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size_bytes += len(part)
            self.body_bytes += len(part)
            if size_bytes > size_max_bytes:
                raise Unfit(413, "too-large", f"the body is over {size_max_bytes} bytes")
            if self.body_bytes > BODIES_MAX_BYTES:
                text = "too many bodies are being read; send the same request again, under the same key"
                raise Unfit(503, "try-again", text, retry_after_s=1)


class _HungUp(Exception):
    """The client has gone before its body was there: nothing has begun."""


def _headers(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """The headers of a request; of repeated ones the texts together, as RFC 9110 has it.

    Raises:
        Unfit: it has two idempotency keys.
    """
    found: dict[str, str] = {}
    for raw_name, raw_text in scope["headers"]:
        name, text = raw_name.decode("latin-1").lower(), raw_text.decode("latin-1")
        if name == KEY_HEADER and name in found:
            raise Unfit(400, "idempotency-key-unfit", "send one Idempotency-Key header")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _path(scope: MutableMapping[str, Any]) -> str:
    """The path below the place where this is mounted, as sent, with its query.

    Servers and frameworks differ in whether `path` still has what `root_path` names, and in whether there is a raw one.
    """
    root = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path")
    path = raw.partition(b"?")[0].decode("latin-1") if raw else quote(scope["path"], safe="/%:@!$&'()*+,;=~-._")
    for prefix in (root, quote(root)):
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :]
            break
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path or '/'}?{query}" if query else path or "/"
