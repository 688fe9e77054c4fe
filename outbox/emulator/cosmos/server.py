"""The server of the Cosmos DB emulator: its address, its parts, its start and stop.

It listens on loopback under the port and the public key of Microsoft's emulator, so that existing settings work; on
any other address it insists on a key of one's own.  Many may run in one process.

*The way from requests to answers.*  A request is admitted by its head alone, before its body is read.  Then its
operation is prepared (read, checked, its container found) and applied in one step of the loop.  Faults stand between
and behind: a delay, a refusal or a broken connection before anything happened, a lost reply after all of it did.
Nothing is answered before the engine's gate.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

from outbox.emulator import dialect
from outbox.emulator.connections import Connections, is_loopback
from outbox.emulator.cosmos import catalog_operations, feed_operations, item_operations
from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY, check_signature
from outbox.emulator.cosmos.catalog import Catalog
from outbox.emulator.cosmos.charges import Usage
from outbox.emulator.cosmos.requests import Call, Prepared, check_understood, route_of
from outbox.emulator.cosmos.store import Do, Store
from outbox.emulator.cosmos.wire import FORBIDDEN, THROTTLED, UNAVAILABLE, Answer, Rejection
from outbox.emulator.dialect import Asked, Dropped
from outbox.emulator.faults import Control, FaultRule, Faults, Meter, key_bytes
from outbox.engine.engine import Engine
from outbox.errors import EngineStopped, Refused

PORT = 8081
_BEFORE = frozenset(("refused", "throttled", "status", "reset", "lost-reply"))
_OF_READS = _BEFORE | {"stale-read"}
_READS = frozenset(("item.read", "query", "feed"))
BODY_MAX_BYTES = 4 << 20
BODIES_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection of the SDK: `CosmosClient(connection.url, credential=connection.key)`."""

    url: str
    key: str = field(repr=False)

    @property
    def connection_string(self) -> str:
        """The connection string for the SDK's `from_connection_string`.  It holds the key."""
        return f"AccountEndpoint={self.url};AccountKey={self.key};"


class CosmosEmulator:
    """Serve an engine's documents as a Cosmos DB account.  Use it as an async context manager, or start and stop it."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        key: str = WELL_KNOWN_KEY,
        faults: Faults | None = None,
        history_s: float = 0.0,
        control_token: str | None = None,
        connection_count_max: int | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Take the engine to serve; port 0 lets the system choose one.

        `history_s` is how long writes are remembered for stale reads, besides while a rule for them is installed.
        One engine is served by one emulator at a time.  Without a `connection_count_max` it is 512, or a quarter of the
        descriptors that the process may have open if that is less.

        Raises:
            Refused: a host that others can reach with the public key; a key that is none.
        """
        is_local = is_loopback(host)
        if key == WELL_KNOWN_KEY and not is_local:
            raise Refused(f"{host} can be reached by others and the key is public; give key=..., or use 127.0.0.1")
        self.engine = engine
        self.host = host
        self.port = port
        self.faults = Faults() if faults is None else faults
        self.control_token = control_token or secrets.token_urlsafe(32)
        self._key = key
        self._meter = Meter(Usage)
        catalog = Catalog(engine, draw)
        store = Store(engine, catalog, self.faults, history_s)
        operations = catalog_operations.OPERATIONS | item_operations.OPERATIONS | feed_operations.OPERATIONS
        self.store = store
        gateway = Gateway(store, operations, key_bytes(key), self.faults, self._meter)
        self._listener = Connections(
            gateway,
            Control(gateway.refusal, self.faults, self._meter, self.control_token),
            is_local=is_local,
            count_max=connection_count_max,
            upkeep=store.sweep_quietly,
        )

    @property
    def connection(self) -> Connection:
        """Where it listens, and its key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Connection(f"http://{host}:{self.port}/", self._key)

    def usage(self) -> dict[str, Usage]:
        """Requests and request units by operation, since the start or `reset_usage`."""
        return self._meter.usage()

    def reset_usage(self) -> None:
        """Count requests from zero."""
        self._meter.reset()

    async def start(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self.port = await self._listener.start(self.host, self.port)
        return self

    async def stop(self) -> None:
        """Answer requests under way, for a moment, and close."""
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


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
