"""What an application declares: handlers, destinations, message and state types.

An `App` is a registry and nothing more.  It opens no connection, knows no backend, and the same one runs in a worker
on the embedded engine, as Azure Functions, and under the explorer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import Any, Literal, TypeVar

from outbox.binding import Binding, bind
from outbox.codec import Codec, StateCodec, Upcast, codec_for
from outbox.errors import NotRegistrable, UnknownDestination
from outbox.lineage import Key, inbox_prefix
from outbox.retries import Retries

Function = TypeVar("Function", bound=Callable[..., Any])
Type = TypeVar("Type", bound=type[Any])
KeyOf = str | Callable[[Any], Any]
Ordering = Literal["unordered", "per_key"]

CLAIM_CHECK_BYTES = 192_000
"""A larger body goes to the blob store; Service Bus Standard takes 256 KiB with the properties."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A declared queue; `identity` says what to use for a message that carries no id."""

    name: str
    ordering: Ordering = "unordered"
    identity: Literal["required", "sequence-number"] = "required"


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler, ready to run."""

    name: str
    source: str
    binding: Binding
    key: Callable[[Any], Any] | None
    state: StateCodec | None
    on_dead_letter: Literal["continue", "stop_key"]
    prefix: bytes = field(repr=False)


@dataclass(slots=True)
class App:
    """An application: its name scopes every identity, `retention` is how long a message is remembered.

    `margin` is kept beyond retention: clock skew, the longest attempt, the longest time that a write can be in flight.
    """

    name: str
    retention: timedelta = timedelta(days=7)
    retry: Retries = field(default_factory=Retries)
    claim_check_bytes: int = CLAIM_CHECK_BYTES
    margin: timedelta = timedelta(hours=1)
    clock_skew: timedelta = timedelta(minutes=5)
    handlers: list[Handler] = field(default_factory=list, init=False, repr=False)
    queues: dict[str, QueueSpec] = field(default_factory=dict, init=False, repr=False)
    topics: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False)
    _codecs: dict[type[Any], Codec] = field(default_factory=dict, init=False, repr=False)
    _states: dict[type[Any], StateCodec] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise NotRegistrable("an App needs a name; it scopes the identity of every message")
        if self.margin < self.clock_skew:
            raise NotRegistrable(f"margin {self.margin} is below the clock skew {self.clock_skew}; raise it")

    # Destinations

    def queue(
        self,
        name: str,
        ordering: Ordering = "unordered",
        *,
        identity: Literal["required", "sequence-number"] = "required",
    ) -> QueueSpec:
        """Declare a queue: one that no handler here reads, or one that is ordered by key."""
        if ordering not in ("unordered", "per_key"):
            raise NotRegistrable(f"queue {name!r}: ordering is 'unordered' or 'per_key', not {ordering!r}")
        spec = QueueSpec(_checked_name(name), ordering, identity)
        known = self.queues.get(name)
        if known is not None and known.ordering != ordering and known.ordering != "unordered":
            raise NotRegistrable(f"queue {name!r} is declared {known.ordering} already; declare it once")
        if name in self.topics:
            raise NotRegistrable(f"{name!r} is a topic; give the queue another name")
        self.queues[name] = spec
        return spec

    def topic(self, name: str) -> None:
        """Declare a topic to publish to."""
        if name in self.queues:
            raise NotRegistrable(f"{name!r} is a queue; give the topic another name")
        self.topics.setdefault(_checked_name(name), [])

    def destination(self, name: str, kind: str = "queue") -> str:
        """The name, if it was declared.

        Raises:
            UnknownDestination: it was not.
        """
        if name in self.queues or name in self.topics:
            return name
        raise UnknownDestination(f"{name!r} was never declared; add app.{kind}({name!r}), or check the spelling")

    # Types

    def message(self, name: str) -> Callable[[Type], Type]:
        """Name a message type on the wire; without it the class's name is used."""

        def register(kind: Type) -> Type:
            self._codecs[kind] = codec_for(kind, name)
            return kind

        return register

    def state(
        self, name: str, *, version: int = 1, upcasts: Mapping[int, Upcast] | None = None
    ) -> Callable[[Type], Type]:
        """Name a state type in the store, its schema version, and how to lift each older version by one."""

        def register(kind: Type) -> Type:
            self._states[kind] = StateCodec(codec_for(kind, name), version, dict(upcasts or {}))
            return kind

        return register

    def codec(self, kind: type[Any]) -> Codec:
        """The codec of a message type, made at its first use."""
        found = self._codecs.get(kind)
        if found is None:
            found = self._codecs[kind] = codec_for(kind, kind.__name__)
        return found

    def codecs(self) -> list[Codec]:
        """The codecs of all message types known so far."""
        return list(self._codecs.values())

    def state_codec(self, kind: type[Any]) -> StateCodec:
        """The codec of a state type, made at its first use."""
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = StateCodec(codec_for(kind, kind.__name__))
        return found

    def states(self) -> dict[str, StateCodec]:
        """The states that handlers use, by name."""
        return {handler.state.name: handler.state for handler in self.handlers if handler.state is not None}

    def encode(self, message: Any) -> tuple[bytes, str]:
        """A message's body and wire type."""
        codec = self._codecs.get(type(message)) or self.codec(type(message))
        return codec.encode(message), codec.name

    def prepare(self, destination: str, message: Any, key: Key | None, kind: str) -> tuple[bytes, str, str]:
        """A message's body, wire type and session on its way to a destination.

        Raises:
            UnknownDestination: the destination was never declared.
        """
        spec = self.queues.get(destination)
        if spec is None:
            self.destination(destination, kind)
        codec = self._codecs.get(type(message)) or self.codec(type(message))
        ordered = spec is not None and spec.ordering == "per_key"
        return codec.encode(message), codec.name, self.session_of(destination, message, key) if ordered else ""

    # Handlers

    def handler(
        self,
        source: str,
        *,
        key: KeyOf | None = None,
        subscription: str | None = None,
        on_dead_letter: Literal["continue", "stop_key"] = "continue",
        name: str | None = None,
    ) -> Callable[[Function], Function]:
        """Handle the messages of a queue, or of a topic's `subscription`.

        `key` is the field of the message, or a function of it, that names the state.  `on_dead_letter` says what a
        dead letter means for its successors on a `per_key` queue.

        Raises:
            NotRegistrable: the function does not fit; the text says what to change.
        """
        local_names = sys._getframe(1).f_locals

        def register(function: Function) -> Function:
            path = self._source(source, subscription)
            self._add(function, bind(function, local_names), path, key, on_dead_letter, name or function.__name__)
            return function

        return register

    def _source(self, source: str, subscription: str | None) -> str:
        if subscription is None:
            if source in self.topics:
                raise NotRegistrable(f"{source!r} is a topic; name the subscription to read it by")
            self.queues.setdefault(_checked_name(source), QueueSpec(source))
            return source
        self.topic(source)
        if subscription not in self.topics[source]:
            self.topics[source].append(subscription)
        return f"{source}/Subscriptions/{subscription}"

    def _add(
        self,
        function: Callable[..., Any],
        binding: Binding,
        path: str,
        key: KeyOf | None,
        on_dead_letter: Literal["continue", "stop_key"],
        name: str,
    ) -> None:
        if any(handler.name == name and handler.source == path for handler in self.handlers):
            raise NotRegistrable(f"handler {name!r} is registered twice on {path!r}; pass name= to tell them apart")
        if binding.state is not None and key is None:
            raise NotRegistrable(f"{name} has a state but no key; pass key= to say which state a message belongs to")
        codecs = [self.codec(kind) for kind in binding.messages]
        for codec in codecs:
            if isinstance(key, str) and key not in codec.fields and not hasattr(codec.type, key):
                raise NotRegistrable(f"{name}: {codec.type.__name__} has no field {key!r} to take the key from")
        state = None if binding.state is None else self._checked_state(name, binding.state)
        prefix = inbox_prefix(self.name, name, "" if state is None else state.name)
        getter = attrgetter(key) if isinstance(key, str) else key
        self.handlers.append(Handler(name, path, binding, getter, state, on_dead_letter, prefix))

    def _checked_state(self, name: str, kind: type[Any]) -> StateCodec:
        codec = self.state_codec(kind)
        try:
            codec.fresh()
        except Exception as error:
            raise NotRegistrable(
                f"{name}: {kind.__name__}() must make a new state, but raised {error!r}; give every field a default"
            ) from error
        return codec

    def session_of(self, destination: str, message: Any, key: Key | None) -> str:
        """The session of a message to a destination: its reader's key, else the sender's; empty where unordered."""
        spec = self.queues.get(destination)
        if spec is None or spec.ordering != "per_key":
            return ""
        for handler in self.handlers:
            if (
                handler.source == destination
                and handler.key is not None
                and isinstance(message, handler.binding.messages)
            ):
                return str(handler.key(message))
        return "" if key is None else str(key)


def _checked_name(name: str) -> str:
    if not name or len(name) > 260 or any(c in name for c in "$?#\\ ") or name != name.strip("/"):
        raise NotRegistrable(
            f"{name[:80]!r} cannot be a queue or topic; use 1 to 260 characters without spaces or $ ? # \\"
        )
    return name
