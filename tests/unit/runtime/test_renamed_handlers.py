"""A handler gets another name only when nothing can bring back what was handled under the old one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outbox import App, Engine, Reject, Retry, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.ports import Backend
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Count, Task, deliver


@dataclass
class Other:
    n: int = 0


def app_with(name: str, ends: Exception | None = None) -> App:
    app = App("a")

    @app.handler("q", key="key", name=name)
    def counts(task: Task, count: Count) -> None:
        count.n += 1

    @app.handler("q", key="key", name="beside")
    def beside(task: Task, other: Other) -> None:
        if ends is not None:
            raise ends

    return app


def over(engine: Engine, scope: str) -> Backend:
    return engine if scope == "engine" else NarrowEngine(engine, "item" if scope == "item" else "partition")


async def start(app: App, backend: Backend) -> None:
    async with Worker(app, backend):
        pass


@pytest.mark.parametrize("ends", [Retry("not yet", after_s=60), Reject("no")], ids=["rescheduled", "dead-letter"])
async def test_no_rename_while_a_message_that_was_handled_in_part_rests(scope: str, ends: Exception) -> None:
    async with Engine.in_memory(clock=VirtualClock(START_S)) as engine:
        backend = over(engine, scope)
        async with Worker(app_with("old", ends), backend) as worker:
            await deliver(worker, "q", Task("x"), id="1")
        with pytest.raises(NotRegistrable, match="rescheduled, dead-lettered"):
            await start(app_with("new"), backend)
        await start(app_with("old"), backend)


async def test_no_rename_while_a_message_is_scheduled(scope: str) -> None:
    async with Engine.in_memory(clock=VirtualClock(START_S)) as engine:
        backend = over(engine, scope)
        async with Worker(app_with("old"), backend) as worker:
            await worker.send("q", Task("x"), id="1", after_s=3600)
        with pytest.raises(NotRegistrable, match="write name='old' there"):
            await start(app_with("new"), backend)


async def test_a_rename_is_taken_when_the_dead_letters_are_gone(scope: str) -> None:
    async with Engine.in_memory(clock=VirtualClock(START_S)) as engine:
        backend = over(engine, scope)
        async with Worker(app_with("old", Reject("no")), backend) as worker:
            await deliver(worker, "q", Task("x"), id="1")
            await worker.discard("q", "1")
        await start(app_with("new"), backend)
