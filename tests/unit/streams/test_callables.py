"""Functions that cannot be called as they will be: named where they are given, and no entry is blamed for them."""

from __future__ import annotations

import sqlite3
import types
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable
from outbox.retries import Retries
from outbox.streams import Inputs, OrderedLog, Processor, RefusedEntry, Step, StoreSink, TransactionalSink
from outbox.testing import START_S, VirtualClock
from tests.unit.streams.making import Total, fill, made, values


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    yield engine
    engine.close()


def refusing(engine: Engine, handler: Any, **options: Any) -> Processor[Any]:
    """A processor that puts each entry aside on which its handler fails."""
    given: dict[str, Any] = {
        "state": Total,
        "register": engine,
        "inputs": {"in": made("in", engine, int)},
        "on_error": "refuse",
        "refused": made("refused", engine, RefusedEntry),
        "retries": Retries(limit=1),
    }
    return Processor("p", handler, **given | options)


def without_step(state: Total, inputs: Inputs) -> None: ...


def with_one_more(state: Total, inputs: Inputs, step: Step, rates: dict[str, float]) -> None: ...


async def later_without_step(state: Total, inputs: Inputs) -> None: ...


def named_only(*, state: Total, inputs: Inputs, step: Step) -> None: ...


class Handles:
    """An object that can be called."""

    def __call__(self, state: Total, inputs: Inputs) -> None: ...


def passed_on(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler as a decorator gives it that looks at nothing."""

    @wraps(handler)
    def wrapper(*given: Any, **named: Any) -> Any:
        return handler(*given, **named)

    return wrapper


WRONG = {
    "too few": without_step,
    "too many": with_one_more,
    "async": later_without_step,
    "by name only": named_only,
    "object": Handles(),
    "decorated": passed_on(without_step),
    "partial": partial(with_one_more, Total(), Inputs({})),
}


@pytest.mark.parametrize("handler", WRONG.values(), ids=WRONG)
def test_a_handler_whose_parameters_do_not_fit_is_refused_where_it_is_given(engine: Engine, handler: Any) -> None:
    with pytest.raises(NotRegistrable, match=r"is called with \(state, inputs, step\), and does not take that"):
        refusing(engine, handler)


def adds_rates(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a handler one argument more."""

    @wraps(handler)
    def wrapper(state: Total, inputs: Inputs, step: Step) -> Any:
        return handler(state, inputs, step, {})

    return wrapper


def has_defaults(state: Total, inputs: Inputs, step: Step, rate: float = 1.0) -> None: ...


def says_nothing_of_use(state: Total, inputs: Inputs, step: Step) -> None: ...


vars(says_nothing_of_use)["__signature__"] = "no signature"


FITTING = {
    "with a signature that is none": says_nothing_of_use,
    "decorated": adds_rates(with_one_more),
    "defaults": has_defaults,
    "partial": partial(with_one_more, rates={}),
    "any": lambda *given: None,
}


@pytest.mark.parametrize("handler", FITTING.values(), ids=FITTING)
async def test_a_handler_that_can_be_called_is_taken(engine: Engine, handler: Any) -> None:
    await fill(made("in", engine, int), 1)
    assert await refusing(engine, handler).run_until_idle() == 1
    assert await values(made("refused", engine, RefusedEntry)) == []


class Compiled:
    """A function that does not say what it takes, as some compiled ones do not."""

    @property
    def __signature__(self) -> Any:
        raise ValueError("no signature found")

    def __call__(self, state: Total, inputs: Inputs) -> None: ...


async def test_a_call_that_does_not_reach_its_handler_stops_and_refuses_no_entry(engine: Engine) -> None:
    await fill(made("in", engine, int), 1, 2)
    with pytest.raises(
        NotRegistrable, match=r"processor p: its function cannot be called: .*; give it other parameters"
    ):
        await refusing(engine, Compiled()).run_until_idle()
    assert await values(made("refused", engine, RefusedEntry)) == []


def yielding(state: Total, inputs: Inputs, step: Step) -> Iterator[None]:
    for entry in inputs:
        state.n += entry.value
        yield


async def yielding_later(state: Total, inputs: Inputs, step: Step) -> AsyncIterator[None]:
    for entry in inputs:
        state.n += entry.value
        yield


async def gives_a_generator(state: Total, inputs: Inputs, step: Step) -> Any:
    return yielding(state, inputs, step)


YIELDING = {
    "bare": yielding,
    "async": yielding_later,
    "partial": partial(yielding),
}


@pytest.mark.parametrize("handler", YIELDING.values(), ids=YIELDING)
def test_a_handler_that_yields_is_refused_where_it_is_given(engine: Engine, handler: Any) -> None:
    with pytest.raises(NotRegistrable, match="that does not yield; it emits"):
        refusing(engine, handler)


RETURNING = {
    "generator": lambda *given: yielding(*given),
    "async generator": lambda *given: yielding_later(*given),
    "awaited": gives_a_generator,
    "decorated": passed_on(yielding),
    "decorated twice": passed_on(passed_on(yielding_later)),
}


@pytest.mark.parametrize("handler", RETURNING.values(), ids=RETURNING)
async def test_a_handler_that_returns_a_generator_stops_its_processor_and_refuses_no_entry(
    engine: Engine, handler: Any
) -> None:
    await fill(made("in", engine, int), 1, 2)
    processor = refusing(engine, handler)
    what = "processor p: its function returned a generator, so nothing of it ran; leave out yield"
    with pytest.raises(NotRegistrable, match=what):
        await processor.run_until_idle()
    assert sum((await processor.status()).lag.values()) == 2 and await processor.state() == Total()
    assert await values(made("refused", engine, RefusedEntry)) == []


async def test_a_generator_that_is_awaited_is_run(engine: Engine) -> None:
    @types.coroutine
    def runs(state: Total, inputs: Inputs) -> Iterator[Any]:
        state.n += sum(entry.value for entry in inputs)
        yield

    await fill(made("in", engine, int), 1, 2)
    processor = refusing(engine, lambda state, inputs, step: runs(state, inputs))
    await processor.run_until_idle()
    assert await processor.state() == Total(3)


async def test_a_type_error_within_a_handler_is_a_failure_at_its_entry(engine: Engine) -> None:
    def adds_text(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            state.n += None if entry.value == 2 else entry.value  # type: ignore[operator]  # the mistake

    await fill(made("in", engine, int), 1, 2, 3)
    processor = refusing(engine, adds_text)
    await processor.run_until_idle(seconds=5)
    assert await processor.state() == Total(4)
    assert [each.position for each in await values(made("refused", engine, RefusedEntry))] == ["1.0"]


@dataclass
class NoDefault:
    n: int


@dataclass
class Unstorable:
    value: Any = field(default_factory=lambda: object())


@dataclass
class ReadOtherwise:
    n: int = "none"  # type: ignore[assignment]  # the mistake


@pytest.mark.parametrize("state", [NoDefault, Unstorable, ReadOtherwise])
def test_a_first_state_that_cannot_be_made_stored_and_read_is_refused(engine: Engine, state: type[Any]) -> None:
    with pytest.raises(
        NotRegistrable, match=rf"{state.__name__}\(\) must make the first state.* give every field a default"
    ):
        refusing(engine, FITTING["any"], state=state)


def test_the_key_of_a_queue_that_is_emitted_to_is_called_with_a_value(engine: Engine) -> None:
    without_value: Any = lambda: "all"  # noqa: E731  # its type would not fit
    queue = engine.queue("orders", key=without_value)
    with pytest.raises(NotRegistrable, match=r"key= of queue orders: .* is called with \(value\)"):
        refusing(engine, FITTING["any"], outputs={"orders": queue})


@pytest.mark.parametrize("partition", [lambda: 1, lambda entry, more: 1, "sensor"], ids=["too few", "too many", "text"])
def test_a_partition_that_takes_no_entry_is_refused(engine: Engine, partition: Any) -> None:
    with pytest.raises(NotRegistrable, match=r"log wide: partition=.*\(entry\)"):
        OrderedLog("wide", engine, type=int, readers=2, partition=partition)


CONNECTION = sqlite3.connect(":memory:")


@pytest.mark.parametrize(
    ("connect", "apply", "what"),
    [
        (lambda path: CONNECTION, lambda db, entries: None, r"sink s: connect.*is called with \(\)"),
        (CONNECTION, lambda db, entries: None, r"connect is a connection; give a function that makes one"),
        ("counters.db", lambda db, entries: None, r"connect is a str; give a function \(\)"),
        (lambda: CONNECTION, lambda entries: None, r"sink s: apply: .*\(connection, entries\)"),
        (lambda: CONNECTION, None, r"sink s: apply is None; give a function \(connection, entries\)"),
    ],
    ids=["connect takes one", "a connection", "a text", "apply takes one", "no apply"],
)
def test_a_sink_that_cannot_call_what_it_is_given_is_refused(
    engine: Engine, connect: Any, apply: Any, what: str
) -> None:
    with pytest.raises(NotRegistrable, match=what):
        TransactionalSink("s", made("in", engine, int), connect, apply)


def test_a_sink_into_documents_calls_its_function_with_entries(engine: Engine) -> None:
    of_a_database: Any = lambda connection, entries: []  # noqa: E731  # its type would not fit
    with pytest.raises(NotRegistrable, match=r"sink s: apply: .*\(entries\)"):
        StoreSink("s", made("in", engine, int), engine, partition="p", apply=of_a_database)


def calls_its_driver_wrongly() -> Any:
    return sqlite3.connect(":memory:", adress="here")  # type: ignore[call-overload]  # the mistake


async def test_a_connect_that_calls_its_driver_wrongly_stops_and_is_not_tried_for_ever(engine: Engine) -> None:
    log = made("in", engine, int)
    with pytest.raises(NotRegistrable, match=r"sink s: connect makes no connection: .*adress"):
        await TransactionalSink("s", log, calls_its_driver_wrongly, lambda db, entries: None).run_until_idle()
