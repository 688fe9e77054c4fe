"""The inverted index without a pipeline, for `bench_pipeline`: as two handlers, and by hand on SQLite.

Each takes a page, and returns when all its changes are durable.  At its end it has made the expected ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from examples.inverted_index.index import Change, Content, Page, Postings, Word, places_in, update, words
from outbox import App, Client, Context, Engine, Worker
from outbox.streams.pipeline.operators import Emitted

IDLE_S_MAX = 60.0
Handle = Callable[[Page], Coroutine[Any, Any, None]]

app = App("index")
app.queue("pages")
app.queue("words", ordering="per_key")
app.queue("changes")


@dataclass
class WordPlaces:
    """The places of a word, by page, as a handler's state."""

    pages: dict[int, tuple[int, ...]] = field(default_factory=dict)
    replace = Postings.replace


@app.handler("pages", key="number")
def split(page: Page, content: Content, ctx: Context) -> None:
    made: Emitted[Word] = Emitted()
    words(content, page, made)
    for word in made:
        ctx.send("words", word)


@app.handler("words", key="text")
def place(word: Word, postings: WordPlaces, ctx: Context) -> None:
    made: Emitted[Change] = Emitted()
    update(postings, word, made)  # type: ignore[arg-type]  # it has the same method
    for change in made:
        ctx.send("changes", change)


@asynccontextmanager
async def by_handlers(folder: Path, expected: Sequence[Change]) -> AsyncIterator[Handle]:
    """The two handlers on an engine; a message for each word, and one for each change."""
    async with Engine.open(folder) as engine, Worker(app, engine, concurrency=256) as worker:
        client = Client(app, engine)

        async def handle(page: Page) -> None:
            await client.send("pages", page, id=f"{page.number}.{page.version}")
            await worker.wait_idle(timeout_s=IDLE_S_MAX)

        yield handle
        left = engine.broker.queue("changes").counts()["active"]
        assert left == len(expected), f"{left} changes, not the {len(expected)} of these pages"


@asynccontextmanager
async def by_sqlite(file: Path, expected: Sequence[Change]) -> AsyncIterator[Handle]:
    """One table of places and one of changes; a page is a transaction that is flushed."""
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            "CREATE TABLE places (page INTEGER, word TEXT, places TEXT, PRIMARY KEY (page, word)) WITHOUT ROWID;"
            "CREATE INDEX by_word ON places (word);"
            "CREATE TABLE changes (serial INTEGER PRIMARY KEY, change TEXT);"
        )

        async def handle(page: Page) -> None:
            database.execute("BEGIN IMMEDIATE")
            rows = database.execute("SELECT word, places FROM places WHERE page = ?", (page.number,))
            before = {word: msgspec.json.decode(places, type=tuple[int, ...]) for word, places in rows}
            found = places_in(page)
            made: Emitted[Change] = Emitted()
            for word in (*found, *sorted(before.keys() - found.keys())):
                known = WordPlaces({page.number: before[word]} if word in before else {})
                update(known, Word(word, page.number, tuple(found.get(word, ()))), made)  # type: ignore[arg-type]
            database.execute("DELETE FROM places WHERE page = ?", (page.number,))
            database.executemany(
                "INSERT INTO places VALUES (?, ?, ?)",
                [(page.number, word, msgspec.json.encode(places)) for word, places in found.items()],
            )
            texts = [(msgspec.json.encode(change),) for change in made]
            database.executemany("INSERT INTO changes (change) VALUES (?)", texts)
            database.execute("COMMIT")

        yield handle
        rows = database.execute("SELECT change FROM changes ORDER BY serial")
        assert [msgspec.json.decode(text, type=Change) for (text,) in rows] == expected, "other changes"
