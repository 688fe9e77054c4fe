"""Handler names are registered where the messages are, so that a rename cannot handle anything twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.ports import Backend
from tests.unit.messages import Count, Task, deliver


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
        await deliver(worker, "q", Task("x"), id="1")
    async with Worker(App("sender"), backend) as sender:
        sender.app.queue("q")
        await sender.send("q", Task("x"), id="2")


async def test_a_renamed_handler_is_refused_while_its_source_holds_messages(engine: Engine, scope: str) -> None:
    await pending(engine, over(engine, scope))
    with pytest.raises(NotRegistrable, match="write name='old' there"):
        async with Worker(app_with("new"), over(engine, scope)):
            pass


async def test_a_renamed_handler_with_its_old_name_goes_on(engine: Engine, scope: str) -> None:
    await pending(engine, over(engine, scope))
    async with Worker(app_with("old", "another"), over(engine, scope)) as worker:
        await worker.wait_idle()
        assert await worker.state(Count, "x") is not None


async def test_a_handler_may_have_another_name_when_its_source_is_drained(engine: Engine, scope: str) -> None:
    backend = over(engine, scope)
    async with Worker(app_with("old"), backend) as worker:
        await deliver(worker, "q", Task("x"), id="1")
    for _ in range(2):
        async with Worker(app_with("new"), backend) as worker:
            await worker.wait_idle()


async def test_applications_that_read_other_sources_leave_each_other_alone(engine: Engine, scope: str) -> None:
    await pending(engine, over(engine, scope))
    async with Worker(app_with("other", queue="elsewhere"), over(engine, scope)):
        pass
    with pytest.raises(NotRegistrable, match="old"):
        async with Worker(app_with("new"), over(engine, scope)):
            pass


@dataclass
class Move:
    source: str
    target: str
    number: int = 0


def keyed(key: Any, **options: Any) -> App:
    app = App("a")

    @app.handler("q", key=key, name="old", **options)
    def handle(move: Move, count: Count) -> None:
        count.n += 1

    return app


def half(move: Move) -> str:
    return move.source[: len(move.source) // 2]


async def moved(engine: Engine, scope: str, key: Any = "source") -> Backend:
    """A backend on which a key was registered, and a message that nobody has handled yet."""
    backend = over(engine, scope)
    async with Worker(keyed(key), backend):
        pass
    async with Worker(App("sender"), backend) as sender:
        sender.app.queue("q")
        await sender.send("q", Move("xx", "y"), id="1")
    return backend


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("target", "takes its key from target .text., and took it from source .text.*key_name='source'"),
        (half, "takes its key from half.. .text., and took it from source"),
        ("number", "takes its key from number .int., and took it from source .text..*other keys; or drain"),
    ],
)
async def test_another_key_is_refused_while_its_source_holds_messages(
    engine: Engine, scope: str, key: Any, text: str
) -> None:
    backend = await moved(engine, scope)
    with pytest.raises(NotRegistrable, match=text):
        async with Worker(keyed(key), backend):
            pass


async def test_a_handler_that_loses_its_key_is_refused_as_well(engine: Engine, scope: str) -> None:
    backend = await moved(engine, scope)
    app = App("a")

    @app.handler("q", name="old")
    def handle(move: Move) -> None:
        pass

    with pytest.raises(NotRegistrable, match="old"):
        async with Worker(app, backend):
            pass


async def test_a_key_under_its_old_name_goes_on(engine: Engine, scope: str) -> None:
    backend = await moved(engine, scope)
    async with Worker(keyed(lambda move: move.source, key_name="source"), backend) as worker:
        await worker.wait_idle()
        assert await worker.state(Count, "xx") == Count(1)


async def test_a_key_whose_type_changed_is_refused_under_any_name(engine: Engine, scope: str) -> None:
    backend = await moved(engine, scope)
    with pytest.raises(NotRegistrable, match="other keys; or drain"):
        async with Worker(keyed("number", key_name="source"), backend):
            pass


async def test_a_handler_may_have_another_key_when_its_source_is_drained(engine: Engine, scope: str) -> None:
    backend = await moved(engine, scope)
    async with Worker(keyed("source"), backend) as worker:
        await worker.wait_idle()
    async with Worker(keyed("target"), backend) as worker:
        await deliver(worker, "q", Move("xx", "y"), id="2")
        assert await worker.state(Count, "y") == Count(1)
