"""What the real SDK and a broker do to sessions, provoked: each would let messages overtake, or keys stand still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusSession

from outbox.azure.servicebus import sources
from outbox.errors import LockLost, OutcomeUnknown
from outbox.ports import Settle
from tests.wire.on_azure.bus_calls import ORDERED, ids, output, received
from tests.wire.on_azure.ground import BusGround


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


async def test_a_session_that_two_receivers_wait_for_goes_to_one_of_them(ground: BusGround) -> None:
    """Both see its first message and wait for what comes right behind it; one wants less than comes."""
    bus, sender = ground.bus(session_count_max=1), ground.bus()
    for turn in range(2):
        waiting = [asyncio.create_task(bus.receive(ORDERED, count_max=count, wait_s=2)) for count in (2, 9)]
        await asyncio.sleep(0.1)
        await sender.send([output(f"{turn}{n}", ORDERED, session_id="a") for n in range(6)])
        first, *others = [part for part in await asyncio.gather(*waiting) if part]
        assert not others, "two receivers have one session"
        part = first
        while part:
            for delivery in part:
                await bus.settle(delivery, Settle("complete"))
            part = await bus.receive(ORDERED, count_max=9, wait_s=1) if ids(ground, ORDERED) else []


@pytest.mark.parametrize("how", ["abandon", "release"])
async def test_what_was_prefetched_of_a_session_does_not_overtake_what_is_released(ground: BusGround, how: Any) -> None:
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
    monkeypatch.setattr(sources, "CROWDED_QUIET_S", 0.05)
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
    monkeypatch.setattr(sources, "ACCEPT_S", 0.5)
    bus = ground.bus()
    assert await received(bus, ORDERED, within_s=2) == []
    await bus.send([output("a0", ORDERED, session_id="a")])
    (delivery,) = await received(bus, ORDERED)
    await bus.settle(delivery, Settle("complete"))


async def test_a_session_that_has_been_quiet_is_let_go(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "QUIET_S", 0.2)
    bus, other = ground.bus(), ground.bus(session_count_max=1)
    await bus.send([output("a0", ORDERED, session_id="a")])
    (delivery,) = await received(bus, ORDERED)
    await bus.settle(delivery, Settle("complete"))
    assert await received(bus, ORDERED, within_s=0.8) == []
    await bus.receive(ORDERED, count_max=1, wait_s=0.1)
    assert bus._sources[ORDERED]._links == []  # type: ignore[union-attr]  # nothing else shows what is held
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


async def test_one_renewal_serves_all_messages_of_a_session(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    renew, sessions = ServiceBusSession.renew_lock, list[str]()

    async def counted(session: ServiceBusSession, **options: Any) -> Any:
        sessions.append(session.session_id)
        return await renew(session, **options)

    monkeypatch.setattr(ServiceBusSession, "renew_lock", counted)
    bus = ground.bus(now_ms=ground.engine.now_ms)
    await bus.send([output(f"a{n}", ORDERED, session_id="a") for n in range(3)])
    deliveries = await received(bus, ORDERED, count=3)
    await ground.wait(40)
    renewed = [await bus.renew(delivery) for delivery in deliveries]
    assert min(renewed) >= deliveries[0].locked_until_ms and sessions == ["a"]
    await ground.wait(40)
    for delivery in deliveries:
        await bus.settle(delivery, Settle("complete"))
    assert ids(ground, ORDERED) == []
