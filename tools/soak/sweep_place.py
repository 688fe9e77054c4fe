"""Emulators whose container holds what workers have left behind: finished work, and some that is stuck.

    python -m tools.soak.sweep_place SCOPE       one line of JSON, then one for each line that it reads:

    NAME KEYS STUCK_EVERY      open so many accounts of that name, two hours ago, each by a message of its own; of every
                               so-many-th the bus does not take the posting; then tell
    NAME                       tell what there is of these accounts

The documents are written by the runtime itself.  Only the way to the store is shorter than over HTTP, or 200,000
documents would take longer to make than to sweep.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from function_app.bank import OpenAccount, app
from outbox.azure.connecting import CONTAINER, connect
from outbox.azure.cosmos.items import encode_id, from_item, to_item
from outbox.azure.cosmos.store import CosmosStateStore
from outbox.client import Client
from outbox.emulator.cosmos.decisions import Moment, Operation, decide
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.store import Put, Store
from outbox.emulator.cosmos.wire import Rejection, etag_of, key_text, parse_stored, wire_form
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.errors import Refused
from outbox.message import Message
from outbox.ports import Delete, Delivery, Document, DocumentKey, Lost, Output, Session, StorePorts, Won, Write
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.scopes import scope_over
from outbox.runtime.start.notes import register_retention
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreScope

DATABASE = "bank"
AGO_MS = 2 * 3_600_000
BATCH_COUNT = 500


class NearStore:
    """The emulator's container as a store, without HTTP between."""

    def __init__(self, store: Store, container: str, scope: Literal["partition", "item"]) -> None:
        self._store = store
        self._container = store.catalog.container(DATABASE, container)
        self.capabilities = CosmosStateStore(partial(never), scope=scope).capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = self._store.read(self._container, key_text([key.partition]), encode_id(key.id))
        return None if found is None else from_item(parse_stored(wire_form(found.value, found.version)))

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        key, puts = key_text([operations[0].key.partition]), list[Put]()
        for number, write in enumerate(operations):
            id = encode_id(write.key.id)
            if isinstance(write, Delete):
                operation = Operation("delete", id, if_match=write.if_match)
            else:
                kind: Any = type(write).__name__.lower()
                operation = Operation(kind, id, to_item(write)[0], if_match=getattr(write, "if_match", ""))
            moment = Moment(self._store.engine.now_ms(), self._store.fresh_rid(self._container))
            try:
                decision = decide(operation, self._store.read(self._container, key, id), self._container, moment)
            except Rejection:
                return Lost(number)
            puts.append(Put(id, decision.stored))
        version = etag_of(self._store.commit(self._container, key, puts))
        return Won(tuple("" if put.stored is None else version for put in puts), "")

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        raise NotImplementedError("nobody asks here")

    def unfinished(self) -> AsyncIterator[Document]:
        raise NotImplementedError("nobody asks here")


class SilentBus:
    """A bus that takes nothing of some accounts, and of the others everything, to nowhere."""

    def __init__(self, stuck: frozenset[str]) -> None:
        self._stuck = stuck

    async def send(self, outputs: Sequence[Output]) -> None:
        if any(json.loads(output.message.body)["account"] in self._stuck for output in outputs):
            raise Refused("the queue is disabled")

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        raise NotImplementedError("nobody asks here")

    async def settle(self, delivery: Delivery, settle: object) -> None:
        return

    async def renew(self, delivery: Delivery) -> int:
        raise NotImplementedError("nobody asks here")


async def never() -> Any:
    raise NotImplementedError("nobody asks here")


def accounts(name: str, count: int) -> list[str]:
    """The accounts, in the order in which they are opened."""
    return [f"{name}-{number:06}" for number in range(count)]


async def leave(near: NearStore, ports: StorePorts, name: str, count: int, every: int) -> None:
    """Open accounts, two hours ago."""
    plan, tasks = compile_app(app), set[asyncio.Task[None]]()

    def spawn(coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def then_ms() -> int:
        return ports.operations.now_ms() - AGO_MS

    numbers = iter(range(1 << 62))
    scope = scope_over(
        plan,
        StorePorts(near, SilentBus(frozenset(accounts(name, count)[::every])), ports.operations, ports.blobs),
        now_ms=then_ms,
        backoff=Backoff(at_once, 1),
        spawn=spawn,
        settled=lambda deliveries: None,
        is_stopping=lambda: False,
        new_tx=lambda: f"tx{next(numbers)}",
        failure_log=FailureLog(then_ms),
    )
    assert isinstance(scope, StoreScope), "a store and a bus make lanes"
    opened = [opening(number, account, then_ms()) for number, account in enumerate(accounts(name, count), 1)]
    for at in range(0, count, BATCH_COUNT):
        await scope.attempt(opened[at : at + BATCH_COUNT])
        while tasks:
            await asyncio.wait(list(tasks))
    await scope.protocol.finish()


async def at_once(seconds: float) -> None:
    """Do not wait."""


def opening(number: int, account: str, now_ms: int) -> Delivery:
    """An account's first message."""
    body = msgspec.json.encode(OpenAccount(account, 10))
    message = Message(outbox_id=f"open-{account}", type="OpenAccount", created_ms=now_ms, body=body)
    return Delivery("accounts", number, message, number, now_ms, now_ms + 3_600_000)


async def main(scope: Literal["partition", "item"]) -> None:
    """Serve until the input ends."""
    async with (
        Engine.in_memory() as documents,
        Engine.in_memory() as queues,
        CosmosEmulator(documents, port=0) as cosmos,
        ServiceBusServer(queues) as servicebus,
    ):
        documents_at, queues_at = cosmos.connection.connection_string, servicebus.connection_string
        addresses = {"cosmos": documents_at, "servicebus": queues_at}
        async with connect(
            cosmos=documents_at, servicebus=queues_at, database=DATABASE, create=True, scope=scope
        ) as backend:
            ports = backend.ports()
            await Client(app, backend).declare()
            await register_retention(app.name, compile_app(app).retention, operations_over(ports))
            print(json.dumps(addresses), flush=True)
            near = NearStore(cosmos.store, CONTAINER, scope)
            while words := (await asyncio.to_thread(sys.stdin.readline)).split():
                if len(words) == 3:
                    await leave(near, ports, words[0], int(words[1]), int(words[2]))
                print(json.dumps(told(cosmos, queues, words[0])), flush=True)


def told(cosmos: CosmosEmulator, queues: Engine, name: str) -> dict[str, Any]:
    """Documents, those that are pending, what was sent, all requests; this process's CPU seconds before and behind."""
    begun_s = cpu_s()
    container, store = cosmos.store.catalog.container(DATABASE, CONTAINER), cosmos.store
    items = [item for key in container.keys if f":{name}-" in key for item in store.items(container, key).values()]
    posted = [task.message for task in queues.broker.queue("ledger").tasks.values()]
    return {
        "documents": len(items),
        "pending": sum("pending" in parse_stored(item.value) for item in items),
        "posted": sorted((json.loads(one.body)["account"], one.identity) for one in posted if name in str(one.body)),
        "requests": {kind: one.count for kind, one in cosmos.usage().items()},
        "begun_cpu_s": begun_s,
        "ended_cpu_s": cpu_s(),
    }


def cpu_s() -> float:
    """The CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    kind: Any = sys.argv[1]
    asyncio.run(main(kind))
