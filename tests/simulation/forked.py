"""Do the same for many things, each in a process of its own: forked from this one, so nothing is imported anew.

Where this process ends early, those that it forked end too, with all that they began.

A thing whose process does not end in time is done once more at the end, alone: on a machine that does other things as
well, a limit may strike where it says nothing about the thing.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

PROCESS_COUNT = 2
ANSWER_BYTES_MAX = select.PIPE_BUF
"""What a pipe takes in one piece: an answer has to be shorter."""

Answer = dict[str, Any]


def each(
    things: Sequence[T], work: Callable[[T], Answer], *, within_s: float, is_cut: Callable[[Answer], bool] | None = None
) -> Iterator[tuple[T, Answer | None]]:
    """Things with their answers, as these come; None for one that has had no end twice, an empty one for one that died.

    An answer that a limit has spoiled, as `is_cut` says, counts as no end.
    """
    gc.collect()
    gc.freeze()  # no process goes through what is there for all of them, nor copies it by that
    left = yield from _round(things, work, PROCESS_COUNT, within_s, is_cut, is_last=False)
    yield from _round(left, work, 1, within_s, is_cut, is_last=True)
    gc.unfreeze()


def _round(
    things: Sequence[T],
    work: Callable[[T], Answer],
    process_count: int,
    within_s: float,
    is_cut: Callable[[Answer], bool] | None,
    *,
    is_last: bool,
) -> Any:
    """Do all of them, so many at once; returns those without an end."""
    waiting, left = list(things), []
    running: dict[int, Run[T]] = {}
    while waiting or running:
        while waiting and len(running) < process_count:
            begun = _begin(waiting.pop(0), work, within_s)
            running[begun.answer] = begun
        next_end_s = min(begun.ends_s for begun in running.values())
        answered, _, _ = select.select(list(running), [], [], max(0.0, next_end_s - time.monotonic()))
        for answer in answered or [a for a, begun in running.items() if begun.ends_s <= time.monotonic()]:
            begun = running.pop(answer)
            found = begun.result(answer in answered)
            if not is_last and (found is None or (is_cut is not None and is_cut(found))):
                left.append(begun.thing)
            else:
                yield begun.thing, found
    return left


class Run(NamedTuple, Generic[T]):
    """A process at work on one thing."""

    thing: T
    process: int
    answer: int
    """The pipe that its answer can be read from."""

    ends_s: float

    def result(self, answered: bool) -> Answer | None:
        """What it answered, in one write.  It is killed with all that it began, which may hold its pipe open."""
        text = os.read(self.answer, ANSWER_BYTES_MAX) if answered else b""
        os.close(self.answer)
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        if not answered:
            return None
        found: Answer = json.loads(text) if text else {}
        return found


def _begin(thing: T, work: Callable[[T], Answer], within_s: float) -> Run[T]:
    """Begin a process, and a group of processes, for one thing."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        with suppress(OSError):  # by now the process may have done it, or ended
            os.setpgid(process, process)
        return Run(thing, process, reading, time.monotonic() + within_s)
    try:
        os.setpgid(0, 0)
        os.close(reading)
        _end_with_reader(writing)
        os.write(writing, json.dumps(work(thing), ensure_ascii=False).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # whatever happened: nothing may go on twice


def _end_with_reader(writing: int) -> None:
    """Have the system end this group of processes when nobody is left who reads a pipe."""
    fcntl.fcntl(writing, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(writing, fcntl.F_GETFL)
    fcntl.fcntl(writing, fcntl.F_SETFL, flags | os.O_ASYNC)  # it sends SIGIO, which ends who does not handle it
