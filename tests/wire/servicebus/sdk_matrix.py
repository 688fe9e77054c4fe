"""Which public calls of the real SDK work against the endpoint, found by making them.

Every scenario makes calls and looks at what came of them; a call counts once it has returned.  What is not called at
all stands in the table as such, so that a new version of the SDK shows what it has that nobody tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import azure.servicebus.aio.management
import azure.servicebus.management
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, TopicSettings
from tests.wire.conftest import MODES, Blocking, Bus, Sdk
from tests.wire.servicebus.administration import Admin

MODULES = {
    "sync": (azure.servicebus, azure.servicebus.management),
    "aio": (azure.servicebus.aio, azure.servicebus.aio.management),
}
CLASSES = (
    "ServiceBusClient", "ServiceBusSender", "ServiceBusReceiver", "ServiceBusSession", "AutoLockRenewer",
    "ServiceBusAdministrationClient",
)  # fmt: skip


def public_calls(mode: str) -> list[str]:
    """Every public method and property of the SDK's clients in one of its shapes."""
    found = []
    for name in CLASSES:
        module = next(module for module in MODULES[mode] if hasattr(module, name))
        found += [f"{name}.{attribute}" for attribute in dir(getattr(module, name)) if not attribute.startswith("_")]
    return found


class Recorder:
    """An object of the SDK that notes which of its calls returned."""

    def __init__(self, target: Any, worked: set[str]) -> None:
        self.target = target
        self._worked = worked
        inner = target._target if isinstance(target, Blocking) else target
        self._kind = "ServiceBusAdministrationClient" if isinstance(target, Admin) else type(inner).__name__

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not callable(value):
            self._worked.add(f"{self._kind}.{name}")
            return self._wrapped(value)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [arg.target if isinstance(arg, Recorder) else arg for arg in args]
            result = value(*plain, **kwargs)
            self._worked.add(f"{self._kind}.{name}")
            return self._wrapped(result)

        return call

    def _wrapped(self, value: Any) -> Any:
        inner = value._target if isinstance(value, Blocking) else value
        return Recorder(value, self._worked) if type(inner).__name__ in CLASSES else value

    def __enter__(self) -> Recorder:
        self.target.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.target.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.target)


class Run:
    """One shape of the SDK against an endpoint of its own."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.worked: set[str] = set()
        self.bus = Bus(Engine.in_memory)
        self.bus.declare(QueueSettings("q", lock_s=10), QueueSettings("keyed", ordering="per_key"))
        self.bus.declare(TopicSettings("t", ("s",)))
        self.bus.declare(QueueSettings("t/Subscriptions/keyed", ordering="per_key"), TopicSettings("t", ("keyed",)))
        self.sdk = Sdk(self.bus, mode)
        self.client = Recorder(self.sdk.client, self.worked)
        self.worked.add("ServiceBusClient.from_connection_string")
        admin = Admin(self.bus.connection_string, mode)
        self.worked.add("ServiceBusAdministrationClient.from_connection_string")
        self.admin = Recorder(admin, self.worked)

    def end(self) -> None:
        self.admin.target.end()
        self.worked.add("ServiceBusAdministrationClient.close")
        self.sdk.close()
        self.worked.add("ServiceBusClient.close")
        self.bus.stop()
        self.bus.thread.stop()


def sending(run: Run) -> None:
    with run.client.get_queue_sender("q", keep_alive=0, client_identifier="me") as sender:
        assert sender.client_identifier == "me"
        sender.send_messages(ServiceBusMessage("one"))
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("two"))
        sender.send_messages(batch)
        sender.send_messages([ServiceBusMessage("three")])
        due = datetime.now(UTC) + timedelta(hours=1)
        numbers = sender.schedule_messages([ServiceBusMessage("later"), ServiceBusMessage("never")], due)
        sender.cancel_scheduled_messages(numbers)
        sender.close()
    assert run.bus.bodies("q") == [b"one", b"two", b"three"]


def receiving(run: Run) -> None:
    with run.client.get_queue_receiver("q", keep_alive=0, prefetch_count=1, client_identifier="me") as receiver:
        assert (receiver.client_identifier, receiver.session) == ("me", None)
        assert [str(message) for message in receiver.peek_messages(3)] == ["one", "two", "three"]

        def take() -> Any:
            [message] = receiver.receive_messages(1, max_wait_time=5)
            return message

        message = take()
        receiver.abandon_message(message)
        receiver.renew_message_lock(again := take())
        receiver.defer_message(again)
        [deferred] = receiver.receive_deferred_messages([again.sequence_number])
        receiver.complete_message(deferred)
        receiver.dead_letter_message(take(), reason="r")
        last = receiver.next() if run.mode == "sync" else next(iter(receiver))
        receiver.complete_message(last)
        receiver.close()
    assert run.bus.bodies("q") == []
    assert len(run.bus.bodies("q/$DeadLetterQueue")) == 1


def subscribing(run: Run) -> None:
    with run.client.get_topic_sender("t", keep_alive=0) as sender:
        sender.send_messages(ServiceBusMessage("m", session_id="k"))
    with run.client.get_subscription_receiver("t", "s", keep_alive=0, prefetch_count=1) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=5)
        receiver.complete_message(message)


def sessions(run: Run) -> None:
    with run.client.get_queue_sender("keyed", keep_alive=0) as sender:
        sender.send_messages(ServiceBusMessage("m", session_id="k"))
    options = {"session_id": "k", "keep_alive": 0, "prefetch_count": 1}
    with run.client.get_queue_receiver("keyed", **options) as receiver:
        session = receiver.session
        session.set_state(b"state")
        assert (session.session_id, session.get_state()) == ("k", b"state")
        session.renew_lock()
        assert session.locked_until_utc > datetime.now(UTC)
        [message] = receiver.receive_messages(1, max_wait_time=5)
        receiver.complete_message(message)
    assert _listed(run, "list_queue_sessions", "keyed") == ["k"]
    assert _listed(run, "list_subscription_sessions", "t", "keyed") == ["k"]


def _listed(run: Run, name: str, *args: str) -> list[str]:
    pages = getattr(run.client, name)(*args)
    if run.mode == "sync":
        return list(pages)

    async def all_of() -> list[str]:
        return [item async for item in pages]

    found: list[str] = run.sdk.run(all_of)
    return found


def renewing(run: Run) -> None:
    run.bus.send("q", "m")
    is_sync = run.mode == "sync"
    renewer: Any = azure.servicebus.AutoLockRenewer() if is_sync else run.sdk.run(azure.servicebus.aio.AutoLockRenewer)
    with run.client.get_queue_receiver("q", keep_alive=0, prefetch_count=1) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=5)
        plain = receiver.target
        if is_sync:
            renewer.register(plain, message, 5)
        else:
            run.sdk.run(lambda: renewer.register(plain._target, message, 5))
        run.worked.add("AutoLockRenewer.register")
        receiver.complete_message(message)
    if is_sync:
        renewer.close()
    else:
        run.sdk.run(renewer.close)
    run.worked.add("AutoLockRenewer.close")


def administering(run: Run) -> None:
    admin = run.admin
    namespace = admin.get_namespace_properties()
    assert (namespace.name, namespace.messaging_sku) == ("outbox", "Standard")
    queue = admin.create_queue("made")
    admin.update_queue(queue, max_delivery_count=3)
    assert admin.get_queue("made").max_delivery_count == 3
    assert admin.get_queue_runtime_properties("made").total_message_count == 0
    assert "made" in [item.name for item in admin.list_queues()]
    assert "made" in [item.name for item in admin.list_queues_runtime_properties()]
    admin.delete_queue("made")
    topic = admin.create_topic("made")
    admin.update_topic(topic, user_metadata="x")
    assert admin.get_topic("made").user_metadata == "x"
    assert admin.get_topic_runtime_properties("made").subscription_count == 0
    assert {"made", "t"} <= {item.name for item in admin.list_topics()}
    assert {"made", "t"} <= {item.name for item in admin.list_topics_runtime_properties()}
    subscription = admin.create_subscription("made", "s")
    admin.update_subscription("made", subscription, max_delivery_count=3)
    assert admin.get_subscription("made", "s").max_delivery_count == 3
    assert admin.get_subscription_runtime_properties("made", "s").total_message_count == 0
    assert [item.name for item in admin.list_subscriptions("made")] == ["s"]
    assert [item.name for item in admin.list_subscriptions_runtime_properties("made")] == ["s"]
    rule = admin.create_rule("made", "s", "r", filter=CorrelationRuleFilter(label="x"))
    rule.filter = FalseRuleFilter()
    admin.update_rule("made", "s", rule)
    assert isinstance(admin.get_rule("made", "s", "r").filter, FalseRuleFilter)
    assert [item.name for item in admin.list_rules("made", "s")] == ["$Default", "r"]
    admin.delete_rule("made", "s", "r")
    admin.delete_subscription("made", "s")
    admin.delete_topic("made")


SCENARIOS: tuple[Callable[[Run], None], ...] = (sending, receiving, subscribing, sessions, renewing, administering)


def worked(mode: str) -> set[str]:
    """The calls that worked; a scenario that fails ends the run."""
    run = Run(mode)
    try:
        for scenario in SCENARIOS:
            scenario(run)
    finally:
        run.end()
    return run.worked


def table(found: dict[str, set[str]]) -> str:
    """The matrix: every public call, and in which shapes it worked."""
    calls = {mode: public_calls(mode) for mode in MODES}
    lines = ["| call | synchronous | asynchronous |", "|---|:---:|:---:|"]
    for call in dict.fromkeys(call for mode in MODES for call in calls[mode]):
        cells = ["yes" if call in found[mode] else "not run" if call in calls[mode] else "-" for mode in MODES]
        lines.append(f"| `{call}` | {' | '.join(cells)} |")
    version = azure.servicebus.__version__
    return f"\nazure-servicebus {version.rpartition('.')[0]}:\n\n" + "\n".join(lines) + "\n\n"
