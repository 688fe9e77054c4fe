"""The Functions app on this machine: both emulators in this process, Functions hosts in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from function_app.bank import Account
from function_app.bank import app as bank
from function_app.settings import connect
from outbox import Client, Engine
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import Faults
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.entities import QueueSettings

ROOT = Path(__file__).resolve().parents[2]
START_WITHIN_S = 40.0
QUEUES = ("accounts", "transfers", "deposits", "refunds")
LOCK_S = 10.0


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """A Functions host puts settings into the environment of its process, which may be the test's."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


class Host:
    """One Functions host."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log

    async def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()

    async def tick(self, name: str) -> int:
        """Start a timer's function now; the status of the answer."""
        return (await self.ask("POST", f"/admin/functions/{name}"))[0]

    async def ask(self, method: str, path: str, body: object = None, *, key: str = "") -> tuple[int, Any]:
        """Send a request; status and body of the answer."""
        headers = {"Idempotency-Key": key} if key else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, json=body, headers=headers) as answer,
        ):
            data = await answer.read()
            return answer.status, json.loads(data) if data.startswith(b"{") else data.decode()


class Hosts:
    """Hosts of one app folder as processes, on emulators in this one."""

    app = ROOT
    inherits = True
    """Whether hosts have the environment of this process as well."""
    queues: Sequence[str] = QUEUES

    def __init__(self, folder: Path, engine: Engine, environment: dict[str, str]) -> None:
        self.folder = folder
        self.engine = engine
        self.environment = environment
        self.hosts: list[Host] = []

    async def host(self) -> Host:
        """Start a host and wait until it serves."""
        log = self.folder / f"host-{len(self.hosts)}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tools.local_functions", "--app", str(self.app), "--port", "0"),
                cwd=ROOT,
                env=(os.environ if self.inherits else {"PATH": "/usr/bin:/bin"}) | self.environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        assert process.stdout is not None
        async with asyncio.timeout(START_WITHIN_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("http://"), log.read_text()
        self.hosts.append(Host(process, line.split()[0], log))
        return self.hosts[-1]

    def in_flight(self) -> int:
        """Messages that somebody is still to handle."""
        return sum(len(self.engine.broker.queue(name).tasks) for name in self.queues)

    async def wait_until(self, what: Any, *, within_s: float = 60.0) -> None:
        """Wait until something holds, or fail with what the hosts said."""
        try:
            async with asyncio.timeout(within_s):
                while not await what():  # noqa: ASYNC110  # what is waited for happens in another process
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logs = "\n".join(host.log.read_text()[-3_000:] for host in self.hosts)
            raise AssertionError(f"not within {within_s} s; {self.in_flight()} in flight\n{logs}") from None

    async def wait_idle(self, **options: float) -> None:
        async def is_idle() -> bool:
            return self.in_flight() == 0

        await self.wait_until(is_idle, **options)

    async def close(self) -> None:
        for host in self.hosts:
            if host.process.returncode is None:
                await host.kill()


class Cloud(Hosts):
    """Emulators, hosts, and a client of the bank beside them."""

    def __init__(self, folder: Path, engine: Engine, bus: ServiceBusServer, cosmos: CosmosEmulator) -> None:
        environment = {
            "FUNCTIONS_WORKER_RUNTIME": "python",
            "OUTBOX_SERVICEBUS": bus.connection_string,
            "OUTBOX_COSMOS": cosmos.connection.connection_string,
            "OUTBOX_CREATE": "1",
            "OUTBOX_SWEEP": "0 0 0 1 1 *",  # only when a test says so
            "OUTBOX_SWEEP_GRACE_S": "1",
        }
        super().__init__(folder, engine, environment)
        self.bus = bus
        self.cosmos = cosmos
        self.backend: Any = connect(environment)
        self.client = Client(bank, self.backend)

    @property
    def faults(self) -> tuple[Faults, Faults]:
        """Those of the bus, those of the store."""
        return self.bus.faults, self.cosmos.faults

    async def balance(self, account: str) -> int:
        found = await self.client.state(Account, account)
        return 0 if found is None else found.balance

    def postings(self) -> list[Any]:
        """The rows of the ledger, duplicates included."""
        return list(self.engine.broker.queue("ledger").tasks.values())

    async def close(self) -> None:
        await super().close()
        await self.backend.close()


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine.in_memory())
        bus = await stack.enter_async_context(ServiceBusServer(engine))
        cosmos = await stack.enter_async_context(CosmosEmulator(engine, port=0))
        for name in QUEUES:
            engine.declare(QueueSettings(name, lock_s=LOCK_S))  # what a killed host held comes again soon
        cloud = Cloud(tmp_path, engine, bus, cosmos)
        stack.push_async_callback(cloud.close)
        await cloud.client.declare()
        yield cloud
