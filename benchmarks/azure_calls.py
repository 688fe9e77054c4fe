"""Calls of the Azure adapters, each beside the shortest code that does the same with the bare SDK.

Both sides use the same clients, open links of the same kind, and go from the same bytes to the same answers.

    read, create, replace, batch    the bare side makes JSON of a body or a body of JSON, gives the condition, and keeps
                                    version and session token; ours also checks ids, sizes and whether a body survives,
                                    sets a deadline, and says what a failure means
    send                            a `ServiceBusMessage` with ids and properties, one after the other; ours also takes
                                    turns, sets a deadline, and goes on when its caller is cancelled
    receive                         up to 64 in one call; of each the bare side reads, by the SDK's own properties, what
                                    a handler and whoever watches it need (body, application properties, ids, session,
                                    reply address, times, lock, counts), then completes it and waits for that; ours also
                                    remembers what is out, has settlements take turns, and outlives a cancelled caller

Ours builds and reads a message section by section (`AmqpAnnotatedMessage`), which is public as well and costs less.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from azure.core import MatchConditions
from azure.servicebus import ServiceBusMessage

from outbox.azure.connecting import connect
from outbox.azure.cosmos.account import CosmosAccount
from outbox.azure.cosmos.containers import ContainerSpec
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.sources import PREFETCH_COUNT
from outbox.message import Message, properties_of
from outbox.ports import Create, DocumentKey, MessageBus, Output, Replace, Settle, StateStore, Won
from outbox_bench.azure_place import AzurePlace, azure_place

Call = Callable[[], Awaitable[object]]
Times = list[tuple[list[float], list[float]]]
"""CPU seconds of each call, ours and bare, for each repeat."""

PARTITION = "Counter:account-0001"
STATE = DocumentKey(PARTITION, "state")
STATE_BODY = msgspec.json.encode({"value": {"total": 12345, "changes": 17}, "version": 17, "schema": 1, "token": ""})
TTL_S = 691_200
MANY_COUNT = 64
MANY_PART = 4
"""Of calls of so many messages there are a quarter as many pairs."""
WAIT_S = 5.0
SETTLED_S = 0.02
"""How long what was sent may take to be read ahead."""
SESSION = "x-ms-session-token"


def message(id: str) -> Message:
    """An output of W1 as it leaves."""
    body = msgspec.json.encode({"id": "m00000001", "account": "account-0001", "total": 12345})
    return Message(body=body, outbox_id=id, type="Added", created_ms=1_790_000_000_000, correlation_id="c" * 32)


def record_body() -> bytes:
    """A record of W1 as it is committed."""
    output = {"destination": "added", "due_ms": 0, "message": msgspec.to_builtins(message("o" * 64))}
    fields = {"tx": "a" * 32, "fingerprint": "b" * 44, "created_ms": 1_790_000_000_000, "pending": True}
    return msgspec.json.encode({**fields, "outputs": [output]})


RECORD_BODY = record_body()


class OfStore:
    """Calls of Cosmos DB."""

    def __init__(self, store: StateStore, container: Any) -> None:
        self._store = store
        self._container = container
        self._numbers = itertools.count()
        self._etag = ""
        self._session = ""

    async def prepare(self) -> None:
        """Make the state that is read and replaced."""
        won = await self._store.write([Create(STATE, STATE_BODY)])
        assert isinstance(won, Won)
        self._etag = won.versions[0]

    def pairs(self) -> dict[str, tuple[Call, Call]]:
        """Each call, ours and bare."""
        return {
            "read": (self.read, self.bare_read),
            "create": (self.create, self.bare_create),
            "replace": (self.replace, self.bare_replace),
            "batch": (self.batch, self.bare_batch),
        }

    def _id(self) -> str:
        return f"inbox:{next(self._numbers):064d}"

    async def read(self) -> None:
        found = await self._store.read(STATE)
        assert found is not None and found.body == STATE_BODY

    async def bare_read(self) -> None:
        item = await self._container.read_item("state", PARTITION)
        body, self._session = msgspec.json.encode(item["body"]), item.get_response_headers()[SESSION]
        assert body == STATE_BODY

    async def create(self) -> None:
        won = await self._store.write([Create(DocumentKey(PARTITION, self._id()), RECORD_BODY, TTL_S)])
        assert isinstance(won, Won)

    async def bare_create(self) -> None:
        body = msgspec.json.decode(RECORD_BODY)
        item = {"id": self._id(), "pk": PARTITION, "body": body, "pending": True, "ttl": TTL_S}
        answer = await self._container.create_item(item, no_response=True)
        headers = answer.get_response_headers()
        assert headers["etag"]
        self._session = headers[SESSION]

    async def replace(self) -> None:
        won = await self._store.write([Replace(STATE, STATE_BODY, self._etag)])
        assert isinstance(won, Won)
        self._etag = won.versions[0]

    async def bare_replace(self) -> None:
        item = {"id": "state", "pk": PARTITION, "body": msgspec.json.decode(STATE_BODY)}
        condition = {"etag": self._etag, "match_condition": MatchConditions.IfNotModified}
        answer = await self._container.replace_item("state", item, no_response=True, **condition)
        headers = answer.get_response_headers()
        self._etag, self._session = headers["etag"], headers[SESSION]

    async def batch(self) -> None:
        record = Create(DocumentKey(PARTITION, self._id()), RECORD_BODY, TTL_S)
        won = await self._store.write([record, Replace(STATE, STATE_BODY, self._etag)])
        assert isinstance(won, Won)
        self._etag = won.versions[1]

    async def bare_batch(self) -> None:
        body = msgspec.json.decode(RECORD_BODY)
        record = {"id": self._id(), "pk": PARTITION, "body": body, "pending": True, "ttl": TTL_S}
        state = {"id": "state", "pk": PARTITION, "body": msgspec.json.decode(STATE_BODY)}
        writes = [("create", (record,)), ("replace", ("state", state), {"if_match_etag": self._etag})]
        answer = await self._container.execute_item_batch(writes, PARTITION)
        self._etag, self._session = answer[1]["eTag"], answer.get_response_headers()[SESSION]


class OfBus:
    """Calls of Service Bus, each side on a queue of its own."""

    def __init__(self, bus: MessageBus, unread: Any, sender: Any, receiver: Any) -> None:
        self._bus = bus
        self._unread = unread
        self._sender = sender
        self._receiver = receiver
        self.seen: list[object] = []

    async def send(self) -> None:
        await self._bus.send([Output("unread", 0, message("o" * 64))])

    async def bare_send(self) -> None:
        await self._unread.send_messages(bare(message("o" * 64)))

    async def send_many(self) -> None:
        await self._bus.send([Output("ours", 0, message(f"{n:064d}")) for n in range(MANY_COUNT)])

    async def bare_send_many(self) -> None:
        batch = await self._sender.create_message_batch()
        for n in range(MANY_COUNT):
            batch.add_message(bare(message(f"{n:064d}")))
        await self._sender.send_messages(batch)

    async def receive(self) -> None:
        left = MANY_COUNT
        while left:
            for delivery in await self._bus.receive("ours", count_max=left, wait_s=WAIT_S):
                await self._bus.settle(delivery, Settle("complete"))
                left -= 1

    async def bare_receive(self) -> None:
        left = MANY_COUNT
        while left:
            for found in await self._receiver.receive_messages(left, max_wait_time=WAIT_S):
                self.seen = [b"".join(found.body), texts(found.application_properties), found.message_id]
                self.seen += [found.session_id, found.correlation_id, found.reply_to, found.time_to_live]
                self.seen += [found.sequence_number, found.enqueued_time_utc, found.locked_until_utc]
                self.seen += [found.delivery_count]
                await self._receiver.complete_message(found)
                left -= 1


def bare(message: Message) -> ServiceBusMessage:
    """The same message, made without the adapter."""
    properties: Any = dict(properties_of(message))
    properties["outbox-created"] = {"TYPE": "LONG", "VALUE": message.created_ms}
    ids: dict[str, Any] = {"message_id": message.broker_id, "correlation_id": message.correlation_id}
    return ServiceBusMessage(message.body, application_properties=properties, **ids)


def texts(properties: Any) -> dict[str, Any]:
    """Properties as a program wants them; the SDK gives bytes."""
    return {name.decode(): value.decode() if isinstance(value, bytes) else value for name, value in properties.items()}


async def measured(repeats: int, pair_count: int) -> dict[str, Times]:
    """CPU seconds of all calls, a call of each side in turn."""
    async with azure_place() as where:
        return await _measured(where, repeats, pair_count)


async def _measured(where: AzurePlace, repeats: int, pair_count: int) -> dict[str, Times]:
    backend = connect(cosmos=where.cosmos, database="bank", servicebus=where.servicebus, create=True)
    address = dict(part.partition("=")[::2] for part in where.cosmos.split(";") if part)
    account = CosmosAccount(address["AccountEndpoint"], "bank", address["AccountKey"])
    namespace = ServiceBusNamespace(where.servicebus)
    async with backend:
        ports = backend.ports()
        await ports.operations.declare(dict.fromkeys(("ours", "bare", "unread"), "unordered"), {})
        await account.prepare(ContainerSpec("outbox"), create=False)
        async with (
            namespace.sender("unread") as unread,
            namespace.sender("bare") as sender,
            namespace.receiver("bare", prefetch_count=PREFETCH_COUNT) as receiver,
        ):
            store = OfStore(ports.store, await account.container("outbox"))
            await store.prepare()
            bus = OfBus(ports.bus, unread, sender, receiver)
            found = {name: await timed(*pair, repeats, pair_count) for name, pair in store.pairs().items()}
            found["send"] = await timed(bus.send, bus.bare_send, repeats, pair_count)
            found |= await timed_bus(bus, repeats, pair_count)
        await account.close()
        await namespace.close()
    return found


async def timed(ours: Call, bare: Call, repeats: int, pair_count: int) -> Times:
    """CPU seconds of one call of each in turn."""
    found: Times = []
    await ours()
    await bare()
    for _ in range(repeats):
        gc.collect()
        found.append(([], []))
        for _ in range(pair_count):
            for call, mine in zip((ours, bare), found[-1], strict=True):
                mine.append(await cpu_s(call))
    return found


async def timed_bus(bus: OfBus, repeats: int, pair_count: int) -> dict[str, Times]:
    """CPU seconds a message of sending 64 together and of receiving them, each side its own."""
    sent: Times = []
    received: Times = []
    for _ in range(repeats):
        gc.collect()
        sent.append(([], []))
        received.append(([], []))
        for _ in range(max(2, pair_count // MANY_PART)):
            for call, mine in zip((bus.send_many, bus.bare_send_many), sent[-1], strict=True):
                mine.append(await cpu_s(call) / MANY_COUNT)
            await asyncio.sleep(SETTLED_S)
            for call, mine in zip((bus.receive, bus.bare_receive), received[-1], strict=True):
                mine.append(await cpu_s(call) / MANY_COUNT)
    return {"send of 64": sent, "receive": received}


async def cpu_s(call: Call) -> float:
    """The CPU time of one call, in seconds."""
    started_s = time.process_time()
    await call()
    return time.process_time() - started_s
