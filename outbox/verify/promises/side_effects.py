"""Side effects of a handler that no commit takes back: calls out of `ctx.call`, files, sockets, processes.

While a program is driven, an audit hook of the interpreter tells what it opens, and contexts tell what they call.  The
hook is installed once, at the first exploration, and cannot be taken away; when nothing is driven it does nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from inspect import isawaitable
from typing import Any

import msgspec

from outbox.app import App, Handler
from outbox.context import Context
from outbox.runtime.start.plan import CompiledApp
from outbox.verify.explorer.guards import ChosenGuards

LEAVES = frozenset(
    ("open", "socket.connect", "socket.bind", "socket.sendto", "subprocess.Popen", "os.system", "os.posix_spawn",
     "os.fork", "os.exec", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "sqlite3.connect", "urllib.Request")
)  # fmt: skip
"""The audit events of what leaves a process."""

CODE = (".py", ".pyc", ".so", ".pyi", ".zip")


class SideEffect(msgspec.Struct, frozen=True):
    """Something that happened beside a commit: `call` under an idempotency key, or `leaves` with what was opened."""

    what: str
    key: str


class SideEffects:
    """Notes side_effects while it is entered."""

    def __init__(self) -> None:
        self.side_effects: list[SideEffect] = []
        if not _installed:
            _installed.append(True)
            sys.addaudithook(_hook)

    def __enter__(self) -> SideEffects:
        self.side_effects.clear()
        _active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.remove(self)


_active: list[SideEffects] = []
_installed: list[bool] = []
_calls = ContextVar("_calls", default=False)
"""Whether what runs was handed to `ctx.call`, where the outside is at home."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _active and event in LEAVES and not _calls.get() and not (event == "open" and _is_code(arguments)):
        what = f"{event} {arguments[0]!r}" if arguments else event
        _active[-1].side_effects.append(SideEffect("leaves", what[:200]))


def _is_code(arguments: tuple[Any, ...]) -> bool:
    """Whether a file is opened because a module is imported, or its source quoted."""
    path = arguments[0]
    return isinstance(path, str) and (path.endswith(CODE) or "zoneinfo" in path)


def watched(plan: CompiledApp) -> CompiledApp:
    """A plan whose handlers are handed contexts that tell what they call."""
    sources = {}
    for path, source in plan.sources.items():
        routes = {
            name: replace(route, handlers=tuple(map(_watched_handler, route.handlers)))
            for name, route in source.routes.items()
        }
        sources[path] = replace(source, routes=routes, only=source.only and routes[source.only.wire_type])
    return replace(plan, sources=sources)


def watched_app(app: App) -> App:
    """An application whose HTTP entries are handed such contexts."""
    entries = copy(app)
    entries.routes = [replace(route, handler=_watched_handler(route.handler)) for route in app.routes]
    return entries


def _watched_handler(handler: Handler) -> Handler:
    binding = handler.binding
    if not binding.wants_context:
        return handler
    call, find = binding.call, handler.find_guard

    def calling(message: Any, state: Any, context: Any) -> Any:
        return call(message, state, WatchedContext(context))

    async def asking(message: Any, state: Any, context: Any) -> Any:
        assert isinstance(find, ChosenGuards), "nobody else decides in an exploration"
        await find.choose(context)
        result = calling(message, state, context)
        return await result if isawaitable(result) else result

    if handler.guards and find is not None:
        return replace(handler, binding=replace(binding, call=asking, is_async=True))
    return replace(handler, binding=replace(binding, call=calling))


class WatchedContext:
    """A context that notes the calls made through it; in everything else it is the context."""

    _context: Context

    def __init__(self, context: Context) -> None:
        object.__setattr__(self, "_context", context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._context, name, value)

    async def call(self, function: Callable[..., Any], *, idempotent: bool = False, **options: Any) -> Any:
        """Call as `Context.call` does, and note a call that is not idempotent when it is made."""
        context = self._context
        side_effect = SideEffect("call", f"{context.idempotency_key}-{context.call_count + 1}")

        @functools.wraps(function)
        def noted(*arguments: Any) -> Any:
            if _active and not idempotent:
                _active[-1].side_effects.append(side_effect)
            token = _calls.set(True)
            try:
                result = function(*arguments)
            finally:
                _calls.reset(token)
            return _awaited(result) if isinstance(result, Awaitable) else result

        find = context.work.handler.find_guard
        if isinstance(find, ChosenGuards) and (options.get("breaker") or options.get("rate")):
            await find.choose(context)
        return await context.call(noted, idempotent=idempotent, **options)


async def _awaited(result: Awaitable[Any]) -> Any:
    """The result of an asynchronous function that was handed to `ctx.call`."""
    token = _calls.set(True)
    try:
        return await result
    finally:
        _calls.reset(token)
