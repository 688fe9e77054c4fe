"""Sessions: the right to one key's messages, in order, held by one receiver at a time."""

from __future__ import annotations

from heapq import heappop, heappush

from outbox.engine import records
from outbox.engine.broker import Broker
from outbox.engine.entities import SessionLock, Settlement
from outbox.engine.items import LOCKED, pack_token, unpack_token
from outbox.engine.queues import KeyedQueue, Session
from outbox.errors import LockLost, TooLarge, UnknownDestination

STATE_BYTES_MAX = 256 * 1024


class Sessions(Broker):
    """The sessions' side of the engine.  A session's lock token names its lock and queue; its sequence is 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held: dict[tuple[int, int], str] = {}
        """(queue number, lock) -> session id."""
        self._session_timers: list[tuple[int, int, int]] = []

    def _keyed(self, path: str) -> KeyedQueue:
        queue = self.queue(path)
        if not isinstance(queue, KeyedQueue):
            raise UnknownDestination(f"queue {path!r} is not ordered by key and has no sessions; receive without one")
        return queue

    def accept_session(self, path: str, session_id: str | None) -> SessionLock | None:
        """Lock a session, or the next that has messages; None where that is not possible now."""
        queue = self._keyed(path)
        now_ms = self.now_ms()
        session = queue.free_session(now_ms) if session_id is None else queue.session(session_id)
        if session is None or not session.is_free(now_ms):
            return None
        self._lock_count += 1
        session.lock = self._lock_count
        session.locked_until_ms = now_ms + round(queue.settings.lock_s * 1_000)
        self._held[queue.number, session.lock] = session.id
        heappush(self._session_timers, (session.locked_until_ms, queue.number, session.lock))
        token = pack_token(self._epoch, session.lock, 0, queue.number)
        return SessionLock(path, session.id, token, session.locked_until_ms)

    def _session(self, token: bytes) -> tuple[KeyedQueue, Session]:
        epoch, lock, _, number = unpack_token(token)
        session_id = self._held.get((number, lock)) if epoch == self._epoch else None
        if session_id is not None:
            queue = self.state.queues[number]
            assert isinstance(queue, KeyedQueue)
            session = queue.session(session_id)
            if session.lock == lock and session.locked_until_ms > self.now_ms():
                return queue, session
        raise LockLost("the lock on the session is gone; it was released, ran out or the host restarted")

    def renew_session(self, lock_token: bytes) -> int:
        """Extend a session's lock, and with it those of its messages; its new end.

        Raises:
            LockLost: it is not held any more.
        """
        queue, session = self._session(lock_token)
        until_ms = self.now_ms() + round(queue.settings.lock_s * 1_000)
        session.locked_until_ms = until_ms
        heappush(self._session_timers, (until_ms, queue.number, session.lock))
        for sequence in session.claimed:
            task = queue.tasks[sequence]
            task.locked_until_ms = until_ms
            heappush(self._lock_timers, (until_ms, queue.number, task.lock, [sequence]))
        return until_ms

    def release_session(self, lock_token: bytes) -> None:
        """Let a session go; what it had claimed goes back uncounted.

        Raises:
            LockLost: it is not held any more.
        """
        queue, session = self._session(lock_token)
        self._unblock(queue, session, Settlement.RELEASE)

    def _unblock(self, queue: KeyedQueue, session: Session, how: Settlement) -> None:
        del self._held[queue.number, session.lock]
        session.lock = 0
        queue.show_again(session)
        claimed = sorted(s for s in session.claimed if queue.tasks[s].status == LOCKED)
        if claimed:
            self.do(records.Settled(self.now_ms(), queue.number, how, claimed))
        queue.settle_session(session)
        self.wake()

    def tick(self) -> None:
        now_ms, timers = self.now_ms(), self._session_timers
        while timers and timers[0][0] <= now_ms:
            _, number, lock = heappop(timers)
            session_id = self._held.get((number, lock))
            queue = self.state.queues[number]
            if session_id is None or not isinstance(queue, KeyedQueue):
                continue
            session = queue.session(session_id)
            if session.lock == lock and session.locked_until_ms <= now_ms:
                self._unblock(queue, session, Settlement.ABANDON)
        super().tick()

    def next_due_ms(self) -> int | None:
        own = [self._session_timers[0][0]] if self._session_timers else []
        other = super().next_due_ms()
        return min([*own, *([] if other is None else [other])], default=None)

    def session_state(self, lock_token: bytes) -> bytes:
        """The state kept with a session that is held; empty where none was set."""
        return self._session(lock_token)[1].state

    def set_session_state(self, lock_token: bytes, state: bytes) -> None:
        """Keep bytes with a session that is held; empty removes them.

        Raises:
            LockLost: it is not held any more.
            TooLarge: they are over 256 KiB.
        """
        queue, session = self._session(lock_token)
        if len(state) > STATE_BYTES_MAX:
            raise TooLarge(f"state of session {session.id} is over {STATE_BYTES_MAX} bytes; keep it in a document")
        self.do(records.SessionSet(queue.number, session.id, state))

    def sessions(self, path: str) -> list[str]:
        """The ids of the sessions that hold messages or state, sorted."""
        queue = self._keyed(path)
        held = {task.message.session_id for task in queue.tasks.values()}
        return sorted(held | {session.id for session in queue.sessions.values() if session.state})
