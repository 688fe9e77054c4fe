"""What a crash has left unsent counts as held: a handler gets no other name while it may be sent to its queue again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest

from outbox import App, Context, Worker
from outbox.errors import NotRegistrable
from tests.unit.stores.store_site import site, swept


@dataclass
class Task:
    key: str


@dataclass
class Count:
    n: int = 0


@dataclass
class Other:
    n: int = 0


def chained(name: str) -> App:
    app = App("a")

    @app.handler("first", key="key")
    def first(task: Task, count: Count, ctx: Context) -> None:
        ctx.send("q", Task(task.key))

    @app.handler("q", key="key", name=name)
    def second(task: Task, other: Other) -> None:
        other.n += 1

    return app


@pytest.mark.parametrize(("scope", "what"), [("partition", "mark"), ("item", "dispatched")])
async def test_no_rename_while_a_commit_may_send_its_output_again(scope: str, what: str) -> None:
    async with site(scope) as at:
        at.store.refused = what  # the worker ends before it could note that its output has left
        async with Worker(chained("old"), at, drain_s=0.1) as worker:
            await worker.send("first", Task("x"), id="1")
            with suppress(TimeoutError):  # in item scope the message is not done before that
                await worker.wait_idle(timeout_s=0.5)
        with pytest.raises(NotRegistrable, match="committed and not sent yet"):
            await Worker(chained("new"), at).__aenter__()
        at.store.refused = ""
        at.clock.seconds += 61
        await swept(at, chained("old"))
        async with Worker(chained("old"), at) as worker:
            await worker.wait_idle()
            assert await worker.state(Other, "x") == Other(1)
        async with Worker(chained("new"), at):
            pass
