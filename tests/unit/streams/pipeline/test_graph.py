"""What is no pipeline is refused where it is built, with the cure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable
from outbox.streams import OrderedLog, Pipeline, RefusedEntry
from tests.unit.streams.pipeline.counting import Change, Count, Counting, Page, Word, count, is_long, text_of, words
from tests.unit.streams.pipeline.selling import Selling


def pages(**options: Any) -> OrderedLog[Page]:
    return OrderedLog("pages", Engine.in_memory(), type=Page, **options)


async def waiting(page: Page) -> None:
    await asyncio.sleep(0)


def pair(page: Page, other: Page) -> None: ...


def nothing_new(state: Any, word: Word) -> None: ...


class NeedsMore:
    def __init__(self, given: int) -> None:
        self.given = given


def at_of(page: Page) -> int:
    return 0


def nothing(window: Any, values: Any) -> list[Word]:
    return []


def other(**options: Any) -> OrderedLog[Any]:
    return OrderedLog("other", Engine.in_memory(), **{"type": Page, **options})


def lately_of(pipeline: Pipeline, **options: Any) -> Any:
    return pipeline.window(source=pipeline.source, key=text_of, size_s=5, **options)(nothing)


def sunk(pipeline: Pipeline, log: OrderedLog[Any]) -> OrderedLog[Any]:
    pipeline.sink(split(pipeline), log)
    return log


def refusing(pipeline: Pipeline, name: str = "refused", **options: Any) -> Pipeline:
    log: OrderedLog[Any] = OrderedLog(name, pipeline.source.log.place, **{"type": RefusedEntry, **options})
    return Pipeline("index", source=pipeline.source, refused=log)


def split(pipeline: Pipeline) -> Any:
    return pipeline.flat_map(source=pipeline.source, emits=Word)(words)


WRONG: dict[str, tuple[Callable[[Pipeline], object], str]] = {
    "no upstream": (lambda p: p.map()(text_of), "takes one operator, or source="),
    "two upstreams": (lambda p: p.map(split(p), source=p.source)(text_of), "takes one operator, or source="),
    "another source": (lambda p: p.map(source=OrderedLog("o", Engine.in_memory(), type=Page))(text_of), "not o;"),
    "an unknown operator": (lambda p: p.map("words")(text_of), "none of its operators"),
    "another's operator": (lambda p: p.map(Counting(Engine.in_memory()).pipeline.plan().operators[0])(text_of), "none"),
    "a lambda": (lambda p: p.map(source=p.source)(lambda page: page), "no function of a module"),
    "an object": (lambda p: p.map(source=p.source)(len), "no function of a module"),
    "async": (lambda p: p.map(source=p.source)(waiting), "waits or yields"),
    "a map that yields": (lambda p: p.map(source=p.source)(words), "waits or yields"),
    "too many parameters": (lambda p: p.map(source=p.source)(pair), "is called with (value)"),
    "a reduce without emit": (lambda p: p.reduce(split(p), key=text_of, state=Count)(nothing_new), "emit"),
    "a key that is no function": (lambda p: p.reduce(split(p), key="text", state=Count)(count), "key="),  # type: ignore[arg-type]  # that is tested
    "a key that waits": (lambda p: p.reduce(split(p), key=waiting, state=Count)(count), "key= waits or yields"),
    "a key that yields": (lambda p: p.reduce(split(p), key=words, state=Count)(count), "key= waits or yields"),
    "a window's key that waits": (lambda p: p.window(split(p), key=waiting, size_s=5)(nothing), "key= waits or yields"),
    "a time that waits": (lambda p: lately_of(p, time=waiting, late=other()), "time= waits or yields"),
    "a state that is no class": (lambda p: p.reduce(split(p), key=text_of, state=3)(count), "give the class"),  # type: ignore[arg-type]  # that is tested
    "a state that cannot begin": (lambda p: p.reduce(split(p), key=text_of, state=NeedsMore)(count), "NeedsMore"),
    "a type by its name": (lambda p: p.map(source=p.source, emits="x")(text_of), "emits='x' is no type"),
    "a number for a type": (lambda p: p.reduce(split(p), key=text_of, state=Count, emits=3)(count), "emits=3 is no"),
    "types in a list": (lambda p: lately_of(p, emits=[Word]), "is no type; give a class, or a union"),
    "a function for a type": (lambda p: p.flat_map(source=p.source, emits=words)(words), "is no type; give a class"),
    "two of one name": (lambda p: (split(p), split(p)), "two operators 'words'"),
    "no sink": (lambda p: (split(p), p.plan()), "no sink"),
    "a sink of nothing": (lambda p: p.sink("words", p.source.log), "none of its operators"),  # type: ignore[arg-type]  # that is tested
    "the source as a sink": (lambda p: p.sink(split(p), p.source.log), "is its source"),
    "a time without a log": (lambda p: lately_of(p, time=at_of), "give time=function and late=log"),
    "a log without a time": (lambda p: lately_of(p, late=pages()), "give time=function and late=log"),
    "a time that is no function": (lambda p: lately_of(p, time=3, late=other()), "time="),
    "a log of something else": (lambda p: lately_of(p, time=at_of, late=other(type=Word)), "late= gets values of Page"),
    "the source for what is late": (lambda p: lately_of(p, time=at_of, late=p.source.log), "is its source"),
    "a log of several rows": (lambda p: lately_of(p, time=at_of, late=other(writers=2)), "one writer"),
    "a sink for what is late": (lambda p: lately_of(p, time=at_of, late=sunk(p, other())), "two sinks"),
    "only what is late": (lambda p: (lately_of(p, time=at_of, late=other()), p.plan()), "no sink"),
    "a refused log of something else": (lambda p: refusing(p, type=Page), "gets values of RefusedEntry"),
    "the source for what is refused": (lambda p: refusing(p, "pages"), "is its source"),
    "a refused log twice": (lambda p: sunk(made := refusing(p), made._sinks["refused"][1]), "two sinks"),
    "only what is refused": (lambda p: refusing(p).plan(), "no sink"),
    "a sink of several rows": (lambda p: p.sink(split(p), pages(writers=2)), "one writer"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_pipeline_is_refused_with_the_cure(case: str) -> None:
    build, text = WRONG[case]
    with pytest.raises(NotRegistrable) as raised:
        build(Pipeline("index", source=pages()))
    assert text in str(raised.value), str(raised.value)


def test_a_source_of_several_writers_is_refused_and_one_of_its_readers_taken() -> None:
    with pytest.raises(NotRegistrable, match="let a Processor read it"):
        Pipeline("index", source=pages(writers=2))
    shared = pages(readers=2, partition=lambda page: page.text)
    with pytest.raises(NotRegistrable, match=r"one of its \.reader"):
        Pipeline("index", source=shared)
    assert Pipeline("index", source=shared.reader(1)).source.reader == 1


@pytest.mark.parametrize("version", [0, True, "2"])
def test_a_version_is_a_whole_number(version: Any) -> None:
    with pytest.raises(NotRegistrable, match="version="):
        Pipeline("index", source=pages(), version=version)


@pytest.mark.parametrize("version", [True, "1", 1.0, None, 0, -3])
def test_the_version_of_a_state_is_a_whole_number(version: Any) -> None:
    pipeline = Pipeline("index", source=pages())
    with pytest.raises(NotRegistrable, match=f"state_version={version!r}: a whole number, 1 or more"):
        pipeline.reduce(split(pipeline), key=text_of, state=Count, state_version=version)(count)


def test_an_operator_that_leads_nowhere_and_a_second_sink_into_a_log_are_refused() -> None:
    made = Counting(Engine.in_memory())
    first = next(iter(made.pipeline.plan().operators))
    with pytest.raises(NotRegistrable, match="two sinks into log changes"):
        made.pipeline.sink(first, made.changes)
    made.pipeline.filter(first)(is_long)
    with pytest.raises(NotRegistrable, match="what is_long emits reaches no sink"):
        made.pipeline.plan()


def test_the_digest_of_a_graph_is_its_operators_not_its_place() -> None:
    one, other = Counting(Engine.in_memory()), Counting(Engine.in_memory())
    assert one.pipeline.plan().graph == other.pipeline.plan().graph
    operator = one.pipeline.plan().operators[0]
    one.pipeline.sink(one.pipeline.filter(operator)(is_long), OrderedLog("long", one.engine, type=Word))
    assert one.pipeline.plan().graph != other.pipeline.plan().graph


def test_a_pipeline_describes_itself_and_an_operator_can_be_called() -> None:
    made = Counting(Engine.in_memory())
    lines = made.pipeline.describe().splitlines()
    assert lines == [
        "index: source pages",
        "  words: flat_map of the source, insensitive",
        "  count: reduce of words, convergent",
        "  log changes: sink of count",
        "releases: in_order, by_epoch, at_least_once, at_most_once",
    ]
    assert Selling(Engine.in_memory()).pipeline.describe().splitlines() == [
        "takings: source sales",
        "  total: reduce of the source, convergent",
        "  lately~time: time of the source, insensitive",
        "  lately: window of lately~time, insensitive",
        "  lately~late: late of lately~time, insensitive",
        "  log refused: sink of refused~",
        "  log late: sink of lately~late",
        "  log totals: sink of total",
        "  log lately: sink of lately",
        "releases: in_order, by_epoch, at_least_once, at_most_once",
    ]
    assert list(made.pipeline.plan().operators[0](Page("a b"))) == [Word("a"), Word("b")]
    assert Change("a", 1) == Change("a", 1)
