"""Item scope: a store that swaps one item at a time; states and the protocol's own documents may live apart.

Theory of operation.  The protocol of the Exactly-Once talk (a state that points to the transaction which changed it),
repaired where exploring it found holes.  One attempt:

    1  load the state, from the cache or by a read
    2  if it points to a transaction, finish that one first (7, 8)
    3  read the message's processed marker, as fresh as the token in the state says; found: follow it
    4  run the handler on a copy
    5  put the result into the next state (inline); one that is too large is staged in a document of its own
    6  swap the state: next version, pointer to the transaction, token.  The point of no return
    7  publish the outputs
    8  create the marker
    9  clear the pointer: an inline one by the key's next swap, or by itself where that does not come soon

A crash after 6 leaves a pointer, and a worker with the key's next message, or the sweeper, continues at 7; its marker
says that 8 is done.  A pointer may be replaced only then, and what replaces it carries a token that sees the marker.

A staged record has no time to live, and turns to `dispatched` at 8; only when its pointer is cleared may it go.  A
crash before 6 leaves one without a pointer to it.  It outlives any failure: it is reclaimed when its state is past the
version that its attempt loaded, and points elsewhere, because then its swap can not land any more.  A pointer without
its staged record blocks the key and is logged as critical; clearing it would lose outputs and apply the message again.

A stateless handler's record is the whole commit, as in partition scope.
Every `await` of a port is a crash point.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from outbox import stored
from outbox.errors import OutcomeUnknown, PoisonMessage
from outbox.ports import (
    Create,
    Document,
    Lost,
    Replace,
    Session,
    Tag,
    Version,
    Won,
    Write,
)
from outbox.runtime.commit.marks import Mark, Marks
from outbox.runtime.commit.overflow import Fitting, Overflows, unsent_outputs
from outbox.runtime.commit.partition_size import PartitionSizes
from outbox.runtime.commit.recovery import OrphanedStaged
from outbox.runtime.commit.run_handler import Life
from outbox.runtime.commit.state_cache import CachedState, Loaded, StateCache, cached_state
from outbox.runtime.commit.store_transaction import StoreTransaction, Superseded, run_in
from outbox.runtime.delivery.admission import REDELIVER_AFTER_S
from outbox.runtime.delivery.retrying import LOOK_COUNT_MAX, MAY_RETRY, NothingCommitted, read, write_known, write_one
from outbox.runtime.delivery.waiting import WAITS, WaitingRecords, Waits
from outbox.runtime.failures.failure_counts import FailureCounts
from outbox.runtime.store_scope import Checkpoint, StoreParts, StoreProtocol, no_checkpoint
from outbox.runtime.verdict import Verdict, differs_from_record
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import (
    FoundStaged,
    Inline,
    Record,
    Staged,
    StateItem,
    processed_key,
    staged_key,
    state_key,
)

log = logging.getLogger("outbox.item_scope")


class Quarantined(Exception):
    """A state points to a staged record that is missing: its key is blocked until an operator restores that."""


class ItemScope:
    """Commits messages over a store with compare-and-swap of single items."""

    group_count_max = 1

    def __init__(self, parts: StoreParts, *, stateless: StoreProtocol) -> None:
        """Take the parts; `stateless` handles messages without a state."""
        plan, states, records, now_ms, new_tx = parts.plan, parts.ports.store, parts.records, parts.now_ms, parts.new_tx
        self._plan, self._states, self._infrastructure = plan, states, records
        self._blobs, self._settlement = parts.ports.blobs, parts.settlement
        self._now_ms, self._new_tx = now_ms, new_tx
        self._life = Life(now_ms, parts.is_stopping)
        self.stateless = stateless
        self.cache = StateCache()
        """States without a pointer, or with one whose transaction is finished: it is cleared by the next swap."""
        self.clears = Marks(plan, states, self._blobs, written=self._cleared)
        """The states with such a pointer."""
        self.lingering, self.ledger = (self.clears, *stateless.lingering), stateless.ledger
        self._failures = FailureCounts(records, plan.record_life_ms / 1_000)
        self._waiting = WaitingRecords(plan, records, now_ms=now_ms, new_tx=new_tx)
        self.orphans = OrphanedStaged(states, records)
        self.fullness = PartitionSizes(plan, records.capabilities.partition_bytes_max, now_ms=now_ms)
        self._overflows = Overflows(plan, records, states, self._blobs, now_ms=now_ms)
        self._fitting = Fitting(parts, self._overflows)
        self.checkpoint: Checkpoint = no_checkpoint

    def remembered(self) -> tuple[Any, ...]:
        known = self.cache.content(), self.clears.content(), sorted(self.orphans.by_state.items())
        return self.stateless.remembered(), self._waiting.remembered(), *known

    # One attempt

    async def together(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        return []  # a pointer names one transaction, a transaction is one message

    async def once(self, attempt: Attempt) -> Outcome:
        state_id, tx = attempt.work.state_id, ""
        if state_id is None:
            return await self.stateless.once(attempt)
        clears: list[Mark] = []
        try:
            loaded = await self._load(state_id)  # 1, 2
            clears = self.clears.take(state_id)
            self.checkpoint("loaded", loaded.state, clears)
            await self._decide(attempt, state_id, loaded.state.item.token)  # 3
            batch, outcome = await self._run(attempt, loaded)  # 4
            tx = batch.tx
            if not batch.entries:
                self.cache.forget(state_id)  # it may have failed for what has changed since
                return outcome
            item, staged = await self._prepared(state_id, batch)  # 5
            swapped = await self._commit(attempt, state_id, batch, item)  # 6
            clears = []
        except Quarantined:
            return Later(REDELIVER_AFTER_S, attempt.work.delivery.failures)
        except Superseded as superseded:
            return self._follow(attempt, superseded.record, own_tx=tx)
        finally:
            self.clears.put_back(clears)
        record = batch.entries[0].record
        attempt.committed(record)
        await self._finish(state_id, swapped, staged, recurs=batch.is_warm)  # 7, 8, 9
        return record.refusal

    async def hold(self, attempt: Attempt) -> Outcome | Waits:
        work = attempt.work
        if work.state_id is None:
            return await self.stateless.hold(attempt)
        found = await self._waiting.note(work, processed_key(work.state_id, work.inbox))
        return WAITS if found is None or self._resubmits(work, found) else self._follow(attempt, found)

    # 1, 2. Load the state, and finish the transaction under its pointer

    async def _load(self, state_id: str) -> Loaded:
        """The state, without a pointer or with that of a finished transaction.

        Raises:
            Quarantined: its staged record is missing.
        """
        known = self.cache.find(state_id)
        if known is not None:
            return Loaded(known, is_warm=True)
        state = cached_state(await read(self._states, state_key(state_id)))
        if state.item.pending:
            return Loaded(await self._complete(state_id, state))
        self.cache.remember(state_id, state)
        return Loaded(state)

    # 3. Decide: is the message on record already?

    async def _decide(self, attempt: Attempt, state_id: str, token: Session) -> None:
        """Check that the message has no marker as of `token`, or may replace it.

        Raises:
            Superseded: there is a marker to follow.
        """
        work = attempt.work
        marker = await read(self._infrastructure, processed_key(state_id, work.inbox), token)
        if marker is not None and not self._resubmits(work, marker):
            raise Superseded(marker)
        attempt.found = None if marker is None else stored.decode(marker, Record)

    def _resubmits(self, work: Work, marker: Document) -> bool:
        return work.verdict(stored.decode(marker, Record)) is Verdict.RESUBMISSION

    async def _before_call(self, attempt: Attempt, batch: StoreTransaction, token: Session) -> None:
        """Stop a handler before its first external call if the message is on record already."""
        work = attempt.work
        assert work.state_id is not None, "a stateless message has no marker"
        marker = await self._infrastructure.read(processed_key(work.state_id, work.inbox), session=token)
        if marker is not None and not self._resubmits(work, marker):
            batch.superseded = marker
            raise Superseded(marker)

    # 4. Run the handler

    async def _run(self, attempt: Attempt, loaded: Loaded) -> tuple[StoreTransaction, Outcome]:
        batch = StoreTransaction(self._plan, self._now_ms(), self._new_tx(), loaded)
        self._waiting.forget(attempt.work)
        batch.durable = partial(self._before_call, attempt, batch, batch.loaded.item.token)
        await self._failures.recall(attempt)
        outcome = await run_in(self._plan, batch, attempt, self._life)
        if batch.is_late(self._now_ms()) and isinstance(outcome, PoisonMessage):
            attempt.refuse_over(batch.loaded.version, outcome)  # the next attempt records it, under its own deadline
            raise NothingCommitted
        await self._failures.note(attempt.work, outcome)
        return batch, outcome

    # 5. Put the result into the next state, or stage it

    async def _prepared(self, state_id: str, batch: StoreTransaction) -> tuple[StateItem, FoundStaged | None]:
        """Return the next state and its staged record (None: the record is inline), after writing the blobs they
        name."""
        fitted = await self._fitting.item(state_id, batch)
        if batch.is_late(self._now_ms()):
            raise NothingCommitted
        if isinstance(fitted, StateItem):
            return fitted, None
        found = await self._stage(state_id, fitted)
        item = msgspec.structs.replace(batch.state_after, pending=batch.tx, token=found.session)
        self._fitting.check_state(item, batch)
        return item, found

    async def _stage(self, state_id: str, staged: Staged) -> FoundStaged:
        """Stage a result; returned with the session token of that write."""
        key, tx = staged_key(state_id, staged.pending), staged.pending
        self.orphans.note(state_id, tx, staged.version)
        try:
            answer = await write_one(
                self._infrastructure, Create(key, stored.encode(staged), None, Tag("stage", (staged.inbox,), tx))
            )
        except OutcomeUnknown as error:
            found = await read(self._infrastructure, key)
            if found is None:
                raise NothingCommitted from error
            return FoundStaged(staged, found.version, found.session)
        if isinstance(answer, Lost):
            raise NothingCommitted  # the id is ours alone: an earlier try of the SDK won
        return FoundStaged(staged, answer.versions[0], answer.session)

    # 6. Commit: the point of no return

    async def _commit(self, attempt: Attempt, state_id: str, batch: StoreTransaction, item: StateItem) -> CachedState:
        """Swap the state; returns the new one.

        Raises:
            NothingCommitted: the state has changed, or nothing is known to have been written.
            Superseded: the message has a marker.
        """
        work, body = attempt.work, stored.encode(item)
        key, tag, etag = state_key(state_id), Tag("swap", (work.inbox,), batch.tx), batch.loaded.version
        write = Replace(key, body, etag, None, tag) if etag else Create(key, body, None, tag)
        self.cache.forget(state_id)
        try:
            answer = await write_one(self._states, write)
        except OutcomeUnknown as error:
            found = cached_state(await read(self._states, key))
            if found.item.pointer == batch.tx:
                return found
            token = found.item.token or item.token
            marker = await read(self._infrastructure, processed_key(state_id, work.inbox), token)
            if marker is None or self._resubmits(work, marker):
                raise NothingCommitted from error  # it may still land: the next swap then loses
            raise Superseded(marker) from error
        if isinstance(answer, Lost):
            raise NothingCommitted
        return CachedState(item, answer.versions[0], answer.session)

    # 7. Publish the outputs

    async def _finish(
        self, state_id: str, state: CachedState, staged: FoundStaged | None, *, recurs: bool
    ) -> CachedState:
        """Finish the transaction under a state's pointer: push, mark, clear; the state without it."""
        self.checkpoint("finish", state, staged, recurs)
        inline = state.item.pending
        if isinstance(inline, Inline):
            await self._settlement.push(list(inline.record.outputs))  # 7
            token = await self._mark(state_id, inline.inbox, inline.record)  # 8
            finished = self._clear_later(state_id, state, token, recurs=recurs)  # 9
            await self.orphans.reclaim(state_id, finished, but="")
            return finished
        assert staged is not None, "a pointer to what is staged comes with it"
        return await self._finish_staged(state_id, state, staged)

    async def _finish_staged(self, state_id: str, state: CachedState, found: FoundStaged) -> CachedState:
        staged, tx, token = found.staged, state.item.pointer, found.session
        if not staged.dispatched:
            await self._push_staged(tx, found)  # 7
            token = await self._mark(state_id, staged.inbox, staged.record)  # 8
            found = await self._mark_dispatched(tx, found)
        return await self._clear(state_id, state, found, token)  # 9

    async def _push_staged(self, tx: str, found: FoundStaged) -> None:
        key = staged_key(found.staged.state, tx)
        outputs = await unsent_outputs(found.staged.record, self._blobs, self._infrastructure, key, found.session)
        await self._settlement.push(outputs)

    # 8. Mark the outputs as sent: the message's marker, then the staged record

    async def _mark(self, state_id: str, inbox: bytes, record: Record) -> Session:
        """Create the marker, or replace that of an earlier refusal; the session token in which it can be read."""
        key, marker = processed_key(state_id, inbox), record.marked()
        body, tag = stored.encode(marker), Tag("processed", (inbox,), record.tx)
        life_s = self._plan.life_s(record.life_ms)
        write: Write = Create(key, body, life_s, tag)
        for _ in range(LOOK_COUNT_MAX):
            answer = await write_known(self._infrastructure, write)  # an unknown one is repeated from the pointer
            if isinstance(answer, Won):
                self.fullness.note(state_id, marker)
                return answer.session
            known = answer.current or await read(self._infrastructure, key, answer.session)
            if known is None:
                raise NothingCommitted
            if _covers(stored.decode(known, Record), record):
                return known.session or answer.session  # the loss may have been to an earlier marker
            write = Replace(key, body, known.version, life_s, tag)
        raise NothingCommitted

    async def _mark_dispatched(self, tx: str, found: FoundStaged) -> FoundStaged:
        staged = msgspec.structs.replace(found.staged, record=found.staged.record.marked(), dispatched=True)
        key, tag = staged_key(staged.state, tx), Tag("dispatched", (staged.inbox,), tx)
        answer = await write_known(self._infrastructure, Replace(key, stored.encode(staged), found.version, None, tag))
        if isinstance(answer, Lost):
            raise NothingCommitted  # another worker finishes it: read the state again
        if found.staged.record.spilled:
            with suppress(*MAY_RETRY):  # an unneeded blob may stay
                await self._blobs.delete(found.staged.record.spilled)
        return FoundStaged(staged, answer.versions[0], found.session)

    # 9. Clear the pointer

    def _clear_later(self, state_id: str, state: CachedState, token: Session, *, recurs: bool = False) -> CachedState:
        """Note the write that clears a state's pointer, for later, and return the cleared state."""
        inline, item = state.item.pending, msgspec.structs.replace(state.item, pending="", token=token)
        tag = Tag("clear", (inline.inbox,) if isinstance(inline, Inline) else (), state.item.pointer)
        write = Replace(state_key(state_id), stored.encode(item), state.version, None, tag)
        self.clears.note(Mark(write), recurs=recurs)
        finished = CachedState(item, state.version, state.session)
        self.cache.remember(state_id, finished)
        return finished

    def _cleared(self, write: Replace, version: Version, session: Session) -> None:
        """Keep the version of a state whose pointer was cleared."""
        self.cache.remember(write.key.partition, cached_state(Document(write.key, write.body, version, session)))

    async def _clear(self, state_id: str, state: CachedState, found: FoundStaged, token: Session) -> CachedState:
        """Clear the pointer to a staged record, and delete that."""
        self.checkpoint("clear", state, found, token)
        tx = state.item.pointer
        item = msgspec.structs.replace(state.item, pending="", token=token)
        key, tag = state_key(state_id), Tag("clear", (found.staged.inbox,), tx)
        answer = await write_known(self._states, Replace(key, stored.encode(item), state.version, None, tag))
        if isinstance(answer, Lost):
            raise NothingCommitted
        state = CachedState(item, answer.versions[0], answer.session)
        self.cache.remember(state_id, state)
        await self.orphans.delete(staged_key(state_id, tx), found.version, tx)
        await self.orphans.reclaim(state_id, state, but=tx)
        return state

    async def finish(self) -> None:
        await self.clears.write()
        await self.stateless.finish()

    # Lost on the marker: follow it

    def _follow(self, attempt: Attempt, marker: Document, *, own_tx: str = "") -> Outcome:
        record, work = stored.decode(marker, Record), attempt.work
        if record.tx != own_tx:
            attempt.failure = None  # the marker supersedes this attempt, and what it raised
        if work.verdict(record) is Verdict.PAYLOAD_DIFFERS:
            return differs_from_record(work.delivery.message)
        attempt.committed(record)
        attempt.is_duplicate = not record.reason and record.tx != own_tx
        return None if work.cancels_due_ms else record.refusal

    # Recover: finish the transaction under a pointer

    async def redo(self, document: Document) -> bool | None:
        """Finish what a crash left: a pointer of a state, a pending record, an orphaned staged record.

        It starts from states, never from staged records: pushing one of those could push outputs that never commit.
        """
        try:
            if document.key.id.startswith(stored.RECORD_PREFIX):
                return await self.stateless.redo(document)
            if document.key.id.startswith(stored.OVERFLOW_PREFIX):
                is_staged = bool(stored.decode(document, stored.Overflow).state)
                return await self._overflows.collect(document, is_staged=is_staged)
            if document.key.id.startswith(stored.STAGED_PREFIX):
                return await self.orphans.redo(document)
            await self._complete(document.key.partition, cached_state(document))
        except (NothingCommitted, Quarantined):
            return False
        return True

    async def _complete(self, state_id: str, state: CachedState) -> CachedState:
        """Finish the transaction under a state's pointer, of any worker; returns the state without a pointer.

        Raises:
            Quarantined: its staged record is missing.
        """
        inline, tx, found = state.item.pending, state.item.pointer, None
        if isinstance(inline, Inline):
            marker = await read(self._infrastructure, processed_key(state_id, inline.inbox), state.item.token)
            if marker is not None and _covers(stored.decode(marker, Record), inline.record):
                return self._clear_later(state_id, state, marker.session)
            if inline.record.reason and self._now_ms() - inline.record.at_ms > self._plan.attempt_ms_max:
                state = await self._confirm(state_id, state)  # else its marker may have been there, and have expired
        else:
            document = await read(self._infrastructure, staged_key(state_id, tx), state.item.token)
            if document is None:
                await self._confirm(state_id, state)
                log.critical("staged record is missing, key blocked; restore it", extra={"state": state_id, "tx": tx})
                raise Quarantined
            found = FoundStaged(stored.decode(document, Staged), document.version, document.session)
        return await self._finish(state_id, state, found, recurs=False)

    async def _confirm(self, state_id: str, state: CachedState) -> CachedState:
        """Write a state back unchanged and return it, because a second read could be as stale as the first.

        Raises:
            NothingCommitted: it has changed, or the outcome is unknown.
        """
        key, tag = state_key(state_id), Tag("confirm", (), state.item.pointer)
        answer = await write_known(self._states, Replace(key, stored.encode(state.item), state.version, None, tag))
        if isinstance(answer, Lost):
            raise NothingCommitted  # another worker has finished it
        return CachedState(state.item, answer.versions[0], answer.session)


def _covers(marker: Record, record: Record) -> bool:
    """Whether a marker says that the outputs of this record of its message have left."""
    return marker.tx == record.tx or not marker.reason or marker.attempt >= record.attempt
