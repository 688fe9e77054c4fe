"""The frame round a store protocol: which messages go together, in which order, and how often they are tried.

Theory of operation.  Messages of one partition form a lane, on an ordered source those of one session.  Within a lane
one thing happens at a time in this worker; lanes go side by side.  A lane's messages are committed together first.
When that is not to be had (somebody else wrote, a message was here before, nobody can tell) each is handled on its own,
a bounded number of times with pauses between, and then given back.  Other workers may do the same at the same moment:
nothing here is for safety, which is the protocols' alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec

from outbox.errors import CorruptRecord
from outbox.ports import BlobStore, Delivery
from outbox.runtime.commit.marks import Lingering
from outbox.runtime.delivery.admission import REDELIVER_AFTER_S, Admission
from outbox.runtime.delivery.blocked_sessions import BlockedSession, BlockedSessions
from outbox.runtime.delivery.lanes import Lanes
from outbox.runtime.delivery.retrying import Backoff, NothingCommitted, RetryBackoff, RetryError
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.start.plan import Plan
from outbox.runtime.store_protocol import StoreProtocol
from outbox.runtime.work import Attempt, FanOut, Later, Outcome, Work, attempt_at
from outbox.seldom import Seldom
from outbox.stored import RECORD_PREFIX

log = logging.getLogger("outbox.lanes")

TELL_STOPS_EVERY_MS = 3_600_000


class StoreScope:
    """Handles the deliveries of one worker over a store and a bus."""

    def __init__(
        self,
        plan: Plan,
        protocol: StoreProtocol,
        settlement: Settlement,
        stops: BlockedSessions,
        blobs: BlobStore,
        *,
        now_ms: Callable[[], int],
        backoff: Backoff,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        lingering: Lingering | None = None,
    ) -> None:
        self.protocol = protocol
        self.unsent = settlement.unsent
        self._plan = plan
        self._settlement = settlement
        self._blocked = stops
        self._admission = Admission(plan, blobs, backoff)
        self._now_ms = now_ms
        self._backoff = backoff
        self._spawn = spawn
        self._lingering = lingering
        """How marks wait for others to be written with; None: not at all."""
        self._lanes: Lanes[Attempt] = Lanes()
        self._told_blocked = Seldom(TELL_STOPS_EVERY_MS, now_ms)
        self.retry_backoff = RetryBackoff(backoff, now_ms)

    async def attempt(self, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch: every delivery ends completed, dead-lettered, put off or given back."""
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
                continue
            self._lanes.enter(lane)
            if first is None:
                first = lane
            else:
                self._spawn(self._occupy(lane, attempts))
        if first is not None:
            await self._occupy(first, lanes[first])

    async def blocked_behind(self, delivery: Delivery) -> BlockedSession | None:
        """Behind which message the session of this one stands still, where that is another one; None: it goes on.

        Raises:
            NothingCommitted: it cannot be told now.
        """
        behind = await self._blocked.blocked_behind(delivery)
        return None if behind is None or behind.is_behind(delivery.message) else behind

    async def _occupy(self, lane: str, attempts: list[Attempt]) -> None:
        """Handle what is in a lane, and what has come in meanwhile; behind a head that is put off nothing goes on."""
        is_held = False
        try:
            while attempts:
                if is_held:
                    await self._release(attempts)
                else:
                    is_held = await self._handle(attempts)
                attempts = self._lanes.next(lane)
                if attempts:
                    await self._mark()  # a lane that never empties must not keep its marks to itself
        finally:
            self._lanes.leave(lane)
        await self._mark()

    async def _mark(self) -> None:
        """Mark what has left, at once or after a moment in which more may leave of the same partitions."""
        if self._lingering is None:
            await self.protocol.finish()
        else:
            await self._lingering.write(self._spawn)

    async def _handle(self, attempts: Sequence[Attempt]) -> bool:
        """Handle the messages of a lane in order; whether one of them holds it.

        Behind that one nothing goes on, but its own parts do: several handlers may read it.
        """
        attempts, holder = await self._let_through(attempts)
        for group in _groups(attempts, self.protocol.group_count_max):
            free = [one for one in group if holder in (None, one.work.delivery.sequence)]
            await self._release([one for one in group if holder not in (None, one.work.delivery.sequence)])
            if free:
                held_by = await self._go_through(free)
                holder = held_by if holder is None else holder
        return holder is not None

    async def _let_through(self, attempts: Sequence[Attempt]) -> tuple[Sequence[Attempt], int | None]:
        """Those that a dead letter of their session does not stop, and whether the lane is held already.

        The message that the session stands still behind is let through: its dead letter may not be written yet.
        """
        if not self._plan.sources[attempts[0].work.delivery.queue].stops:
            return attempts, None
        try:
            behind = await self._blocked.blocked_behind(attempts[0].work.delivery)
        except NothingCommitted as error:
            await self._give_up(attempts, error)
            return [], attempts[0].work.delivery.sequence
        if behind is None:
            return attempts, None
        own = [attempt for attempt in attempts if behind.is_behind(attempt.work.delivery.message)]
        for attempt in own:
            attempt.is_blocker = True
        if not own:
            self._tell(behind, attempts)
        for attempt in attempts:
            if not attempt.is_blocker:
                await self._settlement.settle(attempt, await self._held(attempt))
        return own, own[0].work.delivery.sequence if own else attempts[0].work.delivery.sequence

    async def _held(self, attempt: Attempt) -> Outcome:
        """What becomes of a message that is behind a blocked key: it waits, or is a copy of one that was applied."""
        waits = Later(REDELIVER_AFTER_S, attempt.work.delivery.failures)
        try:
            outcome = await self.protocol.hold(attempt)
        except (NothingCommitted, CorruptRecord):
            return waits  # it comes again
        return None if outcome is None else waits  # a copy of what was refused takes its turn

    def _tell(self, behind: BlockedSession, attempts: Sequence[Attempt]) -> None:
        """Say that a session stands still, once an hour for each: nobody but an operator lets it go on."""
        delivery = attempts[0].work.delivery
        queue, session_id = delivery.queue, delivery.message.session_id
        if not self._told_blocked.is_due(f"{behind.resubmitted}\0{queue}\0{session_id}"):
            return
        fields = {"id": behind.identity, "queue": queue, "session": session_id}
        text = "key blocked behind a dead letter: resubmit it, or discard it (with key= where it is gone)"
        if behind.resubmitted:
            text = "a resubmitted message waits behind its successors; raise concurrency above them"
        deliveries = 1 + delivery.delivery_count  # a broker has a limit to these, where a host counts them
        log.warning(text, extra={**fields, "successors": len(attempts), "deliveries": deliveries})

    async def _give_up(self, attempts: Sequence[Attempt], error: BaseException) -> None:
        """Give back what nothing came of, after a rest."""
        await self.retry_backoff.cool_down(attempts[0].work.delivery, error)
        await self._release(attempts)

    async def _release(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            await self._settlement.release(attempt)

    async def _go_through(self, attempts: Sequence[Attempt]) -> int | None:
        """Handle messages of one partition, together or else singly; the sequence of the one that holds their lane."""
        try:
            outcomes = await self.protocol.together(attempts) if len(attempts) > 1 else []
        except (NothingCommitted, CorruptRecord):
            outcomes = []
        if outcomes:
            self.retry_backoff.reset()
        holder: int | None = None
        for attempt, outcome in zip(attempts, outcomes, strict=False):
            if await self._end(attempt, outcome) and holder is None:
                holder = attempt.work.delivery.sequence
        for attempt in attempts[len(outcomes) :]:
            if holder not in (None, attempt.work.delivery.sequence):
                await self._settlement.release(attempt)
            elif await self._alone(attempt) and holder is None:
                holder = attempt.work.delivery.sequence
        return holder

    async def _alone(self, attempt: Attempt) -> bool:
        """Handle one message, again while nothing is known to be committed; whether it holds its lane."""
        try:
            outcome = await self._tried(attempt)
        except RetryError as error:
            await self._give_up([attempt], error)
            return attempt.work.in_order
        except CorruptRecord as error:
            fields = {"id": attempt.work.delivery.message.identity, "queue": attempt.work.delivery.queue}
            log.error("message rescheduled", extra={**fields, "error": str(error)})
            outcome = Later(REDELIVER_AFTER_S, attempt.work.delivery.failures)
        self.retry_backoff.reset()
        return await self._end(attempt, outcome)

    async def _tried(self, attempt: Attempt) -> Outcome:
        """What became of a message; it is tried again only after the first attempt came to nothing."""
        with suppress(NothingCommitted):
            return await self.protocol.once(attempt)
        async for turn in self._backoff.attempts():
            with turn:
                return await self.protocol.once(attempt)
        raise AssertionError("the last attempt raises")

    async def _end(self, attempt: Attempt, outcome: Outcome) -> bool:
        """End a message; whether what became of it keeps its successors back.

        One that was given back with another part of it comes again: it is not over, whatever became of this part.
        """
        if attempt.is_released:
            return attempt.work.in_order
        if not attempt.work.in_order or outcome is None:
            if attempt.is_blocker and self._settlement.is_applied(attempt):
                try:
                    await self._blocked.unblock_after(attempt)
                except NothingCommitted:
                    await self._settlement.release(attempt)
                    return True
            await self._settlement.settle(attempt, outcome)
            return False
        if isinstance(outcome, Later):
            await self._settlement.settle(attempt, outcome)
            return True
        if attempt.work.stops_key:
            try:
                await self._blocked.stop(attempt)
            except NothingCommitted:
                await self._settlement.release(attempt)
                return True
        await self._settlement.settle(attempt, outcome)
        return attempt.work.stops_key


def _counted(delivery: Delivery) -> Delivery:
    """A delivery with the failures that its message has been through."""
    failures = delivery.message.failures
    return msgspec.structs.replace(delivery, failures=failures) if failures else delivery


def _lane_of(work: Work) -> str:
    """What a message must not be handled beside."""
    if work.in_order and work.lane is not None:
        return work.lane
    return work.state_id or RECORD_PREFIX + work.inbox.hex()


def _groups(attempts: Sequence[Attempt], count_max: int) -> list[list[Attempt]]:
    """The messages of a lane in runs that may share a commit: of one state, each message once, so many at most."""
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
