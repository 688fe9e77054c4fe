"""Upkeep of an engine's log: a snapshot in the background, and a seal for a backup."""

from __future__ import annotations

from outbox.ops.engine_site import EngineSite
from outbox.ops.requests import Answers
from outbox.ops.values import Compact, Compacted, Seal


async def compact(at: EngineSite, asked: Compact) -> Compacted:
    """Snapshot the engine and drop the log before it.

    Raises:
        EngineStopped: the disk failed.
    """
    log = at.engine.log
    before_bytes = 0 if log is None else log.size_bytes
    ordinal = await at.engine.compact_in_background()
    await at.engine.core.gate()
    return Compacted(ordinal, before_bytes, 0 if log is None else log.size_bytes)


async def seal(at: EngineSite, asked: Seal) -> int:
    """Seal the log.

    Raises:
        EngineStopped: the disk failed.
    """
    log = at.engine.log
    ordinal = 0 if log is None else at.engine.core.guarded(log.seal)
    await at.engine.core.gate()
    return ordinal


ANSWERS: Answers = {Compact: compact, Seal: seal}
