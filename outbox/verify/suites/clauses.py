"""The shared parts of the contract suites: promises whose errors name the breach, and a loop over clauses.

A clause is a small coroutine function named after its promise.  It is given a fresh adapter, so that clauses do not
depend on one another, and raises `AssertionError` with a sentence when the promise is broken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

Adapter = TypeVar("Adapter")
Make = Callable[[], AbstractAsyncContextManager[Adapter]]
"""Makes a fresh adapter for the length of a clause."""

Clause = Callable[[Adapter], Awaitable[None]]
"""One promise, checked against a fresh adapter."""

Wait = Callable[[float], Awaitable[None]]
"""Lets a number of seconds of the adapter's time pass."""


def promise(kept: object, broken: str) -> None:
    """Raise the text `broken`, unless the promise was kept."""
    if not kept:
        raise AssertionError(broken)


async def check(make: Make[Adapter], clauses: Sequence[Clause[Adapter]]) -> None:
    """Check every clause against an adapter of its own.

    Raises:
        AssertionError: the first promise that is broken, with the clause's name.
    """
    for clause in clauses:
        async with make() as adapter:
            try:
                await clause(adapter)
            except AssertionError as broken:
                raise AssertionError(f"{name_of(clause)}: {broken}") from broken


def name_of(clause: Callable[..., object]) -> str:
    """A clause's name, which is its promise."""
    return str(getattr(clause, "__name__", clause))
