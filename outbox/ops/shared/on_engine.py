"""The site of answers on an engine: the engine, and a host's meter and application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from outbox.app import App
from outbox.engine.backend.store import EngineStore
from outbox.engine.engine import Engine
from outbox.ops.shared import held_messages
from outbox.ops.shared.meter import Meter
from outbox.ops.shared.names import declared
from outbox.ports import Document
from outbox.runtime.start.notes import HANDLER_PREFIX, NOTES, types_of

OnWritten = Callable[[str, int], None]
"""Called with the id and serial of a state that an admin wrote, for a history."""


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
