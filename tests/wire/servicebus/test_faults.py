"""Every fault of the bus as the real SDK meets it: what it sees, and what is true behind its back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)

from outbox.emulator.bus.faulty import KINDS
from outbox.emulator.faults import FaultRule, drawn
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from tests.wire.conftest import Bus, Sdk
from tests.wire.servicebus.test_settling import one

Install = Callable[..., None]
QUICK = {"timeout": 1.0}
"""Receivers that wait a second, not a minute, for the answer to a settlement."""
ENDED = (ServiceBusError, ValueError)
"""What the SDK raises where a fault met it, and of messages in hand once it has closed its link behind that."""


@pytest.fixture
def queue(bus: Bus) -> str:
    name = f"faulty-{uuid4().hex[:8]}"
    bus.declare(QueueSettings(name, lock_s=30))
    return name


@pytest.fixture
def install(bus: Bus, queue: str) -> Iterator[Install]:
    """Install a rule for the test's own queue; none is left behind, and each must have fired."""
    faults = bus.server.faults

    def add(**fields: Any) -> None:
        bus.call(lambda engine: faults.install(FaultRule(**{"where": queue, **fields})))

    yield add
    installed = bus.call(lambda engine: faults.installed())
    bus.call(lambda engine: faults.clear())
    assert all(item.fired_count for item in installed), installed


def fired(bus: Bus) -> int:
    return sum(item.fired_count for item in bus.call(lambda engine: bus.server.faults.installed()))


# Sending


def test_a_send_whose_reply_is_lost_has_happened(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="lost-reply", operation="send")
    with sdk.sender(queue, shared=False) as sender, pytest.raises(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("m"), timeout=1)
    assert bus.bodies(queue) == [b"m"]


def test_a_sender_that_tries_again_after_a_lost_reply_sends_twice(
    bus: Bus, sdk: Sdk, queue: str, install: Install
) -> None:
    install(kind="lost-reply", operation="send")
    with sdk.sender(queue, shared=False) as sender:
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("m", message_id="same"), timeout=1)
        sender.send_messages(ServiceBusMessage("m", message_id="same"))
    assert bus.bodies(queue) == [b"m", b"m"]


@pytest.mark.parametrize(
    ("kind", "error"), [("throttled", ServiceBusServerBusyError), ("refused", ServiceBusError)], ids=str
)
def test_a_refused_send_has_not_happened_and_the_sender_lives_on(
    bus: Bus, sdk: Sdk, queue: str, install: Install, kind: Any, error: type[Exception]
) -> None:
    install(kind=kind, operation="send", retry_after_s=2 if kind == "throttled" else 0)
    with sdk.sender(queue, shared=False) as sender:
        with pytest.raises(error, match="fault rule"):
            sender.send_messages(ServiceBusMessage("lost"))
        sender.send_messages(ServiceBusMessage("sent"))
    assert bus.bodies(queue) == [b"sent"]


@pytest.mark.parametrize("kind", ["reset", "detach"])
def test_a_send_on_a_broken_way_has_not_happened_and_is_tried_again(
    bus: Bus, sdk: Sdk, queue: str, install: Install, kind: Any
) -> None:
    install(kind=kind, operation="send")
    with sdk.sender(queue, shared=False) as sender:
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("m"), timeout=2)
        assert bus.bodies(queue) == []
        sender.send_messages(ServiceBusMessage("m"))
    assert bus.bodies(queue) == [b"m"]


def test_a_delayed_send_happens_later_and_is_answered_then(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="delay", operation="send", delay_s=0.5)
    with sdk.sender(queue, shared=False) as sender:
        started_s = time.monotonic()
        sender.send_messages(ServiceBusMessage("m"))
        assert time.monotonic() - started_s > 0.45
    assert bus.bodies(queue) == [b"m"]


@pytest.mark.parametrize(
    ("kind", "error"), [("throttled", ServiceBusServerBusyError), ("refused", ServiceBusError)], ids=str
)
def test_a_link_can_be_refused_and_asked_for_again(
    sdk: Sdk, queue: str, install: Install, kind: Any, error: type[Exception]
) -> None:
    install(kind=kind, operation="attach")
    with pytest.raises(error, match="fault rule"):
        sdk.sender(queue, shared=False).__enter__()
    with sdk.sender(queue, shared=False) as sender:
        sender.send_messages(ServiceBusMessage("m"))


# Receiving


@pytest.mark.parametrize("delay_s", [0, 0.3])
def test_a_lock_can_expire_in_the_receivers_hands(
    bus: Bus, sdk: Sdk, queue: str, install: Install, delay_s: float
) -> None:
    install(kind="lock-expiry", operation="receive", delay_s=delay_s)
    with sdk.receiver(queue, shared=False) as receiver:
        bus.send(queue, "m")  # not before: what comes while it opens, the SDK gives back
        message = one(receiver)
        time.sleep(delay_s * 2)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        again = one(receiver)
        assert again.delivery_count == 1
        receiver.complete_message(again)
    assert bus.bodies(queue) == []


def test_a_session_can_be_lost_in_the_receivers_hands(bus: Bus, sdk: Sdk, install: Install) -> None:
    queue = f"faulty-keyed-{uuid4().hex[:8]}"
    bus.declare(QueueSettings(queue, ordering="per_key"))
    bus.send(queue, "m", session_id="s")
    install(kind="lock-expiry", operation="receive", where=queue)
    with sdk.receiver(queue, shared=False, session_id="s") as receiver:
        message = one(receiver)
        time.sleep(0.1)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(message)
    assert bus.bodies(queue) == [b"m"]


def test_a_message_can_come_twice_under_one_id(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="duplicate", operation="receive")
    bus.send(queue, "m", message_id="same")
    with sdk.receiver(queue, shared=False) as receiver:
        found: list[Any] = []
        for _ in range(2):
            found.append(one(receiver))
            receiver.complete_message(found[-1])
    assert [message.message_id for message in found] == ["same", "same"]
    assert found[0].sequence_number != found[1].sequence_number
    assert bus.bodies(queue) == []


def test_a_message_can_come_after_a_later_one(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="reorder", operation="receive")
    with sdk.receiver(queue, shared=False, prefetch_count=10) as receiver:
        bus.send(queue, "1", "2", "3")
        found: list[Any] = []
        while len(found) < 3:
            found += receiver.receive_messages(3 - len(found), max_wait_time=3)
        assert [str(message) for message in found] == ["2", "3", "1"]
        for message in found:
            receiver.complete_message(message)
    assert bus.bodies(queue) == []


def test_a_message_that_nothing_overtakes_comes_all_the_same(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="reorder", operation="receive", delay_s=0.3)
    bus.send(queue, "1")
    with sdk.receiver(queue, shared=False) as receiver:
        started_s = time.monotonic()
        receiver.complete_message(one(receiver))
        assert time.monotonic() - started_s > 0.25


def test_a_delayed_delivery_is_locked_meanwhile(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="delay", operation="receive", delay_s=0.6)
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False) as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.2) == []
        states = bus.call(lambda engine: [task.state for task in engine.broker.peek(queue, 0, 9)])
        assert states == ["locked"]
        receiver.complete_message(one(receiver))


@pytest.mark.parametrize("kind", ["reset", "detach"])
def test_a_receiver_whose_way_breaks_gets_its_messages_when_it_comes_back(
    bus: Bus, sdk: Sdk, queue: str, install: Install, kind: Any
) -> None:
    bus.declare(QueueSettings(queue, lock_s=1))  # what was in the client's hands when its way broke stays locked
    install(kind=kind, operation="receive", after=1)
    bus.send(queue, "1", "2", "3")
    found: list[str] = []
    with sdk.receiver(queue, shared=False) as receiver:
        deadline_s = time.monotonic() + 20
        while len(found) < 3 and time.monotonic() < deadline_s:
            try:
                for message in receiver.receive_messages(3, max_wait_time=1):
                    receiver.complete_message(message)
                    found.append(str(message))
            except ENDED:
                continue  # what the test is about
    assert sorted(found) == ["1", "2", "3"]
    assert bus.bodies(queue) == []


# Settling


def test_a_settlement_whose_answer_is_lost_has_happened(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="lost-disposition", operation="settle")
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False, **QUICK) as receiver:
        message = one(receiver)
        with pytest.raises(MessageLockLostError):  # so the SDK's second way, $management, tells it
            receiver.complete_message(message)
    assert bus.bodies(queue) == []


def test_a_settlement_that_is_answered_with_another_outcome_is_not_believed(
    bus: Bus, sdk: Sdk, queue: str, install: Install
) -> None:
    install(kind="wrong-disposition", operation="settle")
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False, **QUICK) as receiver:
        message = one(receiver)
        with pytest.raises(ServiceBusError, match="settle"):
            receiver.complete_message(message)
    assert bus.bodies(queue) == []


def test_a_lock_can_expire_just_before_the_settlement(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="lock-expiry", operation="settle")
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False) as receiver:
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(one(receiver))
        receiver.complete_message(one(receiver))
    assert bus.bodies(queue) == []


def test_a_delayed_settlement_happens_later_and_is_answered_then(
    bus: Bus, sdk: Sdk, queue: str, install: Install
) -> None:
    install(kind="delay", operation="settle", delay_s=0.5)
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False) as receiver:
        message = one(receiver)
        started_s = time.monotonic()
        receiver.complete_message(message)
        assert time.monotonic() - started_s > 0.45
    assert bus.bodies(queue) == []


@pytest.mark.parametrize("kind", ["reset", "detach"])
def test_a_settlement_on_a_broken_way_has_not_happened(
    bus: Bus, sdk: Sdk, queue: str, install: Install, kind: Any
) -> None:
    install(kind=kind, operation="settle")
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False, **QUICK) as receiver:
        message = one(receiver)
        try:
            receiver.complete_message(message)
        except ServiceBusError:
            assert bus.bodies(queue) == [b"m"]
        else:
            assert bus.bodies(queue) == []  # over $management, which the SDK falls back on
        assert fired(bus) == 1


# Asking


def test_requests_to_the_management_node_can_be_throttled_by_name(
    bus: Bus, sdk: Sdk, queue: str, install: Install
) -> None:
    install(kind="throttled", operation="manage/peek-message")
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False) as receiver:
        with pytest.raises(ServiceBusError):
            receiver.peek_messages(1)
        assert len(receiver.peek_messages(1)) == 1


def test_a_request_whose_reply_is_lost_has_happened(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="lost-reply", operation="manage/*")
    with sdk.sender(queue, shared=False) as sender, pytest.raises(OperationTimeoutError):
        sender.schedule_messages(ServiceBusMessage("m"), datetime.now(UTC) + timedelta(hours=1), timeout=1)
    assert bus.bodies(queue) == [b"m"]


# Clients


def test_one_client_can_be_paused_while_another_goes_on(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="pause", operation="send", client="slow", delay_s=1.0)

    def sender(name: str) -> Any:
        return sdk.client.get_queue_sender(queue, keep_alive=0, client_identifier=name)

    with sender("slow-one") as slow, sender("other") as other:
        started_s = time.monotonic()
        other.send_messages(ServiceBusMessage("other"))
        assert time.monotonic() - started_s < 0.9
        started_s = time.monotonic()
        slow.send_messages(ServiceBusMessage("slow"))
        assert time.monotonic() - started_s > 0.9
    assert bus.bodies(queue) == [b"other", b"slow"]


def test_a_paused_client_hears_nothing_of_a_durable_host_either(disk_path: Path) -> None:
    bus = Bus(lambda: Engine.open(disk_path / "log"))
    bus.declare(QueueSettings("q"))
    sdk = Sdk(bus, "sync")
    with sdk.sender("q", shared=False) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        rule = FaultRule(kind="pause", operation="send", delay_s=0.6)
        bus.call(lambda engine: bus.server.faults.install(rule))
        started_s = time.monotonic()
        sender.send_messages(ServiceBusMessage("paused"))
        assert time.monotonic() - started_s > 0.5
    assert bus.bodies("q") == [b"before", b"paused"]
    sdk.close()
    bus.stop()
    bus.thread.stop()


def test_a_rule_can_be_about_one_message(bus: Bus, sdk: Sdk, queue: str, install: Install) -> None:
    install(kind="refused", operation="send", key="m2")
    with sdk.sender(queue, shared=False) as sender:
        for name in ("m1", "m2", "m3"):
            try:
                sender.send_messages(ServiceBusMessage(name, message_id=name))
            except ServiceBusError:
                assert name == "m2"
    assert bus.bodies(queue) == [b"m1", b"m3"]


@pytest.mark.parametrize("seed", [1, 2])
def test_faults_drawn_from_a_seed_lose_nothing_that_was_acknowledged(
    bus: Bus, sdk: Sdk, queue: str, install: Install, seed: int
) -> None:
    rules = drawn(seed, ["duplicate", "lock-expiry", "reorder"], operation="receive", where=queue, within=12)
    rules += drawn(seed, ["lock-expiry", "wrong-disposition"], operation="settle", where=queue, within=12)
    bus.declare(QueueSettings(queue, lock_s=1))
    for rule in rules:
        bus.call(lambda engine, rule=rule: bus.server.faults.install(rule))  # type: ignore[misc]  # a bound lambda
    bus.send(queue, *(str(number) for number in range(12)))
    found: set[str] = set()
    with sdk.receiver(queue, shared=False, prefetch_count=5, **QUICK) as receiver:
        deadline_s = time.monotonic() + 20
        while bus.bodies(queue) and time.monotonic() < deadline_s:
            for message in receiver.receive_messages(5, max_wait_time=1):
                found.add(str(message))
                try:
                    receiver.complete_message(message)
                except ENDED:
                    continue  # it comes again, or had been settled
    assert found == {str(number) for number in range(12)}
    assert bus.bodies(queue) == []


def test_every_kind_of_the_bus_is_exercised_here() -> None:
    reported = {kind for kind in KINDS if f'"{kind}"' in Path(__file__).read_text()}
    assert reported == KINDS
