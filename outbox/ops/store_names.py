"""The name of a queue as it is declared: by an application, whose handlers are registered in the store, or on the bus.

Service Bus ignores the case of a name, and the store does not: there a dead letter lies under the name that its
application gives.  So a name is looked up once, before anything else is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from outbox.errors import OutboxError
from outbox.ops.names import declared, spelled
from outbox.ports import SUBSCRIPTIONS, StateStore
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES, handlers_in

OnTheBus = Callable[[str], Awaitable[Collection[str]]]
"""The queues, topics and subscriptions that a name may mean on the bus; none where there are too many to list."""


class StoreNames:
    """The names of an application's queues, topics and subscriptions."""

    def __init__(self, notes: StateStore, on_the_bus: OnTheBus | None) -> None:
        """Take the store of the framework's notes; without `on_the_bus` a name that no handler has is as given."""
        self._notes = notes
        self._on_the_bus = on_the_bus
        self._registered: set[str] | None = None
        self._found: dict[str, str] = {}

    async def declared(self, name: str) -> str:
        """The declared name that is given, in any case.

        Where the bus may not be asked for its names, it is as given: the bus refuses one that it does not have.

        Raises:
            UnknownDestination: there is none; the text lists those that are near.
            Refused: several differ in their case alone.
        """
        if name not in self._found:
            self._found[name] = await self._looked_up(name)
        return self._found[name]

    async def as_registered(self, name: str) -> str:
        """The name that handlers have for what the bus calls so; its own without a handler."""
        return spelled(name, await self._handled()) or name

    async def _looked_up(self, name: str) -> str:
        known = await self._handled()
        if (found := spelled(name, known)) or self._on_the_bus is None:
            return found or name
        try:
            there = await self._on_the_bus(name)
        except OutboxError:
            return name
        return declared(name, {*known, *there}) if there else name

    async def _handled(self) -> set[str]:
        """The sources of all registered handlers, and the topics of subscriptions."""
        if self._registered is None:
            self._registered = set()
            async for _, handler in handlers_in(self._notes.scan(NOTES, prefix=NOTE_PREFIX)):
                self._registered |= {handler.source, handler.source.partition(SUBSCRIPTIONS)[0]}
        return self._registered
