"""Ordered logs and processors over the adapters, against the emulators and through the real SDKs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox import azure
from outbox.engine.entities import QueueSettings
from outbox.streams import Inputs, OrderedLog, Processor, Step
from outbox.streams.queues import QueueOutput
from tests.wire.on_azure.ground import place
from tests.wire.on_azure.test_connecting import BUS, COSMOS, KEY, everything_about


@dataclass
class Number:
    """An entry, and a message."""

    n: int


@dataclass
class Total:
    """The state of a processor."""

    sum: int = 0


def add(total: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        total.sum += entry.value.n
        step.emit("sums", Number(total.sum))


async def test_a_processor_on_cosmos_sends_each_entry_once_to_service_bus() -> None:
    async with place() as ground:
        ground.declare(QueueSettings("sums", "per_key"))
        async with ground.connect() as one, ground.connect() as other:
            await one.operations.declare({}, {})
            numbers: OrderedLog[Number] = OrderedLog("numbers", one, type=Number)
            await numbers.extend([Number(1), Number(2)], id="a")

            def processor(backend: Any) -> Processor[Total]:
                log: OrderedLog[Number] = OrderedLog("numbers", backend, type=Number)
                sums = backend.queue("sums", key=lambda number: number.n)
                return Processor(
                    "sums", add, state=Total, register=backend, inputs={"numbers": log}, outputs={"sums": sums}
                )

            assert await processor(one).run_until_idle(seconds=20) > 0
            assert await processor(other).run_until_idle(seconds=20) == 0
        found = [task.message for task in ground.servicebus.engine.broker.peek("sums", 0, 10)]
        assert [(m.body, m.session_id, m.type) for m in found] == [
            (b'{"n":1}', "1", "Number"),
            (b'{"n":3}', "3", "Number"),
        ]
        assert len({m.outbox_id[:-2] for m in found}) == 1


def test_a_queue_shows_no_key() -> None:
    queue = azure.connect(cosmos=COSMOS, database="bank", servicebus=BUS).queue("sums")
    shown = everything_about(queue) + everything_about(QueueOutput(queue))
    assert "QueueRef" in shown and KEY not in shown
