"""Step a coroutine up to its first wait without a task, and run it on from there.

Most handlers never wait, and a task for each would cost more than the handler.  So the caller steps the coroutine, and
stays with it only if it waits.
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
"""Only `close()` may be answered by GeneratorExit; otherwise it is an error, as Python treats StopIteration."""


GRACE_S = 5.0
"""How long a cancelled coroutine may take to end."""


class Patience:
    """The grace of a coroutine that is cancelled for good; afterwards it is not stepped any more.

    A coroutine only runs while it is stepped, so one that swallows its cancellation ends at its next wait.
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
        """Whether this is the second cancellation, the one after the grace."""
        if not isinstance(error, CancelledError) or not self._is_final():
            return False
        if self._timer is None:
            self.begin()
        return self._has_insisted  # meanwhile a cancellation is its own, such as a timeout in its cleanup

    def end(self) -> None:
        """Cancel the timer, and take back an unneeded cancellation."""
        if self._timer is not None:
            self._timer.cancel()
        if self._has_insisted and self._task is not None:
            self._task.uncancel()


@types.coroutine
def go_on(
    coroutine: Coroutine[Any, Any, Any], waits_for: Any, patience: Patience | None = None
) -> Generator[Any, Any, Any]:
    """Run a coroutine on from a wait for `waits_for`; returns its result.

    A cancelled coroutine that does not end is closed where it waits, as soon as `patience` is over.
    """
    while True:
        is_closing = False
        try:
            sent = yield waits_for
        except BaseException as error:
            if patience is not None and patience.is_over(error):
                with suppress(Exception, CancelledError):  # its answer does not matter any more
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
    """Cancel a coroutine where it waits, and run it to its end; returns its result, or raises."""
    patience.begin()
    try:
        waits_for = coroutine.throw(CancelledError())
    except StopIteration as stop:
        return stop.value
    except GeneratorExit as error:
        raise RuntimeError(RAISED_EXIT) from error
    return (yield from go_on(coroutine, waits_for, patience))
