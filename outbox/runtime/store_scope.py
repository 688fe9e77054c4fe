"""The interface of the store protocols, partition scope and item scope, their common parts, and the frame round them.

Theory of operation.  The frame decides which messages commit together, in which order, with how many attempts.  The
messages of one partition form a lane, on an ordered source those of one session.  This worker handles a lane in turn,
and lanes side by side.  It first commits a lane's messages together.  If that fails (a conflict, a duplicate, an
unknown outcome) it handles each on its own, with a bounded number of attempts and pauses between, and then releases it.
Messages of an unordered queue that were committed together are settled side by side while their lane goes on: in turn,
a batch of ten would keep its key for ten round trips.  Other workers may handle the same messages at the same time:
safety is the protocols' alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import msgspec

from outbox.errors import CorruptRecord, PoisonMessage
from outbox.log_throttle import LogThrottle
from outbox.ports import BlobStore, Delivery, Document, StateStore, StorePorts
from outbox.runtime.commit.marks import Delay, Marking
from outbox.runtime.delivery.admission import REDELIVER_AFTER_S, Admission
from outbox.runtime.delivery.blocked_sessions import BlockedSession, BlockedSessions
from outbox.runtime.delivery.intake import Lanes
from outbox.runtime.delivery.retrying import Backoff, NothingCommitted, RetryBackoff, RetryError
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.delivery.waiting import Waits
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt, FanOut, Later, Outcome, Work, attempt_at, holds_lane
from outbox.stored import RECORD_PREFIX

log = logging.getLogger("outbox.lanes")

LOG_BLOCKED_EVERY_MS = 3_600_000
Checkpoint = Callable[..., None]
"""A function called at a step with its name and all values used after it, but the attempt and `remembered`."""


class StoreScope:
    """Handles the deliveries of one worker over a store and a bus."""

    def __init__(
        self,
        plan: CompiledApp,
        protocol: StoreProtocol,
        settlement: Settlement,
        blocked: BlockedSessions,
        blobs: BlobStore,
        *,
        now_ms: Callable[[], int],
        backoff: Backoff,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        lingering: Delay | None = None,
    ) -> None:
        self.protocol = protocol
        self.failed_pushes = settlement.failed_pushes
        self._plan = plan
        self._settlement = settlement
        self._blocked = blocked
        self._admission = Admission(plan, blobs, backoff)
        self._now_ms = now_ms
        self._backoff = backoff
        self._spawn = spawn
        self._lingering = lingering
        """Batches marks; None: each is written at once."""
        self._lanes: Lanes[Attempt] = Lanes()
        self.waiting: Counter[str] = Counter()
        """How many messages of each queue wait behind others of their lane."""
        self.on_waiting: Callable[[], None] = lambda: None
        """Called when some begin to wait."""
        self._blocked_log = LogThrottle(LOG_BLOCKED_EVERY_MS, now_ms)
        self.retry_backoff = RetryBackoff(backoff, now_ms)

    def remembered(self) -> tuple[Any, ...]:
        """The busy lanes with the attempts that wait in them, and what the protocol remembers, as plain data."""
        waiting = [(lane, [each.remembered() for each in waits]) for lane, waits in self._lanes.taken.items()]
        return self.protocol.remembered(), waiting

    async def attempt(self, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch: every delivery is completed, dead-lettered, rescheduled or released."""
        works = await self._admission.admit([_counted(delivery) for delivery in deliveries], self._now_ms())
        lanes: dict[str, list[Attempt]] = {}
        for work in works:
            attempt = attempt_at(work)
            if attempt.others:
                FanOut(attempt.branches)
            for branch in attempt.branches:
                lanes.setdefault(_lane_of(branch.work), []).append(branch)
        first: str | None = None
        for lane, attempts in lanes.items():
            if lane in self._lanes.taken:
                self._lanes.wait(lane, attempts)
                self._count_waiting(attempts, 1)
                continue
            self._lanes.enter(lane)
            if first is None:
                first = lane
            else:
                self._spawn(self._occupy(lane, attempts))
        if first is not None:
            await self._occupy(first, lanes[first])

    def _count_waiting(self, attempts: Sequence[Attempt], change: int) -> None:
        """Count messages that wait, or wait no more; one with several branches may be at work in another lane."""
        for attempt in attempts:
            if not attempt.others:
                self.waiting[attempt.work.delivery.queue] += change
        if change > 0:
            self.on_waiting()

    async def blocked_behind(self, delivery: Delivery) -> BlockedSession | None:
        """The other message that blocks the session of this delivery; None: none does.

        Raises:
            NothingCommitted: the store cannot be read now.
        """
        behind = await self._blocked.blocked_behind(delivery)
        return None if behind is None or behind.is_behind(delivery.message) else behind

    async def _occupy(self, lane: str, attempts: list[Attempt]) -> None:
        """Handle a lane and what arrives in it meanwhile; behind a rescheduled head everything is released."""
        is_held = False
        try:
            while attempts:
                if is_held:
                    await self._release(attempts)
                else:
                    is_held = await self._handle(attempts)
                attempts = self._lanes.next(lane)
                self._count_waiting(attempts, -1)
                if attempts:
                    await self._mark()  # a lane that never empties must write its marks too
        finally:
            self._count_waiting(self._lanes.leave(lane), -1)
        await self._mark()

    async def _mark(self) -> None:
        """Mark pushed records, at once or together with later ones of their partitions."""
        if self._lingering is None:
            await self.protocol.finish()
        else:
            await self._lingering.write(self._spawn)

    async def _handle(self, attempts: Sequence[Attempt]) -> bool:
        """Handle the messages of a lane in order; whether one of them holds it.

        A holder keeps its successors back, but not the other branches of its own message.
        """
        attempts, holder = await self._unblocked(attempts)
        for group in _groups(attempts, self.protocol.group_count_max):
            free = [one for one in group if holder in (None, one.work.delivery.sequence)]
            await self._release([one for one in group if holder not in (None, one.work.delivery.sequence)])
            if free:
                held_by = await self._commit_or_retry(free)
                holder = held_by if holder is None else holder
        return holder is not None

    async def _unblocked(self, attempts: Sequence[Attempt]) -> tuple[Sequence[Attempt], int | None]:
        """The messages that no dead letter of their session blocks, and the sequence of a message that holds the lane.

        The blocking message itself runs: its dead letter may not be written yet.
        """
        if not self._plan.sources[attempts[0].work.delivery.queue].blocks_keys:
            return attempts, None
        try:
            behind = await self._blocked.blocked_behind(attempts[0].work.delivery)
        except NothingCommitted as error:
            await self._cool_down(attempts, error)
            return [], attempts[0].work.delivery.sequence
        if behind is None:
            return attempts, None
        own = [attempt for attempt in attempts if behind.is_behind(attempt.work.delivery.message)]
        for attempt in own:
            attempt.is_blocker = True
        if not own:
            self._log_blocked(behind, attempts)
        for attempt in attempts:
            if not attempt.is_blocker:
                await self._settlement.settle(attempt, await self._waiting_outcome(attempt))
        return own, own[0].work.delivery.sequence if own else attempts[0].work.delivery.sequence

    async def _waiting_outcome(self, attempt: Attempt) -> Outcome:
        """The outcome of a message behind a blocked key: it waits, or is a duplicate of an applied one."""
        waits = Later(REDELIVER_AFTER_S, attempt.work.delivery.failures)
        try:
            outcome = await self.protocol.hold(attempt)
        except (NothingCommitted, CorruptRecord):
            return waits
        return None if outcome is None else waits  # a duplicate of a refused message waits for its turn

    def _log_blocked(self, behind: BlockedSession, attempts: Sequence[Attempt]) -> None:
        """Log a blocked session, once an hour for each: an operator has to resubmit or discard its dead letter."""
        delivery = attempts[0].work.delivery
        queue, session_id = delivery.queue, delivery.message.session_id
        if not self._blocked_log.is_due(f"{behind.resubmitted}\0{queue}\0{session_id}"):
            return
        fields = {"id": behind.identity, "queue": queue, "session": session_id}
        text = "key blocked behind a dead letter: resubmit it, or discard it (with key= where it is gone)"
        if behind.resubmitted:
            text = "a resubmitted message waits behind its successors; raise concurrency above them"
        deliveries = 1 + delivery.delivery_count  # a broker limits these
        log.warning(text, extra={**fields, "successors": len(attempts), "deliveries": deliveries})

    async def _cool_down(self, attempts: Sequence[Attempt], error: BaseException) -> None:
        """Release messages after a pause, because nothing could be committed."""
        await self.retry_backoff.cool_down(attempts[0].work.delivery, error)
        await self._release(attempts)

    async def _release(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            await self._settlement.release(attempt)

    async def _commit_or_retry(self, attempts: Sequence[Attempt]) -> int | None:
        """Handle messages of one partition together, else singly; the sequence of the message that holds their lane."""
        try:
            outcomes = await self.protocol.together(attempts) if len(attempts) > 1 else []
        except (NothingCommitted, CorruptRecord):
            outcomes = []
        if outcomes:
            self.retry_backoff.reset()
        holder: int | None = None
        are_aside = len(outcomes) > 1 and not attempts[0].work.in_order
        for attempt, outcome in zip(attempts, outcomes, strict=False):
            if are_aside:
                self._spawn(self._end_aside(attempt, outcome))
            elif await self._end(attempt, outcome) and holder is None:
                holder = attempt.work.delivery.sequence
        for attempt in attempts[len(outcomes) :]:
            if holder not in (None, attempt.work.delivery.sequence):
                await self._settlement.release(attempt)
            elif await self._alone(attempt) and holder is None:
                holder = attempt.work.delivery.sequence
        return holder

    async def _alone(self, attempt: Attempt) -> bool:
        """Handle one message, with retries; whether it holds its lane."""
        try:
            outcome = await self._tried(attempt)
        except RetryError as error:
            await self._cool_down([attempt], error)
            return attempt.work.in_order
        except CorruptRecord as error:
            fields = {"id": attempt.work.delivery.message.identity, "queue": attempt.work.delivery.queue}
            log.error("message rescheduled", extra={**fields, "error": str(error)})
            outcome = Later(REDELIVER_AFTER_S, attempt.work.delivery.failures)
        self.retry_backoff.reset()
        return await self._end(attempt, outcome)

    async def _tried(self, attempt: Attempt) -> Outcome:
        """The outcome of a message; a retry object is made only after the first attempt failed."""
        with suppress(NothingCommitted):
            return await self.protocol.once(attempt)
        async for turn in self._backoff.attempts():
            with turn:
                return await self.protocol.once(attempt)
        raise AssertionError("the last attempt raises")

    async def _end_aside(self, attempt: Attempt, outcome: Outcome) -> None:
        """Settle a message beside others and beside what follows in its lane, in which nothing holds its successors."""
        await self._end(attempt, outcome)

    async def _end(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Settle a message; whether its outcome keeps its successors back.

        A message released with another branch is redelivered, whatever the outcome of this branch.
        """
        if attempt.is_released:
            return attempt.work.in_order
        work = attempt.work
        holds = work.in_order and holds_lane(work, outcome)
        try:
            if holds and isinstance(outcome, PoisonMessage):
                await self._blocked.block(attempt)
            elif (outcome is None or not work.in_order) and attempt.is_blocker and self._settlement.is_applied(attempt):
                await self._blocked.unblock_after(attempt)
        except NothingCommitted:
            await self._settlement.release(attempt)
            return True
        await self._settlement.settle(attempt, outcome)
        return holds


def _counted(delivery: Delivery) -> Delivery:
    """A delivery with the failure count that its message carries."""
    failures = delivery.message.failures
    return msgspec.structs.replace(delivery, failures=failures) if failures else delivery


def _lane_of(work: Work) -> str:
    """The lane of a branch: its session, else its state, else its record."""
    if work.in_order and work.lane is not None:
        return work.lane
    return work.state_id or RECORD_PREFIX + work.inbox.hex()


def _groups(attempts: Sequence[Attempt], count_max: int) -> list[list[Attempt]]:
    """The messages of a lane in runs that may share a commit: one state, no duplicate, at most `count_max`."""
    groups: list[list[Attempt]] = []
    for state_id, run in groupby(attempts, lambda attempt: attempt.work.state_id):
        group: list[Attempt] = []
        for attempt in run:
            inbox = attempt.work.inbox
            alone = state_id is None or not inbox or bool(attempt.others)
            if alone or len(group) >= count_max or any(inbox == other.work.inbox for other in group):
                groups.append(group)
                group = []
            group.append(attempt)
            if alone:
                groups.append(group)
                group = []
        groups.append(group)
    return [group for group in groups if group]


def no_checkpoint(step: str, *known: Any) -> None:
    """Do nothing: only explorations, which follow equal attempts once, look at checkpoints."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of a store protocol: the application, the ports, the clock and the ids of its process."""

    plan: CompiledApp
    ports: StorePorts
    settlement: Settlement
    now_ms: Callable[[], int]
    new_tx: Callable[[], str]
    is_stopping: Callable[[], bool]

    @property
    def records(self) -> StateStore:
        """The store of the protocol's own documents; that of the states, where they are not apart."""
        return self.ports.infrastructure or self.ports.store


class StoreProtocol(Marking, Protocol):
    """One commit protocol over a store and a bus."""

    checkpoint: Checkpoint

    def remembered(self) -> tuple[Any, ...]:
        """All that it has learned, as plain data that compares equal however it was learned."""

    @property
    def group_count_max(self) -> int:
        """How many messages may share a commit."""

    async def together(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Commit messages of one partition together and push their outputs; the outcome of each.

        It may stop after a message that keeps its successors back; the rest has no outcome then.

        Raises:
            NothingCommitted: nothing is known to have been committed; handle each on its own.
        """

    async def once(self, attempt: Attempt) -> Outcome:
        """One attempt at one message: follow its record, or run it, commit and push.

        Raises:
            NothingCommitted: nothing is known to have been committed, or the push failed.
        """

    async def hold(self, attempt: Attempt) -> Outcome | Waits:
        """Create a waiting record for a message behind a blocked key; its outcome, where that is on record.

        Raises:
            NothingCommitted: the record is not known to exist.
        """

    async def redo(self, document: Document) -> bool | None:
        """Finish a pending document after a crash; whether it is finished; None: there was nothing to do."""

    async def finish(self) -> None:
        """Mark all pushed records, or save the ledger; it may come after the settlement."""
