"""`explore_processor` as a user calls it: on a handler, or on a processor, with inputs by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.retries import Retries
from outbox.streams import Inputs, OrderedLog, Processor, RefusedEntry, Step
from outbox.verify import explore_processor
from tests.simulation.shop import passes


@dataclass
class Reading:
    degrees: float


@dataclass
class Average:
    degrees: float


@dataclass
class Window:
    degrees: list[float] = field(default_factory=list)


def average(window: Window, inputs: Inputs, step: Step) -> None:
    window.degrees += [entry.value.degrees for entry in inputs]
    step.emit("averages", Average(sum(window.degrees) / len(window.degrees)))
    if len(window.degrees) > 1:
        step.emit("crossings", Average(0.0))


CALLS: list[int] = []


def counts_its_calls(window: Window, inputs: Inputs, step: Step) -> None:
    CALLS.append(1)
    step.emit("averages", Average(float(len(CALLS))))


@pytest.mark.parametrize(
    ("inputs", "crashes"),
    [
        ({"left": [Reading(1), Reading(3)]}, 1),
        ({"left": [Reading(1)], "right": [Reading(3)]}, 0),
        pytest.param({"left": [Reading(1)], "right": [Reading(3)]}, 1, marks=pytest.mark.soak),
    ],
    ids=["a crash", "two inputs", "both"],
)
def test_a_handler_is_explored_with_all_that_it_emits_to(inputs: dict[str, list[Any]], crashes: int) -> None:
    passes(explore_processor(average, inputs, crashes=crashes))


def test_a_processor_is_explored_as_it_is_declared() -> None:
    engine = Engine.in_memory()
    logs: dict[str, Any] = {name: OrderedLog(name, engine, type=Average) for name in ("averages", "crossings")}
    inputs: dict[str, Any] = {"left": OrderedLog("left", engine, type=Reading)}
    averages = Processor("averages", average, state=Window, register=engine, inputs=inputs, outputs=logs)
    report = explore_processor(averages, {"left": [Reading(1)]}, lost=1, crashes=0, batch_max=1)
    assert report.exhausted and not report.anomalies, report.text
    assert engine.state.documents.count == 0  # its own stores were not touched


@pytest.mark.parametrize(
    "faults", [{"crashes": 1}, {"lost": 1}, {"delayed": 1}, {"stale": 1}], ids=lambda each: next(iter(each))
)
def test_a_bad_entry_is_refused_once_beside_traffic_on_another_input(faults: dict[str, int]) -> None:
    engine = Engine.in_memory()
    inputs: dict[str, Any] = {name: OrderedLog(name, engine, type=Reading) for name in ("busy", "given")}
    declared: Processor[Window] = Processor(
        "averages",
        above_zero,
        state=Window,
        register=engine,
        inputs=inputs,
        on_error="refuse",
        refused=OrderedLog("refused", engine, type=RefusedEntry),
        retries=Retries(limit=2, delays_s=()),
    )

    def one_is_refused(world: Any) -> bool:
        refused = [(entry.input, entry.position) for entry in world.entries("refused")]
        return refused in ([], [("given", "0.0")])

    values = {"busy": [Reading(1), Reading(2)], "given": [Reading(-1)]}
    options: dict[str, Any] = {"crashes": 0} | faults
    passes(explore_processor(declared, values, **options, invariant=one_is_refused))


def above_zero(window: Window, inputs: Inputs, step: Step) -> None:
    if any(entry.value.degrees < 0 for entry in inputs):
        raise ValueError("below zero")
    window.degrees += [entry.value.degrees for entry in inputs]


def test_an_invariant_that_breaks_is_shown_with_the_way_there() -> None:
    def one_average(world: Any) -> bool:
        return len(world.entries("averages")) < 2

    report = explore_processor(average, {"left": [Reading(1), Reading(3)]}, batch_max=1, invariant=one_average)
    assert [anomaly.promise for anomaly in report.anomalies] == ["Invariant"], report.text
    assert "append: create log/averages" in report.anomalies[0].way


def test_what_must_hold_at_the_end_is_asked_where_nothing_more_can_happen() -> None:
    inputs = {"left": [Reading(1), Reading(3)]}
    options: dict[str, Any] = {"replicas": 1, "batch_max": 1}
    ended = explore_processor(average, inputs, **options, at_end=lambda world: not world.in_flight("left"))
    assert ended.exhausted and not ended.anomalies, ended.text
    report = explore_processor(average, inputs, **options, at_end=lambda world: len(world.entries("averages")) == 1)
    assert [anomaly.promise for anomaly in report.anomalies] == ["AtEnd"], report.text
    assert "at_end does not hold at processor" in report.anomalies[0].what


def test_a_handler_that_rests_on_something_else_is_found() -> None:
    report = explore_processor(counts_its_calls, {"left": [Reading(1)]})
    assert report.anomalies and report.anomalies[0].promise in ("Deterministic", "ConsistentOutput"), report.text


def test_what_is_in_flight_is_what_is_committed_and_not_handled() -> None:
    seen = set()

    def counted(world: Any) -> bool:
        seen.add((len(world.in_flight("left")), len(world.in_flight("averages"))))
        return len(world.state("processor").degrees) + len(world.in_flight("left")) == len(world.entries("left"))

    report = explore_processor(average, {"left": [Reading(1)]}, invariant=counted)
    assert report.exhausted, report.text
    assert {(0, 0), (1, 0), (0, 1)} <= seen


@pytest.mark.parametrize(("given", "cure"), [({"replicas": 0}, "at least one replica"), ({"seconds": 0}, "some time")])
def test_what_cannot_be_explored_is_refused_with_the_cure(given: dict[str, Any], cure: str) -> None:
    with pytest.raises(ValueError, match=cure):
        explore_processor(average, {"left": []}, **given)


def test_an_input_that_the_processor_does_not_have_is_refused() -> None:
    engine = Engine.in_memory()
    inputs: dict[str, Any] = {"left": OrderedLog("left", engine, type=Reading)}
    declared = Processor("averages", average, state=Window, register=engine, inputs=inputs, outputs={})
    with pytest.raises(ValueError, match="no input right; the processor has left"):
        explore_processor(declared, {"right": [Reading(1)]})
