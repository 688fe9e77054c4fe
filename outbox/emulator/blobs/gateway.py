"""The way from requests to answers: access, faults, the operation, and its sync before the answer.

*Theory of operation.*  A request is admitted by its head alone, before its body is read.  Then its operation is done;
what it changes, it changes in one step of the loop.  Faults stand before and behind: a delay, a refusal or a broken
connection before anything happened; a pause or a lost reply after all of it did.  Nothing is answered before the
engine's gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from outbox.emulator.blobs.auth import Signatures
from outbox.emulator.blobs.catalog import http_date
from outbox.emulator.blobs.requests import BY_STATUS, Answer, Call, Rejection, check_understood, read_line
from outbox.emulator.dialect import Asked, Dropped
from outbox.emulator.faults import FaultRule, Faults, Meter
from outbox.engine.engine import Engine
from outbox.errors import EngineStopped

BODY_MAX_BYTES = 64 << 20
"""Of one request; the SDK puts larger blobs in blocks."""
BODIES_MAX_BYTES = 256 << 20
VERSION = "2026-02-06"
CLIENT_ID_LENGTH_MAX = 1_024

_BEFORE = frozenset(("refused", "throttled", "status", "reset"))
_BEHIND = frozenset(("lost-reply", "pause"))
_SEARCH = "blob.find"

Operation = Callable[[Call], Awaitable[Answer]]


class Usage(msgspec.Struct, frozen=True):
    """The use by one kind of operation."""

    count: int
    failed_count: int
    """Answered with a status of 400 or more, or not at all."""
    received_bytes: int
    """Of the bodies of requests."""
    sent_bytes: int
    """Of the bodies of answers."""


class Gateway:
    """Does what requests ask for."""

    body_max_bytes = BODY_MAX_BYTES
    bodies_max_bytes = BODIES_MAX_BYTES

    def __init__(
        self,
        engine: Engine,
        operations: Mapping[str, Operation],
        signatures: Signatures,
        faults: Faults,
        meter: Meter[Usage],
    ) -> None:
        self._engine = engine
        self._operations = operations
        self._signatures = signatures
        self._faults = faults
        self._meter = meter

    # What HTTP asks of a service

    def admit(self, method: str, raw_path: str, headers: Mapping[str, str]) -> Asked:
        """Let a request pass that names something and is signed; nothing of its body is needed for that.

        Raises:
            Rejection: 400, 404 or 405, it names nothing; 401 or 403, its signature does not fit.
        """
        call = Call(method, raw_path, headers)
        try:
            self._signatures.check(method, raw_path, headers)
            read_line(call, self._signatures.account)
            check_understood(call, self._engine.now_ms())
        except Rejection as rejected:
            self._meter.count(call.route.operation, rejected.status, received_bytes=0, sent_bytes=0)
            raise
        return Asked(partial(self._asked, call), method in ("GET", "HEAD"))

    def refusal(self, status: int, text: str) -> Rejection:
        """A refusal as this service says it."""
        return Rejection(BY_STATUS.get(status, "InvalidInput"), text)

    def stamp(self, answer: Answer, number: int, headers: Mapping[str, str]) -> None:
        """Add the headers that every answer has."""
        answer.headers["x-ms-request-id"] = f"00000000-0000-0000-0000-{number:012x}"
        version, client_id = headers.get("x-ms-version", VERSION), headers.get("x-ms-client-request-id", "")
        answer.headers["x-ms-version"] = version if version.isascii() and version.isprintable() else VERSION
        answer.headers["Date"] = http_date(self._engine.now_ms())
        if client_id and len(client_id) <= CLIENT_ID_LENGTH_MAX and client_id.isascii() and client_id.isprintable():
            answer.headers["x-ms-client-request-id"] = client_id

    # What is asked of it

    async def _asked(self, call: Call, body: bytes) -> Answer:
        """The answer to a request that was admitted, and whose body is there.

        Raises:
            Dropped: there is to be none.
        """
        call.body, answer = body, Answer(0)
        try:
            answer = await self._answered(call)
        except Rejection as rejected:
            answer = rejected.answer()
        except EngineStopped as stopped:
            answer = Rejection("ServerBusy", f"the engine has stopped: {stopped}").answer()
        finally:
            sent_bytes = len(answer.body) if isinstance(answer.body, bytes) else sum(map(len, answer.body))
            self._meter.count(call.route.operation, answer.status, received_bytes=len(body), sent_bytes=sent_bytes)
        return answer

    async def _answered(self, call: Call) -> Answer:
        behind = await self._before(call) if self._faults else None
        try:
            answer = await self._operations[call.route.operation](call)
        except Rejection as rejected:
            if behind is not None and behind.kind == "lost-reply":
                raise Dropped from rejected
            raise
        finally:
            await self._engine.core.gate()  # a refusal, too, shows what is in memory
        if behind is not None and behind.kind == "lost-reply":
            raise Dropped
        if behind is not None:
            await asyncio.sleep(behind.delay_s)
        return answer

    async def _before(self, call: Call) -> FaultRule | None:
        """Carry out the faults before a request takes effect; return the rule of the fault after it.

        Raises:
            Rejection: it is refused.
            Dropped: the connection breaks.
        """
        delay = self._ask(frozenset(("delay",)), call)
        if delay is not None:
            await asyncio.sleep(delay.delay_s)
        searches = frozenset(("stale-read",)) if call.route.operation == _SEARCH else frozenset()
        rule = self._ask(_BEFORE | _BEHIND | searches, call)
        if rule is None or rule.kind in _BEHIND:
            return rule
        if rule.kind == "stale-read":
            call.rule = rule
            return None
        raise broken(rule)

    def _ask(self, kinds: frozenset[str], call: Call) -> FaultRule | None:
        route, client = call.route, call.header("user-agent")
        return self._faults.ask(route.operation, kinds=kinds, where=route.container, key=route.blob, client=client)


def broken(rule: FaultRule) -> Exception:
    """How a request ends to which this happens."""
    if rule.kind == "reset":
        return Dropped()
    if rule.kind == "throttled":
        after = {"Retry-After": str(max(1, round(rule.retry_after_s)))} if rule.retry_after_s else {}
        return Rejection("ServerBusy", "throttled on demand", headers=after)
    if rule.kind == "status":
        code = rule.code or BY_STATUS.get(rule.status, "InternalError")
        return Rejection(code, "failed on demand", status=rule.status)
    return Rejection("AuthorizationFailure", "refused on demand")
