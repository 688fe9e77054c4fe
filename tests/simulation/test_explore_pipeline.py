"""Pipelines: every interleaving of replicas, versions, checkpoints and one kind of fault."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.streams import OrderedLog, Pipeline, release
from outbox.verify import explore_pipeline
from outbox.verify.explorer.search import Report
from tests.simulation.explored import clean
from tests.simulation.piped import Settled, explored
from tests.unit.streams.pipeline.counting import Change, Count, Page, count, text_of, words

pytestmark = pytest.mark.slow

SETTLED: dict[str, Any] = {"replicas": 3, "checkpoint_every": 0, "arrived": True, "make": Settled}
"""Three replicas that feed one, two and three entries at once, and whose register does not change meanwhile."""
SMALL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "one replica, three entries": (("a b", "a", "b"), {"replicas": 1}),
    "two replicas, two entries": (("a b", "a"), {"sizes": (1,)}),
    "bundles of one and two": (("a", "b"), {"checkpoint_every": 0}),
    "two that begin the register": (("a",), {"begun": False, "checkpoint_every": 0}),
    "checkpoints beside entries": (("a", "b"), {"replicas": 1, "beside": True}),
    "little comes out": (("a", "b", "a"), {"seldom": True, "sizes": (1,), "checkpoint_every": 2}),
    "members of one state": (("a", "b"), {"members": True, "sizes": (1,)}),
    "members, a crash and a lost reply": (
        ("a", "b"),
        {"members": True, "replicas": 1, "faults": {"crash": 1, "lost": 1}},
    ),
    "members, and a throttled call": (("a", "b", "a"), {"members": True, "replicas": 1, "faults": {"error": 1}}),
    "an entry refused": (("a a",), {"refuses": True, "checkpoint_every": 0}),
    "an entry refused, a crash": (("a", "a b"), {"refuses": True, "replicas": 1, "faults": {"crash": 1}}),
    "a value late for its window": (("a1 b12", "a2"), {"timed": True, "sizes": (1,), "checkpoint_every": 2}),
    "a value late, a crash": (("a1", "b12", "a2"), {"timed": True, "replicas": 1, "faults": {"crash": 1}}),
    "a trimmed source and sink, a crash": (("a", "b", "a"), {"trims": True, "replicas": 1, "faults": {"crash": 1}}),
    "a newer version": (("a", "b"), {"versions": (1, 2)}),
    "three replicas, two entries": (("a", "b"), SETTLED),
    "a crash": (("a", "b"), {"replicas": 1, "faults": {"crash": 2}}),
    "a crash beside a replica": (("a",), {"faults": {"crash": 1}}),
    "a crash of a newer version": (("a",), {"versions": (1, 2), "faults": {"crash": 1}}),
    "a lost reply": (("a",), {"sizes": (1,), "checkpoint_every": 0, "faults": {"lost": 1}}),
    "a late write": (("a", "b"), {"replicas": 1, "faults": {"delay": 1}}),
    "a stale read": (("a",), {"sizes": (1,), "faults": {"stale": 1}}),
    "a throttled call": (("a", "b"), {"replicas": 1, "faults": {"error": 1}}),
}
RELEASED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "by_epoch: one replica, three entries": (("a b", "a", "b"), {"replicas": 1}),
    "by_epoch: two replicas": (("a",), {"sizes": (1,)}),
    "by_epoch: checkpoints beside entries": (("a",), {"replicas": 1, "beside": True, "faults": {"crash": 1}}),
    "by_epoch: two crashes": (("a", "b"), {"replicas": 1, "faults": {"crash": 2}}),
    "by_epoch: a lost reply": (("a",), {"replicas": 1, "faults": {"lost": 1}}),
    "by_epoch: a late write": (("a",), {"replicas": 1, "faults": {"delay": 1}}),
    "by_epoch: a stale read": (("a", "b"), {"replicas": 1, "faults": {"stale": 1}}),
    "by_epoch: a throttled call": (("a",), {"replicas": 1, "faults": {"error": 1}}),
    "by_epoch: a newer version": (("a",), {"versions": (1, 2)}),
    "by_epoch: beside in_order": (("a",), {"sizes": (1,), "releases": ("by_epoch", "in_order")}),
    "at_least_once: a crash": (("a", "b"), {"sizes": (2,), "replicas": 1, "faults": {"crash": 1}}),
    "at_least_once: lost and late": (("a",), {"replicas": 1, "faults": {"lost": 1, "delay": 1}}),
    "at_least_once: two replicas": (("a",), {"checkpoint_every": 0}),
    "at_most_once: a crash": (("a", "b"), {"sizes": (2,), "replicas": 1, "faults": {"crash": 1}}),
    "at_most_once: lost and late": (("a",), {"replicas": 1, "faults": {"lost": 1, "delay": 1}}),
    "at_most_once: two replicas": (("a",), {}),
}
LARGE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "two replicas, three entries": (("a b", "a", "b"), {"sizes": (1,)}),
    "entries refused beside a replica": (("a", "a b"), {"refuses": True, "sizes": (1,), "checkpoint_every": 2}),
    "late values beside a replica": (("a1", "b12", "a2"), {"timed": True, "sizes": (1,), "checkpoint_every": 3}),
    "a trimmed source and sink beside a replica": (("a", "b"), {"trims": True, "sizes": (1,)}),
    "three replicas": (("a",), {}),
    "three replicas, three entries": (("a", "b", "c"), SETTLED),
    "three replicas, a crash": (("a", "b", "c"), {**SETTLED, "faults": {"crash": 1}}),
    "three replicas, a lost reply": (("a", "b", "c"), {**SETTLED, "faults": {"lost": 1}}),
    "three replicas, a late write": (("a", "b", "c"), {**SETTLED, "faults": {"delay": 1}}),
    "three replicas, crash, lost and late": (("a", "b"), {**SETTLED, "faults": {"crash": 1, "lost": 1, "delay": 1}}),
    "two of a newer version": (("a",), {"versions": (1, 2, 2), "sizes": (1,)}),
    "two crashes, lost and late": (("a", "b"), {"replicas": 1, "faults": {"crash": 1, "lost": 1, "delay": 1}}),
    "crash": (("a", "b"), {"sizes": (1,), "faults": {"crash": 1}}),
    "stale": (("a", "b"), {"sizes": (1,), "faults": {"stale": 1}}),
    "lost": (("a",), {"faults": {"lost": 1}}),
    "late": (("a",), {"faults": {"delay": 1}}),
    "throttled": (("a",), {"faults": {"error": 1}}),
    "by_epoch: two replicas, two entries": (("a b", "a"), {"sizes": (1,)}),
    "by_epoch: a crash beside a replica": (("a",), {"faults": {"crash": 1}}),
    "by_epoch: a lost reply beside a replica": (("a",), {"sizes": (1,), "faults": {"lost": 1}}),
    "by_epoch: a stale read beside a replica": (("a",), {"sizes": (1,), "faults": {"stale": 1}}),
    "by_epoch: checkpoints beside two entries": (("a", "b"), {"replicas": 1, "beside": True}),
    "by_epoch: beside in_order, two entries": (("a", "b"), {"sizes": (1, 2), "releases": ("by_epoch", "in_order")}),
    "by_epoch: two of a newer version": (("a",), {"versions": (1, 2, 2), "sizes": (1,)}),
    "by_epoch: a crash of a newer version": (("a",), {"versions": (1, 2), "faults": {"crash": 1}}),
    "at_least_once: bundles of one and two": (("a", "b"), {"sizes": (1, 2)}),
    "at_least_once: a crash beside a replica": (("a",), {"faults": {"crash": 1}}),
    "at_most_once: bundles of one and two": (("a", "b"), {"sizes": (1, 2)}),
    "at_most_once: a crash beside a replica": (("a",), {"faults": {"crash": 1}}),
}


@pytest.mark.parametrize("scope", [*SMALL, *RELEASED])
def test_every_interleaving_of_a_pipeline_keeps_its_promises(scope: str) -> None:
    clean(explored_scope(scope))


def explored_scope(scope: str, **more: Any) -> Report:
    """Explore a scope; what is before a colon in its name is the release."""
    pages, options = {**SMALL, **RELEASED, **LARGE}[scope]
    name, colon, _ = scope.partition(":")
    return explored(*pages, **{"releases": (name if colon else "in_order",), **options, **more})


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scope", LARGE)
def test_larger_scopes_of_a_pipeline_keep_its_promises(scope: str) -> None:
    clean(explored_scope(scope, cpu_s=600.0))


def test_a_pipeline_is_explored_as_a_user_declares_it() -> None:
    engine = Engine.in_memory()
    pages: OrderedLog[Page] = OrderedLog("pages", engine, type=Page)
    pipeline = Pipeline("index", source=pages)
    counted = pipeline.reduce(pipeline.flat_map(source=pages)(words), key=text_of, state=Count)(count)
    pipeline.sink(counted, OrderedLog("changes", engine, type=Change))
    report = explore_pipeline(pipeline, [Page("a b")], replicas=1, crashes=1)
    assert report.exhausted and not report.anomalies, report.text
    assert engine.state.documents.count == 0  # its own stores were not touched
    held = explore_pipeline(pipeline, [Page("a")], release=release.by_epoch(), replicas=1, crashes=0)
    assert held.exhausted and not held.anomalies, held.text
    with pytest.raises(ValueError, match="replicas=0"):
        explore_pipeline(pipeline, [], replicas=0)
    with pytest.raises(ValueError, match="checkpoint_every=0"):
        explore_pipeline(pipeline, [], release=release.by_epoch(), checkpoint_every=0)
