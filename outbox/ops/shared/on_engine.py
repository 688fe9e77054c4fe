"""The site of answers on an engine, and looks at much that the engine holds.

The site is the engine, and a host's meter and application.

A host handles messages on the loop that answers its operator, so no answer holds it for as long as there is to look at:
a look goes on after some hundred items, in another turn of the event loop.  The engine changes between two turns: what
a look has passed is not looked at again, and whoever acts on what was found, or shows it, checks first that it is still
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from outbox.app import App
from outbox.engine.backend.apart import EngineStore
from outbox.engine.engine import Engine
from outbox.engine.state.documents import STATES
from outbox.engine.state.queues import Queue
from outbox.engine.state.tasks import Task
from outbox.ops.shared import held_messages
from outbox.ops.shared.meter import Meter
from outbox.ops.shared.names import BEGINNING_COUNT_MAX, begins, declared
from outbox.ports import Document, StateDocument
from outbox.runtime.start.notes import HANDLER_PREFIX, NOTES, types_of

OnWritten = Callable[[str, int], None]
"""Called with the id and serial of a state that an admin wrote, for a history."""
SLICE_COUNT = 200
"""How many items are read between two turns of the loop."""
MOVED_COUNT = 20
"""How many items are changed or shown between two turns, at some ten times the cost."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSite:
    """An engine; a host with workers passes their `meter` and application."""

    engine: Engine
    meter: Meter | None = None
    app: App | None = None
    on_written: OnWritten | None = None

    def named(self, queue: str) -> str:
        """The declared queue or subscription that is given, in any case.

        Raises:
            UnknownDestination: there is none; the text lists those that are near.
        """
        return declared(queue, self.engine.topology.queues)

    def notes(self, prefix: str) -> AsyncIterator[Document]:
        """The framework's own notes of a kind."""
        return EngineStore(self.engine.core, self.engine.documents).scan(NOTES, prefix=prefix)

    async def types(self, queue: str) -> dict[str, int]:
        """The types of a queue's handlers, each with its newest schema version."""
        return await types_of(queue, self.notes(HANDLER_PREFIX))

    async def only_type(self, queue: str) -> str:
        """The only type of a queue's handlers, which a message without a type has; empty if there are several."""
        types = await self.types(queue)
        return next(iter(types)) if len(types) == 1 else ""

    def taker(self, path: str) -> str:
        """Whom the messages of a queue wait for."""
        unhandled = self.app.name if self.app is not None and self.is_unhandled(path) else ""
        paused = self.engine.broker.queue(path).is_paused
        return held_messages.waits_for(path, paused=paused, app_without_handler=unhandled)

    def is_unhandled(self, path: str) -> bool:
        """Whether this host's application is known to have no handler for a queue."""
        return self.app is not None and all(handler.source != path for handler in self.app.handlers)

    def is_read_elsewhere(self, path: str) -> bool:
        """Whether this host's application says that another receiver takes from a queue."""
        return self.app is not None and path in self.app.queues and self.app.queues[path].read_elsewhere


async def tasks_of(queue: Queue, *, after: int = 0) -> AsyncIterator[list[Task]]:
    """The tasks of a queue behind a number, in order, slice by slice."""
    for some in queue.slices(after, SLICE_COUNT):
        yield some
        await asyncio.sleep(0)


async def in_slices(items: Iterable[T], count: int = 0) -> AsyncIterator[list[T]]:
    """Items that do not change meanwhile, or are made one by one, in slices of `count` (0: SLICE_COUNT)."""
    rest = iter(items)
    while some := list(islice(rest, count or SLICE_COUNT)):
        yield some
        await asyncio.sleep(0)


async def first_of(queue: Queue, after: int, count: int, is_wanted: Callable[[Task], bool] | None = None) -> list[Task]:
    """Return the first `count` wanted tasks of a queue after a sequence number."""
    found: list[Task] = []
    async for some in tasks_of(queue, after=after):
        found += some if is_wanted is None else filter(is_wanted, some)
        if len(found) >= count:
            break
    return found[:count]


def is_there(queue: Queue, task: Task) -> bool:
    """Whether a task that was seen is still in a queue."""
    return queue.tasks.get(task.sequence) is task


class Named(Generic[T]):
    """The seen ids that a text may stand for, with their items, and some others that begin with it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, list[T]] = {}
        self._room = {True: BEGINNING_COUNT_MAX, False: BEGINNING_COUNT_MAX}
        """How many more ids to keep, by whether the text may stand for them."""

    def see(self, id: str, what: T) -> None:
        """Look at one."""
        if not id.startswith(self._text):
            return
        if (same := self._found.get(id)) is not None:
            same.append(what)
            return
        kind = begins(self._text, id)
        if id == self._text or self._room[kind]:
            self._room[kind] -= id != self._text
            self._found[id] = [what]

    @property
    def ids(self) -> set[str]:
        """The ids that were kept."""
        return set(self._found)

    def of(self, id: str) -> list[T]:
        """Return the items with this id."""
        return self._found.get(id, [])


def states_of_one_instant(engine: Engine) -> AsyncIterator[list[tuple[str, StateDocument]]]:
    """All states of this instant, by their ids, slice by slice however slow the reader is."""
    states = engine.state.documents.spaces[STATES]
    return in_slices(zip(list(states), list(states.values()), strict=True))  # documents never change
