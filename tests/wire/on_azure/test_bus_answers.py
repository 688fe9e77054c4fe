"""What each failure of Service Bus lets the adapter conclude, and that no page and no limit loses a message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessageBatch, exceptions
from azure.servicebus._pyamqp.error import AMQPException, ErrorCondition
from azure.servicebus.aio import ServiceBusReceiver
from msgspec.structs import replace

from outbox.azure import connecting
from outbox.azure.connecting import AzureOperations
from outbox.azure.servicebus import bus as servicebus_bus
from outbox.azure.servicebus import dead_letters, links, sources
from outbox.azure.servicebus.bus import LockedMessage, Sending, ServiceBusBus
from outbox.azure.servicebus.dead_letters import ServiceBusDeadLetters
from outbox.azure.servicebus.entities import LOOK_COUNT_MAX, ServiceBusEntities
from outbox.azure.servicebus.links import AHEAD_COUNT_MAX, TEXT_LENGTH_MAX, Call, Link, credit_of
from outbox.azure.servicebus.messages import TTL_MS_MAX, to_wire
from outbox.azure.servicebus.outcomes import as_error
from outbox.azure.servicebus.sources import ACCEPT_S, CROWDED_QUIET_S, HELD_S, QUIET_S, PlainSource, SessionSource
from outbox.azure.usage import Usage
from outbox.errors import (
    LockLost,
    OutboxError,
    OutcomeUnknown,
    Refused,
    Throttled,
    TooLarge,
    UnknownDestination,
    Unreachable,
)
from outbox.message import Message
from outbox.ports import Delivery, Output, Settle
from tests.wire.on_azure.bus_calls import ORDERED, QUEUE, ids, output, received
from tests.wire.on_azure.far import FarSender
from tests.wire.on_azure.ground import BusGround


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (exceptions.MessageLockLostError(), LockLost),
        (exceptions.SessionLockLostError(), LockLost),
        (exceptions.SessionCannotBeLockedError(), LockLost),
        (exceptions.MessageNotFoundError(), LockLost),
        (exceptions.MessageAlreadySettled(), LockLost),
        (exceptions.MessageSizeExceededError(), TooLarge),
        (exceptions.ServiceBusServerBusyError(), Throttled),
        (exceptions.ServiceBusQuotaExceededError(), Throttled),
        (exceptions.MessagingEntityNotFoundError(), UnknownDestination),
        (exceptions.MessagingEntityDisabledError(), UnknownDestination),
        (exceptions.ServiceBusAuthenticationError(), Refused),
        (exceptions.ServiceBusAuthorizationError(), Refused),
        (exceptions.ServiceBusConnectionError(), OutcomeUnknown),
        (exceptions.ServiceBusCommunicationError(), OutcomeUnknown),
        (exceptions.OperationTimeoutError(), OutcomeUnknown),
        (exceptions.ServiceBusError("any other"), OutcomeUnknown),
        (AMQPException(ErrorCondition.InternalError), OutcomeUnknown),
        (AzureError("any other"), OutcomeUnknown),
        (TimeoutError(), OutcomeUnknown),
        (ConnectionResetError(), OutcomeUnknown),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failed_send_means_what_service_bus_documents(error: Exception, meant: type[OutboxError]) -> None:
    assert type(as_error(error, "send to orders", sends=True)) is meant
    asked = as_error(error, "receive from orders")
    assert type(asked) is (Refused if meant is UnknownDestination else meant)


async def test_of_more_messages_than_may_be_out_the_oldest_is_held_no_more(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus_bus, "LOCKED_COUNT_MAX", 2)
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(3)])
    oldest, *others = await received(bus, count=3)
    with pytest.raises(LockLost):
        await bus.settle(oldest, Settle("complete"))
    for delivery in others:
        await bus.settle(delivery, Settle("complete"))
    assert ids(ground) == [oldest.message.identity]


async def test_the_words_of_a_dead_letter_are_cut_to_what_a_property_holds(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("a")])
    [delivery] = await received(bus)
    await bus.settle(delivery, Settle("dead-letter", reason="r" * 5_000, description="d" * 5_000))
    [letter] = await ServiceBusDeadLetters(ground.namespaces[0], bus).list(QUEUE)
    for text, letter_of in ((letter.reason, "r"), (letter.description, "d")):
        assert text == letter_of * (TEXT_LENGTH_MAX - 3) + "..."


async def test_no_message_rests_under_its_lock_for_longer_than_the_limit(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus_bus, "DELAY_S_MAX", 0.05)
    bus = ground.bus()
    await bus.send([output("a")])
    [delivery] = await received(bus)
    await bus.settle(delivery, Settle("abandon", due_ms=servicebus_bus.wall_ms() + 86_400_000))
    [again] = await received(bus)
    assert again.message.identity == "a"


class Resting:
    """A link with one message out; what becomes of its renewals is given."""

    path = "orders"

    def __init__(self, renewed: OutboxError | int) -> None:
        self.asked = asyncio.Event()
        self.settled = list[str]()
        self._renewed = renewed

    async def renew(self, message: Any) -> int:
        self.asked.set()
        if isinstance(self._renewed, OutboxError):
            raise self._renewed
        return self._renewed

    async def settle(self, message: Any, settle: Settle) -> None:
        self.settled.append(settle.how)
        if isinstance(self._renewed, OutboxError):
            raise self._renewed

    def locked(self, until_ms: int) -> LockedMessage:
        return LockedMessage(cast(Any, self), cast(Any, SimpleNamespace(sequence_number=1)), until_ms)


async def test_the_lock_of_a_message_that_rests_is_extended_before_it_ends() -> None:
    now_ms = servicebus_bus.wall_ms()
    link, bus = Resting(now_ms + 600_000), ServiceBusBus(cast(Any, None))
    locked = link.locked(now_ms + 1_000)
    resting = asyncio.create_task(bus._wait(locked, now_ms + 300_000))
    async with asyncio.timeout(5):
        await link.asked.wait()
    assert servicebus_bus.wall_ms() < now_ms + 1_000
    await asyncio.sleep(0)
    assert locked.until_ms == now_ms + 600_000
    bus._closing.set()
    await resting


@pytest.mark.parametrize(
    ("error", "left_ms", "goes_on"),
    [(OutcomeUnknown("?"), 60_000, True), (OutcomeUnknown("?"), 900, False), (LockLost("gone"), 60_000, False)],
)
async def test_a_lock_is_extended_again_while_it_lasts_and_is_not_lost(
    error: OutboxError, left_ms: int, goes_on: bool
) -> None:
    bus = ServiceBusBus(cast(Any, None), now_ms=lambda: 1_000_000)
    assert await bus._extended(Resting(error).locked(1_000_000 + left_ms)) is goes_on
    assert bus.usage.by_kind["renew"].failed_count == 1


async def test_a_bus_that_closes_gives_back_what_rests_and_knows_no_lock_from_before() -> None:
    link, bus, due_ms = Resting(0), ServiceBusBus(cast(Any, None)), servicebus_bus.wall_ms() + 60_000
    rests, held = (Delivery("orders", lock, Message(body=b""), lock, 0, due_ms) for lock in (1, 2))
    bus._locked.update({delivery.lock: link.locked(due_ms) for delivery in (rests, held)})
    await bus.settle(rests, Settle("abandon", due_ms=due_ms))
    with pytest.raises(LockLost):
        await bus.settle(rests, Settle("complete"))
    await asyncio.sleep(0)
    async with asyncio.timeout(2):
        await bus.close()
    with pytest.raises(LockLost):
        await bus.settle(held, Settle("complete"))
    assert link.settled == ["abandon"]


@pytest.mark.parametrize("answer", [0, OutcomeUnknown("?")])
async def test_what_became_of_a_message_that_rested_is_counted(answer: OutboxError | int) -> None:
    bus = ServiceBusBus(cast(Any, None))
    await bus._settle_later(Resting(answer).locked(0), Settle("abandon"), 0.0)
    used = bus.usage.by_kind["abandon"]
    assert (used.count, used.failed_count) == (1, answer != 0)


async def test_a_message_rests_under_its_lock_on_a_bus_that_was_closed_before(ground: BusGround) -> None:
    bus = ground.bus()
    await received(bus, ORDERED, within_s=0.05)
    await bus.close()
    await bus.send([output("a"), output("b", ORDERED, session_id="b")])
    assert len(await received(bus, ORDERED)) == 1
    [delivery] = await received(bus)
    await bus.settle(delivery, Settle("release", due_ms=servicebus_bus.wall_ms() + 60_000))
    assert not await received(bus, within_s=0.3)


class Held:
    """A link of a session of which nothing is out."""

    def __init__(self, opened_s: float, used_s: float, ready: list[str], *, is_over: bool = False) -> None:
        self.opened_s, self.used_s, self.ready = opened_s, used_s, ready
        self.out_count, self.is_spent, self._is_over = 0, False, is_over
        self.error: OutboxError | None = None
        self.told = list[object]()

    def expire(self) -> bool:
        return self._is_over

    def want(self, count: int) -> None:
        self.told.append(count)

    async def gathered(self) -> None:
        self.told.append("gathers")

    def take(self, count: int) -> list[str]:
        return [self.ready.pop(0)]

    async def close(self) -> None:
        return


@pytest.mark.parametrize(
    ("held_s", "quiet_s", "ready", "room_count", "is_let_go"),
    [
        (HELD_S + 1, 0.0, [], 1, True),  # others may wait for its room
        (HELD_S + 1, 0.0, [], 2, False),
        (HELD_S + 1, 0.0, ["a"], 1, False),
        (HELD_S - 1, 0.0, [], 1, False),
        (1.0, CROWDED_QUIET_S + 0.1, [], 1, True),
        (1.0, CROWDED_QUIET_S + 0.1, [], 2, False),
        (QUIET_S + 1, QUIET_S + 1, [], 2, True),
        (QUIET_S + 1, QUIET_S + 1, ["a"], 2, False),
    ],
)
async def test_a_session_is_let_go_when_it_is_quiet_and_sooner_where_others_may_wait(
    held_s: float, quiet_s: float, ready: list[str], room_count: int, is_let_go: bool
) -> None:
    unused = cast(Any, None)
    source = SessionSource(
        unused, "orders", now_ms=lambda: 0, session_count_max=room_count, monotonic_s=lambda: 1_000.0
    )
    source._links.append(cast(Any, Held(1_000.0 - held_s, 1_000.0 - quiet_s, ready)))
    source._tidy()
    assert (source._links == []) is is_let_go
    await source.close()


def sessions(*links: Held, namespace: Any = None) -> SessionSource:
    source = SessionSource(namespace, "orders", now_ms=lambda: 0, monotonic_s=lambda: 1_000.0)
    source._links.extend(cast(Any, links))
    return source


@pytest.mark.parametrize("error", [None, OutcomeUnknown("its connection broke")])
async def test_a_session_that_is_lost_is_let_go_though_a_message_of_it_is_out(error: OutboxError | None) -> None:
    lost = Held(1_000.0, 1_000.0, [], is_over=error is None)
    lost.out_count, lost.error = 1, error
    source = sessions(lost, Held(1_000.0, 1_000.0, []))
    source._tidy()
    assert len(source._links) == 1 and cast(Any, lost) not in source._links
    await source.close()


async def test_a_link_reads_on_for_no_longer_than_a_caller_waits_and_gathers_what_comes_with_a_message() -> None:
    link, source = Held(0.0, 0.0, []), PlainSource(cast(Any, None), "orders", now_ms=lambda: 0)
    source._link, source._open = cast(Any, link), _nothing  # type: ignore[method-assign]  # it is open
    assert await source.receive(3, 0.01) is None and link.told == [3, 0]
    link.ready.append("a")
    assert await source.receive(3, 1) is not None and link.told[2:] == [3, "gathers", 0]


async def test_sessions_are_asked_for_again_where_asking_broke() -> None:
    asked = list[str]()

    def next_session(path: str, **options: Any) -> Any:
        asked.append(path)
        raise RuntimeError("of the SDK")

    source = sessions(namespace=SimpleNamespace(next_session=next_session))
    for _ in range(2):
        assert await source.receive(1, 0.01) is None
    await source.close()
    assert asked == ["orders", "orders"]


async def test_a_source_that_closes_waits_for_what_it_has_begun() -> None:
    for source in (PlainSource(cast(Any, None), "orders", now_ms=lambda: 0), sessions()):
        begun = source._tasks.start(asyncio.sleep(0.01))
        await source.close()
        assert begun.done()


async def test_sessions_are_handed_out_in_turn() -> None:
    source = sessions(Held(0.0, 0.0, ["a1", "a2"]), Held(0.0, 0.0, ["b1", "b2"]))
    taken: list[Any] = [await source._take(1) for _ in range(4)]
    assert [messages for _, messages in taken] == [["a1"], ["b1"], ["a2"], ["b2"]]
    await source.close()


async def test_a_session_that_cannot_be_had_is_not_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FAILED_PAUSE_S", 60.0)
    asked = list[str]()

    class Receiver:
        async def __aenter__(self) -> None:
            asked.append("once")
            await asyncio.sleep(0)
            raise OSError("no route")

        async def close(self) -> None:
            return

    source = sessions(namespace=SimpleNamespace(next_session=lambda path, **options: Receiver()))
    with pytest.raises(OutcomeUnknown):
        await source.receive(1, 5.0)
    await source.receive(1, 0.05)
    assert asked == ["once"]
    await source.close()


async def test_no_session_is_taken_up_when_nobody_has_asked_for_long() -> None:
    """It would be held for as long as it is quiet, and nobody would receive from it."""
    asked, now_s = list[str](), [1_000.0]

    class Receiver:
        async def __aenter__(self) -> None:
            asked.append("again")
            await asyncio.sleep(0.001)
            raise exceptions.OperationTimeoutError

        async def close(self) -> None:
            return

    namespace = cast(Any, SimpleNamespace(next_session=lambda path, **options: Receiver()))
    source = SessionSource(namespace, "orders", now_ms=lambda: 0, monotonic_s=lambda: now_s[0])
    assert await source.receive(1, 0.05) is None
    now_s[0] += ACCEPT_S + 1
    await asyncio.sleep(0.05)
    before = len(asked)
    await asyncio.sleep(0.05)
    assert len(asked) == before > 0
    assert await source.receive(1, 0.05) is None
    assert len(asked) > before
    await source.close()


async def test_a_session_that_comes_while_its_source_closes_is_let_go() -> None:
    """The SDK may have the session before it hears that it is cancelled."""
    told = list[str]()

    class Receiver:
        session, _handler = None, None

        async def __aenter__(self) -> None:
            told.append("opens")
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

        async def close(self) -> None:
            told.append("closed")

    source = sessions(namespace=SimpleNamespace(next_session=lambda path, **options: Receiver()))
    await source.receive(1, 0.01)
    await source.close()
    assert told == ["opens", "closed"]


async def test_a_sender_or_receiver_that_could_not_be_opened_is_closed() -> None:
    told = list[str]()

    class Sender:
        async def __aenter__(self) -> None:
            raise OSError("no route")

        async def close(self) -> None:
            told.append("closed")

    sends = Sending(cast(Any, SimpleNamespace(sender=lambda destination: Sender())), "orders", Usage())
    with pytest.raises(OutcomeUnknown):
        await sends.send([output("a")])
    assert told == ["closed"]
    with pytest.raises(OutcomeUnknown):
        await Link.open("orders", cast(Any, Sender()), arrived=lambda: None, now_ms=lambda: 0)
    assert told == ["closed", "closed"]


@pytest.mark.parametrize(
    ("error", "meant", "opened_count"),
    [
        (exceptions.ServiceBusServerBusyError(), Throttled, 1),  # its link works
        (exceptions.ServiceBusCommunicationError(), OutcomeUnknown, 2),
        (ConnectionRefusedError(), Unreachable, 2),
    ],
)
async def test_a_sender_that_failed_is_used_again_only_where_its_link_works(
    error: Exception, meant: type[OutboxError], opened_count: int
) -> None:
    class Fails(FarSender):
        async def send_messages(self, payload: Any, *, timeout: float) -> None:
            raise error

    def sender(destination: str) -> FarSender:
        opened.append(destination)
        return Fails(namespace)

    opened, namespace = list[str](), cast(Any, SimpleNamespace(rtt_s=0, sender=sender))
    sends = Sending(namespace, "orders", Usage())
    for _ in range(2):
        with pytest.raises(meant) as raised:
            await sends.send([output("a")])
        assert raised.value.__cause__ is error
    assert opened == ["orders"] * opened_count


@pytest.mark.parametrize(("limit_bytes", "batch_bytes"), [(262_144, 258_048), (4_000, 3_000)])
async def test_a_batch_leaves_room_for_its_envelope(limit_bytes: int, batch_bytes: int) -> None:
    sizes_bytes = list[int | None]()

    class Sender(FarSender):
        async def create_message_batch(self, size: int | None = None) -> ServiceBusMessageBatch:
            sizes_bytes.append(size)
            return await super().create_message_batch(size or limit_bytes)

    namespace: Any = SimpleNamespace(rtt_s=0, transfers=[], sender=lambda destination: Sender(namespace))
    await Sending(namespace, "orders", Usage()).send([output("a"), output("b")])
    assert (sizes_bytes, namespace.transfers) == ([None, batch_bytes], [2])


async def test_a_task_that_does_not_end_is_cancelled_when_its_bus_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CLOSE_S", 0.01)
    tasks = sources.Tasks()
    endless = tasks.start(asyncio.sleep(60))
    await tasks.close()
    with pytest.raises(asyncio.CancelledError):
        await endless


async def test_whoever_waits_for_a_settlement_is_answered_when_its_link_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CLOSE_S", 0.01)

    class Receiver:
        session, _handler = SimpleNamespace(session_id="s"), None

        async def complete_message(self, message: Any) -> None:
            await asyncio.sleep(60)

        async def close(self) -> None:
            return

    link = Link("orders", cast(Any, Receiver()), arrived=lambda: None, now_ms=lambda: 0)
    message: Any = SimpleNamespace(sequence_number=1)
    waiting = [asyncio.create_task(link.settle(message, Settle("complete"))) for _ in range(3)]  # one at a time
    await asyncio.sleep(0)
    waiting[1].cancel()
    await link.close()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, asyncio.CancelledError, OutcomeUnknown]


async def test_what_is_handed_out_counts_until_it_is_settled_and_what_is_late_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def settled(message: Any) -> None:
        now_s[0] += 1

    now_s, changes, message = [1.0], list[str](), cast(Any, SimpleNamespace(sequence_number=1))
    calls = {"close": _nothing, "abandon_message": settled, "complete_message": settled}
    receiver: Any = SimpleNamespace(session=None, _handler=None, **calls)
    times: Any = {"now_ms": lambda: 5_000, "monotonic_s": lambda: now_s[0]}
    link, closed = (Link("orders", receiver, arrived=lambda: changes.append("one"), **times) for _ in range(2))
    untils = [datetime.fromtimestamp(seconds, UTC) for seconds in (6, 5, 4, 9, 9)]
    link.ready.extend(cast(Any, SimpleNamespace(locked_until_utc=until, sequence_number=1)) for until in untils)
    assert [message.locked_until_utc for message in link.take(2)] == [untils[0], untils[3]]
    assert link.out_count == 2 and [record.message for record in caplog.records] == [links.TOO_LATE]
    link.forget()
    assert (link.out_count, link.is_spent, len(link.ready)) == (1, True, 1)
    link._die(OutcomeUnknown("its connection broke"))
    assert changes == ["one", "one"]
    for how in ("abandon", "complete"):
        await closed.settle(message, Settle(how))
        assert (closed.is_spent, closed.used_s) == (True, now_s[0])
    await closed.close()
    closed.want(1)
    assert not link.ready and closed._pump is None


async def test_the_lock_of_a_session_is_renewed_once_for_all_and_again_after_an_eighth_of_what_is_left() -> None:
    now_ms, renewed = [0], list[int]()

    async def renew_lock() -> None:
        renewed.append(now_ms[0])

    until = datetime.fromtimestamp(64, UTC)
    session = SimpleNamespace(session_id="s", locked_until_utc=until, renew_lock=renew_lock)
    receiver: Any = SimpleNamespace(session=session, _handler=None)
    link = Link("orders", receiver, arrived=lambda: None, now_ms=lambda: now_ms[0])
    for now_ms[0] in (0, 7_000, 8_000, 8_000, 14_000, 16_000):
        assert await link._renew(cast(Any, None)) == 64_000
    assert renewed == [8_000, 16_000]
    assert [link.expire() for now_ms[0] in (63_999, 64_000)] == [False, True]


def test_calls_that_must_be_alone_are_and_others_go_together_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "TOGETHER_COUNT_MAX", 3)
    receiver, unused = SimpleNamespace(session=None, _handler=None), cast(Any, None)
    link = Link("orders", cast(Any, receiver), arrived=lambda: None, now_ms=lambda: 0)
    link._calls.extend(Call(unused, "", unused, is_alone == "x") for is_alone in "..xx.x....")
    groups = list[int]()
    while link._calls:
        groups.append(len(link._next_calls()))
    assert groups == [2, 1, 1, 1, 1, 3, 1]


async def test_a_caller_of_many_has_no_more_sent_ahead_than_the_limit(ground: BusGround) -> None:
    bus = ground.bus()
    assert await bus.receive(QUEUE, count_max=10_000, wait_s=0.1) == []
    source: Any = bus._sources[QUEUE]
    assert credit_of(source._link.receiver) == AHEAD_COUNT_MAX


async def test_a_link_that_died_under_a_receiver_is_closed_at_once(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("a")])
    await received(bus)
    source: Any = bus._sources[QUEUE]
    link = source._link
    link._die(OutcomeUnknown("its connection broke"))
    source._link, source._open = link, _nothing  # it dies while a caller waits
    with pytest.raises(OutcomeUnknown, match="broke"):
        await bus.receive(QUEUE, count_max=1, wait_s=1)
    async with asyncio.timeout(5):
        while not link.receiver._shutdown.is_set():  # noqa: ASYNC110  # the SDK has no event of this loop
            await asyncio.sleep(0.01)


async def _nothing() -> None:
    return


async def test_a_dead_letter_counts_the_failures_that_its_copies_carried(ground: BusGround) -> None:
    bus, retried = ground.bus(), output("retried")
    await bus.send([Output(retried.destination, 0, replace(retried.message, failures=3))])
    (delivery,) = await received(bus, count=1)
    await bus.settle(delivery, Settle("dead-letter", reason="test"))
    (listed,) = await ServiceBusDeadLetters(ground.namespaces[0], bus).list(QUEUE)
    assert listed.delivery_count == 3  # the broker's own count begins anew


async def test_every_page_of_dead_letters_is_listed(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_COUNT", 2)
    bus, names = ground.bus(), [str(n) for n in range(5)]
    await bus.send([output(name) for name in names])
    for delivery in await received(bus, count=5):
        await bus.settle(delivery, Settle("dead-letter", reason="test"))
    letters = ServiceBusDeadLetters(ground.namespaces[0], bus)
    listed = await letters.list(QUEUE)
    assert sorted(one.message.identity for one in listed) == names
    for one in (listed[-1], listed[0]):  # those before and behind it are free again at once
        await letters.discard(QUEUE, one.sequence)
    assert [one.sequence for one in await letters.list(QUEUE)] == [one.sequence for one in listed[1:-1]]
    monkeypatch.setattr(dead_letters, "DEAD_LETTER_COUNT_MAX", 1)
    assert len(await letters.list(QUEUE)) == 1  # however many a page has


class Looked:
    """A receiver that gives its pages one by one, however short, or fails; it notes that it was closed."""

    def __init__(self, *pages: list[Any], error: Exception | None = None) -> None:
        self.pages, self.error, self.closed_count = list(pages), error, 0

    async def __aenter__(self) -> None:
        if self.error is not None:
            raise self.error

    async def peek_messages(self, count: int, *, sequence_number: int, timeout: float) -> list[Any]:
        return self.pages.pop(0) if self.pages else []

    async def close(self) -> None:
        self.closed_count += 1
        raise OSError("it is gone already")


async def test_dead_letters_that_come_in_short_pages_are_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "as_entry", lambda path, sequence: SimpleNamespace(sequence=sequence))
    whole, broken = Looked([1], [2, 3]), Looked(error=OSError("reset"))
    asked = [
        ServiceBusDeadLetters(cast(Any, SimpleNamespace(dead_letters=lambda path, made=made: made)), cast(Any, None))
        for made in (whole, broken)
    ]
    assert [entry.sequence for entry in await asked[0].list("orders")] == [1, 2, 3]
    with pytest.raises(OutcomeUnknown, match="dead letters of orders"):
        await asked[1].list("orders")
    assert whole.closed_count == broken.closed_count == 1


@pytest.mark.parametrize("error", [None, OSError("reset"), ValueError("the entity requires a session")])
async def test_a_look_closes_what_it_has_opened(error: Exception | None) -> None:
    receiver, browser = Looked(error=error), Looked()  # which has no transport, so that asking over it fails
    namespace = cast(Any, SimpleNamespace(peeker=lambda path: receiver, browser=lambda path: browser))
    looking = dead_letters.peek(namespace, "orders", after=0, count=1, session="", is_wanted=lambda held: True)
    if error is None:
        assert await looking == ([], 0)
    else:
        with pytest.raises(OutcomeUnknown, match="messages of orders"):
            await looking
    assert (receiver.closed_count, browser.closed_count) == (1, 1 if isinstance(error, ValueError) else 0)


async def test_a_dead_letter_is_found_behind_batches_that_come_short(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, receive = ground.bus(), ServiceBusReceiver.receive_messages
    await bus.send([output(str(n)) for n in range(3)])
    for delivery in await received(bus, count=3):
        await bus.settle(delivery, Settle("dead-letter", reason="test"))
    letters = ServiceBusDeadLetters(ground.namespaces[0], bus)
    last = (await letters.list(QUEUE))[-1]
    monkeypatch.setattr(ServiceBusReceiver, "receive_messages", lambda self, _, **options: receive(self, 1, **options))
    await letters.discard(QUEUE, last.sequence)
    assert len(await letters.list(QUEUE)) == 2


@pytest.mark.parametrize(("lives_ms", "told"), [(0, None), (1, 1), (TTL_MS_MAX, TTL_MS_MAX), (1 << 40, TTL_MS_MAX)])
def test_a_time_to_live_is_what_the_wire_can_say_of_it(lives_ms: int, told: int | None) -> None:
    wire = to_wire(Output("orders", 0, Message(body=b"1", time_to_live_ms=lives_ms)))
    assert wire.header is not None and wire.header.time_to_live == told


def test_what_a_broker_looks_at_stands_where_it_looks() -> None:
    message = Message(body=b"1", outbox_id="m", session_id="s", correlation_id="c", reply_to="answers")
    told = to_wire(Output("orders", 0, message)).properties
    assert told is not None
    assert (told.message_id, told.group_id, told.correlation_id, told.reply_to) == ("m", "s", "c", "answers")


def answered(status: int) -> HttpResponseError:
    error = HttpResponseError("no")
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        *((answered(status), Refused) for status in (400, 401, 403)),
        *((error, OutcomeUnknown) for error in (answered(500), TimeoutError(), OSError("reset"))),
        (ResourceNotFoundError("gone"), Refused),
        (AttributeError("a topic"), Refused),
    ],
)
async def test_an_answer_about_a_queue_means_what_may_be_concluded(error: Exception, meant: type[OutboxError]) -> None:
    class Administration:
        async def get_queue(self, name: str) -> Any:
            raise error

    entities = ServiceBusEntities(cast(Any, SimpleNamespace(administration=Administration)))
    with pytest.raises(meant) as told:
        await entities.is_paused("orders")
    assert type(told.value) is meant and told.value.__cause__ is error


async def test_a_queue_that_cannot_be_looked_at_hides_none_that_orders_otherwise() -> None:
    class Administration:
        async def get_queue(self, name: str) -> Any:
            if name == "keyed":
                return SimpleNamespace(requires_session=True)
            raise AzureError("no answer") if name == "dumb" else ResourceNotFoundError(name)

    entities = ServiceBusEntities(cast(Any, SimpleNamespace(administration=Administration, host="there")))
    with pytest.raises(Refused, match="queue keyed is there and does not do as declared"):
        await entities.look(dict.fromkeys(("missing", "dumb", "keyed"), "unordered"), {})


@pytest.mark.parametrize("at", [0, 1, LOOK_COUNT_MAX, LOOK_COUNT_MAX + 1, 2 * LOOK_COUNT_MAX + 1])
async def test_however_many_queues_there_are_each_is_looked_at(at: int) -> None:
    class Administration:
        async def get_queue(self, name: str) -> Any:
            if name == f"q{at}":
                return SimpleNamespace(requires_session=True)
            raise ResourceNotFoundError(name)

    entities = ServiceBusEntities(cast(Any, SimpleNamespace(administration=Administration, host="there")))
    with pytest.raises(Refused, match=f"queue q{at} is there"):
        await entities.look(dict.fromkeys((f"q{n}" for n in range(2 * LOOK_COUNT_MAX + 2)), "unordered"), {})


@pytest.mark.parametrize(("scheduled_count", "is_drained"), [(0, True), (1, False)])
async def test_a_subscription_is_not_drained_while_its_topic_has_a_scheduled_message(
    scheduled_count: int, is_drained: bool
) -> None:
    """On Azure a scheduled message lies in its topic until it is due, and no subscription counts it."""

    class Administration:
        async def get_subscription_runtime_properties(self, topic: str, name: str) -> Any:
            return SimpleNamespace(total_message_count=0)

        async def get_topic_runtime_properties(self, topic: str) -> Any:
            return SimpleNamespace(scheduled_message_count=scheduled_count)

    entities = ServiceBusEntities(cast(Any, SimpleNamespace(administration=Administration)))
    assert await entities.is_drained(["news/Subscriptions/all"]) is is_drained


async def test_all_places_are_looked_at_before_they_are_drained() -> None:
    class Administration:
        async def get_subscription_runtime_properties(self, topic: str, name: str) -> Any:
            return SimpleNamespace(total_message_count=0, active_message_count=0)

        async def get_topic_runtime_properties(self, topic: str) -> Any:
            return SimpleNamespace(scheduled_message_count=0)

        async def get_queue_runtime_properties(self, name: str) -> Any:
            return SimpleNamespace(total_message_count=1, active_message_count=1)

    entities = ServiceBusEntities(cast(Any, SimpleNamespace(administration=Administration)))
    assert await entities.is_drained(["news/Subscriptions/all"]) and await entities.is_idle(["news/Subscriptions/all"])
    assert not await entities.is_drained(["news/Subscriptions/all", "orders"])
    assert not await entities.is_idle(["news/Subscriptions/all", "orders"])


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Throttled("busy", retry_after_s=1.0)])
async def test_a_client_sends_the_same_again_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, error: OutboxError
) -> None:
    monkeypatch.setattr(connecting, "SEND_PAUSE_S", 0.0)
    sent, failing = list[Sequence[Output]](), connecting.SEND_COUNT_MAX - 1

    class Bus:
        async def send(self, outputs: Sequence[Output]) -> None:
            sent.append(outputs)
            if len(sent) <= failing:
                raise error

    unused = cast(Any, Mock())
    asked = AzureOperations(unused, cast(Any, Bus()), unused, unused, prepare=unused, create=False, now_ms=unused)
    outputs = [Output("orders", 0, Message(body=b"1", message_id="m1"))]
    await asked.send(outputs)
    assert sent == [outputs] * connecting.SEND_COUNT_MAX
    failing = 100
    sent.clear()
    error.__cause__ = OSError("reset")
    with pytest.raises(type(error)) as told:
        await asked.send(outputs)
    assert len(sent) == connecting.SEND_COUNT_MAX and isinstance(told.value.__cause__, OSError)


async def test_a_cancel_that_is_not_answered_in_time_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()

    class Sender:
        async def __aenter__(self) -> None:
            return

        async def __aexit__(self, *error: object) -> None:
            told.append("closed")

        async def cancel_scheduled_messages(self, sequences: list[int]) -> None:
            told.append(f"cancel {sequences}")
            await asyncio.sleep(60)

    monkeypatch.setattr(connecting, "CANCEL_S", 0.01)
    senders = {"news": Sender()}  # what is scheduled lies in the topic
    unused, namespace = cast(Any, Mock()), cast(Any, SimpleNamespace(sender=senders.__getitem__))
    asked = AzureOperations(namespace, unused, unused, unused, prepare=unused, create=False, now_ms=unused)
    async with asyncio.timeout(5):
        with pytest.raises(OutcomeUnknown, match="cancel in news"):
            await asked.cancel("news/Subscriptions/all", (7,))
    assert told == ["cancel [7]", "closed"]
