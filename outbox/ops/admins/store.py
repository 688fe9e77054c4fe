"""The admins of a store with a bus, as on Azure, and of ordered logs alone: which function answers which request."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outbox.ops.admins import log
from outbox.ops.dead_letters import store as store_dead_letters
from outbox.ops.messages import pending
from outbox.ops.messages import store as store_messages
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.states import store as store_states
from outbox.ops.streams import logs as streams
from outbox.ops.streams import store as store_streams
from outbox.ops.streams.logs import StreamPlace
from outbox.ops.trail import store as store_trail
from outbox.ops.values.requests import A, Admin, Answers, Lines, Request, Streams, answered

ANSWERS: Answers = {
    **store_messages.ANSWERS,
    **pending.ANSWERS,
    **store_dead_letters.ANSWERS,
    **store_trail.ANSWERS,
    **store_states.ANSWERS,
    **store_streams.ANSWERS,
    **log.ON_STORE,
}
LINES: Streams = {**store_states.LINES, **store_streams.LINES}


class StoreAdmin:
    """An admin of an application over the ports of a store and a bus."""

    def __init__(self, at: StoreSite) -> None:
        self._at = at

    async def ask(self, asked: Request[A]) -> A:
        return await answered(ANSWERS, self._at, asked)

    def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        return LINES[type(asked)](self._at, asked)


class StreamAdmin:
    """An admin of the ordered logs in one place."""

    def __init__(self, at: StreamPlace) -> None:
        self._at = at

    async def ask(self, asked: Request[A]) -> A:
        return await answered(streams.ANSWERS, self._at, asked)

    def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        return streams.LINES[type(asked)](self._at, asked)


_store: type[Admin] = StoreAdmin
_streams: type[Admin] = StreamAdmin
