"""Queue operations: send, claim, settle, renew, peek, and whether queues are idle.

Each checks first and then does one record.  Locks are not durable: a token carries the epoch of the writer that
gave it, so that a restart voids every one; only that a claim happened is logged, before anybody sees the message,
so that a message which kills its host counts its deliveries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from outbox.engine.core import Core, check_room
from outbox.engine.entities import Settlement, dead_letter_path
from outbox.engine.log import records
from outbox.engine.state.plain_order import PlainOrder
from outbox.engine.state.queues import Queue
from outbox.engine.state.rules import Facts, routed
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import (
    ACTIVE,
    DEFERRED,
    LOCKED,
    SCHEDULED,
    Claim,
    Task,
    first_lock,
    held_bytes,
    pack_token,
    unpack_token,
)
from outbox.errors import EngineStopped, LockLost, TooLarge, UnknownDestination
from outbox.message import Message, Scalar
from outbox.ports import Delivery


class Wanted(NamedTuple):
    """The messages that a waiter waits for: any that is ready, or those of the session that it holds."""

    session: str | None = None
    blocked: bool = False
    """Whether messages behind a dead letter that were not shown yet count too."""

    def is_in(self, queue: Queue, now_ms: int) -> bool:
        """Whether a queue has it now."""
        return not queue.is_paused and self._is_in(queue.order, now_ms)

    def _is_in(self, order: PlainOrder | SessionOrder, now_ms: int) -> bool:
        return order.has_available(now_ms, session=self.session) or (self.blocked and order.has_blocked)


ANYTHING = Wanted()


class Broker:
    """The queues of the engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._state = core.state
        self._lock_count = first_lock(core.epoch)
        self._lock_timers: list[tuple[int, int, int, list[int]]] = []
        self._watchers: dict[str, dict[asyncio.Future[None], Wanted]] = {}
        self.served: set[str] = set()
        """Queues from which handlers of this process have taken."""
        core.dismiss_waiters = self._dismiss_all

    def queue(self, path: str) -> Queue:
        """The queue, subscription or dead-letter sub-queue of that path.

        Raises:
            UnknownDestination: there is none.
        """
        found = self._state.paths.get(path)
        if found is None:
            raise UnknownDestination(f"queue {path!r} does not exist; declare it, or check the spelling")
        return found

    # Send

    def send(
        self, path: str, messages: Sequence[Message], *, due_ms: int = 0, facts: Sequence[Facts] = ()
    ) -> list[int]:
        """Put messages into a queue or a topic's subscriptions; their sequence numbers (0: dropped, a duplicate).

        `facts` are their system properties for the rules of subscriptions, where they say more than the messages;
        what no rule takes is dropped.

        Raises:
            UnknownDestination: no such queue or topic.
            TooLarge: a message is over the limit; none was sent.
            Throttled: the engine holds all that it may.
        """
        routes = self._state.routes.get(path)
        if routes is None:
            raise UnknownDestination(f"queue or topic {path!r} does not exist; declare it, or check the spelling")
        self._admit(path, messages)
        now_ms = self._core.now_ms()
        if self._state.rules and any(queue.path in self._state.rules for queue in routes):
            return self._send_by_rules(routes, messages, due_ms, facts)
        before = self._state.sequence
        known = [self._is_known(routes, message, now_ms) for message in messages]
        self._core.do(records.Sent(now_ms, path, due_ms, list(messages)))
        self.wake()
        sequences = iter(range(before + 1, self._state.sequence + 1))
        return [0 if duplicate else next(sequences, 0) for duplicate in self._mark_repeats(messages, known, routes)]

    def _send_by_rules(
        self, routes: tuple[Queue, ...], messages: Sequence[Message], due_ms: int, facts: Sequence[Facts]
    ) -> list[int]:
        """The same for a topic with rules; a message's number is that of its first copy."""
        before, found = self._state.sequence, [0] * len(messages)
        parts = routed(self._state.rules, routes, messages, facts)
        self._core.do(records.Routed(self._core.now_ms(), due_ms, list(messages), parts))
        self.wake()
        for number, indexes in parts:
            tasks = self._state.queues[number].tasks
            new = iter([s for s in range(before + 1, self._state.sequence + 1) if s in tasks])
            sequence = next(new, 0)
            for index in indexes:
                if sequence and tasks[sequence].message == messages[index]:
                    found[index] = found[index] or sequence
                    sequence = next(new, 0)
        return found

    @staticmethod
    def _is_known(routes: tuple[Queue, ...], message: Message, now_ms: int) -> bool:
        return any(
            queue.settings.duplicate_window_s and queue.seen.get(message.broker_id, 0) > now_ms for queue in routes
        )

    @staticmethod
    def _mark_repeats(messages: Sequence[Message], known: list[bool], routes: tuple[Queue, ...]) -> list[bool]:
        if not any(queue.settings.duplicate_window_s for queue in routes):
            return known
        here: set[str] = set()
        marked: list[bool] = []
        for message, duplicate in zip(messages, known, strict=True):
            marked.append(duplicate or message.broker_id in here)
            if message.broker_id:
                here.add(message.broker_id)
        return marked

    def _admit(self, path: str, messages: Sequence[Message]) -> None:
        limit = self._core.limits.message_bytes_max
        for message in messages:
            if held_bytes(message) > limit:
                raise TooLarge(f"message {message.identity} to {path} is over {limit} bytes; send a claim check")
        check_room(self._state, self._core.limits)
        keyed = any(queue.settings.ordering == "per_key" for queue in self._state.routes[path])
        if keyed and not all(message.session_id for message in messages):
            raise TooLarge(
                f"{path} is ordered by key; every message to it needs a session id (the property session-id)"
            )

    def cancel(self, path: str, sequences: Sequence[int]) -> int:
        """Cancel scheduled messages of a queue, or of a topic with every subscription's copy; how many there were."""
        queues = self._state.routes.get(path) or (self.queue(path),)
        numbers = dict.fromkeys(sequences)  # a client may name one twice
        found = [task for s in numbers for queue in queues if (task := queue.tasks.get(s)) is not None]
        due = [task for task in found if task.status == SCHEDULED]
        if len(queues) == 1:
            gone = [(queues[0], [task.sequence for task in due])]
        else:
            gone = [(queue, self._copies_in(queue, due)) for queue in queues]
        for queue, copies in gone:
            if copies:
                self._core.do(records.Cancelled(queue.number, copies))
        return len(due)

    def make_due(self, path: str, sequences: Sequence[int]) -> int:
        """Let scheduled messages of a queue be due now, with the failures that they have; how many there were."""
        queue = self.queue(path)
        due = [queue.tasks[s] for s in dict.fromkeys(sequences) if s in queue.tasks]
        changes = [records.TaskChange(path, t.sequence, t.version) for t in due if t.status == SCHEDULED]
        if changes:
            self._core.do(records.Modified(self._core.now_ms(), records.Modify(changes=changes)))
            self.wake()
        return len(changes)

    def _copies_in(self, queue: Queue, due: Sequence[Task]) -> list[int]:
        """These scheduled messages in one of their topic's subscriptions; of equal ones each has a copy of its own."""
        found: dict[int, None] = {}
        for task in due:
            place = _equal_to(task, self.queue(task.path)).index(task.sequence)
            found.update(dict.fromkeys(_equal_to(task, queue)[place : place + 1]))
        return list(found)

    # Receive

    def claim(self, path: str, count_max: int, *, session: str | None = None) -> list[Claim]:
        """Lock up to `count_max` messages; on a `per_key` queue those of a session that you hold."""
        queue = self.queue(path)
        tasks = self.take(queue, count_max, session=session, outside=True)
        return [self._as_claim(queue, task) for task in tasks]

    def take(
        self, queue: Queue, count_max: int, *, session: str | None = None, wary: bool = False, outside: bool = False
    ) -> list[Task]:
        """Lock and log up to `count_max` ready tasks of a queue; `wary` leaves suspects out.

        `outside` says that they leave the engine: handled here after all, they are remembered by a marker.
        """
        now_ms = self._core.now_ms()
        if not outside:
            self.served.add(queue.path)
        if queue.is_paused:
            return []
        self._expire_messages(queue, now_ms)
        tasks = (
            queue.order.take(count_max, now_ms=now_ms, wary=wary)
            if session is None
            else queue.sessions.take_session(session, count_max)
        )
        if tasks:
            self._lock(queue, tasks, now_ms, outside=outside)
        return tasks

    def take_suspect(self, queues: Sequence[Queue]) -> list[Task]:
        """Lock and log the least suspect message of these queues, alone."""
        now_ms = self._core.now_ms()
        queues = [queue for queue in queues if not queue.is_paused]
        for queue in queues:
            self._expire_messages(queue, now_ms)
        found = [(least, queue.number, queue) for queue in queues if (least := queue.order.least_suspect(now_ms))]
        if not found:
            return []
        queue = min(found)[2]
        tasks = queue.order.take_suspect(now_ms)
        self._lock(queue, tasks, now_ms)
        return tasks

    def take_blocked(self, queue: Queue, count_max: int) -> list[Task]:
        """Lock and log up to `count_max` messages that wait behind a dead letter, each once in a block."""
        if queue.is_paused or not queue.order.has_blocked:
            return []
        now_ms = self._core.now_ms()
        self._expire_messages(queue, now_ms)
        tasks = queue.order.take_blocked(count_max)
        if tasks:
            self._lock(queue, tasks, now_ms)
        return tasks

    def _lock(
        self, queue: Queue, tasks: list[Task], now_ms: int, *, outside: bool = False, deferred: bool = False
    ) -> None:
        sequences = [task.sequence for task in tasks]
        self._core.do(records.Claimed(queue.number, sequences, outside, deferred))
        lock = self.next_lock()
        until_ms = now_ms + round(queue.settings.lock_s * 1_000)
        for task in tasks:
            task.lock = lock
            task.locked_until_ms = until_ms
        heappush(self._lock_timers, (until_ms, queue.number, lock, sequences))

    def next_lock(self) -> int:
        """A lock's number, which no other lock of any writer has."""
        self._lock_count += 1
        return self._lock_count

    def token(self, delivery: Delivery) -> bytes:
        """The lock token of what the runtime sees of a claimed task."""
        return pack_token(self._core.epoch, delivery.lock, delivery.sequence, self.queue(delivery.queue).number)

    def _as_claim(self, queue: Queue, task: Task) -> Claim:
        return Claim(
            pack_token(self._core.epoch, task.lock, task.sequence, queue.number),
            task.sequence,
            task.message,
            task.delivery_count + task.failures,
            task.enqueued_ms,
            task.locked_until_ms,
            task.reason,
            "" if queue.is_primary else task.description,
            task.expires_ms,
        )

    def claim_deferred(self, path: str, sequences: Sequence[int], *, session: str | None = None) -> list[Claim]:
        """Lock deferred messages by sequence number, each once; one that comes back is deferred as before.

        Raises:
            LookupError: one of them is not there or not deferred.
        """
        queue, numbers = self.queue(path), dict.fromkeys(sequences)
        tasks = [queue.tasks.get(sequence) for sequence in numbers]
        for sequence, task in zip(numbers, tasks, strict=True):
            if task is None or task.status != DEFERRED or session not in (None, task.message.session_id):
                raise LookupError(f"{path}/{sequence} is not a deferred message")
        found = [task for task in tasks if task is not None]
        if found:
            self._lock(queue, found, self._core.now_ms(), outside=True, deferred=True)
        return [self._as_claim(queue, task) for task in found]

    # Settle

    def locked(self, token: bytes) -> tuple[Queue, Task]:
        """The queue and task that a token locks.

        Raises:
            LockLost: the lock ran out, was settled already, or was given before a restart.
        """
        epoch, lock, sequence, number = unpack_token(token)
        if epoch == self._core.epoch and number < len(self._state.queues):
            queue = self._state.queues[number]
            task = queue.tasks.get(sequence)
            held = task is not None and task.status == LOCKED and task.lock == lock
            if task is not None and held and task.locked_until_ms > self._core.now_ms():
                return queue, task
        raise LockLost(f"the lock on message {sequence} is gone; it was settled, ran out or the host restarted")

    def settle(
        self,
        token: bytes,
        how: Settlement,
        *,
        reason: str = "",
        description: str = "",
        wire: bytes = b"",
        properties: dict[str, Scalar] | None = None,
    ) -> None:
        """End a claim; with `wire` the message has these sections and `properties` from now on.

        Raises:
            LockLost: it is not held any more.
        """
        queue, task = self.locked(token)
        cut = self._core.limits.reason_length_max
        now_ms, sequences = self._core.now_ms(), [task.sequence]
        self._core.do(
            records.Settled(now_ms, queue.number, how, sequences, reason[:cut], description[:cut], wire, properties)
        )
        self.wake()

    def renew(self, token: bytes) -> int:
        """Extend a lock by its queue's lock time; its new end.

        Raises:
            LockLost: it is not held any more.
        """
        queue, task = self.locked(token)
        until_ms = self._core.now_ms() + round(queue.settings.lock_s * 1_000)
        self.extend(queue, task, until_ms)
        return until_ms

    def extend(self, queue: Queue, task: Task, until_ms: int) -> None:
        """Let the lock on a task that is locked run out at this time."""
        task.locked_until_ms = until_ms
        heappush(self._lock_timers, (until_ms, queue.number, task.lock, [task.sequence]))

    # Look

    def peek(
        self,
        path: str,
        from_sequence: int,
        count_max: int,
        *,
        session: str | None = None,
    ) -> list[Task]:
        """Tasks from a sequence number on, in order, whatever their state; nothing is locked."""
        found: list[Task] = []
        for some in self.queue(path).slices(from_sequence - 1, count_max):
            found += [each for each in some if session is None or each.message.session_id == session]
            if len(found) >= count_max:
                break
        return found[:count_max]

    def is_idle(self, paths: Sequence[str]) -> bool:
        """Whether no message of these queues waits or is being handled; scheduled and deferred ones do not count.

        Nor do messages behind a dead letter, once they were shown to the handler of the queue.
        """
        now_ms = self._core.now_ms()
        for path in paths:
            queue = self.queue(path)
            if path in self.served and queue.order.has_blocked:
                return False
            if any(
                task.status == LOCKED or (task.status == ACTIVE and queue.order.may_leave(task, now_ms))
                for task in queue.tasks.values()
            ):
                return False
        return True

    def is_drained(self, paths: Sequence[str]) -> bool:
        """Whether these queues hold nothing at all, whatever its status, nor their dead-letter sub-queues."""
        return not any(self.queue(held).tasks for path in paths for held in (path, dead_letter_path(path)))

    # Time and waiting

    def tick(self) -> None:
        """Let everything happen that time has made due."""
        now_ms = self._core.now_ms()
        self._expire_locks(now_ms)
        for queue in self._state.queues:
            due_ms = queue.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                continue
            queue.promote(now_ms)
            self._expire_messages(queue, now_ms)
        self._state.forget(now_ms)
        self.wake()

    def _expire_messages(self, queue: Queue, now_ms: int) -> None:
        """Take expired messages out of a queue, so that no receiver sees them."""
        if queue.may_have_expired(now_ms) and (expired := queue.expired(now_ms)):
            self._core.do(records.Lapsed(now_ms, queue.number, [], expired))

    def _expire_locks(self, now_ms: int) -> None:
        timers = self._lock_timers
        while timers and timers[0][0] <= now_ms:
            _, number, lock, sequences = heappop(timers)
            tasks = self._state.queues[number].tasks
            over = [s for s in sequences if (task := tasks.get(s)) is not None and task.status == LOCKED
                    and task.lock == lock and task.locked_until_ms <= now_ms]  # fmt: skip
            if over:
                self._core.do(records.Lapsed(now_ms, number, over, []))

    def lapse_lock(self, path: str, sequence: int) -> None:
        """Let the lock on one message run out now.  For tests."""
        queue = self.queue(path)
        if sequence in queue.tasks and queue.tasks[sequence].status == LOCKED:
            self._core.do(records.Lapsed(self._core.now_ms(), queue.number, [sequence], []))

    def lapse_locks(self) -> int:
        """Let every lock on a message run out now; how many there were.  For tests that do not want to wait."""
        now_ms, count = self._core.now_ms(), 0
        for queue in self._state.queues:
            locked = sorted(task.sequence for task in queue.tasks.values() if task.status == LOCKED)
            if locked:
                count += len(locked)
                self._core.do(records.Lapsed(now_ms, queue.number, locked, []))
        return count

    def next_due_ms(self) -> int | None:
        """When `tick` will next have something to do."""
        times = [due for queue in self._state.queues if (due := queue.next_due_ms()) is not None]
        if self._lock_timers:
            times.append(self._lock_timers[0][0])
        return min(times, default=None)

    def wake(self) -> None:
        """Wake whoever waits for a queue that has something now."""
        if not self._watchers:
            return
        now_ms = self._core.now_ms()
        for path, watchers in list(self._watchers.items()):
            queue = self.queue(path)
            has_any = not queue.is_paused and queue.order.has_available(now_ms)
            if not has_any and queue.settings.ordering != "per_key":
                continue
            for watcher, wanted in list(watchers.items()):
                if has_any if wanted == ANYTHING else wanted.is_in(queue, now_ms):
                    self._unwatch([path], watcher)
                    if not watcher.done():
                        watcher.set_result(None)

    async def wait_any(
        self, paths: Sequence[str], timeout_s: float, *, session: str | None = None, blocked: bool = False
    ) -> bool:
        """Wait until a claim of one of these queues (or of the session) may succeed; False after `timeout_s`.

        With `blocked` also until `take_blocked` may.

        Raises:
            EngineStopped: the engine has stopped, now or meanwhile.
            UnknownDestination: there is no such queue, or it was deleted meanwhile.
        """
        wanted = Wanted(session, blocked)
        deadline_s = self._core.clock.monotonic_s() + timeout_s
        while not self._any_available(paths, wanted):
            if (left_s := deadline_s - self._core.clock.monotonic_s()) <= 0:
                return False
            if self._core.stopped is not None:
                raise self._core.stopped
            watcher = asyncio.get_running_loop().create_future()
            for path in paths:
                self._watchers.setdefault(path, {})[watcher] = wanted
            try:
                async with asyncio.timeout(left_s):
                    await watcher
            except TimeoutError:
                return False
            finally:
                self._unwatch(paths, watcher)
        return True

    def _dismiss_all(self, reason: EngineStopped) -> None:
        """Fail every waiting claim, because the engine has stopped."""
        for path in list(self._watchers):
            self.dismiss(path, reason)

    def dismiss(self, path: str, reason: UnknownDestination | EngineStopped) -> None:
        """Fail the claims that wait for a queue that was deleted, or whose engine has stopped."""
        for watcher in self._watchers.pop(path, {}):
            if not watcher.done():
                watcher.set_exception(reason)

    def _unwatch(self, paths: Sequence[str], watcher: asyncio.Future[None]) -> None:
        for path in paths:
            watchers = self._watchers.get(path, {})
            if watcher in watchers:
                del watchers[watcher]
                if not watchers:
                    del self._watchers[path]

    def _any_available(self, paths: Sequence[str], wanted: Wanted) -> bool:
        now_ms = self._core.now_ms()
        return any(wanted.is_in(self.queue(path), now_ms) for path in paths)


def _equal_to(task: Task, queue: Queue) -> list[int]:
    """The scheduled messages of a queue that are equal to a task and came by the same record, in order."""
    return sorted(
        other.sequence
        for other in queue.tasks.values()
        if other.status == SCHEDULED and (other.version, other.message) == (task.version, task.message)
    )


def as_deliveries(tasks: Sequence[Task], *, waits: bool = False) -> list[Delivery]:
    """Make deliveries of claimed tasks for the runtime; `waits` says that their keys are blocked."""
    return [
        Delivery(
            task.path,
            task.sequence,
            task.message,
            task.lock,
            task.enqueued_ms,
            task.locked_until_ms,
            task.delivery_count,
            task.failures,
            task.external,
            task.fingerprint,
            waits,
        )
        for task in tasks
    ]
