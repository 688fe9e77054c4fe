"""A retention or margin that changes, to the millisecond: a worker of each setting, and who of them takes what.

Workers in one process take whatever comes first, so a test could not say which of two settings was in use.  Here each
registers itself, then takes what it is handed, by the production runtime and over the same engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from outbox import App, Client, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.ports import Backend, Ports
from outbox.runtime.delivery.intake import BusIntake, Intake
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.scopes import scope_over
from outbox.runtime.start.notes import ERA_COUNT_MAX, PastRetention, RetentionWindow, register_retention
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_operations import operations_over
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Account, Deposit

MS = 0.001
HOUR_S = 3_600
DAY_S = 24 * HOUR_S


class Site:
    """An engine whose time is the test's, and the workers that are at it."""

    def __init__(self, engine: Engine, clock: VirtualClock, scope: str) -> None:
        self.engine, self.clock = engine, clock
        self.backend: Backend = engine
        if scope != "engine":
            self.backend = NarrowEngine(engine, "item" if scope == "item" else "partition")
        self.takes_ms = 0
        """How long the first handling takes."""
        self.run_count = 0

    def go_to(self, seconds: float) -> None:
        """Let time pass until then; records expire."""
        assert seconds >= self.clock.seconds
        self.clock.seconds = seconds
        self.engine.tick()

    def app(self, *, days: float, margin_h: float) -> App:
        margin = timedelta(hours=margin_h)
        limit_s = margin.total_seconds() / 2  # the longest that there is: what is judged here is the margin
        app = App("bank", retention=timedelta(days=days), margin=margin, time_limit_s=limit_s)

        @app.handler("deposits", key="account")
        async def deposit(message: Deposit, account: Account) -> None:
            self.run_count += 1
            await asyncio.sleep(0)
            if self.run_count == 1:
                self.clock.seconds += self.takes_ms / 1_000
            account.balance += message.amount

        return app

    async def starts(self, *, days: float, margin_h: float = 1) -> At:
        """A worker with this setting, which starts now."""
        worker = At(self, self.app(days=days, margin_h=margin_h))
        await worker.client.declare()
        await register_retention("bank", worker.plan.retention, operations_over(self.backend.ports()))
        return worker


class At:
    """A worker that is at a site, and takes nothing but what it is handed."""

    def __init__(self, site: Site, app: App) -> None:
        self.client, self.plan = Client(app, site.backend), compile_app(app)
        ports, names = site.backend.ports(), count()
        self._intake: Intake = ports.journal if isinstance(ports, Ports) else BusIntake(ports.bus)
        self._tasks: set[asyncio.Task[None]] = set()
        self._scope = scope_over(
            self.plan,
            ports,
            now_ms=site.engine.now_ms,
            backoff=Backoff(lambda _: asyncio.sleep(0)),
            spawn=self._spawn,
            settled=lambda _: None,
            is_stopping=lambda: False,
            new_tx=lambda: f"{id(self)}-{next(names)}",
            failure_log=FailureLog(site.engine.now_ms),
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(coroutine))

    async def takes(self, id: str, *, created: float) -> tuple[int, str]:
        """Take a message; what the account holds then, and why the message was dead-lettered."""
        await self.client.send("deposits", Deposit("a", 1), id=id, created=created)
        (delivery,) = await self._intake.claim(["deposits"], count_max=2, wait_s=0)
        assert delivery.message.identity == id
        self._spawn(self._scope.attempt([delivery]))
        while self._tasks:
            await self._tasks.pop()
        dead_letters = await self.client.dead_letters("deposits")
        for dead_letter in dead_letters:
            await self.client.discard("deposits", dead_letter.id)
        found = await self.client.state(Account, "a")
        return (0 if found is None else found.balance), "".join(dead_letter.reason for dead_letter in dead_letters)


@pytest.fixture
async def site(scope: str) -> AsyncIterator[Site]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        yield Site(engine, clock, scope)


def overlap_s(*margins_h: float) -> float:
    """How long workers of the setting before may go on: the margin, the larger of two."""
    return max(margins_h) * HOUR_S


# Raised


@pytest.mark.parametrize("margins_h", [(1, 1), (4, 1), (1, 4)], ids=["same margin", "lowered", "raised"])
async def test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it(
    site: Site, margins_h: tuple[float, float]
) -> None:
    ends = START_S + overlap_s(*margins_h)
    old = await site.starts(days=1, margin_h=margins_h[0])
    new = await site.starts(days=7, margin_h=margins_h[1])
    site.go_to(ends)
    assert await old.takes("m", created=ends) == (1, "")  # its last moment: the record lives as it always did
    site.go_to(ends + DAY_S - MS)
    assert await new.takes("at the last moment", created=ends) == (2, "")
    site.go_to(ends + DAY_S)
    assert await new.takes("too late", created=ends) == (2, "too-old")
    site.go_to(ends + DAY_S + margins_h[0] * HOUR_S)
    assert await new.takes("m", created=ends) == (2, "too-old")  # its record is gone


async def test_what_was_created_behind_the_overlap_is_remembered_for_the_raised_retention(site: Site) -> None:
    await site.starts(days=1)
    new = await site.starts(days=7)
    created = START_S + overlap_s(1) + MS
    site.go_to(created)
    assert await new.takes("m", created=created) == (1, "")
    site.go_to(created + DAY_S)
    assert await new.takes("a day late", created=created) == (2, "")
    site.go_to(created + 7 * DAY_S - MS)
    assert await new.takes("at the last moment", created=created) == (3, "")
    site.go_to(created + 7 * DAY_S)
    assert await new.takes("too late", created=created) == (3, "too-old")
    site.go_to(created + 7 * DAY_S + HOUR_S - MS)
    assert await new.takes("m", created=created) == (3, "")  # its record is there for the margin as well
    site.go_to(created + 7 * DAY_S + HOUR_S)
    assert await new.takes("m", created=created) == (3, "too-old")


async def test_a_worker_that_starts_later_heeds_the_earlier_retention_as_the_first_does(site: Site) -> None:
    old = await site.starts(days=1)
    await site.starts(days=7)
    ends = START_S + overlap_s(1)
    site.go_to(ends)
    assert await old.takes("m", created=ends) == (1, "")
    site.go_to(ends + DAY_S + HOUR_S)
    later = await site.starts(days=7)
    assert await later.takes("m", created=ends) == (1, "too-old")


# Lowered


async def test_a_worker_that_starts_in_the_overlap_remembers_for_the_higher_retention(site: Site) -> None:
    old = await site.starts(days=7)
    await site.starts(days=1)
    created = START_S + overlap_s(1) - MS
    site.go_to(created)
    new = await site.starts(days=1)
    assert await new.takes("m", created=created) == (1, "")
    for age_s in (DAY_S + HOUR_S, 7 * DAY_S - MS, 7 * DAY_S + HOUR_S - MS):
        site.go_to(created + age_s)
        assert await old.takes("m", created=created) == (1, "")
    site.go_to(created + 7 * DAY_S + HOUR_S)
    assert await old.takes("m", created=created) == (1, "too-old")


async def test_the_worker_that_lowers_it_remembers_for_the_higher_retention_too(site: Site) -> None:
    old, new = await site.starts(days=7), await site.starts(days=1)
    assert await new.takes("m", created=START_S) == (1, "")
    site.go_to(START_S + 7 * DAY_S - MS)
    assert await old.takes("m", created=START_S) == (1, "")


async def test_a_worker_that_starts_behind_the_overlap_remembers_for_the_lowered_retention(site: Site) -> None:
    await site.starts(days=7)
    await site.starts(days=1)
    created = START_S + overlap_s(1)
    site.go_to(created)
    new = await site.starts(days=1)
    assert await new.takes("m", created=created) == (1, "")
    site.go_to(created + DAY_S - MS)
    assert await new.takes("at the last moment", created=created) == (2, "")
    site.go_to(created + DAY_S + HOUR_S - MS)
    assert await new.takes("m", created=created) == (2, "")
    site.go_to(created + DAY_S + HOUR_S)
    assert await new.takes("m", created=created) == (2, "too-old")


async def test_a_lowered_retention_is_the_age_of_what_is_too_old_at_once(site: Site) -> None:
    await site.starts(days=7)
    new = await site.starts(days=1)
    assert await new.takes("young", created=START_S - DAY_S + MS) == (1, "")
    assert await new.takes("old", created=START_S - DAY_S) == (1, "too-old")


# Margins


async def test_in_the_overlap_of_a_lowered_margin_records_live_as_long_as_before(site: Site) -> None:
    old, new = await site.starts(days=1, margin_h=4), await site.starts(days=1, margin_h=1)
    assert await new.takes("m", created=START_S) == (1, "")
    site.go_to(START_S + DAY_S + 4 * HOUR_S - MS)
    assert await old.takes("m", created=START_S) == (1, "")
    site.go_to(START_S + DAY_S + 4 * HOUR_S)
    assert await old.takes("m", created=START_S) == (1, "too-old")


@pytest.mark.parametrize(
    ("matters", "takes_ms", "is_allowed"),
    [(True, 1_800_000, True), (True, 1_800_001, False), (False, 7_200_000, True), (False, 7_200_001, False)],
)
async def test_a_raised_margin_lets_an_attempt_take_longer_when_no_earlier_record_matters_any_more(
    site: Site, matters: bool, takes_ms: int, is_allowed: bool
) -> None:
    await site.starts(days=1, margin_h=1)
    await site.starts(days=1, margin_h=4)
    site.go_to(START_S + overlap_s(1, 4) + DAY_S - (MS if matters else 0))  # behind the overlap, a retention
    new, site.takes_ms = await site.starts(days=1, margin_h=4), takes_ms
    held, reason = await new.takes("m", created=site.clock.seconds)
    assert reason == "" and (held == 1 and site.run_count == 1) == is_allowed


async def test_the_worker_that_raises_the_margin_takes_no_longer_than_before(site: Site) -> None:
    old, new = await site.starts(days=1, margin_h=1), await site.starts(days=1, margin_h=4)
    assert old.plan.attempt_ms_max == new.plan.attempt_ms_max == 1_800_000


# Any change


async def test_a_change_is_reported_at_the_start_of_a_worker(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outbox.retention"):
        for days, changes in ((1, 0), (1, 0), (7, 1), (2, 2)):
            async with Worker(site.app(days=days, margin_h=1), site.backend):
                assert len(caplog.messages) == changes
    assert [text.partition(";")[0] for text in caplog.messages] == ["retention raised", "retention lowered"]


async def test_too_many_retentions_that_still_matter_are_refused(site: Site) -> None:
    for hours in range(1, ERA_COUNT_MAX + 2):
        await site.starts(days=5 + hours / 24)
    with pytest.raises(NotRegistrable, match="go back to one of them"):
        await site.starts(days=20)
    await site.starts(days=5 + 3 / 24)


def test_a_message_is_too_old_by_the_shortest_retention_of_its_time() -> None:
    memory = RetentionWindow(7 * DAY_S, 8 * DAY_S)
    memory.heed((PastRetention(10 * DAY_S, DAY_S, HOUR_S), PastRetention(5 * DAY_S, 9 * DAY_S, HOUR_S)), 9 * DAY_S)
    assert memory.oldest_ms(10 * DAY_S) == 9 * DAY_S
    assert memory.oldest_ms(12 * DAY_S) == 10 * DAY_S
    assert memory.oldest_ms(20 * DAY_S) == 13 * DAY_S
