"""A pipeline of sales with all that goes aside: what is refused, and what is late for a window; and its judge."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from outbox.engine.engine import Engine
from outbox.errors import PoisonMessage
from outbox.streams import Emit, MapState, OrderedLog, Pipeline, RefusedEntry, Value, Window
from outbox.streams.log_places import place_of
from outbox.streams.pipeline.replica import PipelineReplica

SIZE_MS, SLIDE_MS = 20, 10
MUCH = 100


@dataclass
class Sale:
    """An entry of the source."""

    article: str
    ms: int
    cents: int


@dataclass
class Takings:
    """What an article has brought, up to a time or in a window that ends then."""

    article: str
    ms: int
    cents: int


@dataclass
class Total:
    """What an article has brought, and when."""

    cents: Value[int] = field(default_factory=lambda: Value(0))
    by_ms: MapState[str, int] = field(default_factory=MapState)
    last: str = ""


def article_of(sale: Sale) -> str:
    if sale.article == "?":
        raise PoisonMessage("nameless", "which article?")
    return sale.article


def sold_ms(sale: Sale) -> int:
    return sale.ms


def total(state: Total, sale: Sale, emit: Emit[Takings]) -> None:
    """It changes its state before it refuses."""
    state.last = str(sale.ms)
    state.cents.value += sale.cents
    state.by_ms[state.last] = sale.cents
    emit(Takings(sale.article, sale.ms, state.cents.value))
    if sale.cents < 0:
        raise PoisonMessage("negative", f"{sale.cents} cents")


def lately(window: Window, sales: Sequence[Sale]) -> Iterator[Takings]:
    cents = sum(sale.cents for sale in sales)
    if cents > MUCH:
        raise PoisonMessage("much", f"{cents} cents")
    yield Takings(str(window.key), window.end_ms, cents)


class Selling:
    """The pipeline and its logs on an engine."""

    def __init__(self, engine: Engine, *, size_ms: int = SIZE_MS, slide_ms: int = SLIDE_MS) -> None:
        self.engine = engine
        self.sales = OrderedLog("sales", engine, type=Sale)
        self.totals = OrderedLog("totals", engine, type=Takings)
        self.lately = OrderedLog("lately", engine, type=Takings)
        self.late = OrderedLog("late", engine, type=Sale)
        self.refused = OrderedLog("refused", engine, type=RefusedEntry)
        self.pipeline = Pipeline("takings", source=self.sales, refused=self.refused)
        summed = self.pipeline.reduce(source=self.sales, key=article_of, state=Total, emits=Takings)(total)
        window = self.pipeline.window(
            source=self.sales,
            key=article_of,
            size_s=size_ms / 1_000,
            slide_s=slide_ms / 1_000,
            time=sold_ms,
            late=self.late,
            emits=Takings,
        )(lately)
        self.pipeline.sink(summed, self.totals)
        self.pipeline.sink(window, self.lately)

    def replica(self, **options: Any) -> PipelineReplica:
        """A replica as a process has it that has just begun."""
        plan = self.pipeline.plan().on(lambda log: log.place)
        return PipelineReplica(plan, place_of(self.engine), **options)

    async def write(self, *sales: Sale) -> None:
        """Append sales."""
        for sale in sales:
            await self.sales.append(sale, id=uuid4().hex)

    async def released(self) -> dict[str, list[Any]]:
        """What has come out, by log; of what was refused the position, the reason and the value."""
        logs = (self.totals, self.lately, self.late)
        found: dict[str, list[Any]] = {log.name: [entry.value async for entry in log.read()] for log in logs}
        refused = [entry.value async for entry in self.refused.read()]
        return found | {"refused": [(each.position, each.reason, bytes(each.value)) for each in refused]}


def drawn(draw: random.Random, count: int) -> list[Sale]:
    """Sales of which some are out of order, late, nameless or negative."""
    found, now_ms = [], 1_000
    for _ in range(count):
        now_ms += draw.choice((0, 1, 4, 9, 30))
        article = draw.choice("aabbb?")
        ms = max(now_ms - draw.choice((0, 0, 0, 5, 12, 25, 45)), 0)
        found.append(Sale(article, ms, draw.choice((30, 40, 70, -5))))
    return found


def expected(sales: Sequence[Sale], size_ms: int = SIZE_MS, slide_ms: int = SLIDE_MS) -> dict[str, list[Any]]:
    """What comes out of these sales, by a judge that looks at all of them for each."""
    totals: list[Takings] = []
    lates: list[Sale] = []
    windows: list[Takings] = []
    refused: list[tuple[str, str, bytes]] = []
    sums: dict[str, int] = {}
    closed_ms = now_ms = -(1 << 60)
    counted: list[tuple[Sale, int]] = []
    for index, sale in enumerate(sales):
        reason = ""
        if sale.article == "?":
            reason = "total: PoisonMessage: nameless: which article?"
        elif sale.cents < 0:
            reason = f"total: PoisonMessage: negative: {sale.cents} cents"
        else:
            sums[sale.article] = sums.get(sale.article, 0) + sale.cents
            totals.append(Takings(sale.article, sale.ms, sums[sale.article]))
        value = b'{"article":"%b","ms":%d,"cents":%d}' % (sale.article.encode(), sale.ms, sale.cents)
        if reason:
            refused.append((f"{index}.0", reason, value))
        closed_ms, now_ms = now_ms, max(now_ms, sale.ms)
        ends = range((closed_ms // slide_ms + 1) * slide_ms, now_ms + 1, slide_ms) if counted else ()
        for end_ms in ends:
            for article in sorted({each.article for each, _ in counted}):
                inside = [
                    each
                    for each, known_ms in counted
                    if each.article == article and end_ms - size_ms <= each.ms < end_ms and known_ms < end_ms
                ]
                cents = sum(each.cents for each in inside)
                if cents > MUCH:
                    values = b",".join(
                        b'{"article":"%b","ms":%d,"cents":%d}' % (each.article.encode(), each.ms, each.cents)
                        for each in inside
                    )
                    refused.append((f"{index}.0", f"lately: PoisonMessage: much: {cents} cents", b"[%b]" % values))
                elif inside:
                    windows.append(Takings(article, end_ms, cents))
        if _is_late(sale.ms, now_ms, size_ms, slide_ms):
            lates.append(sale)
        elif sale.article != "?":
            counted.append((sale, now_ms))
    return {"totals": totals, "lately": windows, "late": lates, "refused": refused}


def _is_late(ms: int, now_ms: int, size_ms: int, slide_ms: int) -> bool:
    """Whether no window that holds this time ends behind now."""
    ends = range(ms // slide_ms * slide_ms, ms + size_ms + 1, slide_ms)
    return not any(end_ms > now_ms and end_ms - size_ms <= ms < end_ms for end_ms in ends)
