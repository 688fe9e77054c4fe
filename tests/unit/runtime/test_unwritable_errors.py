"""Whatever class an exception of the application has: its message fails or is refused, and the worker lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from outbox import App, Reject, Retries, Retry
from outbox.errors import REASON_LENGTH_MAX, PoisonMessage
from outbox.runtime.failures.error_text import as_text, failure_text
from outbox.testing import Harness
from tests.unit.messages import deliver


@dataclass
class Mark:
    key: str
    n: int = 0


@dataclass
class Marks:
    ns: list[int] = field(default_factory=list)


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class MuteReject(Reject):
    __str__ = Mute.__str__


class Sly(str):
    """A text that is none as soon as anything is done with it."""

    def __getitem__(self, _: Any) -> NoReturn:
        raise ValueError("no part")

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("no bytes")


class SlyError(Exception):
    def __str__(self) -> str:
        return Sly("sly")


def _untold(_: Any) -> NoReturn:
    raise ValueError("nothing to tell")


NotedBadly: Any = type("NotedBadly", (Exception,), {"__notes__": property(_untold)})
Classless: Any = type("Classless", (Exception,), {"__class__": property(_untold)})
Unnamed: Any = type("Unnamed", (type,), {"__module__": property(_untold)})
UnnamedError: Any = Unnamed("UnnamedError", (Exception,), {})


class Died(BaseException): ...


class Timeless(Retry):
    def __init__(self) -> None: ...


def _after(after_s: Any) -> Retry:
    retry = Retry("later")
    retry.after_s = after_s
    return retry


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _refusal(reason: Any, description: Any) -> PoisonMessage:
    poison = PoisonMessage("", "")
    poison.reason, poison.description = reason, description
    return poison


def _noted(*notes: str) -> Exception:
    error = ValueError("the amount")
    for note in notes:
        error.add_note(note)
    return error


FAILING: dict[str, tuple[Callable[[], BaseException], str]] = {
    "mute": (Mute, "Mute: <exception str() failed>"),
    "no repr": (lambda: KeyError(NoRepr()), "KeyError: <exception str() failed>"),
    "sly": (SlyError, "SlyError: sly"),
    "noted badly": (NotedBadly, "NotedBadly"),
    "unnamed": (UnnamedError, "exception"),
    "classless": (Classless, "Classless"),
    "no time": (Timeless, "Timeless"),
    "no number": (lambda: _after("soon"), "Retry: later"),
    "endless": (lambda: _after(float("inf")), "Retry: later"),
    "nan": (lambda: _after(float("nan")), "Retry: later"),
    "exit": (GeneratorExit, "GeneratorExit"),
    "surrogate": (lambda: ValueError("\ud800"), "ValueError: \\ud800"),
}


def marking(raised: Callable[[], BaseException], where: str) -> App:
    """An application that fails on the first message, in its key function or in its handler, at once or later."""
    app = App("marks", retry=Retries(limit=2, delays_s=()))

    def key(mark: Mark) -> str:
        if where == "key" and not mark.n:
            raise raised()
        return mark.key

    @app.handler("q", key=key)
    async def note(mark: Mark, marks: Marks) -> None:
        if where == "later":
            await asyncio.sleep(0)
        if not mark.n:
            raise raised()
        marks.ns.append(mark.n)

    return app


@pytest.mark.parametrize("where", ["at once", "later"])
@pytest.mark.parametrize(("raised", "text"), FAILING.values(), ids=FAILING)
async def test_an_error_that_cannot_be_written_down_is_a_failure(
    raised: Callable[[], BaseException], text: str, where: str
) -> None:
    async with Harness(marking(raised, where)) as world:
        await world.send("q", Mark("a"))
        await world.send("q", Mark("b", 1))
        await world.advance(minutes=5)
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "failed" and dead_letter.description.endswith(text)
        assert await world.state(Marks, "a") is None and await world.state(Marks, "b") == Marks([1])


@pytest.mark.parametrize(("raised", "_"), FAILING.values(), ids=FAILING)
async def test_a_key_function_may_raise_anything(raised: Callable[[], BaseException], _: str) -> None:
    async with Harness(marking(raised, "key")) as world:
        await world.send_raw("q", b'{"key": "a", "n": 0}', properties={"outbox-type": "Mark", "outbox-id": "1"})
        await deliver(world, "q", Mark("b", 1))
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["missing-key"]
        assert await world.state(Marks, "b") == Marks([1])


@pytest.mark.parametrize("where", ["at once", "later", "key"])
@pytest.mark.parametrize(
    "refusal", [MuteReject("x"), _refusal(NoRepr(), Sly("no")), _refusal("\ud800", 5)], ids=["0", "1", "2"]
)
async def test_a_refusal_that_cannot_be_written_down_is_a_refusal(refusal: Exception, where: str) -> None:
    async with Harness(marking(lambda: refusal, where)) as world:
        await world.send_raw("q", b'{"key": "a", "n": 0}', properties={"outbox-type": "Mark", "outbox-id": "1"})
        await deliver(world, "q", Mark("b", 1))
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason != "failed" and await world.state(Marks, "b") == Marks([1])


@pytest.mark.parametrize("where", ["at once", "later"])
async def test_a_dead_letter_reports_the_error_before_its_notes(where: str) -> None:
    async with Harness(marking(lambda: _noted("of a row", "password=hunter2"), where)) as world:
        await deliver(world, "q", Mark("a"))
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.description == "ValueError: the amount; of a row; password=***"


@pytest.mark.engine_only
async def test_notes_have_the_room_that_an_error_leaves() -> None:
    assert failure_text(_noted("x" * 5_000)) == "ValueError: the amount; ".ljust(REASON_LENGTH_MAX, "x")
    assert failure_text(_noted(*["y"] * 50)).count("y") == 8


@pytest.mark.engine_only
async def test_a_text_is_plain_whatever_it_was() -> None:
    assert type(as_text(Sly("a"))) is str and as_text(NoRepr(), repr) == "<exception str() failed>"


@pytest.mark.engine_only
async def test_what_is_not_about_a_message_is_no_failure() -> None:
    with pytest.raises(Died):
        async with Harness(marking(Died, "at once")) as world:
            await deliver(world, "q", Mark("a"))
