"""Upkeep of an engine's log: a snapshot in the background, and a seal for a backup.

A store and a bus have no log: they refuse it, and say what there is instead.
"""

from __future__ import annotations

from typing import NoReturn

from outbox.errors import Refused
from outbox.ops.shared.on_engine import EngineSite
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.values.log import Compact, Compacted, Seal
from outbox.ops.values.requests import Answers


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


async def refuse_compact(at: StoreSite, asked: Compact) -> NoReturn:
    """Refuse it.

    Raises:
        Refused: always.
    """
    raise Refused("compact works on an engine's folder, by --data; there is no log")


async def refuse_seal(at: StoreSite, asked: Seal) -> NoReturn:
    """Refuse it.

    Raises:
        Refused: always.
    """
    raise Refused("backup works on an engine's folder, by --data; Cosmos DB and Service Bus have backups of their own")


ON_STORE: Answers = {Compact: refuse_compact, Seal: refuse_seal}
