"""Messages as they come in: who handles each, with bodies that lie in the blob store fetched first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outbox.errors import NoBlobStore, OutcomeUnknown, PoisonMessage, Refused, TooLarge
from outbox.message import Message
from outbox.ports import BlobStore, Delivery
from outbox.runtime.backoff import Again, Backoff, RetryError, cause_of
from outbox.runtime.claims import redeem, without_blobs
from outbox.runtime.plan import Plan
from outbox.runtime.step import GIVE_BACK_DELAY_S, Later, Work, admit, unhandled
from outbox.runtime.telling import failure_text

NOT_DONE = (OutcomeUnknown, Refused)
"""What a port raises when nothing was written, or when nobody can tell."""


class Admission:
    """Makes works of deliveries."""

    def __init__(self, plan: Plan, blobs: BlobStore, backoff: Backoff) -> None:
        self._plan = plan
        self._blobs = blobs
        self._backoff = backoff

    async def admit(self, deliveries: Sequence[Delivery], now_ms: int) -> list[Work]:
        """A work for each delivery, in order."""
        works = admit(self._plan, deliveries, now_ms)
        for index in [index for index, delivery in enumerate(deliveries) if delivery.message.claim]:
            works[index] = await self._redeemed(deliveries[index], now_ms)
        return works

    async def _redeemed(self, delivery: Delivery, now_ms: int) -> Work:
        """A message whose body lies in the blob store; one whose body cannot be had now rests for a while."""
        plan, replace = self._plan, msgspec.structs.replace
        refusal: PoisonMessage | Later
        try:
            async for attempt in self._backoff.attempts():
                with attempt:
                    whole = replace(delivery, message=await self._redeem(delivery), fingerprint=b"")
                    return admit(plan, [whole], now_ms)[0]
        except PoisonMessage as poison:
            refusal = poison
        except RetryError as error:
            text = failure_text(cause_of(error) or error)
            refusal = Later(GIVE_BACK_DELAY_S, delivery.failures, f"its body cannot be fetched: {text}")
        return unhandled(plan, delivery, refusal)

    async def _redeem(self, delivery: Delivery) -> Message:
        try:
            return await redeem(delivery.message, self._blobs)
        except TooLarge as error:
            raise PoisonMessage("oversize", str(error)) from error
        except NoBlobStore as error:
            raise without_blobs(error) from error
        except NOT_DONE as error:
            raise Again from error
