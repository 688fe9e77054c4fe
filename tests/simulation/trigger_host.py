"""A Functions host under exploration: it has a message that it received handled by our processor, and settles it.

Each invocation begins in a process that knows nothing.  What returns is completed, what raises is abandoned and counts;
what the host does beside that (renewing locks, limits of its own) is left to the bus.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from outbox import App
from outbox.azure.functions.processor import GivenBack, Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.message import properties_of
from outbox.ports import Delivery, Settle
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.start.plan import CompiledApp
from outbox.verify.explorer.ports import ExploredBus, ExploredOperations
from outbox.verify.explorer.programs import StoreResources, store_ports
from outbox.verify.explorer.run import Calls


def never() -> Any:
    raise AssertionError("the backend is there already")


SETTINGS = FunctionsSettings(connect=never)


@dataclass(frozen=True, slots=True)
class TriggerHost:
    """One process of a host; all of them are alike."""

    app: App
    plan: CompiledApp
    at: StoreResources
    name: str = "trigger host"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        operations: Any = ExploredOperations(calls, self.at.bus)
        backend: Any = SimpleNamespace(ports=lambda: store_ports(calls, self.at, operations))
        bus = ExploredBus(calls, self.at.bus)
        with suppress(*MAY_RETRY):
            for delivery in await bus.receive_any(self.plan.paths, 1):
                processor = Processor(self.app, backend, SETTINGS, new_tx=calls.new_id, chance=lambda: 0.5)
                settle = Settle("complete")
                try:
                    await processor.message(delivery.queue, as_received(delivery))
                except GivenBack:
                    settle = Settle("abandon")
                with suppress(*MAY_RETRY):
                    await bus.settle(delivery, settle)
                await processor.finish()
        return None


def as_received(delivery: Delivery) -> Any:
    """A delivery as a host hands it over."""
    message = delivery.message
    properties = properties_of(message)
    return SimpleNamespace(
        get_body=lambda: message.body,
        application_properties=properties,
        user_properties=None,
        message_id=message.broker_id,
        session_id=message.session_id,
        reply_to=message.reply_to,
        correlation_id=message.correlation_id,
        sequence_number=delivery.sequence,
        delivery_count=delivery.delivery_count + 1,
        enqueued_time_utc=datetime.fromtimestamp(delivery.enqueued_ms / 1_000, UTC),
        expires_at_utc=None,
    )
