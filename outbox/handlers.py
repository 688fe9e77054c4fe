"""What an application has registered: queues, handlers of their messages, and HTTP entries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from outbox.binding import Binding
from outbox.codec import StateCodec
from outbox.http import Request
from outbox.http_paths import READS, Template
from outbox.retries import Retries

Ordering = Literal["unordered", "per_key"]
Caller = Callable[[Request], str | Awaitable[str]]

NO_KEY = "-"
"""The key name of a handler without a key."""


UNKEPT = Retries(limit=1 << 31, delays_s=())
"""The retries of an HTTP entry that declares none: no failure is the last, so none is kept; the caller tries again."""


TIME_LIMIT_S = 120.0
"""How long a handler may take, in seconds: below the 150 s that an invocation of a Functions host waits for it."""


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
    key_name: str = NO_KEY
    """What the key is called where handlers are registered: with another one, the same message has another identity."""
    key_kind: str = ""
    """What the key is, as far as its type tells: `text`, `int` or `uuid`."""
    retries: Retries | None = None
    """How its failures are repeated, where not as the application says."""
    time_limit_s: float = TIME_LIMIT_S
    """How long one handling may take, in seconds; beyond it the attempt has failed."""
    blocking: bool = False
    """Whether it runs in a thread, where its host has threads."""


def over_limit_text(name: str, limit_s: float, what: str = "its time limit (time_limit_s=)") -> str:
    """What is said of a handling that took too long."""
    return f"handler {name} had not ended after {limit_s:g} s, {what}; nothing of it is committed"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A registered HTTP entry: what it is known by, where it is served, who handles it and who calls."""

    name: str
    method: str
    template: Template
    handler: Handler
    caller: Caller | None

    @property
    def is_read(self) -> bool:
        """Whether it reads only, and so needs no idempotency key."""
        return self.method in READS
