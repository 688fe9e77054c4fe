"""The reference of a handling: its handler, run once more, alone, at a known state.

Monitors compare what was committed with this.  Nothing of the runtime's commit protocols has a part in it: a message
is decoded, its handler is called with the state before, and what it changed and captured is read off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import msgspec

from outbox.app import Handler
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
from outbox.verify.explorer.loop import make_loop
from outbox.verify.explorer.ops import canonical


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
"""The effect of a message that is cancelled."""


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
