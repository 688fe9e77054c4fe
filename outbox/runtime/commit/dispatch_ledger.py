"""A dispatch ledger: a worker notes in one document which records' outputs have left, instead of a mark in each.

Each record that emits something is an *entry* of the ledger of the worker that committed it: the ledger's id, drawn
anew at each start, and a number that is used once.  The ledger says up to where numbers have been handed out, and which
of them are still *open*.  An entry is closed when its outputs have left, or when it is certain that its record will
never exist; after an unknown outcome without a record it stays open, because the batch may land later.

A record with an entry has its time to live at once, and keeps its outputs for as long.  A sweeper asks for the records
of open numbers, and of those beyond the last that the ledger knows; it pushes their outputs, and closes what it has
pushed itself, nothing else.  A ledger is never declared dead, so no clock decides: its document lives a margin longer
than its records, is renewed while numbers are handed out, and until then sweepers ask for it at growing intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from outbox import stored
from outbox.errors import CorruptRecord
from outbox.ports import Create, Document, Lost, Replace, StateStore, Tag, Version, Won
from outbox.runtime.commit.store_transaction import StoreTransaction
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted, read, write_known
from outbox.runtime.start.plan import CompiledApp
from outbox.stored import LedgerItem, Record, entry_of, ledger_key, number_of

SAVE_COUNT = 100
"""The number of closed entries after which the ledger is written."""
RENEW_MS = 300_000
"""While numbers are handed out it is written at least as often: its records must not outlive it."""
MARGIN_S = 3_600.0
"""How much longer than its records a ledger lives."""
OPEN_COUNT_MAX = 1_000
"""With more open entries a worker begins another ledger, and leaves this one to sweepers."""
NEAR = 16
"""Open numbers that lie so close are asked for together."""


Remembered = tuple[str, int, tuple[tuple[int, int], ...], Version, int, int]
"""A ledger: its id, last number, open entries with times, version, time of the last write, entries closed since."""


class DispatchLedger:
    """The ledger of this worker."""

    def __init__(
        self, plan: CompiledApp, store: StateStore, *, now_ms: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self._plan = plan
        self._store = store
        self._now_ms = now_ms
        self._new_id = new_id
        self._lock = asyncio.Lock()
        """Held while the ledger is written."""
        self._id = ""
        self._last = 0
        self._open: dict[int, int] = {}
        """When each open number was handed out, in milliseconds since 1970."""
        self._version: Version = ""
        self._written_ms = 0
        self._closed_count = 0
        """How many have been closed since the ledger was written."""

    def remembered(self) -> Remembered:
        """All that it knows, as plain data."""
        return self._id, self._last, tuple(self._open.items()), self._version, self._written_ms, self._closed_count

    def recall(self, remembered: Remembered) -> None:
        """Know what another has remembered."""
        self._id, self._last, opened, self._version, self._written_ms, self._closed_count = remembered
        self._open = dict(opened)

    # What a commit asks

    async def entered(self, batch: StoreTransaction, commit: Callable[[], Awaitable[Lost | None]]) -> Lost | None:
        """Give each record that emits something an entry, and commit the batch; if it is not written, leave again.

        Raises:
            NothingCommitted: as `commit` does, or the ledger cannot be written now.
        """
        try:
            for entry in batch.entries:
                if entry.record.outputs:
                    place = await self.take()
                    batch.ledger_entries.append(place)
                    entry.stored = msgspec.structs.replace(entry.record, pending=False, entry=place)
            lost = await commit()
        except NothingCommitted:
            self.leave(batch)
            raise
        if lost is not None:
            self.leave(batch)
        return lost

    def leave(self, batch: StoreTransaction) -> None:
        """Close the entries of a batch that is not written; one that may still land keeps them open."""
        if not batch.may_land:
            self.close(batch.ledger_entries)

    def finish(self, batch: StoreTransaction) -> None:
        """Close the entries of a batch whose outputs have left, and those of earlier ones, which can not land now."""
        self.close([*batch.ledger_entries, *[of for entry in batch.entries for of in entry.attempt.ledger_entries]])

    # Entries

    async def take(self) -> str:
        """A new entry; the ledger is stored before the first is handed out.

        Raises:
            NothingCommitted: it cannot be written now.
        """
        async with self._lock:
            if not self._id or len(self._open) >= OPEN_COUNT_MAX:
                await self._begin()
            elif self._now_ms() - self._written_ms >= RENEW_MS:
                await self._write()
        self._last += 1
        self._open[self._last] = self._now_ms()
        return entry_of(self._id, self._last)

    async def _begin(self) -> None:
        """Store a ledger under an id that nobody has used."""
        id = self._new_id()
        item = LedgerItem(id, self._now_ms(), self._plan.record_life_ms)
        answer = await write_known(self._store, Create(ledger_key(id), stored.encode(item), _ttl_s(item), TAG))
        if isinstance(answer, Lost):
            raise NothingCommitted
        self._id, self._last, self._open, self._closed_count = id, 0, {}, 0
        self._version, self._written_ms = answer.versions[0], item.at_ms

    def close(self, entries: Iterable[str]) -> None:
        """Note that the outputs of these entries have left, or that their records will never exist."""
        for entry in entries:
            if self._is_own(entry) and self._open.pop(number_of(entry), None) is not None:
                self._closed_count += 1

    def is_closed(self, entry: str) -> bool:
        """Whether this worker knows that the outputs of an entry have left."""
        return self._is_own(entry) and number_of(entry) not in self._open

    def _is_own(self, entry: str) -> bool:
        return bool(self._id) and entry.startswith(f"{self._id}/")

    @property
    def is_full(self) -> bool:
        """Whether enough entries are closed for the ledger to be written now."""
        return self._closed_count >= SAVE_COUNT and not self._lock.locked()

    async def save(self) -> None:
        """Write what has been closed; a failure leaves it to the next time."""
        async with self._lock:
            if self._id and self._closed_count:
                with suppress(NothingCommitted):
                    await self._write()

    async def _write(self) -> None:
        """Write the ledger over the version known; where a sweeper has closed entries, take that over first.

        Raises:
            NothingCommitted: it was not written, or it is not known.
        """
        opened, closed_count = dict(self._open), self._closed_count
        at_ms = min(opened.values(), default=self._now_ms())
        item = LedgerItem(self._id, at_ms, self._plan.record_life_ms, self._last, tuple(opened))
        answer = await write_known(
            self._store, Replace(ledger_key(self._id), stored.encode(item), self._version, _ttl_s(item), TAG)
        )
        if isinstance(answer, Lost):
            await self._learn(answer.current or await read(self._store, ledger_key(self._id), answer.session))
            raise NothingCommitted
        self._version, self._written_ms = answer.versions[0], self._now_ms()
        self._closed_count -= closed_count

    async def _learn(self, document: Document | None) -> None:
        """Take over what a sweeper has closed; a ledger that is gone is left to begin another."""
        if document is None:
            self._id = ""
            return
        item = stored.decode(document, LedgerItem)
        for number in [number for number in self._open if number <= item.last and number not in item.open]:
            del self._open[number]
        self._version = document.version


TAG = Tag("ledger")


def _ttl_s(item: LedgerItem) -> float:
    return item.life_ms / 1_000 + MARGIN_S


async def finish_ledger(
    store: StateStore, document: Document, finish: Callable[[Document, Record], Awaitable[None]]
) -> bool | None:
    """Push what a ledger does not say has left; whether something was closed; None: there was nothing.

    `finish` pushes the outputs of a record, or raises `NothingCommitted`.
    """
    item = stored.decode(document, LedgerItem)
    closed, is_idle = set[int](), True
    async for found, record in unsent_of(store, item):
        is_idle = False
        with suppress(NothingCommitted):
            await finish(found, record)
            closed.add(number_of(record.entry))
    if not closed:
        return None if is_idle else False
    last, opened = item.last, set(item.open)
    for number in sorted(closed):  # those between the last known and one that was found are open: they may land later
        if number > last and number - last + len(opened) <= OPEN_COUNT_MAX:
            opened |= set(range(last + 1, number + 1))
            last = number
    after = LedgerItem(item.pending, item.at_ms, item.life_ms, last, tuple(sorted(opened - closed)))
    with suppress(*MAY_RETRY):  # the next sweep pushes them again, under the same ids
        won = await store.write([Replace(document.key, stored.encode(after), document.version, _ttl_s(item), TAG)])
        return isinstance(won, Won)
    return False


async def unsent_of(store: StateStore, item: LedgerItem) -> AsyncIterator[tuple[Document, Record]]:
    """The records of a ledger of which it does not say that their outputs have left.

    Raises:
        CorruptRecord: the store cannot be asked for them.
    """
    unsent: Callable[[str, str], AsyncIterator[Document]] | None = getattr(store, "unsent", None)
    if unsent is None:
        raise CorruptRecord("a dispatch ledger in a store that cannot list its records; who else writes here?")
    beyond = entry_of(item.pending, item.last + 1), f"{item.pending}0"
    ranges = [(entry_of(item.pending, first), entry_of(item.pending, last + 1)) for first, last in _ranges(item.open)]
    opened = set(item.open)
    for first, before in (*ranges, beyond):
        async for document in unsent(first, before):
            record = stored.decode(document, Record)
            number = number_of(record.entry)
            if number > item.last or number in opened:
                yield document, record


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers that lie close together, as (first, last)."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number - ranges[-1][1] <= NEAR:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges
