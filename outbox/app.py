"""The declarations of an application: handlers, destinations, message and state types.

An `App` is a registry and nothing more.  It opens no connection, knows no backend, and the same one runs in a worker
on the embedded engine, as Azure Functions, and under the explorer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any, Literal, TypeVar

from outbox.codec import Codec, StateCodec, Upcast, codec_for
from outbox.context import Way
from outbox.errors import NotRegistrable, UnknownDestination
from outbox.guards import Breaker, Rate
from outbox.lineage import Key, as_key, inbox_prefix
from outbox.message import Scalar, schema_properties
from outbox.middleware import Manager, Middleware, as_manager
from outbox.registration.binding import Binding, bind, check_key, key_kind, name_of_key
from outbox.registration.handlers import (
    NO_KEY,
    SPARK_HANDLER_NAME,
    TIME_LIMIT_S,
    UNKEPT,
    Caller,
    Handler,
    HttpRoute,
    Ordering,
    QueueSpec,
    answering,
    submitting,
)
from outbox.registration.routes import METHODS, Template, parse_template
from outbox.retries import Retries
from outbox.spark import RUN_TYPE, SPARK_RUNS, RunRequest, SparkRuns, run_request

__all__ = ["CLAIM_CHECK_BYTES", "NO_KEY", "RETENTION", "App", "Handler", "HttpRoute", "QueueSpec"]

Function = TypeVar("Function", bound=Callable[..., Any])
AnyMiddleware = TypeVar("AnyMiddleware", bound=Middleware)
Type = TypeVar("Type", bound=type[Any])
KeyOf = str | Callable[[Any], Any]

RETENTION = timedelta(days=7)
"""How long a message is remembered where nothing else is asked for."""
CLAIM_CHECK_BYTES = 192_000
"""A larger body goes to the blob store; Service Bus Standard takes 256 KiB with the properties."""


@dataclass(slots=True)
class App:
    """An application: its name scopes every identity, `retention` (seven days) is how long a message is remembered.

    `strict` refuses messages with unknown fields, where their types do not say otherwise.
    `margin` is kept beyond retention: clock skew, the longest attempt, the longest time that a write can be in flight.
    `hops_max` is how many handlers a chain of messages may pass before it counts as a cycle; an output that is due a
    second or more after its handling begins a chain anew, and so does a resubmission.
    `time_limit_s` is how many seconds a handler may take that declares no limit of its own, half the margin at most.
    `blocking` runs all handlers that are not async in threads, but those that say otherwise.
    """

    name: str
    retention: timedelta = RETENTION
    retry: Retries = field(default_factory=Retries)
    claim_check_bytes: int = CLAIM_CHECK_BYTES
    margin: timedelta = timedelta(hours=1)
    clock_skew: timedelta = timedelta(minutes=5)
    hops_max: int = 64
    strict: bool = False
    time_limit_s: float = TIME_LIMIT_S
    blocking: bool = False
    handlers: list[Handler] = field(default_factory=list, init=False, repr=False)
    routes: list[HttpRoute] = field(default_factory=list, init=False, repr=False)
    queues: dict[str, QueueSpec] = field(default_factory=dict, init=False, repr=False)
    topics: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False)
    ways: dict[tuple[str, type], Way] = field(default_factory=dict, init=False, repr=False)
    """The routes of messages that were sent so far, by destination and type."""
    jobs: set[str] = field(default_factory=set, init=False, repr=False)
    managers: list[Manager] = field(default_factory=list, init=False, repr=False)
    """The middleware of all handlers, outermost first."""
    _codecs: dict[type[Any], Codec] = field(default_factory=dict, init=False, repr=False)
    _named: set[type[Any]] = field(default_factory=set, init=False, repr=False)
    _states: dict[type[Any], StateCodec] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise NotRegistrable("an App needs a name; it scopes the identity of every message")
        if self.retention <= timedelta(0):
            raise NotRegistrable(f"retention {self.retention}: a message must be remembered for some time; raise it")
        if self.margin < 2 * self.clock_skew:  # half of it is for the longest attempt
            raise NotRegistrable(f"margin {self.margin} is below twice the clock skew {self.clock_skew}; raise it")
        if self.claim_check_bytes < 1:
            raise NotRegistrable(f"claim_check_bytes={self.claim_check_bytes}: give the size of the largest body")
        if isinstance(self.hops_max, bool) or not isinstance(self.hops_max, int) or self.hops_max < 1:
            raise NotRegistrable(f"hops_max={self.hops_max!r}: give how many handlers a chain may pass, 1 or more")
        if self.time_limit_s != TIME_LIMIT_S:  # the default is cut to half of a short margin
            self._checked_time_limit_s("App", self.time_limit_s)

    # Destinations

    def queue(
        self,
        name: str,
        ordering: Ordering = "unordered",
        *,
        identity: Literal["required", "sequence-number"] = "required",
        read_elsewhere: bool = False,
    ) -> QueueSpec:
        """Declare a queue without a handler here, or one that is ordered by key.

        `read_elsewhere` says that another receiver takes its messages: a host does not warn of those that wait in it.

        Raises:
            NotRegistrable: the name is invalid, or the queue is declared otherwise already.
        """
        if ordering not in ("unordered", "per_key"):
            raise NotRegistrable(f"queue {name!r}: ordering is 'unordered' or 'per_key', not {ordering!r}")
        if identity not in ("required", "sequence-number"):
            raise NotRegistrable(f"queue {name!r}: identity is 'required' or 'sequence-number', not {identity!r}")
        spec = QueueSpec(self._checked_name(name), ordering, identity, read_elsewhere)
        known = self.queues.get(name)
        if known not in (None, spec, QueueSpec(name)):
            raise NotRegistrable(f"queue {name!r} is declared as {known} already; declare it once")
        if name in self.topics:
            raise NotRegistrable(f"{name!r} is a topic; give the queue another name")
        self.queues[name] = spec
        self.ways.clear()  # it may be ordered by key from here on
        return spec

    def topic(self, name: str) -> None:
        """Declare a topic to publish to; NotRegistrable where the name is invalid or a queue's."""
        if name in self.queues:
            raise NotRegistrable(f"{name!r} is a queue; give the topic another name")
        self.topics.setdefault(self._checked_name(name), [])

    def _checked_name(self, name: str) -> str:
        """Check that a name is valid, and differs from others in more than case."""
        lower = _checked_name(name).lower()
        for other in (*self.queues, *self.topics):
            if other != name and other.lower() == lower:
                raise NotRegistrable(
                    f"{name!r} differs from {other!r} in case only, and Service Bus takes both for one"
                )
        return name

    def spark_jobs(self, *jobs: str, runs: Callable[[], SparkRuns] | None = None) -> None:
        """Declare jobs for `ctx.submit_spark_job`; with `runs` this application starts them itself."""
        self.queue(SPARK_RUNS)
        self.jobs.update(run_request(job).job for job in jobs)
        if RunRequest not in self._codecs:
            self.message(RUN_TYPE)(RunRequest)
        if runs is not None:
            self.handler(SPARK_RUNS, name=SPARK_HANDLER_NAME)(submitting(runs))

    def destination(self, name: str, kind: str = "queue") -> str:
        """A declared name, unchanged.

        Raises:
            UnknownDestination: it was never declared.
        """
        if name in self.queues or name in self.topics:
            return name
        raise UnknownDestination(f"{name!r} was never declared; add app.{kind}({name!r}), or check the spelling")

    # Types

    def message(
        self, name: str, *, version: int = 1, upcasts: Mapping[int, Upcast] | None = None, strict: bool | None = None
    ) -> Callable[[Type], Type]:
        """Name a message type on the wire (else its class), its schema version, and an upcast from each older one.

        A `strict` type (default: `App(strict=...)`) allows no unknown field, at any depth: such a message is refused as
        `undecodable`, and the text names the field.  Other types drop unknown fields.
        """

        def register(kind: Type) -> Type:
            lifted = _checked_upcasts(f"message {name!r}", version, upcasts)
            self._check_unnamed(kind, name, self._codecs)
            self._named.add(kind)
            codec = codec_for(kind, name, strict=self.strict if strict is None else strict)
            self._codecs[kind] = replace(codec, version=version, upcasts=lifted)
            return kind

        return register

    def state(
        self, name: str, *, version: int = 1, upcasts: Mapping[int, Upcast] | None = None
    ) -> Callable[[Type], Type]:
        """Name a state type in the store, its schema version, and an upcast from each older version to the next."""

        def register(kind: Type) -> Type:
            lifted = _checked_upcasts(f"state {name!r}", version, upcasts)
            self._check_unnamed(kind, name, self._states)
            self._add_state(kind, StateCodec(codec_for(kind, name), version, lifted))
            return kind

        return register

    def _check_unnamed(self, kind: type[Any], name: str, known: Mapping[type[Any], Any]) -> None:
        if not name:
            raise NotRegistrable(
                f"{kind.__name__} needs a name that is not empty; leave the decorator out to use its own"
            )
        if kind in known:
            raise NotRegistrable(f"{kind.__name__} is in use under another name; name it before its first handler")

    def _add_state(self, kind: type[Any], codec: StateCodec) -> StateCodec:
        for other, known in self._states.items():
            if known.name == codec.name and other is not kind:
                raise NotRegistrable(
                    f"two state types are called {codec.name!r} and would share their keys; name one with @app.state"
                )
        self._states[kind] = codec
        return codec

    def codec(self, kind: type[Any]) -> Codec:
        """The codec of a message type, made at its first use."""
        found = self._codecs.get(kind)
        if found is None:
            found = self._codecs[kind] = codec_for(kind, kind.__name__, strict=self.strict)
        return found

    def codecs(self) -> list[Codec]:
        """The codecs of all message types known so far."""
        return list(self._codecs.values())

    def state_codec(self, kind: type[Any]) -> StateCodec:
        """The codec of a state type, made at its first use."""
        found = self._states.get(kind)
        if found is None:
            found = self._add_state(kind, StateCodec(codec_for(kind, kind.__name__)))
        return found

    def named_messages(self) -> set[type[Any]]:
        """The message types that `message` names."""
        return set(self._named)

    def named_states(self) -> dict[type[Any], StateCodec]:
        """The codecs of all state types known so far, whether a handler uses them or not."""
        return dict(self._states)

    def states(self) -> dict[str, StateCodec]:
        """The states that handlers use, by name."""
        every = [*self.handlers, *(route.handler for route in self.routes)]
        return {handler.state.name: handler.state for handler in every if handler.state is not None}

    def encode(self, message: Any) -> tuple[bytes, str]:
        """A message's body and wire type."""
        codec = self._codecs.get(type(message)) or self.codec(type(message))
        return codec.encode(message), codec.name

    def properties_of(self, message_type: type[Any]) -> dict[str, Scalar] | None:
        """The wire properties with the schema version of a message type."""
        return schema_properties(self.codec(message_type).version)

    def way(self, destination: str, message_type: type[Any], kind: str) -> Way:
        """The route of messages of a type to a destination.

        Raises:
            UnknownDestination: the destination was never declared.
        """
        self.destination(destination, kind)
        codec, spec = self.codec(message_type), self.queues.get(destination)
        is_ordered = spec is not None and spec.ordering == "per_key"
        way = Way(codec.encode, codec.name, is_ordered, self.properties_of(message_type))
        self.ways[destination, message_type] = way
        return way

    # Handlers

    def middleware(self, function: AnyMiddleware) -> AnyMiddleware:
        """Put code round each attempt of every handler and HTTP entry, those declared before included.

        A generator function with one `yield`, or a function that returns a context manager; it takes a `Call`.

        Raises:
            NotRegistrable: it is neither.
        """
        self.managers.append(as_manager(function))
        return function

    def middleware_of(self, handler: Handler) -> tuple[Manager, ...]:
        """The managers around the attempts of a handler, outermost first."""
        return (*self.managers, *handler.middleware)

    def handler(
        self,
        source: str,
        *,
        key: KeyOf | None = None,
        subscription: str | None = None,
        on_dead_letter: Literal["continue", "stop_key"] = "continue",
        name: str | None = None,
        key_name: str | None = None,
        time_limit_s: float | None = None,
        blocking: bool | None = None,
        middleware: Sequence[Middleware] = (),
        breaker: Breaker | None = None,
        rate: Rate | None = None,
    ) -> Callable[[Function], Function]:
        """Handle the messages of a queue, or of a topic's `subscription`.

        `key` is the field of the message, or a function of it, that names the state.  `on_dead_letter="stop_key"`
        blocks the key of a dead letter on a `per_key` queue.  `name` and `key_name` (default: the function's name, and
        the field's or the key function's) are part of message identity: keep them where code is only renamed, and
        change `key_name` where a key function returns other keys than before.  A handler that takes longer than
        `time_limit_s` seconds (default: the App's) has failed and is retried; nothing of it is committed.  `blocking`
        (default: the App's) runs a function that waits without `await` in a thread of the worker.  `middleware` is put
        round each attempt, within the App's.  A `breaker` spares what its attempts call and is down, a `rate` limits
        how many are made in a second; both reschedule messages, and count no attempt.

        Raises:
            NotRegistrable: the function does not fit; the text says what to change.
        """
        local_names = sys._getframe(1).f_locals

        def register(function: Function) -> Function:
            path = self._source(source, subscription)
            own_name = name or getattr(function, "__name__", "")
            if not own_name:
                raise NotRegistrable(f"{function!r} has no name; pass name=")
            binding = bind(function, local_names)
            limit_s = self._checked_time_limit_s(own_name, time_limit_s)
            in_thread = self._checked_blocking(own_name, binding, blocking)
            if any(handler.name == own_name and handler.source == path for handler in self.handlers):
                raise NotRegistrable(
                    f"handler {own_name!r} is registered twice on {path!r}; pass name= to tell them apart"
                )
            if on_dead_letter not in ("continue", "stop_key"):
                raise NotRegistrable(f"{own_name}: on_dead_letter is 'continue' or 'stop_key', not {on_dead_letter!r}")
            # The source is part of the identity: two handlers of one name must not deduplicate each other's messages.
            state = "" if binding.state is None else self.state_codec(binding.state).name
            prefix = inbox_prefix(self.name, f"{path}/{own_name}", state)
            handler = self._made(own_name, binding, path, key, on_dead_letter, key_name, prefix)
            handler = replace(handler, time_limit_s=limit_s, blocking=in_thread)
            self.handlers.append(_surrounded(handler, middleware, breaker, rate))
            return function

        return register

    def _source(self, source: str, subscription: str | None) -> str:
        if subscription is None:
            if source in self.topics:
                raise NotRegistrable(f"{source!r} is a topic; name the subscription to read it by")
            self.queues.setdefault(self._checked_name(source), QueueSpec(source))
            return source
        self.topic(source)
        if "/" in _checked_name(subscription):
            raise NotRegistrable(f"subscription {subscription!r} of {source!r} must not hold a '/'")
        if subscription not in self.topics[source]:
            self.topics[source].append(subscription)
        return f"{source}/Subscriptions/{subscription}"

    def http(
        self,
        method: str,
        path: str,
        *,
        key: KeyOf | None = None,
        caller: Caller | None = None,
        name: str | None = None,
        retries: Retries | None = None,
        time_limit_s: float | None = None,
        blocking: bool | None = None,
        middleware: Sequence[Middleware] = (),
        breaker: Breaker | None = None,
        rate: Rate | None = None,
    ) -> Callable[[Function], Function]:
        """Handle HTTP requests as messages: the body is the message, the `Idempotency-Key` header its identity.

        The return value is the response, stored with the commit.  GET only reads.  Each `{parameter}` of the path is a
        field of the message.  `caller` returns the caller of a request; no caller gets another's replies.  `name`
        (default: method and path) is part of the request's identity: keep it where only the path changes.  `retries`
        retries a failed handler at once, and records the last failure; without it no failure is recorded.  A handler
        that takes longer than `time_limit_s` seconds (default: the App's) has failed.  `blocking` (default: the App's)
        runs a function that waits without `await` in a thread.  `middleware`, `breaker` and `rate` are as for messages;
        a request that they hold back is answered 503, with the time to wait.

        Raises:
            NotRegistrable: the function does not fit; the text says what to change.
        """
        local_names = sys._getframe(1).f_locals

        def register(function: Function) -> Function:
            verb, template = method.upper(), parse_template(path)
            known_as = name or f"{verb} {path}"
            binding = bind(function, local_names)
            self._check_route(known_as, verb, template, binding)
            prefix = inbox_prefix(self.name, f"http {known_as}", "")  # no queue's name has a space
            own_name = getattr(function, "__name__", known_as)
            limit_s = self._checked_time_limit_s(own_name, time_limit_s)
            in_thread = self._checked_blocking(own_name, binding, blocking)
            handler = self._made(own_name, answering(binding), "http", key, "continue", None, prefix)
            handler = replace(handler, retries=retries or UNKEPT, time_limit_s=limit_s, blocking=in_thread)
            handler = _surrounded(handler, middleware, breaker, rate)
            self.routes.append(HttpRoute(known_as, verb, template, handler, caller))
            return function

        return register

    def _check_route(self, name: str, verb: str, template: Template, binding: Binding) -> None:
        if verb not in METHODS:
            raise NotRegistrable(f"{name}: a method is one of {', '.join(METHODS)}, not {verb!r}")
        for known in self.routes:
            if known.name == name or (known.method == verb and known.template.literals == template.literals):
                raise NotRegistrable(f"{name!r} is registered twice; give it another path or name=")
        if len(binding.messages) > 1:
            raise NotRegistrable(f"{name}: a body has no property that tells its type; take one type of message")
        missing = [field for field in template.names if field not in self.codec(binding.messages[0]).fields]
        if missing:
            raise NotRegistrable(f"{name}: {binding.messages[0].__name__} has no field {missing[0]!r} for the path's")

    def _made(
        self,
        name: str,
        binding: Binding,
        path: str,
        key: KeyOf | None,
        on_dead_letter: Literal["continue", "stop_key"],
        key_name: str | None,
        prefix: bytes,
    ) -> Handler:
        if binding.state is not None and key is None:
            raise NotRegistrable(f"{name} has a state but no key; pass key= to say which state a message belongs to")
        if key is not None and not isinstance(key, str) and not callable(key):
            raise NotRegistrable(f"{name}: key={key!r}; give a field's name or a function of the message")
        for codec in [self.codec(kind) for kind in binding.messages]:
            if isinstance(key, str) and key not in codec.fields and not hasattr(codec.type, key):
                raise NotRegistrable(f"{name}: {codec.type.__name__} has no field {key!r} to take the key from")
        if key is not None:
            check_key(name, binding.messages, key)
        state = None if binding.state is None else self._checked_state(name, binding.state)
        getter = attrgetter(key) if isinstance(key, str) else key
        known_as, kind = NO_KEY if key is None else key_name or name_of_key(key), key_kind(binding.messages, key)
        return Handler(name, path, binding, getter, state, on_dead_letter, prefix, known_as, kind)

    def _checked_blocking(self, name: str, binding: Binding, own: bool | None) -> bool:
        """Whether a handler runs in a thread: as declared, else by the application's default for plain functions."""
        if own and binding.is_async:
            raise NotRegistrable(
                f"{name} is async, so blocking=True would not help it; make it a plain function, or leave blocking out "
                "and await asyncio.to_thread(...) round what blocks"
            )
        return (self.blocking and not binding.is_async) if own is None else own

    def _checked_time_limit_s(self, name: str, own_s: float | None) -> float:
        """A handler's time limit: as declared, else the application's; at most half the margin."""
        most_s = self.margin.total_seconds() / 2
        if own_s is None:
            return min(self.time_limit_s, most_s)
        if not 0 < own_s <= most_s:
            raise NotRegistrable(
                f"{name}: time_limit_s={own_s:g} is not above 0 and at most {most_s:g}, half of App(margin=)"
            )
        return own_s

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
        """The session of a message to a destination: its reader's key, else the sender's; empty where unordered.

        Raises:
            ValueError: the destination is ordered by key and there is none.
        """
        spec = self.queues.get(destination)
        if spec is None or spec.ordering != "per_key":
            return ""
        for handler in self.handlers:
            if (
                handler.source == destination
                and handler.key is not None
                and isinstance(message, handler.binding.messages)
            ):
                return str(as_key(handler.key(message)))
        if key is None:
            kind = type(message).__name__
            raise ValueError(f"{destination!r} is ordered by key and no handler of it takes a {kind}; give its key too")
        return str(as_key(key))


def _surrounded(
    handler: Handler, middleware: Sequence[Middleware], breaker: Breaker | None, rate: Rate | None
) -> Handler:
    """A handler with what its own declaration puts round its attempts."""
    guards = tuple(guard for guard in (rate, breaker) if guard is not None)
    return replace(handler, guards=guards, middleware=tuple(map(as_manager, middleware)))


def _checked_upcasts(what: str, version: int, upcasts: Mapping[int, Upcast] | None) -> dict[int, Upcast]:
    lifted = dict(upcasts or {})
    if version < 1 or any(not 1 <= older < version for older in lifted):
        raise NotRegistrable(f"{what}: versions count from 1, and an upcast leads from one below {version} to the next")
    return lifted


def _checked_name(name: str) -> str:
    if "/subscriptions/" in name.lower():
        raise NotRegistrable(
            f"{name[:80]!r} is a subscription, declared by its handlers: handler(topic, subscription=)"
        )
    if not name or len(name) > 260 or any(c in name for c in "$?#\\ ") or name != name.strip("/"):
        raise NotRegistrable(
            f"{name[:80]!r} cannot be a queue or topic; use 1 to 260 characters without spaces or $ ? # \\"
        )
    return name
