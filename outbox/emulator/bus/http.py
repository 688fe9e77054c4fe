"""The HTTP side of the endpoint: the administration client, as one more dialect of `outbox.emulator.http`.

The administration client signs like any other: without a key every token is taken, but there must be one.  Faults over
HTTP are the control endpoint's, which wants the server's `control_token`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from urllib.parse import unquote

import msgspec

from outbox.emulator.bus.administration import Administration, Wrong
from outbox.emulator.bus.claims import check_signature, is_within, scope_of
from outbox.emulator.bus.transport import Endpoint
from outbox.emulator.dialect import Answer, Asked, Dropped
from outbox.errors import EngineStopped, OutboxError

KINDS = frozenset(("lost-reply", "refused", "throttled", "status", "delay", "reset"))
BODY_MAX_BYTES = 1 << 20
BODIES_MAX_BYTES = 64 << 20


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
