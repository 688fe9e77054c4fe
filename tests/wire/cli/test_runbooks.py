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
