"""The registered queues, handlers and HTTP entries of an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from outbox.codec import StateCodec
from outbox.http import Request
from outbox.registration.binding import Binding
from outbox.registration.routes import READS, Template
from outbox.retries import Retries

Ordering = Literal["unordered", "per_key"]
Caller = Callable[[Request], str | Awaitable[str]]

NO_KEY = "-"
"""The key name of a handler without a key."""


UNKEPT = Retries(limit=1 << 31, delays_s=())
"""The retries of an HTTP entry without `retries=`: no failure is the last, so none is recorded; the caller retries."""


TIME_LIMIT_S = 120.0
"""A handler's default time limit, in seconds: below the 150 s of an invocation of a Functions host."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A declared queue; `identity` is the policy for messages without an id."""

    name: str
    ordering: Ordering = "unordered"
    identity: Literal["required", "sequence-number"] = "required"
    read_elsewhere: bool = False
    """Whether another receiver takes its messages, so that it is no mistake that no handler here does."""


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
    key_name: str = NO_KEY
    """The registered name of the key, which is part of message identity."""
    key_kind: str = ""
    """The type of the key: `text`, `int` or `uuid`; empty if unknown."""
    retries: Retries | None = None
    """Its own retries; None: the application's."""
    time_limit_s: float = TIME_LIMIT_S
    """The time limit of one attempt, in seconds; beyond it the attempt has failed."""
    blocking: bool = False
    """Whether it runs in a thread, where its host has threads."""
    guards: tuple[Any, ...] = ()
    """Its breaker and its rate limit, as declared."""
    find_guard: Callable[[Any], Any] | None = None
    """The guard of a declaration in this process, for its calls; None: they are not guarded."""
    middleware: tuple[Any, ...] = ()
    """The middleware of its own declaration, as functions that return a context manager."""


def over_limit_text(name: str, limit_s: float, what: str = "its time limit (time_limit_s=)") -> str:
    """The error text of a handler past its time limit."""
    return f"handler {name} had not ended after {limit_s:g} s, {what}; nothing of it is committed"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A registered HTTP entry: name, method, path, handler, and the function that returns the caller."""

    name: str
    method: str
    template: Template
    handler: Handler
    caller: Caller | None

    @property
    def is_read(self) -> bool:
        """Whether it only reads, and needs no idempotency key."""
        return self.method in READS
