"""What a message costs where nothing goes wrong: requests as the emulator counts them, by what they were for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import pytest

from outbox import App, Context, Worker
from outbox.azure import AzureBackend
from outbox.message import Message
from outbox.ports import Document, DocumentKey, Lost, Session, StateStore, StorePorts, Won, Write
from tests.wire.on_azure.ground import Place, place
from tests.wire.on_azure.ledger_app import Account, Order

OF_ITEMS = ("item.read", "item.create", "item.replace", "item.delete", "batch", "query")


class CountedStore:
    """A store that notes what each request was for."""

    def __init__(self, store: StateStore, counts: Counter[str]) -> None:
        self._store = store
        self._counts = counts
        self.capabilities = store.capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        self._counts["read"] += 1
        return await self._store.read(key, session=session)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        self._counts[operations[0].tag.what] += 1
        return await self._store.write(operations)

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._store.scan(partition, prefix=prefix)

    def unfinished(self) -> AsyncIterator[Document]:
        return self._store.unfinished()


@dataclass
class Counted:
    """A backend whose store is counted."""

    backend: AzureBackend
    counts: Counter[str]

    def ports(self) -> StorePorts:
        known = self.backend.ports()
        return replace(known, store=CountedStore(known.store, self.counts))


def paying_app() -> App:
    app = App("paying")
    app.queue("receipts")

    @app.handler("orders", key="account")
    async def pay(order: Order, account: Account, ctx: Context) -> None:
        account.total += order.amount
        ctx.send("receipts", order)

    return app


async def handled(world: Place, worker: Worker, counted: Counted, keys: Sequence[str]) -> dict[str, float]:
    """Send a message for each key at once; the requests per message, marks included, once all have left."""
    counted.counts.clear()
    world.cosmos.reset_usage()
    start = worker.handled_count
    orders = [worker.app.encode(Order(key, n)) for n, key in enumerate(keys)]
    messages = [Message(body=body, type=kind, outbox_id=uuid4().hex) for body, kind in orders]
    world.servicebus.engine.broker.send("orders", messages)  # all at once: a client would take its time
    async with asyncio.timeout(30):
        while worker.handled_count < start + len(keys):  # noqa: ASYNC110  # a worker has no such event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.4)  # the marks of new keys wait for a fifth of a second, those of others longer
    served = sum(used.count for name, used in world.cosmos.usage().items() if name in OF_ITEMS)
    assert served == sum(counted.counts.values()), "the SDK asks for items more often than it was told to"
    return {what: count / len(keys) for what, count in sorted(counted.counts.items())}


async def test_a_message_costs_what_the_protocol_says(capsys: pytest.CaptureFixture[str]) -> None:
    app = paying_app()
    async with place() as world, world.connect() as backend:
        counted = Counted(backend, Counter())
        async with Worker(app, counted) as worker:
            cold = await handled(world, worker, counted, [f"key-{n}" for n in range(20)])
            warm = await handled(world, worker, counted, [f"key-{n}" for n in range(20)])
            soon = await handled(world, worker, counted, [f"key-{n}" for n in range(20)])
            repeated = await handled(world, worker, counted, [f"key-{n % 4}" for n in range(80)])
        pushed = backend.usage.by_kind["send"].count
    with capsys.disabled():
        print(f"\nrequests a message: cold {cold}, warm {warm}, then {soon}, four keys in turn {repeated}")
    assert cold == {"commit": 1.0, "mark": 1.0, "read": 1.0}
    assert warm == soon == {"commit": 1.0}, "their marks ride in the next batch of their key"
    assert repeated["commit"] <= 1.0 and repeated.get("mark", 0.0) <= 0.5 and "read" not in repeated
    assert pushed <= 20 + 20 + 20 + round(repeated["commit"] * 80), "what one commit emits to a queue leaves together"
