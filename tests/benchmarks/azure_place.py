"""Both emulators in a process of their own, so that the CPU of a client's process is the client's.

python -m tests.benchmarks.azure_place        one line of JSON, then it serves until its input ends
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """Where both are."""

    cosmos: str
    servicebus: str


async def serve() -> None:
    """Serve until the input ends."""
    async with (
        Engine.in_memory() as documents,
        Engine.in_memory() as queues,
        CosmosEmulator(documents, port=0) as cosmos,
        ServiceBusServer(queues) as servicebus,
    ):
        place = {"cosmos": cosmos.connection.connection_string, "servicebus": servicebus.connection_string}
        print(json.dumps(place), flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def azure_place() -> AsyncIterator[AzurePlace]:
    """The emulators, in a process that ends with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.azure_place"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        yield AzurePlace(**json.loads(line))
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(serve())
