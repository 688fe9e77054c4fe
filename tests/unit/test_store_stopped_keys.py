"""A key whose dead letter was removed by other means is told of, and let go by whoever looks after it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from outbox import App, Reject, Worker
from outbox.engine.adapters import EngineOperations
from tests.unit.store_site import Site, site


@dataclass
class Line:
    book: str
    n: int


@dataclass
class Book:
    ns: list[int] = field(default_factory=list)


def strict() -> App:
    app = App("strict")
    app.queue("lines", "per_key")

    @app.handler("lines", key="book", on_dead_letter="stop_key")
    def write(line: Line, book: Book) -> None:
        if line.n == 1:
            raise Reject("no")
        book.ns.append(line.n)

    return app


async def rest(at: Site, seconds: int) -> None:
    for _ in range(seconds // 5):
        at.clock.seconds += 5
        at.engine.tick()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_key_whose_dead_letter_was_purged_is_told_of_and_let_go(
    scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(scope) as at, Worker(strict(), at) as worker:
        for n in range(3):
            await worker.send("lines", Line("red", n), id=f"l{n}")
        await rest(at, 30)
        operations = EngineOperations(at.engine)  # the broker's own tool
        for letter in await operations.dead_letters("lines"):
            await operations.discard("lines", letter.sequence)
        await rest(at, 120)
        told = [record for record in caplog.records if "stands still" in record.message]
        assert [(r.levelno, r.__dict__["id"], r.__dict__["session"]) for r in told] == [(logging.WARNING, "l1", "red")]
        for wrong in ("l0", "l2"):
            with pytest.raises(LookupError):
                await worker.discard("lines", wrong, key="red")
        await worker.discard("lines", "l1", key="red")
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2])
