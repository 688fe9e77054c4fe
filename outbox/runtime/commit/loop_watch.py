"""Log handlers that hold the event loop, and list the ones that wait.

While a handler computes or blocks on the loop, no lock is renewed and no request is answered.  Timing each handler
would cost each message; so the loop only notes every tenth of a second that it is free, and a thread checks that
note.  If it is late, the thread looks at the frames of the loop's thread and finds the handler in the runtime's frames:
a long one within a batch, one that blocks between two awaits, or one of many short ones.  For the log alone: nothing
here changes what is committed.

Which handlers wait, for which message, since when and at which line, is not noted either: whoever asks looks through
the tasks of the loop for the frame that has resumed a handler, and from the handler's coroutine down to the innermost
frame of its own code.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

import msgspec

from outbox.app import Handler
from outbox.log_throttle import LOG_EVERY_MS, LogThrottle
from outbox.runtime.commit import fast_path as plain
from outbox.runtime.commit import run_handler, stepping
from outbox.runtime.commit import run_handler as handling
from outbox.runtime.start.plan import CompiledApp

log = logging.getLogger("outbox.loop")

HELD_S = 0.5
"""How long a loop may be held before that is logged."""
BEAT_S = 0.1

_RUNS: Final[frozenset[CodeType]] = frozenset(
    function.__code__ for function in (plain._start, handling.start, handling.resume)
)
"""The functions that run a handler; their local variables hold its plan and its work."""
_RESUME: Final = run_handler.resume.__code__
_STEPS: Final = stepping.go_on.__code__
DEPTH_MAX = 100
"""How many coroutines that await each other are looked through."""


class LoopWatch:
    """Watches the loop on which the handlers of one plan run."""

    def __init__(self, plan: CompiledApp, *, held_s: float = HELD_S) -> None:
        self._plan = plan
        self._held_s = held_s
        self._free_s = 0.0
        """When the loop is next expected to be free."""
        self._suspect: Handler | None = None
        """The handler found running since then."""
        self._is_logged = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._log_throttle = LogThrottle(LOG_EVERY_MS, lambda: round(time.monotonic() * 1_000))

    def start(self) -> None:
        """Watch the running loop; call it on that loop."""
        self._beat()
        watched = threading.get_ident(), asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=watched, name="outbox loop watch", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        """Note that the loop is free, and log how long it was not."""
        now_s = time.monotonic()
        held_s, suspect, was_logged = now_s - self._free_s, self._suspect, self._is_logged
        self._free_s, self._suspect, self._is_logged = now_s + BEAT_S, None, False
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        if suspect is not None and held_s >= self._held_s and (was_logged or self._log_throttle.is_due(suspect.name)):
            log.warning("the event loop was held by a handler", extra=_fields(suspect, held_s))

    def _watch(self, watched: int, loop: asyncio.AbstractEventLoop) -> None:
        """Sample the loop, in a thread that ends with the loop if `stop` is not called."""
        while not self._stopping.wait(min(BEAT_S, self._held_s / 4)) and not loop.is_closed():
            held_s = time.monotonic() - self._free_s
            if held_s < self._held_s / 2 or self._is_logged:
                continue
            found = self._running(watched)
            if found is None:
                continue
            self._suspect = found
            if held_s >= self._held_s and self._log_throttle.is_due(found.name):
                self._is_logged = True
                log.warning("the event loop is held by a handler; declare it blocking", extra=_fields(found, held_s))

    def _running(self, watched: int) -> Handler | None:
        """The handler of this plan that a thread runs now."""
        frame = sys._current_frames().get(watched)
        while frame is not None:
            if frame.f_code in _RUNS:
                variables = frame.f_locals
                work = variables.get("work")
                if variables.get("plan") is self._plan and work is not None:
                    handler: Handler | None = work.handler
                    return handler
            frame = frame.f_back
        return None


def _fields(handler: Handler, held_s: float) -> dict[str, object]:
    return {"handler": handler.name, "queue": handler.source, "held_s": round(held_s, 3)}


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
