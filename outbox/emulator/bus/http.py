"""The HTTP side of the endpoint: the administration client, and the control endpoint for faults.

    GET, POST, DELETE  /_outbox/faults    the rules and what fired; one rule or an array; all, or ?id=N
    anything else                         the administration client

Every request names a loopback Host while the endpoint listens there, so that a page in a browser that had its name
rebound gets nothing.  The administration client signs like any other (without a key every token is taken, but there
must be one); the control endpoint wants the server's `control_token` as a bearer token, compared in constant time.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from urllib.parse import unquote

import msgspec
from aiohttp import web

from outbox.emulator.bus import atom
from outbox.emulator.bus.administration import Administration, Reply
from outbox.emulator.bus.claims import check_signature, is_within, scope_of
from outbox.emulator.bus.transport import Endpoint
from outbox.emulator.faults import FaultRule
from outbox.emulator.http import LOOPBACK
from outbox.errors import EngineStopped, OutboxError

log = logging.getLogger(__name__)
_quiet = logging.getLogger("outbox.servicebus.http")
_quiet.setLevel(logging.CRITICAL)  # any process of this machine can send nonsense; it is answered without a traceback

CONTROL = "/_outbox/faults"
KINDS = frozenset(("lost-reply", "refused", "throttled", "status", "delay", "reset"))
LINE_MAX_BYTES = 16 << 10
BODY_WITHIN_S = 30.0
IDLE_MAX_S = 15.0
REQUEST_COUNT_MAX = 64
_XML = "application/atom+xml"


def http_server(endpoint: Endpoint) -> web.Server:
    """The factory of protocols for HTTP connections."""
    return web.Server(
        Http(endpoint).handle,
        access_log=None,
        logger=_quiet,
        auto_decompress=False,
        max_line_size=LINE_MAX_BYTES,
        max_field_size=LINE_MAX_BYTES,
        keepalive_timeout=IDLE_MAX_S,
        handler_cancellation=True,
    )


class Http:
    """Requests in, answers out, behind the engine's gate."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._engine = endpoint.engine
        self._administration = Administration(endpoint.engine)
        self._free = REQUEST_COUNT_MAX

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if not self._free:
            return _respond(Reply(503, atom.error(503, f"{REQUEST_COUNT_MAX} requests are under way; try again")))
        self._free -= 1
        try:
            return await self._answer(request)
        except TimeoutError:
            return _respond(Reply(408, atom.error(408, f"the body did not arrive within {BODY_WITHIN_S:g} s")))
        except web.HTTPException as error:
            return _respond(Reply(error.status, atom.error(error.status, error.reason)))
        except EngineStopped as error:
            return _respond(Reply(503, atom.error(503, str(error))))
        except OutboxError as error:
            return _respond(Reply(400, atom.error(400, str(error))))
        except Exception:
            log.exception("an administration request failed; this is a bug, please report it")
            return _respond(Reply(500, atom.error(500, "the server failed on this; its log has the details")))
        finally:
            self._free += 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._is_host_known(request):
            return _last(_respond(Reply(403, atom.error(403, "the Host header must be a loopback address"))))
        raw_path, token = request.rel_url.raw_path, request.headers.get("Authorization", "")
        if raw_path == CONTROL and not self._is_controller(token):
            return _last(_json(401, {"error": "the token is missing or wrong; it is the server's control_token"}))
        if raw_path != CONTROL and not self._is_signed(token, unquote(raw_path)):
            return _last(_respond(Reply(401, atom.error(401, "the token is not valid; check the key and its expiry"))))
        async with asyncio.timeout(BODY_WITHIN_S):  # only now: the server reads no body for a stranger
            body = await request.read()
        if raw_path == CONTROL:
            return self._control(request, body)
        rule = self._fault(request.method, raw_path)
        if rule is not None and (refused := await self._refusal(request, rule)) is not None:
            return refused
        self._administration.origin = f"http://{request.headers.get('Host', '')}"
        update = request.headers.get("If-Match", "") == "*"
        query = request.rel_url.raw_query_string
        reply = self._administration.answer(request.method, raw_path, query, body, update=update)
        await self._engine.core.gate()
        if rule is not None and rule.kind == "lost-reply" and request.transport is not None:
            request.transport.abort()
        return _respond(reply)

    def _is_host_known(self, request: web.BaseRequest) -> bool:
        hosts = request.headers.getall("Host", [])
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if colon and not port.isdecimal():
            return False
        return not self._endpoint.is_loopback or (name if colon else host) in LOOPBACK

    def _is_signed(self, token: str, path: str) -> bool:
        if self._endpoint.key is None:
            return token.partition(" ")[0] in ("SharedAccessSignature", "Bearer")
        is_valid = check_signature(token, self._endpoint.key) > self._engine.now_ms()
        return is_valid and is_within(path, scope_of(token))

    def _is_controller(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        expected = self._endpoint.control_token.encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode("utf-8", "replace"), expected)

    # Faults

    def _fault(self, method: str, raw_path: str) -> FaultRule | None:
        faults, path = self._endpoint.faults, unquote(raw_path).strip("/")
        return faults.ask(f"admin/{method.lower()}", kinds=KINDS, where=path) if faults else None

    async def _refusal(self, request: web.BaseRequest, rule: FaultRule) -> web.StreamResponse | None:
        """The answer of a fault in place of the request's; None where the request is done all the same."""
        if rule.kind == "delay":
            await asyncio.sleep(rule.delay_s)
        if rule.kind in ("delay", "lost-reply"):
            return None
        if rule.kind == "reset" and request.transport is not None:
            request.transport.abort()
        status = {"throttled": 429, "status": rule.status}.get(rule.kind, 403)
        refused = _respond(Reply(status, atom.error(status, f"an installed fault rule ({rule.kind}) refuses this")))
        if rule.retry_after_s:
            refused.headers["Retry-After"] = f"{rule.retry_after_s:g}"
        return refused

    def _control(self, request: web.BaseRequest, body: bytes) -> web.Response:
        if request.method not in ("GET", "POST", "DELETE"):
            return _json(405, {"error": f"{request.method[:20]} is not there; use GET, POST or DELETE"})
        try:
            status, found = self._endpoint.faults.control(request.method, request.rel_url.raw_query_string, body)
        except (ValueError, LookupError) as error:
            return _json(400 if isinstance(error, ValueError) else 404, {"error": str(error)})
        return web.Response(body=found, status=status, content_type="application/json")


def _last(response: web.Response) -> web.Response:
    """An answer that ends its connection: who may not ask gets one for each."""
    response.force_close()
    return response


def _json(status: int, value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _respond(reply: Reply) -> web.Response:
    return web.Response(body=reply.body.encode(), status=reply.status, content_type=_XML, charset="utf-8")
