"""The trail of a message on an engine: its queues, dead letters and markers.

A message that a commit of this log made, for one handler, needs no marker: the record that applies it consumes it.  So
once it is applied nothing is left of it but what it sent, and the trail says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outbox.cancellation import cancelled_ms
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.lineage import Key
from outbox.ops.shared.held_messages import state_of, why
from outbox.ops.shared.names import parse_key
from outbox.ops.shared.on_engine import EngineSite
from outbox.ops.shared.slices import MOVED_COUNT, in_slices
from outbox.ops.shared.tasks import at_work, held_in
from outbox.ops.trail.records import (
    Outcome,
    Registered,
    Seen,
    causes,
    handled_by,
    key_in,
    outcomes,
    reach_unseen,
    registered,
)
from outbox.ops.trail.sightings import Place, Sightings, TriedKeys
from outbox.ops.trail.tree import Sighting, inbox_of_cause
from outbox.ops.values.requests import Answers
from outbox.ops.values.trail import Fact, FindTrail, Trail
from outbox.ports import Refusal
from outbox.runtime.commit.marker_replies import as_record
from outbox.runtime.start.notes import HANDLER_PREFIX
from outbox.stored import Record

NO_MARKERS = (
    "an engine keeps no record of an applied message that another one sent, and none of any after retention: of those "
    "only what they sent is seen, while it is there; a history has them all (`outbox run --history FILE`, then "
    "--history FILE here)"
)


async def find_trail(at: EngineSite, asked: FindTrail) -> Trail:
    """Find a message, its causes and its effects in the engine.

    Raises:
        Refused: several ids have this prefix, or the key is not of its kind.
    """
    engine, key = at.engine, parse_key(asked.key, asked.kind) if asked.key else None
    handlers = await registered(at.notes(HANDLER_PREFIX))
    sightings, keys = Sightings(engine, asked), TriedKeys(engine, handlers, key)
    id, near = await sightings.resolve()
    asked = msgspec.structs.replace(asked, id=id)
    await sightings.expand((id, *asked.known))
    if sightings.names_outputs:
        await _see_unseen_effects(id, sightings, keys)
    found = sightings.found()
    reached, linked = reach_unseen(asked, lambda: iter(found), handlers, keys.of, lambda what: what[1].message)
    facts = list[Fact]()
    async for some in in_slices(reached.sightings, MOVED_COUNT):
        facts += [_fact(engine, each, handlers, at.taker) for each in some]
    facts += linked
    seen = [Sighting(each.id, each.cause, (each.what[0], each.what[1].message)) for each in reached.sightings]
    facts += await _outcomes(engine, reached.ids, seen, handlers, keys, key)
    await engine.core.gate()
    notes = [NO_MARKERS]
    if reached.is_cut:
        notes.append("there is more than a trail may hold; trace one of its last messages")
    return Trail(reached.id, facts, notes, near)


async def _see_unseen_effects(id: str, sightings: Sightings, keys: TriedKeys) -> None:
    """Follow outputs that are gone to their effects, from the message and from first messages by correlation id."""
    starts = dict.fromkeys((id, *filter(None, (each.what[1].message.correlation_id for each in sightings.found()))))
    tried = {inbox: (state, key) async for inbox, state, key in keys.inboxes(starts)}
    outputs = await sightings.outputs_of(tried.keys())
    for output in outputs:
        keys.use(*tried[inbox_of_cause(output) or b""])
    await sightings.expand(outputs)


async def _outcomes(
    engine: Engine,
    ids: Sequence[str],
    seen: Sequence[Sighting[Seen]],
    handlers: Sequence[Registered],
    keys: TriedKeys,
    key: Key | None,
) -> list[Fact]:
    """Return facts about causes, from outputs in sight, and about messages that are gone, from their markers."""
    await keys.keep_useful(
        dict.fromkeys(each.cause for each in seen if each.cause),
        {inbox for each in seen if (inbox := inbox_of_cause(each.id)) is not None},
    )
    in_sight, markers = {each.id for each in seen}, engine.state.markers.known
    await keys.keep_useful([id for id in ids if id not in in_sight], markers.keys())
    facts = list[Fact]()
    async for some in in_slices(causes(seen, handlers, keys.of), MOVED_COUNT):
        facts += some

    async def look_up(state: str | None, inbox: bytes) -> Outcome | None:
        await asyncio.sleep(0)
        marker = markers.get(inbox)
        if isinstance(marker, Refusal):
            return Outcome(marker.reason, marker.description, waits=marker.waits)
        if marker is None:
            return None
        record = as_record(marker)
        return Outcome(cancelled_ms=cancelled_ms(record.replaced if isinstance(record, Record) else ()))

    return [*facts, *await outcomes(ids, seen, handlers, look_up, key=key, keys=keys.of)]


def _fact(engine: Engine, seen: Sighting[Place], handlers: list[Registered], taker: Callable[[str], str]) -> Fact:
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


ANSWERS: Answers = {FindTrail: find_trail}
