"""An application made ready to run: where each message goes, decided once, when a worker starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as with_default
from typing import Any

import msgspec

from outbox.app import App, Handler
from outbox.errors import NotRegistrable
from outbox.guards import Breaker, Guard, Rate
from outbox.lineage import field, state_id
from outbox.middleware import Manager, surrounded
from outbox.ports import SUBSCRIPTIONS
from outbox.retries import Retries
from outbox.runtime.commit.handler_threads import HandlerThreads, hosted
from outbox.runtime.counts import Counts
from outbox.runtime.start.notes import RetentionWindow

FindGuard = Callable[[Breaker | Rate], Guard]

KEY_COUNT_MAX = 1 << 16
"""How many keys a handler's cache holds; a full one is cleared."""

KEY_LENGTH_MAX = 200
"""The longest cached key."""


class KeyIds(msgspec.Struct, frozen=True, gc=False):
    """The state id of one key, and the prefix of its messages' inbox keys before hashing."""

    state_id: str | None
    prefix: bytes


class KeyIdCache(dict[str, KeyIds]):
    """The ids of one handler's keys; keys that are texts only, because `1 == True`."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def make(self, key: str) -> KeyIds:
        """Make the ids of a new key; not `__missing__`, because a dict with that is slower at every key.

        Raises:
            KeyError: the key is empty, or too long to be cached.
        """
        if not 0 < len(key) <= KEY_LENGTH_MAX:
            raise KeyError(key)
        if len(self) >= KEY_COUNT_MAX:
            self.clear()
        handler = self._handler
        id = None if handler.state is None else state_id(handler.state.name, key)
        ids = self[key] = KeyIds(id, handler.prefix + field(key))
        return ids


@dataclass(frozen=True, slots=True)
class Route:
    """How one wire type of one source is decoded, and its handlers.

    `decode` takes a body of the schema `version`, `read` one of any schema up to it.  `key` and `key_ids` belong to the
    one handler of the route; without a key, or with several handlers, the route has neither.
    """

    wire_type: str
    decode: Callable[[bytes], Any]
    handlers: tuple[Handler, ...]
    key: Callable[[Any], Any] | None
    key_ids: KeyIdCache
    version: int
    read: Callable[[bytes, int], Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A queue or subscription that the application reads."""

    path: str
    routes: dict[str, Route]
    only: Route | None
    """The route of a message without a type, where there is one type only."""
    ordered: bool
    takes_sequence_number: bool
    blocks_keys: bool = False
    """Whether a dead letter of one of its handlers blocks the key, for all of them."""


@dataclass(frozen=True, slots=True)
class CompiledApp:
    """An application's sources and its limits in milliseconds and bytes."""

    app: App
    sources: dict[str, Source]
    retention: RetentionWindow
    own_attempt_ms_max: int
    clock_skew_ms: int
    claim_check_bytes: int
    retries: Retries
    least_limit_ms: int = 0
    """The shortest time limit of its handlers."""
    threads: HandlerThreads | None = None
    """Where blocking handlers run; without it they run inline, as in a harness."""
    time_limit_s_max: float = math.inf
    """How long the host lets any handler run."""
    counts: Counts = with_default(default_factory=Counts)
    """The counts of the messages handled with this plan."""
    find_guard: FindGuard | None = None
    """The breaker or rate limit of a declaration; None: none is at work."""

    @property
    def retention_ms(self) -> int:
        """The age at which a message does not run any more."""
        return self.retention.retention_ms

    @property
    def attempt_ms_max(self) -> int:
        """How long an attempt may take: shorter than any record that forbids it outlives retention."""
        return min(self.own_attempt_ms_max, self.retention.attempt_ms_max)

    def limit_ms(self, handler: Handler) -> int:
        """How long one handling may take."""
        return min(round(handler.time_limit_s * 1_000), self.attempt_ms_max)

    def hosted(self, handler: Handler) -> Handler:
        """Wrap a handler ready to run: its host's time limit, a thread if it blocks, guards, middleware."""
        return _ready(self.app, handler, self.threads, self.time_limit_s_max, self.find_guard)

    @property
    def threaded(self) -> set[str]:
        """The handlers that run in threads, by name."""
        return {handler.name for handler in self.app.handlers if handler.blocking and self.threads is not None}

    @property
    def record_life_ms(self) -> int:
        return self.retention.record_life_ms

    def life_s(self, at_least_ms: int) -> float:
        """The time to live of a record made for `at_least_ms`, by this application or by another."""
        return max(at_least_ms, self.record_life_ms) / 1_000

    @property
    def paths(self) -> list[str]:
        """The queues and subscriptions to read."""
        return list(self.sources)


def compile_app(
    app: App,
    *,
    threads: HandlerThreads | None = None,
    time_limit_s_max: float = math.inf,
    counts: Counts | None = None,
    find_guard: FindGuard | None = None,
) -> CompiledApp:
    """Make an application ready to run: every handler within its host's time limit, blocking ones in `threads`.

    Without threads blocking handlers run inline.  What becomes of messages is counted in `counts`, where the guards of
    handlers and calls have their state; without, nothing is guarded.  An exploration decides by its own `find_guard`.

    Raises:
        NotRegistrable: two breakers or two rates of one name differ.
    """
    if counts is not None and find_guard is None:
        find_guard = counts.guard
    handlers = [_ready(app, handler, threads, time_limit_s_max, find_guard) for handler in app.handlers]
    retention_ms = round(app.retention.total_seconds() * 1_000)
    margin_ms = round(app.margin.total_seconds() * 1_000)
    paths = dict.fromkeys(handler.source for handler in app.handlers)
    return CompiledApp(
        app,
        {path: _source(app, path, handlers) for path in paths},
        RetentionWindow(retention_ms, retention_ms + margin_ms),
        margin_ms // 2,
        round(app.clock_skew.total_seconds() * 1_000),
        app.claim_check_bytes,
        app.retry,
        min([round(handler.time_limit_s * 1_000) for handler in handlers], default=margin_ms // 2),
        threads,
        time_limit_s_max,
        Counts() if counts is None else counts,
        find_guard,
    )


def _ready(
    app: App, handler: Handler, threads: HandlerThreads | None, limit_s_max: float, find_guard: FindGuard | None
) -> Handler:
    """A handler with all that is round its attempts, outermost first: its guards, then middleware."""
    guards = [] if find_guard is None else [find_guard(declared) for declared in handler.guards]
    around = [*map(_guarding, guards), *app.middleware_of(handler)]
    return replace(surrounded(hosted(handler, threads, limit_s_max), around), find_guard=find_guard)


def _guarding(guard: Guard) -> Manager:
    return lambda call: guard.around(call.context)


def _source(app: App, path: str, hosted_handlers: Sequence[Handler]) -> Source:
    by_type: dict[str, Route] = {}
    spec = app.queues.get(path)
    ordered = spec is not None and spec.ordering == "per_key"
    for handler in hosted_handlers:
        if handler.source != path:
            continue
        if handler.on_dead_letter == "stop_key" and not ordered:
            cure = f'declare app.queue({path!r}, "per_key")'
            if SUBSCRIPTIONS in path:
                cure = "a subscription has none: send the message on to a queue that is per_key, and stop there"
            raise NotRegistrable(f"{handler.name}: stop_key needs an order; {cure}")
        for kind in handler.binding.messages:
            codec = app.codec(kind)
            known = by_type.get(codec.name)
            if known is not None and known.decode != codec.decode:
                raise NotRegistrable(f"two types on {path!r} are called {codec.name!r}; name one with @app.message")
            handlers = (*(known.handlers if known else ()), handler)
            key = handler.key if len(handlers) == 1 else None
            by_type[codec.name] = Route(
                codec.name, codec.decode, handlers, key, KeyIdCache(handler), codec.version, codec.read
            )
    only = next(iter(by_type.values())) if len(by_type) == 1 else None
    return Source(
        path,
        by_type,
        only,
        ordered=ordered,
        takes_sequence_number=spec is not None and spec.identity == "sequence-number",
        blocks_keys=any(handler.source == path and handler.on_dead_letter == "stop_key" for handler in app.handlers),
    )
