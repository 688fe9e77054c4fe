"""Functions with a `yield` where none belongs: a call of one only makes a generator, and nothing of it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

NOT_RUN = "returned a generator, so nothing of it ran; leave out yield"


def is_generator(result: Any) -> bool:
    """Whether a result is a generator or an async generator."""
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


def check_result(what: str, result: Any) -> None:
    """Check what a function has returned; `what` names the function.

    Raises:
        TypeError: it is a generator.
    """
    if is_generator(result):
        raise TypeError(f"{what} {NOT_RUN}")


def yields(function: Callable[..., Any]) -> bool:
    """Whether a function has a `yield`; one that a decorator wraps may be gone through by that."""
    call = getattr(function, "__call__", function)  # noqa: B004 - of an object the method itself is wanted
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (function, call))
