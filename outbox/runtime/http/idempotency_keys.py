"""Claims of idempotency keys: the request that a key belongs to, in partition and item scope.

There the record of a request lies with its state.  Another request under the same idempotency key may name another
state, and would not find that record.  So the first request creates a claim under the idempotency key alone, with the
digest of its payload and the state's key.  A later request with another payload is refused; one with the same payload
continues with the claimed key and the first creation time.

A claim says nothing about the outcome of the request, so an attempt that dies may have made it.  It lives as long as a
record, and no request older than retention runs: after its claim expired a request is too old.  The record of a
stateless handler needs no claim, because it lies under the identity alone.
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
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt
from outbox.stored import IdempotencyClaim, claim_key


class IdempotencyKeys:
    """The claims of one store."""

    def __init__(self, plan: CompiledApp, store: StateStore) -> None:
        self._plan = plan
        self._store = store

    async def take(self, attempt: Attempt) -> PoisonMessage | None:
        """Claim a request's idempotency key, or continue the first request; the refusal if another request has it.

        Raises:
            NothingCommitted: the owner of the key is unknown.
        """
        work = attempt.work
        if work.state_id is None or work.key is None:
            return None
        key, message = claim_key(work.inbox), work.delivery.message
        claim = IdempotencyClaim(work.fingerprint, work.state_id, text_of(work.key), message.created_ms)
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
        return self._join(attempt, stored.decode(document, IdempotencyClaim))

    @staticmethod
    def _join(attempt: Attempt, claim: IdempotencyClaim) -> PoisonMessage | None:
        work = attempt.work
        if claim.fingerprint != work.fingerprint:
            return PoisonMessage("payload-differs", "another request has this idempotency key")
        if claim.state != work.state_id:  # the handler's key has changed since the first request
            handler, key = work.handler, key_of(claim.key)
            if handler is None or handler.state is None or state_id(handler.state.name, key) != claim.state:
                return PoisonMessage("payload-differs", "this idempotency key was used for a state of another type")
            work = msgspec.structs.replace(work, key=key, state_id=claim.state, lane=claim.state)
        first = msgspec.structs.replace(work.delivery.message, created_ms=claim.created_ms)
        delivery = msgspec.structs.replace(work.delivery, message=first, delivery_count=1)
        attempt.work = msgspec.structs.replace(work, delivery=delivery)
        return None


def text_of(key: Key) -> str:
    """A key with its type, as a text."""
    return f"{'u' if isinstance(key, UUID) else 'i' if isinstance(key, int) else 's'}:{key}"


def key_of(text: str) -> Key:
    kind, _, value = text.partition(":")
    return UUID(value) if kind == "u" else int(value) if kind == "i" else value
