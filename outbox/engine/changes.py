"""Larger changes of the state: what a modification does to one task, and entities that get rules or go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.engine import records
from outbox.engine.entities import DEAD_LETTER_SUFFIX, QueueSettings, TopicSettings, subscription_path
from outbox.engine.items import ACTIVE, SCHEDULED, held_bytes
from outbox.engine.queues import KeyedQueue, make_queue
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


def route(state: State, record: records.Routed, version: int) -> None:
    """Put messages into the queues that took them."""
    state.time_ms = max(state.time_ms, record.now_ms)
    digests = [fingerprint(message.body, message.type) for message in record.messages]
    for number, indexes in record.parts:
        queue = state.queues[number]
        for index in indexes:
            message = record.messages[index]
            if not queue.is_duplicate(message.broker_id, record.now_ms):
                state.insert(queue, message, record.now_ms, record.due_ms, version, digests[index])


def rule(state: State, record: records.Ruled, version: int) -> None:
    """Give a subscription its rules."""
    state.rules[record.path] = {item.name: item for item in record.rules}


def delete(state: State, record: records.Deleted, version: int) -> None:
    """Let an entity go; the number of a queue is free for the next one that is declared."""
    topic = state.topics.pop(record.path, None)
    if topic is None:
        _delete_queue(state, record.path)
        return
    for name in topic.subscriptions:
        _delete_queue(state, subscription_path(topic.name, name))
    del state.routes[topic.name]


def _delete_queue(state: State, path: str) -> None:
    number = state.paths[path].number
    for at in (number, number + 1):
        state.body_bytes -= sum(held_bytes(task.message) for task in state.queues[at].tasks.values())
        del state.paths[state.queues[at].path]
    free_slot(state, number)
    state.routes.pop(path, None)
    state.rules.pop(path, None)
    for topic in list(state.topics.values()):
        kept = tuple(name for name in topic.subscriptions if subscription_path(topic.name, name) != path)
        if kept != topic.subscriptions:
            state.topics[topic.name] = TopicSettings(topic.name, kept)
            state.route_topic(topic.name)


def free_slot(state: State, number: int) -> None:
    """Let the next queue have this number; until then, whatever names it meets an empty one without a path."""
    for at, path in ((number, ""), (number + 1, DEAD_LETTER_SUFFIX)):
        empty = make_queue(at, path, QueueSettings(""), dead_letters=True)
        if at < len(state.queues):
            state.queues[at] = empty
        else:
            state.queues.append(empty)
    state.free = sorted((*state.free, number))
