"""An engine's messages of one trail, found in passes over its queues, and the keys that lead on.

A pass reads every message once, slice by slice, and keeps those whose id or cause is asked for; the next pass asks for
the ids that it found.  So memory grows with the trail, not with the engine.  Keys are tried apart from that: of a
state's keys only those are kept that lead to a record, or to an output in sight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from itertools import islice

from outbox.app import NO_KEY
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.engine.state.tasks import Task
from outbox.lineage import Key, parse_state_id
from outbox.ops.shared.slices import Named, in_slices, is_there, tasks_of
from outbox.ops.shared.tasks import identity_of
from outbox.ops.trail.records import TRIED_COUNT_MAX, Registered
from outbox.ops.trail.tree import FACT_COUNT_MAX, NEAR_COUNT_MAX, Sighting, full_id, inbox_of_cause
from outbox.ops.values.trail import FindTrail

Place = tuple[str, Task, bool]
"""A queue, a message of it, and whether that is a dead letter."""


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
