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
from typing import Any, Protocol

import msgspec

from outbox.errors import CorruptRecord
from outbox.ports import BlobStore, Delivery, Document
from outbox.runtime.admission import Admission
from outbox.runtime.backoff import Again, Backoff, RetryError
from outbox.runtime.endings import Endings
from outbox.runtime.giving_up import GivingUp
from outbox.runtime.marks import Lingering
from outbox.runtime.plan import Plan
from outbox.runtime.step import GIVE_BACK_DELAY_S, Later, Outcome, Work
from outbox.runtime.stops import Stop, Stops
from outbox.runtime.waiting import Waits
from outbox.seldom import Seldom
from outbox.stored import RECORD_PREFIX

log = logging.getLogger("outbox.lanes")

TELL_STOPS_EVERY_MS = 3_600_000


class StoreProtocol(Protocol):
    """One commit protocol over a store and a bus."""

    @property
    def group_count_max(self) -> int:
        """How many messages can share a commit."""

    async def together(self, works: Sequence[Work]) -> list[Outcome]:
        """Commit messages of one partition together and push what they emitted; what became of each.

        It may stop after a message that its successors have to wait for; the rest has no outcome then.

        Raises:
            Again: nothing is known to have been committed; handle each on its own.
        """

    async def once(self, work: Work) -> Outcome:
        """One attempt at one message: follow its record, or run it, commit and push.

        Raises:
            Again: nothing is known to have been committed, or it could not be pushed now.
        """

    async def hold(self, work: Work) -> Outcome | Waits:
        """Put on record that a message waits behind a blocked key; what became of it, where that is on record.

        Raises:
            Again: it is not known to be on record.
        """

    async def redo(self, document: Document) -> bool:
        """Finish a document that a crash has left pending; whether it is finished."""

    @property
    def unmarked_count(self) -> int:
        """How many writes `finish` would make."""

    async def finish(self, *, only_full: bool = False) -> None:
        """Do what may come after a settlement: mark what has left, or only where that is much."""


class Lanes:
    """Handles the deliveries of one worker over a store and a bus."""

    def __init__(
        self,
        plan: Plan,
        protocol: StoreProtocol,
        endings: Endings,
        stops: Stops,
        blobs: BlobStore,
        *,
        now_ms: Callable[[], int],
        backoff: Backoff,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        lingering: Lingering | None = None,
    ) -> None:
        self.protocol = protocol
        self.unsent = endings.unsent
        self._plan = plan
        self._endings = endings
        self._stops = stops
        self._admission = Admission(plan, blobs, backoff)
        self._now_ms = now_ms
        self._backoff = backoff
        self._spawn = spawn
        self._lingering = lingering
        """How marks wait for others to be written with; None: not at all."""
        self._waiting: dict[str, list[Work]] = {}
        """Lanes in which something is being handled, and what waits behind it."""
        self._told_stops = Seldom(TELL_STOPS_EVERY_MS, now_ms)
        self.giving_up = GivingUp(backoff, now_ms)

    async def attempt(self, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch: every delivery ends completed, dead-lettered, put off or given back."""
        works = await self._admission.admit([_counted(delivery) for delivery in deliveries], self._now_ms())
        lanes: dict[str, list[Work]] = {}
        for work in works:
            self._endings.expect(work)
            for part in (work, *work.others):
                lanes.setdefault(_lane_of(part), []).append(part)
        first: str | None = None
        for lane, parts in lanes.items():
            if lane in self._waiting:
                self._waiting[lane] += parts
                continue
            self._waiting[lane] = []  # now: the task that is to occupy it has yet to begin
            if first is None:
                first = lane
            else:
                self._spawn(self._occupy(lane, parts))
        if first is not None:
            await self._occupy(first, lanes[first])

    async def stopped_behind(self, delivery: Delivery) -> Stop | None:
        """Behind which message the session of this one stands still, where that is another one; None: it goes on.

        Raises:
            Again: it cannot be told now.
        """
        behind = await self._stops.stopped_behind(delivery)
        return None if behind is None or behind.is_behind(delivery.message) else behind

    async def _occupy(self, lane: str, works: list[Work]) -> None:
        """Handle what is in a lane, and what has come in meanwhile; behind a head that is put off nothing goes on."""
        is_held = False
        try:
            while works:
                if is_held:
                    await self._give_back(works)
                else:
                    is_held = await self._handle(works)
                works, self._waiting[lane] = self._waiting[lane], []
                if works:
                    await self._mark()  # a lane that never empties must not keep its marks to itself
        finally:
            del self._waiting[lane]
        await self._mark()

    async def _mark(self) -> None:
        """Mark what has left, at once or after a moment in which more may leave of the same partitions."""
        if self._lingering is None:
            await self.protocol.finish()
        else:
            await self._lingering.write(self._spawn)

    async def _handle(self, works: Sequence[Work]) -> bool:
        """Handle the messages of a lane in order; whether one of them holds it.

        Behind that one nothing goes on, but its own parts do: several handlers may read it.
        """
        works, holder = await self._let_through(works)
        for group in _groups(works, self.protocol.group_count_max):
            free = [work for work in group if holder in (None, work.delivery.sequence)]
            await self._give_back([work for work in group if holder not in (None, work.delivery.sequence)])
            if free:
                held_by = await self._go_through(free)
                holder = held_by if holder is None else holder
        return holder is not None

    async def _let_through(self, works: Sequence[Work]) -> tuple[Sequence[Work], int | None]:
        """Those that a dead letter of their session does not stop, and whether the lane is held already.

        The message that the session stands still behind is let through: its dead letter may not be written yet.
        """
        if not self._plan.sources[works[0].delivery.queue].stops:
            return works, None
        try:
            behind = await self._stops.stopped_behind(works[0].delivery)
        except Again as error:
            await self._give_up(works, error)
            return [], works[0].delivery.sequence
        if behind is None:
            return works, None
        own = [work for work in works if behind.is_behind(work.delivery.message)]
        for work in own:
            work.is_stopper = True
        if not own:
            self._tell(behind, works)
        for work in works:
            if not work.is_stopper:
                await self._endings.end(work, await self._held(work))
        return own, own[0].delivery.sequence if own else works[0].delivery.sequence

    async def _held(self, work: Work) -> Outcome:
        """What becomes of a message that is behind a blocked key: it waits, or is a copy of one that was applied."""
        waits = Later(GIVE_BACK_DELAY_S, work.delivery.failures)
        try:
            outcome = await self.protocol.hold(work)
        except (Again, CorruptRecord):
            return waits  # it comes again
        return None if outcome is None else waits  # a copy of what was refused takes its turn

    def _tell(self, behind: Stop, works: Sequence[Work]) -> None:
        """Say that a session stands still, once an hour for each: nobody but an operator lets it go on."""
        message = works[0].delivery.message
        if not self._told_stops.is_due(f"{behind.resubmitted}\0{works[0].delivery.queue}\0{message.session_id}"):
            return
        fields = {"id": behind.identity, "queue": works[0].delivery.queue, "session": message.session_id}
        text = "a key stands still behind a dead letter: resubmit it, or discard it (with key= where it is gone)"
        if behind.resubmitted:
            text = "a resubmitted message waits behind its successors; raise concurrency above them"
        deliveries = 1 + works[0].delivery.delivery_count  # a broker has a limit to these, where a host counts them
        log.warning(text, extra={**fields, "successors": len(works), "deliveries": deliveries})

    async def _give_up(self, works: Sequence[Work], error: BaseException) -> None:
        """Give back what nothing came of, after a rest."""
        await self.giving_up.rest(works[0].delivery, error)
        await self._give_back(works)

    async def _give_back(self, works: Sequence[Work]) -> None:
        for work in works:
            await self._endings.give_back(work)

    async def _go_through(self, works: Sequence[Work]) -> int | None:
        """Handle messages of one partition, together or else singly; the sequence of the one that holds their lane."""
        try:
            outcomes = await self.protocol.together(works) if len(works) > 1 else []
        except (Again, CorruptRecord):
            outcomes = []
        if outcomes:
            self.giving_up.is_over()
        holder: int | None = None
        for work, outcome in zip(works, outcomes, strict=False):
            if await self._end(work, outcome) and holder is None:
                holder = work.delivery.sequence
        for work in works[len(outcomes) :]:
            if holder not in (None, work.delivery.sequence):
                await self._endings.give_back(work)
            elif await self._alone(work) and holder is None:
                holder = work.delivery.sequence
        return holder

    async def _alone(self, work: Work) -> bool:
        """Handle one message, again while nothing is known to be committed; whether it holds its lane."""
        try:
            outcome = await self._tried(work)
        except RetryError as error:
            await self._give_up([work], error)
            return work.in_order
        except CorruptRecord as error:
            fields = {"id": work.delivery.message.identity, "queue": work.delivery.queue}
            log.error("message put off", extra={**fields, "error": str(error)})
            outcome = Later(GIVE_BACK_DELAY_S, work.delivery.failures)
        self.giving_up.is_over()
        return await self._end(work, outcome)

    async def _tried(self, work: Work) -> Outcome:
        """What became of a message; it is tried again only after the first attempt came to nothing."""
        with suppress(Again):
            return await self.protocol.once(work)
        async for attempt in self._backoff.attempts():
            with attempt:
                return await self.protocol.once(work)
        raise AssertionError("the last attempt raises")

    async def _end(self, work: Work, outcome: Outcome) -> bool:
        """End a message; whether what became of it keeps its successors back.

        One that was given back with another part of it comes again: it is not over, whatever became of this part.
        """
        if work.is_given_back:
            return work.in_order
        if not work.in_order or outcome is None:
            if work.is_stopper and self._endings.is_applied(work):
                try:
                    await self._stops.went_on(work)
                except Again:
                    await self._endings.give_back(work)
                    return True
            await self._endings.end(work, outcome)
            return False
        if isinstance(outcome, Later):
            await self._endings.end(work, outcome)
            return True
        if work.stops_key:
            try:
                await self._stops.stop(work)
            except Again:
                await self._endings.give_back(work)
                return True
        await self._endings.end(work, outcome)
        return work.stops_key


def _counted(delivery: Delivery) -> Delivery:
    """A delivery with the failures that its message has been through."""
    failures = delivery.message.failures
    return msgspec.structs.replace(delivery, failures=failures) if failures else delivery


def _lane_of(part: Work) -> str:
    """What a message must not be handled beside."""
    if part.in_order and part.lane is not None:
        return part.lane
    return part.state_id or RECORD_PREFIX + part.inbox.hex()


def _groups(works: Sequence[Work], count_max: int) -> list[list[Work]]:
    """The messages of a lane in runs that may share a commit: of one state, each message once, so many at most."""
    groups: list[list[Work]] = []
    for state_id, run in groupby(works, lambda work: work.state_id):
        group: list[Work] = []
        for work in run:
            alone = state_id is None or not work.inbox or bool(work.others)
            if alone or len(group) >= count_max or any(work.inbox == other.inbox for other in group):
                groups.append(group)
                group = []
            group.append(work)
            if alone:
                groups.append(group)
                group = []
        groups.append(group)
    return [group for group in groups if group]
