"""Ordered logs in the store of an application on Azure."""

from __future__ import annotations

from outbox.ops.shared.on_store import StoreSite
from outbox.ops.streams import logs as streams
from outbox.ops.streams.logs import StreamPlace, on_store, placed
from outbox.streams.log_places import Place


def _place(at: StoreSite) -> StreamPlace:
    return on_store(Place(at.infrastructure, at.ports.blobs), "this store")


ANSWERS = placed(streams.ANSWERS, _place)
LINES = placed(streams.LINES, _place)
