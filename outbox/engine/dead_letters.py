"""Dead letters: back to their queue as a new attempt, or away for good.

Decides whether a dead letter may still be resubmitted and what goes with it; listing them is a peek at their queue.
"""

from __future__ import annotations

from outbox.engine.broker import Broker
from outbox.engine.core import Core
from outbox.engine.entities import dead_letter_path
from outbox.engine.log import records
from outbox.engine.state.queues import Queue
from outbox.engine.state.tasks import LOCKED, Task
from outbox.message import Message
from outbox.resubmission import check_resubmittable, is_copy, next_attempt, resubmission


class DeadLetters:
    """The dead letters of every queue."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker

    def resubmit(self, path: str, sequence: int, *, edit: Message | None = None) -> None:
        """Send a dead letter of the queue `path` back to it, or an edit of it, as a new attempt with its first time.

        Other copies of it go: resubmitted later, when nothing remembers this one, they would be applied again.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
            Refused: no record proves that it was not applied.
        """
        core, (dead, task) = self._core, self._find(path, sequence)
        where, until_ms = f"{path}/{task.message.identity or sequence}", task.remembered_until_ms
        check_resubmittable(where, task.reason, task.description, is_remembered=not 0 < until_ms <= core.now_ms())
        others = [other for other in dead.tasks.values() if other is not task]
        copies = [other for other in others if other.status != LOCKED and is_copy(other.message, task.message)]
        attempt = next_attempt(task.message, [other.message for other in copies])
        if copies:
            core.do(records.Cancelled(dead.number, [other.sequence for other in copies]))
        message = resubmission(edit or task.message, attempt=attempt, enqueued_ms=task.enqueued_ms)
        core.do(records.Resubmitted(core.now_ms(), dead.number, sequence, message))
        self._broker.wake()

    def discard(self, path: str, sequence: int) -> None:
        """Delete a dead letter of the queue `path`.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
        """
        dead, _ = self._find(path, sequence)
        self._core.do(records.Cancelled(dead.number, [sequence]))
        self._broker.wake()

    def _find(self, path: str, sequence: int) -> tuple[Queue, Task]:
        dead = self._broker.queue(dead_letter_path(path))
        task = dead.tasks.get(sequence)
        if task is None or task.status == LOCKED:
            raise LookupError(f"{path} has no dead letter {sequence} that is free; list them again")
        return dead, task
