"""Sessions: the right to one key's messages, in order, held by one receiver at a time."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from outbox.engine.broker import Broker
from outbox.engine.core import Core
from outbox.engine.entities import SessionLock, Settlement
from outbox.engine.log import records
from outbox.engine.state.queues import Queue
from outbox.engine.state.session_order import Session, SessionOrder
from outbox.engine.state.tasks import LOCKED, pack_token, unpack_token
from outbox.errors import LockLost, TooLarge

STATE_BYTES_MAX = 256 * 1024


class Sessions:
    """The sessions of the engine.  A session's lock token names its lock and queue; its sequence is 0."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker
        self._held: dict[tuple[int, int], str] = {}
        """(queue number, lock) -> session id."""
        self._timers: list[tuple[int, int, int]] = []

    def accept(self, path: str, session_id: str | None) -> SessionLock | None:
        """Lock a session, or the next that has messages; None where that is not possible now."""
        queue = self._broker.queue(path)
        order = queue.sessions
        now_ms = self._core.now_ms()
        if queue.is_paused:
            return None
        session = order.free_session(now_ms) if session_id is None else order.session(session_id)
        if session is None or not session.is_free(now_ms):
            return None
        session.lock = self._broker.next_lock()
        session.locked_until_ms = now_ms + round(queue.settings.lock_s * 1_000)
        self._held[queue.number, session.lock] = session.id
        heappush(self._timers, (session.locked_until_ms, queue.number, session.lock))
        token = pack_token(self._core.epoch, session.lock, 0, queue.number)
        return SessionLock(path, session.id, token, session.locked_until_ms)

    def _session(self, token: bytes) -> tuple[Queue, Session]:
        epoch, lock, _, number = unpack_token(token)
        session_id = self._held.get((number, lock)) if epoch == self._core.epoch else None
        if session_id is not None:
            queue = self._core.state.queues[number]
            session = queue.sessions.session(session_id)
            if session.lock == lock and session.locked_until_ms > self._core.now_ms():
                return queue, session
        raise LockLost("the lock on the session is gone; it was released, ran out or the host restarted")

    def renew(self, lock_token: bytes) -> int:
        """Extend a session's lock, and with it those of its messages; its new end.

        Raises:
            LockLost: it is not held any more.
        """
        queue, session = self._session(lock_token)
        until_ms = self._core.now_ms() + round(queue.settings.lock_s * 1_000)
        session.locked_until_ms = until_ms
        heappush(self._timers, (until_ms, queue.number, session.lock))
        for sequence in session.claimed:
            self._broker.extend(queue, queue.tasks[sequence], until_ms)
        return until_ms

    def release(self, lock_token: bytes) -> None:
        """Unlock a session; what it had claimed is returned uncounted.

        Raises:
            LockLost: it is not held any more.
        """
        queue, session = self._session(lock_token)
        self._unlock(queue, session, Settlement.RELEASE)

    def _unlock(self, queue: Queue, session: Session, how: Settlement) -> None:
        del self._held[queue.number, session.lock]
        session.lock = 0
        queue.sessions.show_again(session)
        claimed = sorted(s for s in session.claimed if queue.tasks[s].status == LOCKED)
        if claimed:
            self._core.do(records.Settled(self._core.now_ms(), queue.number, how, claimed))
        queue.sessions.settle_session(session)
        self._broker.wake()

    def tick(self) -> None:
        """Unlock the sessions whose lock has run out; what they had claimed counts as delivered."""
        now_ms, timers = self._core.now_ms(), self._timers
        while timers and timers[0][0] <= now_ms:
            _, number, lock = heappop(timers)
            session_id = self._held.get((number, lock))
            queue = self._core.state.queues[number]
            if session_id is None or not isinstance(queue.order, SessionOrder):
                continue
            session = queue.order.session(session_id)
            if session.lock == lock and session.locked_until_ms <= now_ms:
                self._unlock(queue, session, Settlement.ABANDON)

    def next_due_ms(self) -> int | None:
        """When `tick` will next have something to do."""
        return self._timers[0][0] if self._timers else None

    def drop(self, numbers: Collection[int]) -> None:
        """Forget the locks on sessions of queues that are gone."""
        self._held = {held: session for held, session in self._held.items() if held[0] not in numbers}

    def state(self, lock_token: bytes) -> bytes:
        """The state kept with a session that is held; empty where none was set."""
        return self._session(lock_token)[1].state

    def set_state(self, lock_token: bytes, state: bytes) -> None:
        """Keep bytes with a session that is held; empty removes them.

        Raises:
            LockLost: it is not held any more.
            TooLarge: they are over 256 KiB.
        """
        queue, session = self._session(lock_token)
        if len(state) > STATE_BYTES_MAX:
            raise TooLarge(f"state of session {session.id} is over {STATE_BYTES_MAX} bytes; keep it in a document")
        self._core.do(records.SessionSet(queue.number, session.id, state))

    def ids(self, path: str) -> list[str]:
        """The ids of the sessions that hold messages or state, sorted."""
        queue = self._broker.queue(path)
        sessions = queue.sessions.sessions.values()
        held = {task.message.session_id for task in queue.tasks.values()}
        return sorted(held | {session.id for session in sessions if session.state})
