"""Small pipelines to explore: words counted by key, with a filter that lets little out, and in two versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from outbox.engine.engine import Engine
from outbox.streams import Emit, MapState, OrderedLog
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.search import Limits, Report, search
from outbox.verify.findings.pipelines import pipeline_scenario
from tests.unit.streams.pipeline.counting import Change, Count, Page, Word, count, text_of, words


@dataclass
class Counts:
    """The state of all words."""

    by_word: MapState[str, int] = field(default_factory=MapState)


def all_words(word: Word) -> str:
    return "all"


def count_members(state: Counts, word: Word, emit: Emit[Change]) -> None:
    state.by_word[word.text] = state.by_word.get(word.text, 0) + 1
    emit(Change(word.text, state.by_word[word.text]))


def twice(change: Change) -> Iterator[Change]:
    """What a newer version makes of the same states."""
    yield Change(change.word, -change.n)
    yield Change(change.word, change.n)


def is_second(change: Change) -> bool:
    return change.n == 2


def counting(*, seldom: bool = False, members: bool = False, version: int = 1) -> PipelinePlan:
    """Words counted; with `seldom` only the second of each word comes out, with `members` all are in one state."""
    engine = Engine.in_memory()
    pages = OrderedLog("pages", engine, type=Page)
    made = Pipeline("index", source=pages, version=version)
    split = made.flat_map(source=pages)(words)
    if members:
        counted = made.reduce(split, key=all_words, state=Counts)(count_members)
    else:
        counted = made.reduce(split, key=text_of, state=Count)(count)
    if version > 1:
        counted = made.flat_map(counted)(twice)
    made.sink(made.filter(counted)(is_second) if seldom else counted, OrderedLog("changes", engine, type=Change))
    return made.plan()


def explored(
    *texts: str,
    replicas: int = 2,
    versions: tuple[int, ...] = (),
    seldom: bool = False,
    members: bool = False,
    cpu_s: float = 60.0,
    begun: bool = True,
    faults: dict[str, int] | None = None,
    **options: Any,
) -> Report:
    """Explore replicas over these pages; `versions` are those of the replicas (default: all 1)."""
    plans = [counting(seldom=seldom, members=members, version=version) for version in versions or (1,) * replicas]
    budgets = Budgets(**(faults or {}))
    scenario: Any = pipeline_scenario(plans, [Page(text) for text in texts], budgets, begun=begun, **options)
    return search(scenario, limits=Limits(states=5_000_000, cpu_s=cpu_s))
