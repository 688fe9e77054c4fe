"""The order in which a queue without keys hands out its messages: by sequence, returned messages first.

A *suspect* is a message that was delivered before and never settled: it may be what killed its host, so a host takes it
alone, the least suspect first, and everything else before it; its neighbours would otherwise die of it delivery by
delivery.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from outbox.engine.state.tasks import ACTIVE, LOCKED, Task


class PlainOrder:
    """The ready messages of one queue, in order; no message waits for another."""

    def __init__(self, tasks: dict[int, Task]) -> None:
        self._tasks = tasks
        self.fresh: deque[int] = deque()
        """Sequences that were never handed out, each once, in order; the newest is put in behind them."""
        self._returned: list[int] = []
        self._suspects: list[tuple[int, int]] = []

    def add(self, task: Task, *, fresh: bool) -> None:
        """Put a task that is ready among the others; `fresh` says that it is the newest of the queue."""
        if task.delivery_count:
            heappush(self._suspects, (task.delivery_count, task.sequence))
        elif fresh:
            self.fresh.append(task.sequence)
        else:
            heappush(self._returned, task.sequence)

    def clear(self) -> None:
        """Drop every index."""
        self.fresh.clear()
        self._returned.clear()
        self._suspects.clear()

    def promote(self, now_ms: int) -> None:
        """Forget the delays that are over; there are none."""

    def next_due_ms(self) -> int | None:
        """When `promote` will next have something to do: never."""
        return None

    def take(self, count_max: int, *, now_ms: int, wary: bool = False) -> list[Task]:
        """Take up to `count_max` ready tasks in order; they are locked from here on.  `wary` leaves suspects out."""
        taken: list[Task] = []
        find, returned, fresh = self._tasks.get, self._returned, self.fresh
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
            task = self._tasks.get(suspects[0][1])
            if task is not None and task.status == ACTIVE:
                return suspects[0][0]
            heappop(suspects)
        return 0

    def take_suspect(self, now_ms: int) -> list[Task]:
        """Take the least suspect message, alone."""
        if not self.least_suspect(now_ms):
            return []
        task = self._tasks[heappop(self._suspects)[1]]
        task.status = LOCKED
        return [task]

    def has_available(self, now_ms: int, *, session: str | None = None) -> bool:
        """Whether a claim now would find anything."""
        returned, fresh = self._returned, self.fresh
        while entries := returned or fresh:
            task = self._tasks.get(entries[0])
            if task is not None and task.status == ACTIVE:
                return True
            if entries is returned:
                heappop(returned)
            else:
                fresh.popleft()
        return self.least_suspect(0) > 0

    def take_blocked(self, count_max: int) -> list[Task]:
        """Take messages that wait behind a dead letter and were not shown yet; only a queue with keys has any."""
        return []

    @property
    def has_blocked(self) -> bool:
        """Whether `take_blocked` would find anything."""
        return False

    def may_leave(self, task: Task, now_ms: int) -> bool:
        """Whether an active task could be handed out now."""
        return True

    def returned(self, task: Task) -> None:
        """Note that a claimed task comes back as it was."""

    def unlocked(self, task: Task) -> None:
        """Note that a claimed task is no longer claimed, or gone."""

    def drop_idle(self) -> None:
        """Forget what nothing is left of; there is nothing but tasks."""
