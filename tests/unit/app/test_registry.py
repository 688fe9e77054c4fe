"""Handler names are registered where the messages are, so that a rename cannot handle anything twice."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outbox import App, Engine, Reject, Worker
from outbox.engine.narrow import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.ports import Backend


@dataclass
class Task:
    key: str


@dataclass
class Count:
    n: int = 0


def app_with(*names: str, queue: str = "q") -> App:
    app = App("a")
    for name in names:

        @app.handler(queue, key="key", name=name)
        def handle(task: Task, count: Count) -> None:
            if task.key == "stuck":
                raise Reject("stuck")
            count.n += 1

    return app


def over(engine: Engine, scope: str) -> Backend:
    return engine if scope == "engine" else NarrowEngine(engine, "item" if scope == "item" else "partition")


async def pending(engine: Engine, backend: Backend) -> None:
    """A message that nobody has handled yet, in a queue that was handled by `old`."""
    async with Worker(app_with("old"), backend) as worker:
        await worker.send("q", Task("x"), id="1")
        await worker.wait_idle()
    async with Worker(App("sender"), backend) as sender:
        sender.app.queue("q")
        await sender.send("q", Task("x"), id="2")


async def test_a_renamed_handler_is_refused_while_its_source_holds_messages(scope: str) -> None:
    async with Engine.in_memory() as engine:
        await pending(engine, over(engine, scope))
        with pytest.raises(NotRegistrable, match="write name='old' there"):
            async with Worker(app_with("new"), over(engine, scope)):
                pass


async def test_a_renamed_handler_with_its_old_name_goes_on(scope: str) -> None:
    async with Engine.in_memory() as engine:
        await pending(engine, over(engine, scope))
        async with Worker(app_with("old", "another"), over(engine, scope)) as worker:
            await worker.wait_idle()
            assert await worker.state(Count, "x") is not None


async def test_a_handler_may_have_another_name_when_its_source_is_drained(scope: str) -> None:
    async with Engine.in_memory() as engine:
        backend = over(engine, scope)
        async with Worker(app_with("old"), backend) as worker:
            await worker.send("q", Task("x"), id="1")
            await worker.wait_idle()
        for _ in range(2):
            async with Worker(app_with("new"), backend) as worker:
                await worker.wait_idle()


async def test_applications_that_read_other_sources_leave_each_other_alone(scope: str) -> None:
    async with Engine.in_memory() as engine:
        await pending(engine, over(engine, scope))
        async with Worker(app_with("other", queue="elsewhere"), over(engine, scope)):
            pass
        with pytest.raises(NotRegistrable, match="old"):
            async with Worker(app_with("new"), over(engine, scope)):
                pass
