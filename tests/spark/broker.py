"""A Service Bus for the Spark tests, in a process of its own so that it can be killed and started again.

python tests/spark/broker.py FOLDER PORT NAME[:per_key][:lock_s]...     FOLDER "-": in memory; prints its connection
"""

from __future__ import annotations

import asyncio
import sys

from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings


def settings(text: str) -> QueueSettings:
    name, *rest = text.split(":")
    lock_s = next((float(part) for part in rest if part != "per_key"), 60.0)
    return QueueSettings(name, ordering="per_key" if "per_key" in rest else "unordered", lock_s=lock_s)


async def main(folder: str, port: int, queues: list[str]) -> None:
    async with Engine.in_memory() if folder == "-" else Engine.open(folder) as engine:
        engine.declare(*map(settings, queues))
        async with ServiceBusServer(engine, port=port) as server:
            print(server.connection_string, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent lets go


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
