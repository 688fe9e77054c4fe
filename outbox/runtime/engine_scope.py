"""Engine scope: queues, states and markers share one log, so one record commits a whole batch of messages.

Theory of operation.  One attempt is three steps of those that the store scopes number: `load` the states and markers of
a batch (1, 3), run the handlers on copies (4), `commit` everything as one record (6): inputs completed or
dead-lettered, states under the loaded versions, outputs, markers.  The record takes effect whole or not at all, so
there is nothing to stage, nothing to push and nothing to sweep.  A crash before it leaves the messages in their queues;
a crash after it leaves nothing to do.  A conflict (another worker changed a state, a lock expired) means that nothing
was written: the messages are handled again, singly.  So they are after an unknown outcome, if the lock is still held: a
committed message has no lock.

Handlers that do not suspend run in the batch, in turn, each at the cost of a function call.  At the first suspension
the task stays with that handler and a fresh task continues with the rest, so that a slow call never delays its
neighbours and `asyncio.timeout` inside a handler finds the task that it began in.  Messages of one lane (one state, or
one session of an ordered queue) are never handled at the same time here.

Every `await` of a port is a crash point.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from outbox.errors import UnknownDestination
from outbox.ports import BlobStore, Conflict, Delivery, Journal
from outbox.runtime.commit.engine_transaction import EngineTransaction, refuse_futile, wanted
from outbox.runtime.commit.fast_path import start_all
from outbox.runtime.commit.run_handler import Life, Suspended, abandon, resume, run
from outbox.runtime.delivery.admission import Admission
from outbox.runtime.delivery.intake import Lanes
from outbox.runtime.delivery.retrying import MAY_RETRY, Backoff, NothingCommitted, RetryBackoff, RetryError
from outbox.runtime.delivery.waiting import waiting_commit
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt, Work, attempt_at, holds_lane

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class EngineScope:
    """Handles the deliveries of one worker over a journal."""

    def __init__(
        self,
        plan: CompiledApp,
        journal: Journal,
        blobs: BlobStore,
        *,
        now_ms: Callable[[], int],
        backoff: Backoff,
        spawn: Spawn,
        settled: Callable[[Sequence[Delivery]], None],
        is_stopping: Callable[[], bool],
        failure_log: FailureLog | None = None,
    ) -> None:
        """Take the parts; without a `failure_log` refusals and retries are not logged, as in an exploration."""
        self._plan = plan
        self._journal = journal
        self._blobs = blobs
        self._admission = Admission(plan, blobs, backoff)
        self._now_ms = now_ms
        self._life = Life(now_ms, is_stopping)
        self._backoff = backoff
        self.retry_backoff = RetryBackoff(backoff, now_ms)
        self._spawn = spawn
        self._settled = settled
        self._failure_log = failure_log
        self.suspending = plan.threaded
        """Handlers that suspend, known or observed; their messages are handled on their own from the start."""
        self._lanes: Lanes[Work] = Lanes()
        """The lanes in which a message is handled on its own."""

    def remembered(self) -> tuple[str, ...]:
        """The memory that outlives an attempt: the handlers that suspend."""
        return tuple(sorted(self.suspending))

    async def attempt(self, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch: every delivery is completed, dead-lettered, rescheduled or released."""
        if deliveries and deliveries[0].waits:  # then all of them
            await self._put_on_record(deliveries)
            return
        await self._handle(await self._admission.admit(deliveries, self._now_ms()))

    # Several messages, one commit

    async def _handle(self, works: Sequence[Work]) -> None:
        # Whether some of these messages may have to be handled on their own.
        mixed = bool(self._lanes.taken or self.suspending) or any([work.others for work in works])  # noqa: C419  # in half the time
        together = self._joined(works) if mixed else works
        if not together:
            return
        try:
            group = await self._load(together)
        except MAY_RETRY:
            await self._one_by_one(together, set())
        else:
            await self._run(group, together, mixed=mixed)

    def _joined(self, works: Sequence[Work]) -> list[Work]:
        """The messages to handle together; the others wait for their lane, or each gets a task.

        A message that needs a task of its own stays behind earlier messages of its lane.
        """
        together: list[Work] = []
        for work in works:
            lane = work.lane
            if lane is not None and lane in self._lanes.taken:
                self._lanes.wait(lane, [work])
            elif not self._goes_alone(work) or _has_lane(together, lane):
                together.append(work)
            else:
                if lane is not None:
                    self._lanes.enter(lane)
                self._spawn(self._occupy(work, None))
        return together

    def _goes_alone(self, work: Work) -> bool:
        """Whether a message is handled on its own from the start."""
        if work.others or (work.handler is not None and work.handler.name in self.suspending):
            return True
        return self._plan.threads is not None and self._plan.threads.holds(work)

    async def _load(self, works: Sequence[Work]) -> EngineTransaction:
        documents, markers = await self._journal.load(*wanted(works))
        return EngineTransaction(self._plan, self._now_ms(), documents, markers, self._journal.durable)

    async def _run(self, group: EngineTransaction, works: Sequence[Work], *, mixed: bool) -> None:
        """Run messages in order into one group and commit it; at the first suspension, hand the rest over."""
        plan = self._plan
        held: set[str | None] = set()
        given_back: list[Delivery] = []
        index, count = 0, len(works)
        while index < count:
            if held and works[index].lane in held:
                given_back.append(works[index].delivery)
                index += 1
                continue
            if mixed and self._goes_alone(works[index]):
                await self._commit_and_go_on(group, given_back, works[index:], held)
                return
            index, attempt, outcome = start_all(plan, group, works, index, index + 1 if mixed or held else count)
            if attempt is None or outcome is None:
                continue
            index += 1
            if isinstance(outcome, Suspended):
                await self._hand_over(group, outcome, works[index:], given_back, held)
                return
            group.settle(attempt, outcome)
            work = attempt.work
            if work.in_order and holds_lane(work, outcome):
                held.add(work.lane)
        await self._commit_and_go_on(group, given_back, [], held)

    async def _hand_over(
        self,
        group: EngineTransaction,
        suspended: Suspended[EngineTransaction],
        rest: Sequence[Work],
        given_back: list[Delivery],
        held: set[str | None],
    ) -> None:
        """Stay with a suspended handler, and continue with the rest of its batch in a fresh task.

        Messages of its lane wait behind it.  If earlier messages of its lane are in the group, or it read a state that
        the group has not committed yet, the handler is cancelled and runs again after that commit.
        """
        work = suspended.attempt.work
        lane = work.lane
        if work.handler is not None:
            self.suspending.add(work.handler.name)
        if work.state_id in group.commit.if_versions or _has_lane(group.works, lane):
            await abandon(suspended)
            await self._commit_and_go_on(group, given_back, [msgspec.structs.replace(work, was_run=True), *rest], held)
            return
        if lane is not None:
            self._lanes.enter(lane)
            self._lanes.wait(lane, [later for later in rest if later.lane == lane])
            rest = [later for later in rest if later.lane != lane]
        self._spawn(self._commit_and_go_on(group, given_back, rest, held))
        await self._occupy(work, suspended)

    async def _commit_and_go_on(
        self, group: EngineTransaction, given_back: list[Delivery], rest: Sequence[Work], held: set[str | None]
    ) -> None:
        """Commit a group, then handle the rest of its batch, except in held lanes."""
        if group.works:
            held |= await self._commit_group(group)
        if held:
            given_back += [later.delivery for later in rest if later.in_order and later.lane in held]
            rest = [later for later in rest if not (later.in_order and later.lane in held)]
        if given_back:
            await self._release(given_back)
        if rest:
            await self._handle(rest)

    async def _commit_group(self, group: EngineTransaction) -> set[str | None]:
        """Commit a group, or handle its messages singly; returns the lanes that are held now."""
        lost: frozenset[int] = frozenset()
        try:
            if not self._may_be_over_limit(group):
                conflict = await self._commit(group)
                if conflict is None:
                    return set()
                lost = conflict.locks
        except (*MAY_RETRY, UnknownDestination):
            pass  # singly: each checks first that its lock is still held
        gone = [work for work in group.works if work.delivery.sequence in lost]
        self._settled([work.delivery for work in gone])
        held = {work.lane for work in gone if work.in_order}
        return await self._one_by_one([work for work in group.works if work.delivery.sequence not in lost], held)

    def _may_be_over_limit(self, group: EngineTransaction) -> bool:
        """Whether a handler of a group may have exceeded its time limit; one check a batch costs nothing.

        Such a group is not committed: its messages are handled singly, each under its own time limit.
        """
        plan, taken_ms = self._plan, self._now_ms() - group.now_ms
        if taken_ms <= plan.least_limit_ms:
            return False
        return any(work.handler is not None and taken_ms > plan.limit_ms(work.handler) for work in group.works)

    async def _one_by_one(self, works: Sequence[Work], held: set[str | None]) -> set[str | None]:
        """Handle messages singly, in order, because their common commit is not known to have taken effect."""
        for work in works:
            if work.in_order and work.lane in held:
                await self._release([work.delivery])
            elif not await self._alone(work, None, retried=True) and work.in_order:
                held.add(work.lane)
        return held

    async def _commit(self, group: EngineTransaction) -> Conflict | None:
        for name, data in group.blobs:
            await self._blobs.write(name, data)
        commit = group.commit
        conflict = await self._journal.commit(commit)
        counts = self._plan.counts
        if conflict is None:
            self.retry_backoff.reset()
            counts.note_batch(group.works, group.unapplied, commit.handled, self._now_ms())
            counts.sent += len(commit.outputs)
            all_consumed = len(commit.consumed) == len(group.works)
            self._settled(commit.consumed if all_consumed else [work.delivery for work in group.works])
            if group.unapplied and self._failure_log is not None:
                for attempt, outcome in group.unapplied:
                    self._failure_log.note(attempt.branches, outcome)
        else:
            counts.conflicts += 1
        return conflict

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        with suppress(*MAY_RETRY):  # else the lock expires
            await self._journal.release(deliveries)
        self._settled(deliveries)

    # One message on its own

    async def _occupy(self, work: Work, suspended: Suspended[EngineTransaction] | None) -> None:
        """Handle one message on its own; messages of its lane wait, and are handled after it."""
        lane = work.lane
        if lane is not None:
            self._lanes.enter(lane)
        goes_on = False
        try:
            goes_on = await self._alone(work, suspended)
        finally:
            waiting = self._lanes.leave(lane) if lane is not None else []
        if waiting and (goes_on or not work.in_order):
            await self._handle(waiting)
        elif waiting:
            await self._release([later.delivery for later in waiting])

    async def _alone(
        self, work: Work, suspended: Suspended[EngineTransaction] | None, *, retried: bool = False
    ) -> bool:
        """Handle and commit one message, with retries; whether its lane may continue."""
        attempt = attempt_at(work) if suspended is None else suspended.attempt
        try:
            async for turn in self._backoff.attempts():
                with turn:
                    if retried or turn.retry_state.attempt_number > 1:
                        for branch in attempt.branches:
                            branch.ran()
                        if not await self._renew_lock(work):
                            return not work.in_order
                    handling, suspended = suspended, None
                    return await self._try(attempt, handling)
        except RetryError as error:
            await self.retry_backoff.cool_down(work.delivery, error)
            await self._release([work.delivery])
        return False

    async def _try(self, attempt: Attempt, suspended: Suspended[EngineTransaction] | None) -> bool:
        """One attempt at one message; whether its lane may continue.

        Raises:
            NothingCommitted: nothing was written, or the outcome is unknown.
        """
        try:
            if suspended is None:
                group = await self._load([branch.work for branch in attempt.branches])  # 1, 3
                outcome = await run(self._plan, group, attempt, self._life)  # 4
            else:
                group = suspended.group
                outcome = await resume(self._plan, group, suspended, self._life)  # 4
            if outcome is None:
                group.complete(attempt.work)
            else:
                group.settle(attempt, outcome)
            conflict = await self._commit(group)  # 6: outputs leave and inputs are settled with it
        except (*MAY_RETRY, UnknownDestination) as error:
            for branch in attempt.branches:
                refuse_futile(branch, error)
            raise NothingCommitted from error
        if conflict is None:
            return not holds_lane(attempt.work, outcome)
        if conflict.markers:  # a duplicate from outside was first: load its marker next time
            attempt.work = msgspec.structs.replace(attempt.work, remembered=True)
        raise NothingCommitted

    # Behind a dead letter

    async def _put_on_record(self, deliveries: Sequence[Delivery]) -> None:
        """Create waiting markers for messages behind a blocked key (`waiting_commit`)."""
        left = list(deliveries)
        try:
            async for turn in self._backoff.attempts():
                with turn:
                    left = await self._try_waiting(left)
                    if left:
                        raise NothingCommitted
        except RetryError as error:
            await self.retry_backoff.cool_down(left[0], error)
            await self._release(left)

    async def _try_waiting(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """One attempt; returns the deliveries that still need a marker and whose locks are held.

        Raises:
            NothingCommitted: nothing was written, or the outcome is unknown.
        """
        works = await self._admission.admit(deliveries, self._now_ms())
        inboxes = [branch.inbox for work in works for branch in (work, *work.others) if branch.inbox]
        try:
            _, markers = await self._journal.load([], inboxes)
            conflict = await self._journal.commit(waiting_commit(self._plan, works, markers, self._now_ms()))
        except MAY_RETRY as error:
            raise NothingCommitted from error
        self._settled(deliveries if conflict is None else [d for d in deliveries if d.sequence in conflict.locks])
        return [] if conflict is None else [d for d in deliveries if d.sequence not in conflict.locks]

    async def _renew_lock(self, work: Work) -> bool:
        """Renew the lock; False where it is not held any more: the message is committed, or another worker has it."""
        try:
            held = await self._journal.renew([work.delivery])
        except MAY_RETRY as error:
            raise NothingCommitted from error
        if not held:
            self._settled([work.delivery])
        return held > 0


def _has_lane(works: Sequence[Work], lane: str | None) -> bool:
    return lane is not None and any(work.lane == lane for work in works)
