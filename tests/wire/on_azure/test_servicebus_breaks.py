"""Connections and locks of Service Bus that break while messages are out: the bus goes on, and so does every key."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.azure.servicebus.dead_letters import ServiceBusDeadLetters
from outbox.azure.servicebus.links import Link
from outbox.azure.servicebus.sources import SessionSource, Tasks
from outbox.engine.entities import QueueSettings
from outbox.errors import LockLost, OutboxError, OutcomeUnknown
from outbox.ports import Delivery, Settle
from tests.wire.on_azure.bus_calls import ORDERED, QUEUE, install, output, received
from tests.wire.on_azure.ground import BusGround


def link_of(bus: ServiceBusBus, queue: str) -> Link:
    source: Any = bus._sources[queue]
    found = source._links[0] if isinstance(source, SessionSource) else source._link
    assert found is not None
    return found


async def broken(receiver: Any) -> None:
    """Break the connection of a receiver, unseen until somebody uses it."""
    receiver._handler._connection._transport.writer.transport.abort()
    await asyncio.sleep(0.1)


async def test_giving_back_over_a_broken_connection_fails_as_the_port_says_and_the_bus_goes_on(
    ground: BusGround,
) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(4)])
    deliveries = await received(bus, count=4)
    await broken(link_of(bus, QUEUE).receiver)
    await bus.settle(deliveries[0], Settle("release"))  # the socket takes it, and nobody can tell
    with pytest.raises(OutcomeUnknown):
        await bus.settle(deliveries[1], Settle("release"))
    with pytest.raises(LockLost):
        await bus.settle(deliveries[2], Settle("release"))
    await bus.send([output("next")])
    assert "next" in {one.message.identity for one in await received(bus, count=1)}


async def test_no_other_connection_is_opened_under_messages_that_are_out(ground: BusGround) -> None:
    """The SDK would open one, whose deliveries have the same numbers, and trip over two settlements under one."""
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(6)])
    first, second, third = await received(bus, count=3)
    link = link_of(bus, QUEUE)
    install(ground, kind="reset", operation="settle")
    with pytest.raises(OutcomeUnknown):
        await bus.settle(first, Settle("complete"))
    with pytest.raises(LockLost, match="its link is gone"):
        await bus.settle(second, Settle("complete"))
    with suppress(OutcomeUnknown):  # it says so once
        await bus.receive(QUEUE, count_max=1, wait_s=0.1)
    await bus.send([output("next")])
    assert "next" in {one.message.identity for one in await received(bus, count=1)}
    assert link_of(bus, QUEUE) is not link
    with pytest.raises(LockLost):
        await bus.settle(third, Settle("complete"))
    assert link.receiver._handler is None  # and none was opened since


@pytest.mark.parametrize("error", [KeyError(90), RuntimeError("dictionary changed size during iteration")])
async def test_what_the_sdk_trips_over_within_itself_leaves_a_settlement_unknown(
    ground: BusGround, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were seen where several settlements were in flight on a connection that broke."""
    bus = ground.bus()
    await bus.send([output("a")])
    (delivery,) = await received(bus)
    link = link_of(bus, QUEUE)

    async def trips(message: Any) -> None:
        raise error

    monkeypatch.setattr(link.receiver, "complete_message", trips)
    with pytest.raises(OutcomeUnknown):
        await bus.settle(delivery, Settle("complete"))
    with suppress(OutcomeUnknown):
        await bus.receive(QUEUE, count_max=1, wait_s=0.1)
    await bus.send([output("next")])
    assert "next" in {one.message.identity for one in await received(bus, count=1)}


async def test_a_link_whose_connection_is_broken_closes_without_failing(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(6)])
    await received(bus, count=1)
    link = link_of(bus, QUEUE)
    link.want(3)
    await asyncio.sleep(0.5)
    assert len(link.ready) >= 2  # closing gives them back
    await broken(link.receiver)
    await bus.close()
    assert link.receiver._shutdown.is_set()  # it was closed, not left behind


async def test_dead_letters_that_cannot_be_released_fail_nothing(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(3)])
    for delivery in await received(bus, count=3):
        await bus.settle(delivery, Settle("dead-letter", reason="test"))
    dead_letters = ServiceBusDeadLetters(ground.namespaces[0], bus)
    first = (await dead_letters.list(QUEUE))[0]
    async with dead_letters._taken(QUEUE, first.sequence) as (receiver, _, others):
        assert len(others) == 2  # they are given back when this ends
        await broken(receiver)


SHORT = "short-ordered"


async def one_out(ground: BusGround, lock_s: int) -> tuple[ServiceBusBus, Delivery]:
    """A bus with room for one session, which has a message out, and a message of another session that waits."""
    ground.engine.declare(QueueSettings(SHORT, ordering="per_key", lock_s=lock_s))
    bus = ground.bus(session_count_max=1)
    bus.order([SHORT])
    await bus.send([output("a", SHORT, session_id="a")])
    (delivery,) = await received(bus, SHORT)
    await bus.send([output("b", SHORT, session_id="b")])
    return bus, delivery


async def all_done(bus: ServiceBusBus, within_s: float = 20.0) -> set[str]:
    """What comes in that time, each of it completed."""
    seen: set[str] = set()
    deadline_s = time.monotonic() + within_s
    while len(seen) < 2 and time.monotonic() < deadline_s:
        with suppress(OutboxError):  # a link that broke says so, once
            for delivery in await bus.receive(SHORT, count_max=5, wait_s=0.5):
                seen.add(delivery.message.identity)  # completing it may have had effect, though it says otherwise
                await bus.settle(delivery, Settle("complete"))
    return seen


@pytest.mark.parametrize("kind", ["throttled", "reset"])
async def test_what_rests_comes_back_early_when_its_lock_cannot_be_kept(ground: BusGround, kind: str) -> None:
    bus, delivery = await one_out(ground, lock_s=5)
    install(ground, kind=kind, operation="manage/renew-session-lock", count=None)
    await bus.settle(delivery, Settle("release", due_ms=delivery.enqueued_ms + 120_000))
    waiting = asyncio.create_task(all_done(bus, within_s=12))
    await asyncio.sleep(5)
    await ground.wait(6)  # where the connection broke, the lock has to run out
    assert await waiting == {"a", "b"}
    assert bus.usage.by_kind["renew"].failed_count >= 1


async def test_a_renewal_that_is_throttled_once_is_tried_again_and_the_rest_goes_on(ground: BusGround) -> None:
    bus, delivery = await one_out(ground, lock_s=4)
    install(ground, kind="throttled", operation="manage/renew-session-lock", count=1)
    await ground.wait(2)  # a renewal moves the end of the lock
    await bus.settle(delivery, Settle("release", due_ms=time.time_ns() // 1_000_000 + 4_500))
    assert await received(bus, SHORT, within_s=4) == []  # neither has the rest ended, nor the session
    assert await all_done(bus) == {"a", "b"}


async def test_a_session_whose_message_is_never_settled_gives_its_room_back(ground: BusGround) -> None:
    bus, delivery = await one_out(ground, lock_s=1)
    await asyncio.sleep(1.2)
    await ground.wait(2)
    assert await all_done(bus) == {"a", "b"}
    with pytest.raises(LockLost):
        await bus.settle(delivery, Settle("complete"))


async def test_a_session_whose_message_is_held_no_more_gives_its_room_back(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, delivery = await one_out(ground, lock_s=60)
    monkeypatch.setattr("outbox.azure.servicebus.bus.LOCKED_COUNT_MAX", 1)
    await bus.send([output("other")])
    await received(bus)
    with pytest.raises(LockLost):
        await bus.settle(delivery, Settle("complete"))
    assert await all_done(bus) == {"a", "b"}


async def test_nothing_of_a_session_overtakes_its_message_that_is_held_no_more(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = ground.bus()
    await bus.send([output(f"a{n}", ORDERED, session_id="a") for n in range(2)])
    (first,) = await received(bus, ORDERED)
    monkeypatch.setattr("outbox.azure.servicebus.bus.LOCKED_COUNT_MAX", 1)
    await bus.send([output("other")])
    await received(bus)
    (again,) = await received(bus, ORDERED, within_s=20)
    assert (first.message.identity, again.message.identity) == ("a0", "a0")


async def test_a_task_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise RuntimeError("nobody waits for this")

    tasks = Tasks()
    tasks.start(fails())
    await tasks.close()
    assert "nobody waits for this" in caplog.text
