"""A task of an engine's queue as an operator sees it: a message that is held, or a dead letter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from outbox.deliveries import HeldMessage
from outbox.engine.entities import DEAD_LETTER_SUFFIX
from outbox.engine.state.queues import Queue
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import ACTIVE, LOCKED, SCHEDULED, Task
from outbox.ops.shared.on_engine import tasks_of
from outbox.ports import DeadLetterEntry
from outbox.resubmission import dead_letter_name
from outbox.runtime.commit.loop_watch import WaitingHandler, waiting_handlers

AtWork = Mapping[tuple[str, int], WaitingHandler]
"""The handlers of this process that wait, by queue and number of their messages."""


def at_work() -> AtWork:
    """The handlers of this process that wait now."""
    return {(each.queue, each.sequence): each for each in waiting_handlers()}


def held_in(
    queue: Queue,
    task: Task,
    now_ms: int,
    dead: Mapping[int, Task] = MappingProxyType({}),
    busy: AtWork = MappingProxyType({}),
) -> HeldMessage:
    """Return a task as a held message; `dead` has the queue's dead letters, to name one that blocks it."""
    waiting = busy.get((queue.path, task.sequence)) if task.status == LOCKED else None
    due_ms, behind, blocked_by = task.due_ms, 0, None
    if isinstance(queue.order, SessionOrder) and task.status == ACTIVE:
        session = queue.order.session(task.message.session_id)
        first = min(session.claimed, default=0) or (session.ready[0] if session.ready else task.sequence)
        due_ms = session.held_until_ms if session.held_until_ms > now_ms else 0
        behind = first if first < task.sequence and (due_ms or session.claimed) else 0
        if session.blocked_by:
            letter = dead.get(min(session.blocked_by))
            blocked_by = "" if letter is None else identity_of(queue.path, letter)
    return HeldMessage(
        sequence=task.sequence,
        message=task.message,
        status=task.state,
        enqueued_ms=task.enqueued_ms,
        due_ms=due_ms,
        locked_until_ms=task.locked_until_ms if task.status == LOCKED else 0,
        delivery_count=task.delivery_count,
        failures=task.failures + task.message.failures,
        error=task.description or task.message.error,
        blocked_by=blocked_by,
        behind=behind,
        handler="" if waiting is None else waiting.handler,
        since_ms=0 if waiting is None else waiting.since_ms,
        at="" if waiting is None else waiting.at,
    )


def is_retried(task: Task) -> bool:
    """Whether a scheduled task waits for its next try: the rule of `held_messages.state_of`."""
    return bool(task.failures or task.message.failures or task.description or task.message.error)


class Counts(NamedTuple):
    """Counts of a queue's tasks by status, of retried ones, and when the oldest active or locked one arrived."""

    by_status: Counter[int]
    retried: int
    oldest_ms: int | None


async def counted(queue: Queue) -> Counts:
    """Count what a queue holds, slice by slice."""
    by_status, retried, oldest_ms = Counter[int](), 0, None
    async for some in tasks_of(queue):
        by_status.update([task.status for task in some])
        retried += sum(is_retried(task) for task in some if task.status == SCHEDULED)
        times = [task.enqueued_ms for task in some if task.status in (ACTIVE, LOCKED)]
        oldest_ms = min(times if oldest_ms is None else [*times, oldest_ms], default=None)
    return Counts(by_status, retried, oldest_ms)


def identity_of(queue: str, task: Task) -> str:
    """The identity of a task; one without an id of its own has its number for one."""
    return dead_letter_name(queue, task.sequence, task.message, task.reason)


def letters_of(letters: Queue, id: str) -> list[Task]:
    """Find a queue's dead letters with this identity by their index, oldest first."""
    assert letters.letters is not None, "a dead-letter sub-queue has an index"
    unnamed = _NUMBERED(id)
    task = None if unnamed is None else letters.tasks.get(int(unnamed[1]))
    also = [task] if task is not None and identity_of(letters.path.removesuffix(DEAD_LETTER_SUFFIX), task) == id else []
    return sorted({each.sequence: each for each in (*letters.letters.of(id), *also)}.values(), key=_number_of)


_NUMBERED = re.compile(r"sequence-(\d{1,18})").fullmatch
_number_of: Callable[[Task], int] = attrgetter("sequence")


def entry_of(queue: str, task: Task) -> DeadLetterEntry:
    """A task of a dead-letter sub-queue as a dead letter of its queue."""
    delivery_count = task.failures + task.delivery_count
    return DeadLetterEntry(
        queue, task.sequence, task.message, task.reason, task.description, delivery_count, task.enqueued_ms
    )
