"""The admins of a store with a bus, as on Azure, and of ordered logs alone: which function answers which request."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outbox.ops import (
    pending,
    store_dead_letters,
    store_log,
    store_messages,
    store_states,
    store_streams,
    store_trail,
    streams,
)
from outbox.ops.requests import A, Admin, Answers, Lines, Request, Streams, answered
from outbox.ops.store_site import StoreSite
from outbox.ops.streams import StreamPlace

ANSWERS: Answers = {
    **store_messages.ANSWERS,
    **pending.ANSWERS,
    **store_dead_letters.ANSWERS,
    **store_trail.ANSWERS,
    **store_states.ANSWERS,
    **store_streams.ANSWERS,
    **store_log.ANSWERS,
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
