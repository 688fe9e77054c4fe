"""How deliveries end on a bus, once what became of their messages is on record.

Nothing here decides anything: a settlement that fails leaves the message to be delivered again, and its record then
says how it ends.  A message that several handlers read ends when the last of them has come to its result.  One that is
to be tried again goes back as a delayed copy that carries its identity, its time and its count of failures; on an
ordered source nothing may overtake it, so it is given back in its place and its failures are kept beside its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from outbox.errors import PoisonMessage, UnknownDestination
from outbox.message import Message
from outbox.ports import Delivery, MessageBus, Output, Settle
from outbox.runtime.admission import NOT_DONE
from outbox.runtime.backoff import Again, Backoff, RetryError
from outbox.runtime.claims import to_claim
from outbox.runtime.plan import Plan
from outbox.runtime.step import Later, Outcome, Work, refusal_of_all


class Endings:
    """Ends the deliveries of one worker."""

    def __init__(
        self,
        plan: Plan,
        bus: MessageBus,
        *,
        backoff: Backoff,
        now_ms: Callable[[], int],
        new_tx: Callable[[], str],
        settled: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._plan = plan
        self._bus = bus
        self._backoff = backoff
        self._now_ms = now_ms
        self._new_tx = new_tx
        self._settled = settled
        self._open: dict[tuple[str, int], tuple[Work, dict[int, Outcome]]] = {}
        """The messages that several handlers read, and what became of which part."""

    def expect(self, work: Work) -> None:
        """Be ready for a message that ends in several parts."""
        if work.others:
            self._open[work.delivery.queue, work.delivery.sequence] = (work, {})

    async def end(self, part: Work, outcome: Outcome) -> None:
        """End a delivery, or note what became of one handler's part of it."""
        place = part.delivery.queue, part.delivery.sequence
        if place in self._open:
            whole, outcomes = self._open[place]
            outcomes[id(part)] = outcome
            parts = (whole, *whole.others)
            if len(outcomes) < len(parts):
                return
            del self._open[place]
            found = [outcomes[id(one)] for one in parts]
            later = [one for one in found if isinstance(one, Later)]
            part, outcome = whole, later[0] if later else refusal_of_all(parts, found)
        await self._settle(part, outcome)
        self._settled([part.delivery])

    async def give_back(self, part: Work) -> None:
        """Give a delivery back uncounted; if that fails its lock runs out."""
        self._open.pop((part.delivery.queue, part.delivery.sequence), None)
        with suppress(*NOT_DONE):
            await self._bus.settle(part.delivery, Settle("release"))
        self._settled([part.delivery])

    async def push(self, outputs: Sequence[Output]) -> None:
        """Send what a record holds, again under the same ids while nobody can tell.

        Raises:
            Again: it could not be sent now; the record says that it is due.
        """
        if not outputs:
            return
        try:
            await self._bus.send(outputs)
            return
        except (*NOT_DONE, UnknownDestination):
            pass
        try:
            async for attempt in self._backoff.attempts():
                with attempt:
                    await self._send(outputs)
        except RetryError as error:
            raise Again from error

    async def _send(self, outputs: Sequence[Output]) -> None:
        try:
            await self._bus.send(outputs)
        except (*NOT_DONE, UnknownDestination) as error:
            raise Again from error

    async def _settle(self, work: Work, outcome: Outcome) -> None:
        delivery = work.delivery
        with suppress(*NOT_DONE):  # it will be delivered again, and its record found
            match outcome:
                case None:
                    await self._bus.settle(delivery, Settle("complete"))
                case PoisonMessage():
                    await self._bus.settle(delivery, Settle("dead-letter", outcome.reason, outcome.description))
                case Later() if work.in_order:
                    due_ms = self._now_ms() + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0
                    counts = outcome.failures > delivery.failures
                    await self._bus.settle(delivery, Settle("abandon" if counts else "release", due_ms=due_ms))
                case Later():
                    await self._put_off(delivery, outcome)

    async def _put_off(self, delivery: Delivery, later: Later) -> None:
        """Send a delayed copy in the delivery's place, then let go of it; twice there is better than not at all."""
        message = self._copy(delivery, later.failures)
        due_ms = self._now_ms() + round(later.delay_s * 1_000) if later.delay_s > 0 else 0
        destination = delivery.queue.split("/Subscriptions/")[0]
        try:
            await self.push([Output(destination, due_ms, message)])
        except Again:
            await self._bus.settle(delivery, Settle("release"))
        else:
            await self._bus.settle(delivery, Settle("complete"))

    def _copy(self, delivery: Delivery, failures: int) -> Message:
        message = delivery.message
        copy = msgspec.structs.replace(
            message,
            outbox_id=message.identity,
            message_id=f"{message.identity}~{self._new_tx()}",  # or duplicate detection would swallow it
            created_ms=message.created_ms or delivery.enqueued_ms,
            failures=failures,
        )
        if len(copy.body) > self._plan.claim_check_bytes:
            copy = msgspec.structs.replace(copy, body=b"", claim=to_claim(copy)[0])  # its blob is where it came from
        return copy
