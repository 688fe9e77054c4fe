"""A pipeline that counts words by key, and the logs that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from outbox.engine.engine import Engine
from outbox.streams import Emit, OrderedLog, Pipeline, Skip
from outbox.streams.log_places import place_of
from outbox.streams.pipeline.cores import states_of
from outbox.streams.pipeline.release import Release, in_order
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.pipeline.states import KeyedStates
from outbox.streams.pipeline.tasks import LocalTasks


@dataclass
class Page:
    """An entry of the source."""

    text: str


@dataclass
class Word:
    """A word of a page."""

    text: str


@dataclass
class Count:
    """The state of a word."""

    n: int = 0


@dataclass
class Change:
    """What comes out: a word, and how often it has come."""

    word: str
    n: int


def text_of(word: Word) -> str:
    return word.text


def words(page: Page) -> Iterator[Word]:
    for text in page.text.split():
        yield Word(text)


def lowered(word: Word) -> Any:
    return Skip if word.text == "-" else Word(word.text.lower())


def is_long(word: Word) -> bool:
    return len(word.text) > 1


def count(state: Count, word: Word, emit: Emit[Change]) -> None:
    state.n += 1
    emit(Change(word.text, state.n))


class Counting:
    """The pipeline and its logs on an engine."""

    def __init__(
        self, engine: Engine, *, version: int = 1, name: str = "index", release: Release | None = None
    ) -> None:
        self.engine = engine
        self.release = release or in_order()
        self.pages = OrderedLog("pages", engine, type=Page)
        self.changes = OrderedLog("changes", engine, type=Change)
        self.pipeline = Pipeline(name, source=self.pages, version=version)
        split = self.pipeline.flat_map(source=self.pages, emits=Word)(words)
        counted = self.pipeline.reduce(split, key=text_of, state=Count, emits=Change)(count)
        self.pipeline.sink(counted, self.changes)

    def replica(self, **options: Any) -> PipelineReplica:
        """A replica as a process has it that has just begun."""
        plan = self.pipeline.plan(self.release).on(lambda log: log.place)
        return PipelineReplica(plan, place_of(self.engine), **options)

    async def write(self, *texts: str) -> None:
        """Append pages."""
        for text in texts:
            await self.pages.append(Page(text), id=uuid4().hex)

    async def released(self) -> list[tuple[str, int]]:
        """What has come out."""
        return [(entry.value.word, entry.value.n) async for entry in self.changes.read()]


def cores_in(replica: PipelineReplica) -> Mapping[str, Any]:
    """Its operators at work."""
    assert isinstance(replica.tasks, LocalTasks)
    return replica.tasks.cores


def states_in(replica: PipelineReplica) -> KeyedStates:
    """The states of its words."""
    found = states_of(cores_in(replica)["count"])
    assert found is not None
    return found


def expected(texts: Sequence[str]) -> list[tuple[str, int]]:
    """What comes out of these pages, computed at once."""
    seen: dict[str, int] = {}
    made = []
    for text in texts:
        for word in text.split():
            seen[word] = seen.get(word, 0) + 1
            made.append((word, seen[word]))
    return made


def recorded(done: list[object], threshold: int = 700) -> SimpleNamespace:
    """A double of the `gc` module; its calls go into `done`."""
    return SimpleNamespace(
        collect=lambda generation=2: done.append(f"collect {generation}"),
        freeze=partial(done.append, "freeze"),
        isenabled=lambda: True,
        unfreeze=partial(done.append, "unfreeze"),
        get_threshold=lambda: (threshold, 10, 10),
    )
