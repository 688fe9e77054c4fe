"""The Blob Storage emulator in a process of its own, so that its CPU is not that of who asks.

python -m benchmarks.blobs_place        one line of JSON, then it serves until its input ends
"""

from __future__ import annotations

import asyncio
import json
import sys

from outbox.emulator.blobs.server import BlobEmulator
from outbox.engine.engine import Engine


async def serve() -> None:
    """Serve until the input ends."""
    async with Engine.in_memory() as engine, BlobEmulator(engine, port=0) as emulator:
        print(json.dumps({"blobs": emulator.connection.connection_string, "port": emulator.port}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
