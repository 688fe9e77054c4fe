"""The way of one message: which files of `outbox/` it runs through, in the order first met.

    python -m tools.way engine|partition|item|http

A worker on an engine in memory handles one message for practice, then a second one under a profiler. `partition` and
`item` are the store protocols over that engine's store and bus, `http` is a POST to an entry in partition scope. What
happens before the worker has started, imports, the sender's own calls and what timers do are left out.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import outbox
from outbox import App, Context, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.http_entry import HttpEntry

ROOT = Path(outbox.__file__).parent.parent
SCOPES = ("engine", "partition", "item", "http")
REST_S = 0.5
"""How long marks and whatever else follows a settlement may take."""
TIMERS = frozenset({"_keep_time", "_beat", "_renew_loop"})
"""Loops of the engine and the worker that run whether there is a message or not."""

app = App("way")
app.queue("parcels")


@dataclass
class Order:
    article: str
    pieces: int


@dataclass
class Stock:
    pieces: int = 100


@app.handler("orders", key="article")
@app.http("POST", "/orders", key="article")
async def take(order: Order, stock: Stock, ctx: Context) -> None:
    stock.pieces -= order.pieces
    ctx.send("parcels", order)


def watch(files: dict[str, str], sender: CodeType) -> Callable[[FrameType, str, Any], None]:
    """A profiler that adds each file when it is first met, with the function that was called."""

    def met(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT / "outbox") and not is_beside(frame):
            files.setdefault(file.relative_to(ROOT).as_posix(), frame.f_code.co_qualname)

    def is_beside(frame: FrameType | None) -> bool:
        """Whether a call is part of sending the message, or of a timer."""
        while frame is not None and frame.f_code is not sender and frame.f_code.co_name not in TIMERS:
            frame = frame.f_back
        return frame is not None

    return met


async def handled(worker: Worker, article: str) -> None:
    """Send a message and wait until nothing is left to do."""
    await worker.send("orders", Order(article, 3), id=article)
    await worker.wait_idle()
    await asyncio.sleep(REST_S)


async def answered(entry: HttpEntry, article: str) -> None:
    """Make a request from a task of its own, and wait likewise."""
    body = b'{"article": "%s", "pieces": 3}' % article.encode()
    headers = {"idempotency-key": article, "content-type": "application/json"}
    response = await asyncio.create_task(entry.handle("POST", "/orders", headers, body))
    assert response.status < 300, response
    await asyncio.sleep(REST_S)


async def way(scope: str) -> dict[str, str]:
    """The files that one message runs through in a scope, in order, each with the first function met."""
    async with Engine.in_memory() as engine:
        backend = engine if scope == "engine" else NarrowEngine(engine, "item" if scope == "item" else "partition")
        if scope == "http":
            async with HttpEntry(app, backend) as entry:
                return await _second(lambda article: answered(entry, article), answered.__code__)
        async with Worker(app, backend) as worker:
            return await _second(lambda article: handled(worker, article), handled.__code__)


async def _second(one: Callable[[str], Awaitable[None]], sender: CodeType) -> dict[str, str]:
    await one("nails")
    files: dict[str, str] = {}
    sys.setprofile(watch(files, sender))
    try:
        await one("screws")
    finally:
        sys.setprofile(None)
    return files


def text(scope: str, files: dict[str, str]) -> str:
    """The way as a page shows it."""
    inside = sum(file.startswith("outbox/runtime/") for file in files)
    rows = [f"{number:3}  {file:<46} {met}" for number, (file, met) in enumerate(files.items(), 1)]
    return "\n".join([f"{scope}: {len(files)} files of outbox/, {inside} of them in outbox/runtime/", *rows])


if __name__ == "__main__":
    if sys.argv[1:] not in [[scope] for scope in SCOPES]:
        sys.exit(f"python -m tools.way {'|'.join(SCOPES)}")
    print(text(sys.argv[1], asyncio.run(way(sys.argv[1]))))
