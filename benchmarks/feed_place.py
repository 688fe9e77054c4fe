"""A Service Bus in memory with two queues, in a process of its own, so that its CPU is not that of who sends.

python -m benchmarks.feed_place        one line of JSON, then it serves until its input ends

Each line of its input is the name of a queue, and answered by how many messages wait in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process

from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox_bench.side_process import START_S

FED, BARE = QUEUES = "fed", "bare"


async def waiting(place: Process, queue: str) -> int:
    """How many messages wait in a queue of a place."""
    assert place.stdin is not None and place.stdout is not None
    place.stdin.write(f"{queue}\n".encode())
    return int(await asyncio.wait_for(place.stdout.readline(), START_S))


async def serve() -> None:
    """Serve until the input ends."""
    async with Engine.in_memory() as engine:
        engine.declare(*map(QueueSettings, QUEUES))
        async with ServiceBusServer(engine) as server:
            print(json.dumps(server.connection_string), flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                print(engine.broker.queue(line.strip()).counts()["active"], flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
