"""How many round trips messages take together: by virtual time, in which nothing but round trips takes any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox import Engine, Worker
from outbox.azure.servicebus.bus import ServiceBusBus, wall_ms
from outbox.azure.servicebus.links import AHEAD_COUNT, TOGETHER_COUNT_MAX, Link
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.message import Message
from outbox.ports import Settle, StorePorts
from outbox_bench.measure import Add
from outbox_bench.ours import app
from tests.wire.on_azure.far import FarNamespace, FarReceiver, FarStore, in_virtual_time

RTT_S = 0.03


class Far:
    """A backend of partition scope a round trip away."""

    def __init__(self, engine: Engine, namespace: FarNamespace) -> None:
        ports = NarrowEngine(engine, "partition").ports()
        bus = ServiceBusBus(cast(Any, namespace))
        self._ports = replace(ports, store=cast(Any, FarStore(ports.store, namespace.rtt_s)), bus=bus)

    def ports(self) -> StorePorts:
        """The ports."""
        return self._ports


def rate(concurrency: int, *, batches: int = 8, keys: int = 0, **options: Any) -> tuple[float, FarNamespace]:
    """Messages a second of virtual time, each of another key, or of so many `keys`."""
    namespace = FarNamespace(RTT_S, **options)

    async def handled() -> float:
        async with Engine.in_memory() as engine, Worker(app, Far(engine, namespace), concurrency=concurrency) as worker:
            count = batches * concurrency
            started_s = asyncio.get_running_loop().time()
            namespace.put([message(n, n % keys if keys else None) for n in range(count)])
            while worker.handled_count < count:  # noqa: ASYNC110  # a worker has no such event
                await asyncio.sleep(RTT_S / 10)
            return count / (asyncio.get_running_loop().time() - started_s)

    return in_virtual_time(handled), namespace


def message(n: int, key: int | None = None) -> Message:
    body, kind = app.encode(Add(f"m{n}", f"a{n if key is None else key}", 1))
    return Message(body=body, outbox_id=f"m{n}", type=kind, created_ms=wall_ms())


def test_one_in_flight_costs_a_read_a_batch_a_send_and_a_settlement() -> None:
    found, _ = rate(1, batches=32)
    assert 3.9 < 1 / (found * RTT_S) < 4.4  # round trips a message


def test_the_rate_rises_with_concurrency() -> None:
    """What is in flight together shares transfers and settlements, and the broker sends ahead."""
    one, several, many, most = (rate(concurrency)[0] for concurrency in (1, 16, 64, 256))
    assert several > 12 * one
    assert many > 3 * several
    assert most > 3 * many


def test_messages_of_a_few_keys_are_settled_together() -> None:
    """In turn, a batch of six took six round trips before the next of its key could begin."""
    assert rate(64, keys=10)[0] > 0.75 * rate(64)[0]


def test_outputs_that_wait_for_one_destination_leave_together() -> None:
    _, namespace = rate(64)
    assert sum(namespace.transfers) == 8 * 64
    assert len(namespace.transfers) <= 2 * 8


def test_settlements_are_in_flight_together_up_to_a_limit() -> None:
    _, namespace = rate(256, batches=2)
    assert sorted(namespace.completed) == list(range(1, 2 * 256 + 1))
    assert namespace.receivers[0].settling_count_max == TOGETHER_COUNT_MAX


def on_a_link(work: Callable[[Link, FarReceiver], Awaitable[None]], *, message_count: int, session: bool) -> None:
    """Do something with a link that some messages come by."""

    async def run() -> None:
        namespace = FarNamespace(RTT_S)
        namespace.put([message(n) for n in range(message_count)])
        receiver = namespace.receiver("q", prefetch_count=32)
        if session:
            until = datetime.now(UTC) + timedelta(hours=1)
            receiver.session = SimpleNamespace(session_id="s", locked_until_utc=until)
        link = Link("q", cast(Any, receiver), arrived=lambda: None, now_ms=wall_ms)
        await work(link, receiver)
        await link.close()

    in_virtual_time(run)


async def taken(link: Link, count: int) -> list[Any]:
    """So many messages, when they have come."""
    found: list[Any] = []
    while len(found) < count:
        link.want(count - len(found))
        await asyncio.sleep(RTT_S)
        found += link.take(count - len(found))
    link.want(0)
    return found


def test_the_settlements_of_a_session_are_made_in_turn() -> None:
    async def settle(link: Link, receiver: FarReceiver) -> None:
        how = Settle("complete"), Settle("dead-letter", "why"), Settle("complete")
        await asyncio.gather(*map(link.settle, await taken(link, 3), how))
        assert receiver.settled == ["+1", "-1", "+2", "-2", "+3", "-3"]

    on_a_link(settle, message_count=3, session=True)


@pytest.mark.parametrize("session", [True, False])
def test_no_more_is_sent_ahead_than_was_wanted(session: bool) -> None:
    """Locks run while messages lie here, and of a session no more are handled at once than one commit takes."""

    async def wait(link: Link, receiver: FarReceiver) -> None:
        link.want(100)
        await asyncio.sleep(1)
        assert len(link.ready) == 100
        link.want(0)
        await asyncio.sleep(1)
        for count in (60, 5):
            link.take(count)
            link.want(100)
            await asyncio.sleep(1)
        assert receiver.ready_count_max <= (AHEAD_COUNT if session else 100)

    on_a_link(wait, message_count=1_000, session=session)


def test_what_comes_while_settlements_are_in_flight_is_handed_out() -> None:
    async def settle(link: Link, receiver: FarReceiver) -> None:
        (first,) = await taken(link, 1)  # more have been sent ahead
        settled = asyncio.create_task(link.settle(first, Settle("complete")))
        await asyncio.sleep(RTT_S / 4)
        link.want(20)
        await asyncio.sleep(RTT_S / 4)
        assert len(link.ready) == 20 and not settled.done()
        await settled

    on_a_link(settle, message_count=100, session=False)
