"""Partition scope: a state and the records of its messages share a partition, so one batch commits both.

Theory of operation.  One attempt: load the state (from the cache, else a point read), run the handler on a copy, write
one batch, push the outputs.  The batch *creates* the message's record, whose id is the inbox key, and *creates or
replaces* the state under its loaded version (`if_match`), even where nothing changed.  So it loses to an earlier commit
of the message, and to any change of the state:

    won                  push the outputs; the caller settles; mark later
    lost on the record   follow the record: push its outputs if it is pending; the caller settles by its outcome
    lost on the state    drop the cached state; the caller tries again
    outcome unknown      read the record: mine, won; another's, lost on it; none, the caller tries again, because a
                         batch that lands late makes the next create lose

The state is not read where those of its type have all been new lately: it is taken to be new then, and the batch, which
creates it, loses if it is not.  A handler that fails on such a state, or is about to make an external call, is run
again on the state as it is read.

A message that may be on record (redelivered, resubmitted, or its push failed here) reads its record before it loads
anything.  A resubmission replaces the record of the refusal, under the version that it read.  An edit is turned down
for its payload only by a record that its own create has lost to, because other edits change the payload on record.

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

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from outbox import stored
from outbox.errors import NoBlobStore, OutcomeUnknown, PoisonMessage, TooLarge
from outbox.ports import (
    BlobStore,
    Create,
    Document,
    DocumentKey,
    Lost,
    Replace,
    Session,
    StateStore,
    Tag,
    Version,
    Won,
    Write,
)
from outbox.runtime.commit import overflow
from outbox.runtime.commit.dispatch_ledger import DispatchLedger, finish_ledger
from outbox.runtime.commit.marks import Mark, Marks
from outbox.runtime.commit.overflow import Overflows, announced, log_missing_blob
from outbox.runtime.commit.partition_size import PartitionSizes
from outbox.runtime.commit.run_handler import Life
from outbox.runtime.commit.state_cache import NO_STATE, CachedState, NewStates, StateCache, cached_state
from outbox.runtime.commit.store_io import LOOK_COUNT_MAX, read, write_blobs, write_known
from outbox.runtime.commit.store_transaction import Entry, Premature, StoreTransaction, Superseded, run_in
from outbox.runtime.delivery.claim_check import without_blobs
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.delivery.waiting import WAITS, Waiting, Waits
from outbox.runtime.failures.failure_counts import FailureCounts
from outbox.runtime.start.plan import Plan
from outbox.runtime.store_protocol import Checkpoint, no_checkpoint
from outbox.runtime.verdict import Verdict, differs_from_record
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import LEDGER_PREFIX, OVERFLOW_PREFIX, RECORD_PREFIX, LedgerItem, Record, record_key, state_key

BEHIND_COUNT_MAX = 10_000
"""How many changed states are remembered; beyond it a stale read costs another attempt."""
PENDING_AFTER_MS = 3_600_000
"""A record of a dispatch ledger whose outputs have not left at this age is kept until they have."""
LOOKED_COUNT_MAX = 10_000
LOOK_AGAIN_MS_MAX = 3_600_000
UNPUSHED_COUNT_MAX = 10_000
"""How many messages with unpushed outputs are remembered; beyond it their handlers run once more, in vain."""


class PartitionScope:
    """Commits messages over a store that writes a partition's documents together."""

    def __init__(
        self,
        plan: Plan,
        store: StateStore,
        blobs: BlobStore,
        settlement: Settlement,
        *,
        now_ms: Callable[[], int],
        new_tx: Callable[[], str],
        is_stopping: Callable[[], bool],
        cache: StateCache | None = None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._blobs = blobs
        self._settlement = settlement
        self._now_ms = now_ms
        self._new_tx = new_tx
        self._life = Life(now_ms, is_stopping)
        self.cache = cache if cache is not None else StateCache()
        self.new_states = NewStates()
        self.marks = Marks(plan, store, blobs)
        self.ledger = _ledger(plan, store, now_ms=now_ms, new_tx=new_tx)
        self._failures = FailureCounts(store, plan.record_life_ms / 1_000)
        self.fullness = PartitionSizes(plan, store.capabilities.partition_bytes_max, now_ms=now_ms)
        self._overflows = Overflows(plan, store, store, blobs, now_ms=now_ms)
        self._behind: dict[str, Session] = {}
        """States that changed under an attempt, and the session token of that loss: a read with it is fresh."""
        self._waiting = Waiting(plan, store, now_ms=now_ms, new_tx=new_tx)
        self._looked: dict[str, tuple[Version, int]] = {}
        """The ledgers that were swept: their versions, and when to look again where that stays."""
        self._unpushed: dict[bytes, None] = {}
        """Messages committed here whose outputs are not pushed yet."""
        self.checkpoint: Checkpoint = no_checkpoint

    def remembered(self) -> tuple[Any, ...]:
        known = self.cache.content(), self.marks.content(), self._waiting.remembered()
        ledger = None if self.ledger is None else self.ledger.remembered()
        unread = sorted(self._behind.items()), self.new_states.content()
        return *known, unread, list(self._unpushed), ledger

    @property
    def lingering(self) -> tuple[Marks, ...]:
        return (self.marks,)

    @property
    def group_count_max(self) -> int:
        return self._store.capabilities.batch_count_max - 1

    @property
    def _record_ttl_s(self) -> float:
        return self._plan.record_life_ms / 1_000

    # One attempt

    async def together(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        if any(attempt.work.delivery.message.attempt for attempt in attempts):
            raise NothingCommitted  # the record of a resubmission is read first
        state_id, outcomes = attempts[0].work.state_id, list[Outcome]()
        batch = await self._load(state_id)
        try:
            for attempt in attempts:
                outcomes.append(await self._run(batch, attempt))
                if attempt.work.in_order and outcomes[-1] is not None:
                    break  # its successors may have to wait
                if batch.is_half_spent(self._now_ms()):
                    break  # the others get an attempt with its own deadline
        except (Premature, Superseded) as found:
            raise NothingCommitted from found
        if batch.entries:
            if await self._commit(batch, state_id) is not None:
                raise NothingCommitted
            await self._push(batch)
            self._mark(batch, state_id)
        return outcomes

    async def once(self, attempt: Attempt) -> Outcome:
        state_id = attempt.work.state_id
        try:
            if self._may_be_on_record(attempt.work):
                await self._decide(attempt)  # a read is cheaper than a slow handler
            batch = await self._load(state_id, may_be_new=self._may_be_new(attempt.work))
            had_to_know = batch.is_assumed
            with suppress(Premature):  # on a state that was taken to be new
                outcome = await self._run(batch, attempt)
                had_to_know = False
            if had_to_know:
                self._doubt(state_id)
                batch = await self._load(state_id)
                outcome = await self._run(batch, attempt)
        except Superseded as found:
            return await self._follow(attempt, found.record)
        if batch.entries:
            lost = await self._commit(batch, state_id)
            if lost is not None:
                return await self._follow(attempt, lost.current or await self._find(attempt.work, lost.session))
            await self._push(batch)
            self._mark(batch, state_id)
        return outcome

    async def hold(self, attempt: Attempt) -> Outcome | Waits:
        # A resubmission waits like a fresh message: its record, a refusal, is what it will replace.
        work = attempt.work
        found = await self._waiting.note(work, record_key(work.state_id, work.inbox))
        if found is None or work.verdict(stored.decode(found, Record)) is Verdict.RESUBMISSION:
            return WAITS
        return await self._follow(attempt, found)

    # 1. Load the state

    async def _load(self, state_id: str | None, *, may_be_new: bool = False) -> StoreTransaction:
        """A transaction over the cached state, else over a read; over none, if it `may_be_new` and such ones are."""
        if state_id is None:
            return StoreTransaction(self._plan, self._now_ms(), self._new_tx(), NO_STATE)
        cached = self.cache.find(state_id)
        if cached is None and may_be_new and self.new_states.expects(state_id):
            return StoreTransaction(self._plan, self._now_ms(), self._new_tx(), NO_STATE, is_assumed=True)
        known = cached or await self._read_state(state_id)
        return StoreTransaction(self._plan, self._now_ms(), self._new_tx(), known, is_warm=cached is not None)

    async def _read_state(self, state_id: str) -> CachedState:
        found = cached_state(await read(self._store, state_key(state_id), self._behind.pop(state_id, "")))
        self.new_states.note(state_id, is_new=not found.version)
        self.cache.remember(state_id, found)
        return found

    def _may_be_new(self, work: Work) -> bool:
        """Whether a state may be taken to be new: not where a guard counts tries, or a thread may go on after one."""
        handler, is_first = work.handler, not (self._may_be_on_record(work) or work.delivery.failures)
        return is_first and handler is not None and not handler.guards and not handler.blocking

    def _doubt(self, state_id: str | None) -> None:
        """Read the states of this type again: one of them was not new, or a handler had to know whether it was."""
        self.new_states.note(state_id or "", is_new=False)

    # 2. Decide: is the message on record already?

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
        if found is None or self._may_be_stale(attempt.work, found):
            attempt.replaces, attempt.found = "", None
        elif not self._replaces(attempt, found):
            raise Superseded(found)

    @staticmethod
    def _may_be_stale(work: Work, document: Document) -> bool:
        """Whether a record turns an edit down that a later record of its message would not: the read may be stale.

        Then it counts as an edit of nothing.  Its refusal loses to the record, and is told which one that is.
        """
        is_edit = work.delivery.message.replaces is not None
        return is_edit and work.verdict(stored.decode(document, Record)) is Verdict.PAYLOAD_DIFFERS

    async def _before_call(self, attempt: Attempt, batch: StoreTransaction) -> None:
        """What `ctx.call` awaits: stop a handler before its first external call if the message is on record already.

        Behind other messages of its batch, on a state that is not committed, it also stops, and runs again on its own;
        so it does on a state that was not read.
        """
        if batch.entries or batch.is_assumed:
            batch.is_premature = True
            raise Premature
        try:
            await self._read_record(attempt)
        except Superseded as found:
            batch.superseded = found.record
            raise

    # 3. Run the handler

    async def _run(self, batch: StoreTransaction, attempt: Attempt) -> Outcome:
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
            self.cache.forget(attempt.work.state_id)  # it may have failed for what has changed since
            if batch.loaded.version:
                self._doubt(attempt.work.state_id)  # it is there, and this worker knows it no more
        if isinstance(outcome, Later) and attempt.work.inbox:
            await self._decide(attempt)  # the failure may come from its own committed effect
        await self._failures.note(attempt.work, outcome)
        return outcome

    # 4. Commit: one batch

    async def _commit(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        """Write the batch; None if it won, `Lost` if a message of it is on record.

        Raises:
            NothingCommitted: the state has changed, or nothing is known to have been written.
        """
        if self.ledger is None:
            return await self._commit_batch(batch, state_id)
        try:
            lost = await self._commit_batch(batch, state_id)
        except NothingCommitted:
            self._leave(batch)
            raise
        if lost is not None:
            self._leave(batch)
        return lost

    def _leave(self, batch: StoreTransaction) -> None:
        """Close the entries of a batch that is not written; one that may land keeps them open, whatever it lost to."""
        if self.ledger is not None and not batch.may_land:
            self.ledger.close(batch.ledger_entries)

    async def _commit_batch(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        writes = await self._prepared(batch, state_id)
        if batch.is_late(self._now_ms()):
            raise NothingCommitted
        try:
            answer = await self._written(batch, state_id, writes)
        except OutcomeUnknown:
            batch.land_later()
            self.cache.forget(state_id)
            return await self._resolved(batch, state_id)
        except TooLarge as error:
            raise self._too_large(batch, state_id, str(error)) from error
        except MAY_RETRY as error:
            self.cache.forget(state_id)
            raise NothingCommitted from error
        if isinstance(answer, Won):
            self._remember_won(batch, state_id, answer)
            return None
        self.cache.forget(state_id)
        if answer.operation < len(batch.entries):
            return answer
        self._doubt(state_id)
        if state_id is not None and answer.session and len(self._behind) < BEHIND_COUNT_MAX:
            self._behind[state_id] = answer.session
        raise NothingCommitted

    async def _written(self, batch: StoreTransaction, state_id: str | None, writes: list[Write]) -> Won | Lost:
        """The answer to a batch, in which marks of its partition ride that are due.

        A mark that loses, because another has made it, makes the whole batch lose: it is written again without any.
        """
        riding = self._riding(batch, state_id, writes)
        if riding:
            answer = await self._with_marks(writes, riding)
            if answer is not None:
                return answer
            if batch.is_late(self._now_ms()):
                raise NothingCommitted
        return await self._store.write(writes)

    def _riding(self, batch: StoreTransaction, state_id: str | None, writes: list[Write]) -> list[Mark]:
        """Marks for which the batch has room."""
        if state_id is None:
            return []
        known = self._store.capabilities
        limit_bytes = overflow.bytes_for(known.item_bytes_max, *(entry.record for entry in batch.entries))
        left_count, left_bytes = known.batch_count_max - len(writes), limit_bytes - _size(writes)
        return self.marks.take(state_key(state_id).partition, count_max=left_count, bytes_max=left_bytes)

    async def _with_marks(self, writes: list[Write], riding: list[Mark]) -> Won | Lost | None:
        """The answer to a batch; None: nothing was written, because of its marks."""
        lost = -1
        try:
            answer = await self._store.write([*writes, *(mark.write for mark in riding)])
            if isinstance(answer, Won):
                riding = []
                return Won(answer.versions[: len(writes)], answer.session)
            lost = answer.operation - len(writes)
            return None if lost >= 0 else answer
        except TooLarge:
            return None
        finally:  # where the outcome is unknown, too: a mark that was written loses by its version
            self.marks.put_back([mark for at, mark in enumerate(riding) if at != lost])

    async def _resolved(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        """Resolve an unknown outcome by the batch's first record."""
        record = await read(self._store, record_key(state_id, batch.entries[0].attempt.work.inbox))
        if record is None:
            raise NothingCommitted  # it may still land: the next create loses then
        return None if stored.decode(record, Record).tx == batch.tx else Lost(0, record)

    def _remember_won(self, batch: StoreTransaction, state_id: str | None, won: Won) -> None:
        """Keep the new state in the cache, and the records' versions for their marks."""
        if state_id is not None:
            self.cache.remember(state_id, CachedState(batch.state_after, won.versions[-1], won.session))
        for entry, version in zip(batch.entries, won.versions, strict=False):
            entry.version = version
            self.fullness.note(state_id, entry.stored)

    async def _prepared(self, batch: StoreTransaction, state_id: str | None) -> list[Write]:
        """The writes of a batch; the blobs that they name are written on return."""
        await self._enter(batch)
        writes = self._writes(batch, state_id)
        limit = overflow.bytes_for(self._store.capabilities.item_bytes_max, *(entry.record for entry in batch.entries))
        if _size(writes) > limit:
            if len(batch.entries) > 1:
                raise NothingCommitted  # each message alone is smaller
            entry = batch.entries[0]
            if not entry.record.outputs:
                raise self._too_large(batch, state_id, f"{_size(writes)} bytes, there is room for {limit}")
            entry.stored, name, data = overflow.spilled(entry.record)  # without an entry: its mark deletes the blob
            writes = self._writes(batch, state_id)
            if _size(writes) > limit:
                raise self._too_large(batch, state_id, f"{_size(writes)} bytes, there is room for {limit}")
            version, life_ms = batch.loaded.item.version, self._plan.record_life_ms
            work, now_ms = entry.attempt.work, self._now_ms()
            await self._overflows.announce(*announced(name, batch.tx, work, version, now_ms, life_ms))
            batch.blobs.append((name, data))
        try:
            await write_blobs(self._blobs, batch.blobs)
        except NoBlobStore as error:
            raise self._impossible(batch, state_id, without_blobs(error)) from error
        return writes

    async def _enter(self, batch: StoreTransaction) -> None:
        """Give each record of the batch that emits something an entry of the ledger, where one is kept."""
        if self.ledger is None:
            return
        for entry in batch.entries:
            if entry.record.outputs:
                place = await self.ledger.take()
                batch.ledger_entries.append(place)
                entry.stored = msgspec.structs.replace(entry.record, pending=False, entry=place)

    def _too_large(self, batch: StoreTransaction, state_id: str | None, text: str) -> NothingCommitted:
        refusal = overflow.smaller(batch.entries[0].record, f"its state and record are too large: {text}")
        return self._impossible(batch, state_id, refusal)

    def _impossible(self, batch: StoreTransaction, state_id: str | None, refusal: PoisonMessage) -> NothingCommitted:
        """Split a batch that can never be committed; refuse a single message, as long as the state is unchanged."""
        self.cache.forget(state_id)
        if len(batch.entries) == 1:
            batch.entries[0].attempt.refuse_over(batch.loaded.version, refusal)
        return NothingCommitted()

    def _writes(self, batch: StoreTransaction, state_id: str | None) -> list[Write]:
        writes: list[Write] = [self._record_write(entry, state_id) for entry in batch.entries]
        if state_id is not None:
            item, tag = batch.state_after, Tag("state", batch.inboxes, batch.tx)
            body, ttl_s = stored.encode(item), self._record_ttl_s if item.is_tombstone else None
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

    # 5. Push what the record holds

    async def _push(self, batch: StoreTransaction) -> None:
        for entry in batch.entries:
            entry.attempt.committed(entry.record)
            self._unpushed[entry.attempt.work.inbox] = None
        while len(self._unpushed) > UNPUSHED_COUNT_MAX:
            del self._unpushed[next(iter(self._unpushed))]
        await self._settlement.push([output for entry in batch.entries for output in entry.record.outputs])
        for inbox in batch.inboxes:
            self._unpushed.pop(inbox, None)

    # 6. Mark that it has left, which may wait for the next batch of the partition

    def _mark(self, batch: StoreTransaction, state_id: str | None) -> None:
        if self.ledger is not None:  # a batch of these messages that was unknown can not land any more
            earlier = [of for entry in batch.entries for of in entry.attempt.ledger_entries]
            self.ledger.close([*batch.ledger_entries, *earlier])
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
        await self._push_and_mark(document.key, document, record, work.inbox)
        if self.ledger is not None:
            self.ledger.close([*attempt.ledger_entries, record.entry])
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
        try:
            if document.key.id.startswith(OVERFLOW_PREFIX):
                return await self._overflows.collect(document, is_staged=False)
            if document.key.id.startswith(LEDGER_PREFIX):
                return await self._finish_ledger(document)
            record = stored.decode(document, Record)
            inbox = bytes.fromhex(document.key.id.removeprefix(RECORD_PREFIX))
            await self._push_and_mark(document.key, document, record, inbox)
        except NothingCommitted:
            return False
        return True

    async def _finish_ledger(self, document: Document) -> bool | None:
        """Push what a ledger does not say has left; one that does not change is looked at less and less often."""
        version, next_ms = self._looked.get(document.key.id, ("", 0))
        now_ms = self._now_ms()
        if version == document.version and now_ms < next_ms:
            return None
        is_finished = await finish_ledger(self._store, document, self._finish_entry)
        if len(self._looked) >= LOOKED_COUNT_MAX:
            self._looked.clear()
        rest_ms = (now_ms - stored.decode(document, LedgerItem).at_ms) // 2
        self._looked[document.key.id] = document.version, now_ms + min(rest_ms, LOOK_AGAIN_MS_MAX)
        return is_finished

    async def _finish_entry(self, document: Document, record: Record) -> None:
        """Push the outputs of a record that no ledger says have left; an old one that cannot be is made pending.

        Raises:
            NothingCommitted: they could not be pushed now.
        """
        try:
            await self._settlement.push(list(record.outputs))
        except NothingCommitted:
            if self._now_ms() - record.at_ms >= PENDING_AFTER_MS:
                pending = msgspec.structs.replace(record, pending=True, entry="")
                await write_known(
                    self._store, Replace(document.key, stored.encode(pending), document.version, None, Tag("keep"))
                )
            raise

    async def _push_and_mark(self, key: DocumentKey, document: Document, record: Record, inbox: bytes) -> None:
        """Push the outputs of a pending record, and mark it.

        Raises:
            NothingCommitted: they could not be pushed now.
        """
        if record.entry:
            if self.ledger is None or not self.ledger.is_closed(record.entry):
                await self._settlement.push(list(record.outputs))
            return
        if not record.pending or self.marks.is_due(key):
            return
        outputs = await overflow.outputs_of(record, self._blobs)
        if outputs is None:
            await log_missing_blob(self._store, key, document.session, record.spilled)
            raise NothingCommitted  # marked meanwhile, or its blob is gone: the next attempt reads the record
        await self._settlement.push(outputs)
        self.marks.add(key, document.version, record, inbox)


def _ledger(plan: Plan, store: StateStore, **clock: Any) -> DispatchLedger | None:
    """The dispatch ledger of a store that keeps one."""
    if not store.capabilities.dispatch_ledger:
        return None
    return DispatchLedger(plan, store, now_ms=clock["now_ms"], new_id=clock["new_tx"])


def _size(writes: Sequence[Write]) -> int:
    return sum(len(write.body) for write in writes if isinstance(write, Create | Replace))
