"""The playground over HTTP, on loopback, for one player.

Every page in a browser on this machine can send requests to a port of loopback.  So whoever plays or looks needs the
token of the address that was printed; it stands behind the `#`, where browsers send it to nobody.  Requests of other
pages and for other names are refused before that.  The page itself is open: it is the same for everyone.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

import msgspec
from aiohttp import web

from outbox.errors import Refused
from outbox.ops.net.connection_guard import LOOPBACK, named_host, serve_guarded
from outbox.ops.play.session import Move, Session

PAGES = {
    "/": ("play.html", "text/html"),
    "/play.css": ("play.css", "text/css"),
    "/play.js": ("play.js", "text/javascript"),
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "server": "outbox",
}
CONNECTION_COUNT_MAX = 32
IDLE_MAX_S = 60.0
MOVE_MAX_BYTES = 1 << 10
LOOK_WITHIN_S = 20.0
"""How long a look waits for something new."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PlayServer:
    """One session, and the token that its player has."""

    def __init__(self, session: Session) -> None:
        self.token = secrets.token_urlsafe(18)
        self._session = session

    def application(self) -> web.Application:
        """The routes, behind the checks of name, page and token."""
        app = web.Application(client_max_size=MOVE_MAX_BYTES, middlewares=[self._guard])
        for path, (name, kind) in PAGES.items():
            body = (files("outbox.ops.play") / "page" / name).read_bytes()
            app.router.add_get(path, _page(body, kind))
        app.router.add_get("/look", self._look)
        app.router.add_post("/move", self._move)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = _refusal(request, self.token) or await handler(request)
        except web.HTTPException as error:
            response = problem(error.status, f"{error.reason}; the page is at /")
        response.headers.update(HEADERS)
        return response

    async def _look(self, request: web.Request) -> web.Response:
        """Answer with everything to show, once it is newer than the page's own."""
        seen = request.query.get("after", "-1")
        try:
            after = int(seen)
        except ValueError:
            return problem(400, f"after={seen[:40]!r} is no number; give the last revision, or leave it out")
        await self._session.wait_change(after, within_s=LOOK_WITHIN_S)
        return web.Response(body=msgspec.json.encode(self._session.show()), content_type="application/json")

    async def _move(self, request: web.Request) -> web.Response:
        """Make a move, and answer when every worker stands again."""
        if request.content_type != "application/json":
            return problem(415, "send a move as application/json")
        try:
            move = msgspec.json.decode(await request.read(), type=Move)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return problem(400, f"that is no move: {error}")
        try:
            await self._session.make(move)
        except Refused as error:
            return problem(409, str(error))
        return web.Response(body=msgspec.json.encode(self._session.show()), content_type="application/json")


def _page(body: bytes, kind: str) -> Handler:
    async def page(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return page


def problem(status: int, text: str) -> web.Response:
    """A refusal, for the page to show."""
    return web.Response(status=status, body=msgspec.json.encode({"error": text}), content_type="application/json")


def _refusal(request: web.Request, token: str) -> web.Response | None:
    """The refusal of a request for another name, of another page, or without the token."""
    hosts = request.headers.getall("host", [])
    if named_host(hosts) not in LOOPBACK:
        return problem(421, "this server has another name; use the address that `outbox play` printed")
    origin = request.headers.get("origin", "")
    if origin and origin != f"http://{hosts[0]}":
        return problem(403, "another page cannot play here; use the address that `outbox play` printed")
    if request.path in PAGES:
        return None
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode()):
        return problem(401, "the token is missing or of another run; open the address that `outbox play` printed")
    return None


@asynccontextmanager
async def serve_play(port: int) -> AsyncIterator[str]:
    """Serve a new session on a port of loopback (0: any free one); its address, with the token.

    Raises:
        OSError: the port cannot be used.
    """
    async with Session() as session:
        server = PlayServer(session)
        guarded = serve_guarded(
            server.application(),
            port,
            connection_count_max=CONNECTION_COUNT_MAX,
            idle_max_s=IDLE_MAX_S,
            shutdown_timeout=0.2,
        )
        async with guarded as served:
            yield f"http://127.0.0.1:{served}/#{server.token}"
