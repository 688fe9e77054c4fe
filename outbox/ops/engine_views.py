"""A task of an engine's queue as an operator sees it: a message that is held, or a dead letter."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from outbox.deliveries import HeldMessage
from outbox.engine.state.queues import Queue
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import ACTIVE, LOCKED, Task
from outbox.ports import DeadLetterEntry
from outbox.resubmission import dead_letter_name
from outbox.runtime.commit.waiting_handlers import WaitingHandler, waiting_handlers

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
    """A task as it is found; `dead` are the queue's dead letters, for the identity of one that blocks its key."""
    waiting = busy.get((queue.path, task.sequence)) if task.status == LOCKED else None
    due_ms, behind, blocked_by = task.due_ms, 0, None
    if isinstance(queue.order, SessionOrder) and task.status == ACTIVE:
        session = queue.order.session(task.message.session_id)
        first = min(session.claimed, default=0) or min(session.ready, default=task.sequence)
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


def retried_in(queue: Queue) -> int:
    """How many of a queue's scheduled tasks wait for their next try: the rule of `held_messages.state_of`, for many."""
    return sum(
        bool(task.failures or task.message.failures or task.description or task.message.error)
        for task in queue.scheduled()
    )


def identity_of(queue: str, task: Task) -> str:
    """The identity of a task; one without an id of its own has its number for one."""
    return dead_letter_name(queue, task.sequence, task.message, task.reason)


def entry_of(queue: str, task: Task) -> DeadLetterEntry:
    """A task of a dead-letter sub-queue as a dead letter of its queue."""
    delivery_count = task.failures + task.delivery_count
    return DeadLetterEntry(
        queue, task.sequence, task.message, task.reason, task.description, delivery_count, task.enqueued_ms
    )
