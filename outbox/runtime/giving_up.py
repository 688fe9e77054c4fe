"""Messages of which nothing came: what stands in the way is told, for nobody may be looking, and they rest."""

from __future__ import annotations

import logging
from collections.abc import Callable

from outbox.ports import Delivery
from outbox.runtime.backoff import Backoff, RetryError, cause_of
from outbox.runtime.telling import failure_text
from outbox.seldom import Seldom

log = logging.getLogger("outbox.worker")

TELL_EVERY_MS = 60_000


class GivingUp:
    """What one worker gives up on; the more in a row, the longer the rest before a message comes again."""

    def __init__(self, backoff: Backoff, now_ms: Callable[[], int]) -> None:
        self._backoff = backoff
        self._told = Seldom(TELL_EVERY_MS, now_ms)
        self.count = 0
        """How many messages in a row were given back because nothing could be committed."""

    async def rest(self, delivery: Delivery, error: BaseException) -> None:
        """Tell why nothing could be committed, once a minute for each cause and queue, and let the message rest."""
        cause, queue = cause_of(error), delivery.queue
        is_unsent = isinstance(cause, RetryError)  # committed, and told by whoever could not send
        if cause is not None and not is_unsent and self._told.is_due(f"{type(cause).__name__}\0{queue}"):
            fields = {"id": delivery.message.identity, "queue": queue, "error": failure_text(cause)}
            log.warning("message given back, nothing could be committed; it comes again", extra=fields)
        self.count += 1
        await self._backoff.rest(self.count - 1)

    def is_over(self) -> None:
        """Something could be committed again."""
        self.count = 0
