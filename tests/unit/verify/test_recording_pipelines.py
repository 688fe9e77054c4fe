"""Pipelines on the real engine, recorded: sound as they are, and found out where an operator or a store is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.ports import Create, Document, DocumentKey, Lost, Won, Write
from outbox.streams import Emit, NotDeterministic, OrderedLog, Pipeline, Position
from outbox.streams.cells import Cell
from outbox.streams.log_places import Place
from outbox.streams.pipeline.barrier import Names, OtherWriter
from outbox.streams.pipeline.checkpoint import Chain, Checkpoint, PartRef, PipelineRegister
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.values import Values
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.definitions import QUIESCE, decide, went, words_of
from outbox.verify.recorded.events import Durable, Left
from outbox.verify.recorded.streams import (
    PipelineEvents,
    RecordedBarrier,
    cell_digest,
    recorded_log,
    recorded_pipeline,
    rows_of,
)
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


def test_a_checkpoint_that_holds_outputs_lasts_below_the_one_before() -> None:
    history, made = History(), Counting(Engine.in_memory())
    seen, key = PipelineEvents(history, made.pipeline.plan()), DocumentKey("pipeline/index", "register")
    for n, (index, held) in enumerate(((3, []), (5, [PartRef("b", "d", 1)]), (8, [PartRef("b", "d", 1)]), (9, [])), 1):
        stands = Checkpoint(n, Position(index), {}, held=held)
        register = PipelineRegister(version=n, graph="g", source="s", stands=stands)
        seen.look(Document(key, msgspec.json.encode(register), str(n)))
    durable = [(event.id, event.until) for event in history.events() if isinstance(event, Durable)]
    assert durable == [("index/1", (3, 0)), ("index/2", (3, 0)), ("index/3", (5, 0)), ("index/4", (9, 0))]


def test_a_bundle_is_of_the_version_whose_name_it_bears() -> None:
    history, made = History(), Counting(Engine.in_memory())
    seen, begin, until = PipelineEvents(history, made.pipeline.plan()), Position(0), Position(1)
    names = [Names("index", version, f"g{version}", "changes") for version in (3, 2, 1)]
    for index, id in enumerate([*(each.id(begin, until) for each in names), "no version's"]):
        chain, newest = Chain(index, begin), names[0]
        barrier = RecordedBarrier(seen, newest, Values("changes", int), chain, begin, names[1:])
        with nullcontext() if index < len(names) else pytest.raises(OtherWriter):
            barrier.adopt(index, Cell(id, begin=begin, until=until))
    assert [event.version for event in history.events() if isinstance(event, Left)] == [3, 2, 1, 0]


def test_without_a_chain_a_bundle_is_recorded_where_it_lies_and_once_it_lies_there() -> None:
    history, made = History(), Counting(Engine.in_memory())
    seen, bundle = PipelineEvents(history, made.pipeline.plan()), Cell("b", begin=Position(0), until=Position(2))
    names, values = Names("index", 1, "g", "changes"), Values("changes", int)
    for until, next in ((Position(2), 0), (Position(3), 4), (Position(2), 5)):
        barrier = RecordedBarrier(seen, names, values, Chain(0, Position(0)), Position(0), is_chained=False)
        barrier._barrier.bundled = bundle
        barrier.pass_by(until, next)
        assert (barrier.begin, barrier.next, barrier.bundled) == (until, next, None)
    assert [(event.id, event.index) for event in history.events() if isinstance(event, Left)] == [("b", 4)]


def test_a_cell_says_the_same_wherever_its_entries_lie() -> None:
    raws = [msgspec.Raw(b"1"), msgspec.Raw(b"2")]
    cells = [Cell("a", v=raws), Cell("a", blob="b", digest=sha256(b"[1,2]").hexdigest()), Cell("a", v=raws[:1])]
    first, apart, *others = map(cell_digest, [*cells, Cell("a", v=raws, types=["A", "B"]), Cell("a", blob="b")])
    assert first == apart and first not in others


def test_all_rows_of_a_log_are_named() -> None:
    log = OrderedLog("l", Engine.in_memory(), type=Letter, writers=2, readers=3, partition=one_key)
    assert rows_of(log) == [f"log/l/{writer}.{reader}" for writer in range(2) for reader in range(3)]


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
