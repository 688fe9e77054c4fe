"""Pages of scheduled messages by due time: a queue has them by number."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Generic, Protocol, TypeVar

from outbox.errors import Refused


class Scheduled(Protocol):
    """A scheduled message, on an engine or a bus, with its number and due time."""

    @property
    def sequence(self) -> int: ...
    @property
    def due_ms(self) -> int: ...


Found = TypeVar("Found", bound=Scheduled)


class PageByDue(Generic[Found]):
    """The next `count` messages by due time, behind the message of a number (0: from the first).

    Raises:
        Refused: no message of that number is scheduled any more; `behind` is what has it.
    """

    def __init__(self, queue: str, *, after: int, behind: Found | None, count: int) -> None:
        if after and behind is None:
            raise Refused(f"message {after} of {queue} is not scheduled any more; list from the start, without --after")
        self._behind = (0, 0) if behind is None else _order(behind)
        self._count = count
        self._found: list[Found] = []

    def see(self, some: Iterable[Found]) -> None:
        """Look at some that are scheduled."""
        wanted = [each for each in some if _order(each) > self._behind]
        self._found = nsmallest(self._count + 1, [*self._found, *wanted], key=_order)

    def page(self) -> tuple[list[Found], int]:
        """Return the page of the messages seen, and the number to continue after (0: none follow)."""
        found = self._found[: self._count]
        return found, found[-1].sequence if len(self._found) > self._count else 0


def _order(each: Scheduled) -> tuple[int, int]:
    return each.due_ms, each.sequence
