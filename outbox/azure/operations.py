"""The operations of clients and operators on the adapters: to declare, to send, and the bus's dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.azure.servicebus.dead_letters import ServiceBusDeadLetters
from outbox.azure.servicebus.entities import ServiceBusEntities
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.azure.servicebus.peeking import peek
from outbox.errors import OutcomeUnknown, Refused, Throttled, UnknownDestination
from outbox.ports import SUBSCRIPTIONS, BusOperations, Output

SEND_COUNT_MAX = 4
SEND_PAUSE_S = 0.2
WAIT_PAUSE_S = 0.5
CANCEL_S = 30.0
WAITING_PAGE_COUNT, WAITING_COUNT_MAX = 10, 100

log = logging.getLogger("outbox.azure")


class AzureOperations:
    """The operations of a namespace, and of the containers beside it."""

    def __init__(
        self,
        namespace: ServiceBusNamespace,
        bus: ServiceBusBus,
        entities: ServiceBusEntities,
        dead_letters: ServiceBusDeadLetters,
        *,
        prepare: Callable[[], Awaitable[None]],
        create: bool,
        now_ms: Callable[[], int],
        wait_s: float = 0.0,
    ) -> None:
        """Take the parts; `prepare` makes or checks containers, `create` says whether to make queues and topics.

        `wait_s` is how long `declare` waits for services that do not answer.
        """
        self._namespace = namespace
        self._bus = bus
        self._entities = entities
        self._prepare = prepare
        self._create = create
        self._wait_s = wait_s
        self.now_ms = now_ms
        self.dead_letters, self.resubmit = dead_letters.list, dead_letters.resubmit
        self.discard, self.discard_some = dead_letters.discard, dead_letters.discard_some
        self.names, self.counts, self.pause = entities.names, entities.counts, entities.pause
        self.is_paused, self.is_ordered = entities.is_paused, entities.is_ordered
        self.is_idle, self.is_drained = entities.is_idle, entities.is_drained
        self.peek = partial(peek, namespace)

    async def declare(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Make sure that all of this is there and can be used.

        Raises:
            Refused: a container, queue or subscription that is there is of no use as it is.
            OutcomeUnknown, Throttled: a service does not answer.
        """
        self._bus.order([name for name, ordering in queues.items() if ordering == "per_key"])
        until_s = monotonic() + self._wait_s
        await _answered(self._prepare, until_s)
        if self._create:
            await _answered(partial(self._entities.declare, queues, topics), until_s)
            return
        if self._wait_s:
            with suppress(OutcomeUnknown):  # the queues themselves may answer: management has another port
                await _answered(self._entities.answers, until_s)
        await self._entities.look(queues, topics)

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages, again under the same ids while the outcome is unknown: receivers drop duplicates by those.

        Raises:
            OutcomeUnknown: at least one try may have sent them.
            Refused, UnknownDestination: none has.
        """
        unknown: OutcomeUnknown | None = None
        for count in range(1, SEND_COUNT_MAX + 1):
            try:
                await self._bus.send(outputs)
                return
            except (OutcomeUnknown, Refused, UnknownDestination) as error:
                unknown = error if isinstance(error, OutcomeUnknown) else unknown
                if count == SEND_COUNT_MAX or not isinstance(error, OutcomeUnknown | Throttled):
                    raise unknown or error from error.__cause__
            await asyncio.sleep(SEND_PAUSE_S * count)

    async def waiting_since_ms(self, queue: str) -> int | None:
        """Since when the oldest message of a queue or subscription waits, of the first hundred; None: none does.

        Raises:
            OutboxError: it cannot be looked at.
        """
        found, _ = await self.peek(
            queue,
            after=0,
            count=1,
            session="",
            is_wanted=lambda held: held.status == "active",
            page_count=WAITING_PAGE_COUNT,
            look_count_max=WAITING_COUNT_MAX,
        )
        return found[0].enqueued_ms if found else None

    async def cancel(self, destination: str, sequences: Sequence[int]) -> None:
        """Cancel scheduled messages of a queue or topic.

        Raises:
            Refused: one of them is not scheduled any more.
        """
        sender = self._namespace.sender(destination.partition(SUBSCRIPTIONS)[0])
        try:
            async with asyncio.timeout(CANCEL_S), sender:
                await sender.cancel_scheduled_messages(list(sequences))
        except FAILURES as error:
            raise as_error(error, f"cancel in {destination}") from error


async def _answered(step: Callable[[], Awaitable[None]], until_s: float) -> None:
    """Take a step of the start, again while a service does not answer and there is time."""
    has_logged = False
    while True:
        try:
            await step()
            return
        except (OutcomeUnknown, Throttled) as error:
            if monotonic() + WAIT_PAUSE_S >= until_s:
                raise
            if not has_logged:
                log.info("waiting for a service to answer", extra={"error": str(error)})
                has_logged = True
        await asyncio.sleep(WAIT_PAUSE_S)


_conforms: type[BusOperations] = AzureOperations
