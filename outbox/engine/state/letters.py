"""The dead letters of one queue, by number and by identity.

An index over the tasks of a dead-letter sub-queue, which `Queue.rebuild` makes anew after a replay.  A page of them and
the copies of one are found without a look at the others.  A number that is gone is passed over, and dropped when most
are; a task joins and leaves by `add` and `drop`.
"""

from __future__ import annotations

from bisect import bisect_left

from outbox.engine.state.tasks import Task

SPARE_COUNT = 1_000
"""Numbers of gone letters are dropped when the list has this many more than twice the letters that are there."""


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
