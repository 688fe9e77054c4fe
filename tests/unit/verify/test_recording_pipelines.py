"""Pipelines on the real engine, recorded: sound as they are, and found out where an operator or a store is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.ports import Create, DocumentKey, Lost, Won, Write
from outbox.streams import Emit, NotDeterministic, OrderedLog, Pipeline, Position
from outbox.streams.cells import Cell
from outbox.streams.log_places import Place
from outbox.streams.pipeline.barrier import OtherWriter
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.definitions import QUIESCE, decide, went, words_of
from outbox.verify.recorded.streams import recorded_log, recorded_pipeline, rows_of
from outbox.verify.recorded.verdict import EXACTLY_ONCE, RECOVERABLE
from tests.unit.streams.pipeline.counting import Counting, expected
from tests.unit.verify.lying import Lying
from tests.unit.verify.test_words import WINDOW

COUNTING = "tests.unit.streams.pipeline.counting:Counting"
TEXTS = ("the cat", "sat on the mat", "-", "the end")


@pytest.mark.parametrize(("replicas", "workers"), [(1, 0), (3, 0), (1, 2)])
async def test_a_recorded_pipeline_does_the_same_and_keeps_every_promise(replicas: int, workers: int) -> None:
    history, made = History(), Counting(Engine.in_memory())
    history.life(is_empty=True)
    made.pages = recorded_log(made.pages, history)
    pipeline = recorded_pipeline(made.pipeline, history)
    options: dict[str, Any] = {"workers": workers, "imported": COUNTING} if workers else {"replicas": replicas}
    async with pipeline.run(made.engine, checkpoint_s=0.01, **options) as running:
        for number, text in enumerate(TEXTS, 1):
            await made.write(text)
            await running.until(Position(number))
    history.quiesce(rows_of(made.pages))
    released = await made.released()
    assert released == expected(TEXTS)
    verdict = check(history)
    assert verdict.ok and verdict.counts.outputs == len(released), verdict.text


async def test_what_was_made_is_on_record_when_the_process_is_killed(tmp_path: Path) -> None:
    """The buffer of a killed process is lost; what the next one finds in the sink must not look like a ghost."""
    made, path = Counting(Engine.in_memory()), tmp_path / "index.jsonl"
    await made.write(*TEXTS)
    for life, entries_max in enumerate((4, 1)):
        history = History(path)  # the first is left open, with what it has not handed on
        history.life(is_empty=life == 0)
        pipeline = recorded_pipeline(made.pipeline, history)
        replica = PipelineReplica(pipeline.plan(), pipeline.on(made.engine), entries_max=entries_max)
        await replica.begin()
        while await replica.turn():
            pass
    history.quiesce(rows_of(made.pages))
    verdict = check(path)
    assert verdict.ok and (verdict.counts.lives, verdict.counts.outputs) == (2, len(expected(TEXTS))), verdict.text


@dataclass
class Letter:
    text: str


@dataclass
class Last:
    text: str = ""


def newest_two(state: Last, letter: Letter, emit: Emit[Letter]) -> None:
    """The paper's operator."""
    emit(Letter(state.text + letter.text))
    state.text = letter.text


def one_key(letter: Letter) -> str:
    return "all"


def text_of(value: Any) -> list[tuple[None, str]]:
    return [(None, value["text"])]


async def test_table_ii_of_the_paper_as_a_pipeline(tmp_path: Path) -> None:
    """A failure comes before e; the row has fixed the order of the two sources."""
    path, engine = tmp_path / "index.jsonl", Engine.in_memory()
    letters, out = OrderedLog("letters", engine, type=Letter), OrderedLog("pairs", engine, type=Letter)
    given = Pipeline("window", source=letters)
    given.sink(given.reduce(source=letters, key=one_key, state=Last, emits=Letter)(newest_two), out)
    for texts in ("acdb", "e"):
        with History(path, bodies=True) as history:
            history.life(is_empty=texts != "e")
            for text in texts:
                await letters.append(Letter(text), id=text)
            await recorded_pipeline(given, history).run_until_idle(engine)
            history.quiesce(rows_of(letters))
    assert check(path).ok
    word = words_of(path, sink="pairs", takes=text_of, gives=text_of)
    assert [symbol.item for symbol in word if symbol.kind == "out"] == ["a", "ac", "cd", "db", "be"]
    assert [symbol.kind for symbol in word].count("fail") == 1
    assert decide(WINDOW, word, "exactly-once") is None
    assert word[-2:] == [went("be"), QUIESCE]
    found = decide(WINDOW, [*word[:-2], went("de"), QUIESCE], "exactly-once")
    assert found is not None and found.ids == ("de",)


async def test_a_word_needs_a_sink_and_bodies() -> None:
    history, made = History(), Counting(Engine.in_memory())
    await made.write("a")
    await recorded_pipeline(made.pipeline, history).run_until_idle(made.engine)
    with pytest.raises(ValueError, match="made anything for log other; give the name of a sink's log"):
        words_of(history.events(), sink="other")
    with pytest.raises(ValueError, match=r"cell 0 of log/pages/0\.0 has no bodies; record with"):
        words_of(history.events(), sink="changes")


async def test_a_version_that_takes_over_is_judged_with_the_older() -> None:
    engine, history = Engine.in_memory(), History()
    history.life(is_empty=True)
    for version in (1, 2):
        made = Counting(engine, version=version)
        await made.write(*TEXTS)
        await recorded_pipeline(made.pipeline, history).run_until_idle(engine)
    history.quiesce(rows_of(made.pages))
    verdict = check(history)
    assert verdict.ok and await made.released() == expected([*TEXTS, *TEXTS]), verdict.text


made_count: list[int] = []


def counted_in_all(letter: Letter) -> Letter:
    made_count.append(1)
    return Letter(f"{letter.text} {len(made_count)}")


async def test_an_operator_that_is_not_pure_is_found_in_the_history_as_well() -> None:
    engine, history = Engine.in_memory(), History()
    letters, out = OrderedLog("letters", engine, type=Letter), OrderedLog("out", engine, type=Letter)
    given = Pipeline("impure", source=letters)
    given.sink(given.map(source=letters, emits=Letter)(counted_in_all), out)
    await letters.append(Letter("a"), id="a")
    with pytest.raises(NotDeterministic):
        async with recorded_pipeline(given, history).run(engine, replicas=2) as running:
            await running.until(Position(1))
            await running.tasks[1]
    first = check(history).first(EXACTLY_ONCE)
    assert first is not None and first.what == "attempts differ" and RECOVERABLE in first.breaks


@dataclass(eq=False)
class HoldsAnother(Lying):
    """Another bundle lies there than the one that was to be created, under its identity."""

    change: Callable[[Cell], Cell]

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        (write,) = operations
        if isinstance(write, Create) and write.key == DocumentKey("log/changes/0.0/0", "0000000000"):
            cell = self.change(msgspec.json.decode(write.body, type=Cell))
            await self.store.write([replace(write, body=msgspec.json.encode(cell))])
        return await self.store.write(operations)


def fewer(cell: Cell) -> Cell:
    return msgspec.structs.replace(cell, v=cell.v[1:], count=cell.count - 1)


def others(cell: Cell) -> Cell:
    return msgspec.structs.replace(cell, id="another", begin=None, until=None)


@pytest.mark.parametrize(
    ("change", "error", "found"),
    [(fewer, NotDeterministic, ["changed payload", "no quiesce"]), (others, OtherWriter, ["no quiesce"])],
)
async def test_a_store_that_holds_something_else_is_found_out(
    change: Callable[[Cell], Cell], error: type[Exception], found: list[str]
) -> None:
    history, made = History(), Counting(Engine.in_memory())
    await made.write(*TEXTS)

    def lying(place: Place) -> Place:
        return replace(place, store=HoldsAnother(place.store, change))

    with pytest.raises(error):
        await recorded_pipeline(made.pipeline, history).over(lying).run_until_idle(made.engine)
    assert [finding.what for finding in check(history).findings] == found
