"""The sweeper: finish pending documents after crashes, from the store alone.

It takes documents with a member `pending` that are older than a grace time, and continues where their writer stopped:
push the stored outputs under their ids, mark, clear.  Any number of sweepers may run beside any number of workers: each
write is conditional, and a message pushed twice has one identity.

One sweep has a limit of documents and of time.  The next sweep continues behind those that this one could not finish,
so that a document that can never be finished does not block the rest.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from outbox.errors import CorruptRecord
from outbox.ports import Document
from outbox.stored import LEDGER_PREFIX

GRACE_S = 60.0
"""How long a document may be pending before a sweeper takes it."""

SWEEP_COUNT_MAX = 10_000
"""How many documents one sweep takes."""

SWEEP_FOR_S = 60.0
"""How long one sweep takes documents; with an unreachable destination each takes seconds."""

log = logging.getLogger("outbox.sweep")


class Redo(Protocol):
    """A commit protocol that can finish a stored document."""

    async def redo(self, document: Document) -> bool | None:
        """Finish a pending document; whether it is finished; None: there was nothing to do."""

    async def finish(self) -> None:
        """Mark pushed records."""


class Unfinished(Protocol):
    """A store, or a part of one, as a sweep reads it."""

    def unfinished(self) -> AsyncIterator[Document]:
        """Its pending documents."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The counts of a sweep: pending documents seen, finished, too young, and foreign; the oldest one's age.

    Of those seen `idle_count` are dispatch ledgers with nothing to do, which are there as long as their records.  The
    next sweep skips `next_start` documents (0: it starts at the front).
    """

    seen_count: int
    finished_count: int
    young_count: int
    foreign_count: int
    oldest_s: float
    next_start: int = 0
    idle_count: int = 0


class _Age(msgspec.Struct):
    """The write time of a document, its own or its record's."""

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
    """Sweep the pending documents of these stores once, up to `count_max` after the first `start`."""
    seen = finished = young = foreign = passed = idle = 0
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
                at_ms = written_ms(document)
                is_young = now - at_ms < grace_s * 1_000
                if document.key.id.startswith(LEDGER_PREFIX):
                    is_done = None if is_young else await scope.redo(document)
                    idle += is_done is None
                    finished += is_done is True
                    if is_done is False:
                        oldest_ms = min(oldest_ms, at_ms)
                    continue
                oldest_ms = min(oldest_ms, at_ms or oldest_ms)
                if is_young:
                    young += 1
                elif await scope.redo(document):
                    finished += 1
            except (CorruptRecord, msgspec.MsgspecError, ValueError, RecursionError) as error:
                foreign += 1  # the sweep continues with the others
                log.error(
                    "pending document is not of this framework; check what else writes to the container",
                    extra={"document": f"{document.key.partition}/{document.key.id}", "error": str(error)},
                )
    await scope.finish()
    next_start = start + seen - finished if is_cut else 0
    return Swept(seen, finished, young, foreign, (now - oldest_ms) / 1_000, next_start, idle)


def written_ms(document: Document) -> int:
    """When a pending document was written, as it says; 0 where it does not say.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: it is not of this framework.
    """
    age = msgspec.json.decode(document.body, type=_Age)
    return age.record.at_ms if age.record is not None else age.at_ms
