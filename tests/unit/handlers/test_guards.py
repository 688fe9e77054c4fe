"""Breakers and rate limits reschedule messages before their handler runs, and lose, double or reorder none."""

from __future__ import annotations

import time
from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from outbox import App, Context, Engine, Reject, Retries, Retry, Worker
from outbox.engine.engine import Engine as EmbeddedEngine
from outbox.errors import NotRegistrable, PoisonMessage
from outbox.guards import KEY_COUNT_MAX, RAMP_S, Breaker, BrokenOff, Rate
from outbox.http_entry import HttpEntry
from outbox.metrics import prometheus
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.messages.status import status_text as status_text
from outbox.ops.shared.meter import Meter
from outbox.ops.values.status import ReadStatus
from outbox.runtime.counts import Counts
from outbox.testing import Harness
from outbox.verify.findings.exploration import explore
from tests.unit.messages import Step, Steps, deliver

Scope = Literal["engine", "partition", "item"]


@dataclass
class Dependency:
    """What a handler calls: it is down or not, and counts the calls."""

    is_down: bool = False
    calls: int = 0
    times: list[float] = field(default_factory=list)

    def call(self, now: float = 0.0) -> None:
        self.calls += 1
        self.times.append(now)
        if self.is_down:
            raise ConnectionError("refused")


@dataclass
class Plain:
    """A step of the same state that calls nothing."""

    key: str


def broken_off(dependency: Dependency, **guards: Any) -> App:
    """Behind a message of its batch a step is ended before its call, and runs again on its own."""
    app = App("m")
    app.queue("steps")

    @app.handler("steps", key="key")
    def plain(plain: Plain, steps: Steps) -> None:
        steps.ns.append(-1)

    @app.handler("steps", key="key", **guards)
    async def step(step: Step, steps: Steps, ctx: Context) -> None:
        steps.ns.append(step.n)
        await ctx.call(dependency.call)

    return app


async def test_what_runs_again_before_it_has_called_is_no_failure(scope: Scope) -> None:
    there, breaker = Dependency(), Breaker("there", share=0.1, least=2)
    async with Harness(broken_off(there, breaker=breaker), scope=scope) as at:
        for number in range(6):
            await at.send("steps", Plain(f"k{number}"), id=f"p{number}")
            await at.send("steps", Step(f"k{number}"), id=f"s{number}")
        await at.wait_idle()
        guard = at.counts.guard(breaker)
        assert (guard.state, guard.rescheduled_count, there.calls) == ("closed", 0, 6)


async def test_what_runs_again_before_it_has_called_has_its_place_in_the_rate(scope: Scope) -> None:
    there, rate = Dependency(), Rate(0.01)
    async with Harness(broken_off(there, rate=rate), scope=scope) as at:
        await at.send("steps", Plain("k"), id="p")
        await deliver(at, "steps", Step("k"), id="s")
        assert (at.counts.guard(rate).rescheduled_count, there.calls) == (0, 1)


def calling(dependency: Dependency, *, ordering: Any = "unordered", limit: int = 1_000, **guards: Any) -> App:
    app = App("m", retry=Retries(limit=limit, delays_s=(5.0,)))
    app.queue("steps", ordering)

    @app.handler("steps", key="key", **guards)
    def step(step: Step, steps: Steps) -> None:
        dependency.call()
        steps.ns.append(step.n)

    return app


async def sent(at: Harness, count: int, key: str = "k") -> None:
    for n in range(count):
        await at.send("steps", Step(f"{key}{n}", n), id=f"{key}{n}")
    await at.wait_idle()


async def test_an_open_breaker_spares_what_is_down_and_counts_no_attempt(scope: Scope) -> None:
    there = Dependency(is_down=True)
    app = calling(there, limit=3, breaker=Breaker("there", share=0.5, least=5, open_s=30))
    async with Harness(app, scope=scope) as at:
        await sent(at, 5)
        assert there.calls == 5 and at.counts.sources["steps"].failed == 5
        await sent(at, 40, key="later")
        await at.advance(seconds=25)
        assert there.calls == 5, "it is open, whatever comes or is tried again"
        assert at.dead_letters("steps") == []
        there.is_down = False
        await at.advance(seconds=200)
        assert [at.counts.sources["steps"].applied, at.dead_letters("steps")] == [45, []]
        assert there.calls == 50 and at.counts.sources["steps"].failed == 5


async def test_while_it_is_down_one_attempt_is_made_each_time_and_less_and_less_often(scope: Scope) -> None:
    there = Dependency(is_down=True)
    app = calling(there, breaker=Breaker("there", least=5, open_s=10))
    async with Harness(app, scope=scope) as at:
        await sent(at, 60)
        calls = [there.calls]
        for _ in range(6):
            await at.advance(seconds=60)
            calls.append(there.calls)
        made = [later - earlier for earlier, later in pairwise(calls)]
        assert calls[0] <= 5 and made[0] <= 3 and made[-1] <= 1 and sum(made) >= 3, calls


def attempt_at(now_ms: int, inbox: bytes = b"i" * 32, *, key: str = "k", handler: str = "step") -> Any:
    work = SimpleNamespace(inbox=inbox, key=key, handler=SimpleNamespace(name=handler))
    return SimpleNamespace(now_ms=now_ms, work=work)


def attempted(guard: Any, now_ms: int, error: BaseException | None = None, *, earlier: int = 0) -> bool:
    """Make an attempt that ends so; whether the breaker let it through."""
    was_made = False
    with suppress(BaseException), guard.around(attempt_at(now_ms), earlier=earlier):
        was_made = True
        if error is not None:
            raise error
    return was_made


DOWN = ConnectionError("refused")


def test_metrics_show_each_guard_as_of_now_and_change_none() -> None:
    counts, now_ms = Counts(), time.time_ns() // 1_000_000
    breaker, rate = counts.guard(Breaker("there", least=1, open_s=1)), counts.guard(Rate(0.01, name="slow"))
    assert attempted(breaker, now_ms - 2_000, DOWN) and attempted(breaker, now_ms)
    assert attempted(rate, now_ms) and not attempted(rate, now_ms)
    for _ in range(2):
        text = prometheus("m", counts)
        assert 'outbox_guard_state{app="m",guard="there"} 1\n' in text  # ramping
        assert 'outbox_guard_state{app="m",guard="slow"} 3\n' in text  # open: a message waits for its place
    assert breaker.state == "ramping" and rate.state == "open"


def test_a_breaker_that_was_closed_again_begins_anew() -> None:
    guard: Any = Breaker("there", least=2, open_s=10).started()
    for began_ms in (0, 40_000):
        assert attempted(guard, began_ms, DOWN) and guard.state == "closed"
        assert attempted(guard, began_ms, DOWN) and guard.view(began_ms).rest_s == pytest.approx(10, abs=0.1)
        assert not attempted(guard, began_ms + 9_900) and attempted(guard, began_ms + 10_100)
        assert guard.state == "ramping" and guard.view(began_ms + 10_200 + RAMP_S * 1_000).state == "closed"


def test_a_failure_counts_for_a_minute() -> None:
    for later_ms, state in ((59_999, "open"), (60_000, "closed")):
        guard: Any = Breaker("there", share=1, least=2).started()
        assert attempted(guard, 999, DOWN) and attempted(guard, later_ms, DOWN)
        assert guard.state == state


def test_each_call_of_an_attempt_counts_and_an_open_breaker_stops_the_next() -> None:
    guard: Any = Breaker("there", least=2, open_s=10).started()
    assert attempted(guard, 0) and attempted(guard, 0, DOWN, earlier=1) and guard.state == "open"
    for late_ms in (5_000, 20_000):  # what came back may have tried by then; this one does not
        assert not attempted(guard, late_ms, earlier=1) and guard.state == "open"


def test_after_an_attempt_that_was_broken_off_the_next_one_tries() -> None:
    guard: Any = Breaker("there", least=1, open_s=10).started()
    assert attempted(guard, 0, DOWN) and attempted(guard, 11_000, BrokenOff()) and guard.state == "half-open"
    assert attempted(guard, 11_000) and guard.state == "ramping"


def test_one_that_is_broken_off_behind_a_closing_is_not_counted_out_of_others() -> None:
    guard: Any = Breaker("there", least=1, open_s=1).started()
    assert attempted(guard, 0, DOWN) and attempted(guard, 2_000)
    with suppress(BrokenOff), guard.around(attempt_at(3_000)):
        assert guard.view(13_000).state == "closed"
        raise BrokenOff
    assert attempted(guard, 13_000, DOWN) and guard.state == "open"


def test_after_a_lost_try_one_more_is_let_through_and_no_other() -> None:
    guard: Any = Breaker("there", least=1, open_s=10).started()
    assert attempted(guard, 0, DOWN)
    with guard.around(attempt_at(11_000)), guard.around(attempt_at(11_000 + 120_000)):
        assert not attempted(guard, 11_000 + 120_001)


@pytest.mark.parametrize("answer", [Reject("no"), Retry("later"), PoisonMessage("failed", "no")], ids=repr)
def test_an_answer_of_the_handler_shows_that_the_other_side_is_back(answer: Exception) -> None:
    guard: Any = Breaker("there", least=1, open_s=10).started()
    assert attempted(guard, 0, DOWN) and attempted(guard, 11_000, answer)
    assert guard.state == "ramping"


def test_an_attempt_that_is_cancelled_has_failed_whatever_errors_count() -> None:
    guard: Any = Breaker("there", least=1, errors=ConnectionError).started()
    assert attempted(guard, 0, ValueError()) and guard.state == "closed"
    assert attempted(guard, 0, CancelledError()) and guard.state == "open"


def test_one_attempt_at_a_time_tries_what_was_down_and_one_that_never_ends_is_given_up() -> None:
    guard = Breaker("there", least=1, open_s=10).started()
    with pytest.raises(ValueError), guard.around(attempt_at(0)):
        raise ValueError
    with pytest.raises(Retry, match="there is open: 1 of 1 attempts failed"), guard.around(attempt_at(9_999)):
        pass
    with guard.around(attempt_at(10_000)):
        assert guard.state == "half-open"
        for later_ms in (10_000, 10_000 + 119_999):
            with pytest.raises(Retry), guard.around(attempt_at(later_ms)):
                pass
        with guard.around(attempt_at(10_000 + 120_000)):
            assert guard.state == "half-open"
    state: str = guard.state
    assert state == "ramping"


def test_a_breaker_that_nobody_asks_after_its_ramp_is_seen_closed() -> None:
    guard = Breaker("there", least=1, open_s=1).started()
    with pytest.raises(ValueError), guard.around(attempt_at(0)):
        raise ValueError
    with guard.around(attempt_at(1_000)):
        pass
    assert [guard.view(now_ms).state for now_ms in (1_000, 1_000 + RAMP_S * 1_000 - 1)] == ["ramping", "ramping"]
    found = guard.view(1_000 + RAMP_S * 1_000)
    assert (found.state, found.why) == ("closed", "")


@pytest.mark.parametrize(("later_ms", "error", "state"), [(RAMP_S * 1_000, None, "closed"), (1_000, DOWN, "open")])
def test_a_ramp_ends_at_its_last_second_and_at_its_first_failure(later_ms: int, error: Any, state: str) -> None:
    guard: Any = Breaker("there", least=1, open_s=1).started()
    assert attempted(guard, 0, DOWN) and attempted(guard, 1_000) and guard.state == "ramping"
    assert attempted(guard, 1_000 + later_ms, error) and guard.state == state


def let_through(guard: Any, now_ms: int, inbox: bytes, key: str = "k", *, earlier: int = 0) -> bool:
    try:
        with guard.around(attempt_at(now_ms, inbox, key=key), earlier=earlier):
            return True
    except Retry:
        return False


def test_one_rate_for_all_keys_gives_each_message_a_place_and_keeps_none_that_is_late() -> None:
    guard: Any = Rate(3).started()
    assert let_through(guard, 0, b"1", "a") and not let_through(guard, 0, b"2", "b")
    assert let_through(guard, 333, b"2", "b"), "its place begins within this millisecond"
    assert not let_through(guard, 333, b"", "c") and not guard._places, "without a name it has no place"
    for now_ms, inboxes in ((2_000, b"34"), (60_000, b"56")):
        assert [let_through(guard, now_ms, bytes([inbox])) for inbox in inboxes] == [True, False]
    assert guard._places.keys() == {b"6"}


def test_a_later_call_of_an_attempt_leaves_the_burst_as_it_is() -> None:
    guard: Any = Rate(1, burst=2).started()
    assert let_through(guard, 0, b"1") and let_through(guard, 10_000, b"1", earlier=1)
    assert [let_through(guard, 10_000, inbox) for inbox in (b"2", b"3")] == [True, False]


def test_a_message_behind_a_try_that_failed_waits_a_second_at_least() -> None:
    guard: Any = Breaker("there", least=1, open_s=0.1).started()
    assert attempted(guard, 0, DOWN)
    with pytest.raises(Retry) as later, guard.around(attempt_at(1_000)):
        raise ConnectionError
    assert later.value.after_s >= 1


def test_an_attempt_that_began_before_the_ramp_waits_for_its_turn() -> None:
    guard = Breaker("there", least=1, open_s=1).started()
    with pytest.raises(ValueError), guard.around(attempt_at(0)):
        raise ValueError
    with guard.around(attempt_at(8_000)):
        pass
    assert guard.state == "ramping"
    with pytest.raises(Retry, match="there is ramping"), guard.around(attempt_at(3_000)):
        pass  # its handler worked for five seconds before the call


def test_a_breaker_is_open_from_the_end_of_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"s": 100.0}
    monkeypatch.setattr("outbox.guards.time", SimpleNamespace(monotonic=lambda: clock["s"]))
    guard = Breaker("there", least=1, open_s=3).started()
    with pytest.raises(TimeoutError), guard.around(attempt_at(0)):
        clock["s"] += 3.5
        raise TimeoutError
    with pytest.raises(Retry, match="there is open"), guard.around(attempt_at(6_499)):
        pass
    with guard.around(attempt_at(6_500)):
        assert guard.state == "half-open"


async def test_one_message_alone_outlives_an_outage_of_hours(scope: Scope) -> None:
    there = Dependency(is_down=True)
    app = calling(there, limit=2, breaker=Breaker("there", least=1, open_s=30))
    async with Harness(app, scope=scope) as at:
        await sent(at, 1)
        await at.advance(hours=5)
        assert at.dead_letters("steps") == [] and 10 <= there.calls <= 30
        there.is_down = False
        await at.advance(hours=1)
        assert at.counts.sources["steps"].applied == 1


async def test_trials_are_spread_over_what_waits() -> None:
    tried: list[str] = []
    app = App("m", retry=Retries(limit=1_000, delays_s=(5.0,)))

    @app.handler("steps", breaker=Breaker("there", least=1, open_s=10))
    def step(step: Step) -> None:
        tried.append(step.key)
        raise ConnectionError("refused")

    async with Harness(app) as at:
        await sent(at, 50)
        await at.advance(hours=2)
    assert len(tried) > 15 and len(set(tried)) > 10, tried


async def test_what_comes_back_is_not_overrun() -> None:
    there = Dependency(is_down=True)
    app = App("m", retry=Retries(limit=1_000, delays_s=(5.0,)))

    @app.handler("steps", breaker=Breaker("there", least=5, open_s=30))
    def step(step: Step) -> None:
        there.call(at.now())

    async with Harness(app) as at:
        await sent(at, 500)
        there.is_down, there.times = False, []
        for _ in range(120):
            await at.advance(seconds=1)
        assert len(there.times) == 500
        first = min(there.times)
        within = [sum(1 for time in there.times if first + s <= time < first + s + 1) for s in range(4)]
    assert within[0] <= 2 and within[1] <= 3 and within[2] <= 5 and within[3] <= 9, within


async def test_in_order_what_waits_for_a_breaker_keeps_its_order(scope: Scope) -> None:
    there = Dependency(is_down=True)
    app = calling(there, ordering="per_key", breaker=Breaker("there", least=2, open_s=10))
    async with Harness(app, scope=scope) as at:
        for n in range(8):
            await at.send("steps", Step("k", n), id=f"s{n}")
        await at.wait_idle()
        await at.advance(seconds=15)
        there.is_down = False
        await at.advance(seconds=200)
        assert await at.state(Steps, "k") == Steps(list(range(8)))


async def test_refusals_and_retries_and_other_errors_open_no_breaker() -> None:
    from outbox import Reject

    app = App("m", retry=Retries(limit=1))
    errors: list[BaseException] = [Reject("no"), Retry("later", after_s=3_600), ValueError("a bug"), Reject("no")]
    breaker = Breaker("there", share=0.1, least=1, errors=(OSError,))

    @app.handler("steps", breaker=breaker)
    def step(step: Step) -> None:
        raise errors[step.n]

    async with Harness(app) as at:
        await sent(at, 4)
        guard = at.counts.guard(breaker)
        assert (guard.state, guard.rescheduled_count) == ("closed", 0)


async def test_a_rate_spreads_a_backlog_and_puts_each_message_off_once(scope: Scope) -> None:
    there = Dependency()
    app = App("m")

    @app.handler("steps", rate=Rate(10, burst=5))
    def step(step: Step) -> None:
        there.call(at.now())

    async with Harness(app, scope=scope) as at:
        await sent(at, 105)
        assert there.calls == 5
        for _ in range(130):
            await at.advance(seconds=0.1)
        assert there.calls == 105
        times = sorted(there.times)
        for begin in range(100):
            assert times[begin + 5] - times[begin] >= 0.09 or begin < 5, times
        assert 9.5 <= times[-1] - times[0] <= 11.5
        assert sum(guard.rescheduled_count for guard in at.counts.guards.values()) == 100


async def test_a_rate_by_key_limits_each_key_alone() -> None:
    there = Dependency()
    app = calling(there, rate=Rate(1, burst=2, by_key=True))
    async with Harness(app) as at:
        for n in range(12):
            await at.send("steps", Step("ab"[n % 2], n), id=f"s{n}")
        await at.wait_idle()
        assert there.calls == 4
        await at.advance(seconds=4.5)
        assert there.calls == 12


async def test_a_rate_forgets_keys_and_places_beyond_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.guards.KEY_COUNT_MAX", 3)
    monkeypatch.setattr("outbox.guards.PLACE_COUNT_MAX", 2)
    there, rate = Dependency(), Rate(1, by_key=True)
    app = calling(there, rate=rate)
    async with Harness(app) as at:
        await sent(at, 10)
        guard: Any = at.counts.guard(rate)
        assert there.calls == 10 and len(guard._free_ms) == 3
        for n in range(6):
            await at.send("steps", Step("z", n), id=f"z{n}")
        await at.wait_idle()
        assert len(guard._places) == 2
        await at.advance(seconds=60)
        assert there.calls == 16 and not guard._places
    assert KEY_COUNT_MAX == 100_000


def rescheduled_s(guard: Any, now_ms: int, inbox: bytes) -> float:
    """For how long an attempt is rescheduled; 0: it is made."""
    try:
        with guard.around(attempt_at(now_ms, inbox)):
            return 0.0
    except Retry as later:
        return later.after_s


def test_what_comes_late_to_its_place_needs_another_and_what_never_comes_is_forgotten() -> None:
    guard: Any = Rate(1).started()
    inboxes = [bytes([n]) * 32 for n in range(10)]
    assert [rescheduled_s(guard, 0, inbox) for inbox in inboxes] == list(range(10))
    assert rescheduled_s(guard, 1_000, inboxes[1]) == 0.0
    assert [rescheduled_s(guard, 3_600_000, inbox) for inbox in inboxes[2:6]] == [0.0, 1.0, 2.0, 3.0]
    assert guard.view(3_600_000).why == "3 messages wait for their place"
    assert guard.view(3_700_000).state == "closed"


def test_a_place_is_kept_for_five_seconds() -> None:
    for late_ms, rest_s in ((5_000, 0.0), (5_001, 1.0)):
        guard: Any = Rate(1).started()
        assert [rescheduled_s(guard, 0, inbox) for inbox in (b"a", b"b")] == [0.0, 1.0]
        assert guard.view(6_000).why == "1 messages wait for their place"
        assert rescheduled_s(guard, 1_000 + late_ms, b"c") == 0.0  # takes the next one
        assert rescheduled_s(guard, 1_000 + late_ms, b"b") == rest_s


@pytest.mark.parametrize("earlier", [0, 1], ids=["an attempt", "a later call"])
def test_of_many_keys_the_one_idle_longest_is_forgotten(earlier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.guards.KEY_COUNT_MAX", 2)
    guard: Any = Rate(1, burst=9, by_key=True).started()
    for key, before in (("a", 0), ("b", 0), ("a", earlier), ("c", 0)):
        with guard.around(attempt_at(60_000, key=key), earlier=before):
            pass
    assert list(guard._free_ms) == ["a", "c"]


def test_a_rate_says_how_long_its_longest_key_is_taken() -> None:
    guard: Any = Rate(0.1, by_key=True).started()
    for at_ms, key in ((0, "a"), (5_000, "b"), (10_000, "a")):
        with guard.around(attempt_at(at_ms, key=key)):
            pass
    assert guard.view(10_000).rest_s == 10.0


def test_a_rate_takes_as_many_places_as_the_handler_itself_makes_calls() -> None:
    guard: Any = Rate(1).started()
    with guard.around(attempt_at(0, handler="twice")), guard.around(attempt_at(0, handler="twice"), earlier=1):
        pass
    with guard.around(attempt_at(2_000, handler="once")):
        pass
    assert guard.view(2_000).rest_s == 1.0


def test_what_is_broken_off_keeps_no_place_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.guards.PLACE_COUNT_MAX", 1)
    guard: Any = Rate(1_000, burst=9).started()
    for inbox in (b"a", b"b"):
        with suppress(BrokenOff), guard.around(attempt_at(60_000, inbox)):
            raise BrokenOff
    assert list(guard._places) == [b"a"]


def test_no_message_is_rescheduled_for_longer_than_ten_minutes_at_a_time() -> None:
    slow: Any = Rate(0.001).started()
    assert [rescheduled_s(slow, 0, bytes([n]) * 32) for n in range(4)] == [0.0, 600.0, 600.0, 600.0]
    assert rescheduled_s(slow, 600_000, b"b" * 32) == 400.0
    down: Any = Breaker("there", least=1, open_s=86_400).started()
    with pytest.raises(ValueError), down.around(attempt_at(0)):
        raise ValueError
    assert 600 <= rescheduled_s(down, 1, b"c" * 32) < 1_200


async def test_handlers_workers_and_requests_of_a_host_share_a_breaker(engine: Engine) -> None:
    there, breaker = Dependency(is_down=True), Breaker("there", least=2, open_s=3_600)
    app, counts = calling(there, breaker=breaker), Counts()

    @app.http("POST", "/steps", key="key", breaker=breaker)
    def post(step: Step, steps: Steps) -> None:
        there.call()

    async with Worker(app, engine, counts=counts) as worker, HttpEntry(app, engine, counts=counts) as entry:
        for n in range(2):
            await worker.send("steps", Step("k", n), id=f"s{n}")
        await worker.wait_idle()
        answer = await entry.handle("POST", "/steps", {"idempotency-key": "i"}, b'{"key": "k"}')
    assert answer.status == 503 and int(dict(answer.headers)["retry-after"]) >= 600 and there.calls == 2
    async with Worker(app, engine, counts=counts) as other:
        await deliver(other, "steps", Step("k", 9), id="s9")
    assert there.calls == 2
    assert 'outbox_guard_state{app="m",guard="there"} 3' in prometheus("m", counts)
    await told(app, engine, counts)


async def told(app: App, engine: EmbeddedEngine, counts: Counts) -> None:
    """Status says what is open, why and for how long."""
    found = await EngineAdmin(engine, Meter(counts=counts), app).ask(ReadStatus())
    [guard] = found.guards
    assert (guard.name, guard.kind, guard.state) == ("there", "breaker", "open") and 3_500 < guard.rest_s <= 3_600
    assert "2 of 2 attempts failed, the last with ConnectionError" in guard.why
    assert "breaker there: open, 3" in status_text(found)


def test_an_exploration_has_no_guards(scope: Scope) -> None:
    there = Dependency()
    app = calling(there, breaker=Breaker("there"), rate=Rate(0.001))
    messages = [("steps", Step("k", n), f"s{n}") for n in range(2)]
    report = explore(app, messages, scope=scope, allow={"order"})
    assert report.exhausted and not report.anomalies, report.text


@pytest.mark.parametrize(
    "errors", [[ConnectionError], (1,), (), ("ConnectionError",), "ConnectionError", (int,), None], ids=str
)
def test_errors_that_are_no_classes_of_errors_are_refused_with_the_cure(errors: Any) -> None:
    with pytest.raises(NotRegistrable, match="give a class of errors, or a tuple of some"):
        Breaker("b", errors=errors)


@pytest.mark.parametrize("errors", [ConnectionError, (ConnectionError, TimeoutError)], ids=str)
def test_a_class_of_errors_and_several_are_taken(errors: Any) -> None:
    assert Breaker("b", errors=errors).errors == errors


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Breaker(""),
        lambda: Breaker("b", share=0),
        lambda: Breaker("b", share=1.1),
        lambda: Breaker("b", least=0),
        lambda: Breaker("b", open_s=0),
        lambda: Rate(0),
        lambda: Rate(float("nan")),
        lambda: Rate(1, burst=0),
    ],
)
def test_what_is_no_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(NotRegistrable):
        wrong()
