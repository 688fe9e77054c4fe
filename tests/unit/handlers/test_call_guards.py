"""A breaker or a rate round one `ctx.call` reschedules the whole message, and nothing of it is done by half."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from outbox import App, Context, Retries, Retry
from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable
from outbox.guards import Breaker, Rate
from outbox.http_entry import HttpEntry
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.shared.meter import Meter
from outbox.ops.values.status import ReadStatus
from outbox.runtime.counts import Counts
from outbox.testing import Harness
from outbox.verify.findings.exploration import explore
from tests.unit.messages import Step, Steps, deliver

Scope = Literal["engine", "partition", "item"]


@dataclass
class Dependency:
    """What a handler calls: it is down or not, and notes the keys and times of calls."""

    is_down: bool = False
    keys: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    now: Callable[[], float] = lambda: 0.0

    def __call__(self, key: str) -> str:
        self.keys.append(key)
        self.times.append(self.now())
        if self.is_down:
            raise ConnectionError("refused")
        return key


def made(there: Dependency, *, ordering: Any = "unordered", limit: int = 3, **guards: Any) -> App:
    """Of each message a first call is made without guards, then a guarded one."""
    app = App("m", retry=Retries(limit=limit, delays_s=(5.0,)))
    app.queue("steps", ordering)
    app.queue("out")

    @app.handler("steps", key="key")
    async def step(step: Step, steps: Steps, ctx: Context) -> None:
        steps.ns.append(step.n)
        ctx.send("out", step)
        await ctx.call(there, **guards)

    return app


async def sent(at: Harness, count: int, key: str = "") -> None:
    for n in range(count):
        await at.send("steps", Step(key or f"k{n}", n), id=f"{key}{n}")
    await at.wait_idle()


async def test_an_open_breaker_puts_the_message_off_and_nothing_of_it_is_done(scope: Scope) -> None:
    there = Dependency(is_down=True)
    app = made(there, breaker=Breaker("there", least=3, open_s=30))
    async with Harness(app, scope=scope) as at:
        await sent(at, 20)
        assert len(there.keys) == 3 and at.counts.sources["steps"].failed == 3
        assert at.sent("out") == [] and await at.state(Steps, "k7") is None
        await at.advance(seconds=20)
        assert len(there.keys) == 3 and at.dead_letters("steps") == []
        there.is_down = False
        await at.advance(seconds=300)
        assert at.counts.sources["steps"].applied == 20 and len(at.sent("out")) == 20
        assert at.counts.sources["steps"].failed == 3, "what was rescheduled counts as no attempt"
        assert len(there.keys) == 23 and len(set(there.keys)) == 20


async def test_a_copy_of_what_was_applied_is_completed_while_the_breaker_is_open(scope: Scope) -> None:
    there = Dependency()
    app = made(there, breaker=Breaker("there", least=1, open_s=3_600))
    async with Harness(app, scope=scope) as at:
        await deliver(at, "steps", Step("k", 1), id="a")
        there.is_down = True
        await deliver(at, "steps", Step("k", 2), id="b")
        await at.advance(seconds=60)
        await at.restart()  # so that no worker has the record at hand
        await deliver(at, "steps", Step("k", 1), id="a")
        assert at.counts.sources["steps"].duplicates == 1 and len(there.keys) == 2


async def test_in_order_what_a_call_reschedules_keeps_its_order(scope: Scope) -> None:
    there = Dependency(is_down=True)
    app = made(there, ordering="per_key", breaker=Breaker("there", least=2, open_s=10))
    async with Harness(app, scope=scope) as at:
        await sent(at, 6, key="k")
        await at.advance(seconds=15)
        there.is_down = False
        await at.advance(seconds=300)
        assert await at.state(Steps, "k") == Steps(list(range(6)))
        assert at.dead_letters("steps") == []


async def test_handlers_and_requests_share_a_breaker_by_its_name_and_status_shows_it(engine: Engine) -> None:
    there, counts = Dependency(is_down=True), Counts()
    app = made(there, limit=1, breaker=Breaker("there", least=2, open_s=3_600))

    @app.handler("others", key="key", breaker=Breaker("there", least=2, open_s=3_600))
    async def other(step: Step, steps: Steps, ctx: Context) -> None:
        await ctx.call(there)

    @app.http("POST", "/steps", key="key")
    async def post(step: Step, steps: Steps, ctx: Context) -> None:
        await ctx.call(there, breaker=Breaker("there", least=2, open_s=3_600))

    async with HttpEntry(app, engine, counts=counts) as entry:
        statuses = []
        for n in range(4):
            answer = await entry.handle("POST", "/steps", {"idempotency-key": f"i{n}"}, b'{"key": "k"}')
            statuses.append(answer.status)
        assert statuses == [500, 503, 503, 503] or statuses[2:] == [503, 503]
        assert len(there.keys) == 2
        [guard] = (await EngineAdmin(engine, Meter(counts=counts), app).ask(ReadStatus())).guards
        assert (guard.name, guard.kind, guard.state) == ("there", "breaker", "open") and guard.rescheduled >= 2
        assert len(counts.guards) == 1


async def test_what_a_call_raises_counts_once_where_its_handler_has_the_same_breaker() -> None:
    there, breaker = Dependency(is_down=True), Breaker("there", least=4, open_s=30)
    app = App("m", retry=Retries(limit=9, delays_s=(100.0,)))

    @app.handler("steps", breaker=breaker)
    async def step(step: Step, ctx: Context) -> None:
        await ctx.call(there, breaker=Breaker("there", least=4, open_s=30))

    async with Harness(app) as at:
        await sent(at, 3)
        guard: Any = at.counts.guard(breaker)
        assert (guard.state, [tuple(second[1:]) for second in guard._seconds]) == ("closed", [(3, 3)])


async def test_a_rate_spreads_calls_and_the_second_of_an_attempt_does_not_wait(scope: Scope) -> None:
    there = Dependency()
    app = App("m")

    @app.handler("steps")
    async def step(step: Step, ctx: Context) -> None:
        rate = Rate(10, burst=2, name="there")
        await ctx.call(there, rate=rate)
        await ctx.call(there, rate=rate)

    async with Harness(app, scope=scope) as at:
        there.now = at.now
        await sent(at, 1)  # of it the rate learns that an attempt makes two calls
        await sent(at, 30, key="later")
        assert len(there.keys) == 2
        for _ in range(70):
            await at.advance(seconds=0.1)
        assert at.counts.sources["steps"].applied == 31 and len(there.keys) == 62
        assert 5.5 <= there.times[-1] - there.times[0] <= 6.5, "sixty calls, ten a second"
        assert all(later - earlier >= 0.9 for earlier, later in zip(there.times, there.times[14:], strict=False))
        assert sum(guard.rescheduled_count for guard in at.counts.guards.values()) == 30, "each once"


async def test_a_breaker_that_opens_between_two_calls_stops_the_second() -> None:
    first, second = Dependency(is_down=True), Dependency()
    app = App("m", retry=Retries(limit=1))
    caught: list[str] = []

    @app.handler("steps")
    async def step(step: Step, ctx: Context) -> None:
        breaker = Breaker("there", least=1, open_s=30)
        try:
            await ctx.call(first, breaker=breaker)
        except ConnectionError:
            caught.append("first")
        await ctx.call(second, breaker=breaker)

    async with Harness(app) as at:
        await sent(at, 1)
        assert caught == ["first"] and second.keys == [] and at.dead_letters("steps") == []
        first.is_down = False
        await at.advance(seconds=200)
        assert len(second.keys) == 1 and at.counts.sources["steps"].applied == 1


async def test_whoever_catches_that_it_is_rescheduled_goes_on_without_the_call() -> None:
    there = Dependency(is_down=True)
    app = App("m", retry=Retries(limit=9, delays_s=(1.0,)))
    app.queue("later")

    @app.handler("steps")
    async def step(step: Step, ctx: Context) -> None:
        try:
            await ctx.call(there, breaker=Breaker("there", least=1, open_s=3_600))
        except Retry:
            ctx.send("later", step)

    async with Harness(app) as at:
        await sent(at, 1)
        await at.advance(seconds=2)
        assert len(there.keys) == 1 and at.sent("later") == [Step("k0", 0)]


async def test_what_differs_under_one_name_and_a_rate_without_one_are_refused() -> None:
    app = App("m", retry=Retries(limit=1))
    wrong: list[dict[str, Any]] = [{"breaker": Breaker("there", least=3)}, {"rate": Rate(5)}]

    @app.handler("steps", breaker=Breaker("there"))
    async def step(step: Step, ctx: Context) -> None:
        await ctx.call(Dependency(), **wrong[step.n])

    async with Harness(app) as at:
        await sent(at, 2)
        found = {dead.id: dead.description for dead in at.dead_letters("steps")}
        assert "two of the name 'there' differ" in found["0"] and "needs a name" in found["1"]
    counts = Counts()
    counts.guard(Rate(5, name="r"))
    with pytest.raises(NotRegistrable, match="differ"):
        counts.guard(Rate(6, name="r"))
    assert counts.guard(Rate(5)) is not counts.guard(Rate(5))


async def test_calls_that_are_made_at_once_have_keys_of_their_own(scope: Scope) -> None:
    there = Dependency()
    app = App("m")

    @app.handler("steps", key="key")
    async def step(step: Step, steps: Steps, ctx: Context) -> None:
        await asyncio.gather(ctx.call(there), ctx.call(there), ctx.call(there))

    async with Harness(app, scope=scope) as at:
        await sent(at, 1)
        first = min(there.keys, key=len)
        assert sorted(there.keys) == [first, f"{first}-2", f"{first}-3"]


def test_an_exploration_takes_a_call_with_all_its_options(scope: Scope) -> None:
    app = App("m")

    @app.handler("steps", key="key")
    async def step(step: Step, steps: Steps, ctx: Context) -> None:
        guards: dict[str, Any] = {"breaker": Breaker("there"), "rate": Rate(0.001, name="slow")}
        await ctx.call(lambda: None, idempotent=True, time_limit_s=5, **guards)
        steps.ns.append(step.n)

    report = explore(app, [("steps", Step("k"), "s1")], scope=scope)
    assert report.exhausted and not report.anomalies, report.text
