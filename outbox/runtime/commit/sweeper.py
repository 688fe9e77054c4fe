"""The sweeper: finishes what crashes have left unfinished, from what is stored and nothing else.

It looks for documents with a member `pending` that are older than a grace time, and goes on where whoever wrote them
has stopped: pushes stored bytes under their ids, marks, clears.  Any number of sweepers may run beside any number of
workers; each of their writes is conditional, and a message that is pushed twice has one identity.

One sweep takes up so many documents at most, for so long.  Where there are more, the next goes on behind those that
this one could not finish: what can never be finished keeps nobody from the rest.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from outbox.errors import CorruptRecord
from outbox.ports import Document

GRACE_S = 60.0
"""How long something may be unfinished before a sweeper takes it up."""

SWEEP_COUNT_MAX = 10_000
"""How many documents one sweep takes up."""

SWEEP_FOR_S = 60.0
"""How long one sweep takes up documents; a destination that does not answer makes each take seconds."""

log = logging.getLogger("outbox.sweep")


class Redo(Protocol):
    """A commit protocol that can go on from what is stored."""

    async def redo(self, document: Document) -> bool:
        """Finish a document that is pending; whether it is finished."""

    async def finish(self) -> None:
        """Mark what has left."""


class Unfinished(Protocol):
    """A store, or a part of one, as far as sweeping asks it."""

    def unfinished(self) -> AsyncIterator[Document]:
        """What is unfinished there."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep has seen: unfinished documents; those finished, too young, or not ours; the oldest one's age.

    The next one passes over `next_start` documents (0: it begins at the front).
    """

    seen_count: int
    finished_count: int
    young_count: int
    foreign_count: int
    oldest_s: float
    next_start: int = 0


class _Age(msgspec.Struct):
    """When a document was written, wherever it keeps that."""

    at_ms: int = 0
    record: _Age | None = None


async def sweep(
    scope: Redo,
    *stores: Unfinished,
    now_ms: Callable[[], int],
    grace_s: float = GRACE_S,
    count_max: int = SWEEP_COUNT_MAX,
    start: int = 0,
) -> Swept:
    """Go once through what is unfinished in these stores, up to `count_max` documents behind the first `start`."""
    seen = finished = young = foreign = passed = 0
    is_cut = False
    oldest_ms = now = now_ms()
    for store in stores:
        async for document in store.unfinished():
            if passed < start:
                passed += 1
                continue
            if seen >= count_max or now_ms() - now > SWEEP_FOR_S * 1_000:
                is_cut = True
                break
            seen += 1
            try:
                at_ms = _at_ms(document)
                oldest_ms = min(oldest_ms, at_ms or oldest_ms)
                if now - at_ms < grace_s * 1_000:
                    young += 1
                elif await scope.redo(document):
                    finished += 1
            except (CorruptRecord, msgspec.MsgspecError, ValueError, RecursionError) as error:
                foreign += 1  # the others must be finished all the same
                where = f"{document.key.partition}/{document.key.id}"
                log.error("pending document is not ours", extra={"document": where, "error": str(error)})
    await scope.finish()
    next_start = start + seen - finished if is_cut else 0
    return Swept(seen, finished, young, foreign, (now - oldest_ms) / 1_000, next_start)


def _at_ms(document: Document) -> int:
    age = msgspec.json.decode(document.body, type=_Age)
    return age.record.at_ms if age.record is not None else age.at_ms
