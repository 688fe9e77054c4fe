"""A handler that does what a test wants of it, and what it may send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outbox import App, BlobRef, Context
from outbox.testing import Harness
from tests.unit.messages import deliver


@dataclass
class Job:
    key: str
    text: str = ""
    n: int = 0


@dataclass
class Made:
    ref: BlobRef


@dataclass
class Note:
    text: str = ""
    n: int = 0


@dataclass(frozen=True)
class Fixed:
    n: int = 0


def running(act: Callable[[Job, Context], Any], **options: Any) -> App:
    """An application whose stateless handler of `q` does as told, with a few destinations."""
    app = App("effects", **options)
    app.queue("out")
    app.topic("news")

    @app.handler("q", key="key")
    async def handle(job: Job, ctx: Context) -> None:
        result = act(job, ctx)
        if result is not None:
            await result

    return app


async def ran(world: Harness, job: Job | None = None, **options: Any) -> None:
    await deliver(world, "q", job or Job("a"), id="1", **options)
