"""The SDKs of TypeScript against the emulators: programs beside this file, an operation after another in one Node."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.engine.engine import Engine
from tests.commands import ran
from tests.wire.conftest import Bus

HERE = Path(__file__).resolve().parent
MODULES = HERE.parents[2] / "build" / "node" / "node_modules"
CURE = "the SDKs of TypeScript are not installed: install Node 20 or newer, then run tools/setup.py --tests --force"
PROGRAM_S_MAX = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def failures(package: str, program: str, *arguments: str) -> dict[str, str]:
    """Run a program's operations; what those say that did not do what they should.  Skips without Node and its SDK."""
    node = shutil.which("node")
    if node is None or not (MODULES / package / "package.json").is_file():
        pytest.skip(CURE)
    environ = {**os.environ, "NODE_PATH": str(MODULES)}
    done = ran([node, HERE / program, *arguments], env=environ, within_s=PROGRAM_S_MAX)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and found, done.stderr[-2_000:]
    return {one["name"]: f"{one['said']} ({one['ms']} ms)" for one in found if not one["ok"]}


@pytest.fixture
def bus() -> Iterator[Bus]:
    bus = Bus(Engine.in_memory)
    yield bus
    bus.stop()
    bus.thread.stop()


def test_operations_of_azure_service_bus(bus: Bus) -> None:
    assert failures("@azure/service-bus", "servicebus.js", bus.connection_string) == {}


async def test_operations_of_azure_cosmos() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        at = emulator.connection
        assert await asyncio.to_thread(failures, "@azure/cosmos", "cosmos.js", at.url, at.key) == {}


async def test_operations_of_azure_storage_blob() -> None:
    async with Engine.in_memory() as engine, BlobEmulator(engine, port=0) as emulator:
        at = emulator.connection.connection_string
        assert await asyncio.to_thread(failures, "@azure/storage-blob", "blobs.js", at) == {}
