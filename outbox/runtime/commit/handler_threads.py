"""Threads for blocking handlers, including handlers that run on past their time limit.

*Theory of operation.*  To the runtime a blocking handler is an async one that awaits its function in a thread.  The
number of threads is limited, and a thread is in use until its function really ends, because a thread cannot be stopped.
A function past its limit is abandoned: its attempt has failed, its context is sealed, its thread stays in use, and its
key is held, so that no other attempt of that key begins in this process.  Its changes to its own copy of the state are
never committed: only an attempt that ends in time is.

A message whose key is held is rescheduled uncounted, and so is one that gets no thread within its handler's limit;
another process may handle it meanwhile.  The threads are daemons: one that never ends does not keep its process alive.

All bookkeeping is on the event loop; a thread runs functions and reports their end.  A host's workers and HTTP entries
share one pool, because a key is held for all of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from inspect import isawaitable
from queue import SimpleQueue
from typing import Any

from outbox.context import Context, seal
from outbox.generators import check_result
from outbox.log_throttle import LOG_EVERY_MS, LogThrottle
from outbox.registration.handlers import Handler, over_limit_text
from outbox.retries import Retry

log = logging.getLogger("outbox.threads")

THREAD_COUNT = 16
"""How many blocking handlers may run at the same time, by default."""

RETRY_AFTER_S = 5.0
"""When to redeliver a message that got no thread, or whose key is held."""

LEFT_COUNT_MAX = 100
"""How many ids a log line lists at most."""


class Job:
    """One function in a thread, and the loop's future for its end."""

    def __init__(self, handler: Handler, context: Context, call: Callable[[], Any]) -> None:
        self.handler = handler
        self.context = context
        self.id = context.message.identity
        self.key = key_of(context.work)
        self.began_s = time.monotonic()
        self.is_left = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call = call
        self._variables = contextvars.copy_context()

    def run(self) -> BaseException | None:
        """Run the function, in a thread; returns what it raised."""
        try:
            self._variables.run(self._call)
        except StopIteration as error:  # no future can hold one
            return RuntimeError(f"handler {self.handler.name} raised {error!r}")
        except BaseException as error:
            return error
        return None


class HandlerThreads:
    """At most `count` threads for blocking handlers, started as they are needed."""

    def __init__(self, count: int = THREAD_COUNT) -> None:
        if count < 1:
            raise ValueError(f"threads={count}: a blocking handler needs at least one")
        self.count = count
        self._places = asyncio.Semaphore(count)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.running: set[Job] = set()
        """The functions that run, those past their limit included."""
        self._idle_count = 0
        self._is_closed = False
        self._held: dict[str, set[Job]] = {}
        self._full_log = LogThrottle(LOG_EVERY_MS, lambda: round(time.monotonic() * 1_000))

    def holds(self, work: Any) -> bool:
        """Whether an earlier attempt of this work's key still runs past its limit; a read never waits."""
        return bool(self._held) and bool(work.inbox) and key_of(work) in self._held

    async def run(self, handler: Handler, limit_s: float, context: Context, call: Callable[[], Any]) -> None:
        """Run a handler's function in a thread, within a time limit.

        Raises:
            Retry: no thread was free.
            TimeoutError: it exceeded its limit; it is abandoned.
        """
        await self._enter(handler, limit_s)
        job = Job(handler, context, call)
        self._begin(job)
        within = asyncio.timeout(limit_s)
        try:
            async with within:
                await asyncio.wait([job.ended])
        except TimeoutError:
            text = over_limit_text(handler.name, limit_s)
            self._leave(job, text)
            raise TimeoutError(text) from None
        except BaseException:  # the worker stops, or the attempt is past its deadline
            self._leave(job, f"handler {handler.name} was abandoned; nothing of it is committed")
            raise
        job.ended.result()

    async def _enter(self, handler: Handler, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._places.acquire()
        except TimeoutError:
            if self._full_log.is_due(""):
                fields = {"handler": handler.name, "threads": self.count, "past_limit": len(self._held)}
                log.warning("no thread was free for a blocking handler; raise threads", extra=fields)
            text = f"none of {self.count} threads was free within {limit_s:g} s"
            raise Retry(text, after_s=RETRY_AFTER_S) from None

    def _begin(self, job: Job) -> None:
        self.running.add(job)
        if self._idle_count:
            self._idle_count -= 1
        else:
            loop, name = job.ended.get_loop(), f"outbox handler {len(self.running)}"
            threading.Thread(target=self._work, args=(loop,), name=name, daemon=True).start()
        self._jobs.put(job)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run one job after the other, in a thread of its own."""
        while (job := self._jobs.get()) is not None:
            error = job.run()
            try:
                loop.call_soon_threadsafe(self._end, job, error)
            except RuntimeError:  # the loop is closed
                return
            del job, error  # an idle thread keeps nothing alive

    def _end(self, job: Job, error: BaseException | None) -> None:
        """Note the end of a function, and free its thread and its key."""
        self.running.discard(job)
        holders = self._held.get(job.key)
        if holders is not None:
            holders.discard(job)
            if not holders:  # two workers may have left one of this key each
                del self._held[job.key]
        if self._is_closed:
            self._jobs.put(None)
        else:
            self._idle_count += 1
        self._places.release()
        if job.is_left:
            fields = {"handler": job.handler.name, "id": job.id, "took_s": round(time.monotonic() - job.began_s, 3)}
            log.warning("a handler ended past its time limit; nothing of it was committed", extra=fields)
        if not job.ended.done():
            if error is None:
                job.ended.set_result(None)
            else:
                job.ended.set_exception(error)
                job.ended.exception()  # the future of an abandoned function is not read otherwise

    def _leave(self, job: Job, why: str) -> None:
        """Abandon a function, which cannot be stopped: it commits nothing, and keeps its key and its thread."""
        seal(job.context, why)
        if job not in self.running:
            return  # it has just ended
        job.is_left = True
        if job.key:
            self._held.setdefault(job.key, set()).add(job)
        fields = {"handler": job.handler.name, "id": job.id, "threads": self.count, "busy": len(self.running)}
        log.warning("a blocking handler is abandoned; its thread and its key are in use until it ends", extra=fields)

    def close(self) -> None:
        """Let idle threads end, and log the handlers that still run: nothing of them is committed, now or later."""
        if self._is_closed:
            return
        self._is_closed = True
        for _ in range(self._idle_count):
            self._jobs.put(None)
        self._idle_count = 0
        if self.running:
            left = sorted((job.handler.name, job.id) for job in self.running)
            fields = {"handlers": sorted({name for name, _ in left}), "ids": [id for _, id in left][:LEFT_COUNT_MAX]}
            log.warning("stopped before handlers have ended; nothing of them is committed", extra=fields)


def key_of(work: Any) -> str:
    """The key that attempts hold: the state, else the session, else the message; empty for a read."""
    return str(work.state_id or work.lane or work.inbox.hex()) if work.inbox else ""


def hosted(handler: Handler, threads: HandlerThreads | None, limit_s_max: float) -> Handler:
    """A handler under its host's time limit, and in a thread if it blocks and `threads` are given."""
    limit_s = min(handler.time_limit_s, limit_s_max)
    if threads is None or not handler.blocking:
        return handler if limit_s == handler.time_limit_s else replace(handler, time_limit_s=limit_s)
    call = handler.binding.call

    async def run(message: Any, state: Any, context: Context) -> None:
        await threads.run(handler, limit_s, context, lambda: _called(handler, call(message, state, context)))

    binding = replace(handler.binding, wants_context=True, is_async=True, call=run)
    # The limit applies in its thread; before that it may wait for a thread for as long.
    return replace(handler, binding=binding, time_limit_s=2 * limit_s + 1)


def _called(handler: Handler, result: Any) -> None:
    if isawaitable(result):
        close = getattr(result, "close", None)
        with suppress(Exception):
            if close is not None:
                close()
        raise TypeError(f"blocking handler {handler.name} returned {result!r}; await it in an async handler instead")
    check_result(f"blocking handler {handler.name}", result)
