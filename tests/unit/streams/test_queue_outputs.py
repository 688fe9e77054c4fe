"""What a processor emits to a queue: each entry one message, whoever sends it and however often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from outbox import App, Client, Worker
from outbox.engine.backend.store_scopes import NarrowEngine, NarrowScope
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.errors import NotRegistrable, OutcomeUnknown, PoisonMessage, UnknownDestination
from outbox.lineage import step_id
from outbox.message import Message
from outbox.ports import Output, QueueRef
from outbox.streams import HandlerFailed, Inputs, OrderedLog, Processor, Step
from outbox.streams.plan import QueueOutput, output_of
from outbox.streams.replica import Progress, Replica
from tests.unit.messages import Reading


@dataclass
class Order:
    """A message."""

    sensor: str
    degrees: float


@dataclass
class Seen:
    """The state of the processor, and of the application."""

    count: int = 0
    sensors: list[str] = field(default_factory=list)


def order(seen: Seen, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        seen.count += 1
        step.emit("orders", Order(entry.value.sensor, entry.value.degrees))


def processor(engine: Engine, queue: QueueRef, handler: Any = order) -> Processor[Seen]:
    readings: OrderedLog[Reading] = OrderedLog("readings", engine, type=Reading)
    return Processor(
        "orders", handler, state=Seen, register=engine, inputs={"readings": readings}, outputs={"orders": queue}
    )


async def filled(engine: Engine, *sensors: str) -> None:
    log: OrderedLog[Reading] = OrderedLog("readings", engine, type=Reading)
    await log.extend([Reading(sensor, 71.5) for sensor in sensors], id="-".join(sensors)[:80])


def sent(engine: Engine, queue: str = "orders") -> list[Message]:
    return [task.message for task in engine.broker.peek(queue, 0, 100)]


class Losing:
    """A send whose answers are lost, the first times."""

    def __init__(self, queue: QueueRef, lost_count: int) -> None:
        self._send = queue.send
        self._lost_count = lost_count
        self.calls: list[list[Output]] = []
        self.queue = replace(queue, send=self.send)

    async def send(self, outputs: Sequence[Output]) -> None:
        self.calls.append(list(outputs))
        await self._send(outputs)
        if len(self.calls) <= self._lost_count:
            raise OutcomeUnknown("the answer was lost")


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
async def test_each_entry_is_a_message_of_its_steps_id_and_time(engine: Engine, scope: NarrowScope | str) -> None:
    engine.declare(QueueSettings("orders"))
    backend = engine if scope == "engine" else NarrowEngine(engine, scope)  # type: ignore[arg-type]  # the other two
    await filled(engine, "a", "b")
    made = processor(engine, backend.queue("orders"))
    await made.run_until_idle(seconds=5)
    kept = await made.replica().look()
    assert kept is not None and kept.register.outs == []
    id = step_id("orders", 1, "orders")
    assert [m.outbox_id for m in sent(engine)] == [f"{id}-0", f"{id}-1"]
    assert [m.type for m in sent(engine)] == ["Order", "Order"]
    assert [m.body for m in sent(engine)] == [b'{"sensor":"%s","degrees":71.5}' % s for s in (b"a", b"b")]
    assert {m.created_ms for m in sent(engine)} == {kept.register.now}


HOUR_MS = 3_600_000


async def test_messages_are_dated_by_who_took_their_step_and_not_by_who_sends_them(engine: Engine) -> None:
    engine.declare(QueueSettings("orders"))
    plan, store, now_ms = processor(engine, engine.queue("orders")).plan, engine.store(), engine.now_ms()
    ahead, right = (
        Replica(plan, store, now_ms=partial(int, ms), new_id=lambda: uuid4().hex) for ms in (now_ms + HOUR_MS, now_ms)
    )
    await filled(engine, "a")
    assert await ahead.step() is Progress.WON
    await filled(engine, "b")
    assert await right.step() is Progress.WON  # which sends "a"
    assert right.known is not None and right.known.register.now == now_ms + HOUR_MS
    await ahead.look()
    assert await ahead.step() is Progress.WON  # which sends "b"
    times = {message.body[11:12]: message.created_ms - now_ms for message in sent(engine)}
    assert times == {b"a": HOUR_MS, b"b": 0}


async def test_a_clock_that_agrees_is_not_in_the_register(engine: Engine) -> None:
    engine.declare(QueueSettings("orders"))
    plan, store, now_ms = processor(engine, engine.queue("orders")).plan, engine.store(), engine.now_ms()
    for ms, sensor in ((now_ms + 900, "a"), (now_ms, "b")):
        await filled(engine, sensor)
        replica = Replica(plan, store, now_ms=partial(int, ms), new_id=lambda: uuid4().hex)
        assert await replica.step() is Progress.WON
        found = await store.read(replica.register.key)
        assert found is not None and b'"clock"' not in found.body


async def test_a_lost_answer_is_repeated_under_the_same_ids_by_any_replica(engine: Engine) -> None:
    engine.declare(QueueSettings("orders"))
    await filled(engine, "a", "b")
    losing = Losing(engine.queue("orders"), 1)
    made = processor(engine, losing.queue)
    first, second = made.replica(), made.replica()
    assert await first.step() is Progress.WON
    with pytest.raises(OutcomeUnknown):
        await first.step()
    assert await second.step() is Progress.WON
    assert losing.calls[0] == losing.calls[1]
    assert await second.step() is Progress.IDLE


async def test_a_handler_takes_each_message_once_whatever_was_repeated(engine: Engine) -> None:
    app = App("shop")
    app.queue("orders")

    @app.handler("orders", key="sensor")
    def take(message: Order, state: Seen) -> None:
        state.count += 1

    async with Worker(app, engine) as worker:
        await filled(engine, "a", "a", "b")
        losing = Losing(engine.queue("orders"), 2)
        await processor(engine, losing.queue).run_until_idle(seconds=5)
        await worker.wait_idle()
        assert len(losing.calls) == 3
        client = Client(app, engine)
        a, b = await client.state(Seen, "a"), await client.state(Seen, "b")
        assert a is not None and b is not None and (a.count, b.count) == (2, 1)


async def test_keys_type_and_schema_are_those_of_the_queue(engine: Engine) -> None:
    engine.declare(QueueSettings("orders", "per_key"))
    await filled(engine, "a", "b")
    queue = engine.queue("orders", key=lambda value: value.sensor, type="order", version=2)
    await processor(engine, queue).run_until_idle(seconds=5)
    assert [(m.session_id, m.type, m.schema) for m in sent(engine)] == [("a", "order", 2), ("b", "order", 2)]


async def test_a_queue_ordered_by_key_needs_a_key(engine: Engine) -> None:
    engine.declare(QueueSettings("orders", "per_key"))
    with pytest.raises(NotRegistrable, match="key="):
        engine.queue("orders")


async def test_a_missing_queue_stops_the_processor_and_loses_nothing(engine: Engine) -> None:
    await filled(engine, "a")
    made = processor(engine, engine.queue("orders"))
    with pytest.raises(UnknownDestination):
        await made.run_until_idle(seconds=5)
    engine.declare(QueueSettings("orders"))
    await made.run_until_idle(seconds=5)
    assert len(sent(engine)) == 1


async def test_a_large_body_goes_to_a_blob_once(engine: Engine) -> None:
    engine.declare(QueueSettings("orders"))
    await filled(engine, "a" * 300_000)
    losing = Losing(engine.queue("orders"), 1)
    await processor(engine, losing.queue).run_until_idle(seconds=5)
    (message, again) = sent(engine)
    assert message.claim == again.claim and message.claim and not message.body
    found = await engine.blobs.read(message.claim, bytes_max=1 << 20)
    assert found is not None and b"a" * 300_000 in found


async def nowhere(_: Sequence[Output]) -> None:
    raise AssertionError("nothing is to be sent")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Order("a", math.inf), "finite"),
        ({"sensor": "a"}, "dataclass"),
        (Order("", 1.0), "key"),
        (Order("k" * 5_000, 1.0), "shorter"),
        (Order("\ud800", 1.0), "cannot be sent"),
        (Order("a", {"text": "x" * 200_000}), "blob store"),  # type: ignore[arg-type]  # a large body
    ],
)
def test_what_cannot_be_a_message_is_refused_before_the_swap(value: object, text: str) -> None:
    output = QueueOutput(QueueRef("orders", nowhere, key=lambda each: each.sensor))
    with pytest.raises(PoisonMessage, match=text):
        output.out("orders", [value])


async def test_a_handler_whose_message_cannot_be_sent_fails_and_sends_nothing(engine: Engine) -> None:
    def bad(seen: Seen, inputs: Inputs, step: Step) -> None:
        step.emit("orders", Order("a", math.nan))

    engine.declare(QueueSettings("orders"))
    await filled(engine, "a")
    replica = processor(engine, engine.queue("orders"), bad).replica()
    with pytest.raises(HandlerFailed, match="finite"):
        for _ in range(100):
            await replica.step()
    assert sent(engine) == []


async def test_keys_that_are_too_many_for_the_register_fail_the_handler(engine: Engine) -> None:
    def many(seen: Seen, inputs: Inputs, step: Step) -> None:
        for n in range(600):
            step.emit("orders", Order(f"{n:04}", 1.0))

    engine.declare(QueueSettings("orders", "per_key"))
    await filled(engine, "a")
    queue = engine.queue("orders", key=lambda value: value.sensor * 1_000)
    replica = processor(engine, queue, many).replica()
    with pytest.raises(HandlerFailed, match="register holds"):
        for _ in range(100):
            await replica.step()


def test_a_backend_is_no_output_but_its_queue_is() -> None:
    engine = Engine.in_memory()
    with pytest.raises(NotRegistrable, match="queue"):
        output_of("orders", engine)
    assert isinstance(output_of("orders", engine.queue("orders")), QueueOutput)
