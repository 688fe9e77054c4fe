"""Settle deliveries on a bus, once the outcome of their messages is on record.

Nothing here decides an outcome: after a failed settlement the message is redelivered, and its record says how to settle
it.  A fan-out message is settled when its last branch has an outcome.  A retry is a delayed copy with the identity, the
creation time and the failure count of the original.  On an ordered source no message may overtake the retry, and a copy
for one subscription cannot be sent: there the delivery itself is released or abandoned, and the failure count lies
beside the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from outbox.errors import NoBlobStore, PoisonMessage, Refused, UnknownDestination
from outbox.message import Message, with_error
from outbox.ports import BlobStore, Delivery, MessageBus, Output, Settle
from outbox.resubmission import sequence_identity
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.retrying import MAY_RETRY, Backoff, NothingCommitted, RetryError, cause_of
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt, Later, Outcome, Work

FAILED_PUSH_DESTINATION_COUNT_MAX = 100
FAILED_PUSH_ID_COUNT_MAX = 5


class FailedPush(msgspec.Struct):
    """Failed pushes to one destination: how many, some message ids, and the last error."""

    destination: str
    count: int = 0
    ids: list[str] = []
    error: str = ""


class FailedPushes:
    """Failed pushes; their records stay pending, and the next redelivery or sweep pushes them again."""

    def __init__(self) -> None:
        self.count = 0
        """All since the start."""
        self._recent: dict[str, FailedPush] = {}

    def note(self, outputs: Sequence[Output], error: str) -> None:
        """Count a failed push."""
        self.count += 1
        for output in outputs:
            found = self._recent.get(output.destination)
            if found is None:
                if len(self._recent) >= FAILED_PUSH_DESTINATION_COUNT_MAX:
                    continue
                found = self._recent[output.destination] = FailedPush(output.destination)
            found.count, found.error = found.count + 1, error
            if len(found.ids) < FAILED_PUSH_ID_COUNT_MAX:
                found.ids.append(output.message.identity)

    def take(self) -> list[FailedPush]:
        """The failed pushes since the last call."""
        recent, self._recent = self._recent, {}
        return list(recent.values())


class Settlement:
    """Settles the deliveries of one worker."""

    def __init__(
        self,
        plan: CompiledApp,
        bus: MessageBus,
        blobs: BlobStore,
        *,
        backoff: Backoff,
        now_ms: Callable[[], int],
        new_tx: Callable[[], str],
        settled: Callable[[Sequence[Delivery]], None],
        failure_log: FailureLog | None = None,
    ) -> None:
        """Take the parts; without a `failure_log` refusals and retries are not logged, as for HTTP requests."""
        self._plan = plan
        self._bus = bus
        self._blobs = blobs
        self._backoff = backoff
        self._now_ms = now_ms
        self._new_tx = new_tx
        self._settled = settled
        self._failure_log = failure_log
        self.failed_pushes = FailedPushes()

    async def settle(self, branch: Attempt, outcome: Outcome) -> None:
        """Settle a delivery, or note the outcome of one branch of it."""
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
        if is_settled:
            self._plan.counts.note(work.delivery.queue, branches, outcome, self._now_ms())
        if outcome is not None and self._failure_log is not None:
            self._failure_log.note(branches, outcome, is_settled=is_settled)

    def is_applied(self, branch: Attempt) -> bool:
        """Whether all branches of the message are applied with this one; a released message is redelivered."""
        return not branch.is_released and (branch.fan_out is None or branch.fan_out.are_others_applied())

    async def release(self, branch: Attempt) -> None:
        """Release a delivery, once, uncounted; if that fails its lock expires."""
        if branch.is_released:
            return
        for one in branch.fan_out.close() if branch.fan_out is not None else (branch,):
            one.is_released = True
        with suppress(*MAY_RETRY):
            await self._bus.settle(branch.work.delivery, Settle("release"))
        self._settled([branch.work.delivery])

    async def push(self, outputs: Sequence[Output]) -> None:
        """Send the outputs of a record, and repeat that under the same ids while the outcome is unknown.

        Raises:
            NothingCommitted: the push failed; the record stays pending.
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
            self.failed_pushes.note(outputs, str(cause_of(error) or "no answer"))
            raise NothingCommitted from error

    async def _send(self, outputs: Sequence[Output]) -> None:
        try:
            await self._bus.send(outputs)
        except (*MAY_RETRY, UnknownDestination) as error:
            raise NothingCommitted from error

    async def _settle_on_bus(self, work: Work, outcome: Outcome) -> bool:
        """Settle a delivery; False where that had no effect for sure.

        Then, and after an unknown outcome, the message is redelivered and its record is found.
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
                    await self._bus.settle(
                        delivery, Settle("abandon" if counts else "release", "", outcome.why, due_ms)
                    )
                case Later():
                    await self._reschedule(delivery, outcome)
        except MAY_RETRY as error:
            return not isinstance(error, Refused)
        return True

    async def _reschedule(self, delivery: Delivery, later: Later) -> None:
        """Send a delayed copy, then complete the delivery; a crash between the two leaves a duplicate, not a loss."""
        message = await self._copy(delivery, later)
        due_ms = self._now_ms() + round(later.delay_s * 1_000) if later.delay_s > 0 else 0
        try:
            await self.push([Output(delivery.queue, due_ms, message)])
        except NothingCommitted:
            await self._bus.settle(delivery, Settle("release"))
        else:
            await self._bus.settle(delivery, Settle("complete"))

    async def _copy(self, delivery: Delivery, later: Later) -> Message:
        """The delayed copy: the same message under a broker's id that duplicate detection has not seen."""
        message = delivery.message
        copy = msgspec.structs.replace(
            message,
            outbox_id=message.identity or sequence_identity(delivery.sequence),  # a copy has another sequence number
            message_id=f"{message.identity}~{self._new_tx()}",
            created_ms=message.created_ms or delivery.enqueued_ms,
            failures=later.failures,
        )
        copy = with_error(copy, later.why)
        # A sender with another limit may have sent the body inline.
        with suppress(NoBlobStore):  # then the copy carries it inline too
            copy = await check_in(copy, self._blobs, above_bytes=self._plan.claim_check_bytes)
        return copy
