"""Compaction, or the check of a snapshot, in a process of its own: the host's event loop never waits.

A thread would not do, because decoding and the release of a large state hold the interpreter for as long as they take.
The process reads sealed segments only and writes one file under a name that nobody else has, so whatever becomes of it
or of its host, neither needs to know; it stands back behind the host for the processor.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from pathlib import Path

from outbox.engine.log import snapshot
from outbox.engine.log.disk import TEMPORARY, FolderDisk
from outbox.errors import CorruptRecord, OutboxError, Refused

_COMPACT, _LOOK = "compact", "look"
_START = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); "
    "from outbox.engine.log.compaction_process import main; main()"
)
_NICENESS = 10


async def compact_sealed(folder: Path) -> int:
    """Compact the sealed part of a folder's log, and read the snapshot back; its ordinal, 0 without sealed segments.

    Raises:
        CorruptRecord: a sealed segment is damaged, or the snapshot does not read back.
        Refused: the process failed; the folder is as it was.
    """
    return await _run(folder, _COMPACT)


async def is_whole(folder: Path, ordinal: int) -> bool:
    """Whether a snapshot reads back whole.

    Raises:
        Refused: the process failed.
    """
    return bool(await _run(folder, _LOOK, str(ordinal)))


async def _run(folder: Path, *words: str) -> int:
    path = "\n".join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109  # an entry is a text
    words = ("-I", "-c", _START, path, str(folder), *words)
    try:
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        raise Refused(f"{folder}: a process to compact it could not be started ({error})") from error
    try:
        told, said = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        if process.returncode != 0:
            _remove_unfinished(folder, process.pid)
    return _answer(folder, told, said)


def _answer(folder: Path, told: bytes, said: bytes) -> int:
    try:
        answer = json.loads(told)
        if isinstance(answer, int):
            return answer
        kind, text = answer
    except ValueError:
        lines = said.decode(errors="replace").strip().splitlines() or ["it was killed"]
        kind, text = "", f"{folder}: the process that compacts it failed ({lines[-1]}); the folder is as it was"
    raise CorruptRecord(text) if kind == CorruptRecord.__name__ else Refused(text)


def _remove_unfinished(folder: Path, pid: int) -> None:
    """Remove what a process left that was killed; nobody else's file has its number."""
    for path in folder.glob(f"*.snapshot.{pid}-*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def main() -> None:
    """Do what the host asked for and print the answer: a number, or an error's class and text."""
    folder, verb, *rest = sys.argv[2:]
    answer: int | tuple[str, str]
    os.nice(_NICENESS)
    gc.disable()  # nothing that it makes has cycles, and it ends soon
    disk = FolderDisk(folder, create=False)
    try:
        answer = snapshot.compact_sealed(disk) if verb == _COMPACT else snapshot.is_whole(disk, int(rest[0]))
    except (OutboxError, OSError) as error:
        answer = type(error).__name__, str(error)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # at once: to take a large state apart would take its time
