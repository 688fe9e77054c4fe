"""Taking a coroutine as far as it goes without waiting, and on from there: what starts something need not be a task.

Most handlings never wait, and a task for each costs more than the handling.  So a coroutine is stepped where it is
made; only when it hands out what it waits for does somebody have to stay with it.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import CancelledError, current_task, get_running_loop
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any

RAISED_EXIT = "coroutine raised GeneratorExit"
"""An error like any other, as Python has it with StopIteration: only who closes a coroutine may be answered so."""


GRACE_S = 5.0
"""How long a coroutine that was cancelled may take to end."""


class Patience:
    """What becomes of a coroutine that is cancelled for good: it gets a grace to end in, then nobody steps it any more.

    A coroutine goes on only while somebody steps it, so one that swallows its cancellation ends where it waits next.
    """

    def __init__(self, is_final: Callable[[], bool]) -> None:
        self._is_final = is_final
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._has_insisted = False

    def begin(self) -> None:
        """Begin the grace."""
        self._task = current_task()
        self._timer = get_running_loop().call_later(GRACE_S, self._insist)

    def _insist(self) -> None:
        if self._task is not None:
            self._has_insisted = True
            self._task.cancel()

    def is_over(self, error: BaseException) -> bool:
        """Whether what is thrown into a coroutine is the second that should have ended it."""
        if not isinstance(error, CancelledError) or not self._is_final():
            return False
        if self._timer is None:
            self.begin()
        return self._has_insisted  # what cancels it meanwhile is its own, as a timeout in its cleanup

    def end(self) -> None:
        """Take back what has not been needed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._has_insisted and self._task is not None:
            self._task.uncancel()


@types.coroutine
def go_on(
    coroutine: Coroutine[Any, Any, Any], waits_for: Any, patience: Patience | None = None
) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that was stepped until it handed out `waits_for`; give what it returns.

    One that does not end when it is cancelled is closed where it waits as soon as `patience` is over.
    """
    while True:
        is_closing = False
        try:
            sent = yield waits_for
        except BaseException as error:
            if patience is not None and patience.is_over(error):
                with suppress(Exception, CancelledError):  # whatever it makes of it: nobody steps it any more
                    coroutine.close()
                raise
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
def cancelled(coroutine: Coroutine[Any, Any, Any], patience: Patience) -> Generator[Any, Any, Any]:
    """Cancel a coroutine where it was left, and go on with it to its end; give what it returns, or raise."""
    patience.begin()
    try:
        waits_for = coroutine.throw(CancelledError())
    except StopIteration as stop:
        return stop.value
    except GeneratorExit as error:
        raise RuntimeError(RAISED_EXIT) from error
    return (yield from go_on(coroutine, waits_for, patience))
