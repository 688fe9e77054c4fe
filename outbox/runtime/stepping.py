"""Taking a coroutine as far as it goes without waiting, and on from there: what starts something need not be a task.

Most handlings never wait, and a task for each costs more than the handling.  So a coroutine is stepped where it is
made; only when it hands out what it waits for does somebody have to stay with it.
"""

from __future__ import annotations

import types
from asyncio import CancelledError
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any

RAISED_EXIT = "coroutine raised GeneratorExit"
"""An error like any other, as Python has it with StopIteration: only who closes a coroutine may be answered so."""


@types.coroutine
def go_on(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that was stepped until it handed out `waits_for`; give what it returns."""
    while True:
        is_closing = False
        try:
            sent = yield waits_for
        except BaseException as error:
            step, is_closing = partial(coroutine.throw, error), isinstance(error, GeneratorExit)
        else:
            step = partial(coroutine.send, sent)
        try:
            waits_for = step()
        except StopIteration as stop:
            return stop.value
        except GeneratorExit as error:
            if is_closing:
                raise
            raise RuntimeError(RAISED_EXIT) from error


@types.coroutine
def cancelled(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Cancel a coroutine where it was left, and go on with it to its end; give what it returns, or raise."""
    try:
        waits_for = coroutine.throw(CancelledError())
    except StopIteration as stop:
        return stop.value
    except GeneratorExit as error:
        raise RuntimeError(RAISED_EXIT) from error
    return (yield from go_on(coroutine, waits_for))
