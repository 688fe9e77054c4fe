"""A handler that returns a generator has not run: its attempt fails and says so, and nothing counts as applied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from outbox import App, Context, Retries
from outbox.testing import Harness
from tests.unit.messages import deliver
from tests.unit.runtime.jobs import Fixed, Job, ran, running

SAID = "returned a generator, so nothing of it ran; leave out yield"

Made = Callable[[], Any]


def made() -> Iterator[None]:
    """A generator."""
    yield


async def made_later() -> AsyncIterator[None]:
    """An async one."""
    yield


generators = pytest.mark.parametrize("make", [made, made_later])


def returning(make: Made, kind: str) -> App:
    """An application with a handler of this kind that returns what is made."""
    app = App("returning", retry=Retries(limit=2, delays_s=()))
    if kind == "around":

        @app.middleware
        def around(call: Any) -> Iterator[None]:
            yield

    if kind == "stateless":

        @app.handler("q", key="key")
        def stateless(job: Job) -> Any:
            return make()

    else:

        @app.handler("q", key="key")
        def stateful(job: Job, fixed: Fixed) -> Any:
            return make()

    return app


@generators
@pytest.mark.parametrize("kind", ["stateful", "stateless", "around"])
async def test_its_message_is_retried_and_dead_lettered(make: Made, kind: str) -> None:
    calls: list[str] = []

    def counted() -> Any:
        calls.append(kind)
        return make()

    async with Harness(returning(counted, kind)) as world:
        await ran(world)
        (dead,) = world.dead_letters("q")
    assert len(calls) == 2 and dead.id == "1"
    assert dead.description.startswith("TypeError: handler state") and SAID in dead.description


@generators
async def test_what_a_handler_calls_may_not_return_one_either(make: Made) -> None:
    async def later() -> Any:
        return make()

    async def act(job: Job, ctx: Context) -> None:
        await ctx.call(make if job.n else later)

    async with Harness(running(act, retry=Retries(limit=1))) as world:
        await ran(world, Job("a"))
        await deliver(world, "q", Job("a", n=1), id="2")
        dead = world.dead_letters("q")
    assert [each.description.partition(SAID)[0] for each in dead] == ["TypeError: call 1 of handle "] * 2


@generators
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_its_request_fails(make: Made, method: str, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = App("asked", retry=Retries(limit=1))

    def now(job: Job, fixed: Fixed) -> Any:
        return make()

    async def later(job: Job, fixed: Fixed) -> Any:
        return make()

    app.http(method, "/jobs/{key}", key="key")(later if is_async else now)
    async with Harness(app) as world:
        headers = {"idempotency-key": "1"} if method == "POST" else {}
        answer = await world.request(method, "/jobs/a", headers=headers)
    assert answer.status >= 400 and SAID in caplog.text + answer.body.decode()
