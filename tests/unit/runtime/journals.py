"""Books that lines are written into: what tests of refused, edited and blocked messages run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from outbox import App, Context, Reject
from outbox.lineage import fingerprint
from outbox.message import Scalar
from outbox.testing import Harness
from tests.unit.messages import Book, Line, deliver, deliver_raw, resubmit

RETENTION_S, MARGIN_S = 600, 60


def journal_app(**options: Any) -> App:
    """An application without handlers, whose records live for minutes."""
    retention, margin, skew = (timedelta(seconds=length) for length in (RETENTION_S, MARGIN_S, 30))
    return App("journal", retention=retention, margin=margin, clock_skew=skew, **options)


@dataclass
class Page:
    book: str


class Journal:
    """It refuses `bad` lines, and stumbles once over `shaky` ones; in `strict` a dead letter blocks its key."""

    def __init__(self, **options: Any) -> None:
        self.bad = {"bad", "worse"}
        self.shaky = {"shaky"}
        self.app = journal_app(**options)
        self.app.queue("strict", "per_key")
        self.app.queue("copied")

        @self.app.handler("lines", key="book")
        def write(line: Line, book: Book, ctx: Context) -> None:
            self.write(line, book)
            ctx.send("copied", line)

        @self.app.handler("lines", key="book")
        def turn(page: Page, book: Book) -> None:
            book.lines.append("---")

        @self.app.handler("strict", key="book", on_dead_letter="stop_key")
        def write_strictly(line: Line, book: Book) -> None:
            self.write(line, book)

        self.harness = Harness(self.app)

    def write(self, line: Line, book: Book) -> None:
        if line.text in self.bad:
            raise Reject("not a line")
        if line.text in self.shaky:
            self.shaky.remove(line.text)
            raise OSError("the table shakes")
        book.lines.append(line.text[:10])

    async def send(self, text: str, *, queue: str = "lines", id: str = "1", created: float | None = None) -> None:
        await deliver(self.harness, queue, Line("red", text), id=id, created=created)

    async def edit(self, text: str, *, queue: str = "lines", book: str = "red") -> None:
        await resubmit(self.harness, queue, "1", message=Line(book, text))

    async def send_edit(
        self, text: str, of: str, *, attempt: int = 1, book: str = "red", queue: str = "lines", id: str = "1"
    ) -> None:
        """Send an edit as another program would, which asks nobody."""
        body, old = (msgspec.json.encode(Line(*line)) for line in ((book, text), ("red", of)))
        properties: dict[str, Scalar] = {
            "outbox-id": id,
            "outbox-type": "Line",
            "session-id": "red",
            "outbox-created": round(self.harness.now() * 1_000),
            "outbox-attempt": attempt,
            "outbox-replaces": fingerprint(old, "Line").hex(),
        }
        await deliver_raw(self.harness, queue, body, properties=properties)

    async def lines(self, book: str = "red") -> list[str]:
        found = await self.harness.state(Book, book)
        return [] if found is None else found.lines

    def dead(self, queue: str = "lines") -> list[str]:
        return sorted(dead_letter.reason for dead_letter in self.harness.dead_letters(queue))
