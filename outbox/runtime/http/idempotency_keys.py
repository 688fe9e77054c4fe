"""Claims: which request an idempotency key stands for, where its record lies beside a state that others do not know.

In partition and item scope the record of a request lies with its state.  Another request under the same idempotency
key may name another state, and would look for a record in vain.  So the first one to come creates a claim in a place
that both can find, with the digest of its payload and the state's key; whoever comes later with another payload is
refused, and with the same goes on at the key that is written there, with the time of the first.

A claim says nothing of what became of the request, so it can be made by an attempt that dies.  It lives as long as a
record, and no request that is older than retention is run: whatever was run under a claim that has expired is past.
A stateless handler's record needs no claim, for it lies where its identity says.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from outbox import stored
from outbox.errors import OutcomeUnknown, PoisonMessage
from outbox.lineage import Key, state_id
from outbox.ports import Create, Document, StateStore, Tag, Won
from outbox.runtime.commit.store_io import read, write_one
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.start.plan import Plan
from outbox.runtime.work import Attempt
from outbox.stored import Claim, claim_key


class IdempotencyKeys:
    """The claims of one store."""

    def __init__(self, plan: Plan, store: StateStore) -> None:
        self._plan = plan
        self._store = store

    async def take(self, attempt: Attempt) -> PoisonMessage | None:
        """Claim a request's idempotency key, or go on where the first request did; why that is refused.

        Raises:
            NothingCommitted: nobody can tell whose it is.
        """
        work = attempt.work
        if work.state_id is None or work.key is None:
            return None
        key, message = claim_key(work.inbox), work.delivery.message
        claim = Claim(work.fingerprint, work.state_id, text_of(work.key), message.created_ms)
        life_s = self._plan.record_life_ms / 1_000
        document: Document | None
        try:
            answer = await write_one(
                self._store, Create(key, stored.encode(claim), life_s, Tag("claim", (work.inbox,)))
            )
        except OutcomeUnknown:
            document = await read(self._store, key)
        else:
            if isinstance(answer, Won):
                return None
            document = answer.current or await read(self._store, key, answer.session)
        if document is None:
            raise NothingCommitted
        return self._join(attempt, stored.decode(document, Claim))

    @staticmethod
    def _join(attempt: Attempt, claim: Claim) -> PoisonMessage | None:
        """Go on where the first request did."""
        work = attempt.work
        if claim.fingerprint != work.fingerprint:
            return PoisonMessage("payload-differs", "another request has this idempotency key")
        if claim.state != work.state_id:  # its key is taken otherwise than when the first request came
            handler, key = work.handler, key_of(claim.key)
            if handler is None or handler.state is None or state_id(handler.state.name, key) != claim.state:
                return PoisonMessage("payload-differs", "this idempotency key was used for a state of another type")
            work = msgspec.structs.replace(work, key=key, state_id=claim.state, lane=claim.state)
        first = msgspec.structs.replace(work.delivery.message, created_ms=claim.created_ms)
        delivery = msgspec.structs.replace(work.delivery, message=first, delivery_count=1)
        attempt.work = msgspec.structs.replace(work, delivery=delivery)
        return None


def text_of(key: Key) -> str:
    """A key and what it is, as a text."""
    return f"{'u' if isinstance(key, UUID) else 'i' if isinstance(key, int) else 's'}:{key}"


def key_of(text: str) -> Key:
    """The key that a text stands for."""
    kind, _, value = text.partition(":")
    return UUID(value) if kind == "u" else int(value) if kind == "i" else value
