"""How deliveries end on a bus, once what became of their messages is on record.

Nothing here decides anything: a settlement that fails leaves the message to be delivered again, and its record then
says how it ends.  A message that several handlers read ends when the last of them has come to its result.  One that is
to be tried again goes back as a delayed copy that carries its identity, its time and its count of failures; on an
ordered source nothing may overtake it, and a subscription cannot be sent to alone: there it is given back in its place,
and its failures are kept beside its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from outbox.deliveries import sequence_identity
from outbox.errors import NoBlobStore, PoisonMessage, Refused, UnknownDestination
from outbox.message import Message
from outbox.ports import BlobStore, Delivery, MessageBus, Output, Settle
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.retrying import MAY_RETRY, Backoff, NothingCommitted, RetryError, cause_of
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.start.plan import Plan
from outbox.runtime.work import Attempt, Later, Outcome, Work

UNSENT_DESTINATION_COUNT_MAX = 100
UNSENT_ID_COUNT_MAX = 5


class FailedPush(msgspec.Struct):
    """Pushes to one destination that failed: how many, some of the messages, and why the last did."""

    destination: str
    count: int = 0
    ids: list[str] = []
    error: str = ""


class FailedPushes:
    """Pushes that came to nothing; what they hold stays pending, and is pushed again by whoever finds it."""

    def __init__(self) -> None:
        self.count = 0
        """How many there were in all."""
        self._recent: dict[str, FailedPush] = {}

    def note(self, outputs: Sequence[Output], error: str) -> None:
        """Count a failed push."""
        self.count += 1
        for output in outputs:
            found = self._recent.get(output.destination)
            if found is None:
                if len(self._recent) >= UNSENT_DESTINATION_COUNT_MAX:
                    continue
                found = self._recent[output.destination] = FailedPush(output.destination)
            found.count, found.error = found.count + 1, error
            if len(found.ids) < UNSENT_ID_COUNT_MAX:
                found.ids.append(output.message.identity)

    def take(self) -> list[FailedPush]:
        """What failed since this was last asked."""
        recent, self._recent = self._recent, {}
        return list(recent.values())


class Settlement:
    """Ends the deliveries of one worker."""

    def __init__(
        self,
        plan: Plan,
        bus: MessageBus,
        blobs: BlobStore,
        *,
        backoff: Backoff,
        now_ms: Callable[[], int],
        new_tx: Callable[[], str],
        settled: Callable[[Sequence[Delivery]], None],
        failure_log: FailureLog | None = None,
    ) -> None:
        """Take the parts; without a `failure_log` what is not applied leaves no line, for those who end no delivery."""
        self._plan = plan
        self._bus = bus
        self._blobs = blobs
        self._backoff = backoff
        self._now_ms = now_ms
        self._new_tx = new_tx
        self._settled = settled
        self._failure_log = failure_log
        self.unsent = FailedPushes()

    async def settle(self, branch: Attempt, outcome: Outcome) -> None:
        """End a delivery, or note what became of one handler's branch of it."""
        branches: tuple[Attempt, ...] = (branch,)
        if (fan_out := branch.fan_out) is not None:
            if not fan_out.note(branch, outcome):
                return
            outcome, branches = fan_out.outcome(), fan_out.close()
        elif branch.is_released:
            return
        work = branches[0].work
        is_settled = await self._settle_on_bus(work, outcome)
        self._settled([work.delivery])
        if outcome is not None and self._failure_log is not None:
            self._failure_log.note(branches, outcome, is_settled=is_settled)

    def is_applied(self, branch: Attempt) -> bool:
        """Whether a message is applied as a whole when this branch is; one that was given back is redelivered."""
        if branch.is_released:
            return False
        return branch.fan_out is None or branch.fan_out.are_others_applied()

    async def release(self, branch: Attempt) -> None:
        """Abandon a delivery uncounted, once; if that fails its lock runs out."""
        if branch.is_released:
            return
        for one in branch.fan_out.close() if branch.fan_out is not None else (branch,):
            one.is_released = True
        with suppress(*MAY_RETRY):
            await self._bus.settle(branch.work.delivery, Settle("release"))
        self._settled([branch.work.delivery])

    async def push(self, outputs: Sequence[Output]) -> None:
        """Send what a record holds, again under the same ids while nobody can tell.

        Raises:
            NothingCommitted: it could not be sent now; the record says that it is due.
        """
        if not outputs:
            return
        try:
            await self._bus.send(outputs)
            return
        except (*MAY_RETRY, UnknownDestination):
            pass
        try:
            async for turn in self._backoff.attempts():
                with turn:
                    await self._send(outputs)
        except RetryError as error:
            self.unsent.note(outputs, str(cause_of(error) or "no answer"))
            raise NothingCommitted from error

    async def _send(self, outputs: Sequence[Output]) -> None:
        try:
            await self._bus.send(outputs)
        except (*MAY_RETRY, UnknownDestination) as error:
            raise NothingCommitted from error

    async def _settle_on_bus(self, work: Work, outcome: Outcome) -> bool:
        """Settle a delivery; False where that is known to have had no effect.

        Then, and where nobody can tell, the message is delivered again, and its record found.
        """
        delivery = work.delivery
        try:
            match outcome:
                case None:
                    await self._bus.settle(delivery, Settle("complete"))
                case PoisonMessage():
                    await self._bus.settle(delivery, Settle("dead-letter", outcome.reason, outcome.description))
                case Later() if work.stays_in_place:
                    due_ms = self._now_ms() + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0
                    counts = outcome.failures > delivery.failures
                    await self._bus.settle(delivery, Settle("abandon" if counts else "release", due_ms=due_ms))
                case Later():
                    await self._put_off(delivery, outcome)
        except MAY_RETRY as error:
            return not isinstance(error, Refused)
        return True

    async def _put_off(self, delivery: Delivery, later: Later) -> None:
        """Send a delayed copy in the delivery's place, then let go of it; twice there is better than not at all."""
        message = await self._copy(delivery, later.failures)
        due_ms = self._now_ms() + round(later.delay_s * 1_000) if later.delay_s > 0 else 0
        try:
            await self.push([Output(delivery.queue, due_ms, message)])
        except NothingCommitted:
            await self._bus.settle(delivery, Settle("release"))
        else:
            await self._bus.settle(delivery, Settle("complete"))

    async def _copy(self, delivery: Delivery, failures: int) -> Message:
        """The copy that comes later: the same message, with a broker's id that duplicate detection has not seen."""
        message = delivery.message
        copy = msgspec.structs.replace(
            message,
            outbox_id=message.identity or sequence_identity(delivery.sequence),  # a copy has another number
            message_id=f"{message.identity}~{self._new_tx()}",
            created_ms=message.created_ms or delivery.enqueued_ms,
            failures=failures,
        )
        # It may have come whole, from a sender with another limit.
        with suppress(NoBlobStore):  # then it goes whole, as it came
            copy = await check_in(copy, self._blobs, above_bytes=self._plan.claim_check_bytes)
        return copy
