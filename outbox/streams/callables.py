"""Functions that a user gives: whether each can be called, before it is, and whether what it gave counts.

A function whose parameters do not fit fails for every entry alike, so no entry is to be blamed for it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outbox.errors import NotRegistrable
from outbox.generators import NOT_RUN, is_generator

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_call(what: str, function: Any, *given: str) -> None:
    """Check that a function can be called with as many positional arguments as `given` names.

    Raises:
        NotRegistrable: it cannot.
    """
    if not callable(function):
        raise NotRegistrable(f"{what} is {_shown(function)}; give a function ({', '.join(given)})")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        if hasattr(function, "__wrapped__") and all(each.kind in VARIADIC for each in signature.parameters.values()):
            signature = inspect.signature(function)  # it passes on what it is given
    except (TypeError, ValueError):  # some built-in functions have none, and a `__signature__` may be anything
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise NotRegistrable(
            f"{what}: {name}{signature} is called with ({', '.join(given)}), and does not take that ({error}); give it "
            "these parameters, or the others defaults"
        ) from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of a function only makes a coroutine."""
    return any(map(inspect.iscoroutinefunction, _of(function)))


class NotCalled(NotRegistrable):
    """A function did not run: its parameters do not fit the call, or it only made a generator."""


def call(what: str, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function; `what` and `name` say whose it is.

    Raises:
        NotCalled: its code was not entered.
    """
    try:
        return function(*given)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from within it
        raise NotCalled(f"{what} {name}: its function cannot be called: {error}; give it other parameters") from error


def check_run(what: str, name: str, result: Any) -> None:
    """Check what a function has returned; `what` and `name` say whose it is.

    Raises:
        NotCalled: it is a generator.
    """
    if is_generator(result):
        raise NotCalled(f"{what} {name}: its function {NOT_RUN}")


@contextmanager
def unless_cancelled() -> Iterator[None]:
    """Await a function: where this task is cancelled meanwhile, neither its result nor its error counts.

    A function may swallow a cancellation, or raise an error of its own because of it.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def _of(function: Callable[..., Any]) -> tuple[Any, Any]:
    """A function and its method `__call__`, which says what an object is that can be called."""
    return function, getattr(function, "__call__", function)  # noqa: B004 - the method itself is wanted


def _shown(given: Any) -> str:
    return f"a {type(given).__name__}" if given is not None else "None"
