"""What a modification does to one task, wherever it was and wherever it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.engine import records
from outbox.engine.items import ACTIVE, SCHEDULED, held_bytes
from outbox.engine.queues import KeyedQueue
from outbox.lineage import fingerprint

if TYPE_CHECKING:
    from outbox.engine.state import State


def change_task(state: State, item: records.TaskChange, now_ms: int, version: int) -> None:
    """Let one task be as a modification says: elsewhere, later, or with another message."""
    queue = state.paths[item.path]
    task = queue.tasks.pop(item.sequence)
    queue.unlocked(task)
    target = state.paths[item.to_path] if item.to_path is not None else queue
    stays, stops = target is queue, task.stops_session
    state.let_key_go(queue, task)
    if item.message is not None:
        state.body_bytes += held_bytes(item.message) - held_bytes(task.message)
        task.message = item.message
        task.fingerprint = fingerprint(item.message.body, item.message.type) if task.external else b""
    task.path, task.version, task.lock, task.due_ms = target.path, version, 0, item.due_ms
    task.status = SCHEDULED if item.due_ms > now_ms else ACTIVE
    target.tasks[task.sequence] = task
    primary = state.queues[queue.number - 1]
    if stays and stops and isinstance(primary, KeyedQueue):  # still there, maybe rewritten under another key
        task.stops_session = True
        primary.session(task.message.session_id).stopped_by.add(task.sequence)
    target.index(task)
