"""What the real SDK and a broker do to whoever receives and settles, provoked: each would lose or double messages."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from outbox.azure.servicebus import links
from outbox.errors import LockLost, OutcomeUnknown, Unreachable
from outbox.ports import Delivery, Settle
from tests.wire.on_azure.bus_calls import ORDERED, QUEUE, ids, install, output, received
from tests.wire.on_azure.ground import BusGround


async def test_a_settlement_does_not_wait_behind_a_receiver_that_waits(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SLICE_S", 3.0)
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(10)])
    deliveries = await received(bus, count=10)
    waiting = asyncio.create_task(bus.receive(QUEUE, count_max=5, wait_s=5))
    await asyncio.sleep(0.05)
    started_s = time.monotonic()
    for delivery in deliveries:
        await bus.settle(delivery, Settle("complete"))
    assert time.monotonic() - started_s < 1.5  # behind the receiver it would take as long as that waits
    await bus.send([output("last")])
    assert [found.message.identity for found in await waiting] == ["last"]


@pytest.mark.parametrize("how", ["complete", "abandon", "defer"])
async def test_a_settlement_whose_answer_is_lost_is_asked_for_again(
    ground: BusGround, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.azure.servicebus.namespace._LINK", {"keep_alive": 0, "timeout": 0.5})
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


async def test_what_was_read_ahead_goes_back_uncounted_when_a_bus_is_closed(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, other = ground.bus(), ground.bus()
    await bus.send([output(str(n)) for n in range(10)])
    (first,) = await received(bus)
    await bus.settle(first, Settle("complete"))
    wanted: list[links.Link] = []
    want = links.Link.want

    def cancel(link: links.Link, count: int) -> None:  # the caller is gone before what it wants is there
        want(link, count)
        task = asyncio.current_task()
        assert task is not None and task.cancel()
        wanted.append(link)

    with monkeypatch.context() as patch:
        patch.setattr(links.Link, "want", cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(bus.receive(QUEUE, count_max=5, wait_s=5))
    async with asyncio.timeout(10):
        while len(wanted[0].ready) < 5:  # noqa: ASYNC110  # no event says that the pump has read them
            await asyncio.sleep(0.01)
    await bus.close()
    found = await received(other, count=9, within_s=3)
    assert sorted(one.message.identity for one in found) == [str(n) for n in range(1, 10)]
    assert {one.delivery_count for one in found} == {0}


async def test_what_was_read_ahead_and_lost_its_lock_is_not_given_out(ground: BusGround) -> None:
    bus = ground.bus(now_ms=ground.engine.now_ms)
    await bus.send([output(str(n)) for n in range(4)])
    (first,) = await received(bus)
    await bus.settle(first, Settle("complete"))
    await asyncio.sleep(0.05)  # the others are on this side by now, under locks
    await ground.wait(61)
    found = await received(bus, count=3)
    assert all(one.locked_until_ms > ground.engine.now_ms() for one in found)
    for delivery in found:
        await bus.settle(delivery, Settle("complete"))
    assert ids(ground) == []


async def test_a_message_released_until_a_time_waits_under_its_lock(ground: BusGround) -> None:
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


async def test_a_broker_that_goes_away_is_reported_and_a_bus_still_closes(ground: BusGround) -> None:
    bus = ground.bus()
    await received(bus, within_s=0.1)
    await ground.server.__aexit__(None, None, None)
    with pytest.raises((OutcomeUnknown, Unreachable)):  # as its link has noticed, or not
        await received(bus, within_s=3)
    async with asyncio.timeout(links.CLOSE_S * 3):
        await bus.close()
