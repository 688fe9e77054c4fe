"""A drawn pipeline on an engine with a clock of its own, its source's export, and jobs over it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from outbox.engine.engine import Engine
from outbox.streams.cells import Position
from outbox.streams.log_places import Place, place_of
from spark_jobs.common.places import Folder
from spark_jobs.exporting.files import name_of
from spark_jobs.exporting.rows import Entry, Span, encoded
from spark_jobs.pipeline import Job
from tests.spark.drawn_pipelines import Drawn, drawn_events


@dataclass
class World:
    """A pipeline that runs live, and jobs for it; `tables` makes what these run on."""

    tables: Callable[[], Any]
    folder: Path
    seed: int
    engine: Engine
    now_ms: int = 1_000

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.count = 0
        self.open(self.engine)

    def open(self, engine: Engine) -> None:
        """Go on over another engine."""
        self.open_at(place_of(engine))

    def open_at(self, place: Place) -> None:
        """Go on in another place."""
        self.place = replace(place, now_ms=lambda: self.now_ms)
        self.made = Drawn(self.seed, self.place)

    async def write(self, count: int) -> None:
        """Append events, several at once, at times that may step back."""
        events = drawn_events(self.draw, count)
        while events:
            size = self.draw.choice((1, 1, 2, 5))
            batch, events = events[:size], events[size:]
            self.now_ms += self.draw.choice((-3, 0, 2, 9))
            self.count += 1
            await self.made.source.extend(batch, id=f"{self.count}")

    async def export(self) -> Position:
        """Write the source's entries as an export has them, in three files; where it ends."""
        end = await self.made.source.end()
        found = [each async for each in self.made.source.read()]
        entries = [Entry(each.position, each.id, each.at_ms, "", 1, msgspec.json.encode(each.value)) for each in found]
        cuts = [0, *sorted(random.Random(self.seed).sample(range(1, len(entries)), 2)), len(entries)]
        log = Folder(self.folder / "log")
        for first, last in pairwise(cuts):
            begin, until = entries[first].position, end if last == len(entries) else entries[last].position
            assert log.create(name_of(begin), encoded(entries[first:last], Span("events", "0.0", begin, until)))
        return end

    def job(self, place: Place, *, driver_entries: int = 0, **given: Any) -> Job:
        """A job whose epochs run on its tables; the driver takes those of `driver_entries` or fewer."""
        name = f"tests.spark.drawn_pipelines:seed{self.seed}"
        given |= {"driver_entries": driver_entries}
        return Job(self.tables, name, place, Folder(self.folder / "log"), Folder(self.folder / "scratch"), **given)


async def stored(made: Drawn) -> dict[str, list[bytes]]:
    """The bytes of all that came out, by log, wherever bundles end."""
    found = {}
    for name, log in made.sinks.items():
        cells = [await log.row(0, 0).cells.read(index) for index in range((await log.end()).index)]
        found[name] = [bytes(raw) for cell in cells if cell is not None for raw in cell.v]
    return found
