"""Partition scope: a state and the records of its messages share a partition, so one batch commits both.

Theory of operation.  One attempt, in the steps of item scope (which alone has 2 and 9):

    1  load the state, from the cache or by a read, or assume that it is new
    3  decide: a message that may be on record (redelivered, resubmitted, or its push failed here) reads its record, and
       does so before 1; of any other the create in 6 finds it
    4  run the handler on a copy
    5  put record and state into one batch; outputs for which it has no room go into a blob
    6  write the batch.  The point of no return
    7  push the outputs; then the caller settles
    8  mark later that they have left

The batch *creates* the message's record, whose id is the inbox key, and *creates or replaces* the state under its
loaded version (`if_match`), even where nothing changed.  So it loses to an earlier commit of the message, and to any
change of the state:

    won                  7, 8
    lost on the record   follow the record: push its outputs if it is pending; the caller settles by its outcome
    lost on the state    drop the cached state; the caller tries again
    outcome unknown      read the record: mine, won; another's, lost on it; none, the caller tries again, because a
                         batch that lands late makes the next create lose

A handler that fails on a state that was assumed to be new (`loaded_states`), or is about to make an external call on
it, is run again on the state as it is read.  A resubmission replaces the record of the refusal, under the version that
it read.

Nothing is undone, nothing is pushed without a record, nothing is settled before its push.  A record whose outputs may
not have left is `pending` and has no time to live; the mark takes its outputs out and gives it one (see `marks`).
Where a dispatch ledger is kept, such a record has an entry there instead, and its time to live at once (see
`dispatch_ledger`).

Every `await` of a port is a crash point.  Before the commit nothing is stored but counts of failures and blobs that
overflow announced; after it the pending record is found by the redelivered message or by the sweeper, whichever comes
first, and its outputs leave again under the same ids.  A stateless handler's record is the whole commit, in a partition
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from outbox import stored
from outbox.errors import OutcomeUnknown, PoisonMessage
from outbox.ports import Create, Document, Lost, Replace, Session, Tag, Won, Write
from outbox.runtime.commit.dispatch_ledger import DispatchLedger
from outbox.runtime.commit.loaded_states import LoadedStates
from outbox.runtime.commit.marks import Marks
from outbox.runtime.commit.overflow import Fitting, Overflows, refuse_unfit
from outbox.runtime.commit.partition_size import PartitionSizes
from outbox.runtime.commit.recovery import Recovery
from outbox.runtime.commit.run_handler import Life
from outbox.runtime.commit.stale_edits import may_be_stale
from outbox.runtime.commit.store_transaction import Entry, Premature, StoreTransaction, Superseded, run_in
from outbox.runtime.delivery.retrying import LOOK_COUNT_MAX, MAY_RETRY, NothingCommitted, read
from outbox.runtime.delivery.waiting import WAITS, WaitingRecords, Waits
from outbox.runtime.failures.failure_counts import FailureCounts
from outbox.runtime.store_scope import Checkpoint, StoreParts, no_checkpoint
from outbox.runtime.verdict import Verdict, differs_from_record
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import Record, record_key, state_key

UNPUSHED_COUNT_MAX = 10_000
"""How many messages with unpushed outputs are remembered; beyond it their handlers run once more, in vain."""


class PartitionScope:
    """Commits messages over a store that writes a partition's documents together."""

    def __init__(self, parts: StoreParts) -> None:
        plan, store, blobs, now_ms, new_tx = parts.plan, parts.records, parts.ports.blobs, parts.now_ms, parts.new_tx
        self._plan, self._store, self._settlement = plan, store, parts.settlement
        self._now_ms, self._new_tx = now_ms, new_tx
        self._life = Life(now_ms, parts.is_stopping)
        self.states = LoadedStates(store)
        self.cache = self.states.cache
        self.marks = Marks(plan, store, blobs)
        self.lingering = (self.marks,)
        has_ledger = store.capabilities.dispatch_ledger
        self.ledger = DispatchLedger(plan, store, now_ms=now_ms, new_id=new_tx) if has_ledger else None
        overflows = Overflows(plan, store, store, blobs, now_ms=now_ms)
        self._fitting = Fitting(parts, overflows)
        self._recovery = Recovery(parts, overflows, self.marks, self.ledger)
        self._failures = FailureCounts(store, plan.record_life_ms / 1_000)
        self.fullness = PartitionSizes(plan, store.capabilities.partition_bytes_max, now_ms=now_ms)
        self._waiting = WaitingRecords(plan, store, now_ms=now_ms, new_tx=new_tx)
        self._unpushed: dict[bytes, None] = {}
        """Messages committed here whose outputs are not pushed yet."""
        self.checkpoint: Checkpoint = no_checkpoint

    def remembered(self) -> tuple[Any, ...]:
        ledger = None if self.ledger is None else self.ledger.remembered()
        return self.states.remembered(), self.marks.content(), self._waiting.remembered(), list(self._unpushed), ledger

    @property
    def group_count_max(self) -> int:
        return self._store.capabilities.batch_count_max - 1

    # One attempt

    async def once(self, attempt: Attempt) -> Outcome:
        state_id, may_be_on_record = attempt.work.state_id, self._may_be_on_record(attempt.work)
        try:
            if may_be_on_record:
                await self._decide(attempt)  # 3: a read is cheaper than a slow handler
            batch = await self._load(state_id, first_of=None if may_be_on_record else attempt.work)  # 1
            batch, outcome = await self._run(batch, attempt)  # 4
            if not batch.entries:
                return outcome
            lost = await self._commit(batch, state_id)  # 5, 6
            if lost is not None:
                raise Superseded(lost.current or await self._find(attempt.work, lost.session))
        except Superseded as found:
            return await self._follow(attempt, found.record)
        await self._push(batch)  # 7
        self._mark(batch, state_id)  # 8
        return outcome

    async def together(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        if any(attempt.work.delivery.message.attempt for attempt in attempts):
            raise NothingCommitted  # the record of a resubmission is read first
        state_id, outcomes = attempts[0].work.state_id, list[Outcome]()
        batch = await self._load(state_id)  # 1
        try:
            for attempt in attempts:
                outcomes.append(await self._run_on(batch, attempt))  # 4
                # Its successors may have to wait, or the others get an attempt with its own deadline.
                if (attempt.work.in_order and outcomes[-1] is not None) or batch.is_half_spent(self._now_ms()):
                    break
        except (Premature, Superseded) as found:
            raise NothingCommitted from found
        if batch.entries:
            if await self._commit(batch, state_id) is not None:  # 5, 6
                raise NothingCommitted
            await self._push(batch)  # 7
            self._mark(batch, state_id)  # 8
        return outcomes

    async def hold(self, attempt: Attempt) -> Outcome | Waits:
        # A resubmission waits like a fresh message: its record, a refusal, is what it will replace.
        work = attempt.work
        found = await self._waiting.note(work, record_key(work.state_id, work.inbox))
        if found is None or work.verdict(stored.decode(found, Record)) is Verdict.RESUBMISSION:
            return WAITS
        return await self._follow(attempt, found)

    # 1. Load the state

    async def _load(
        self, state_id: str | None, *, first_of: Work | None = None, is_doubted: bool = False
    ) -> StoreTransaction:
        """A transaction over the state, which may be assumed to be new for the first attempt at a message."""
        loaded = await self.states.load(state_id, first_of=first_of, is_doubted=is_doubted)
        return StoreTransaction(self._plan, self._now_ms(), self._new_tx(), loaded)

    def _settle(self, batch: StoreTransaction, state_id: str | None, end: Won | Lost | Later | None) -> None:
        """Keep the state that was written, and forget one that may have changed since it was loaded."""
        self.states.settle(batch, state_id, end)

    # 3. Decide: is the message on record already?

    def _may_be_on_record(self, work: Work) -> bool:
        """Whether to read the record first; otherwise the create in the commit finds it."""
        delivery, inbox = work.delivery, work.inbox
        return bool(inbox and (delivery.delivery_count or delivery.message.attempt or inbox in self._unpushed))

    async def _decide(self, attempt: Attempt) -> None:
        """Check that the message has no record, or may replace it.

        Raises:
            Superseded: there is a record to follow.
        """
        try:
            await self._read_record(attempt)
        except MAY_RETRY as error:
            raise NothingCommitted from error

    async def _read_record(self, attempt: Attempt) -> None:
        found = await self._store.read(record_key(attempt.work.state_id, attempt.work.inbox))
        if found is None or may_be_stale(attempt.work, found):
            attempt.replaces, attempt.found = "", None
        elif not self._replaces(attempt, found):
            raise Superseded(found)

    async def _before_call(self, attempt: Attempt, batch: StoreTransaction) -> None:
        """Stop a handler before its first `ctx.call` if the message is on record already.  On a state that was not
        read, or behind other messages of its batch, it also stops, and runs again on its own."""
        if batch.entries or batch.is_assumed:
            batch.is_premature = True
            raise Premature
        try:
            await self._read_record(attempt)
        except Superseded as found:
            batch.superseded = found.record
            raise

    # 4. Run the handler

    async def _run(self, batch: StoreTransaction, attempt: Attempt) -> tuple[StoreTransaction, Outcome]:
        """Run the handler, and once more on a read state if it needs one that was assumed to be new."""
        if batch.is_assumed:
            with suppress(Premature):
                return batch, await self._run_on(batch, attempt)
            batch = await self._load(attempt.work.state_id, is_doubted=True)
        return batch, await self._run_on(batch, attempt)

    async def _run_on(self, batch: StoreTransaction, attempt: Attempt) -> Outcome:
        await self._failures.recall(attempt)
        batch.durable = partial(self._before_call, attempt, batch)
        is_first = not batch.entries
        outcome = await run_in(self._plan, batch, attempt, self._life)
        if batch.is_assumed and isinstance(outcome, Later):
            raise Premature
        if batch.is_late(self._now_ms()) and isinstance(outcome, PoisonMessage):
            if is_first:
                attempt.refuse_over(batch.loaded.version, outcome)  # recorded next time, in time for its deadline
            raise NothingCommitted
        if isinstance(outcome, Later):
            self._settle(batch, attempt.work.state_id, outcome)  # it may have failed for what has changed since
            if attempt.work.inbox:
                await self._decide(attempt)  # the failure may come from its own committed effect
        await self._failures.note(attempt.work, outcome)
        return outcome

    # 5, 6. Commit: one batch

    async def _commit(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        """Write the batch; None if it won, `Lost` if a message of it is on record.

        Raises:
            NothingCommitted: the state has changed, or nothing is known to have been written.
        """
        if self.ledger is None:
            return await self._write(batch, state_id)
        return await self.ledger.entered(batch, partial(self._write, batch, state_id))

    async def _write(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        answer: Won | Lost | None = None
        try:
            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5
            self._check_deadline(batch)
            check = partial(self._check_deadline, batch)
            answer = await self.marks.write_with_riders(writes, state_id, left_bytes=left_bytes, check=check)  # 6
        except OutcomeUnknown:
            batch.land_later()
        except MAY_RETRY as error:
            refuse_unfit(batch, error, "its state and record are too large: ")
            self._settle(batch, state_id, None)
            raise NothingCommitted from error
        self._settle(batch, state_id, answer)
        if answer is None:
            return await self._resolved(batch, state_id)
        if isinstance(answer, Lost):
            if answer.operation < len(batch.entries):
                return answer
            raise NothingCommitted  # on the state
        for entry, version in zip(batch.entries, answer.versions, strict=False):
            entry.version = version  # for its mark
            self.fullness.note(state_id, entry.stored)
        return None

    def _check_deadline(self, batch: StoreTransaction) -> None:
        if batch.is_late(self._now_ms()):
            raise NothingCommitted

    async def _resolved(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        """Resolve an unknown outcome by the batch's first record."""
        record = await read(self._store, record_key(state_id, batch.entries[0].attempt.work.inbox))
        if record is None:
            raise NothingCommitted  # it may still land: the next create loses then
        return None if stored.decode(record, Record).tx == batch.tx else Lost(0, record)

    def _writes(self, batch: StoreTransaction, state_id: str | None) -> list[Write]:
        writes: list[Write] = [self._record_write(entry, state_id) for entry in batch.entries]
        if state_id is not None:
            item, tag = batch.state_after, Tag("state", batch.inboxes, batch.tx)
            body, ttl_s = stored.encode(item), self._plan.record_life_ms / 1_000 if item.is_tombstone else None
            key, seen = state_key(state_id), batch.loaded.version
            writes.append(Replace(key, body, seen, ttl_s, tag) if seen else Create(key, body, ttl_s, tag))
        return writes

    def _record_write(self, entry: Entry, state_id: str | None) -> Write:
        attempt, work, record = entry.attempt, entry.attempt.work, entry.stored
        keeps_outputs = record.pending or record.entry
        key, body = record_key(state_id, work.inbox), stored.encode(record if keeps_outputs else record.marked())
        ttl_s = None if record.pending else self._plan.life_s(record.life_ms)
        tag = Tag("refuse" if record.reason else "commit", (work.inbox,), record.tx)
        return Replace(key, body, attempt.replaces, ttl_s, tag) if attempt.replaces else Create(key, body, ttl_s, tag)

    # 7. Push what the record holds

    async def _push(self, batch: StoreTransaction) -> None:
        for entry in batch.entries:
            entry.attempt.committed(entry.record)
            self._unpushed[entry.attempt.work.inbox] = None
        while len(self._unpushed) > UNPUSHED_COUNT_MAX:
            del self._unpushed[next(iter(self._unpushed))]
        await self._settlement.push([output for entry in batch.entries for output in entry.record.outputs])
        for inbox in batch.inboxes:
            self._unpushed.pop(inbox, None)

    # 8. Mark that it has left, which may wait for the next batch of the partition

    def _mark(self, batch: StoreTransaction, state_id: str | None) -> None:
        if self.ledger is not None:
            self.ledger.finish(batch)
        for entry in batch.entries:
            if entry.stored.pending:
                inbox, recurs = entry.attempt.work.inbox, batch.is_warm
                self.marks.add(record_key(state_id, inbox), entry.version, entry.stored, inbox, recurs=recurs)

    async def finish(self) -> None:
        await self.marks.write()
        if self.ledger is not None:
            await self.ledger.save()

    # Lost on the record: follow it

    async def _find(self, work: Work, session: Session) -> Document:
        """The record that a create lost to, read at least as fresh as the loss."""
        for _ in range(LOOK_COUNT_MAX):
            found = await read(self._store, record_key(work.state_id, work.inbox), session)
            if found is not None:
                return found
        raise NothingCommitted

    async def _follow(self, attempt: Attempt, document: Document) -> Outcome:
        """Finish a message by its record."""
        work = attempt.work
        attempt.failure = None  # the record supersedes this attempt, and what it raised
        if self._replaces(attempt, document):
            self._waiting.forget(work)
            raise NothingCommitted
        record = stored.decode(document, Record)
        if work.verdict(record) is Verdict.PAYLOAD_DIFFERS:
            return differs_from_record(work.delivery.message)
        attempt.committed(record)
        attempt.is_duplicate = not record.reason
        await self._recovery.finish(document, record, work.inbox, attempt.ledger_entries)
        return None if work.cancels_due_ms else record.refusal

    @staticmethod
    def _replaces(attempt: Attempt, document: Document) -> bool:
        """Whether the message runs again and replaces this record."""
        record = stored.decode(document, Record)
        if attempt.work.verdict(record) is not Verdict.RESUBMISSION:
            return False
        attempt.replaces, attempt.found = document.version, record
        return True

    # Recover: finish a pending record

    async def redo(self, document: Document) -> bool | None:
        """Finish a pending record or a ledger, or collect an overflow blob; whether it is done (None: nothing was)."""
        return await self._recovery.redo(document)
