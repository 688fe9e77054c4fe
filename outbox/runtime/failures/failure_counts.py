"""Failure counts for the messages of an ordered source, or of a subscription.

Such a message is not rescheduled as a copy that could carry its count, so the count lies beside the message's record.
It may undercount, because a failed write of it is not repeated; the broker's own limit is far above ours.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from outbox import stored
from outbox.ports import Create, Replace, StateStore, Tag
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import Failures, failures_key


class FailureCounts:
    """The counts of one store; each is kept for `life_s` seconds."""

    def __init__(self, store: StateStore, life_s: float) -> None:
        self._store = store
        self._life_s = life_s

    async def recall(self, attempt: Attempt) -> None:
        """Give an attempt the failure count of its message; a first delivery has none."""
        work = attempt.work
        if not work.stays_in_place or not work.delivery.delivery_count:
            return
        with suppress(*MAY_RETRY):
            found = await self._store.read(failures_key(work.state_id, work.inbox))
            if found is not None:
                count, delivery = stored.decode(found, Failures).count, work.delivery
                left = max(0, delivery.delivery_count - count)
                delivery = msgspec.structs.replace(delivery, failures=count, delivery_count=left)
                attempt.work = msgspec.structs.replace(work, delivery=delivery)

    async def note(self, work: Work, outcome: Outcome) -> None:
        """Count a failure, unless it is the last."""
        if not (work.stays_in_place and isinstance(outcome, Later) and outcome.failures > work.delivery.failures):
            return
        key, body = failures_key(work.state_id, work.inbox), stored.encode(Failures(outcome.failures))
        tag = Tag("failures", (work.inbox,))
        with suppress(*MAY_RETRY):
            known = await self._store.read(key)
            create = Create(key, body, self._life_s, tag)
            await self._store.write([create if known is None else Replace(key, body, known.version, self._life_s, tag)])
