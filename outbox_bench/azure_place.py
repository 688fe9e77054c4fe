"""Both emulators in a process of their own, so that the CPU of a client's process is the client's.

python -m outbox_bench.azure_place        one line of JSON, then it serves until its input ends

Each line of its input is answered by one: `{"served": true}` by what the Cosmos DB emulator has served since the last
such line, `{"put": [queue, name, keys]}` by null, when a message for each key lies in that queue, `{"count": queue}` by
how many messages wait in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from outbox.azure.usage import Usage
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.message import Message
from outbox_bench.measure import Add
from outbox_bench.ours import app
from outbox_bench.side_process import START_S, program


@dataclass(frozen=True, slots=True)
class Names:
    """What a run is made with: its queues, ours and those of the bare loop, its database, the beginning of its keys."""

    adds: str = "adds"
    added: str = "added"
    bare_adds: str = "bare-adds"
    bare_added: str = "bare-added"
    database: str = "bank"
    prefix: str = ""

    def queues(self) -> tuple[str, ...]:
        """All of them."""
        return self.adds, self.added, self.bare_adds, self.bare_added


class Place(Protocol):
    """Cosmos DB and Service Bus, and what a run asks of them past the links that it measures."""

    @property
    def cosmos(self) -> str:
        """A connection string, or an address."""

    @property
    def servicebus(self) -> str:
        """The same of the namespace."""

    @property
    def names(self) -> Names:
        """What is there."""

    def watch(self, usage: Usage) -> None:
        """Count what a backend of ours asks for."""

    def hook(self, response: Any) -> None:
        """Count one answer of Cosmos DB to the bare loop."""

    async def served(self) -> dict[str, tuple[int, float]]:
        """How many requests Cosmos DB has served since the last call, and their request units, by kind."""

    async def put(self, queue: str, name: str, keys: list[str]) -> None:
        """Put a message for each key into a queue."""

    async def count(self, queue: str) -> int:
        """How many messages this run has put into a queue that wait there."""


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """Where both emulators are; they count by themselves."""

    cosmos: str
    servicebus: str
    ports: list[int]
    process: Process
    names: Names = Names()

    def watch(self, usage: Usage) -> None: ...

    def hook(self, response: Any) -> None: ...

    async def served(self) -> dict[str, tuple[int, float]]:
        """How many requests Cosmos DB has served since the last call, and their request units, by kind."""
        found: dict[str, tuple[int, float]] = await self._answer({"served": True})
        return found

    async def put(self, queue: str, name: str, keys: list[str]) -> None:
        """Put a message for each key into a queue, past every link."""
        await self._answer({"put": [queue, name, keys]})

    async def count(self, queue: str) -> int:
        """How many messages wait in a queue."""
        return int(await self._answer({"count": queue}))

    async def _answer(self, question: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), START_S))

    def by(self, ports: list[int]) -> AzurePlace:
        """The same, by other ports that lead there."""
        cosmos, servicebus = self.cosmos, self.servicebus
        cosmos = cosmos.replace(f":{self.ports[0]}", f":{ports[0]}")
        servicebus = servicebus.replace(f":{self.ports[1]}", f":{ports[1]}")
        return replace(self, cosmos=cosmos, servicebus=servicebus)


async def serve() -> None:
    """Serve until the input ends."""
    async with (
        Engine.in_memory() as documents,
        Engine.in_memory() as queues,
        CosmosEmulator(documents, port=0) as cosmos,
        ServiceBusServer(queues) as servicebus,
    ):
        place = {"cosmos": cosmos.connection.connection_string, "servicebus": servicebus.connection_string}
        print(json.dumps({**place, "ports": [cosmos.port, servicebus.port]}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked, answer = json.loads(line), cast(Any, None)
            if "put" in asked:
                put(queues, *asked["put"])
            elif "count" in asked:
                answer = queues.broker.queue(asked["count"]).counts()["active"]
            else:
                answer = {kind: [used.count, used.charge_ru] for kind, used in cosmos.usage().items()}
                cosmos.reset_usage()
            print(json.dumps(answer), flush=True)


def put(engine: Engine, queue: str, name: str, keys: list[str]) -> None:
    """Put a message for each key into a queue."""
    engine.broker.send(queue, messages_of(name, keys))


def messages_of(name: str, keys: list[str]) -> list[Message]:
    """A message for each key, with ids that begin with a name."""
    messages = []
    for n, key in enumerate(keys):
        id = f"{name}-{n:08d}"
        body, kind = app.encode(Add(id, key, 3))
        messages.append(Message(body=body, outbox_id=id, type=kind))
    return messages


@asynccontextmanager
async def azure_place() -> AsyncIterator[AzurePlace]:
    """The emulators, in a process that ends with the context."""
    async with program("outbox_bench.azure_place") as (process, place):
        yield AzurePlace(**place, process=process)


if __name__ == "__main__":
    asyncio.run(serve())
