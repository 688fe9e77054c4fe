"""The name of a queue as an operator writes it, over Cosmos DB and Service Bus: in any case, misspelt, or empty."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from outbox import App, Client
from outbox.message import Message
from outbox.ports import DeadLetterEntry
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from tests.unit.messages import Count, Order
from tests.wire.cli.planted import Run, Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    app = App("shop")
    app.queue("idle")
    app.topic("news")

    @app.handler("orders", key="key")
    def take(order: Order, count: Count) -> None:
        count.n += 1

    @app.handler("news", subscription="audit", key="key")
    def audit(order: Order, count: Count) -> None:
        count.n += 1

    async def plant() -> None:
        backend = await site.backend("outbox-partition")
        await Client(app, backend).declare()
        ports = backend.ports()
        message = Message(body=b'{"key": "a"}', type="Order", outbox_id="stored-1")
        letters = StoredDeadLetters(ports.store, ports.blobs)
        for queue in ("orders", "news/Subscriptions/audit"):
            await letters.put(DeadLetterEntry(queue, 7, message, "no", "", 1, 1_700_000_000_000))

    with site:
        site.thread.run(plant)
        site.handle(app)  # registers the handlers
        yield site


@pytest.mark.parametrize("queue", ["orders", "Orders", "NEWS/subscriptions/Audit"])
def test_what_the_store_has_of_a_queue_is_found_in_any_case(site: Site, run: Run, queue: str) -> None:
    assert [each["id"] for each in json.loads(run("dead-letters", "list", queue, "--json")[1])] == ["stored-1"]
    assert run("dead-letters", "discard", queue, "stored-1")[0] == 0
    assert [each["id"] for each in json.loads(run("dead-letters", "list", queue, "--discarded", "--json")[1])]
    assert run("dead-letters", "restore", queue, "stored-1")[0] == 0
    assert run("queue", "peek", queue)[0] == 0


def test_a_queue_without_a_handler_and_a_topic_are_found_in_any_case(site: Site, run: Run) -> None:
    assert run("queue", "peek", "Idle")[0] == 0
    assert run("send", "IDLE", "{}", "--id", "x1")[0] == 0
    assert "x1" in run("queue", "peek", "idle")[1]
    assert run("send", "News", '{"key": "n"}', "--id", "x2")[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        ("message", "show", ""),
        ("message", "trace", ""),
        ("message", "show", "x", "--queue", ""),
        ("schedule", "cancel", "orders", ""),
        ("schedule", "now", "orders", ""),
        ("pending", "finish", ""),
        ("pending", "explain", ""),
        ("pending", "list", "--tx", ""),
        ("dead-letters", "show", "orders", ""),
        ("dead-letters", "resubmit", "orders", ""),
        ("dead-letters", "discard", "orders", ""),
        ("dead-letters", "restore", "orders", ""),
        ("dead-letters", "list", ""),
        ("blocked", "unblock", "orders", "", "--by", "discard"),
        ("queue", "pause", ""),
    ],
)
def test_an_empty_id_or_name_is_refused(run: Run, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*command)
    assert ended.value.code == 2 and "is empty" in capsys.readouterr().err
