"""A Service Bus on the embedded engine: an AMQP 1.0 server on asyncio, for development and tests.

The real SDK talks to it through its development-emulator connection string, on any port.  It listens on loopback; on
any other address it insists on a key, because without one every token is taken.

The administration client talks HTTP to the same port, in one more dialect of `outbox.emulator.http`.  It signs like any
other: without a key every token is taken, but there must be one.  Faults over HTTP are the control endpoint's, which
wants the server's `control_token`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import msgspec

from outbox.emulator.amqp.limits import MESSAGE_SIZE_MAX_BYTES, POOL_MAX_BYTES, Limits, Pool
from outbox.emulator.bus.administration import Administration, Wrong
from outbox.emulator.bus.peer import Peer
from outbox.emulator.bus.requests import KEY_NAME, check_signature, is_within, scope_of
from outbox.emulator.bus.transport import Endpoint, Room, Writer, loop_time
from outbox.emulator.connections import Connections, is_loopback, usual_count_max
from outbox.emulator.dialect import Answer, Asked, Dropped
from outbox.emulator.faults import Control, Faults
from outbox.engine.engine import Engine
from outbox.errors import EngineStopped, OutboxError, Refused
from outbox.log_throttle import LogThrottle

log = logging.getLogger(__name__)

HTTP_COUNT_MAX = 64
TIME_CHECK_S = 0.2
CLOSE_WITHIN_S = 2.0
LOG_EVERY_MS = 5_000
"""The time between two lines of one kind about a connection; the second counts those left out."""
_HTTP_FIRST = frozenset(b"GPDHOC")  # GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS, CONNECT
_TLS_FIRST = 0x16
KINDS = frozenset(("lost-reply", "refused", "throttled", "status", "delay", "reset"))
BODY_MAX_BYTES = 1 << 20
BODIES_MAX_BYTES = 64 << 20


class ServiceBusServer:
    """Serve an engine's queues and topics over AMQP 1.0.  Use it as an async context manager."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        message_size_max_bytes: int = MESSAGE_SIZE_MAX_BYTES,
        limits: Limits | None = None,
        connection_count_max: int | None = None,
        faults: Faults | None = None,
        control_token: str | None = None,
    ) -> None:
        """Take the engine to serve; port 0 lets the system choose one.

        Without a `connection_count_max` it is 512, or a quarter of the descriptors that the process may have open if
        that is less: the log must find one for its next file.

        Raises:
            Refused: a host that others can reach, without a key.
        """
        if key is None and not is_loopback(host):
            raise Refused(f"{host} can be reached by others; give key=... so that tokens are checked, or use 127.0.0.1")
        self.engine = engine
        self.host = host
        self.port = port
        self.key = key
        self.limits = replace(limits or Limits(), message_size_max_bytes=message_size_max_bytes)
        self.pool = Pool(max(POOL_MAX_BYTES, 16 * message_size_max_bytes))
        """The pool of unfinished messages and links of all connections."""
        self.log_lines = LogThrottle(LOG_EVERY_MS, engine.now_ms)
        """The throttle of lines about connections: a client that connects in a loop does not fill the log."""
        self.faults = Faults() if faults is None else faults
        """The faults; rules may be installed and removed while clients are connected."""
        self.control_token = control_token or secrets.token_urlsafe(32)
        """The token that allows fault rules over HTTP."""
        self._endpoint = Endpoint(engine, self.limits, self.pool, key, self.faults, self.log_lines)
        count_max = connection_count_max or usual_count_max()
        self._peers: Room[Peer] = Room(count_max)
        self._listener = Connections(
            Gateway(self._endpoint),
            Control(Uncontrolled, self.faults, None, self.control_token),
            is_local=is_loopback(host),
            count_max=min(HTTP_COUNT_MAX, count_max),
            upkeep=lambda: None,
        )
        self._writer = Writer(engine)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connection_string(self) -> str:
        """The connection string for the SDK's `from_connection_string`.  It holds the key, if there is one."""
        return (
            f"Endpoint=sb://{self.host}:{self.port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={self.key or 'not-checked'};UseDevelopmentEmulator=true;"
        )

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.port = await self._listener.start(
            self.host,
            self.port,
            lambda: Front(Peer(self._endpoint, self._peers, self._writer), self._listener, self.log_lines),
        )
        self._tasks = [
            loop.create_task(self._keep_time(), name="service bus timekeeper"),
            loop.create_task(self._write_answers(), name="service bus writer"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.stop()
        for peer in self._peers:
            peer.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._peers.deserted.wait()
        for peer in self._peers:
            peer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_answers(self) -> None:
        try:
            await self._writer.run()
        except EngineStopped as stopped:
            log.error("service bus stopped with its engine", extra={"reason": str(stopped)})
            for peer in self._peers:
                peer.transport.abort()

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TIME_CHECK_S)
            now_s = loop_time()
            for peer in self._peers:
                peer.check_time(now_s)


class Front(asyncio.Protocol):
    """Stands before a connection until its first byte: AMQP goes to its peer, HTTP to the administration.

    A silent client is closed by the peer's own time limit; TLS is not spoken.
    """

    def __init__(self, peer: Peer, http: Connections, log_lines: LogThrottle) -> None:
        self._peer = peer
        self._http = http
        self._log_lines = log_lines
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        transport, peer = self._transport, self._peer
        assert transport is not None
        if data[0] in _HTTP_FIRST:
            peer.leave()
            connection = self._http()
            transport.set_protocol(connection)
            connection.connection_made(transport)
            if not transport.is_closing():
                connection.data_received(data)
            return
        if data[0] == _TLS_FIRST and self._log_lines.is_due("tls"):
            log.warning("a client speaks TLS to the Service Bus endpoint, which is plain; see its documentation")
        transport.set_protocol(peer)
        peer.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.connection_lost(error)


class Uncontrolled(Wrong):
    """A refusal of the control endpoint, in JSON."""

    def answer(self) -> Answer:
        return Answer(self.status, {"Content-Type": "application/json"}, msgspec.json.encode({"error": str(self)}))


class Gateway:
    """Requests of the administration client in, answers out, behind the engine's gate."""

    body_max_bytes = BODY_MAX_BYTES
    bodies_max_bytes = BODIES_MAX_BYTES
    refusal = Wrong

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._administration = Administration(endpoint.engine)

    def admit(self, method: str, raw_path: str, headers: Mapping[str, str]) -> Asked:
        """Let a request pass that is signed.

        Raises:
            Wrong: 401.
        """
        if not self._is_signed(headers.get("Authorization", ""), unquote(raw_path.partition("?")[0])):
            raise Wrong(401, "the token is not valid; check the key and its expiry")
        return Asked(partial(self._asked, method, raw_path, headers), method == "GET")

    def stamp(self, answer: Answer, number: int, headers: Mapping[str, str]) -> None:
        """Add nothing: an answer has all of its headers."""

    def _is_signed(self, token: str, path: str) -> bool:
        if self._endpoint.key is None:
            return token.partition(" ")[0] in ("SharedAccessSignature", "Bearer")
        is_valid = check_signature(token, self._endpoint.key) > self._endpoint.engine.now_ms()
        return is_valid and is_within(path, scope_of(token))

    async def _asked(self, method: str, raw_path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a request that was admitted.

        Raises:
            Wrong: it is refused.
            Dropped: there is to be none.
        """
        is_lost = await self._fail(method, raw_path)
        self._administration.origin = f"http://{headers.get('Host', '')}"
        query, update = raw_path.partition("?")[2], headers.get("If-Match", "") == "*"
        try:
            reply = self._administration.answer(method, raw_path, query, body, update=update)
            await self._endpoint.engine.core.gate()
        except OutboxError as error:
            raise Wrong(503 if isinstance(error, EngineStopped) else 400, str(error)) from error
        if is_lost:
            raise Dropped
        return reply

    async def _fail(self, method: str, raw_path: str) -> bool:
        """Carry out the fault due before a request is done; whether its answer is to be lost.

        Raises:
            Wrong: it is refused.
            Dropped: the connection breaks.
        """
        faults, path = self._endpoint.faults, unquote(raw_path.partition("?")[0]).strip("/")
        rule = faults.ask(f"admin/{method.lower()}", kinds=KINDS, where=path) if faults else None
        if rule is None or rule.kind == "lost-reply":
            return rule is not None
        if rule.kind == "delay":
            await asyncio.sleep(rule.delay_s)
            return False
        if rule.kind == "reset":
            raise Dropped
        status = {"throttled": 429, "status": rule.status}.get(rule.kind, 403)
        raise Wrong(status, f"an installed fault rule ({rule.kind}) refuses this", retry_after_s=rule.retry_after_s)
