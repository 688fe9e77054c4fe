"""The trail of a message on an engine: its queues, dead letters and markers.

A message that a commit of this log made, for one handler, needs no marker: the record that applies it consumes it.  So
once it is applied nothing is left of it but what it sent, and the trail says so.

The messages of a trail are found in passes.  A pass reads every message once, slice by slice, and keeps those whose id
or cause is asked for; the next pass asks for the ids that it found.  So memory grows with the trail, not with the
engine.  Keys are tried apart from that: of a state's keys only those are kept that lead to a record, or to an output in
sight.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from outbox.app import NO_KEY
from outbox.cancellation import cancelled_ms
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.engine.state.tasks import Task
from outbox.lineage import Key, parse_state_id
from outbox.ops.shared.held_messages import state_of, why
from outbox.ops.shared.names import parse_key
from outbox.ops.shared.on_engine import MOVED_COUNT, EngineSite, Named, in_slices, is_there, tasks_of
from outbox.ops.shared.tasks import at_work, held_in, identity_of
from outbox.ops.trail.records import (
    TRIED_COUNT_MAX,
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
from outbox.ops.trail.tree import FACT_COUNT_MAX, NEAR_COUNT_MAX, Sighting, full_id, inbox_of_cause
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
Place = tuple[str, Task, bool]
"""A queue, a message of it, and whether that is a dead letter."""


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


class Sightings:
    """The messages seen that belong to a trail."""

    def __init__(self, engine: Engine, asked: FindTrail) -> None:
        self._engine = engine
        self._asked = asked
        self._found: dict[tuple[str, bool, int], Sighting[Place]] = {}
        self._room = [FACT_COUNT_MAX + 1, FACT_COUNT_MAX + 1]
        self.names_outputs = False
        """Whether any message names the output of a handling as its cause."""

    async def resolve(self) -> tuple[str, list[str]]:
        """Return the requested id in full, and others that begin so, of the messages and causes in sight.

        Raises:
            Refused: several ids have this prefix.
        """
        named = Named[None](self._asked.id)
        async for some in self._all():
            for each in some:
                named.see(each.id, None)
                if each.cause:
                    named.see(each.cause, None)
                    self.names_outputs = self.names_outputs or inbox_of_cause(each.cause) is not None
        ids = named.ids
        id = full_id(self._asked.id, ids | {*self._asked.known})
        return id, sorted(ids - {id})[:NEAR_COUNT_MAX]

    async def expand(self, ids: Iterable[str]) -> None:
        """See these messages, their causes and their effects, hop by hop."""
        by_id, by_cause = set(ids), set(ids)
        asked_id, asked_cause = set[str](), set[str]()
        for _ in range(self._asked.depth + 1):
            by_id, by_cause = by_id - asked_id, by_cause - asked_cause
            if not (by_id or by_cause):
                return
            asked_id |= by_id
            asked_cause |= by_cause
            causes, effects = set[str](), set[str]()
            async for some in self._all():
                above = [each for each in some if each.id in by_id]
                below = [each for each in some if each.cause in by_cause]
                self._keep(asked=above, caused=below)
                causes.update(each.cause for each in above if each.cause)
                effects.update(each.id for each in islice(below, FACT_COUNT_MAX + 1 - len(effects)))
            by_id, by_cause = causes | effects, effects

    async def outputs_of(self, inboxes: Collection[bytes]) -> set[str]:
        """The outputs of these handlings that messages name as their cause; see those messages, and the outputs."""
        outputs = set[str]()
        async for some in self._all():
            below = [each for each in some if inbox_of_cause(each.cause) in inboxes]
            self._keep(asked=[each for each in some if inbox_of_cause(each.id) in inboxes], caused=below)
            outputs.update(each.cause for each in islice(below, FACT_COUNT_MAX + 1 - len(outputs)))
        return outputs

    def found(self) -> list[Sighting[Place]]:
        """Return the messages that are still where they were seen, in the order of queues and numbers."""
        there = []
        for _, each in sorted(self._found.items()):
            path, task, is_dead = each.what
            queue = self._engine.state.paths.get(dead_letter_path(path) if is_dead else path)
            if queue is not None and is_there(queue, task):
                there.append(each)
        return there

    def _keep(self, *, asked: Sequence[Sighting[Place]], caused: Sequence[Sighting[Place]]) -> None:
        """Keep the requested messages and their effects, of each one more than a trail may hold."""
        for at, some in enumerate((asked, caused)):
            for each in some[: self._room[at]]:
                path, task, is_dead = each.what
                if self._found.setdefault((path, is_dead, task.sequence), each) is each:
                    self._room[at] -= 1

    async def _all(self) -> AsyncIterator[list[Sighting[Place]]]:
        """Every message of the engine, slice by slice."""
        for path in sorted(self._engine.topology.queues):
            for place, is_dead in ((path, False), (dead_letter_path(path), True)):
                queue = self._engine.state.paths.get(place)  # it may be deleted meanwhile
                if queue is not None:
                    async for some in tasks_of(queue):
                        yield [
                            Sighting(identity_of(path, task), task.message.causation_id, (path, task, is_dead))
                            for task in some
                        ]


class TriedKeys:
    """The keys of states under which messages may have been handled, as far as one leads anywhere."""

    def __init__(self, engine: Engine, handlers: Sequence[Registered], given: Key | None) -> None:
        self._engine = engine
        self._handlers = handlers
        self._given = given
        self._all: dict[str, list[Key]] = {}
        self._useful: dict[str, dict[Key, None]] = {}

    def of(self, state: str) -> Iterable[Key]:
        """The keys of a state's name that lead to something."""
        return (self._given,) if self._given is not None else self._useful.get(state, ())

    def use(self, state: str, key: Key | None) -> None:
        """Keep one that does."""
        if key is not None:
            self._useful.setdefault(state, {})[key] = None

    async def inboxes(self, ids: Iterable[str]) -> AsyncIterator[tuple[bytes, str, Key | None]]:
        """The inbox keys that messages may have had, with the state's name and key; at most TRIED_COUNT_MAX."""
        left = TRIED_COUNT_MAX
        for id in ids:
            for by in self._handlers:
                its = (await self._keys(by))[: max(0, left)]
                left -= len(its)
                async for some in in_slices(its):
                    for key in some:
                        yield by.inbox(key, id), by.handler.state, key

    async def keep_useful(self, ids: Iterable[str], inboxes: Collection[bytes]) -> None:
        """Keep the keys under which these messages have one of these inbox keys."""
        async for inbox, state, key in self.inboxes(ids):
            if inbox in inboxes:
                self.use(state, key)

    async def _keys(self, by: Registered) -> Sequence[Key | None]:
        name = by.handler.state
        if by.handler.key_name == NO_KEY or not name:
            return [None]
        if self._given is not None:
            return [self._given]
        if name not in self._all:
            keys, begins = list[Key](), f"{name}:"
            ids = list(islice(self._engine.state.documents.spaces[STATES], 10 * TRIED_COUNT_MAX))
            async for some in in_slices(ids):
                parsed = [parse_state_id(id) for id in some if id.startswith(begins)]
                keys += [each[1] for each in parsed if each is not None and each[0] == name]
                if len(keys) >= TRIED_COUNT_MAX:
                    break
            self._all[name] = keys
        return self._all[name]
