"""Limits on a peer, and the bytes that connections hold of it: each one, and all together.

A message in several transfers lies here until its last is there, and what a link was attached with for as long as the
link.  Both are the peer's to choose, for every link of every session, so that a limit of a message's size alone is
none.  Small things count for what they take in memory, not for what they took on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from outbox.emulator.amqp.errors import RESOURCE_LIMIT, ConnectionFault, SessionFault

MESSAGE_SIZE_MAX_BYTES = 256 * 1024
POOL_MAX_BYTES = 64 << 20
PART_BYTES = 64
"""The bytes of a part of a message besides its contents."""
SESSION_BYTES = 1_024
LINK_BYTES = 1_024
ATTACH_FACTOR = 8
"""An attach, decoded, takes some times its bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection.  Sizes of messages and counts of links are Service Bus Standard's by default.

    Its clients have a session a link (JavaScript), one for a sender or receiver (Python) or one for all (.NET).
    `held_max_bytes` is what unfinished messages, sessions, links and replies that wait may take, at least two messages.
    Until a peer has put a valid token, it may have `unclaimed_max_bytes` of that, and frames of `unclaimed_max_bytes`.
    """

    frame_size_max_bytes: int = 1 << 20
    message_size_max_bytes: int = MESSAGE_SIZE_MAX_BYTES
    session_count_max: int = 5_000
    link_count_max: int = 5_000
    unsettled_count_max: int = 20_000
    held_max_bytes: int = 24 << 20
    unclaimed_max_bytes: int = 64 << 10


@dataclass(slots=True)
class Pool:
    """The bytes held by all connections of a process."""

    max_bytes: int = POOL_MAX_BYTES
    held_bytes: int = 0


@dataclass(slots=True)
class Quota:
    """The bytes held by one connection."""

    pool: Pool
    max_bytes: int
    held_bytes: int = 0
    link_count: int = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more may be held."""
        return (
            self.held_bytes + size_bytes <= self.max_bytes
            and self.pool.held_bytes + size_bytes <= self.pool.max_bytes
        )  # fmt: skip

    def take(self, size_bytes: int, fault: type[ConnectionFault] | type[SessionFault] = ConnectionFault) -> None:
        """Hold so much more.

        Raises:
            ConnectionFault: there is no room for it; or SessionFault, if `fault` says so.
        """
        if not self.has_room(size_bytes):
            text = (
                f"messages and links that are not finished hold {self.held_bytes} bytes; {self.max_bytes} is the limit"
            )
            if self.held_bytes + size_bytes <= self.max_bytes:
                text = f"unfinished messages and links of all connections hold {self.pool.held_bytes} bytes; try again"
            raise fault(RESOURCE_LIMIT, text)
        self.held_bytes += size_bytes
        self.pool.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Hold so much less."""
        self.held_bytes -= size_bytes
        self.pool.held_bytes -= size_bytes
