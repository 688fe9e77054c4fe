"""Upkeep of an engine's log: a snapshot in the background, and a seal for a backup.

A store and a bus have no log: they refuse it, and say what there is instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from outbox.errors import Refused
from outbox.ops.shared.on_engine import EngineSite
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.values.requests import Answers
from outbox.ops.values.status import Compact, Compacted, Seal


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


ON_ENGINE: Answers = {Compact: compact, Seal: seal}


def _refused(text: str) -> Callable[[StoreSite, Any], Awaitable[NoReturn]]:
    async def refuse(at: StoreSite, asked: Any) -> NoReturn:
        raise Refused(text)

    return refuse


ON_STORE: Answers = {
    Compact: _refused("compact works on an engine's folder, by --data; there is no log"),
    Seal: _refused(
        "backup works on an engine's folder, by --data; Cosmos DB and Service Bus have backups of their own"
    ),
}
