"""The trail of a message on an engine: its queues, dead letters and markers.

A message that a commit of this log made, for one handler, needs no marker: the record that applies it consumes it.  So
once it is applied nothing is left of it but what it sent, and the trail says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from outbox.cancellation import cancelled_ms
from outbox.engine.backend.store import EngineStore
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.engine.state.tasks import Task
from outbox.lineage import Key, parse_state_id
from outbox.ops.engine_views import at_work, held_in, identity_of
from outbox.ops.held_messages import state_of, why
from outbox.ops.names import parse_key
from outbox.ops.trail import Sighting
from outbox.ops.trail_records import (
    TRIED_COUNT_MAX,
    Outcome,
    Registered,
    causes,
    handled_by,
    key_in,
    outcomes,
    reach_unseen,
    registered,
)
from outbox.ops.trail_values import Fact, Trail, TrailQuery
from outbox.ports import Refusal
from outbox.runtime.commit.marker_replies import as_record
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES
from outbox.stored import Record

NO_MARKERS = (
    "an engine keeps no record of an applied message that another one sent, and none of any after retention: of those "
    "only what they sent is seen, while it is there; a history has them all (`outbox run --history FILE`, then "
    "--history FILE here)"
)

_Place = tuple[str, Task, bool]
"""A queue, a message of it, and whether that is a dead letter."""


async def trail_on_engine(engine: Engine, asked: TrailQuery, taker: Callable[[str], str]) -> Trail:
    """What the engine knows of a message, its causes and its effects; `taker` says whom a queue's messages wait for.

    Raises:
        Refused: several ids have this prefix, or the key is not of its kind.
    """
    key = parse_key(asked.key, asked.kind) if asked.key else None
    handlers = await registered(EngineStore(engine.core, engine.documents).scan(NOTES, prefix=NOTE_PREFIX))

    def keys(state: str) -> Iterable[Key]:
        return (key,) if key is not None else _keys(engine, state)

    reached, linked = reach_unseen(asked, lambda: _sightings(engine), handlers, keys, lambda what: what[1].message)
    facts = [_fact(engine, each, handlers, taker) for each in reached.sightings]
    facts += linked
    seen = [Sighting(each.id, each.cause, (each.what[0], each.what[1].message)) for each in reached.sightings]
    facts += causes(seen, handlers, keys)

    async def look_up(state: str | None, inbox: bytes) -> Outcome | None:
        marker = engine.state.markers.known.get(inbox)
        if isinstance(marker, Refusal):
            return Outcome(marker.reason, marker.description, waits=marker.waits)
        if marker is None:
            return None
        record = as_record(marker)
        return Outcome(cancelled_ms=cancelled_ms(record.replaced if isinstance(record, Record) else ()))

    facts += await outcomes(reached.ids, seen, handlers, look_up, key=key, keys=keys)
    await engine.core.gate()
    notes = [NO_MARKERS]
    if reached.is_cut:
        notes.append("there is more than a trail may hold; trace one of its last messages")
    return Trail(reached.id, facts, notes, reached.near)


def _sightings(engine: Engine) -> Iterator[Sighting[_Place]]:
    for path in sorted(engine.topology.queues):
        for place, is_dead in ((path, False), (dead_letter_path(path), True)):
            for task in engine.broker.queue(place).tasks.values():
                yield Sighting(identity_of(path, task), task.message.causation_id, (path, task, is_dead))


def _fact(engine: Engine, seen: Sighting[_Place], handlers: list[Registered], taker: Callable[[str], str]) -> Fact:
    path, task, is_dead = seen.what
    its = [each.handler for each in handlers if each.takes(path)]
    keys = dict.fromkeys(str(key) for each in its if (key := key_in(each, task.message)) is not None)
    more: dict[str, Any] = {
        "id": seen.id,
        "cause": seen.cause,
        "queue": path,
        "handler": handled_by(handlers, path),
        "key": task.message.session_id or ", ".join(keys),
        "at": task.enqueued_ms / 1_000,
        "correlation_id": task.message.correlation_id,
    }
    if is_dead:
        text = f"{task.reason}: {task.description.partition(chr(10))[0]}"
        return Fact(place="dead-letter", known_by="dead letter", why=text, **more)
    now_ms, dead = engine.now_ms(), engine.broker.queue(dead_letter_path(path)).tasks
    held = held_in(engine.broker.queue(path), task, now_ms, dead, at_work())
    fact = Fact(place=state_of(held, now_ms), known_by="queue", why=why(held, now_ms, taker(path)), **more)
    return msgspec.structs.replace(fact, handler=held.handler) if held.handler else fact


def _keys(engine: Engine, state: str) -> Iterable[Key]:
    """The keys of the states of a name that are stored in clear."""
    begins = f"{state}:"
    ids = (id for id in islice(engine.state.documents.spaces[STATES], 10 * TRIED_COUNT_MAX) if id.startswith(begins))
    return (parsed[1] for id in ids if (parsed := parse_state_id(id)) is not None and parsed[0] == state)
