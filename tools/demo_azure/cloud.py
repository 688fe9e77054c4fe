"""The cloud of the demo: both emulators in this process, two Functions hosts in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from function_app.bank import Account
from function_app.bank import app as bank
from function_app.settings import connect
from outbox import Client
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.ops.states.engine import ExportedState

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("accounts", "transfers", "deposits", "refunds")
LOCK_S = 15.0
"""How long a message is locked: what a killed host held comes again after it."""
START_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.25
RETRY_AFTER = {"retry_after_s": 0.1}
STORE_FAULTS: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("lost-reply", {}),
    ("throttled", RETRY_AFTER),
    ("status", {"status": 503}),
    ("reset", {}),
    ("delay", {"delay_s": 0.2}),
    ("stale-read", {}),
)
"""Kinds, and what each needs besides its probability."""
BUS_FAULTS: tuple[tuple[Any, str, dict[str, Any]], ...] = (
    ("duplicate", "receive", {}),
    ("lock-expiry", "receive", {}),
    ("lost-disposition", "settle", {}),
    ("lost-reply", "send", {}),
    ("reorder", "receive", {}),
    ("throttled", "send", RETRY_AFTER),
)
"""Likewise, with the operation that each is for."""


class Host:
    """One Functions host, which is killed and started again."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> float:
        """Start it and wait until it serves; the seconds that took."""
        started_s = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tools.local_functions", "--app", str(ROOT), "--port", "0"),
                cwd=ROOT,
                env=os.environ | self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_WITHIN_S)
        if not line.startswith(b"http://"):
            raise RuntimeError(f"the Functions host did not start; see {self.log_path}")
        return time.monotonic() - started_s

    async def kill(self) -> float:
        """kill -9, and start it again; how long that took, in seconds."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        return await self.start()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


class Cloud:
    """Emulators, hosts, and a client of the bank beside them."""

    def __init__(
        self, folder: Path, engine: Engine, bus: ServiceBusServer, cosmos: CosmosEmulator, ports: Sequence[int]
    ) -> None:
        """Take the parts; `ports` lead to Cosmos DB and to Service Bus, perhaps from far away."""
        self.engine = engine
        self.bus = bus
        self.cosmos = cosmos
        self.connection = bus.connection_string.replace(f":{bus.port}", f":{ports[1]}")
        known = cosmos.connection.connection_string
        environment = {
            "FUNCTIONS_WORKER_RUNTIME": "python",
            "OUTBOX_SERVICEBUS": self.connection,
            "OUTBOX_COSMOS": known.replace(f":{cosmos.port}", f":{ports[0]}"),
            "OUTBOX_CREATE": "1",
            "OUTBOX_SWEEP": "*/20 * * * * *",
            "OUTBOX_SWEEP_GRACE_S": "10",
        }
        self.backend: Any = connect(environment)
        self.client = Client(bank, self.backend)
        self.hosts = [Host(f"host-{n}", folder, environment) for n in (1, 2)]

    async def open(self) -> None:
        """Make queues and containers, and start the hosts."""
        for name in SOURCES:
            self.engine.declare(QueueSettings(name, lock_s=LOCK_S))
        await self.client.declare()
        await asyncio.gather(*(host.start() for host in self.hosts))

    async def close(self) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts))
        await self.backend.close()

    # Faults

    def let_fail(self, seed: int, probability: float) -> None:
        """Let requests and deliveries fail from now on: each kind by chance, drawn from the seed."""
        rule = partial(FaultRule, count=None, probability=probability)
        for number, (kind, more) in enumerate(STORE_FAULTS):
            for operation in ("batch", "item.*"):
                self.cosmos.faults.install(rule(kind=kind, operation=operation, seed=seed * 100 + number, **more))
        for number, (kind, operation, more) in enumerate(BUS_FAULTS):
            self.bus.faults.install(rule(kind=kind, operation=operation, seed=seed * 200 + number, **more))

    # Looking

    def arrived(self, queue: str) -> int:
        """How many messages a queue was ever given."""
        return self.engine.broker.queue(queue).received_count

    async def wait_idle(self, within_s: float) -> None:
        """Wait until nobody has anything to handle.

        Raises:
            TimeoutError: it was not in time.
        """
        async with asyncio.timeout(within_s):
            while any(self.engine.broker.queue(name).tasks for name in SOURCES):  # noqa: ASYNC110  # the engine is asked, which has no event for this
                await asyncio.sleep(LOOK_EVERY_S)

    async def export(self, accounts: tuple[str, ...]) -> bytes:
        """The balances as JSON lines, as `outbox export` writes them."""
        lines = []
        for name in accounts:
            found = await self.client.state(Account, name)
            if found is not None:
                value = msgspec.Raw(msgspec.json.encode(found))
                lines.append(msgspec.json.encode(ExportedState("Account", name, value)))
        return b"\n".join(lines)
