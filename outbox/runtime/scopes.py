"""Choose the commit protocol, and finish without an application's code what it has left in a store.

The protocol is that of the widest atomic scope that the backend's ports share.  Without the application stored outputs
leave under their stored ids, and every write is conditional, as when a worker sweeps.  What is needed of an application
is how long its records live, and that is registered in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec

from outbox.app import App
from outbox.errors import Refused
from outbox.ports import Delivery, Document, Ports, StateStore, StorePorts
from outbox.runtime.commit.marks import Lingering
from outbox.runtime.counts import counted
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.delivery.settlement import FailedPushes, Settlement
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.start.notes import RegisteredRetention
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox.runtime.store_scope import StoreParts, StoreScope
from outbox.stored import STAGED_PREFIX, STATE

Scope = EngineScope | StoreScope


def scope_over(
    plan: CompiledApp,
    ports: Ports | StorePorts,
    *,
    now_ms: Callable[[], int],
    backoff: Backoff,
    spawn: Callable[[Coroutine[Any, Any, None]], object],
    settled: Callable[[Sequence[Delivery]], None],
    is_stopping: Callable[[], bool],
    new_tx: Callable[[], str],
    failure_log: FailureLog,
    linger: Callable[[], Awaitable[None]] | None = None,
) -> Scope:
    """The scope that handles one worker's deliveries over these ports; `linger` is the wait for batched marks."""
    if isinstance(ports, Ports):
        return EngineScope(
            plan,
            ports.journal,
            ports.blobs,
            now_ms=now_ms,
            backoff=backoff,
            spawn=spawn,
            settled=settled,
            is_stopping=is_stopping,
            failure_log=failure_log,
        )
    ports = counted(ports, plan.counts)
    settlement = Settlement(
        plan,
        ports.bus,
        ports.blobs,
        backoff=backoff,
        now_ms=now_ms,
        new_tx=new_tx,
        settled=settled,
        failure_log=failure_log,
    )
    protocol = store_protocol(StoreParts(plan, ports, settlement, now_ms, new_tx, is_stopping))
    lingering = None if linger is None else Lingering(protocol, linger)
    blocked = BlockedSessions(ports.infrastructure or ports.store, ports.blobs)
    return StoreScope(
        plan,
        protocol,
        settlement,
        blocked,
        ports.blobs,
        now_ms=now_ms,
        backoff=backoff,
        spawn=spawn,
        lingering=lingering,
    )


def store_protocol(parts: StoreParts) -> PartitionScope | ItemScope:
    """Partition scope where the store writes a partition together and keeps everything, item scope otherwise."""
    partition, ports = PartitionScope(parts), parts.ports
    if ports.infrastructure is None and ports.store.capabilities.atomic_scope == "partition":
        return partition
    return ItemScope(parts, stateless=partition)


def stores_of(ports: StorePorts) -> tuple[StateStore, ...]:
    """The stores that a sweep reads."""
    return (ports.store,) if ports.infrastructure is None else (ports.store, ports.infrastructure)


async def longest_life(store: StateStore) -> tuple[int, int]:
    """How long the records of the applications of a store live at most, and the longest margin, in milliseconds.

    A record that is kept for longer than its application asks for harms nobody, one that goes early does.

    Raises:
        Refused: no application has registered itself, or what is there cannot be read.
    """
    lives, margins = [], []
    async for note in store.scan("notes", prefix="retention:"):
        try:
            kept = msgspec.json.decode(note.body, type=RegisteredRetention)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"note {note.key.id} cannot be read ({error}); start a worker there, it says more") from error
        lives += [kept.retention_ms + kept.margin_ms, *(era.record_life_ms for era in kept.eras)]
        margins += [kept.margin_ms, *(era.margin_ms for era in kept.eras)]
    if not lives:
        raise Refused(
            "no application has ever started on this store, so nothing of ours can be unfinished there; check "
            "database and container"
        )
    return max(lives), max(margins)


def plan_without_app(life_ms: int, margin_ms: int) -> CompiledApp:
    """Compile the least plan that finishes transactions without their application: it knows how long records live."""
    margin = timedelta(milliseconds=margin_ms)
    retention = timedelta(milliseconds=life_ms) - margin
    return compile_app(App("sweep", retention=retention, margin=margin, clock_skew=margin / 2))


def protocol_without_app(ports: StorePorts, plan: CompiledApp) -> tuple[PartitionScope | ItemScope, FailedPushes]:
    """The commit protocol of a store, to finish documents with, and what it could not push."""
    parts = _parts(ports, plan)
    return store_protocol(parts), parts.settlement.failed_pushes


class Protocols:
    """Both protocols of a store, for who does not know in which scope its workers run: each knows its documents."""

    def __init__(self, partition: PartitionScope, item: ItemScope) -> None:
        self._partition = partition
        self._item = item

    def of(self, document: Document) -> PartitionScope | ItemScope:
        """The protocol that has written a document: only item scope leaves states and staged records unfinished."""
        is_item = document.key.id == STATE or document.key.id.startswith(STAGED_PREFIX)
        return self._item if is_item else self._partition

    async def finish(self) -> None:
        """Mark what has left."""
        await self._partition.finish()
        await self._item.finish()


def protocols_without_app(ports: StorePorts, plan: CompiledApp) -> tuple[Protocols, FailedPushes]:
    """Both commit protocols over a store, to finish documents with, and what they could not push."""
    parts = _parts(ports, plan)
    partition = PartitionScope(parts)
    return Protocols(partition, ItemScope(parts, stateless=partition)), parts.settlement.failed_pushes


def _parts(ports: StorePorts, plan: CompiledApp) -> StoreParts:
    now_ms, new_tx = ports.operations.now_ms, lambda: uuid4().hex
    settlement = Settlement(
        plan,
        ports.bus,
        ports.blobs,
        backoff=Backoff(asyncio.sleep),
        now_ms=now_ms,
        new_tx=new_tx,
        settled=lambda _: None,
    )
    return StoreParts(plan, ports, settlement, now_ms, new_tx, is_stopping=lambda: False)
