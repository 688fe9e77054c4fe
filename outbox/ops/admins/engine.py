"""The admin of an engine: which function answers which request."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.ops.admins import log
from outbox.ops.dead_letters import engine as engine_dead_letters
from outbox.ops.messages import engine as engine_messages
from outbox.ops.shared.meter import Meter
from outbox.ops.shared.on_engine import EngineSite, OnWritten
from outbox.ops.states import engine as engine_states
from outbox.ops.streams.logs import LINES as STREAM_LINES
from outbox.ops.streams.logs import StreamPlace, on_engine, placed
from outbox.ops.streams.pipelines import ANSWERS as OF_STREAMS
from outbox.ops.trail import engine as engine_trail
from outbox.ops.values.requests import A, Admin, Answers, Lines, Request, Streams, answered


def _streams(at: EngineSite) -> StreamPlace:
    return on_engine(at.engine, measured=True)


ANSWERS: Answers = {
    **engine_messages.ANSWERS,
    **engine_dead_letters.ANSWERS,
    **engine_trail.ANSWERS,
    **engine_states.ANSWERS,
    **placed(OF_STREAMS, _streams),
    **log.ON_ENGINE,
}
LINES: Streams = {**engine_states.LINES, **placed(STREAM_LINES, _streams)}


class EngineAdmin:
    """An admin with direct access to an engine; a host with workers passes their `meter` and application."""

    def __init__(
        self,
        engine: Engine,
        meter: Meter | None = None,
        app: App | None = None,
        *,
        on_written: OnWritten | None = None,
    ) -> None:
        """Take the engine; `on_written` gets the id and serial of a state that is imported, for a history."""
        self._at = EngineSite(engine, meter, app, on_written)

    async def ask(self, asked: Request[A]) -> A:
        return await answered(ANSWERS, self._at, asked)

    def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        return LINES[type(asked)](self._at, asked)


_conforms: type[Admin] = EngineAdmin
