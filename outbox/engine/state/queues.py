"""Queues: their tasks, the ones that wait for a time among them, and the ids that they have seen.

`Queue.tasks` is what is durable; everything else here, and the order in which ready tasks are handed out
(`plain_order`, `session_order`), is an index over it that `rebuild` makes anew after a replay.  Index entries are
removed lazily: an entry counts only while its task is there and active, so that removing a task anywhere costs one dict
operation.

*Dead letters.*  `Letters` is an index over the tasks of a dead-letter sub-queue, by number and by identity, made anew
alike.  A page of them and the copies of one are found without a look at the others.  A number that is gone is passed
over, and dropped when most are; a task joins and leaves by `add` and `drop`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from heapq import heappop, heappush

from outbox.engine.entities import QueueSettings
from outbox.engine.state.plain_order import PlainOrder
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import ACTIVE, DEFERRED, LOCKED, SCHEDULED, Task
from outbox.errors import UnknownDestination

PAUSED_QUEUES = "queues/paused"
"""The namespace of the documents that name paused queues."""
DISCARDED = "discarded/"
"""The prefix, before a queue's path, of the namespace of its discarded dead letters."""
SPARE_COUNT = 1_000
"""Numbers of gone letters are dropped when the list has this many more than twice the letters that are there."""


class Queue:
    """A queue, a subscription or a dead-letter sub-queue."""

    def __init__(self, number: int, path: str, settings: QueueSettings, *, is_primary: bool = True) -> None:
        self.is_primary = is_primary
        """Whether this is a queue of its own and not a dead-letter sub-queue."""
        self.number = number
        self.path = path
        self.settings = settings
        self.tasks: dict[int, Task] = {}
        self.paused = False
        """Whether a document says so; of the dead letters of a paused queue it makes no difference."""
        self.received_count = 0
        """How many messages have ever been put in."""
        self.seen: dict[str, int] = {}
        """Duplicate detection: broker id -> when it is forgotten, oldest first."""
        by_key = is_primary and settings.ordering == "per_key"
        self.order = SessionOrder(self.tasks) if by_key else PlainOrder(self.tasks)
        """In which ready tasks are handed out; a dead-letter sub-queue knows no keys."""
        self.letters = None if is_primary else Letters(self.tasks)
        """The index of a dead-letter sub-queue."""
        self._scheduled: list[tuple[int, int]] = []
        self._expiring: list[tuple[int, int]] = []

    def append(self, task: Task) -> None:
        """Put in a task that is the newest of the queue."""
        self.tasks[task.sequence] = task
        self.received_count += 1
        if task.expires_ms or task.status != ACTIVE:
            self.index(task, fresh=True)
        else:
            self.order.add(task, fresh=True)

    @property
    def fresh(self) -> deque[int] | None:
        """The sequences to append a new message to: without order by key, duplicate detection and expiry that is
        all."""
        if self.settings.duplicate_window_s or self.settings.time_to_live_s or not isinstance(self.order, PlainOrder):
            return None
        return self.order.fresh

    @property
    def is_paused(self) -> bool:
        """Whether it hands out nothing; its dead letters may still be received."""
        return self.paused and self.is_primary

    @property
    def sessions(self) -> SessionOrder:
        """Its sessions.

        Raises:
            UnknownDestination: it is not ordered by key and has none.
        """
        if isinstance(self.order, SessionOrder):
            return self.order
        raise UnknownDestination(f"queue {self.path!r} is not ordered by key and has no sessions; receive without one")

    def index(self, task: Task, *, fresh: bool = False) -> None:
        """Put a task where it will be found; `fresh` says that it is the newest of the queue."""
        if self.letters is not None:
            self.letters.add(task)
        if task.expires_ms:
            heappush(self._expiring, (task.expires_ms, task.sequence))
        if task.status == SCHEDULED:
            heappush(self._scheduled, (task.due_ms, task.sequence))
        elif task.status == ACTIVE:
            self.order.add(task, fresh=fresh)

    def rebuild(self) -> None:
        """Make every index anew from the tasks."""
        self._scheduled.clear()
        self._expiring.clear()
        self.order.clear()
        if self.letters is not None:
            self.letters.clear()
        for sequence in sorted(self.tasks):
            self.index(self.tasks[sequence], fresh=True)
        self.order.drop_idle()

    def promote(self, now_ms: int) -> None:
        """Make ready what has become due."""
        self.order.promote(now_ms)
        scheduled = self._scheduled
        while scheduled and scheduled[0][0] <= now_ms:
            due_ms, sequence = heappop(scheduled)
            task = self.tasks.get(sequence)
            if task is not None and task.status == SCHEDULED and task.due_ms == due_ms:
                task.status = ACTIVE
                self.order.add(task, fresh=False)

    def expired(self, now_ms: int) -> list[int]:
        """The sequences of waiting messages whose time to live is over.

        One that is locked is looked at again when it is given back; a deferred one waits for whoever knows it.
        """
        over: dict[int, None] = {}
        while self._expiring and self._expiring[0][0] <= now_ms:
            _, sequence = heappop(self._expiring)
            task = self.tasks.get(sequence)
            if task is not None and 0 < task.expires_ms <= now_ms and task.status not in (LOCKED, DEFERRED):
                over[sequence] = None
        return list(over)

    def may_have_expired(self, now_ms: int) -> bool:
        """Whether `expired` would find anything to look at."""
        return bool(self._expiring) and self._expiring[0][0] <= now_ms

    def next_due_ms(self) -> int | None:
        """When `promote` or `expired` will next have something to do."""
        times = [heap[0][0] for heap in (self._scheduled, self._expiring) if heap]
        held_until_ms = self.order.next_due_ms()
        return min(times if held_until_ms is None else [*times, held_until_ms], default=None)

    def is_duplicate(self, broker_id: str, now_ms: int) -> bool:
        """Whether duplicate detection has seen an id within its window; remembers it if not."""
        if not self.settings.duplicate_window_s or not broker_id:
            return False
        self.forget_seen(now_ms)
        if self.seen.get(broker_id, 0) > now_ms:
            return True
        self.seen.pop(broker_id, None)  # over, behind one whose window was longer: the new one goes to the end
        self.seen[broker_id] = now_ms + round(self.settings.duplicate_window_s * 1_000)
        return False

    def forget_seen(self, now_ms: int) -> None:
        """Drop the ids whose window is over."""
        seen = self.seen
        while seen and seen[oldest := next(iter(seen))] <= now_ms:
            del seen[oldest]

    def counts(self) -> dict[str, int]:
        """How many tasks are active (locked ones included), scheduled and deferred."""
        found = Counter(task.status for task in self.tasks.values())
        return {"active": (found[ACTIVE] + found[LOCKED]), "scheduled": found[SCHEDULED], "deferred": found[DEFERRED]}

    def slices(self, after: int, count_max: int) -> Iterator[list[Task]]:
        """The tasks behind a number, in order, at most `count_max` at a time; the queue may change in between.

        Which there are is decided at the start, but of dead letters as the look goes on.  Those that are gone when
        their turn comes are left out.
        """
        find = self.tasks.get
        if self.letters is None:
            numbers = sorted(self.tasks)  # they lie nearly in order: a millisecond for 100,000
            for start in range(bisect_left(numbers, after + 1), len(numbers), max(1, count_max)):
                some = numbers[start : start + count_max]
                yield [task for number in some if (task := find(number)) is not None]
            return
        while numbers := self.letters.numbers(after, count_max):
            after = numbers[-1]
            yield [task for number in numbers if (task := find(number)) is not None]


class Letters:
    """The numbers of a dead-letter sub-queue in order, and those of each identity."""

    def __init__(self, tasks: dict[int, Task]) -> None:
        self._tasks = tasks
        self._numbers: list[int] = []
        self._by_identity: dict[str, int | dict[int, None]] = {}
        """A number, because most identities have one; of several all."""

    def add(self, task: Task) -> None:
        """Add a task to the index; adding it again changes nothing."""
        numbers, number = self._numbers, task.sequence
        if not numbers or numbers[-1] < number:
            numbers.append(number)
        else:
            at = bisect_left(numbers, number)
            if numbers[at] != number:
                numbers.insert(at, number)
        if len(numbers) > 2 * len(self._tasks) + SPARE_COUNT:
            self._numbers = sorted(self._tasks)
        if identity := task.message.identity:
            same = self._by_identity.setdefault(identity, number)
            if isinstance(same, dict):
                same[number] = None
            elif same != number:
                self._by_identity[identity] = {same: None, number: None}

    def drop(self, task: Task) -> None:
        """Forget a task that leaves."""
        same = self._by_identity.get(task.message.identity)
        if isinstance(same, dict):
            same.pop(task.sequence, None)
        if same in ({}, task.sequence):
            del self._by_identity[task.message.identity]

    def clear(self) -> None:
        """Drop all of the index."""
        self._numbers.clear()
        self._by_identity.clear()

    def numbers(self, after: int, count_max: int) -> list[int]:
        """The next numbers behind one, in order; a few of them may be gone."""
        at = bisect_left(self._numbers, after + 1)
        return self._numbers[at : at + count_max]

    def of(self, identity: str) -> list[Task]:
        """The tasks of an identity, oldest first."""
        same = self._by_identity.get(identity, {})
        return [self._tasks[number] for number in (sorted(same) if isinstance(same, dict) else [same])]
