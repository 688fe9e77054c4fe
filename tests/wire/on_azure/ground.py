"""Where the adapters stand in tests: emulators on ports of their own, in the test's own loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

from outbox.azure.connecting import AzureBackend, connect
from outbox.azure.cosmos.account import CosmosAccount
from outbox.azure.cosmos.containers import ContainerSpec
from outbox.azure.cosmos.store import CosmosStateStore
from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import Faults
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.backend.operations import dead_letters
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.testing import START_S, VirtualClock
from outbox.verify.contracts import BusFixture

SPEC = ContainerSpec("outbox")
ORDERED = QueueSettings("contract-ordered", ordering="per_key")
Sleep = Callable[[float], Awaitable[None]]


class CosmosGround:
    """An emulator with an account and a container."""

    def __init__(self, engine: Engine, emulator: CosmosEmulator, clock: VirtualClock) -> None:
        self.engine = engine
        self.emulator = emulator
        self.clock = clock
        self.accounts: list[CosmosAccount] = []

    def account(self, user_agent: str = "outbox") -> CosmosAccount:
        """Another process: a client of its own."""
        known = self.emulator.connection
        account = CosmosAccount(known.url, "bank", known.key, user_agent=user_agent)
        self.accounts.append(account)
        return account

    def store(self, account: CosmosAccount | None = None, **options: Any) -> CosmosStateStore:
        """A store of its own, on a client of its own unless one is given."""
        held = account or self.account()
        return CosmosStateStore(partial(held.container, SPEC.name), **options)

    async def wait(self, seconds: float) -> None:
        """Let the emulator's time pass."""
        self.clock.seconds += seconds
        self.engine.tick()

    def counted(self, *names: str) -> dict[str, int]:
        """How many requests the emulator has answered, of these operations."""
        usage = self.emulator.usage()
        return {name: usage[name].count if name in usage else 0 for name in names}


@asynccontextmanager
async def cosmos_ground(**options: Any) -> AsyncIterator[CosmosGround]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine, CosmosEmulator(engine, port=0, **options) as emulator:
        ground = CosmosGround(engine, emulator, clock)
        await ground.account().prepare(SPEC, create=True)
        emulator.reset_usage()
        try:
            yield ground
        finally:
            await asyncio.gather(*(account.close() for account in ground.accounts))


@asynccontextmanager
async def cosmos_store(scope: Literal["partition", "item"], **options: Any) -> AsyncIterator[CosmosStateStore]:
    async with cosmos_ground() as ground:
        yield ground.store(scope=scope, **options)


class BusGround:
    """A Service Bus with the two queues of the contract, and an adapter of its own."""

    def __init__(self, engine: Engine, server: ServiceBusServer, clock: VirtualClock) -> None:
        self.engine = engine
        self.server = server
        self.clock = clock
        self.namespaces: list[ServiceBusNamespace] = []
        self.buses: list[ServiceBusBus] = []

    def bus(self, **options: Any) -> ServiceBusBus:
        """Another process: a client of its own."""
        self.namespaces.append(ServiceBusNamespace(self.server.connection_string))
        self.buses.append(ServiceBusBus(self.namespaces[-1], ordered=[ORDERED.name], **options))
        return self.buses[-1]

    async def wait(self, seconds: float) -> None:
        """Let the server's time pass."""
        self.clock.seconds += seconds
        self.engine.tick()
        await asyncio.sleep(0.01)

    async def dead_letters(self, queue: str) -> list[tuple[str, str]]:
        return [
            (dead_letter.message.identity, dead_letter.reason)
            for dead_letter in dead_letters(self.engine.broker, queue)
        ]


@asynccontextmanager
async def bus_ground(**options: Any) -> AsyncIterator[BusGround]:
    clock = VirtualClock(time.time())  # the SDK compares locks with the real time
    async with Engine.in_memory(clock=clock) as engine, ServiceBusServer(engine, **options) as server:
        engine.declare(QueueSettings("contract"), ORDERED)
        ground = BusGround(engine, server, clock)
        try:
            yield ground
        finally:
            await asyncio.gather(*(bus.close() for bus in ground.buses))
            await asyncio.gather(*(namespace.close() for namespace in ground.namespaces))


@asynccontextmanager
async def bus_fixture() -> AsyncIterator[BusFixture]:
    async with bus_ground() as ground:
        bus = ground.bus()
        await bus.receive("contract", count_max=1, wait_s=0.01)  # a link takes a while to open
        yield BusFixture(bus, ground.engine.now_ms, ground.wait, ground.dead_letters)


class Place:
    """All of Azure that an application needs, as emulators on one engine each, and backends over it."""

    def __init__(self, cosmos: CosmosEmulator, servicebus: ServiceBusServer) -> None:
        self.cosmos = cosmos
        self.servicebus = servicebus

    def connect(self, **options: Any) -> AzureBackend:
        """Another process: clients of its own."""
        return connect(
            cosmos=self.cosmos.connection.connection_string,
            database="bank",
            servicebus=self.servicebus.connection_string,
            **{"create": True, **options},
        )

    def declare(self, *queues: QueueSettings) -> None:
        """Queues that are not as the adapter would make them."""
        self.servicebus.engine.declare(*queues)


@asynccontextmanager
async def place(*, cosmos_faults: Faults | None = None, bus_faults: Faults | None = None) -> AsyncIterator[Place]:
    async with (
        Engine.in_memory() as documents,
        Engine.in_memory() as queues,
        CosmosEmulator(documents, port=0, faults=cosmos_faults) as cosmos,
        ServiceBusServer(queues, faults=bus_faults) as servicebus,
    ):
        yield Place(cosmos, servicebus)


async def settled(place: Place, *queues: str, timeout_s: float = 60.0) -> None:
    """Wait until these queues hold nothing, scheduled copies included."""
    engine = place.servicebus.engine
    async with asyncio.timeout(timeout_s):
        while any(engine.broker.peek(queue, 0, 1) for queue in queues):  # noqa: ASYNC110  # an engine has no such event
            await asyncio.sleep(0.05)


@asynccontextmanager
async def blob_emulator(**options: Any) -> AsyncIterator[BlobEmulator]:
    """Blob Storage in memory, on a port of its own."""
    async with Engine.in_memory() as engine, BlobEmulator(engine, port=0, **options) as emulator:
        yield emulator
