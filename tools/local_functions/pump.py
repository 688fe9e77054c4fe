"""Messages into functions: received under lock by the real SDK, completed or abandoned by how the function ends.

*Theory of operation.*  One task owns a receiver: it receives, renews and settles in turn, because the SDK's receiver is
not for several tasks at once; functions run beside it.  What succeeds is completed, what fails is abandoned at once and
counted, as Azure's host does it, which knows no other way.  Locks are renewed for as long as host.json says.  Of a
queue with sessions there is one receiver a session, and of a session one message at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError, ServiceBusError

from tools.local_functions.settings import HostFile
from tools.local_functions.workers import Result

log = logging.getLogger("local_functions")

WAIT_IDLE_S = 1.0
WAIT_BUSY_S = 0.05
SESSION_WAIT_S = 10.0
FAILED_PAUSE_S = 1.0
SAME_AGAIN_S = 60.0
LINK: dict[str, Any] = {"timeout": 5.0, "keep_alive": 0}
"""How long a settlement waits for its confirmation; no task of the SDK's own beside the link."""
FAILURES = (ServiceBusError, OSError, TimeoutError, ValueError, RuntimeError, AttributeError)
"""ValueError and AttributeError are what the SDK says where a link went away under it."""

Run = Callable[[ServiceBusReceivedMessage], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Source:
    """What a trigger reads, and how many messages or sessions at once."""

    path: str
    has_sessions: bool
    count_max: int

    def receiver(self, client: ServiceBusClient, **options: Any) -> ServiceBusReceiver:
        """A receiver of it, not yet open."""
        topic, slash, subscription = self.path.partition("/Subscriptions/")
        if slash:
            return client.get_subscription_receiver(topic, subscription, **LINK, **options)
        return client.get_queue_receiver(self.path, **LINK, **options)


@dataclass(slots=True, eq=False)
class Held:
    """A message that a function is running on."""

    message: ServiceBusReceivedMessage
    task: asyncio.Task[Result]
    began_s: float = field(default_factory=time.monotonic)
    lock_s: float = 0.0
    """How long its lock was when it was first looked at; it is renewed at half of that."""


class Pump:
    """The messages of one trigger."""

    def __init__(self, source: Source, client: ServiceBusClient, run: Run, host: HostFile) -> None:
        self._source = source
        self._client = client
        self._run = run
        self._host = host
        self._told, self._told_s = "", 0.0

    async def work(self) -> None:
        """Pump until cancelled."""
        if not self._source.has_sessions:
            await self._forever(self._link)
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(self._source.count_max):
                group.create_task(self._forever(self._session))

    async def _forever(self, once: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await once()
            except FAILURES as error:
                self._tell(f"{type(error).__name__}: {str(error)[:200]}")
                await asyncio.sleep(FAILED_PAUSE_S)

    def _tell(self, failure: str) -> None:
        """Log a failure; what stays the same once a minute, not with every try."""
        now_s = time.monotonic()
        if failure != self._told or now_s - self._told_s >= SAME_AGAIN_S:
            self._told, self._told_s = failure, now_s
            log.warning("%s: %s", self._source.path, failure)

    async def _link(self) -> None:
        """One link to a queue without sessions, until it fails."""
        held: set[Held] = set()
        async with self._source.receiver(self._client, prefetch_count=0) as receiver:
            try:
                while True:
                    for done in [one for one in held if one.task.done()]:
                        held.discard(done)
                        await self._settle(receiver, done)
                    for one in held:
                        await self._renew(receiver, one)
                    free = self._source.count_max - len(held)
                    if not free:
                        await asyncio.wait(
                            [one.task for one in held], timeout=WAIT_IDLE_S, return_when="FIRST_COMPLETED"
                        )
                        continue
                    wait_s = WAIT_BUSY_S if held else WAIT_IDLE_S
                    for message in await receiver.receive_messages(free, max_wait_time=wait_s):
                        held.add(Held(message, asyncio.ensure_future(self._run(message))))
            finally:
                for one in held:
                    one.task.cancel()

    async def _session(self) -> None:
        """One session, until it has been idle for long enough or fails."""
        options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": SESSION_WAIT_S, "prefetch_count": 0}
        try:
            async with self._source.receiver(self._client, **options) as receiver:
                quiet_s = time.monotonic()
                while time.monotonic() - quiet_s < self._host.session_idle_s:
                    for message in await receiver.receive_messages(1, max_wait_time=WAIT_IDLE_S):
                        held = Held(message, asyncio.ensure_future(self._run(message)))
                        try:
                            while not (await asyncio.wait([held.task], timeout=WAIT_IDLE_S))[0]:
                                await self._renew(receiver, held)
                        finally:
                            held.task.cancel()
                        await self._settle(receiver, held)
                        quiet_s = time.monotonic()
        except OperationTimeoutError:
            return  # no session has messages

    async def _renew(self, receiver: ServiceBusReceiver, held: Held) -> None:
        """Renew a lock of which less than half is left, for as long as the host may."""
        session: Any = receiver.session
        until: datetime | None = held.message.locked_until_utc if session is None else session.locked_until_utc
        if until is None or time.monotonic() - held.began_s > self._host.renew_s:
            return
        left_s = (until - datetime.now(UTC)).total_seconds()
        held.lock_s = held.lock_s or left_s
        if left_s < held.lock_s / 2:
            with suppress(MessageLockLostError):  # this message comes again; the link is as good as ever
                await (receiver.renew_message_lock(held.message) if session is None else session.renew_lock())

    async def _settle(self, receiver: ServiceBusReceiver, held: Held) -> None:
        result = held.task.result()
        with suppress(*FAILURES):  # a settlement that is lost brings the message again
            if not result.ok:
                await receiver.abandon_message(held.message)
            elif self._host.is_completing:
                await receiver.complete_message(held.message)
