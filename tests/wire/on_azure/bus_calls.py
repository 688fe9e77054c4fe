"""What tests of the Service Bus adapter have in common: messages, a wait for deliveries, faults, what a queue holds."""

from __future__ import annotations

import time
from typing import Any

from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.emulator.faults import FaultRule
from outbox.message import Message
from outbox.ports import Delivery, Output
from tests.wire.on_azure.ground import BusGround

QUEUE, ORDERED = "contract", "contract-ordered"


def install(ground: BusGround, **fields: Any) -> None:
    ground.server.faults.install(FaultRule(**fields))


def output(id: str, queue: str = QUEUE, **fields: Any) -> Output:
    return Output(queue, 0, Message(body=id.encode(), outbox_id=id, **fields))


async def received(bus: ServiceBusBus, queue: str = QUEUE, count: int = 1, within_s: float = 5.0) -> list[Delivery]:
    """So many deliveries, or what came until then."""
    found: list[Delivery] = []
    deadline_s = time.monotonic() + within_s
    while len(found) < count and (left_s := deadline_s - time.monotonic()) > 0:
        found += await bus.receive(queue, count_max=count - len(found), wait_s=min(left_s, 0.5))
    return found


def ids(ground: BusGround, queue: str = QUEUE) -> list[str]:
    """What a queue of the server holds."""
    return [task.message.identity for task in ground.engine.broker.peek(queue, 0, 1_000)]
