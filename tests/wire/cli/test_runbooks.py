"""The runbooks again, over Cosmos DB and Service Bus: each that can occur there is followed, step by step, to its end.

tests/unit/ops/test_runbooks.py rehearses them on a folder.  Here hosts are workers on the emulators through the real
SDKs; a deployment is another host with mended handlers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from outbox import App, Reject, Retries
from outbox.emulator.faults import FaultRule
from outbox.engine.entities import QueueSettings
from outbox.engine.state.tasks import SCHEDULED
from outbox.message import Message, schema_properties
from outbox.testing import START_S
from tests.unit.messages import Count, Order
from tests.wire.cli.planted import During, Run, Site, Stuck, count


def shop(*, is_mended: bool = False, schema: int = 1) -> App:
    """The application, before or after its next deployment."""
    app = App("shop", retry=Retries(limit=50, delays_s=(2.0,)))
    app.queue("ledger", "per_key")
    app.message("Order", version=schema, upcasts=dict.fromkeys(range(1, schema), dict))(Order)

    @app.handler("orders", key="key")
    def take(order: Order, count: Count) -> None:
        if order.how == "fail" and not is_mended:
            raise ConnectionError("the pricing service does not answer")
        count.n += 1

    @app.handler("refunds", key="key")
    def refund(order: Order, count: Count) -> None:
        if not is_mended or order.how == "hopeless":
            raise Reject(f"no such order {order.key}")
        count.n += 1

    @app.handler("ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, count: Count) -> None:
        if order.how == "refuse" and not is_mended:
            raise Reject("no such account")
        count.n += 1

    return app


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        site.handle(shop())
        yield site


def send(run: Run, queue: str, id: str, order: Order, *options: str) -> None:
    body = json.dumps({"key": order.key, "how": order.how})
    key = ("--key", order.key) if queue == "ledger" else ()
    assert run("send", queue, body, "--id", id, *key, *options)[0] == 0


def test_backlog(site: Site, run: Run) -> None:
    send(run, "orders", "waits-1", Order("backlog"))
    assert re.search(r"^orders +1 ", run("status")[1], re.MULTILINE)
    said = run("queue", "peek", "orders")[1]
    assert "waits-1" in said and "for a worker to take it" in said
    site.handle(shop())
    assert count(run, "backlog") == 1 and "nothing of that kind" in run("queue", "peek", "orders")[1]


def test_failing_handler(site: Site, run: Run) -> None:
    send(run, "orders", "fails-1", Order("failing", "fail"))
    site.handle(shop(), until=lambda: site.statuses("orders").get("fails-1") == SCHEDULED)
    said = run("queue", "peek", "orders", "--state", "retrying")[1]
    assert "fails-1" in said and "put back for: ConnectionError: the pricing service does not answer" in said
    assert run("queue", "pause", "orders")[0] == 0
    assert "orders is paused: nothing is taken from it" in run("status")[1]
    assert "orders" in run("doctor")[1] and count(run, "failing") == 0
    assert run("queue", "resume", "orders")[0] == 0
    site.handle(shop(is_mended=True), until=lambda: not site.statuses("orders"))
    assert count(run, "failing") == 1


def test_poison(site: Site, run: Run) -> None:
    for n, how in enumerate(("", "", "hopeless")):
        send(run, "refunds", f"refund-{n}", Order(f"poison-{n}", how))
    site.handle(shop())
    groups = json.loads(run("dead-letters", "list", "--group", "--json")[1])
    assert [(one["queue"], one["error"], one["count"]) for one in groups if one["queue"] == "refunds"] == [
        ("refunds", "rejected by the handler", 1)
    ] * 3
    assert "no such order poison-0" in run("dead-letters", "show", "refunds", "refund-0")[1]
    assert "outbox dead-letters list refunds --group" in run("doctor")[1]
    assert run("dead-letters", "discard", "refunds", "--text", "hopeless") == (0, "discarded 1 of refunds\n")
    assert run("dead-letters", "resubmit", "refunds", "--all") == (0, "resubmitted 2 of refunds\n")
    site.handle(shop(is_mended=True))
    assert [count(run, f"poison-{n}") for n in range(3)] == [1, 1, 0]


def test_poison_that_was_too_old(site: Site, run: Run) -> None:
    send(run, "orders", "old-1", Order("old"), "--created", str(START_S))
    site.handle(shop())
    code, said = run("dead-letters", "resubmit", "orders", "old-1")
    assert code == 1 and "look at its state, discard it" in said and "new id" in said
    assert count(run, "old") == 0
    assert run("dead-letters", "discard", "orders", "old-1")[0] == 0
    send(run, "orders", "old-1-again", Order("old"))
    site.handle(shop())
    assert count(run, "old") == 1


@pytest.mark.parametrize(("by", "after"), [("discard", 1), ("resubmit", 2)])
def test_blocked_key(site: Site, run: Run, by: str, after: int) -> None:
    key = f"book-{by}"
    send(run, "ledger", f"{by}-1", Order(key, "refuse"))
    send(run, "ledger", f"{by}-2", Order(key))
    site.handle(shop(), stays=[f"{by}-2"], until=lambda: f"{by}-1" not in site.statuses("ledger"))
    said = run("blocked", "list")[1]
    assert key in said and f"{by}-1" in said and "no such account" in said
    assert f"blocked by dead letter '{by}-1'" in run("queue", "peek", "ledger", "--state", "blocked")[1]
    assert run("blocked", "unblock", "ledger", key, "--by", by)[0] == 0
    site.handle(shop(is_mended=True), until=lambda: not site.statuses("ledger"))
    assert count(run, key) == after and run("blocked", "list", "ledger")[1] == "no key is blocked\n"


def test_stuck_transaction(site: Site, run: Run) -> None:
    site.plant([Stuck("orders", "stuck-1", "stuck-key")])
    site.thread.run(lambda: site.engine.topology.delete("away"))
    code, said = run("doctor")
    assert code == 1 and "1 transaction whose outputs have not left" in said
    tx = re.search(r"outbox pending finish (\w+)", said)
    assert tx is not None
    assert "away" in run("pending", "list")[1] and "stuck-key" in run("pending", "explain", tx[1])[1]
    code, said = run("pending", "finish", tx[1])
    assert code == 1 and "away: 1 not sent" in said and "no such queue" in said
    site.thread.run(lambda: site.engine.declare(QueueSettings("away")))
    assert run("pending", "finish", tx[1])[1] == "finished 1\n"
    assert run("pending", "list")[1] == "nothing is pending\n" and len(site.statuses("away")) == 1


def test_where_is_message_x(site: Site, run: Run) -> None:
    send(run, "orders", "where-1", Order("where"))
    assert run("message", "show", "where")[1].startswith("where-1 in orders: waiting, for a worker to take it")
    site.handle(shop())
    code, said = run("message", "show", "where-1")
    assert code == 1 and "it was handled, or never sent" in said and "outbox message trace where-1" in said
    assert '"n": 1' in run("state", "Count", "where")[1]
    assert "applied in orders by take, key where" in run("message", "trace", "where-1", "--key", "where")[1]


def test_too_early(site: Site, run: Run) -> None:
    site.thread.run(
        lambda: site.engine.broker.send(
            "orders", [Message(body=b"{}", outbox_id="early-1")], due_ms=site.engine.now_ms() + 3_600_000
        )
    )
    assert "due in" in run("schedule", "list", "orders")[1]
    assert run("schedule", "cancel", "orders", "early-1") == (0, "cancelled early-1 in orders\n")
    assert "nothing of that kind" in run("schedule", "list", "orders")[1]


def test_throttled(site: Site, run: Run) -> None:
    send(run, "orders", "slowed-1", Order("slowed"))
    rules = [
        FaultRule(kind="throttled", operation=name, retry_after_s=0.001, count=None) for name in ("batch", "query")
    ]
    with site.faulty([During(cosmos=rule) for rule in rules]):
        fired = site.cosmos_faults.fired.get("throttled", 0)
        site.handle(shop(), until=lambda: site.cosmos_faults.fired.get("throttled", 0) > fired + 3)
        code, said = run("status")
        assert code == 1 and "throttled (429); try again later" in said
    assert count(run, "slowed") == 0 and "slowed-1" in run("queue", "peek", "orders")[1]
    site.handle(shop(), until=lambda: not site.statuses("orders"))
    assert count(run, "slowed") == 1


def test_no_answer(site: Site, run: Run) -> None:
    send(run, "orders", "dark-1", Order("dark"))
    with site.faulty([During(cosmos=FaultRule(kind="reset", count=None))]):
        code, said = run("status")
        assert code == 1 and "127.0.0.1" in said and "(--cosmos)" in said and "answer from here" in said
    with site.faulty([During(bus=FaultRule(kind="reset", count=None))]):
        code, said = run("queue", "peek", "orders")
        assert code == 1 and "127.0.0.1" in said and "(--servicebus)" in said
    site.handle(shop())
    assert count(run, "dark") == 1


def test_wrong_deploy(site: Site, run: Run) -> None:
    message = Message(
        body=b'{"key": "newer"}', type="Order", outbox_id="newer-1", properties=schema_properties(2), session_id=""
    )
    site.thread.run(lambda: site.engine.broker.send("orders", [message]))
    site.handle(shop(), until=lambda: site.statuses("orders").get("newer-1") == SCHEDULED)
    said = run("message", "show", "newer-1")[1]
    assert "schema 2 of Order is newer than 1" in said and "deploy the newer build" in said
    site.handle(shop(schema=2), until=lambda: not site.statuses("orders"))
    assert count(run, "newer") == 1
