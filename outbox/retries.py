"""The answers of a handler, `Reject` and `Retry`, and the limits of its retries."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.errors import OutboxError

DELAY_S_MAX = 10 * 366 * 86_400.0
"""The longest delay, ten years."""


class Reject(OutboxError):  # it is raised as an answer, not as an error
    """Refuse the message for good: it is dead-lettered with this reason and nothing else happens."""


class Retry(OutboxError):  # it is raised as an answer, not as an error
    """Ask for another delivery after `after_s` seconds; it does not count as a failure, but ends with retention."""

    def __init__(self, reason: str = "", *, after_s: float = 1.0) -> None:
        super().__init__(reason)
        if not 0 <= after_s <= DELAY_S_MAX:
            raise ValueError(f"after_s={after_s}: give seconds from now, 0 to {DELAY_S_MAX:.0f}")
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Retries:
    """The retries of failed deliveries: at most `limit` attempts, with these delays in seconds, the last repeating."""

    limit: int = 5
    delays_s: tuple[float, ...] = (1.0, 10.0, 60.0)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit={self.limit}: a message must be tried at least once")
        if not all(0 <= delay_s <= DELAY_S_MAX for delay_s in self.delays_s):
            raise ValueError(f"delays_s={self.delays_s}: give seconds, each 0 to {DELAY_S_MAX:.0f}")

    def delay_s(self, failures: int) -> float:
        """The delay in seconds after this many `failures`, at least one."""
        return self.delays_s[min(failures, len(self.delays_s)) - 1] if self.delays_s else 0.0
