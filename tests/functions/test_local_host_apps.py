"""A local host by hand: it makes the queues before it reads them, says a failure once, and leaves nothing open."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from outbox import Engine
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer

ROOT = Path(__file__).resolve().parents[2]
QUEUES = {"accounts", "transfers", "deposits", "refunds"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
async def emulators() -> AsyncIterator[tuple[Engine, dict[str, str]]]:
    """Emulators without a queue, and settings for them."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine.in_memory())
        bus = await stack.enter_async_context(ServiceBusServer(engine))
        cosmos = await stack.enter_async_context(CosmosEmulator(engine, port=0))
        addresses = {"OUTBOX_SERVICEBUS": bus.connection_string, "OUTBOX_COSMOS": cosmos.connection.connection_string}
        yield engine, {"FUNCTIONS_WORKER_RUNTIME": "python", "OUTBOX_SWEEP": "0 0 0 1 1 *", **addresses}


def text(log: Path) -> str:
    return log.read_text()


async def served(settings: dict[str, str], log: Path, *, for_s: float) -> str:
    """What a host says that serves for some seconds and is then told to end."""
    with log.open("wb") as errors:
        host = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tools.local_functions", "--app", str(ROOT), "--port", "0"),
            cwd=ROOT,
            env=os.environ | settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    assert host.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert (await host.stdout.readline()).startswith(b"http://"), text(log)
            await asyncio.sleep(for_s)
            host.terminate()
            assert await host.wait() == 0
    finally:
        if host.returncode is None:
            host.kill()
    return text(log)


async def test_queues_are_there_before_a_trigger_looks_and_every_client_is_closed_at_the_end(
    emulators: tuple[Engine, dict[str, str]], tmp_path: Path
) -> None:
    engine, settings = emulators
    said = await served(settings | {"OUTBOX_CREATE": "1"}, tmp_path / "log", for_s=1)
    assert set(engine.topology.queues) >= QUEUES
    assert "WARNING" not in said and "Unclosed" not in said, said


async def test_what_is_missing_is_reported_once_for_each_trigger(
    emulators: tuple[Engine, dict[str, str]], tmp_path: Path
) -> None:
    engine, settings = emulators
    said = await served(settings, tmp_path / "log", for_s=4)
    assert not QUEUES & set(engine.topology.queues)
    assert "cannot be opened yet" in said
    told: dict[str, Any] = {name: said.count(f"local_functions: {name}: ") for name in QUEUES}
    assert told == dict.fromkeys(QUEUES, 1), said
