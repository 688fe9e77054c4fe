"""The order of sessions: in an ordered queue a handling waits until all before it in its session has ended.

Only of what was there from the beginning is the order known; outputs arrive as their causes are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from outbox.verify.promises.reference import Handling


class SessionOrder:
    """The sessions of ordered queues."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], list[bytes]] = {}
        self._session_of: dict[bytes, list[bytes]] = {}
        self._ahead: dict[bytes, tuple[bytes, ...]] = {}
        self._blocking: set[bytes] = set()

    def add(self, path: str, session_id: str, handlings: Iterable[Handling]) -> None:
        """Put a message behind those that its session has already; a copy takes the place of the first."""
        session = self._sessions.setdefault((path, session_id), [])
        ahead = tuple(session)
        for handling in handlings:
            if handling.inbox not in session:
                session.append(handling.inbox)
                self._ahead[handling.inbox] = ahead
                self._session_of[handling.inbox] = session
            if handling.handler.on_dead_letter == "stop_key":
                self._blocking.add(handling.inbox)

    def overtaken(self, inbox: bytes, ended: Set[bytes]) -> bytes | None:
        """The first handling before this one that has not ended."""
        return next((other for other in self._ahead.get(inbox, ()) if other not in ended), None)

    def blocked_by(self, inbox: bytes, refused: Set[bytes]) -> bytes | None:
        """The refused handling that blocks the session of this one."""
        ahead = self._ahead.get(inbox, ())
        return next((other for other in ahead if other in self._blocking and other in refused), None)

    def is_blocked(self, inbox: bytes, dead: Set[bytes], applied: Set[bytes]) -> bool:
        """Whether the session of a handling is blocked, by what precedes it or by a copy of itself.

        Of what is applied only copies are left, and these may lie behind anything in the session.
        """
        ahead: Iterable[bytes] = self._ahead.get(inbox, ())
        if inbox in applied:
            ahead = self._session_of.get(inbox, ())
        return any(other in self._blocking and other in dead for other in (*ahead, inbox))

    def wrong(
        self, applied: Iterable[bytes], ended: Set[bytes], refused: Set[bytes]
    ) -> tuple[bytes, bytes, str] | None:
        """What takes effect before its turn or in a blocked session, and what precedes it."""
        for inbox in applied:
            earlier = self.overtaken(inbox, ended)
            if earlier is not None:
                return inbox, earlier, "takes effect before what precedes it:"
            stop = self.blocked_by(inbox, refused)
            if stop is not None:
                return inbox, stop, "takes effect, though its session is blocked by"
        return None
