"""Golden files: bytes of logs, a processor and pipelines that earlier builds stored; today's code must go on from them.

    python -c 'from tests.unit.streams.pipeline import test_golden_streams as kept; kept.write("NAME")'

writes what today's code stores to `tests/histories/golden-streams/NAME.json`, for a new form only: files that are there
stay as they are.  In each a log has cells of one entry, of two, and one whose entry lies in a blob; another log is
trimmed; a processor has died between its swap and its cell; a pipeline has a checkpoint of whole states, one of
changes, and a bundle behind them; and one that works by epoch has died before the outputs of its checkpoint left.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from outbox.engine.engine import Engine
from outbox.errors import Unreachable
from outbox.ports import Create, DocumentKey, Lost, Won, Write
from outbox.streams import Emit, Inputs, MapState, OrderedLog, Pipeline, Position, Processor, Step, release
from outbox.streams.log_places import place_of
from outbox.streams.pipeline.replica import PipelineReplica
from tests.unit.streams.making import ANY_AGE, fill, values

FOLDER = Path(__file__).resolve().parents[3] / "histories" / "golden-streams"
KEPT = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


@dataclass
class Page:
    number: int
    text: str


@dataclass
class Total:
    n: int = 0


@dataclass
class Places:
    pages: MapState[int, int] = field(default_factory=MapState)
    last: int = 0


@dataclass
class Change:
    word: str
    count: int


@dataclass
class Word:
    text: str
    page: int


BEFORE = [Page(1, "a b c d e f g h"), Page(2, "a"), Page(3, "b a"), Page(4, "long " * 20)]
AFTER = Page(5, "a h")


def lengths(total: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        total.n += len(entry.value.text)
        step.emit("lengths", total.n)


def split(page: Page) -> list[Word]:
    return [Word(text, page.number) for text in page.text.split()]


def word_of(word: Word) -> str:
    return word.text


def place(state: Places, word: Word, emit: Emit[Change]) -> None:
    state.pages[word.page] = state.pages.get(word.page, 0) + 1
    state.last = word.page
    emit(Change(word.text, sum(state.pages.values())))


def lengths_of(pages: Sequence[Page]) -> list[int]:
    return [sum(len(page.text) for page in pages[: index + 1]) for index in range(len(pages))]


def changes_of(pages: Sequence[Page]) -> list[Change]:
    seen, made = Counter[str](), list[Change]()
    for text in (text for page in pages for text in page.text.split()):
        seen[text] += 1
        made.append(Change(text, seen[text]))
    return made


class Streams:
    """Everything on an engine; a `store` of its own is the processor's."""

    def __init__(self, engine: Engine, store: Any = None) -> None:
        at = store or engine.store()
        self.pages = OrderedLog("pages", engine, type=Page)
        self.gone = OrderedLog("gone", engine, type=int)
        self.lengths = OrderedLog("lengths", at, type=int)
        inputs, outputs = {"pages": OrderedLog("pages", engine, type=Page)}, {"lengths": self.lengths}
        self.processor = Processor("lengths", lengths, state=Total, register=at, inputs=inputs, outputs=outputs)
        self.changes = {name: OrderedLog(name, engine, type=Change) for name in ("changes", "held")}
        self.pipelines = {name: self._pipeline(name) for name in self.changes}

    def _pipeline(self, name: str) -> Pipeline:
        made = Pipeline(name, source=self.pages)
        words = made.flat_map(source=self.pages, emits=Word)(split)
        made.sink(made.reduce(words, key=word_of, state=Places, emits=Change)(place), self.changes[name])
        return made


class Dying:
    """A store that is gone as soon as a cell is to be created."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        self.is_dead = self.is_dead or any(getattr(each.tag, "what", "") == "append" for each in operations)
        if self.is_dead:
            raise Unreachable("the process is dead")
        answer: Won | Lost = await self._store.write(operations)
        return answer


async def stored() -> dict[str, Any]:
    """What today's code stores."""
    engine = Engine.in_memory()
    streams = Streams(engine, Dying(engine.store()))
    await fill(streams.gone, 1, 2, 3)
    await streams.gone.trim(min_age=ANY_AGE)
    await streams.pages.extend(BEFORE[:2], id="two")
    await streams.pages.append(BEFORE[2], id="one")
    with patch("outbox.streams.values.CELL_BYTES_MAX", 40):
        await streams.pages.append(BEFORE[3], id="large")
    with pytest.raises(Unreachable):
        await streams.processor.run_until_idle(seconds=1)
    plan = streams.pipelines["changes"].plan(release.in_order()).on(lambda log: log.place)
    replica = PipelineReplica(plan, place_of(engine), entries_max=2)
    await replica.begin()
    for _ in range(2):
        assert await replica.turn() and await replica.checkpoint()
    assert await replica.turn()
    plan = streams.pipelines["held"].plan(release.by_epoch()).on(lambda log: log.place)
    replica = PipelineReplica(plan, place_of(engine))
    await replica.begin()
    assert await replica.turn() and await replica._checkpoint()
    spaces, blobs = engine.state.documents.spaces, engine.blobs._blobs  # type: ignore[attr-defined]  # in memory
    documents = {f"{space.removeprefix('p/')} {id}": each.value.decode() for space, found in spaces.items()
                 for id, each in found.items()}  # fmt: skip
    return {"documents": documents, "blobs": {name: bytes(data).decode() for name, data in blobs.items()}}


async def loaded(kept: dict[str, Any]) -> Engine:
    """An engine with what an earlier build has stored."""
    engine = Engine.in_memory()
    for name, body in kept["documents"].items():
        await engine.store().write([Create(DocumentKey(*name.rsplit(" ", 1)), body.encode())])
    for name, data in kept["blobs"].items():
        await engine.blobs.write(name, data.encode())
    return engine


@pytest.mark.parametrize("name", KEPT)
async def test_what_an_earlier_build_has_stored_of_streams_goes_on(name: str) -> None:
    streams = Streams(await loaded(KEPT[name]))
    assert await values(streams.pages) == BEFORE and await values(streams.gone) == []
    assert await streams.pages.append(BEFORE[2], id="one", since=Position(0)) == Position(1)
    assert await streams.gone.append(4, id="gone-3") == Position(3)
    await streams.pages.append(AFTER, id="after")
    await streams.processor.run_until_idle(seconds=5)
    assert await values(streams.lengths) == lengths_of([*BEFORE, AFTER])
    for log, chosen in {"changes": release.in_order(), "held": release.by_epoch()}.items():
        await streams.pipelines[log].run_until_idle(streams.pages.place, release=chosen, seconds=5)
        assert await values(streams.changes[log]) == changes_of([*BEFORE, AFTER])


def test_forms_are_kept() -> None:
    assert KEPT


def write(name: str) -> None:
    """Write what today's code stores, as a new file."""
    with (FOLDER / f"{name}.json").open("x") as file:
        file.write(json.dumps(asyncio.run(stored()), indent=1, sort_keys=True) + "\n")
