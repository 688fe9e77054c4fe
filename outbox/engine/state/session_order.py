"""The order in which a `per_key` queue hands out its messages: session by session.

A session belongs to one receiver at a time, its messages leave in sequence order, and nothing overtakes its head, not
even while the head waits for a retry.  A session that is blocked by a dead letter hands out nothing to be handled; each
message behind the block is shown once to whoever puts on record that it waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

from outbox.engine.state.tasks import ACTIVE, LOCKED, Task

RUN_COUNT_MAX = 16
"""How many messages of one session are handed out at a time."""


class Session:
    """One session of a queue ordered by key: its ready messages and who may receive them."""

    __slots__ = ("blocked_by", "claimed", "held_until_ms", "id", "lock", "locked_until_ms", "ready", "shown", "state")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.ready: list[int] = []
        self.lock = 0
        self.locked_until_ms = 0
        self.claimed: set[int] = set()
        self.held_until_ms = 0
        self.blocked_by: set[int] = set()
        self.shown: set[int] = set()
        """The messages behind the block that were taken by `take_blocked`."""
        self.state = b""

    def is_free(self, now_ms: int) -> bool:
        """Whether another receiver may accept it."""
        return not self.lock and not self.claimed and not self.blocked_by and self.held_until_ms <= now_ms


class SessionOrder:
    """The sessions of one queue, and which may be received from."""

    def __init__(self, tasks: dict[int, Task]) -> None:
        self._tasks = tasks
        self.sessions: dict[str, Session] = {}
        self.blocked: list[str] = []
        """The sessions that a dead letter blocks, in order."""
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

    def add(self, task: Task, *, fresh: bool) -> None:
        """Put a task that is ready behind the others of its session."""
        session = self.session(task.message.session_id)
        heappush(session.ready, task.sequence)
        if task.due_ms > session.held_until_ms:  # given back with a delay: nothing overtakes it meanwhile
            self.hold(session, task.due_ms)
        if session.blocked_by and task.sequence not in session.shown:
            self._unshown[task.sequence] = None
        self._waiting[session.id] = None

    def hold(self, session: Session, until_ms: int) -> None:
        """Keep a session back until its head may be tried again."""
        session.held_until_ms = until_ms
        heappush(self._held, (until_ms, session.id))

    def clear(self) -> None:
        """Drop every index and lock; which sessions are blocked is known from what blocks them."""
        self._waiting.clear()
        self._held.clear()
        self._unshown.clear()
        for session in self.sessions.values():
            session.ready.clear()
            session.claimed.clear()
            session.shown.clear()
            session.lock = session.held_until_ms = 0
        self.blocked = sorted(session.id for session in self.sessions.values() if session.blocked_by)

    def promote(self, now_ms: int) -> None:
        """Forget the delays that are over."""
        while self._held and self._held[0][0] <= now_ms:
            heappop(self._held)

    def next_due_ms(self) -> int | None:
        """When `promote` will next have something to do."""
        return self._held[0][0] if self._held else None

    def free_session(self, now_ms: int) -> Session | None:
        """The next session that has messages and no receiver."""
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
            task = self._tasks.get(ready[0])
            if task is not None and task.status == ACTIVE and task.message.session_id == session.id:
                return task
            heappop(ready)  # it has gone, or was rewritten under another session
        return None

    def take_session(self, session_id: str, count_max: int, *, wary: bool = False) -> list[Task]:
        """Take messages of a session that the caller holds; `wary` leaves suspects out."""
        session = self.session(session_id)
        taken: list[Task] = []
        if session.blocked_by:  # blocked in its holder's hands
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
                taken += self.take_session(session_id, min(RUN_COUNT_MAX, count_max - len(taken)), wary=wary)
                if not self._head(session):
                    del self._waiting[session_id]
        return taken

    # Behind a dead letter

    def block(self, session: Session, sequence: int) -> None:
        """Block a session behind a dead letter."""
        if not session.blocked_by:
            self._unshown.update(dict.fromkeys(sorted(session.ready)))
            insort(self.blocked, session.id)
        session.blocked_by.add(sequence)

    def unblock(self, session: Session, sequence: int) -> None:
        """Unblock a session whose dead letter is gone, if that was the last; a later block shows its messages anew."""
        session.blocked_by.discard(sequence)
        if not session.blocked_by:
            at = bisect_left(self.blocked, session.id)
            del self.blocked[at : at + (self.blocked[at : at + 1] == [session.id])]
            session.shown.clear()
            self.settle_session(session)

    def show_again(self, session: Session) -> None:
        """Show the messages behind a block when a receiver releases its session lock; nothing was shown meanwhile."""
        if session.blocked_by:
            self._unshown.update(dict.fromkeys(s for s in sorted(session.ready) if s not in session.shown))

    def take_blocked(self, count_max: int) -> list[Task]:
        """Take messages that wait behind a dead letter and were not shown yet."""
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
        """Whether `take_blocked` would find anything."""
        return self._next_blocked() is not None

    def _next_blocked(self) -> Task | None:
        unshown = self._unshown
        while unshown:
            sequence = next(iter(unshown))
            task = self._tasks.get(sequence)
            if task is not None and task.status == ACTIVE:
                session = self.sessions[task.message.session_id]
                if session.blocked_by and not session.lock:
                    return task
            del unshown[sequence]
        return None

    def returned(self, task: Task) -> None:
        """Note that a claimed task comes back as it was."""
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
        """How often the least suspect head of a session was delivered without being settled; 0 where there is none."""
        return min(self._suspect_heads(now_ms), default=(0, ""))[0]

    def take_suspect(self, now_ms: int) -> list[Task]:
        """Take the least suspect head of a session, alone."""
        heads = self._suspect_heads(now_ms)
        return self.take_session(min(heads)[1], 1) if heads else []

    def has_available(self, now_ms: int, *, session: str | None = None) -> bool:
        """Whether a claim now, of any session or of one that the caller holds, would find anything."""
        if session is not None:
            found = self.sessions.get(session)
            return found is not None and not found.blocked_by and self._head(found) is not None
        return self.free_session(now_ms) is not None

    def may_leave(self, task: Task, now_ms: int) -> bool:
        """Whether an active task could be handed out now, but for those in front of it."""
        session = self.session(task.message.session_id)
        return not session.blocked_by and session.held_until_ms <= now_ms

    def settle_session(self, session: Session) -> None:
        """Note that a session has no receiver any more."""
        if self._head(session):
            self._waiting[session.id] = None
        else:
            self._drop_if_idle(session)

    def unlocked(self, task: Task) -> None:
        """Note that a claimed task is no longer claimed, or gone."""
        session = self.sessions.get(task.message.session_id)
        if session is not None:
            session.claimed.discard(task.sequence)
            if task.sequence not in self._tasks:
                session.shown.discard(task.sequence)
            self.settle_session(session)

    def _drop_if_idle(self, session: Session) -> None:
        if not (session.lock or session.claimed or session.ready or session.blocked_by or session.state):
            self.sessions.pop(session.id, None)
            self._waiting.pop(session.id, None)

    def drop_idle(self) -> None:
        """Forget the sessions of which nothing is left."""
        for session in list(self.sessions.values()):
            self._drop_if_idle(session)
