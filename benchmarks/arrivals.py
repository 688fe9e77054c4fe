"""When pages come: from a process of its own, as a producer's would.

    python -m benchmarks.arrivals < DUE

It writes the clock at each of these times, seconds from its first step.  The timers of an event loop round up to
milliseconds, which are nobody's latency.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

ANSWER_S_MAX = 60.0
"""How long an arrival may come behind its time, and how long the process may take to end, in seconds."""


@asynccontextmanager
async def arrivals(due_s: Sequence[float]) -> AsyncIterator[AsyncIterator[float]]:
    """Yield the times, by `time.perf_counter`, at which something comes, as they pass."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.arrivals"]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("".join(f"{each}\n" for each in due_s).encode())
    process.stdin.close()
    try:
        yield _times(process.stdout, due_s)
    finally:
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(ANSWER_S_MAX):
            await process.wait()


async def _times(lines: asyncio.StreamReader, due_s: Sequence[float]) -> AsyncIterator[float]:
    last_s = 0.0
    for each in due_s:
        async with asyncio.timeout(each - last_s + ANSWER_S_MAX):
            line = await lines.readline()
        last_s = each
        yield float(line)


def main() -> None:
    due_s = [float(line) for line in sys.stdin]
    began_s = time.perf_counter()
    for each in due_s:
        pause_s = began_s + each - time.perf_counter()
        if pause_s > 0:
            time.sleep(pause_s)
        print(time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
