"""Two processes run one pipeline over Blob Storage, and one after the other is killed: nothing is lost or doubled.

What comes out is compared with what comes out of the same pages at once; the time between two outputs is not measured.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outbox import azure
from outbox.streams import OrderedLog
from tests.unit.streams.pipeline.counting import Change, Page, expected
from tests.wire.on_azure.ground import blob_emulator

ROOT = Path(__file__).resolve().parents[3]
PAGES, KILLS = 60, 4
WITHIN_S = 60
REPLICA = """
import asyncio, sys
from outbox import azure
from outbox.streams import OrderedLog, Pipeline
from tests.unit.streams.pipeline.counting import Change, Count, Page, count, text_of, words

async def main():
    async with azure.blob_states(sys.argv[1]) as states:
        pages = OrderedLog("pages", states, type=Page, poll_s_max=0.05)
        pipeline = Pipeline("index", source=pages)
        counted = pipeline.reduce(pipeline.flat_map(source=pages)(words), key=text_of, state=Count)(count)
        pipeline.sink(counted, OrderedLog("changes", states, type=Change))
        async with pipeline.run(states, checkpoint_s=0.2) as running:
            print("runs", flush=True)
            await asyncio.wait(running.tasks)

asyncio.run(main())
"""


def started(connection: str) -> subprocess.Popen[str]:
    """A process with a replica, which runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", REPLICA, connection]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


async def runs(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), WITHIN_S)
    assert line == "runs\n", "the replica ended"


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S * 3)
async def test_replicas_that_are_killed_release_each_output_once_and_in_order() -> None:
    draw = random.Random(7)
    texts = [" ".join(draw.choices("abcdefgh", k=6)) for _ in range(PAGES)]
    async with blob_emulator() as emulator:
        connection = emulator.connection.connection_string
        async with azure.blob_states(connection, create=True) as states:
            pages = OrderedLog("pages", states, type=Page)
            changes = OrderedLog("changes", states, type=Change, poll_s_max=0.05)
            processes = [started(connection), started(connection)]
            try:
                for process in processes:
                    await runs(process)
                for number, text in enumerate(texts):
                    await pages.append(Page(text), id=f"p{number}")
                    if number % (PAGES // KILLS) == PAGES // KILLS - 1:
                        victim = processes.pop(draw.randrange(2))
                        victim.send_signal(signal.SIGKILL)
                        victim.wait(WITHIN_S)
                        processes.append(started(connection))
                found = []
                async with asyncio.timeout(WITHIN_S):
                    async for entry in changes.read(wait=True):
                        found.append((entry.value.word, entry.value.n))
                        if len(found) == 6 * PAGES:
                            break
            finally:
                for process in processes:
                    process.kill()
                    process.wait(WITHIN_S)
                    assert process.stdout is not None
                    process.stdout.close()
            assert found == expected(texts)
            assert len([entry async for entry in changes.read()]) == 6 * PAGES
