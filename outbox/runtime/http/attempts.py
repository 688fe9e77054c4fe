"""One attempt at an HTTP request, under each commit protocol: the same steps as for a message of a queue.

There is no delivery to settle, so an attempt ends with the record: `Attempt.committed` is called as soon as the record
is durable, which in partition and item scope is before the outputs are pushed.  They are on record too, and after a
crash the sweeper pushes them.

A read runs the handler on the stored state and commits nothing; the handler may not change or send anything.

*Claims of idempotency keys*, in partition and item scope.  There the record of a request lies with its state.  Another
request under the same idempotency key may name another state, and would not find that record.  So the first request
creates a claim under the idempotency key alone, with the digest of its payload and the state's key.  A later request
with another payload is refused; one with the same payload continues with the claimed key and the first creation time.

A claim says nothing about the outcome of the request, so an attempt that dies may have made it.  It lives as long as a
record, and no request older than retention runs: after its claim expired a request is too old.  The record of a
stateless handler needs no claim, because it lies under the identity alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from uuid import UUID

import msgspec

from outbox import stored
from outbox.context import ABSENT, Context
from outbox.errors import OutcomeUnknown, PoisonMessage, UnknownDestination
from outbox.http import Reply
from outbox.lineage import Key, state_id
from outbox.ports import BlobStore, Create, Document, Journal, Ports, Refusal, StateStore, StorePorts, Tag, Won
from outbox.runtime.commit.engine_transaction import EngineTransaction, refuse_futile, wanted
from outbox.runtime.commit.marker_replies import reply_in
from outbox.runtime.commit.run_handler import Life, run_branch
from outbox.runtime.commit.state_cache import cached_state
from outbox.runtime.commit.store_transaction import never_durable
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted, read, write_blobs, write_one
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_scope import StoreProtocol
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import IdempotencyClaim, Record, claim_key, record_key, state_key


class ReadOnly(TypeError):
    """The handler of a read tried to change or send something."""


class ReadTransaction:
    """The transaction of a read: a state and no effects."""

    def __init__(
        self, now_ms: int, value: bytes, schema: int, durable: Callable[[], Awaitable[None]] = never_durable
    ) -> None:
        self.now_ms = now_ms
        self.durable = durable
        self.reply: Reply | None = None
        self._value = value
        self._schema = schema
        self._before = b""

    def sibling(self) -> ReadTransaction:
        return self

    def follow(self, attempt: Attempt) -> PoisonMessage | bool:
        return False

    def state(self, work: Work) -> Any:
        """Decode the stored state; a fresh one where there is none."""
        codec = work.handler.state if work.handler is not None else None
        if codec is None:
            return None
        state = codec.decode(self._value, self._schema) if self._value else codec.fresh()
        self._before = codec.encode(state)
        return state

    def apply(self, attempt: Attempt, state: Any, context: Context | None) -> None:
        """Keep the reply.

        Raises:
            ReadOnly: the handler had other effects.
        """
        handler = attempt.work.handler
        codec = handler.state if handler is not None else None
        is_changed = codec is not None and codec.encode(state) != self._before
        if context is None or is_changed or context.outputs or context.blobs or context.replaced is not ABSENT:
            raise ReadOnly("a GET handler only reads; change state and send from a POST, PUT, PATCH or DELETE")
        self.reply = context.answer

    def refuse(self, attempt: Attempt, poison: PoisonMessage) -> None:
        """A refusal of a read is not recorded."""

    def cancel(self, attempt: Attempt) -> None:
        """Nobody cancels a request."""

    def may_be_old(self, attempt: Attempt) -> bool:
        """A request that reads has no age."""
        return True

    def has_refused(self, attempt: Attempt) -> bool:
        return True


class RequestProtocol(Protocol):
    """One commit protocol, for requests."""

    async def begin(self, attempt: Attempt) -> PoisonMessage | None:
        """Claim the idempotency key for this request, before the first attempt; the refusal if another has it.

        Raises:
            NothingCommitted: the claim is unknown.
        """

    async def once(self, attempt: Attempt) -> Outcome:
        """One attempt: follow the record, or run the handler and commit; the attempt then has its record.

        Raises:
            NothingCommitted: nothing is known to have been committed, or the push failed.
        """

    async def read(self, work: Work) -> ReadTransaction:
        """Load the state for a read.

        Raises:
            NothingCommitted: it cannot be read now.
        """


class EngineRequests:
    """Engine scope: one record of the log holds state, outputs and a marker with the reply."""

    def __init__(
        self, plan: CompiledApp, journal: Journal, blobs: BlobStore, *, now_ms: Callable[[], int], life: Life
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._blobs = blobs
        self._now_ms = now_ms
        self._life = life

    async def begin(self, attempt: Attempt) -> PoisonMessage | None:
        return None  # a marker is found by its inbox key, whatever state the request names

    async def once(self, attempt: Attempt) -> Outcome:
        try:
            documents, markers = await self._journal.load(*wanted((attempt.work,)))
            group = EngineTransaction(self._plan, self._now_ms(), documents, markers, self._journal.durable)
            outcome = await run_branch(self._plan, group, attempt, self._life)
            if isinstance(outcome, Later):
                return outcome
            await self._commit(group)
        except (*MAY_RETRY, UnknownDestination) as error:
            refuse_futile(attempt, error)
            raise NothingCommitted from error
        if outcome is None or outcome.reason != "payload-differs":
            attempt.committed(self._record(group, attempt.work))
        return outcome

    async def _commit(self, group: EngineTransaction) -> None:
        """Commit the effects of a handler; without any, wait until the record on file is durable."""
        commit = group.commit
        if not commit.applied and not commit.refused:
            await self._journal.durable()
            return
        await write_blobs(self._blobs, group.blobs)
        if await self._journal.commit(commit) is not None:
            raise NothingCommitted

    @staticmethod
    def _record(group: EngineTransaction, work: Work) -> Record:
        marker = group.markers[work.inbox]
        if isinstance(marker, Refusal):
            return Record("", marker.fingerprint, group.now_ms, reason=marker.reason, description=marker.description)
        return Record("", work.fingerprint, group.now_ms, reply=reply_in(marker))

    async def read(self, work: Work) -> ReadTransaction:
        id = work.state_id
        try:
            documents, _ = await self._journal.load([] if id is None else [id], [])
            await self._journal.durable()
        except MAY_RETRY as error:
            raise NothingCommitted from error
        found = documents.get(id or "")
        value, schema = (b"", 1) if found is None else (found.value, found.schema)
        return ReadTransaction(self._now_ms(), value, schema, self._journal.durable)


class StoreRequests:
    """Partition and item scope: a claim, then the protocol as for a message of a queue."""

    def __init__(
        self,
        plan: CompiledApp,
        protocol: StoreProtocol,
        states: StateStore,
        records: StateStore,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.once = protocol.once
        self._states = states
        self._records = records
        self._claims = IdempotencyKeys(plan, records)
        self._now_ms = now_ms

    async def begin(self, attempt: Attempt) -> PoisonMessage | None:
        work = attempt.work
        if work.state_id is not None:
            return await self._claims.take(attempt)
        if await read(self._records, record_key(None, work.inbox)) is not None:  # its key is known without a claim
            delivery = msgspec.structs.replace(work.delivery, delivery_count=1)
            attempt.work = msgspec.structs.replace(work, delivery=delivery)
        return None

    async def read(self, work: Work) -> ReadTransaction:
        if work.state_id is None:
            return ReadTransaction(self._now_ms(), b"", 1)
        item = cached_state(await read(self._states, state_key(work.state_id))).item
        return ReadTransaction(self._now_ms(), b"" if item.is_tombstone else bytes(item.value), item.schema)


def requests_over(
    plan: CompiledApp,
    ports: Ports | StorePorts,
    protocol: StoreProtocol | None,
    *,
    now_ms: Callable[[], int],
    is_stopping: Callable[[], bool],
) -> RequestProtocol:
    """The request protocol of these ports; over a store and a bus it uses the protocol of messages."""
    if isinstance(ports, Ports):
        return EngineRequests(plan, ports.journal, ports.blobs, now_ms=now_ms, life=Life(now_ms, is_stopping))
    assert protocol is not None, "a store and a bus have a protocol of their own"
    return StoreRequests(plan, protocol, ports.store, ports.infrastructure or ports.store, now_ms=now_ms)


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
