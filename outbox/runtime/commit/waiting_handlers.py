"""The handlers of this process that wait now: for which message, since when, and at which line.

Nothing is noted while messages are handled, so it costs them nothing: whoever asks looks through the tasks of the loop
for the frame that has resumed a handler, and from the handler's coroutine down to the innermost frame of its own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import msgspec

from outbox.runtime.commit import run_handler, stepping

_RESUME: Final = run_handler.resume.__code__
_STEPS: Final = stepping.go_on.__code__
DEPTH_MAX = 100
"""How many coroutines that await each other are looked through."""


class WaitingHandler(msgspec.Struct, frozen=True):
    """A handler that waits: its message by queue and number, the start of its wait, its line (`file:line in name`).

    A blocking handler waits in a thread, whose line is not known.
    """

    queue: str
    sequence: int
    handler: str
    since_ms: int
    at: str


def waiting_handlers() -> list[WaitingHandler]:
    """The handlers that wait on the running loop."""
    found = []
    for task in asyncio.all_tasks():
        for frame in _frames(task.get_coro()):
            if frame.f_code is _RESUME:
                found.append(_of(frame))
                break
    return found


def _of(frame: FrameType) -> WaitingHandler:
    """The waiting handler that a frame of `resume` holds."""
    suspended, now_ms = frame.f_locals["suspended"], frame.f_locals.get("now_ms", 0)
    work = suspended.attempt.work
    began_ms = frame.f_locals.get("began_ms") or now_ms
    own = [each for each in _frames(suspended.coroutine) if not _is_ours(each)]
    if work.handler.blocking or not own:
        at = "in a thread" if work.handler.blocking else ""
    else:
        at = f"{own[-1].f_code.co_filename}:{own[-1].f_lineno} in {own[-1].f_code.co_name}"
    delivery = work.delivery
    return WaitingHandler(delivery.queue, delivery.sequence, work.handler.name, began_ms, at)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this package or of asyncio: below the application's own code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("outbox", "asyncio")


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of the coroutines it awaits, outermost first."""
    for _ in range(DEPTH_MAX):
        frame = next(filter(None, (getattr(coroutine, name, None) for name in _FRAMES)), None)
        if frame is None:
            return
        yield frame
        awaited = next(filter(None, (getattr(coroutine, name, None) for name in _AWAITS)), None)
        # What is stepped without a task is awaited by nobody.
        coroutine = frame.f_locals.get("coroutine") if frame.f_code is _STEPS else awaited


_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITS = ("cr_await", "gi_yieldfrom", "ag_await")
