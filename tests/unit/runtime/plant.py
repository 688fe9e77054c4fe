"""A handler that fails as a test wants it to, and counts what it handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox import App, Context, DeadLetter
from outbox.testing import Harness
from tests.unit.messages import Count

DAY_S = 86_400


@dataclass
class Task:
    key: str | None
    what: str = ""


class Plant:
    """An application whose handler does as `act` says, and what it was seen to do."""

    def __init__(self, act: Any = lambda task, ctx: None, **options: Any) -> None:
        self.act: Any = act
        self.runs: list[tuple[float, int]] = []
        self.app = App("plant", **options)
        self.app.queue("out")

        @self.app.handler("q", key="key")
        async def handle(task: Task, count: Count, ctx: Context) -> None:
            self.runs.append((ctx.now(), ctx.delivery_count))
            count.n += 1
            ctx.send("out", task)
            if (result := self.act(task, ctx)) is not None:
                await result


def raising(error: BaseException | type[BaseException]) -> Any:
    def act(task: Task, ctx: Context) -> None:
        raise error

    return act


async def only(world: Harness, queue: str = "q") -> DeadLetter:
    (dead_letter,) = world.dead_letters(queue)
    return dead_letter
