"""A retention that changes: what was remembered for a shorter time is not run again, and nobody's records go early."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from outbox import App, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.ports import Backend
from outbox.runtime.start.notes import ERA_COUNT_MAX, PastRetention, RetentionWindow
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Account, Deposit, deliver

HOUR_S = 3_600
DAY_S = 24 * HOUR_S


class Site:
    """An engine whose time is the test's, and an application that remembers for some days."""

    def __init__(self, engine: Engine, clock: VirtualClock, scope: str) -> None:
        self.engine, self.clock = engine, clock
        self.backend: Backend = engine
        if scope != "engine":
            self.backend = NarrowEngine(engine, "item" if scope == "item" else "partition")

    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.engine.tick()  # records expire

    def worker(self, days: float) -> Worker:
        app = App("bank", retention=timedelta(days=days), margin=timedelta(hours=1))

        @app.handler("deposits", key="account")
        def deposit(message: Deposit, account: Account) -> None:
            account.balance += message.amount

        return Worker(app, self.backend)

    async def balance(self, days: float, *sent: tuple[str, float]) -> int:
        """What an account holds after these messages, by id and creation time, under a retention."""
        async with self.worker(days) as worker:
            for id, created in sent:
                await worker.send("deposits", Deposit("a", 1), id=id, created=created)
            await worker.wait_idle()
            found = await worker.state(Account, "a")
            return 0 if found is None else found.balance

    async def reasons(self) -> list[str]:
        return [dead_letter.reason for dead_letter in await self.worker(1).dead_letters("deposits")]


@pytest.fixture
async def site(scope: str) -> AsyncIterator[Site]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        yield Site(engine, clock, scope)


async def test_a_raised_retention_runs_nothing_again_whose_record_may_be_gone(site: Site) -> None:
    assert await site.balance(1, ("m", START_S)) == 1
    site.pass_time(2 * DAY_S)  # the record is gone
    assert await site.balance(7, ("m", START_S)) == 1
    assert await site.reasons() == ["too-old"]


async def test_what_was_created_since_a_raise_is_remembered_for_the_longer_time(site: Site) -> None:
    await site.balance(1)
    await site.balance(7)
    site.pass_time(2 * HOUR_S)  # workers of the earlier retention are gone
    created = site.clock.seconds
    assert await site.balance(7, ("m", created)) == 1
    site.pass_time(2 * DAY_S)
    assert await site.balance(7, ("m", created), ("late", created)) == 2
    assert await site.reasons() == []


async def test_a_worker_that_still_has_the_lower_retention_leaves_no_hole(site: Site) -> None:
    async with site.worker(1) as old:
        await site.balance(7)
        await deliver(old, "deposits", Deposit("a", 1), id="m")
    site.pass_time(2 * DAY_S)
    assert await site.balance(7, ("m", START_S)) == 1
    assert await site.reasons() == ["too-old"]


async def test_a_lowered_retention_keeps_records_for_workers_that_have_the_higher(site: Site) -> None:
    async with site.worker(7) as old:
        assert await site.balance(1, ("m", START_S)) == 1
        site.pass_time(2 * DAY_S)
        old.app.queue("deposits")
        await deliver(old, "deposits", Deposit("a", 1), id="m", created=START_S)
        found = await old.state(Account, "a")
        assert found == Account(1)


async def test_a_change_is_reported_at_the_start(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outbox.retention"):
        await site.balance(1)
        await site.balance(1)
        assert caplog.messages == []
        await site.balance(7)
        await site.balance(2)
    assert [text.partition(";")[0] for text in caplog.messages] == ["retention raised", "retention lowered"]


async def test_too_many_retentions_that_still_matter_are_refused(site: Site) -> None:
    for hours in range(1, ERA_COUNT_MAX + 2):
        await site.balance(5 + hours / 24)
    with pytest.raises(NotRegistrable, match="go back to one of them"):
        await site.balance(20)
    assert await site.balance(5 + 3 / 24) == 0


def test_a_message_is_too_old_by_the_shortest_retention_of_its_time() -> None:
    memory = RetentionWindow(7 * DAY_S, 8 * DAY_S)
    memory.heed((PastRetention(10 * DAY_S, DAY_S, HOUR_S), PastRetention(5 * DAY_S, 9 * DAY_S, HOUR_S)), 9 * DAY_S)
    assert memory.oldest_ms(10 * DAY_S) == 9 * DAY_S
    assert memory.oldest_ms(12 * DAY_S) == 10 * DAY_S
    assert memory.oldest_ms(20 * DAY_S) == 13 * DAY_S
