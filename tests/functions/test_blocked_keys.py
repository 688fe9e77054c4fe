"""Keys that stand still under a Functions host: it hands out one message of a session at a time, and counts each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import azure.functions as func
import pytest
from azure.functions.servicebus import ServiceBusMessage
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from outbox import App, Client, Reject, Retries, Retry
from outbox.azure.functions.processor import GivenBack, Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.azure.servicebus.messages import plain
from outbox.emulator.faults import FaultRule, Faults
from outbox.engine.entities import QueueSettings
from tests.wire.on_azure.ground import Place, place

pytestmark = pytest.mark.timeout(90)


@dataclass
class Line:
    book: str
    number: int


@dataclass
class Book:
    lines: list[int] = field(default_factory=list)


class Ground:
    """An application whose keys stop behind a dead letter, and a host in miniature that serves one session of it."""

    def __init__(self, world: Place, processor: Processor, receiver: ServiceBusReceiver, bad: dict[int, Any]) -> None:
        self.world = world
        self.processor = processor
        self.client: Client = processor.client
        self.receiver = receiver
        self.bad = bad
        self.given_back = 0

    async def serve(self) -> None:
        """What a host does: one message of the session at a time; what returns is completed, what raises abandoned."""
        while True:
            for message in await self.receiver.receive_messages(1, max_wait_time=1):
                try:
                    await self.processor.message("lines", as_handed_over(message))
                except GivenBack:
                    self.given_back += 1
                    await self.receiver.abandon_message(message)
                else:
                    await self.receiver.complete_message(message)

    async def send(self, *numbers: int) -> None:
        for number in numbers:
            await self.client.send("lines", Line("red", number), id=f"red-{number}")

    async def block(self, *behind: int) -> None:
        """Have line 0 refused, with these behind it."""
        self.bad[0] = Reject("blot")
        await self.send(0, *behind)
        await self.wait_letter("red-0")

    async def lines(self) -> list[int]:
        found = await self.client.state(Book, "red")
        return found.lines if found is not None else []

    async def wait_lines(self, *numbers: int) -> None:
        """Wait until these lines are there, in their order."""
        await until(lambda: self._has(list(numbers)))

    async def _has(self, numbers: list[int]) -> bool:
        return await self.lines() == numbers

    async def wait_letter(self, id: str) -> None:
        """Wait for a dead letter."""
        await until(lambda: self._has_letter(id))

    async def _has_letter(self, id: str) -> bool:
        return any(dead_letter.id == id for dead_letter in await self.client.dead_letters("lines"))

    def left(self) -> int:
        return len(self.world.servicebus.engine.broker.peek("lines", 0, 10))

    async def has_none_left(self) -> bool:
        return not self.left()


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds that nobody tells."""
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110  # neither a store nor a broker tells
            await asyncio.sleep(0.05)


def as_handed_over(message: ServiceBusReceivedMessage) -> func.ServiceBusMessage:
    """As the host's trigger gives it to Python: its delivery count begins at 1."""
    return ServiceBusMessage(
        body=b"".join(message.body),
        message_id=message.message_id or "",
        session_id=message.session_id,
        sequence_number=message.sequence_number,
        delivery_count=(message.delivery_count or 0) + 1,
        enqueued_time_utc=message.enqueued_time_utc,
        application_properties=plain(message.application_properties),
        user_properties={},
    )


def note_time_given(processor: Any) -> list[float]:
    """Note how long each attempt from now on may take, in seconds."""
    handled, noted = processor._handled, list[float]()

    async def noting(delivery: Any, within_s: float) -> Any:
        noted.append(within_s)
        return await handled(delivery, within_s)

    processor._handled = noting
    return noted


@asynccontextmanager
async def ground(
    *,
    attempt_s: float = 5,
    rest_s: float = 5,
    deliveries: int = 100,
    scope: Literal["partition", "item"] = "partition",
    faults: Faults | None = None,
) -> AsyncIterator[Ground]:
    app, bad = App("books", retry=Retries(limit=3, delays_s=(0.1,))), dict[int, Any]()
    app.queue("lines", "per_key")

    @app.handler("lines", key="book", on_dead_letter="stop_key")
    def write(line: Line, book: Book) -> None:
        if line.number in bad:
            raise bad[line.number]
        book.lines.append(line.number)

    async with place(cosmos_faults=faults) as world, world.connect(scope=scope) as backend:
        world.declare(QueueSettings("lines", ordering="per_key", lock_s=60, max_delivery_count=deliveries))
        settings = FunctionsSettings(lambda: backend, attempt_s=attempt_s, rest_s=rest_s)
        processor = Processor(app, backend, settings, chance=lambda: 0.0)
        await processor.open()
        async with (
            ServiceBusClient.from_connection_string(world.servicebus.connection_string) as client,
            client.get_queue_receiver("lines", session_id="red") as receiver,
        ):
            made = Ground(world, processor, receiver, bad)
            serving = asyncio.create_task(made.serve())
            try:
                yield made
            finally:
                async with asyncio.timeout(20):
                    while not serving.done():  # the SDK swallows a cancellation now and then, and reads on
                        serving.cancel()
                        await asyncio.wait([serving], timeout=1)
                await processor.finish()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.azure.functions.processor.LOOK_FIRST_S", 0.1)
    monkeypatch.setattr("outbox.azure.functions.processor.LOOK_MAX_S", 0.2)


async def test_what_waits_behind_a_dead_letter_keeps_its_deliveries_and_its_order() -> None:
    async with ground(attempt_s=20, rest_s=0.3, deliveries=3) as books:
        await books.block(1, 2, 3)
        await asyncio.sleep(3)  # with a rest of a third of a second all three deliveries had gone after one
        assert books.given_back == 0 and books.left() == 3
        within_s = note_time_given(books.processor)
        began_s = time.monotonic()
        await books.client.discard("lines", "red-0")
        await books.wait_lines(1, 2, 3)
        assert time.monotonic() - began_s < 10, "it looks while it waits"
        assert within_s[0] < 20 and within_s[1:] == [20, 20], "the first has what is left of its lock, no more"
        assert await books.client.dead_letters("lines") == [] and books.given_back == 0


async def test_a_message_that_waits_for_longer_than_its_lock_is_redelivered_and_keeps_its_place() -> None:
    async with ground(attempt_s=0.4, rest_s=0.1) as books:
        await books.block(1, 2)

        async def has_come_again() -> bool:
            return books.given_back >= 2

        await until(has_come_again)
        assert books.left() == 2 and await books.lines() == []
        await books.client.discard("lines", "red-0")
        await books.wait_lines(1, 2)


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_what_is_resubmitted_goes_ahead_of_what_the_host_hands_out_first(
    scope: Literal["partition", "item"],
) -> None:
    async with ground(scope=scope) as books:
        await books.block(1, 2)
        del books.bad[0]
        await books.client.resubmit("lines", "red-0")
        await books.send(3)
        await books.wait_lines(0, 1, 2, 3)
        await until(books.has_none_left)  # the copy that came by the bus too
        assert await books.lines() == [0, 1, 2, 3] and await books.client.dead_letters("lines") == []


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_an_edit_goes_ahead_of_what_the_host_hands_out_first(scope: Literal["partition", "item"]) -> None:
    async with ground(scope=scope) as books:
        await books.block(1)
        await books.client.resubmit("lines", "red-0", message=Line("red", 7))
        await books.wait_lines(7, 1)
        await until(books.has_none_left)  # the copy that came by the bus too
        assert await books.lines() == [7, 1] and await books.client.dead_letters("lines") == []


async def test_what_is_resubmitted_and_fails_is_tried_again_and_what_is_refused_stays() -> None:
    async with ground(attempt_s=20) as books:
        await books.block(1)
        books.bad[0] = ValueError("out of ink")
        await books.client.resubmit("lines", "red-0")
        await books.wait_letter("red-0")  # the resubmission took the first one away
        (dead_letter,) = await books.client.dead_letters("lines")
        assert (dead_letter.reason, dead_letter.description) == ("failed", "ValueError: out of ink")
        assert await books.lines() == []
        await books.client.discard("lines", "red-0")
        await books.wait_lines(1)
        assert books.given_back == 0  # all of its tries were made while one successor stayed


async def test_what_is_resubmitted_and_put_off_is_not_tried_again_before_its_time() -> None:
    tried = list[float]()

    class Later(Retry):
        def __init__(self) -> None:
            super().__init__("no ink yet", after_s=1.5)
            tried.append(time.monotonic())

    async def was_tried() -> bool:
        return bool(tried)

    async with ground(attempt_s=20) as books:
        await books.block(1)
        books.bad[0] = Later
        await books.client.resubmit("lines", "red-0")
        await until(was_tried)
        del books.bad[0]
        await books.wait_lines(0, 1)
        assert len(tried) == 1 and time.monotonic() - tried[0] > 1.4


async def test_a_store_that_is_away_is_not_taken_for_a_decision() -> None:
    faults = Faults()
    async with ground(attempt_s=20, rest_s=1, faults=faults) as books:
        await books.block(1)
        await asyncio.sleep(0.5)
        faults.install(FaultRule(kind="status", status=503, operation="item.read", count=10))
        await asyncio.sleep(1.5)
        assert books.given_back == 0 and faults.fired
        await books.client.discard("lines", "red-0")
        await books.wait_lines(1)


async def test_the_last_deliveries_of_what_waits_are_logged_while_there_is_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with ground(attempt_s=0.3, rest_s=0.1) as books:
        await books.block(1)
        (task,) = books.world.servicebus.engine.broker.peek("lines", 0, 10)
        task.delivery_count = 95

        async def is_told() -> bool:
            return "few deliveries left" in caplog.text

        await until(is_told)
        reported = [one for one in caplog.records if "few deliveries left" in one.message]
        assert vars(reported[0])["id"] == "red-1" and vars(reported[0])["deliveries"] >= 95
        standing = [one for one in caplog.records if "key blocked" in one.message]
        assert vars(standing[0])["deliveries"] >= 1
