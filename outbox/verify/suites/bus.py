"""The contract of a `MessageBus`: peek-lock, settling, counts, due times, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from outbox.errors import LockLost
from outbox.message import Message
from outbox.ports import Delivery, MessageBus, Output, Settle
from outbox.verify.suites.clauses import Clause, Make, Wait, check, promise

BRIEF_S = 0.05


@dataclass(frozen=True, slots=True)
class BusFixture:
    """The parts that a check of a bus needs beside it.

    `queue` is unordered and `ordered` ordered by key; both exist and are empty, with locks of `lock_s` seconds.
    `now_ms` tells the bus's time and `wait` lets it pass; `dead_letters` gives (id, reason) of a queue's dead letters.
    """

    bus: MessageBus
    now_ms: Callable[[], int]
    wait: Wait
    dead_letters: Callable[[str], Awaitable[list[tuple[str, str]]]]
    queue: str = "contract"
    ordered: str = "contract-ordered"
    lock_s: float = 60.0

    async def send(self, *ids: str, due_ms: int = 0) -> None:
        """Send plain messages to the unordered queue."""
        await self.bus.send([Output(self.queue, due_ms, plain(id)) for id in ids])

    async def received(self, count_max: int = 10, *, queue: str = "") -> list[Delivery]:
        """The deliveries that can be received now."""
        return list(await self.bus.receive(queue or self.queue, count_max=count_max, wait_s=BRIEF_S))

    async def one(self) -> Delivery:
        """The one message that can be received now."""
        found = await self.received()
        promise(len(found) == 1, f"one message could be received, {ids_of(found)} were")
        return found[0]

    async def is_lost(self, delivery: Delivery) -> bool:
        """Whether the bus says that a lock is not ours any more."""
        for call in (self.bus.settle(delivery, Settle("complete")), self.bus.renew(delivery)):
            try:
                await call
            except LockLost:
                continue
            return False
        return True


def plain(id: str, session: str = "") -> Message:
    """A message that holds nothing but its id."""
    return Message(body=id.encode(), outbox_id=id, session_id=session)


def ids_of(deliveries: Sequence[Delivery]) -> list[str]:
    """The identities of deliveries, in their order."""
    return [delivery.message.identity for delivery in deliveries]


async def check_message_bus(make: Make[BusFixture], *, clauses: Sequence[Clause[BusFixture]] | None = None) -> None:
    """Check a message bus; `make` gives one with two empty queues.

    Raises:
        AssertionError: a promise is broken.
    """
    await check(make, MESSAGE_BUS if clauses is None else clauses)


async def a_message_arrives_with_all_that_it_carries(at: BusFixture) -> None:
    sent = Message(
        body=bytes(range(256)),
        outbox_id="1",
        type="T",
        created_ms=at.now_ms(),
        correlation_id="c",
        causation_id="b",
        traceparent="00-ab-cd-01",
        hops=3,
        attempt=1,
        reply_to="r",
        claim="claims/x",
        properties={"text": "é", "number": 7, "yes": True, "ratio": 0.5},
    )
    await at.bus.send([Output(at.queue, 0, sent)])
    found = (await at.one()).message
    for name in ("body", *(n for n in Message.__struct_fields__ if not n.startswith(("wire", "body", "message_id")))):
        was, now = getattr(sent, name), getattr(found, name)
        promise(was == now, f"{name} was sent as {was!r} and arrived as {now!r}")


async def an_empty_queue_gives_nothing_after_the_wait(at: BusFixture) -> None:
    promise(await at.received() == [], "an empty queue gave a message")


async def no_more_is_received_than_was_asked_for(at: BusFixture) -> None:
    await at.send(*"abcde")
    found = await at.received(3)
    promise(1 <= len(found) <= 3, f"asked for at most 3, received {ids_of(found)}")


async def everything_sent_is_received_once(at: BusFixture) -> None:
    sent = [str(n) for n in range(20)]
    await at.send(*sent)
    found: list[str] = []
    while some := await asyncio.gather(at.received(3), at.received(3)):
        if not any(some):
            break
        found += [id for part in some for id in ids_of(part)]
    promise(sorted(found) == sorted(sent), f"sent {sent}, received {sorted(found)}")


async def a_locked_message_is_nobody_elses(at: BusFixture) -> None:
    await at.send("a")
    await at.one()
    promise(await at.received() == [], "a locked message was handed out again")


async def a_completed_message_is_gone(at: BusFixture) -> None:
    await at.send("a")
    await at.bus.settle(await at.one(), Settle("complete"))
    await at.wait(at.lock_s + 1)
    promise(await at.received() == [], "a completed message came back")


async def an_abandoned_message_comes_back_counted(at: BusFixture) -> None:
    await at.send("a")
    for count in range(3):
        found = await at.one()
        promise(found.delivery_count == count, f"after {count} failed deliveries the count is {found.delivery_count}")
        await at.bus.settle(found, Settle("abandon"))


async def a_released_message_comes_back_uncounted(at: BusFixture) -> None:
    await at.send("a")
    for _ in range(3):
        found = await at.one()
        promise(found.delivery_count == 0, f"a release was counted: {found.delivery_count}")
        await at.bus.settle(found, Settle("release"))


async def a_lock_that_runs_out_gives_the_message_to_the_next(at: BusFixture) -> None:
    await at.send("a")
    first = await at.one()
    await at.wait(at.lock_s + 1)
    second = await at.one()
    promise(second.delivery_count == 1, f"a lock that ran out counts as 1 delivery, not {second.delivery_count}")
    promise(await at.is_lost(first), "a lock that ran out still settles")
    await at.bus.settle(second, Settle("complete"))
    promise(await at.received() == [], "a message that was completed under its second lock came back")


async def a_renewed_lock_holds_on(at: BusFixture) -> None:
    await at.send("a")
    first = await at.one()
    await at.wait(at.lock_s * 0.7)
    until_ms = await at.bus.renew(first)
    promise(until_ms > first.locked_until_ms, f"renewed from {first.locked_until_ms} to {until_ms}")
    await at.wait(at.lock_s * 0.7)
    promise(await at.received() == [], "a renewed message was handed out again")
    await at.bus.settle(first, Settle("complete"))


async def what_is_settled_cannot_be_settled_again(at: BusFixture) -> None:
    hows: tuple[Settle, ...] = (Settle("complete"), Settle("abandon"), Settle("release"), Settle("dead-letter", "x"))
    for how in hows:
        await at.send(how.how)
        delivery = await at.one()
        await at.bus.settle(delivery, how)
        promise(await at.is_lost(delivery), f"a message was settled again after {how.how}")
        for left in await at.received():
            await at.bus.settle(left, Settle("complete"))


async def a_dead_lettered_message_leaves_its_queue_with_its_reason(at: BusFixture) -> None:
    await at.send("a")
    await at.bus.settle(await at.one(), Settle("dead-letter", "unfit", "because"))
    promise(await at.received() == [], "a dead letter is still in its queue")
    letters = await at.dead_letters(at.queue)
    promise(letters == [("a", "unfit")], f"dead-lettered 'a' as 'unfit', found {letters}")


async def a_deferred_message_is_set_aside(at: BusFixture) -> None:
    await at.send("a")
    await at.bus.settle(await at.one(), Settle("defer"))
    await at.wait(at.lock_s + 1)
    promise(await at.received() == [], "a deferred message was handed out")


async def a_scheduled_message_is_not_seen_before_its_time(at: BusFixture) -> None:
    await at.send("later", due_ms=at.now_ms() + 30_000)
    await at.send("past", due_ms=at.now_ms() - 30_000)
    found = await at.one()
    promise(found.message.identity == "past", "a scheduled message was seen before its time")
    await at.wait(31)
    found = await at.one()
    promise(found.message.identity == "later", "a scheduled message did not come at its time")


async def a_session_is_received_in_order_by_one_at_a_time(at: BusFixture) -> None:
    await at.bus.send([Output(at.ordered, 0, plain(f"{key}{n}", key)) for n in range(4) for key in "ab"])
    left = {"a": [f"a{n}" for n in range(4)], "b": [f"b{n}" for n in range(4)]}
    for turn in range(50):
        held = await asyncio.gather(at.received(2, queue=at.ordered), at.received(2, queue=at.ordered))
        sessions = [{d.message.session_id for d in part} for part in held]
        promise(not sessions[0] & sessions[1], "two receivers have one session")
        for delivery in (d for part in held for d in part):
            expected = left[delivery.message.session_id]
            promise(delivery.message.identity == expected[0], f"{delivery.message.identity} overtook {expected[0]}")
            expected.pop(0)
            await at.bus.settle(delivery, Settle("complete"))
        if turn > 2 and not any(left.values()):
            return
    promise(False, f"{left} never came")


async def a_message_given_back_keeps_its_place_in_its_session(at: BusFixture) -> None:
    await at.bus.send([Output(at.ordered, 0, plain(f"a{n}", "a")) for n in range(3)])
    for how in (Settle("abandon"), Settle("release")):
        held = await at.received(3, queue=at.ordered)
        promise(ids_of(held) == ["a0", "a1", "a2"][: len(held)], f"a session gave {ids_of(held)}")
        for delivery in held:
            await at.bus.settle(delivery, how)


MESSAGE_BUS: tuple[Clause[BusFixture], ...] = (
    a_message_arrives_with_all_that_it_carries,
    an_empty_queue_gives_nothing_after_the_wait,
    no_more_is_received_than_was_asked_for,
    everything_sent_is_received_once,
    a_locked_message_is_nobody_elses,
    a_completed_message_is_gone,
    an_abandoned_message_comes_back_counted,
    a_released_message_comes_back_uncounted,
    a_lock_that_runs_out_gives_the_message_to_the_next,
    a_renewed_lock_holds_on,
    what_is_settled_cannot_be_settled_again,
    a_dead_lettered_message_leaves_its_queue_with_its_reason,
    a_deferred_message_is_set_aside,
    a_scheduled_message_is_not_seen_before_its_time,
    a_session_is_received_in_order_by_one_at_a_time,
    a_message_given_back_keeps_its_place_in_its_session,
)
"""The clauses of a message bus's contract, each a promise by its name."""
