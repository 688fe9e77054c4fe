"""What the real SDK and a broker do to a worker, provoked: each would lose, double or delay messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from outbox.azure import servicebus_links, servicebus_sending, servicebus_sources
from outbox.azure.servicebus import ServiceBusBus
from outbox.emulator.faults import FaultRule
from outbox.engine.entities import TopicSettings
from outbox.errors import LockLost, OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination
from outbox.message import Message
from outbox.ports import Delivery, Output, Settle
from tests.wire.on_azure.ground import BusGround, bus_ground

QUEUE, ORDERED = "contract", "contract-ordered"


@pytest_asyncio.fixture
async def ground() -> AsyncIterator[BusGround]:
    async with bus_ground() as found:
        yield found


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
    return [task.message.identity for task in ground.engine.peek(queue, 0, 1_000)]


# Sending


async def test_many_tasks_on_one_bus_send_each_message_once(ground: BusGround) -> None:
    """The SDK's sender, used so, loses answers and doubles messages."""
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


async def test_a_message_over_the_limit_is_refused_and_the_sender_works_on(ground: BusGround) -> None:
    bus = ground.bus()
    with pytest.raises(TooLarge, match="blob"):
        await bus.send([Output(QUEUE, 0, Message(body=b"x" * (ground.server.limits.message_size_max_bytes + 1)))])
    await bus.send([output("a")])
    assert ids(ground) == ["a"]


async def test_a_send_whose_answer_is_lost_is_unknown_and_the_next_works(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus_sending, "SEND_S", 0.5)
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
    theirs = {task.message.body: task.message for task in ground.engine.peek(QUEUE, 0, 10)}
    assert set(found) == set(theirs) == {b"text", b"two parts"}
    for body, message in found.items():
        for name in ("message_id", "outbox_id", "created_ms", "hops", "type", "correlation_id", "session_id"):
            assert getattr(message, name) == getattr(theirs[body], name), name
    assert found[b"text"].created_ms == 1_700_000_000_000


# Settling


async def test_a_settlement_does_not_wait_behind_a_receiver_that_waits(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(20)])
    deliveries = await received(bus, count=20)
    waiting = asyncio.create_task(bus.receive(QUEUE, count_max=5, wait_s=5))
    await asyncio.sleep(0.05)
    started_s = time.monotonic()
    for delivery in deliveries:
        await bus.settle(delivery, Settle("complete"))
    assert time.monotonic() - started_s < 1.0  # behind the receiver each would take a fifth of a second
    await bus.send([output("last")])
    assert [found.message.identity for found in await waiting] == ["last"]


@pytest.mark.parametrize("how", ["complete", "abandon", "defer"])
async def test_a_settlement_whose_answer_is_lost_is_asked_for_again(
    ground: BusGround, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.azure.servicebus_namespace._LINK", {"keep_alive": 0, "timeout": 0.5})
    bus = ground.bus()
    await bus.send([output("a")])
    (delivery,) = await received(bus)
    install(ground, kind="lost-disposition", operation="settle")
    with pytest.raises(LockLost):  # it was applied; the SDK then asks for it by another way, and it is gone
        await bus.settle(delivery, Settle(how))
    assert ids(ground) == ([] if how == "complete" else ["a"])


async def test_a_link_that_breaks_loses_its_locks_and_another_goes_on(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("a")])
    (delivery,) = await received(bus)
    install(ground, kind="reset", operation="settle")
    with pytest.raises((LockLost, OutcomeUnknown)):
        await bus.settle(delivery, Settle("complete"))
    with pytest.raises(LockLost):
        await bus.renew(delivery)
    await bus.send([output("b")])
    found: list[Delivery] = []
    for _ in range(20):
        try:
            found += await received(bus, within_s=1)
        except OutcomeUnknown:
            continue  # the link that broke says so, once
        break
    assert [one.message.identity for one in found] == ["b"]
    await ground.wait(61)
    (again,) = await received(bus)
    assert (again.message.identity, again.delivery_count) == ("a", 1)


async def test_a_receiver_that_is_cancelled_loses_nothing(ground: BusGround) -> None:
    bus = ground.bus()
    await received(bus, within_s=0.2)
    for n in range(5):
        waiting = asyncio.create_task(bus.receive(QUEUE, count_max=1, wait_s=5))
        await asyncio.sleep(0.02)
        await bus.send([output(str(n))])
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if not waiting.cancelled() and waiting.result():
            await bus.settle(waiting.result()[0], Settle("complete"))
            continue
        (delivery,) = await received(bus)
        assert (delivery.message.identity, delivery.delivery_count) == (str(n), 0)
        await bus.settle(delivery, Settle("complete"))
    assert ids(ground) == []


async def test_what_was_read_ahead_goes_back_uncounted_when_a_bus_is_closed(ground: BusGround) -> None:
    bus, other = ground.bus(), ground.bus()
    await bus.send([output(str(n)) for n in range(10)])
    (first,) = await received(bus)
    await bus.settle(first, Settle("complete"))
    with suppress(TimeoutError):
        async with asyncio.timeout(0.0001):  # whoever wanted more is gone before they are there
            await bus.receive(QUEUE, count_max=5, wait_s=5)
    await asyncio.sleep(0.1)
    await bus.close()
    found = await received(other, count=9)
    assert sorted(one.message.identity for one in found) == [str(n) for n in range(1, 10)]
    assert {one.delivery_count for one in found} == {0}


async def test_a_message_given_back_until_a_time_rests_under_its_lock(ground: BusGround) -> None:
    bus = ground.bus()
    for queue in (QUEUE, ORDERED):
        await bus.send([output("a", queue, session_id="s"), output("b", queue, session_id="s")])
        (first, *rest) = await received(bus, queue, count=2)
        for delivery in rest:
            await bus.settle(delivery, Settle("release"))
        started_s = time.monotonic()
        await bus.settle(first, Settle("abandon", due_ms=round(time.time() * 1_000) + 700))
        found: list[Delivery] = []
        while not any(one.message.identity == "a" for one in found):
            for delivery in await bus.receive(queue, count_max=1, wait_s=0.2):
                found.append(delivery)
                await bus.settle(delivery, Settle("complete"))
        assert time.monotonic() - started_s > 0.6
        assert found[-1].delivery_count == 1
        if queue == ORDERED:
            assert [one.message.identity for one in found] == ["a"], "its successor overtook it"


async def test_closing_does_not_wait_for_what_rests(ground: BusGround) -> None:
    bus, other = ground.bus(), ground.bus()
    await bus.send([output("a")])
    (delivery,) = await received(bus)
    await bus.settle(delivery, Settle("release", due_ms=round(time.time() * 1_000) + 60_000))
    started_s = time.monotonic()
    await bus.close()
    assert time.monotonic() - started_s < 3
    (again,) = await received(other)
    assert again.delivery_count == 0


# Sessions


async def test_sessions_are_ordered_and_many_are_held_at_once(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(f"{key}{n}", ORDERED, session_id=key) for n in range(5) for key in "abcd"])
    order: dict[str, list[str]] = {}
    held_at_once = 0
    while sum(map(len, order.values())) < 20:
        parts = await asyncio.gather(*(bus.receive(ORDERED, count_max=2, wait_s=1) for _ in range(4)))
        keys = [{one.message.session_id for one in part} for part in parts if part]
        assert len(set().union(*keys)) == sum(map(len, keys)), "two receivers have one session"
        held_at_once = max(held_at_once, len(keys))
        for delivery in (one for part in parts for one in part):
            order.setdefault(delivery.message.session_id, []).append(delivery.message.identity)
            await bus.settle(delivery, Settle("complete"))
    assert order == {key: [f"{key}{n}" for n in range(5)] for key in "abcd"}
    assert held_at_once > 1


@pytest.mark.parametrize("how", ["abandon", "release"])
async def test_what_was_read_ahead_of_a_session_does_not_overtake_what_is_given_back(
    ground: BusGround, how: Any
) -> None:
    bus = ground.bus()
    await bus.send([output(f"a{n}", ORDERED, session_id="a") for n in range(4)])
    order: list[str] = []
    for turn in range(4):
        (delivery,) = await received(bus, ORDERED)
        await asyncio.sleep(0.05)  # the others are on this side by now
        if turn == 0:
            await bus.settle(delivery, Settle(how))
            (delivery,) = await received(bus, ORDERED)
        order.append(delivery.message.identity)
        await bus.settle(delivery, Settle("complete"))
    assert order == ["a0", "a1", "a2", "a3"]


async def test_more_sessions_than_there_is_room_for_take_turns(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus_sources, "CROWDED_QUIET_S", 0.05)
    bus = ground.bus(session_count_max=2)
    await bus.send([output(f"s{n}", ORDERED, session_id=f"s{n}") for n in range(6)])
    seen: list[str] = []
    async with asyncio.timeout(20):
        while len(seen) < 6:
            for delivery in await bus.receive(ORDERED, count_max=5, wait_s=0.5):
                seen.append(delivery.message.identity)
                await bus.settle(delivery, Settle("complete"))
    assert sorted(seen) == [f"s{n}" for n in range(6)]


async def test_no_session_for_a_while_is_no_failure(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicebus_sources, "ACCEPT_S", 0.5)
    bus = ground.bus()
    assert await received(bus, ORDERED, within_s=2) == []
    await bus.send([output("a0", ORDERED, session_id="a")])
    (delivery,) = await received(bus, ORDERED)
    await bus.settle(delivery, Settle("complete"))


async def test_a_session_that_has_been_quiet_is_let_go(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicebus_sources, "QUIET_S", 0.2)
    bus, other = ground.bus(), ground.bus(session_count_max=1)
    await bus.send([output("a0", ORDERED, session_id="a")])
    (delivery,) = await received(bus, ORDERED)
    await bus.settle(delivery, Settle("complete"))
    assert await received(bus, ORDERED, within_s=0.8) == []
    await bus.receive(ORDERED, count_max=1, wait_s=0.1)
    assert bus._sources[ORDERED]._links == []  # type: ignore[attr-defined]  # nothing else shows what is held
    await bus.close()
    await other.send([output("a1", ORDERED, session_id="a")])
    (delivery,) = await received(other, ORDERED)
    assert delivery.message.identity == "a1"


async def test_a_session_whose_lock_is_lost_goes_to_another_receiver(ground: BusGround) -> None:
    bus, other = ground.bus(session_count_max=1), ground.bus()
    await bus.send([output("a0", ORDERED, session_id="a"), output("a1", ORDERED, session_id="a")])
    (first,) = await received(bus, ORDERED)
    assert await received(other, ORDERED, within_s=0.5) == []
    await ground.wait(61)
    (again,) = await received(other, ORDERED)
    assert again.message.identity == "a0"
    with pytest.raises((LockLost, OutcomeUnknown)):
        await bus.settle(first, Settle("complete"))
    await other.settle(again, Settle("complete"))
    assert ids(ground, ORDERED) == ["a1"]


async def test_one_renewal_serves_all_messages_of_a_session(ground: BusGround) -> None:
    bus = ground.bus(now_ms=ground.engine.now_ms)
    await bus.send([output(f"a{n}", ORDERED, session_id="a") for n in range(3)])
    deliveries = await received(bus, ORDERED, count=3)
    await ground.wait(40)
    renewed = [await bus.renew(delivery) for delivery in deliveries]
    assert min(renewed) >= deliveries[0].locked_until_ms
    await ground.wait(40)
    for delivery in deliveries:
        await bus.settle(delivery, Settle("complete"))
    assert ids(ground, ORDERED) == []


async def test_a_broker_that_goes_away_is_told_and_a_bus_still_closes(ground: BusGround) -> None:
    bus = ground.bus()
    await received(bus, within_s=0.1)
    await ground.server.__aexit__(None, None, None)
    with pytest.raises(OutcomeUnknown):
        await received(bus, within_s=3)
    async with asyncio.timeout(servicebus_links.CLOSE_S * 3):
        await bus.close()
