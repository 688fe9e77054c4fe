"""The source of one queue's or subscription's messages: one link, or a link for each held session.

*Theory of operation, sessions.* A task asks for the next session that has messages, again and again while a caller
receives and there is room for another; each session that is granted is a link.  Of a session nothing is handed out
while messages of it are out, so its order holds for all callers together.  Where one of them is abandoned, what was
read ahead could overtake it: such a link is closed once nothing of it is out, and the session taken up anew.  A session
that has been quiet for a while is closed, sooner where others may be waiting for its room; so is one that has been held
for long, at a moment when nothing of it is out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import OperationTimeoutError

from outbox.azure.servicebus.links import CLOSE_S, LINGER_S, Link, answer
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.errors import OutboxError

Taken = tuple[Link, Sequence[ServiceBusReceivedMessage]]

PREFETCH_COUNT = 32
SESSION_COUNT_MAX = 16
ACCEPT_S = 10.0
QUIET_S = 20.0
CROWDED_QUIET_S = 0.5
HELD_S = 30.0
FAILED_PAUSE_S = 0.5

log = logging.getLogger("outbox.servicebus")


class PlainSource:
    """A queue or subscription without sessions."""

    def __init__(self, namespace: ServiceBusNamespace, path: str, *, now_ms: Callable[[], int]) -> None:
        self._namespace = namespace
        self._path = path
        self._now_ms = now_ms
        self._arrived = asyncio.Event()
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._tasks = Tasks()

    async def receive(self, count_max: int, wait_s: float) -> Taken | None:
        """Up to `count_max` messages and the link that they came by; None when `wait_s` has passed without any.

        Raises:
            OutboxError: it cannot be received from now.
        """
        await self._tasks.shielded(self._open())  # takes half a second, which is not the wait for a message
        deadline_s = asyncio.get_running_loop().time() + wait_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._turn.acquire()
        except TimeoutError:
            return None
        try:
            return await self._receive(count_max, deadline_s)
        finally:
            self._turn.release()

    async def _receive(self, count_max: int, deadline_s: float) -> Taken | None:
        while (link := self._link) is not None:
            link.want(count_max)
            if not link.ready and link.error is None:
                self._arrived.clear()
                if not await _wait(self._arrived, deadline_s):
                    link.want(0)
                    return None
            if link.error is not None:
                self._link = None
                self._tasks.start(link.close())
                raise link.error
            if len(link.ready) < count_max:
                await link.gathered()
            link.want(0)
            taken = link.take(count_max)
            if taken:
                return link, taken
        return None

    async def _open(self) -> None:
        async with self._opening:
            if self._link is None or self._link.error is not None:
                if self._link is not None:
                    self._tasks.start(self._link.close())  # else it would read on
                receiver = self._namespace.receiver(self._path, prefetch_count=PREFETCH_COUNT)
                self._link = await Link.open(self._path, receiver, arrived=self._arrived.set, now_ms=self._now_ms)

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        await self._tasks.close()


class SessionSource:
    """A queue or subscription whose messages are ordered by session."""

    def __init__(
        self,
        namespace: ServiceBusNamespace,
        path: str,
        *,
        now_ms: Callable[[], int],
        session_count_max: int = SESSION_COUNT_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._path = path
        self._now_ms = now_ms
        self._count_max = session_count_max
        self._monotonic_s = monotonic_s
        self._links: list[Link] = []
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        self._asked_s = 0.0
        self._error: OutboxError | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._tasks = Tasks()

    async def receive(self, count_max: int, wait_s: float) -> Taken | None:
        deadline_s = asyncio.get_running_loop().time() + wait_s
        if self._accepting is None or self._accepting.done():
            self._accepting = self._tasks.start(self._accept())
        while True:
            self._asked_s = self._monotonic_s()
            self._asked.set()
            self._changed.clear()
            self._tidy()
            for link in self._links:
                if link.out_count == 0 and not link.is_spent:
                    link.want(count_max)
            taken = await self._take(count_max)
            if taken is not None:
                return taken
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if not await _wait(self._changed, deadline_s):
                return None

    async def _take(self, count_max: int) -> Taken | None:
        """Messages of the session that has waited longest."""
        for link in self._links:
            if link.out_count == 0 and link.ready and not link.is_spent:
                if len(link.ready) < count_max:
                    await link.gathered()
                if link.out_count or not link.ready or link.is_spent:
                    continue  # another caller was faster
                link.want(0)
                taken = link.take(count_max)
                if taken:
                    self._links.remove(link)
                    self._links.append(link)
                    return link, taken
        return None

    def _tidy(self) -> None:
        """Let go of sessions that are lost, spent, quiet, or have been held for long while others may wait."""
        now_s, crowded = self._monotonic_s(), len(self._links) >= self._count_max
        for link in list(self._links):
            is_quiet = now_s - link.used_s > (CROWDED_QUIET_S if crowded else QUIET_S)
            is_long = crowded and now_s - link.opened_s > HELD_S
            is_over = link.is_spent or (not link.ready and (is_quiet or is_long))
            if link.expire() or link.error is not None or (link.out_count == 0 and is_over):
                self._links.remove(link)
                self._tasks.start(link.close())

    async def _accept(self) -> None:
        """Take up one session after the other while a caller receives and there is room."""
        while not self._closing.is_set():
            if len(self._links) >= self._count_max or self._monotonic_s() - self._asked_s > ACCEPT_S:
                self._asked.clear()
                await self._asked.wait()
                self._tidy()
                if len(self._links) >= self._count_max:
                    await asyncio.sleep(LINGER_S * 10)
                    continue
            receiver = self._namespace.next_session(self._path, wait_s=ACCEPT_S, prefetch_count=PREFETCH_COUNT)
            try:
                link = await Link.open(self._path, receiver, arrived=self._changed.set, now_ms=self._now_ms)
            except OutboxError as error:
                if not isinstance(error.__cause__, OperationTimeoutError):  # else there was no session
                    await self._failed(error)
                continue
            if self._closing.is_set():
                await link.close()
                return
            self._links.append(link)
            self._changed.set()

    async def _failed(self, error: OutboxError) -> None:
        self._error = error
        self._changed.set()
        await asyncio.sleep(FAILED_PAUSE_S)

    async def close(self) -> None:
        self._closing.set()
        if self._accepting is not None:
            self._accepting.cancel()
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))
        await self._tasks.close()


class Tasks:
    """Tasks beside those of callers, which are waited for in the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start one."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def shielded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await work that goes on when its caller is cancelled."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.start(answer(done, work))
        return await done

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the bus failed", exc_info=error)  # no caller waits for it

    async def close(self) -> None:
        """Wait for the remaining tasks, then cancel them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)


async def _wait(event: asyncio.Event, deadline_s: float) -> bool:
    """Wait for an event until a time of the loop; whether it came."""
    try:
        async with asyncio.timeout_at(deadline_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


Source = PlainSource | SessionSource
"""The messages of one path."""
