"""Pipelines drawn by a seed, by a name such as `seed17`: operators of all kinds, in a row or side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import partial
from typing import Any

from outbox.errors import PoisonMessage
from outbox.streams import Emit, ListState, MapState, OrderedLog, Pipeline, RefusedEntry, Skip, Value, Window
from outbox.verify.history import History
from outbox.verify.recorded.streams import recorded_pipeline


@dataclass
class Event:
    """What goes in and out everywhere."""

    key: str
    n: int
    ms: int


@dataclass
class Sum:
    """A state that goes by the order of its records; a checkpoint has what changed of it."""

    n: Value[int] = field(default_factory=lambda: Value(0))
    by_key: MapState[str, int] = field(default_factory=MapState)
    last: ListState[int] = field(default_factory=ListState)


@dataclass
class Count:
    """A state without boxes."""

    n: int = 0


def key_of(event: Event) -> str:
    return event.key


def remainder(event: Event) -> int:
    return event.n % 5


def ms_of(event: Event) -> int:
    return event.ms


def doubled(event: Event) -> Any:
    if event.n == 13:
        raise PoisonMessage("thirteen", event.key)
    return Skip if event.n == 7 else replace(event, n=2 * event.n)


def is_small(event: Event) -> bool:
    if event.n == 13:
        raise PoisonMessage("unlucky", event.key)
    return event.n < 1_000


def split(event: Event) -> list[Any]:
    return [replace(event, key=part, n=event.n + number) for number, part in enumerate(event.key)]


def summed(state: Sum, event: Event, emit: Emit[Event]) -> None:
    state.n.value = (state.n.value * 7 + event.n) % 1_009
    state.by_key[event.key] = state.n.value
    state.last.append(event.n)
    if len(state.last) > 3:
        del state.last[0]
    if event.n % 11 == 3:
        raise PoisonMessage("eleven", f"{event.n}")
    emit(Event(event.key, state.n.value, emit.at_ms))
    if event.n % 3 == 0:
        emit(Event(event.key + "+", len(state.by_key) * 100 + sum(state.last) % 100, event.ms))


def counted(state: Count, event: Event, emit: Emit[Event]) -> None:
    state.n += 1
    emit(Event(f"{event.n % 5}", state.n, event.ms))


def lately(window: Window, events: Sequence[Event]) -> Iterator[Event]:
    yield Event(f"{window.key}", sum(event.n for event in events) % 1_009, window.end_ms)


def in_time(window: Window, events: Sequence[Event]) -> Iterator[Event]:
    for number, event in enumerate(events[-2:]):
        yield Event(f"{window.key}", event.n + number, window.start_ms)


ONE = {"doubled": "map", "is_small": "filter", "split": "flat_map"}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (doubled, is_small, split, summed, counted, lately, in_time)
}


class Drawn:
    """A pipeline and its logs."""

    def __init__(self, seed: int, place: Any) -> None:
        draw = random.Random(seed)
        log = partial(OrderedLog, place=place, type=Event)
        self.source, self.sinks = log("events"), dict[str, OrderedLog[Any]]()
        refused = OrderedLog("aside", place, type=RefusedEntry)
        self.pipeline = Pipeline("drawn", source=self.source, refused=refused)
        self.sinks["aside"] = refused
        names = draw.sample([*FUNCTIONS], draw.randint(2, len(FUNCTIONS)))
        made, last = list[Any](), set[str]()
        for name in names:
            upstream = draw.choice([None, *made, *made[-1:]])
            made.append(self._declared(draw, name, upstream, log))
            last = {*last, name} - ({upstream.name} if upstream is not None else set())
        for operator in made:
            if operator.name in last or draw.random() < 0.2:
                self.sinks[operator.name] = log(f"of-{operator.name.replace('_', '-')}")
                self.pipeline.sink(operator, self.sinks[operator.name])

    def _declared(self, draw: random.Random, name: str, upstream: Any, log: Any) -> Any:
        given: dict[str, Any] = {"source": self.source} if upstream is None else {"upstream": upstream}
        if name == "is_small":
            return self.pipeline.filter(**given)(FUNCTIONS[name])
        given |= {"emits": Event}
        if name in ONE:
            return getattr(self.pipeline, ONE[name])(**given)(FUNCTIONS[name])
        if name in ("summed", "counted"):
            key, state = (key_of, Sum) if name == "summed" else (remainder, Count)
            return self.pipeline.reduce(**given, key=key, state=state)(FUNCTIONS[name])
        slide = draw.choice((5, 10))
        given |= {"key": key_of, "size_s": draw.choice((1, 2)) * slide / 1_000, "slide_s": slide / 1_000}
        if name == "in_time":
            self.sinks["late"] = log("late")
            given |= {"time": ms_of, "late": self.sinks["late"]}
        return self.pipeline.window(**given)(FUNCTIONS[name])


HISTORIES: dict[int, History] = {}
"""Where drawn pipelines that are called `judged17` are recorded."""


def judged(seed: int, place: Any) -> Pipeline:
    """A drawn pipeline, recorded."""
    made = Drawn(seed, place).pipeline
    return recorded_pipeline(made, HISTORIES[seed]) if seed in HISTORIES else made


def __getattr__(name: str) -> Any:
    for prefix, made in (("seed", Drawn), ("judged", judged)):
        if name.startswith(prefix):
            return partial(made, int(name.removeprefix(prefix)))
    raise AttributeError(name)


def drawn_events(draw: random.Random, count: int) -> list[Event]:
    """Events of which some are late and some are refused."""
    found, now_ms = [], 1_000
    for _ in range(count):
        now_ms += draw.choice((0, 1, 3, 8, 20))
        late_ms = draw.choice((0, 0, 0, 4, 15, 40))
        found.append(Event("".join(draw.choices("abcd", k=draw.randint(1, 3))), draw.randrange(40), now_ms - late_ms))
    return found


Older: Any = make_dataclass("Number", [("n", int, 0)], namespace={"value": property(lambda self: self.n)})
Newer: Any = make_dataclass("Number", [("count", int, 0)], namespace={"value": property(lambda self: self.count)})
"""A state, and an entry, before and behind a change of its schema."""


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    return {"count": data["n"]}


def parity(number: Any) -> int:
    return int(number.value % 2)


def total(state: Any, number: Any, emit: Emit[int]) -> None:
    field = "n" if isinstance(state, Older) else "count"
    setattr(state, field, state.value + number.value)
    emit(state.value)


def totals(place: Any, kind: Any = Older, version: int = 1, **upcasts: Any) -> Pipeline:
    """A sum of numbers by parity."""
    log = OrderedLog("numbers", place, type=kind, version=version, **upcasts)
    made = Pipeline("totals", source=log, version=version)
    operator = made.reduce(source=log, key=parity, state=kind, emits=int, state_version=version, **upcasts)(total)
    made.sink(operator, OrderedLog("totals", place, type=int))
    return made


totals_behind = partial(totals, kind=Newer, version=2, upcasts={1: renamed})
