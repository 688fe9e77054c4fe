"""What a careful program does without this package: the public SDKs only, in one loop, all at once that can be.

Read what has come, load the states of its keys side by side, write a batch for each key (the messages' records and the
state, under its ETag), send all outputs in one batch, complete the messages together.  The clients' options are those
of our adapters.  There is no mark, no sweeper, no retry and no second chance after a crash: it is what the round trips
cost at least, not a program to copy.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from outbox_bench.measure import Add, Added, Counter

WAIT_S = 5.0
TTL_S = 691_200
NOT_FOUND = 404
COSMOS_OPTIONS: dict[str, Any] = {
    "retry_read": 0,
    "retry_connect": 0,
    "retry_status": 0,
    "retry_throttle_total": 2,
    "retry_throttle_backoff_max": 2,
    "enable_endpoint_discovery": False,
    "enable_compact_utf8_item_writes": True,
    "connection_timeout": 5.0,
    "read_timeout": 10.0,
}
LINK: dict[str, Any] = {"keep_alive": 0, "timeout": 5.0, "socket_timeout": 0.02}


class Bare:
    """A loop over one queue, and what it knows of the states."""

    def __init__(self, container: Any, receiver: Any, sender: Any, *, in_flight: int) -> None:
        self._container = container
        self._receiver = receiver
        self._sender = sender
        self._in_flight = in_flight
        self._known: dict[str, tuple[Counter, str]] = {}
        self.request_count = 0

    def forget(self) -> None:
        """Know no state any more."""
        self._known.clear()

    async def handle(self, message_count: int) -> None:
        """Handle so many messages."""
        left = message_count
        while left:
            found = await self._receiver.receive_messages(min(left, self._in_flight), max_wait_time=WAIT_S)
            keys: dict[str, list[Add]] = {}
            for message in found:
                add = msgspec.json.decode(b"".join(message.body), type=Add)
                keys.setdefault(add.account, []).append(add)
            outputs = await asyncio.gather(*(self._commit(key, adds) for key, adds in keys.items()))
            await self._send([output for some in outputs for output in some])
            await asyncio.gather(*(self._receiver.complete_message(message) for message in found))
            left -= len(found)

    async def _commit(self, key: str, adds: list[Add]) -> list[ServiceBusMessage]:
        state, etag = self._known.get(key) or await self._read(key)
        writes: list[Any] = []
        outputs = []
        for add in adds:
            state.total += add.amount
            state.changes += 1
            body = msgspec.json.encode(Added(add.id, key, state.total))
            id = hashlib.sha256(add.id.encode()).hexdigest()
            outputs.append(ServiceBusMessage(body, message_id=id, application_properties={"kind": "Added"}))
            record = {"outputs": [{"to": "added", "id": id, "body": msgspec.json.decode(body)}], "pending": True}
            writes.append(("create", ({"id": f"inbox:{id}", "pk": key, "body": record, "ttl": TTL_S},)))
        item = {"id": "state", "pk": key, "body": msgspec.to_builtins(state)}
        if etag:
            writes.append(("replace", ("state", item), {"if_match_etag": etag}))
        else:
            writes.append(("create", (item,)))
        answer = await self._container.execute_item_batch(writes, key)
        self.request_count += 1
        self._known[key] = state, answer[-1]["eTag"]
        return outputs

    async def _read(self, key: str) -> tuple[Counter, str]:
        self.request_count += 1
        try:
            item = await self._container.read_item("state", key)
        except CosmosHttpResponseError as error:
            if error.status_code != NOT_FOUND:
                raise
            return Counter(), ""
        return msgspec.convert(item["body"], Counter), item["_etag"]

    async def _send(self, outputs: list[ServiceBusMessage]) -> None:
        batch = await self._sender.create_message_batch()
        for output in outputs:
            batch.add_message(output)
        await self._sender.send_messages(batch)


@asynccontextmanager
async def bare(
    cosmos: str,
    servicebus: str,
    *,
    in_flight: int,
    queue: str,
    out: str,
    database: str = "bank",
    hook: Callable[[Any], None] | None = None,
) -> AsyncIterator[Bare]:
    """The loop with its clients, open; `hook` is told of each answer of Cosmos DB."""
    parts = dict(part.partition("=")[::2] for part in cosmos.split(";") if part)
    transport = AioHttpTransport(use_env_settings=False)
    options = COSMOS_OPTIONS | ({} if hook is None else {"raw_response_hook": hook})
    async with (
        CosmosClient(parts["AccountEndpoint"], parts["AccountKey"], transport=transport, **options) as client,
        ServiceBusClient.from_connection_string(servicebus, retry_total=0) as bus,
        bus.get_queue_receiver(queue, prefetch_count=in_flight, **LINK) as receiver,
        bus.get_queue_sender(out, **LINK) as sender,
    ):
        container = client.get_database_client(database).get_container_client("outbox")
        yield Bare(container, receiver, sender, in_flight=in_flight)
