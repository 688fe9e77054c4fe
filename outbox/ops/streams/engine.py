"""Ordered logs on an engine."""

from __future__ import annotations

from outbox.ops.shared.on_engine import EngineSite
from outbox.ops.streams import logs as streams
from outbox.ops.streams.logs import StreamPlace, on_engine, placed


def _place(at: EngineSite) -> StreamPlace:
    return on_engine(at.engine, measured=True)


ANSWERS = placed(streams.ANSWERS, _place)
LINES = placed(streams.LINES, _place)
