"""How many requests a look costs: on Azure each is paid for, and takes its time.

Counted where they come in, in both emulators: requests over HTTP, links that are opened, and requests over a link.
What the SDK says to open a connection and to sign on is not.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox import App, Client, Reject, Worker
from outbox.engine.entities import QueueSettings
from tests.unit.messages import Count, Order
from tests.wire.cli.planted import Site

REQUESTS_MAX = 10
DOCTOR_REQUESTS = 18
KEYS = tuple(f"key-{n}" for n in range(5))


def five() -> App:
    """An application with five queues."""
    app = App("shop")
    for name in ("one", "two", "three"):
        app.queue(name)

    @app.handler("orders", key="key")
    def take(order: Order, count: Count) -> None:
        raise Reject("no such article")

    @app.handler("ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, count: Count) -> None:
        raise Reject("no such account")

    app.queue("ledger", "per_key")
    return app


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()

    async def plant() -> None:
        app, backend = five(), await site.backend("outbox-partition")
        client = Client(app, backend)
        await client.declare()
        async with Worker(app, backend) as worker:
            for n, key in enumerate(KEYS):
                await worker.send("ledger", Order(key), id=f"first-{n}")
            while len(await client.dead_letters("ledger")) < len(KEYS):
                pass
        for n, key in enumerate(KEYS):
            await client.send("ledger", Order(key), id=f"second-{n}")
            await client.send("one", Order(key), id=f"m-{n}")
        assert len(site.engine.topology.queues) == 5

    with site:
        site.thread.run(plant)
        yield site


def counted(site: Site, command: str) -> int:
    """How many requests a command has made of both services."""
    site.bus_faults.asked.clear()
    site.cosmos.reset_usage()
    assert site.command(command) == 0
    return len(site.bus_faults.asked) + sum(each.count for each in site.cosmos.usage().values())


@pytest.mark.parametrize(
    ("command", "count", "words"),
    [
        ("status", 7, ["pending transactions: 0"]),
        ("queue peek one", 10, ["m-0", "m-4", "for a worker to take it"]),
        ("queue peek one --state scheduled", 10, ["nothing of that kind in one"]),
        ("queue peek ledger", 9, [f"blocked by dead letter 'first-{n}'" for n in range(len(KEYS))]),
        ("queue peek ledger --limit 3", 10, [f"blocked by dead letter 'first-{n}'" for n in range(3)]),
        ("queue peek ledger --key key-3", 8, ["second-3", "blocked by dead letter 'first-3'"]),
    ],
)
def test_a_look_takes_at_most_ten_requests(
    site: Site, command: str, count: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = counted(site, command)
    said = capsys.readouterr().out
    assert all(word in said for word in words), said
    assert found == count <= REQUESTS_MAX


def test_another_queue_costs_a_status_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    before = counted(site, "status")
    site.thread.run(lambda: site.engine.declare(*(QueueSettings(f"more-{n}") for n in range(20))))
    assert counted(site, "status") == before
    assert "more-19" in capsys.readouterr().out


def test_a_doctor_counts_blocked_keys_and_looks_once_into_each_queue_that_holds_any(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.bus_faults.asked.clear()
    site.cosmos.reset_usage()
    assert site.command("doctor") == 1
    found = len(site.bus_faults.asked) + sum(each.count for each in site.cosmos.usage().values())
    said = capsys.readouterr().out
    assert f"{len(KEYS)} keys are blocked by a dead letter" in said
    assert found == DOCTOR_REQUESTS
