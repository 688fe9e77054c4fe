"""What the runtime sees of claimed tasks, and the lock tokens that it settles them by."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.engine.broker import Broker
from outbox.engine.core import Core
from outbox.engine.state.tasks import Task, pack_token
from outbox.ports import Delivery


def as_deliveries(tasks: Sequence[Task], *, waits: bool = False) -> list[Delivery]:
    """What the runtime sees of claimed tasks; `waits` says that their keys are blocked."""
    return [
        Delivery(
            task.path,
            task.sequence,
            task.message,
            task.lock,
            task.enqueued_ms,
            task.locked_until_ms,
            task.delivery_count,
            task.failures,
            task.external,
            task.fingerprint,
            waits,
        )
        for task in tasks
    ]


def token_of(delivery: Delivery, core: Core, broker: Broker) -> bytes:
    """The lock token of a delivery."""
    return pack_token(core.epoch, delivery.lock, delivery.sequence, broker.queue(delivery.queue).number)
