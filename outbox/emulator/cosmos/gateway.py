"""The way from requests to answers: access, faults, the operation, and its sync before the answer.

*Theory of operation.*  A request is admitted by its head alone, before its body is read.  Then its operation is
prepared (read, checked, its container found) and applied in one step of the loop.  Faults stand between and behind: a
delay, a refusal or a broken connection before anything happened, a lost reply after all of it did.  Nothing is answered
before the engine's gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from outbox.emulator import dialect
from outbox.emulator.cosmos.auth import check_signature
from outbox.emulator.cosmos.charges import Usage
from outbox.emulator.cosmos.requests import Call, Prepared, check_understood, route_of
from outbox.emulator.cosmos.store import Do, Store
from outbox.emulator.cosmos.wire import (
    FORBIDDEN,
    THROTTLED,
    UNAVAILABLE,
    Answer,
    Rejection,
)
from outbox.emulator.dialect import Asked, Dropped
from outbox.emulator.faults import FaultRule, Faults, Meter
from outbox.errors import EngineStopped

_BEFORE = frozenset(("refused", "throttled", "status", "reset", "lost-reply"))
_OF_READS = _BEFORE | {"stale-read"}
_READS = frozenset(("item.read", "query", "feed"))

BODY_MAX_BYTES = 4 << 20
BODIES_MAX_BYTES = 64 << 20


class Gateway:
    """Does what requests ask for."""

    body_max_bytes = BODY_MAX_BYTES
    bodies_max_bytes = BODIES_MAX_BYTES
    refusal = Rejection

    def __init__(
        self,
        store: Store,
        operations: Mapping[str, Do],
        key: bytes,
        faults: Faults,
        meter: Meter[Usage],
    ) -> None:
        self._store = store
        self._operations = operations
        self._key = key
        self._faults = faults
        self._meter = meter

    def admit(self, method: str, raw_path: str, headers: Mapping[str, str]) -> Asked:
        """Let a request pass that names something and is signed; nothing of its body is needed for that.

        Raises:
            Rejection: 400 or 405, it names nothing; 401, its signature does not fit.
        """
        call = Call(method, raw_path, headers, b"")
        try:
            call.route = route = route_of(call.method, call.raw_path, call.headers)
            check_signature(
                self._key,
                call.header("authorization"),
                call.method,
                route.kind,
                route.links,
                call.header("x-ms-date"),
                call.header("date"),
            )
        except Rejection as rejected:
            self._meter.count(call.route.operation, rejected.status, charge_ru=1.0)
            raise
        return Asked(partial(self._asked, call), call.method == "GET" or call.route.operation == "query")

    def stamp(self, answer: dialect.Answer, number: int, headers: Mapping[str, str]) -> None:
        """Add the headers that every answer has."""
        answer.headers["x-ms-activity-id"] = f"00000000-0000-0000-0000-{number:012x}"
        if answer.body:
            answer.headers["Content-Type"] = "application/json"

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
            answer = Rejection(UNAVAILABLE, f"the engine has stopped: {stopped}").answer()
        finally:
            self._meter.count(call.route.operation, answer.status, charge_ru=answer.charge_ru)
        headers, container = answer.headers, call.container
        headers["x-ms-request-charge"] = f"{answer.charge_ru:.2f}"
        if container is not None:
            lsn = container.lsn if call.lsn is None else call.lsn
            headers["x-ms-session-token"] = f"0:-1#{lsn}"
            headers["x-ms-alt-content-path"] = container.path
            headers["x-ms-documentdb-partitionkeyrangeid"] = "0"
            headers["lsn"] = str(lsn)
        return answer

    async def _answered(self, call: Call) -> Answer:
        check_understood(call)
        prepared = self._prepared(call)
        rule = None
        if self._faults:
            delay = self._ask(("delay",), call, prepared)
            if delay is not None:
                await asyncio.sleep(delay.delay_s)
                prepared = self._prepared(call)  # what it is about may be gone by now
            rule = self._fault(call, prepared)
        try:
            answer = prepared.apply(call)
            if not isinstance(answer, Answer):
                answer = await answer
            if call.container is not None and call.lsn is None:
                call.lsn = call.container.lsn  # others may write while this waits for the gate
        except Rejection as rejected:
            answer = rejected.answer()
        finally:
            await self._store.engine.core.gate()  # a refusal, too, shows what is in memory
        if rule is not None and rule.kind == "lost-reply":
            raise Dropped
        return answer

    def _prepared(self, call: Call) -> Prepared:
        """The operation of a call as it can be done now.

        A path by resource ids gets the names of its database and container, by which faults know them.

        Raises:
            Rejection: it cannot be done.
        """
        if call.route.rids:
            names = self._store.catalog.names_of(call.route.rids)
            call.route = replace(call.route, rids=()) if names is None else replace(call.route, names=names)
        return self._operations[call.route.operation](self._store, call)

    def _ask(self, kinds: Collection[str], call: Call, prepared: Prepared) -> FaultRule | None:
        return self._faults.ask(
            call.route.operation,
            kinds=kinds,
            where="/".join(call.route.names[:2]),
            key=prepared.key,
            client=call.header("user-agent"),
        )

    def _fault(self, call: Call, prepared: Prepared) -> FaultRule | None:
        """The fault due for an operation before it is applied.

        Raises:
            Rejection: it is refused.
            Dropped: the connection breaks.
        """
        rule = self._ask(_OF_READS if call.route.operation in _READS else _BEFORE, call, prepared)
        if rule is None or rule.kind == "lost-reply":
            return rule
        if rule.kind == "stale-read" or rule.batch_index is not None:
            call.rule = rule
            return rule
        raise broken(rule)


def broken(rule: FaultRule) -> Exception:
    """How a request ends to which this happens."""
    if rule.kind == "reset":
        return Dropped()
    if rule.kind == "throttled":
        return Rejection(THROTTLED, "throttled on demand", retry_after_s=rule.retry_after_s, substatus=rule.substatus)
    if rule.kind == "status":
        return Rejection(rule.status, "failed on demand", substatus=rule.substatus, retry_after_s=rule.retry_after_s)
    return Rejection(FORBIDDEN, "refused on demand")
