"""Who holds the event loop: a thread that looks, now and then, which handler keeps everything else from going on.

While a handler that does not block in a thread computes or waits without `await`, no lock is renewed and no request is
answered.  Measuring each handling would cost each message; so the loop only notes every tenth of a second that it is
free, and a thread notices when it has not.  Then, and only then, the thread looks at what the loop's thread is running,
and finds the handler in the runtime's frames.  A handler that runs long within a batch is found as well as one that
waits between two of its awaits, and many short ones of a batch by the one that is found running.

For the log alone: nothing here changes what is committed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import CodeType
from typing import Final

from outbox.app import Handler
from outbox.runtime.commit import fast_path as plain
from outbox.runtime.commit import run_handler as handling
from outbox.runtime.start.plan import Plan
from outbox.seldom import Seldom

log = logging.getLogger("outbox.loop")

HELD_S = 0.5
"""How long a loop may be held before that is worth a line in the log."""
BEAT_S = 0.1
TELL_EVERY_MS = 60_000

_RUNS: Final[frozenset[CodeType]] = frozenset(
    function.__code__ for function in (plain._start, handling.start, handling.resume)
)
"""What runs a handler, with its plan and its work among the local variables."""


class LoopWatch:
    """Watches the loop on which the handlers of one plan run."""

    def __init__(self, plan: Plan, *, held_s: float = HELD_S) -> None:
        self._plan = plan
        self._held_s = held_s
        self._free_s = 0.0
        """When the loop was last known to be free, or is to be next."""
        self._suspect: Handler | None = None
        """Who was found running since then."""
        self._is_told = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._seldom = Seldom(TELL_EVERY_MS, lambda: round(time.monotonic() * 1_000))

    def start(self) -> None:
        """Watch the running loop, in whose thread this is called."""
        self._beat()
        watched = threading.get_ident(), asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=watched, name="outbox loop watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        """Note that the loop is free; of one that was not, how long."""
        now_s = time.monotonic()
        held_s, suspect, was_told = now_s - self._free_s, self._suspect, self._is_told
        self._free_s, self._suspect, self._is_told = now_s + BEAT_S, None, False
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        if suspect is not None and held_s >= self._held_s and (was_told or self._seldom.is_due(suspect.name)):
            log.warning("the event loop was held by a handler", extra=_fields(suspect, held_s))

    def _watch(self, watched: int, loop: asyncio.AbstractEventLoop) -> None:
        """Look now and then, in a thread of its own, which ends with the loop where nobody stops it."""
        while not self._stopping.wait(min(BEAT_S, self._held_s / 4)) and not loop.is_closed():
            held_s = time.monotonic() - self._free_s
            if held_s < self._held_s / 2 or self._is_told:
                continue
            found = self._running(watched)
            if found is None:
                continue
            self._suspect = found
            if held_s >= self._held_s and self._seldom.is_due(found.name):
                self._is_told = True
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
