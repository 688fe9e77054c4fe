"""The reference of a handling: its handler, run once more, alone, at a known state; and its side effects.

Monitors compare what was committed with this.  Nothing of the runtime's commit protocols has a part in it: a message
is decoded, its handler is called with the state before, and what it changed and captured is read off.

Some side effects no commit takes back: calls out of `ctx.call`, files, sockets, processes.  While a program is driven,
an audit hook of the interpreter tells what it opens, and contexts tell what they call.  The hook is installed once, at
the first exploration, and cannot be taken away; when nothing is driven it does nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

import msgspec

from outbox.app import App, Handler
from outbox.cancellation import CANCELLATION_TYPE, cancelled_by
from outbox.context import ABSENT, Context
from outbox.errors import FormatTooNew
from outbox.http import Reply
from outbox.lineage import Key, as_key, inbox_key, state_id
from outbox.message import Message
from outbox.ports import Output
from outbox.retries import Retry
from outbox.runtime.delivery.claim_check import to_claim
from outbox.runtime.start.plan import CompiledApp
from outbox.verify.explorer.ops import canonical
from outbox.verify.explorer.run import ChosenGuards, make_loop


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state as stored, without its version: empty bytes are a deleted one."""

    value: bytes = b""
    schema: int = 1
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Handling:
    """One handler's part in a message."""

    name: str
    handler: Handler
    message: Message
    value: Any
    key: Key | None
    inbox: bytes
    state_id: str | None
    decode: Callable[[bytes], Any]
    delivery_count: int = 1
    caller: str = ""
    cancels: bool = False
    """Whether it is that of a cancellation: `message` is the one that is cancelled."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a handling: its state afterwards (None: it has none), its outputs, its reply to a request."""

    state: StoredState | None
    outputs: tuple[Output, ...]
    reply: Reply | None = None


CANCELLED = Effect(None, ())


@dataclass(frozen=True, slots=True)
class Declined:
    """A handling that raised; `later` says that it asked for another delivery."""

    error: str
    later: bool = False


class Reference:
    """Runs an application's handlers, one at a time, at a known state."""

    def __init__(self, plan: CompiledApp) -> None:
        self.plan = plan
        self._known: dict[tuple[str, bytes], tuple[Handling, ...]] = {}
        self._claimed: dict[str, bytes] = {}
        """The bodies that claim checks stand for."""

    def whole(self, message: Message) -> Message:
        """A message with its body, wherever that lies."""
        if message.claim not in self._claimed:
            return message
        return msgspec.structs.replace(message, body=self._claimed[message.claim], claim="")

    def handlings(self, path: str, message: Message) -> tuple[Handling, ...]:
        """The handlings that a message of a queue causes; none where it cannot be decoded."""
        at = (path, canonical(message))
        found = self._known.get(at)
        if found is None:
            found = self._known[at] = tuple(self._handlings(path, message))
        return found

    def _handlings(self, path: str, message: Message) -> list[Handling]:
        message, is_cancellation = self.whole(message), message.type == CANCELLATION_TYPE
        if is_cancellation:
            message, _ = cancelled_by(message)
        source = self.plan.sources.get(path)
        route = None if source is None else source.routes.get(message.type) if message.type else source.only
        found: list[Handling] = []
        if route is None or not message.identity:
            return found
        for handler in route.handlers:
            try:
                value = route.decode(message.body)
                key = None if handler.key is None else as_key(handler.key(value))
            except Exception:  # whatever a validator or a key function raises: it is a dead letter
                continue
            id = state_id(handler.state.name, key) if handler.state is not None and key is not None else None
            inbox = inbox_key(handler.prefix, key, message.identity)
            name = f"{message.identity} at {handler.name}"
            found.append(Handling(name, handler, message, value, key, inbox, id, route.decode, cancels=is_cancellation))
        return found

    def run(self, handling: Handling, before: StoredState | None, now_ms: int) -> Effect | Declined:
        """Run a handling at a state; a cancellation has no effect."""
        if handling.cancels:
            return CANCELLED
        loop = make_loop()
        task = loop.create_task(self._run(handling, before, now_ms))
        try:
            loop.run_ready()
            while not loop.is_finished and loop.has_timer():
                loop.fire_timer()
                loop.run_ready()
            return task.result() if task.done() else Declined("it waits for something that never comes")
        finally:
            loop.dispose()

    async def _run(self, handling: Handling, before: StoredState | None, now_ms: int) -> Effect | Declined:
        handler = handling.handler
        codec = handler.state
        value = handling.decode(handling.message.body)  # anew: a handler may change what it is given
        state: Any = None
        context = Context(self.plan.app, handling, handling.message, now_ms, _durable)
        try:
            if codec is not None:
                state = codec.decode(before.value, before.schema) if before and before.value else codec.fresh()
            result = handler.binding.call(value, state, context)
            if isawaitable(result):
                await result
            return self._effect(handling, before, state, context)
        except (Retry, FormatTooNew) as error:
            return Declined(str(error), later=True)
        except Exception as error:
            return Declined(str(error) or type(error).__name__)

    def _effect(self, handling: Handling, before: StoredState | None, state: Any, context: Context) -> Effect:
        outputs = tuple(map(self._outside, context.outputs))
        codec = handling.handler.state
        if codec is None:
            return Effect(None, outputs, context.answer)
        if context.replaced is not ABSENT:
            state = context.replaced
        value = b"" if state is None else codec.codec.encode(state)
        old = before or StoredState()
        changed = (value, codec.version) != (old.value, old.schema) if before else bool(value)
        return Effect(StoredState(value, codec.version, old.serial + 1) if changed else old, outputs, context.answer)

    def _outside(self, output: Output) -> Output:
        """An output as it leaves: a large body as a claim check."""
        if len(output.message.body) <= self.plan.claim_check_bytes:
            return output
        name, self._claimed[name] = to_claim(output.message)
        claim = msgspec.structs.replace(output.message, body=b"", claim=name)
        return Output(output.destination, output.due_ms, claim)


async def _durable() -> None:
    """A reference has nothing to wait for."""


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
