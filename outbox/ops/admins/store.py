"""The admins of a store with a bus, as on Azure, and of ordered logs: which function answers which request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from outbox.ops.admins import log
from outbox.ops.dead_letters import store as store_dead_letters
from outbox.ops.messages import pending
from outbox.ops.messages import store as store_messages
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.states import store as store_states
from outbox.ops.streams import logs, pipelines
from outbox.ops.streams.logs import StreamPlace, on_store, placed
from outbox.ops.trail import store as store_trail
from outbox.ops.values.requests import A, Admin, Answers, Lines, Request, Streams, answered
from outbox.streams.log_places import Place


def _streams(at: StoreSite) -> StreamPlace:
    return on_store(Place(at.infrastructure, at.ports.blobs), "this store")


ANSWERS: Answers = {
    **store_messages.ANSWERS,
    **pending.ANSWERS,
    **store_dead_letters.ANSWERS,
    **store_trail.ANSWERS,
    **store_states.ANSWERS,
    **placed(pipelines.ANSWERS, _streams),
    **log.ON_STORE,
}
LINES: Streams = {**store_states.LINES, **placed(logs.LINES, _streams)}


class StoreAdmin:
    """An admin over the ports of a store and a bus, or with other tables over another place."""

    def __init__(self, at: Any, answers: Answers = ANSWERS, lines: Streams = LINES) -> None:
        self._at, self._answers, self._lines = at, answers, lines

    async def ask(self, asked: Request[A]) -> A:
        return await answered(self._answers, self._at, asked)

    def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        return self._lines[type(asked)](self._at, asked)


def stream_admin(at: StreamPlace) -> Admin:
    """An admin of the ordered logs in one place."""
    return StoreAdmin(at, pipelines.ANSWERS, logs.LINES)


_conforms: type[Admin] = StoreAdmin
