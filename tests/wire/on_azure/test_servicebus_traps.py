"""What the real SDK and a broker do to whoever sends, provoked: each would lose, double or change messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from outbox.azure.servicebus import sending, sources
from outbox.azure.servicebus.bus import wall_ms
from outbox.azure.servicebus.links import TOO_LATE
from outbox.engine.entities import TopicSettings
from outbox.errors import OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination
from outbox.message import Message
from outbox.ports import Output, Settle
from tests.wire.on_azure.bus_calls import ORDERED, QUEUE, ids, install, output, received
from tests.wire.on_azure.ground import BusGround, bus_ground


@pytest_asyncio.fixture
async def ground() -> AsyncIterator[BusGround]:
    async with bus_ground() as found:
        yield found


async def test_many_tasks_on_one_bus_send_each_message_once(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's sender, used so, loses answers and doubles messages."""
    for limit in ("SEND_S", "SEND_WITHIN_S"):
        monkeypatch.setattr(sending, limit, 3.0)  # what is lost need not be waited for so long
    for module in (sending, sources):
        monkeypatch.setattr(module, "CLOSE_S", 0.5)
    bus = ground.bus()
    await bus.send([output("first")])

    async def send(task: int) -> None:
        for n in range(60):
            await bus.send([output(f"{task}-{n}")])

    async with asyncio.timeout(30):
        await asyncio.gather(*(send(task) for task in range(8)))
    assert sorted(ids(ground)) == sorted(["first", *(f"{task}-{n}" for task in range(8) for n in range(60))])


async def test_a_batch_is_one_request_and_keeps_its_order(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(50)])
    assert ids(ground) == [str(n) for n in range(50)]
    assert bus.usage.by_kind["send"].count == 1


async def test_what_does_not_fit_one_batch_goes_in_several(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n), properties={"pad": "x" * 12_000}) for n in range(110)])
    assert ids(ground) == [str(n) for n in range(110)]
    assert 2 <= bus.usage.by_kind["send"].count <= 10


async def test_more_than_one_batch_may_count_arrives_whole_and_in_order(ground: BusGround) -> None:
    bus = ground.bus()
    count = 2 * sending.BATCH_COUNT_MAX + 5
    await bus.send([output(str(n)) for n in range(count)])
    assert ids(ground) == [str(n) for n in range(count)]
    assert bus.usage.by_kind["send"].count == 3


async def test_a_message_over_the_limit_is_refused_and_the_sender_works_on(ground: BusGround) -> None:
    bus = ground.bus()
    with pytest.raises(TooLarge, match="blob"):
        await bus.send([Output(QUEUE, 0, Message(body=b"x" * (ground.server.limits.message_size_max_bytes + 1)))])
    await bus.send([output("a")])
    assert ids(ground) == ["a"]


async def test_a_send_whose_answer_is_lost_is_unknown_and_the_next_works(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_S", 0.5)
    bus = ground.bus()
    install(ground, kind="lost-reply", operation="send")
    with pytest.raises(OutcomeUnknown):
        await bus.send([output("a")])
    await bus.send([output("a")])
    assert ids(ground) == ["a", "a"]


@pytest.mark.parametrize("kind", ["reset", "detach"])
async def test_a_connection_that_breaks_under_a_send_leaves_it_unknown(ground: BusGround, kind: Any) -> None:
    bus = ground.bus()
    await bus.send([output("first")])
    install(ground, kind=kind, operation="send")
    with pytest.raises(OutcomeUnknown):
        await bus.send([output("a")])
    await bus.send([output("a")])
    assert ids(ground) == ["first", "a"]


async def test_a_connection_that_has_gone_silent_is_given_up_after_one_send(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_S", 0.5)
    bus = ground.bus()
    await bus.send([output("first")])
    install(ground, kind="pause", delay_s=20, operation="send")
    with pytest.raises(OutcomeUnknown):
        await bus.send([output("a")])
    await bus.send([output("b")])
    assert ids(ground)[-1] == "b"


async def test_a_busy_broker_throttles_and_a_missing_queue_is_named(ground: BusGround) -> None:
    bus = ground.bus()
    install(ground, kind="throttled", operation="send")
    with pytest.raises(Throttled) as caught:
        await bus.send([output("a")])
    assert caught.value.retry_after_s > 0
    with pytest.raises(UnknownDestination, match="create=True"):
        await bus.send([output("a", "missing")])
    with pytest.raises(Refused, match="missing"):
        await bus.receive("missing", count_max=1, wait_s=0.1)
    assert ids(ground) == []


async def test_what_failed_behind_something_sent_is_unknown(ground: BusGround) -> None:
    bus = ground.bus()
    with pytest.raises(OutcomeUnknown, match="send all of them again"):
        await bus.send([output("a"), output("b", "missing")])
    assert ids(ground) == ["a"]


@pytest.mark.parametrize("kind", ["throttled", "reset"])
async def test_what_failed_behind_a_first_transfer_is_unknown(ground: BusGround, kind: Any) -> None:
    bus = ground.bus()
    messages = [output(str(n)) for n in range(sending.BATCH_COUNT_MAX + 5)]
    install(ground, kind=kind, operation="send", after=1)
    with pytest.raises(OutcomeUnknown):
        await bus.send(messages)
    assert ids(ground) == [str(n) for n in range(sending.BATCH_COUNT_MAX)]


async def test_a_sender_that_is_cancelled_leaves_the_link_whole(ground: BusGround) -> None:
    bus = ground.bus()
    install(ground, kind="delay", delay_s=0.3, operation="send")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bus.send([output("a")])
    await bus.send([output("b")])
    assert ids(ground) == ["a", "b"]


async def test_a_topic_and_its_subscription_are_addressed_by_name_and_path(ground: BusGround) -> None:
    ground.engine.declare(TopicSettings("news", ("all",)))
    bus = ground.bus()
    await bus.send([output("a", "news")])
    (delivery,) = await received(bus, "news/Subscriptions/all")
    assert delivery.message.identity == "a"
    await bus.settle(delivery, Settle("complete"))
    assert ids(ground, "news/Subscriptions/all") == []


# Properties


async def test_numbers_beyond_32_bits_and_long_ids_arrive(ground: BusGround) -> None:
    bus = ground.bus()
    own: dict[str, Any] = {"large": 1 << 40, "small": -5, "huge": 1 << 70, "none": None}
    sent = Message(body=b"1", outbox_id="i" * 500, session_id="s" * 300, created_ms=1 << 41, properties=own)
    await bus.send([Output(ORDERED, 0, sent)])
    (found,) = await received(bus, ORDERED)
    assert (found.message.identity, found.message.created_ms) == ("i" * 500, 1 << 41)
    assert found.message.properties == {"large": 1 << 40, "small": -5, "huge": str(1 << 70), "none": None}
    assert len(found.message.session_id) == 64


async def test_messages_of_foreign_senders_are_read_as_the_engine_reads_them(ground: BusGround) -> None:
    bus = ground.bus()
    value = AmqpAnnotatedMessage(
        value_body="text",
        properties=AmqpMessageProperties(message_id=UUID(int=7), correlation_id="c"),
        application_properties={"outbox-created": "1700000000000", "outbox-hops": -1, "outbox-type": 5, "raw": b"x"},
    )
    async with ground.namespaces[0].sender(QUEUE) as sender:
        await sender.send_messages(value)
        await sender.send_messages(AmqpAnnotatedMessage(data_body=[b"two ", b"parts"]))
    found = {one.message.body: one.message for one in await received(bus, count=2)}
    theirs = {task.message.body: task.message for task in ground.engine.broker.peek(QUEUE, 0, 10)}
    assert set(found) == set(theirs) == {b"text", b"two parts"}
    for body, message in found.items():
        for name in ("message_id", "outbox_id", "created_ms", "hops", "type", "correlation_id", "session_id"):
            assert getattr(message, name) == getattr(theirs[body], name), name
    assert found[b"text"].created_ms == 1_700_000_000_000


async def test_a_worker_whose_clock_is_ahead_of_the_locks_is_logged(
    ground: BusGround, caplog: pytest.LogCaptureFixture
) -> None:
    bus = ground.bus()
    await bus.send([output("a"), output("b")])
    bus._now_ms = lambda: wall_ms() + 600_000
    assert await bus.receive(QUEUE, count_max=2, wait_s=0.5) == []
    assert [record.message for record in caplog.records if "clock" in record.message] == [TOO_LATE]
