"""The shooting range on both emulators, through the real SDKs: hosts in this process, or in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos.aio import CosmosClient
from azure.functions.servicebus import ServiceBusMessage
from msgspec import json

from outbox import Client, Engine
from outbox.azure import AzureBackend
from outbox.azure.functions.processor import Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.entities import QueueSettings
from shooting_range.handlers import AttemptMade, Board, FireAt, SheetFull, Target, app
from shooting_range.settings import backend_of
from shooting_range.storage import INFRASTRUCTURE, STATES
from tests.functions.conftest import environment_as_it_was as environment_as_it_was
from tests.functions.triggered import triggered

DATABASE = "range"
GAMES, OUTBOX = f"{DATABASE}/{STATES}", f"{DATABASE}/{INFRASTRUCTURE}"
"""Where fault rules find the containers."""
LOCK_S = 10.0


class HostHere:
    """What a Functions host runs, without the host: it has clients of its own, so also sessions of its own."""

    def __init__(self, backend: AzureBackend) -> None:
        settings = FunctionsSettings(lambda: backend, attempt_s=20, rest_s=0.01, sweep_grace_s=0.001)
        self.backend = backend
        self.processor = Processor(app, backend, settings)

    async def deliver(self, shot: FireAt, *, count: int = 1, id: str = "") -> None:
        """Handle an attempt as its trigger does; GivenBack comes out where it is to come again."""
        await self.processor.message("attempts", delivered(shot, id or shot.attempt, count))

    async def kill(self) -> None:
        """End it between two of its calls; what it had committed stays, what it meant to do does not happen."""
        tasks = list(self.processor._tasks.running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.backend.close()  # and what its clients still had under way

    async def fire(self, shot: FireAt, *, key: str) -> tuple[int, Any]:
        """An attempt over HTTP: status and body of the answer; on return its result has left as well."""
        headers, path = {"Idempotency-Key": key}, f"/games/{shot.game}/attempts"
        answer = await self.processor.request("POST", path, headers, json.encode(shot))
        await self.processor.finish()
        return answer.status, json.decode(answer.body) if answer.body.startswith(b"{") else answer.body.decode()


class Range:
    """Both emulators, what lies in them, and hosts over them."""

    def __init__(self, stack: AsyncExitStack, folder: Path, bus: ServiceBusServer, cosmos: CosmosEmulator) -> None:
        self.stack = stack
        self.folder = folder
        self.bus = bus
        self.cosmos = cosmos
        self.engine = bus.engine
        self.environment = {
            "FUNCTIONS_WORKER_RUNTIME": "python",
            "OUTBOX_SERVICEBUS": bus.connection_string,
            "OUTBOX_COSMOS": cosmos.connection.connection_string,
            "OUTBOX_DATABASE": DATABASE,
            "RANGE_SHEETS_FOLDER": str(folder / "sheets"),
            "OUTBOX_CREATE": "1",
            "OUTBOX_SWEEP": "0 0 0 1 1 *",  # only when a test says so
            "OUTBOX_SWEEP_GRACE_S": "1",
        }
        self.backend = self.connect()
        self.client = Client(app, self.backend)

    def connect(self) -> AzureBackend:
        """Another process: clients of its own."""
        backend = backend_of(self.environment)
        self.stack.push_async_callback(backend.close)
        return backend

    async def host(self, *, staged: bool = False) -> HostHere:
        """A host in this process; one whose outputs are all `staged`, as large ones are."""
        backend = self.connect()
        if staged:
            states: Any = backend.ports().store
            states.capabilities = replace(states.capabilities, inline_bytes_max=0)
        host = HostHere(backend)
        self.stack.push_async_callback(host.processor.finish)
        await host.processor.open()
        return host

    async def target(self, key: str = "g/left") -> Target:
        return await self.client.state(Target, key) or Target()

    async def board(self, game: str = "g") -> Board:
        return await self.client.state(Board, game) or Board()

    def results(self) -> dict[str, AttemptMade]:
        """What lies in the queue of results, by identity, each once however many copies of it were sent."""
        tasks = self.engine.broker.queue("results").tasks.values()
        return {task.message.identity: json.decode(task.message.body, type=AttemptMade) for task in tasks}

    def full_sheets(self) -> dict[str, SheetFull]:
        tasks = self.engine.broker.queue("sheets").tasks.values()
        return {task.message.identity: json.decode(task.message.body, type=SheetFull) for task in tasks}

    async def items(self, container: str, **options: Any) -> list[dict[str, Any]]:
        """What lies in a container, by a client that knows nothing of this library."""
        known = self.cosmos.connection
        async with CosmosClient(known.url, known.key) as client:
            place = client.get_database_client(DATABASE).get_container_client(container)
            return [item async for item in place.query_items("SELECT * FROM c", **options)]

    def requests(self, operation: str) -> int:
        """How many requests of a kind Cosmos DB has had."""
        usage = self.cosmos.usage()
        return usage[operation].count if operation in usage else 0


def delivered(shot: FireAt, id: str, count: int = 1) -> ServiceBusMessage:
    """An attempt as a trigger is given it."""
    return triggered(id, json.encode(shot), "FireAt", count=count)


@pytest.fixture
async def range_(tmp_path: Path) -> AsyncIterator[Range]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine.in_memory())
        bus = await stack.enter_async_context(ServiceBusServer(engine))
        cosmos = await stack.enter_async_context(CosmosEmulator(engine, port=0))
        for name in ("attempts", "results"):
            engine.declare(QueueSettings(name, lock_s=LOCK_S))  # what a killed host held comes again soon
        found = Range(stack, tmp_path, bus, cosmos)
        await found.client.declare()
        cosmos.reset_usage()
        yield found
