"""Engine scope: queues, states and markers share one log, so one record commits a whole batch of messages.

Theory of operation.  One attempt is three port calls: `load` what the batch's messages need, run their handlers on
copies, `commit` everything they did as one record: inputs completed or dead-lettered, states under the versions that
were loaded, outputs, markers.  The record takes effect whole or not at all, so there is nothing to stage, nothing to
push and nothing to sweep.  A crash before it leaves the messages in their queues; a crash after it leaves nothing to
do.  A conflict (another worker moved a state, a lock ran out) means that nothing was written: run again, singly.  An
unknown outcome is treated alike, after asking whether the lock is still ours: a message that was committed has none.

A handler that does not suspend is run in the batch, one after the other, at the cost of a function call.  At the
first that does, the task stays with it and a fresh task goes on with the rest, so that a slow call never holds up its
neighbours and `asyncio.timeout` inside a handler finds the task it began in.  Messages of one lane (one state, or one
session of an ordered queue) are never handled at the same time here.

Every `await` of a port is a crash point.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from outbox.context import Context
from outbox.errors import OutcomeUnknown, PoisonMessage, Throttled
from outbox.ports import BlobStore, Conflict, Delivery, Journal
from outbox.runtime.backoff import Again, RetryError, attempts
from outbox.runtime.claims import redeem
from outbox.runtime.group import Group, wanted
from outbox.runtime.plan import Plan
from outbox.runtime.step import Later, Outcome, Unit, Work, admit, judge, refusal_of_all

Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(frozen=True, slots=True)
class Suspended:
    """A handling that waits for something outside, and the group whose states it has seen."""

    group: Group
    work: Work
    state: Any
    context: Context | None
    coroutine: Coroutine[Any, Any, Any]
    waits_for: Any


class EngineScope:
    """Handles the batches of deliveries of one worker."""

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        blobs: BlobStore,
        *,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
        spawn: Spawn,
        settled: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._blobs = blobs
        self._now_ms = now_ms
        self._sleep = sleep
        self._spawn = spawn
        self._settled = settled
        self._suspending: set[str] = set()
        """Handlers that were seen to suspend; their messages are handled on their own from the start."""
        self._busy: dict[str, list[Unit]] = {}
        """Lanes in which a message is being handled on its own, and the messages that wait behind it."""

    async def attempt(self, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch: every delivery ends completed, dead-lettered, postponed or given back."""
        now_ms = self._now_ms()
        units = [
            await self._redeemed(delivery, now_ms) if delivery.message.claim else admit(self._plan, delivery, now_ms)
            for delivery in deliveries
        ]
        await self._handle(units)

    async def _redeemed(self, delivery: Delivery, now_ms: int) -> Unit:
        try:
            message = await redeem(delivery.message, self._blobs)
        except PoisonMessage as poison:
            unit = Unit(delivery)
            unit.refusal = poison
            return unit
        return admit(self._plan, msgspec.structs.replace(delivery, message=message), now_ms)

    # Several messages, one commit

    async def _handle(self, units: Sequence[Unit]) -> None:
        together = [unit for unit in units if self._may_join(unit)]
        if together:
            await self._run(await self._load(together), together)

    def _may_join(self, unit: Unit) -> bool:
        """Whether a unit is handled with the others; one that is not waits for its lane or goes its own way."""
        lane = unit.lane
        if lane is not None and lane in self._busy:
            self._busy[lane].append(unit)
            return False
        works = unit.works
        if len(works) > 1 or (self._suspending and works and works[0].handler.name in self._suspending):
            self._spawn(self._occupy(unit, None))
            return False
        return True

    async def _load(self, units: Sequence[Unit]) -> Group:
        state_ids, inbox_keys = wanted(units)
        documents, markers = await self._journal.load(state_ids, inbox_keys)
        return Group(
            self._plan,
            self._now_ms(),
            dict(zip(state_ids, documents, strict=True)),
            dict(zip(inbox_keys, markers, strict=True)),
        )

    async def _run(self, group: Group, units: Sequence[Unit]) -> None:
        """Run the units in order into one group and commit it; at the first that suspends, hand the rest over."""
        held: set[str] = set()
        given_back: list[Delivery] = []
        for index, unit in enumerate(units):
            if held and unit.lane in held:
                given_back.append(unit.delivery)
                continue
            outcome = self._begin(group, unit)
            if isinstance(outcome, Suspended):
                self._suspending.add(outcome.work.handler.name)
                self._spawn(
                    self._finish(group, given_back, self._later(units[index + 1 :], unit.lane, held, given_back))
                )
                await self._occupy(unit, self._resumable(group, outcome))
                return
            group.settle(unit, outcome)
            if unit.in_order and _holds_lane(unit, outcome):
                held.add(unit.lane or "")
        await self._finish(group, given_back)

    def _later(
        self, rest: Sequence[Unit], lane: str | None, held: set[str], given_back: list[Delivery]
    ) -> Sequence[Unit]:
        """The units behind one that suspended which do not wait for it; its lane is taken from here on."""
        if lane is not None:
            self._busy[lane] = [unit for unit in rest if unit.lane == lane]
        given_back += [unit.delivery for unit in rest if unit.lane in held]
        return [unit for unit in rest if unit.lane not in held and (lane is None or unit.lane != lane)]

    @staticmethod
    def _resumable(group: Group, suspended: Suspended) -> Suspended | None:
        """The suspended handling, unless it has seen a state that its group may yet fail to commit."""
        if suspended.work.state_id in group.commit.states:
            suspended.coroutine.close()
            return None
        return suspended

    async def _finish(self, group: Group, given_back: Sequence[Delivery], rest: Sequence[Unit] = ()) -> None:
        """Commit a group, then handle what is left of its batch."""
        if given_back:
            await self._give_back(given_back)
        if group.units:
            await self._commit_group(group)
        if rest:
            await self._handle(rest)

    async def _commit_group(self, group: Group) -> None:
        lost: frozenset[int] = frozenset()
        try:
            conflict = await self._commit(group)
            if conflict is None:
                return
            lost = conflict.locks
        except (OutcomeUnknown, Throttled):
            pass  # run again, singly: each asks first whether its lock is still held
        self._settled([unit.delivery for unit in group.units if unit.delivery.sequence in lost])
        held: set[str | None] = set()
        for unit in group.units:
            if unit.delivery.sequence in lost:
                continue
            if unit.lane in held:
                await self._give_back([unit.delivery])
            elif not await self._alone(unit, None, retried=True) and unit.in_order:
                held.add(unit.lane)

    async def _commit(self, group: Group) -> Conflict | None:
        for name, data in group.blobs:
            await self._blobs.write(name, data)
        conflict = await self._journal.commit(group.commit)
        if conflict is None:
            self._settled([unit.delivery for unit in group.units])
        return conflict

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._journal.release(deliveries)
        self._settled(deliveries)

    def _begin(self, group: Group, unit: Unit) -> Outcome | Suspended:
        """Handle a message as far as it goes without waiting."""
        if unit.refusal is not None:
            return self._refuse_unread(group, unit, unit.refusal)
        work = unit.works[0]
        outcome = group.follow(work)
        if outcome is not False:
            return self._recorded(group, work, outcome)
        try:
            binding = work.handler.binding
            state = group.state(work)
            context = self._context(group, work) if binding.wants_context else None
            result = binding.call(work.value, state, context)
            if binding.is_async:
                try:
                    waits_for = result.send(None)
                except StopIteration:
                    pass
                else:
                    return Suspended(group.sibling(), work, state, context, result, waits_for)
            group.apply(work, state, context)
        except Exception as error:
            return self._failed(group, work, error)
        return None

    def _context(self, group: Group, work: Work) -> Context:
        return Context(self._plan.app, work, work.delivery.message, group.now_ms)

    # One message on its own

    async def _occupy(self, unit: Unit, suspended: Suspended | None) -> None:
        """Handle one message on its own; whoever shares its lane waits, and is handled after it."""
        lane = unit.lane
        if lane is not None:
            self._busy.setdefault(lane, [])
        goes_on = False
        try:
            goes_on = await self._alone(unit, suspended)
        finally:
            waiting = self._busy.pop(lane, []) if lane is not None else []
        if waiting and (goes_on or not unit.in_order):
            await self._handle(waiting)
        elif waiting:
            await self._give_back([other.delivery for other in waiting])

    async def _alone(self, unit: Unit, suspended: Suspended | None, *, retried: bool = False) -> bool:
        """Handle and commit one message, again and again while nothing was written; whether its lane may go on."""
        try:
            async for attempt in attempts(self._sleep):
                with attempt:
                    if (retried or attempt.retry_state.attempt_number > 1) and not await self._is_held(unit):
                        return False
                    if suspended is None:
                        group = await self._load([unit])
                        outcome = await self._whole(group, unit)
                    else:
                        group, resumed, suspended = suspended.group, suspended, None
                        outcome = await self._resumed(group, resumed)
                    group.settle(unit, outcome)
                    await self._commit_or_again(group, unit)
                    return not _holds_lane(unit, outcome)
        except RetryError:
            await self._give_back([unit.delivery])
        return False

    async def _is_held(self, unit: Unit) -> bool:
        """Whether the lock is still ours; where it is not, the message is committed already or somebody else's."""
        if await self._journal.renew([unit.delivery]):
            return True
        self._settled([unit.delivery])
        return False

    async def _commit_or_again(self, group: Group, unit: Unit) -> None:
        try:
            conflict = await self._commit(group)
        except (OutcomeUnknown, Throttled) as error:
            raise Again from error
        if conflict is not None:
            for work in unit.works if conflict.markers else ():
                work.remembered = True  # a copy from outside was here first: look it up next time
            raise Again

    async def _whole(self, group: Group, unit: Unit) -> Outcome:
        """Run every handler of a message to its end."""
        if unit.refusal is not None:
            return self._refuse_unread(group, unit, unit.refusal)
        outcomes: list[Outcome] = []
        for work in unit.works:
            recorded = group.follow(work)
            if recorded is not False:
                outcomes.append(self._recorded(group, work, recorded))
            else:
                outcomes.append(await self._run_whole(group, work))
        later = [outcome for outcome in outcomes if isinstance(outcome, Later)]
        return later[0] if later else refusal_of_all(unit, outcomes)

    async def _run_whole(self, group: Group, work: Work) -> Outcome:
        try:
            binding = work.handler.binding
            state = group.state(work)
            context = self._context(group, work) if binding.wants_context else None
            result = binding.call(work.value, state, context)
            if binding.is_async:
                await result
            self._check_deadline(group)
            group.apply(work, state, context)
        except Exception as error:
            return self._failed(group, work, error)
        return None

    async def _resumed(self, group: Group, suspended: Suspended) -> Outcome:
        work = suspended.work
        try:
            await _resume(suspended.coroutine, suspended.waits_for)
            self._check_deadline(group)
            group.apply(work, suspended.state, suspended.context)
        except Exception as error:
            return self._failed(group, work, error)
        return None

    def _check_deadline(self, group: Group) -> None:
        """An attempt past its deadline writes nothing: the records that it checked may be gone."""
        taken_ms = self._now_ms() - group.now_ms
        if taken_ms > self._plan.attempt_ms_max:
            raise TimeoutError(f"the handler took {taken_ms} ms, over {self._plan.attempt_ms_max}; raise App(margin=)")

    # What did not simply apply

    def _failed(self, group: Group, work: Work, error: Exception) -> Outcome:
        outcome = judge(error, work.delivery, self._plan.retries)
        if isinstance(outcome, PoisonMessage):
            group.refuse(work, outcome)
        return outcome

    def _recorded(self, group: Group, work: Work, found: PoisonMessage | bool) -> Outcome:
        """Follow what is on record; only the age fence makes a record of its own."""
        if not isinstance(found, PoisonMessage):
            return None
        if found.reason == "too-old":
            group.refuse(work, found)
        return found

    def _refuse_unread(self, group: Group, unit: Unit, poison: PoisonMessage) -> Outcome:
        """Refuse a message that no handler could be given; with an identity it is remembered as such."""
        work = unit.refused_work
        if work is not None:
            recorded = group.follow(work)
            if recorded is not False:
                return self._recorded(group, work, recorded)
            group.refuse(work, poison)
        return poison


def _holds_lane(unit: Unit, outcome: Outcome) -> bool:
    """Whether what became of a message keeps its successors back."""
    return isinstance(outcome, Later) or (unit.stops_key and isinstance(outcome, PoisonMessage))


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has been started: first wait for what it waits for."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:
            go_on = partial(coroutine.throw, error)
        else:
            go_on = partial(coroutine.send, sent)
        try:
            waits_for = go_on()
        except StopIteration as stop:
            return stop.value
