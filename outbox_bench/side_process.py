"""A program beside the one that measures, in a process of its own, so that the CPU of each is its own."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START_S = 30.0
STOP_S = 10.0


@asynccontextmanager
async def program(module: str, *options: str) -> AsyncIterator[tuple[Process, Any]]:
    """A module as a program, and its first line, which is JSON; its input ends with the context, and so should it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *options),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, json.loads(await asyncio.wait_for(process.stdout.readline(), START_S))
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
