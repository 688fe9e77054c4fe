"""One attempt at an HTTP request, under each commit protocol: the same steps as for a message of a queue.

There is no delivery to settle, so an attempt ends with the record: `Attempt.committed` is called as soon as the record
is durable, which in partition and item scope is before the outputs are pushed.  They are on record too, and after a
crash the sweeper pushes them.

A read runs the handler on the stored state and commits nothing; the handler may not change or send anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from outbox.context import ABSENT, Context
from outbox.errors import PoisonMessage, UnknownDestination
from outbox.http import Reply
from outbox.ports import BlobStore, Journal, Ports, Refusal, StateStore, StorePorts
from outbox.runtime.commit.engine_transaction import EngineTransaction, refuse_futile, wanted
from outbox.runtime.commit.marker_replies import reply_in
from outbox.runtime.commit.run_handler import Life, run_branch
from outbox.runtime.commit.state_cache import cached_state
from outbox.runtime.commit.store_io import read, write_blobs
from outbox.runtime.commit.store_transaction import never_durable
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted
from outbox.runtime.http.idempotency_keys import IdempotencyKeys
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_protocol import StoreProtocol
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import Record, record_key, state_key


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
