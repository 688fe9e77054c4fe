"""Middleware: code round every attempt of a handler, for tracing, error reporters and contexts of one's own.

    @app.middleware
    def timed(call: Call) -> Iterator[None]:
        began_s = time.monotonic()                      # before the handler
        try:
            yield                                       # the handler; what it raises is raised here
        finally:
            print(call.handler, time.monotonic() - began_s)

A middleware sees attempts, not effects: an attempt may be made several times, and nothing of it may be committed.  It
runs in the handler's task, within its time limit, and in a copy of that task's context variables: what it sets there
the handler sees, and nobody else.  What it raises fails the attempt as if the handler had raised it; it cannot make a
success of a failure.

One that has an attribute `applies`, a function of the context, is left out of the attempts where that is false: so one
that looks at few messages costs the others next to nothing.

The first one declared is outermost, those of the application are round those of the handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import dataclass, replace
from types import CoroutineType, GeneratorType
from typing import Any, cast

from outbox.context import Context
from outbox.errors import NotRegistrable
from outbox.registration.handlers import Handler


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a handler: its name, its source, the decoded message and the context."""

    handler: str
    source: str
    """The queue, or `TOPIC/Subscriptions/NAME`, or `http` for a request."""
    message: Any
    context: Context


Manager = Callable[[Call], AbstractContextManager[Any]]
Applies = Callable[[Context], bool]
Middleware = Callable[[Call], AbstractContextManager[Any] | Iterator[None]]
"""A generator function with one `yield`, or any function that returns a context manager."""


def as_manager(middleware: Middleware) -> Manager:
    """A middleware as a function that returns a context manager.

    Raises:
        NotRegistrable: it is neither, or cannot be called with a `Call`.
    """
    name = getattr(middleware, "__name__", repr(middleware))
    bare = inspect.unwrap(middleware) if callable(middleware) else None
    if bare is None or inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare):
        raise NotRegistrable(
            f"middleware {name} is not a generator function with one yield, nor one that returns a context manager; "
            "it must not be async, because most handlers run without a task of their own"
        )
    try:
        with suppress(ValueError):  # it does not tell its parameters
            inspect.signature(middleware).bind(None)
    except TypeError as error:
        raise NotRegistrable(f"middleware {name} cannot be called with one `Call`: {error}") from error
    if inspect.isgeneratorfunction(middleware):
        return contextmanager(middleware)

    def manager(call: Call) -> AbstractContextManager[Any]:
        made = middleware(call)
        if isinstance(made, GeneratorType):  # a decorator stands round a generator function
            return contextmanager(lambda: made)()
        if not isinstance(made, AbstractContextManager):
            raise TypeError(
                f"middleware {name} returned {made.__class__.__name__}, and no context manager; add a yield"
            )
        return made

    manager.__dict__["applies"] = getattr(middleware, "applies", None)  # it may be a method
    return manager


def surrounded(handler: Handler, middleware: Sequence[Manager]) -> Handler:
    """A handler with middleware round each of its attempts."""
    if not middleware:
        return handler
    call, name, source = handler.binding.call, handler.name, handler.source
    each: list[tuple[Manager, Applies | None]] = [(one, getattr(one, "applies", None)) for one in middleware]

    def begin(around: list[Manager], variables: Variables, message: Any, state: Any, context: Context) -> Any:
        entered = ExitStack()
        try:
            for manager in around:
                entered.enter_context(manager(Call(name, source, message, context)))
            result = call(message, state, context)
        except BaseException as error:
            _leave(entered, error)
            raise
        if type(result) is CoroutineType:
            return Isolated(cast("CoroutineType[Any, Any, Any]", _ended(entered, result)), variables)
        entered.close()
        return result

    def within(message: Any, state: Any, context: Context) -> Any:
        around = [manager for manager, applies in each if applies is None or applies(context)]
        if not around:
            return call(message, state, context)
        variables = copy_context()
        return variables.run(begin, around, variables, message, state, context)

    def within_one(message: Any, state: Any, context: Context) -> Any:
        return within(message, state, context) if first_applies(context) else call(message, state, context)

    first_applies = each[0][1] or (lambda context: True)
    around = within_one if len(each) == 1 else within
    return replace(handler, binding=replace(handler.binding, wants_context=True, call=around))


def _leave(entered: ExitStack, error: BaseException) -> None:
    """Tell every middleware of an error; one that swallows it changes nothing, one that raises replaces it."""
    entered.__exit__(type(error), error, error.__traceback__)


async def _ended(entered: ExitStack, handling: CoroutineType[Any, Any, Any]) -> Any:
    """Run a handler to its end, then leave its middleware."""
    try:
        result = await handling
    except BaseException as error:
        _leave(entered, error)
        raise
    entered.close()
    return result


class Isolated(Coroutine[Any, Any, Any]):
    """A coroutine that runs in context variables of its own, whichever task steps it."""

    def __init__(self, inner: CoroutineType[Any, Any, Any], variables: Variables) -> None:
        self._inner = inner
        self._run: Callable[..., Any] = variables.run

    def send(self, value: Any) -> Any:
        """Step it."""
        return self._run(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits."""
        return self._run(self._inner.throw, *error)

    def close(self) -> None:
        """Close it where it waits."""
        self._run(self._inner.close)

    def __await__(self) -> Any:
        return self  # with send, throw and close, as a coroutine's own

    def __iter__(self) -> Isolated:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    @property
    def cr_frame(self) -> Any:
        """Its frame, for whoever looks where it waits."""
        return self._inner.cr_frame

    @property
    def cr_await(self) -> Any:
        """The awaitable that it waits for."""
        return self._inner.cr_await
