"""Windows of a pipeline, beside a judge that computes them at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable
from outbox.ports import Create
from outbox.streams import OrderedLog, Pipeline
from outbox.streams.cells import Cell
from outbox.streams.log_places import place_of
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.pipeline.window import Window


@dataclass
class Order:
    """A sale."""

    article: str
    amount: int


@dataclass
class Takings:
    """What an article brought in a window."""

    article: str
    start_ms: int
    end_ms: int
    sum: int


def article_of(order: Order) -> str:
    return order.article


def takings(window: Window, orders: list[Order]) -> Iterator[Takings]:
    yield Takings(str(window.key), window.start_ms, window.end_ms, sum(order.amount for order in orders))
    orders.clear()  # it is the function's own


def judged(orders: Sequence[tuple[int, Order]], size_ms: int, slide_ms: int) -> list[Takings]:
    """All windows that an entry lies behind, in the order of their ends and then of their keys."""
    now_ms = max(at_ms for at_ms, _ in orders)
    first = min(at_ms for at_ms, _ in orders) // slide_ms * slide_ms
    found = []
    for end_ms in range(first + slide_ms, now_ms + 1, slide_ms):
        for article in sorted({order.article for _, order in orders}):
            inside = [o.amount for at, o in orders if o.article == article and end_ms - size_ms <= at < end_ms]
            if inside:
                found.append(Takings(article, end_ms - size_ms, end_ms, sum(inside)))
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("size_s", "slide_s"), [(1.0, None), (3.0, 1.0), (2.5, 0.5)])
async def test_windows_are_those_of_a_judge_whatever_the_checkpoints(
    size_s: float, slide_s: float | None, seed: int
) -> None:
    draw, engine = random.Random(seed), Engine.in_memory()
    now_ms = 1_000_000
    log = OrderedLog("orders", place_of(engine), type=Order)
    out = OrderedLog("takings", engine, type=Takings)
    pipeline = Pipeline("takings", source=log)
    window = pipeline.window(source=log, key=article_of, size_s=size_s, slide_s=slide_s, emits=Takings)(takings)
    pipeline.sink(window, out)
    orders: list[tuple[int, Order]] = []
    for number in range(60):
        now_ms += draw.choice((0, 0, 120, 400, 1_700))
        order = Order(draw.choice("abc"), number)
        orders.append((now_ms, order))
        row = log.row(0, 0)
        raws, types = row.values.encoded([order])
        await row.opened()
        await engine.store().write([Create(row.cells.key(number), _cell(number, now_ms, raws, types))])
    replica = await _begun(pipeline, engine)
    while await replica.turn():
        if draw.random() < 0.5:
            await replica.checkpoint()
        if draw.random() < 0.3:
            replica = await _begun(pipeline, engine)
        assert replica.known is not None
        for part in replica.known.register.stands.parts[:1]:
            data = await replica.place.blobs.read(part.blob, bytes_max=1 << 20)
            assert data is not None and b"null" not in data  # a key that is gone is not kept for ever
    found = [entry.value async for entry in out.read()]
    assert found == judged(orders, round(size_s * 1_000), round((slide_s or size_s) * 1_000))


async def _begun(pipeline: Pipeline, engine: Engine) -> PipelineReplica:
    made = PipelineReplica(pipeline.plan().on(lambda log: log.place), place_of(engine), entries_max=3)
    await made.begin()
    return made


def _cell(number: int, at_ms: int, raws: list[Any], types: list[str]) -> bytes:

    return msgspec.json.encode(Cell(f"c{number}", at_ms, len(raws), raws, types))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size_s": 0}, "size_s=0"),
        ({"size_s": "5"}, "size_s='5'"),
        ({"size_s": 5, "slide_s": 6}, "would be lost"),
    ],
)
def test_a_window_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    log = OrderedLog("orders", Engine.in_memory(), type=Order)
    with pytest.raises(NotRegistrable, match=text):
        Pipeline("takings", source=log).window(source=log, key=article_of, **options)(takings)


def same(order: Order) -> Order:
    return order


def test_what_a_window_stores_is_declared() -> None:
    log = OrderedLog("orders", Engine.in_memory(), type=Order)
    pipeline = Pipeline("takings", source=log)
    mapped = pipeline.map(source=log)(same)
    with pytest.raises(NotRegistrable, match="what same emits; declare emits="):
        pipeline.window(mapped, key=article_of, size_s=5)(takings)
