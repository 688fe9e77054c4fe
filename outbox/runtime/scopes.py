"""Choose the commit protocol: the widest atomic scope that the backend's ports share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from outbox.ports import Delivery, Ports, StateStore, StorePorts
from outbox.runtime.commit.marks import Lingering
from outbox.runtime.counted_ports import counted
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_protocol import StoreParts
from outbox.runtime.store_scope import StoreScope

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
