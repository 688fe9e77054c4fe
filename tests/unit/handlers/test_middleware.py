"""Middleware is round every attempt of a handler, wherever it runs, and changes nothing of what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from types import SimpleNamespace, TracebackType
from typing import Any, Literal

import pytest

from outbox import App, Context, Engine, Reject, Retries, Retry, Worker
from outbox.errors import NotRegistrable
from outbox.guards import BrokenOff
from outbox.http_entry import HttpEntry
from outbox.middleware import Call, as_manager, surrounded
from outbox.runtime.commit import stepping
from outbox.runtime.commit.loop_watch import waiting_handlers
from outbox.testing import Harness
from outbox.verify.findings.exploration import explore
from tests.unit.messages import Step, Total, deliver

Scope = Literal["engine", "partition", "item"]
WITHIN_S = 20.0
TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class Seen:
    """What middleware and handlers saw, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def middleware(self, name: str) -> Any:
        def note(call: Call) -> Iterator[None]:
            self.lines.append(f"{name} before {call.handler} of {call.source} {call.context.message_id}")
            try:
                yield
            except BaseException as error:
                self.lines.append(f"{name} failed {type(error).__name__}")
                raise
            self.lines.append(f"{name} after")

        return note


def app_with(seen: Seen, *, is_plain: bool = False, **options: Any) -> App:
    app = App("m", retry=Retries(limit=2, delays_s=(1.0,)))

    def plain(step: Step, total: Total, ctx: Context) -> None:
        seen.lines.append(f"handler {TENANT.get()}")
        total.sum += step.n
        if step.n < 0:
            raise ValueError("below zero")

    async def waiting(step: Step, total: Total, ctx: Context) -> None:
        plain(step, total, ctx)

    app.handler("steps", key="key", name="step", **options)(plain if is_plain else waiting)
    return app


@pytest.mark.parametrize("is_plain", [False, True])
async def test_the_applications_is_round_the_handlers_whenever_it_was_declared(scope: Scope, is_plain: bool) -> None:
    seen = Seen()
    app = app_with(seen, is_plain=is_plain, middleware=[seen.middleware("own")])
    app.middleware(seen.middleware("first"))
    app.middleware(seen.middleware("second"))
    async with Harness(app, scope=scope) as at:
        await deliver(at, "steps", Step("a", 2), id="s1")
        assert (await at.state(Total, "a")) == Total(2)
    assert [line.partition(" of ")[0] for line in seen.lines] == [
        *("first before step", "second before step", "own before step", "handler nobody"),
        *("own after", "second after", "first after"),
    ]
    assert seen.lines[0].endswith("of steps s1")


@pytest.mark.parametrize("is_plain", [False, True])
async def test_each_failed_attempt_is_seen_and_its_error_stays_the_handlers(scope: Scope, is_plain: bool) -> None:
    seen = Seen()
    app = app_with(seen, is_plain=is_plain)
    app.middleware(seen.middleware("m"))
    async with Harness(app, scope=scope) as at:
        await deliver(at, "steps", Step("a", -1), id="s1")
        await at.advance(seconds=5)
        [dead] = at.dead_letters("steps")
        assert "below zero" in dead.description and "outbox/middleware.py" not in dead.traceback
        assert __file__ in dead.traceback.splitlines()[1]
        assert (await at.state(Total, "a")) in (None, Total())
    assert [line.split()[1] for line in seen.lines] == ["before", "nobody", "failed"] * 2


class Swallowing(AbstractContextManager[None]):
    def __init__(self, call: Call) -> None:
        self.call = call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return True


async def test_a_middleware_makes_no_success_of_a_failure(scope: Scope) -> None:
    app = app_with(Seen(), middleware=[Swallowing])
    async with Harness(app, scope=scope) as at:
        await deliver(at, "steps", Step("a", -1), id="s1")
        await at.advance(seconds=5)
        assert [dead.reason for dead in at.dead_letters("steps")] == ["failed"]
        assert (await at.state(Total, "a")) in (None, Total())


@pytest.mark.parametrize("is_before", [True, False])
async def test_what_a_middleware_raises_fails_the_attempt(is_before: bool) -> None:
    def refusing(call: Call) -> Iterator[None]:
        if is_before:
            raise Reject("not today")
        yield
        raise Reject("not today")

    seen = Seen()
    app = app_with(seen, middleware=[seen.middleware("outer"), refusing])
    async with Harness(app) as at:
        await deliver(at, "steps", Step("a", 2), id="s1")
        assert [dead.reason for dead in at.dead_letters("steps")] == ["not today"]
        assert (await at.state(Total, "a")) in (None, Total())
    assert seen.lines[-1] == "outer failed Reject" and ("handler nobody" in seen.lines) is not is_before


async def test_a_middleware_may_ask_for_another_delivery() -> None:
    count = 0

    def later(call: Call) -> Iterator[None]:
        nonlocal count
        count += 1
        if count == 1:
            raise Retry("not yet", after_s=3)
        yield

    async with Harness(app_with(Seen(), middleware=[later])) as at:
        await deliver(at, "steps", Step("a", 2), id="s1")
        assert (await at.state(Total, "a")) in (None, Total())
        await at.advance(seconds=4)
        assert (await at.state(Total, "a")) == Total(2) and count == 2


@pytest.mark.parametrize("others", [0, 1])
async def test_a_middleware_is_left_out_where_it_does_not_apply(others: int) -> None:
    seen = Seen()

    class Some:
        def applies(self, context: Context) -> bool:
            return context.message_id != "s2"

        def __call__(self, call: Call) -> AbstractContextManager[None]:
            seen.lines.append(f"some {call.context.message_id}")
            return nullcontext()

    async with Harness(app_with(seen, middleware=[Some(), *[seen.middleware("other")] * others])) as at:
        for number in range(1, 4):
            await at.send("steps", Step("a", 2), id=f"s{number}")
            await at.wait_idle()
        assert (await at.state(Total, "a")) == Total(6)
    assert [line for line in seen.lines if line.startswith("some")] == ["some s1", "some s3"]
    assert [line for line in seen.lines if line == "other after"] == ["other after"] * 3 * others


def test_a_plain_handler_that_the_runtime_ends_leaves_its_middleware() -> None:
    seen, app = Seen(), App("m")

    @app.handler("steps")
    def ended(step: Step) -> None:
        raise BrokenOff

    handler = surrounded(app.handlers[0], [as_manager(seen.middleware("m"))])
    context: Any = SimpleNamespace(message_id="s1")
    with pytest.raises(BrokenOff):
        handler.binding.call(Step("a"), None, context)
    assert seen.lines[-1] == "m failed BrokenOff"


def tenant(call: Call) -> Iterator[None]:
    TENANT.set(call.message.key)
    yield


@pytest.mark.parametrize("kind", ["sync", "async", "blocking", "http"])
async def test_a_handler_sees_the_variables_that_its_middleware_set_and_no_other_does(kind: str) -> None:
    app, seen, all_wait, go = App("m"), [], asyncio.Event(), asyncio.Event()
    keys = [f"k{n}" for n in range(20)]
    app.middleware(tenant)

    def note(step: Step) -> None:
        seen.append((step.key, TENANT.get()))

    if kind == "sync":
        app.handler("steps")(note)
    elif kind == "blocking":
        app.handler("steps", blocking=True)(note)
    elif kind == "async":

        @app.handler("steps")
        async def wait(step: Step) -> None:
            seen.append((step.key, TENANT.get()))
            if len(seen) == len(keys):
                all_wait.set()
            await go.wait()
            seen.append((step.key, TENANT.get()))

    else:

        @app.http("POST", "/steps")
        async def post(step: Step) -> None:
            await asyncio.sleep(0)
            seen.append((step.key, TENANT.get()))

    async with asyncio.timeout(WITHIN_S), Engine.in_memory() as engine:
        if kind == "http":
            async with HttpEntry(app, engine) as entry:
                for key in keys:
                    body = b'{"key": "%b"}' % key.encode()
                    response = await entry.handle("POST", "/steps", {"idempotency-key": f"i-{key}"}, body)
                    assert response.status < 300, response
        else:
            async with Worker(app, engine) as worker:
                for key in keys:
                    await worker.send("steps", Step(key), id=key)
                if kind == "async":
                    await all_wait.wait()
                    go.set()
                await worker.wait_idle()
    assert {key for key, _ in seen} == set(keys) and all(key == found for key, found in seen)
    assert TENANT.get() == "nobody"


async def test_what_a_middleware_sets_is_gone_behind_its_handler(engine: Engine) -> None:
    app, seen = App("m"), []

    @app.handler("steps", middleware=[tenant])
    def first(step: Step) -> None:
        seen.append(TENANT.get())

    @app.handler("steps")
    def second(step: Step) -> None:
        seen.append(TENANT.get())

    @app.handler("later")
    def later(step: Step) -> None:
        seen.append(TENANT.get())

    async with Worker(app, engine) as worker:
        await worker.send("steps", Step("a"), id="s1")
        await deliver(worker, "later", Step("b"), id="s2")
    assert sorted(seen) == ["a", "nobody", "nobody"]


async def test_where_a_handler_waits_is_seen_through_its_middleware() -> None:
    app, waits, go = App("m"), asyncio.Event(), asyncio.Event()
    app.middleware(tenant)

    @app.handler("steps")
    async def wait(step: Step) -> None:
        waits.set()
        await go.wait()

    async with asyncio.timeout(WITHIN_S), Engine.in_memory() as engine, Worker(app, engine) as worker:
        await worker.send("steps", Step("a"), id="s1")
        await waits.wait()
        await asyncio.sleep(0)
        [waiting] = waiting_handlers()
        go.set()
        await worker.wait_idle()
    assert "test_middleware.py" in waiting.at and waiting.at.endswith("in wait")


async def test_a_handler_past_its_limit_leaves_its_middleware() -> None:
    seen = Seen()
    app = App("m", retry=Retries(limit=1))
    app.middleware(seen.middleware("m"))

    @app.handler("steps", time_limit_s=0.05)
    async def wait(step: Step) -> None:
        await asyncio.sleep(WITHIN_S)

    async with asyncio.timeout(WITHIN_S), Engine.in_memory() as engine, Worker(app, engine) as worker:
        await deliver(worker, "steps", Step("a"), id="s1")
    assert [line.split(" ")[1] for line in seen.lines] == ["before", "failed"]


@pytest.mark.parametrize("clings", [False, True])
async def test_a_handler_past_its_limit_cleans_up_with_the_variables_of_its_middleware(
    monkeypatch: pytest.MonkeyPatch, clings: bool
) -> None:
    monkeypatch.setattr(stepping, "GRACE_S", 0.05)  # then what still waits is closed
    seen, app = list[str](), App("m", retry=Retries(limit=1))

    @app.middleware
    def within(call: Call) -> Iterator[None]:
        token = TENANT.set(call.message.key)
        try:
            yield
        finally:
            seen.append(f"middleware {TENANT.get()}")
            TENANT.reset(token)  # raises in any other context than that of `set`

    @app.handler("steps", time_limit_s=0.05)
    async def wait(step: Step) -> None:
        try:
            with suppress(*[asyncio.CancelledError] * clings):
                await asyncio.sleep(WITHIN_S)
            await asyncio.sleep(WITHIN_S)
        finally:
            seen.append(f"handler {TENANT.get()}")

    async with asyncio.timeout(WITHIN_S), Engine.in_memory() as engine, Worker(app, engine) as worker:
        await deliver(worker, "steps", Step("a"), id="s1")
        [letter] = await worker.dead_letters("steps")
    assert seen == ["handler a", "middleware a"] and "TimeoutError" in f"{letter}"


async def test_what_is_sent_carries_the_trace_that_a_middleware_sets(scope: Scope) -> None:
    trace, found = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", []
    app = App("m")

    def traced(call: Call) -> Iterator[None]:
        call.context.trace = trace
        yield

    @app.handler("steps", middleware=[traced])
    def forward(step: Step, ctx: Context) -> None:
        ctx.send("out", step)

    @app.handler("out")
    def end(step: Step, ctx: Context) -> None:
        found.append(ctx.traceparent)

    async with Harness(app, scope=scope) as at:
        await deliver(at, "steps", Step("a"), id="s1")
    assert found == [trace]


def test_a_handler_with_middleware_keeps_every_promise(scope: Scope) -> None:
    app = app_with(Seen(), middleware=[tenant])
    report = explore(app, [("steps", Step("a", 2), "s1"), ("steps", Step("a", 3), "s2")], scope=scope)
    assert report.exhausted and not report.anomalies, report.text


def test_what_is_no_middleware_is_refused() -> None:
    app = App("m")

    async def waits(call: Call) -> None: ...

    @asynccontextmanager
    async def managed(call: Call) -> AsyncIterator[None]:
        yield

    for wrong in (waits, managed, "no function"):
        with pytest.raises(NotRegistrable, match="generator function with one yield"):
            app.middleware(wrong)  # type: ignore[type-var]  # wrong on purpose
    with pytest.raises(NotRegistrable, match="generator function with one yield"):
        app_with(Seen(), middleware=[waits])
    for uncallable in (lambda: nullcontext(), lambda call, more: nullcontext()):
        with pytest.raises(NotRegistrable, match="cannot be called with one `Call`"):
            app.middleware(uncallable)  # type: ignore[type-var]  # wrong on purpose


def logged(function: Any) -> Any:
    @wraps(function)
    def call(*given: Any) -> Any:
        return function(*given)

    return call


@pytest.mark.parametrize("around", [contextmanager, logged], ids=["by contextlib", "in a decorator"])
async def test_a_generator_function_in_a_decorator_is_a_middleware(around: Any) -> None:
    seen = Seen()
    async with Harness(app_with(seen, middleware=[around(seen.middleware("it"))])) as at:
        await deliver(at, "steps", Step("a", 2), id="s1")
    assert seen.lines[0].startswith("it before") and seen.lines[-1] == "it after", seen.lines


async def test_a_middleware_that_returns_no_context_manager_fails_the_attempt() -> None:
    app = app_with(Seen(), middleware=[lambda call: None])
    async with Harness(app) as at:
        await deliver(at, "steps", Step("a", 2), id="s1")
        await at.advance(seconds=5)
        [dead] = at.dead_letters("steps")
        assert "middleware <lambda> returned NoneType, and no context manager; add a yield" in dead.description
