"""Small pipelines to explore: words counted by key, with a filter, things that go aside, and in two versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.errors import PoisonMessage
from outbox.streams import Emit, MapState, OrderedLog, RefusedEntry, Window, release
from outbox.streams.pipeline.checkpoint import PipelineRegister
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.register import Kept
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.search import Limits, Report, search
from outbox.verify.findings.streams import pipeline_scenario
from tests.simulation.stream_programs import Trimmer
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


def count_to_one(state: Count, word: Word, emit: Emit[Change]) -> None:
    """Refuse a word that has come before, behind a change of its state."""
    count(state, word, emit)
    if state.n > 1:
        raise PoisonMessage("twice", word.text)


def letter_of(word: Word) -> str:
    return word.text[0]


def number_of(word: Word) -> int:
    return int(word.text[1:])


def closed(window: Window, values: Sequence[Word]) -> Iterator[Change]:
    yield Change(str(window.key), len(values))


class Settled(PipelineReplica):
    """A replica of a pipeline whose register does not change, so that to begin is one read of it."""

    async def _confirm(self, known: Kept[PipelineRegister]) -> Kept[PipelineRegister]:
        return known

    async def _report(self, register: PipelineRegister) -> None:
        pass


def counting(
    *,
    seldom: bool = False,
    members: bool = False,
    refuses: bool = False,
    timed: bool = False,
    version: int = 1,
    releases: str = "in_order",
) -> PipelinePlan:
    """Words counted; with `seldom` only the second of each word comes out, with `members` all are in one state.

    With `refuses` each word is counted once, and the entry of any other refused; with `timed` they are a letter and a
    time, and counted in windows of 10 ms.
    """
    engine = Engine.in_memory()
    pages = OrderedLog("pages", engine, type=Page)
    refused = OrderedLog("refused", engine, type=RefusedEntry) if refuses else None
    made = Pipeline("index", source=pages, version=version, refused=refused)
    split = made.flat_map(source=pages, emits=Word)(words)
    if refuses:
        counted = made.reduce(split, key=text_of, state=Count)(count_to_one)
    elif timed:
        late = OrderedLog("late", engine, type=Word)
        counted = made.window(split, key=letter_of, size_s=0.01, time=number_of, late=late)(closed)
    elif members:
        counted = made.reduce(split, key=all_words, state=Counts)(count_members)
    else:
        counted = made.reduce(split, key=text_of, state=Count)(count)
    if version > 1:
        counted = made.flat_map(counted)(twice)
    made.sink(made.filter(counted)(is_second) if seldom else counted, OrderedLog("changes", engine, type=Change))
    return made.plan(getattr(release, releases)())


def explored(
    *texts: str,
    replicas: int = 2,
    versions: tuple[int, ...] = (),
    releases: tuple[str, ...] = ("in_order",),
    seldom: bool = False,
    members: bool = False,
    refuses: bool = False,
    timed: bool = False,
    cpu_s: float = 60.0,
    begun: bool = True,
    trims: bool = False,
    faults: dict[str, int] | None = None,
    **options: Any,
) -> Report:
    """Explore replicas over these pages; `versions` are those of the replicas (default: all 1), `releases` in turn.

    With `trims` source and sink are trimmed as far as floors allow, and these move at once: no time passes here, which
    the checkpoints that are kept would else have to be apart.
    """
    kind = {"seldom": seldom, "members": members, "refuses": refuses, "timed": timed}
    plans = [
        counting(**kind, version=version, releases=name)
        for version, name in zip(versions or (1,) * replicas, cycle(releases), strict=False)
    ]
    budgets = Budgets(**(faults or {}))
    scenario: Any = pipeline_scenario(plans, [Page(text) for text in texts], budgets, begun=begun, **options)
    if trims:
        logs = plans[0].source.log, *(log for _, log in plans[0].sinks.values())
        scenario.programs.extend(Trimmer(log, scenario.at, f"trimmer of {log.name}") for log in logs)
    after = PipelineRegister.after
    with pytest.MonkeyPatch.context() as patch:
        if trims:
            patch.setattr(PipelineRegister, "after", lambda register, made, apart_ms: after(register, made, 0))
        return search(scenario, limits=Limits(states=5_000_000, cpu_s=cpu_s))
