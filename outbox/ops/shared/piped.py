"""Write and read a command's pipes without holding its event loop, however long the other side takes."""

from __future__ import annotations

import io
from select import PIPE_BUF, select
from typing import Any, BinaryIO

LOOK_EVERY_S = 0.02


async def write_piece(out: BinaryIO, piece: bytes) -> None:
    """Write a piece of an answer; while whoever reads the pipe takes nothing, this command can still be stopped."""
    import asyncio  # here, because the help of the command line needs none

    if not _is_piped(out):
        out.write(piece)
        return
    for start in range(0, len(piece), PIPE_BUF):
        while not select([], [out], [], 0)[1]:  # noqa: ASYNC110  # stdout may be a file, which no loop can watch
            await asyncio.sleep(LOOK_EVERY_S)
        out.write(piece[start : start + PIPE_BUF])  # a pipe that takes anything takes so much
        out.flush()


async def wait_readable(stream: BinaryIO) -> None:
    """Wait until a read of a stream would not wait."""
    import asyncio

    while not select([stream], [], [], 0)[0]:  # noqa: ASYNC110  # stdin may be a file, which no loop can watch
        await asyncio.sleep(LOOK_EVERY_S)  # so that Ctrl-C ends a wait for input


def _is_piped(out: Any) -> bool:
    try:
        return not out.seekable() and out.fileno() >= 0
    except (OSError, ValueError, io.UnsupportedOperation):
        return False
