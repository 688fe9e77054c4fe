"""What the real SDK and a broker do to whoever sends, provoked: each would lose, double or change messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from outbox.azure.servicebus import bus as sending
from outbox.azure.servicebus import sources
from outbox.azure.servicebus.bus import wall_ms
from outbox.azure.servicebus.links import TOO_LATE
from outbox.errors import LockLost, OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination
from outbox.message import Message
from outbox.ports import Output, Settle
from tests.wire.on_azure.bus_calls import ORDERED, QUEUE, ids, install, output, received
from tests.wire.on_azure.ground import BusGround, bus_ground


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


async def test_what_every_destination_refuses_is_refused_with_the_first_reason(ground: BusGround) -> None:
    bus = ground.bus()
    with pytest.raises(UnknownDestination, match="send to missing"):
        await bus.send([output("a", "missing"), output("b", "nowhere"), output("c", "missing")])
    with pytest.raises(OutcomeUnknown, match=r"send to missing.*others were sent"):
        await bus.send([output("a"), output("b", "missing"), output("c", "nowhere")])
    assert ids(ground) == ["a"]


async def test_what_comes_to_nothing_is_counted_by_its_reason(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("a"), output("b")])
    renewed, settled = await received(bus, count=2)
    await bus.renew(renewed)
    for delivery in (renewed, settled):
        ground.engine.broker.lapse_lock(QUEUE, delivery.sequence)
    with pytest.raises(LockLost):
        await bus.renew(renewed)
    with pytest.raises(LockLost):
        await bus.settle(settled, Settle("complete"))
    with pytest.raises(Refused):
        await bus.receive("missing", count_max=1, wait_s=0.1)
    assert bus.usage.reasons == {("renew", "lock lost"): 1, ("complete", "lock lost"): 1, ("receive", "refused"): 1}
    assert all(bus.usage.by_kind[kind].failed_count == 1 for kind, _ in bus.usage.reasons)
    assert [bus.usage.by_kind[kind].count for kind in ("send", "renew", "complete")] == [1, 2, 1]
    assert bus.usage.by_kind["receive"].count > 1


async def test_what_was_refused_beside_something_unknown_is_unknown(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_S", 0.5)
    bus = ground.bus()
    install(ground, kind="lost-reply", operation="send")
    with pytest.raises(OutcomeUnknown):
        await bus.send([output("a", "missing"), output("b")])
    assert ids(ground) == ["b"]


@pytest.mark.parametrize("kind", ["throttled", "reset"])
async def test_what_failed_behind_a_first_transfer_is_unknown(ground: BusGround, kind: Any) -> None:
    bus = ground.bus()
    messages = [output(str(n)) for n in range(sending.BATCH_COUNT_MAX + 5)]
    install(ground, kind=kind, operation="send", after=1)
    with pytest.raises(OutcomeUnknown) as raised:
        await bus.send(messages)
    is_refused = kind == "throttled"  # a transfer that was refused: none of it left, and some did before
    assert ("; some were sent: send all of them again" in str(raised.value)) == is_refused
    assert isinstance(raised.value.__cause__, Throttled) == is_refused
    assert ids(ground) == [str(n) for n in range(sending.BATCH_COUNT_MAX)]


async def test_what_waits_for_a_transfer_leaves_together_behind_it(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("first")])
    install(ground, kind="delay", delay_s=0.2, operation="send")
    await asyncio.gather(*(bus.send([output(f"{n}-{part}") for part in range(2)]) for n in range(9)))
    assert ids(ground) == ["first", *(f"{n}-{part}" for n in range(9) for part in range(2))]
    assert bus.usage.by_kind["send"].count == 2  # all nine came within one turn of the loop


async def test_what_waits_is_cut_at_a_batch_and_a_caller_is_answered_when_all_of_its_own_has_left(
    ground: BusGround,
) -> None:
    bus = ground.bus()
    half = sending.BATCH_COUNT_MAX // 2 + 10
    sent = [asyncio.create_task(bus.send([output(f"{n}-{part:03d}") for part in range(half)])) for n in range(3)]
    install(ground, kind="delay", delay_s=0.3, operation="send", after=1)
    await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in sent] == [True, False, False]
    await asyncio.gather(*sent)
    assert ids(ground) == [f"{n}-{part:03d}" for n in range(3) for part in range(half)]
    assert bus.usage.by_kind["send"].count == 2


async def test_of_what_leaves_together_only_what_is_too_large_is_refused(ground: BusGround) -> None:
    bus = ground.bus()
    large = Output(QUEUE, 0, Message(body=b"x" * (ground.server.limits.message_size_max_bytes + 1)))
    answers = await asyncio.gather(
        *(bus.send([one]) for one in (output("a"), large, output("b"))), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [type(None), TooLarge, type(None)]
    assert ids(ground) == ["a", "b"]


async def test_a_batch_has_a_megabyte_where_a_message_may_have_more() -> None:
    """A premium namespace takes messages of 100 MB, and batches of 1 MB."""
    async with bus_ground(message_size_max_bytes=8 << 20) as ground:
        bus = ground.bus()
        await bus.send([Output(QUEUE, 0, Message(body=b"x" * (400 << 10), outbox_id=str(n))) for n in range(4)])
        await bus.send([Output(QUEUE, 0, Message(body=b"x" * 1_044_000, outbox_id=str(n))) for n in (4, 5)])
        assert ids(ground) == [str(n) for n in range(6)]
        assert bus.usage.by_kind["send"].count == 4


@pytest.mark.parametrize("kind", ["throttled", "reset"])
async def test_a_transfer_that_fails_fails_for_all_who_share_it(ground: BusGround, kind: Any) -> None:
    bus = ground.bus()
    await bus.send([output("first")])
    install(ground, kind=kind, operation="send")
    answers = await asyncio.gather(*(bus.send([output(str(n))]) for n in range(3)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {Throttled if kind == "throttled" else OutcomeUnknown}
    assert len({id(answer) for answer in answers}) == 3  # each caller's own, with its own traceback
    before = bus.usage.by_kind["send"].count
    await asyncio.gather(*(bus.send([output(str(n))]) for n in range(3)))
    assert ids(ground)[-3:] == ["0", "1", "2"]
    assert bus.usage.by_kind["send"].count - before == (1 if kind == "throttled" else 3)  # alone, after what is unknown
    await asyncio.gather(*(bus.send([output(str(n))]) for n in range(3)))
    assert bus.usage.by_kind["send"].count - before == (2 if kind == "throttled" else 4)


async def test_a_sender_that_cannot_be_opened_is_tried_once_for_all_who_wait(
    ground: BusGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take half a minute each time."""
    bus = ground.bus()
    made: list[str] = []
    sender = ground.namespaces[0].sender

    def noted(destination: str) -> ServiceBusSender:
        made.append(destination)
        return sender(destination)

    monkeypatch.setattr(ground.namespaces[0], "sender", noted)
    answers = await asyncio.gather(*(bus.send([output(str(n), "missing")]) for n in range(5)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnknownDestination} and made == ["missing"]


async def test_what_is_too_large_together_leaves_alone(ground: BusGround, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may take less than its link says."""
    send_messages = ServiceBusSender.send_messages

    async def send(sender: ServiceBusSender, payload: Any, **options: Any) -> None:
        if isinstance(payload, ServiceBusMessageBatch):
            raise MessageSizeExceededError(message="larger than this broker takes")
        await send_messages(sender, payload, **options)

    monkeypatch.setattr(ServiceBusSender, "send_messages", send)
    bus = ground.bus()
    await asyncio.gather(*(bus.send([output(str(n))]) for n in range(5)))
    assert ids(ground) == [str(n) for n in range(5)]


async def test_what_one_message_breaks_breaks_no_other_twice(ground: BusGround) -> None:
    """The SDK cannot encode it, or a broker hangs up on it, each time: whoever shared its transfer gets another try."""
    bus = ground.bus()
    await bus.send([output("first")])
    broken = Output(QUEUE, 0, Message(body=b"1", outbox_id="x", properties={"it": cast(Any, object())}))

    async def send(one: Output) -> bool:
        for _ in range(2):
            with suppress(OutcomeUnknown):
                await bus.send([one])
                return True
        return False

    assert await asyncio.gather(*(send(one) for one in (output("a"), broken, output("b")))) == [True, False, True]
    assert ids(ground) == ["first", "a", "b"]


async def test_what_leaves_together_is_of_one_session_and_in_its_order(ground: BusGround) -> None:
    bus = ground.bus()
    sessions = [
        [Output(ORDERED, 0, Message(body=b"1", outbox_id=f"{n}{session}", session_id=session)) for session in "ab"]
        for n in range(5)
    ]
    await asyncio.gather(*(bus.send(outputs) for outputs in sessions))
    assert [id for id in ids(ground, ORDERED) if id[1] == "a"] == [f"{n}a" for n in range(5)]
    assert [id for id in ids(ground, ORDERED) if id[1] == "b"] == [f"{n}b" for n in range(5)]
    assert bus.usage.by_kind["send"].count == 2


async def test_nothing_of_a_session_passes_what_did_not_fit_beside_it(ground: BusGround) -> None:
    """A small message behind it would have fitted."""
    bus = ground.bus()
    large = [Message(body=b"x" * (100 << 10), outbox_id=str(n), session_id="s") for n in range(4)]
    whole = bus.send([Output(ORDERED, 0, message) for message in large])
    await asyncio.gather(whole, bus.send([output("4", ORDERED, session_id="s")]))
    assert ids(ground, ORDERED) == ["0", "1", "2", "3", "4"]


async def test_a_bus_that_closes_ends_its_transfer_and_begins_no_other(ground: BusGround) -> None:
    """What has not begun to leave stays with its record."""
    bus = ground.bus()
    await bus.send([output("first")])
    install(ground, kind="delay", delay_s=0.3, operation="send")
    sends = [asyncio.create_task(bus.send([output("a")]))]
    await asyncio.sleep(0.05)
    sends += [asyncio.create_task(bus.send([output(id)])) for id in "bc"]
    await asyncio.sleep(0.01)
    await bus.close()
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), OutcomeUnknown, OutcomeUnknown]
    assert all("its bus was closed" in str(answer) for answer in answers[1:])
    assert ids(ground) == ["first", "a"]


async def test_what_has_not_begun_to_leave_does_not_when_its_caller_is_cancelled(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("first")])
    install(ground, kind="delay", delay_s=0.3, operation="send")
    under_way = asyncio.create_task(bus.send([output("a")]))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(bus.send([output("b")]))
    await asyncio.sleep(0)
    waiting.cancel()
    await under_way
    await bus.send([output("c")])
    assert ids(ground) == ["first", "a", "c"]


async def test_a_sender_that_is_cancelled_leaves_the_link_whole(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output("0")])  # the link is open: what is cancelled is a transfer
    install(ground, kind="delay", delay_s=0.3, operation="send")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bus.send([output("a")])
    await bus.send([output("b")])
    assert ids(ground) == ["0", "a", "b"]
    assert bus.usage.by_kind["send"].count == 3, "the transfer of the caller that left was seen through"


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
        application_properties={
            "outbox-created": "1700000000000",
            "outbox-hops": -1,
            "outbox-type": 5,
            "outbox-attempt": "9" * 5_000,
            "raw": b"x",
        },
    )
    async with ground.namespaces[0].sender(QUEUE) as sender:
        await sender.send_messages(value)
        await sender.send_messages(AmqpAnnotatedMessage(data_body=[b"two ", b"parts"]))
    found = {one.message.body: one.message for one in await received(bus, count=2)}
    theirs = {task.message.body: task.message for task in ground.engine.broker.peek(QUEUE, 0, 10)}
    assert set(found) == set(theirs) == {b"text", b"two parts"}
    for body, message in found.items():
        for name in (
            "message_id",
            "outbox_id",
            "created_ms",
            "hops",
            "type",
            "attempt",
            "correlation_id",
            "session_id",
        ):
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
