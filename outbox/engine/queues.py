"""The order in which a queue's messages are handed out.

`Queue.tasks` is what is durable; everything else here is an index over it that `rebuild` makes anew after a replay.
Index entries are removed lazily: an entry counts only while its task is there and active, so that removing a task
anywhere costs one dict operation.

A plain queue hands out in sequence order, returned messages first.  A *suspect* is a message that was delivered before
and never settled: it may be what killed its host, so a host takes it alone, the least suspect first, and everything
else before it; its neighbours would otherwise die of it delivery by delivery.

A `KeyedQueue` hands out per session: a session belongs to one receiver at a time, its messages leave in sequence
order, and nothing overtakes its head, not even while the head waits for a retry.  A session that is blocked by a dead
letter hands out nothing to be handled; each message behind the block is shown once to whoever puts on record that it
waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from outbox.engine.entities import QueueSettings
from outbox.engine.items import ACTIVE, DEFERRED, LOCKED, SCHEDULED, Task
from outbox.errors import UnknownDestination

RUN_COUNT_MAX = 16
"""How many messages of one session are handed out at a time."""
LOOK_AGAIN_MS = 1_000
"""When a message that expired in somebody's hands is looked at again."""


class Queue:
    """One queue: its tasks and the order in which they are handed out."""

    def __init__(self, number: int, path: str, settings: QueueSettings, *, is_primary: bool = True) -> None:
        self.is_primary = is_primary
        """Whether this is a queue of its own and not a dead-letter sub-queue."""
        self.number = number
        self.path = path
        self.settings = settings
        self.tasks: dict[int, Task] = {}
        self.received_count = 0
        """How many messages have ever been put in."""
        self.seen: dict[str, int] = {}
        """Duplicate detection: broker id -> when it is forgotten, oldest first."""
        self.fresh: deque[int] = deque()
        """Sequences that were never handed out, each once, in order; the newest is put in behind them."""
        self._returned: list[int] = []
        self._suspects: list[tuple[int, int]] = []
        self._scheduled: list[tuple[int, int]] = []
        self._expiring: list[tuple[int, int]] = []

    def append(self, task: Task) -> None:
        """Put in a task that is the newest of the queue."""
        self.tasks[task.sequence] = task
        self.received_count += 1
        if task.expires_ms or task.status != ACTIVE:
            self.index(task, fresh=True)
        else:
            self._make_ready(task, True)

    @property
    def is_plain(self) -> bool:
        """Whether a new message has only to be put behind the others: no order by key, no duplicates, no expiry."""
        return not (self.settings.duplicate_window_s or self.settings.time_to_live_s)

    def index(self, task: Task, *, fresh: bool = False) -> None:
        """Put a task where it will be found; `fresh` says that it is the newest of the queue."""
        if task.expires_ms:
            heappush(self._expiring, (task.expires_ms, task.sequence))
        if task.status == SCHEDULED:
            heappush(self._scheduled, (task.due_ms, task.sequence))
        elif task.status == ACTIVE:
            self._make_ready(task, fresh)

    def _make_ready(self, task: Task, fresh: bool) -> None:
        if task.delivery_count:
            heappush(self._suspects, (task.delivery_count, task.sequence))
        elif fresh:
            self.fresh.append(task.sequence)
        else:
            heappush(self._returned, task.sequence)

    def rebuild(self) -> None:
        """Make every index anew from the tasks."""
        self._clear()
        for sequence in sorted(self.tasks):
            self.index(self.tasks[sequence], fresh=True)

    def _clear(self) -> None:
        self.fresh.clear()
        self._returned.clear()
        self._suspects.clear()
        self._scheduled.clear()
        self._expiring.clear()

    def promote(self, now_ms: int) -> bool:
        """Make ready what has become due; tell whether anything has."""
        scheduled, promoted = self._scheduled, False
        while scheduled and scheduled[0][0] <= now_ms:
            due_ms, sequence = heappop(scheduled)
            task = self.tasks.get(sequence)
            if task is not None and task.status == SCHEDULED and task.due_ms == due_ms:
                task.status = ACTIVE
                self._make_ready(task, fresh=False)
                promoted = True
        return promoted

    def take(self, count_max: int, *, now_ms: int, wary: bool = False) -> list[Task]:
        """Take up to `count_max` ready tasks in order; they are locked from here on.  `wary` leaves suspects out."""
        taken: list[Task] = []
        find, returned, fresh = self.tasks.get, self._returned, self.fresh
        suspects = [] if wary else self._suspects
        while (returned or suspects) and len(taken) < count_max:
            task = find(heappop(returned) if returned else heappop(suspects)[1])
            if task is not None and task.status == ACTIVE:
                task.status = LOCKED  # at once: its sequence may be in there again
                taken.append(task)
        while fresh and len(taken) < count_max:
            for _ in range(min(count_max - len(taken), len(fresh))):
                task = find(fresh.popleft())
                if task is not None and task.status == ACTIVE:
                    task.status = LOCKED
                    taken.append(task)
        return taken

    def least_suspect(self, now_ms: int) -> int:
        """How often the least suspect message was delivered without being settled; 0 where there is none."""
        suspects = self._suspects
        while suspects:
            task = self.tasks.get(suspects[0][1])
            if task is not None and task.status == ACTIVE:
                return suspects[0][0]
            heappop(suspects)
        return 0

    def take_suspect(self, now_ms: int) -> list[Task]:
        """Take the least suspect message, alone."""
        if not self.least_suspect(now_ms):
            return []
        task = self.tasks[heappop(self._suspects)[1]]
        task.status = LOCKED
        return [task]

    def has_ready(self) -> bool:
        """Whether `take` would find anything."""
        for entries, drop in ((self._returned, self._drop_returned), (self.fresh, self._drop_fresh)):
            while entries:
                task = self.tasks.get(entries[0])
                if task is not None and task.status == ACTIVE:
                    return True
                drop()
        return self.least_suspect(0) > 0

    def has_available(self, now_ms: int, *, session: str | None = None) -> bool:
        """Whether a claim now would find anything."""
        return self.has_ready()

    def take_blocked(self, count_max: int) -> list[Task]:
        """Take messages that wait behind a dead letter and were not shown yet; only an ordered queue has any."""
        return []

    @property
    def has_blocked(self) -> bool:
        """Whether `take_blocked` would find anything."""
        return False

    def take_session(self, session_id: str, count_max: int) -> list[Task]:
        """Take messages of a session that the caller holds; only an ordered queue has sessions."""
        raise UnknownDestination(f"queue {self.path!r} is not ordered by key and has no sessions; receive without one")

    def _drop_returned(self) -> None:
        heappop(self._returned)

    def _drop_fresh(self) -> None:
        self.fresh.popleft()

    def may_leave(self, task: Task, now_ms: int) -> bool:
        """Whether an active task could be handed out now."""
        return True

    def given_back(self, task: Task) -> None:
        """Note that whoever had a task claimed did nothing with it."""

    def unlocked(self, task: Task) -> None:
        """Note that a claimed task is no longer claimed, or gone."""

    def expired(self, now_ms: int) -> list[int]:
        """The sequences of waiting messages whose time to live is over; a deferred one waits for whoever knows it."""
        over: dict[int, None] = {}
        while self._expiring and self._expiring[0][0] <= now_ms:
            _, sequence = heappop(self._expiring)
            task = self.tasks.get(sequence)
            if task is None or not 0 < task.expires_ms <= now_ms:
                continue
            if task.status == LOCKED:
                heappush(self._expiring, (now_ms + LOOK_AGAIN_MS, sequence))
            elif task.status != DEFERRED:
                over[sequence] = None
        return list(over)

    def may_have_expired(self, now_ms: int) -> bool:
        """Whether `expired` would find anything to look at."""
        return bool(self._expiring) and self._expiring[0][0] <= now_ms

    def next_due_ms(self) -> int | None:
        """When `promote` or `expired` will next have something to do."""
        times = [heap[0][0] for heap in (self._scheduled, self._expiring) if heap]
        return min(times, default=None)

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
        scheduled = sum(task.status == SCHEDULED for task in self.tasks.values())
        deferred = sum(task.status == DEFERRED for task in self.tasks.values())
        return {"active": len(self.tasks) - scheduled - deferred, "scheduled": scheduled, "deferred": deferred}


class Session:
    """One session of a `KeyedQueue`: its ready messages and who may receive them."""

    __slots__ = ("claimed", "held_until_ms", "id", "lock", "locked_until_ms", "ready", "shown", "state", "stopped_by")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.ready: list[int] = []
        self.lock = 0
        self.locked_until_ms = 0
        self.claimed: set[int] = set()
        self.held_until_ms = 0
        self.stopped_by: set[int] = set()
        self.shown: set[int] = set()
        """The messages behind the block that were taken by `take_blocked`."""
        self.state = b""

    def is_free(self, now_ms: int) -> bool:
        """Whether somebody new may receive from it."""
        return not self.lock and not self.claimed and not self.stopped_by and self.held_until_ms <= now_ms


class KeyedQueue(Queue):
    """A queue ordered by session."""

    def __init__(self, number: int, path: str, settings: QueueSettings) -> None:
        super().__init__(number, path, settings)
        self.sessions: dict[str, Session] = {}
        self._waiting: dict[str, None] = {}
        """Sessions with ready messages, in the order in which they became so."""
        self._held: list[tuple[int, str]] = []
        self._unshown: dict[int, None] = {}
        """Messages that wait behind a dead letter and were not shown yet, in order."""

    def session(self, session_id: str) -> Session:
        """The session of that id, made if need be."""
        found = self.sessions.get(session_id)
        if found is None:
            found = self.sessions[session_id] = Session(session_id)
        return found

    def _make_ready(self, task: Task, fresh: bool) -> None:
        session = self.session(task.message.session_id)
        heappush(session.ready, task.sequence)
        if task.due_ms > session.held_until_ms:  # given back with a delay: nothing overtakes it meanwhile
            self.hold(session, task.due_ms)
        if session.stopped_by and task.sequence not in session.shown:
            self._unshown[task.sequence] = None
        self._waiting[session.id] = None

    @property
    def is_plain(self) -> bool:
        return False

    def hold(self, session: Session, until_ms: int) -> None:
        """Keep a session back until its head may be tried again."""
        session.held_until_ms = until_ms
        heappush(self._held, (until_ms, session.id))

    def _clear(self) -> None:
        super()._clear()
        self._waiting.clear()
        self._held.clear()
        self._unshown.clear()
        for session in self.sessions.values():
            session.ready.clear()
            session.claimed.clear()
            session.shown.clear()
            session.lock = session.held_until_ms = 0

    def promote(self, now_ms: int) -> bool:
        freed = False
        while self._held and self._held[0][0] <= now_ms:
            heappop(self._held)
            freed = True
        return super().promote(now_ms) or freed

    def next_due_ms(self) -> int | None:
        own = super().next_due_ms()
        held = self._held[0][0] if self._held else None
        return min((t for t in (own, held) if t is not None), default=None)

    def free_session(self, now_ms: int) -> Session | None:
        """The next session that has messages and belongs to nobody."""
        for session_id in list(self._waiting):
            session = self.sessions[session_id]
            if not self._head(session):
                del self._waiting[session_id]
            elif session.is_free(now_ms):
                return session
        return None

    def _head(self, session: Session) -> Task | None:
        ready = session.ready
        while ready:
            task = self.tasks.get(ready[0])
            if task is not None and task.status == ACTIVE:
                return task
            heappop(ready)
        return None

    def take_session(self, session_id: str, count_max: int, *, wary: bool = False) -> list[Task]:
        session = self.session(session_id)
        taken: list[Task] = []
        if session.stopped_by:  # stopped in its holder's hands
            return taken
        while len(taken) < count_max and (task := self._head(session)) is not None:
            if wary and task.delivery_count:
                break
            heappop(session.ready)
            task.status = LOCKED
            taken.append(task)
        session.claimed.update(task.sequence for task in taken)
        return taken

    def take(self, count_max: int, *, now_ms: int, wary: bool = False) -> list[Task]:
        """Take runs of messages from free sessions; a session stays taken until its run is settled."""
        taken: list[Task] = []
        for session_id in list(self._waiting):
            if len(taken) >= count_max:
                break
            session = self.sessions[session_id]
            if session.is_free(now_ms):
                run = self.take_session(session_id, min(RUN_COUNT_MAX, count_max - len(taken)), wary=wary)
                taken += run
                if not self._head(session):
                    del self._waiting[session_id]
        return taken

    # Behind a dead letter

    def stop(self, session: Session, sequence: int) -> None:
        """Block a session behind a dead letter."""
        if not session.stopped_by:
            self._unshown.update(dict.fromkeys(sorted(session.ready)))
        session.stopped_by.add(sequence)

    def go_on(self, session: Session, sequence: int) -> None:
        """Unblock a session whose dead letter is gone, if that was the last; a later block shows its messages anew."""
        session.stopped_by.discard(sequence)
        if not session.stopped_by:
            session.shown.clear()
            self.settle_session(session)

    def show_again(self, session: Session) -> None:
        """Show what is behind a block when a receiver releases its lock on the session; nothing was shown meanwhile."""
        if session.stopped_by:
            self._unshown.update(dict.fromkeys(s for s in sorted(session.ready) if s not in session.shown))

    def take_blocked(self, count_max: int) -> list[Task]:
        taken: list[Task] = []
        while len(taken) < count_max and (task := self._next_blocked()) is not None:
            session = self.sessions[task.message.session_id]
            session.shown.add(task.sequence)
            session.claimed.add(task.sequence)
            task.status = LOCKED
            taken.append(task)
        return taken

    @property
    def has_blocked(self) -> bool:
        return self._next_blocked() is not None

    def _next_blocked(self) -> Task | None:
        unshown = self._unshown
        while unshown:
            sequence = next(iter(unshown))
            task = self.tasks.get(sequence)
            if task is not None and task.status == ACTIVE:
                session = self.sessions[task.message.session_id]
                if session.stopped_by and not session.lock:
                    return task
            del unshown[sequence]
        return None

    def given_back(self, task: Task) -> None:
        session = self.sessions.get(task.message.session_id)
        if session is not None:
            session.shown.discard(task.sequence)

    def _suspect_heads(self, now_ms: int) -> list[tuple[int, str]]:
        sessions = [self.sessions[session_id] for session_id in self._waiting]
        heads = [(session, self._head(session)) for session in sessions if session.is_free(now_ms)]
        return [
            (head.delivery_count, session.id) for session, head in heads if head is not None and head.delivery_count
        ]

    def least_suspect(self, now_ms: int) -> int:
        return min(self._suspect_heads(now_ms), default=(0, ""))[0]

    def take_suspect(self, now_ms: int) -> list[Task]:
        heads = self._suspect_heads(now_ms)
        return self.take_session(min(heads)[1], 1) if heads else []

    def has_available(self, now_ms: int, *, session: str | None = None) -> bool:
        if session is not None:
            found = self.sessions.get(session)
            return found is not None and not found.stopped_by and self._head(found) is not None
        return self.free_session(now_ms) is not None

    def may_leave(self, task: Task, now_ms: int) -> bool:
        session = self.session(task.message.session_id)
        return not session.stopped_by and session.held_until_ms <= now_ms

    def settle_session(self, session: Session) -> None:
        """Note that a session is held by nobody any more."""
        if self._head(session):
            self._waiting[session.id] = None
        else:
            self._drop_if_idle(session)

    def unlocked(self, task: Task) -> None:
        session = self.sessions.get(task.message.session_id)
        if session is not None:
            session.claimed.discard(task.sequence)
            if task.sequence not in self.tasks:
                session.shown.discard(task.sequence)
            self.settle_session(session)

    def _drop_if_idle(self, session: Session) -> None:
        if not (session.lock or session.claimed or session.ready or session.stopped_by or session.state):
            self.sessions.pop(session.id, None)
            self._waiting.pop(session.id, None)

    def rebuild(self) -> None:
        super().rebuild()
        for session in list(self.sessions.values()):
            self._drop_if_idle(session)


def make_queue(number: int, path: str, settings: QueueSettings, *, dead_letters: bool) -> Queue:
    """The kind of queue that the settings ask for; a dead-letter sub-queue has no order."""
    if settings.ordering == "per_key" and not dead_letters:
        return KeyedQueue(number, path, settings)
    return Queue(number, path, settings, is_primary=not dead_letters)


def oldest_enqueued_ms(tasks: Iterable[Task]) -> int | None:
    """When the oldest of these tasks arrived."""
    return min((task.enqueued_ms for task in tasks), default=None)
