"""`outbox pipeline` as processes, on a folder and on blobs: real SDKs against the emulator, and signals."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from outbox.azure.blob_place import BlobStates, blob_states
from outbox.engine.engine import Engine
from tests.unit.streams.pipeline.counting import Counting
from tests.wire.on_azure.ground import blob_emulator
from tests.wire.typed import typed_beside

ROOT = Path(__file__).resolve().parents[3]
COUNTING = "tests.unit.streams.pipeline.counting:Counting"
WITHIN_S = 60
Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Start a process that runs the pipeline, with a checkpoint at its end only."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "outbox", "pipeline", "run", COUNTING, "--checkpoint-s", "600", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


async def ended(process: subprocess.Popen[str]) -> str:
    """What it prints after a signal."""
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.to_thread(process.communicate, timeout=WITHIN_S)
    assert process.returncode == 0, err
    return out


async def outbox(*arguments: str, code: int = 0) -> Any:
    """Run a command here, in a loop of its own; its answer."""
    return json.loads((await typed_beside(["pipeline", *arguments, "--json"], {}, code=code))[0])


async def said(process: subprocess.Popen[str], text: str) -> str:
    """The line of its log that has a text."""
    assert process.stderr is not None
    while line := await asyncio.wait_for(asyncio.to_thread(process.stderr.readline), WITHIN_S):
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}")


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S * 2)
async def test_a_pipeline_on_a_folder_answers_while_it_runs_and_ends_with_a_checkpoint(
    disk_path: Path, started: Started
) -> None:
    async with Engine.open(disk_path) as engine:
        await Counting(engine).write("a b", "a", "c")
    place = ("--data", str(disk_path))
    process = started(*place)
    await said(process, "pipeline index runs: version 1")
    until_s = time.monotonic() + WITHIN_S
    while (view := await outbox("status", "index", *place))["figures"]["released"] != "3.0":
        assert time.monotonic() < until_s
    assert (view["stands"]["c"], view["figures"]["behind"]) == ("0.0", 3)
    assert await ended(process) == "index: all below 3.0 of its source has left\n"
    assert (await outbox("status", "index", *place))["stands"]["c"] == "3.0"
    assert (await outbox("get", "index", "count", "a", *place))["value"] == {"n": 2}


@asynccontextmanager
async def states() -> AsyncIterator[tuple[BlobStates, tuple[str, ...]]]:
    async with blob_emulator() as emulator:
        address = emulator.connection.connection_string
        async with blob_states(address, container="streams", create=True) as made:
            yield made, ("--blobs", address, "--blob-states", "streams")


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S * 2)
async def test_a_pipeline_on_blobs_is_run_measured_ended_asked_and_audited(started: Started) -> None:
    async with states() as (place, options):
        made = Counting(place)  # type: ignore[arg-type]  # its logs take any place, an engine or a store
        await made.write("a b")
        process = started("--metrics-port", "0", *options)
        url = (await said(process, "metrics at ")).rpartition(" ")[2].strip()
        await made.write("a c")
        read, until_s = "", time.monotonic() + WITHIN_S
        while not re.search(r"outbox_pipeline_watermark\{.*\} 2\b", read):
            assert time.monotonic() < until_s, read
            with await asyncio.to_thread(urlopen, url, None, WITHIN_S) as response:
                read = response.read().decode()
        assert 'outbox_pipeline_lag{app="index",pipeline="index"} 0' in read
        assert await ended(process) == "index: all below 2.0 of its source has left\n"
        await place.blobs.write("pipeline/index/left", b"")
        (view,) = await outbox("list", *options)
        assert (view["stands"]["c"], view["figures"]["behind"]) == ("2.0", 0)
        assert (await outbox("get", "index", "count", "a", *options))["value"] == {"n": 2}
        (found,) = await outbox("audit", "index", *options)
        assert (found["findings"], found["left_over"]) == ([], ["pipeline/index/left"])
        for part in [name async for name in place.blobs.names("pipeline/index")]:
            await place.blobs.delete(part)
        (found,) = await outbox("audit", "--all", *options, code=1)
        assert "is missing" in found["findings"][0]
