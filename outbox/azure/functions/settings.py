"""The settings of a Functions app: how to reach its backend, and the limits of its host that matter here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from outbox.ports import Backend, StorePorts
from outbox.runtime.commit.handler_threads import THREAD_COUNT
from outbox.runtime.commit.sweeper import GRACE_S
from outbox.runtime.counts import Counts


class Telemetry(Protocol):
    """The tracer of a process: `outbox.otel.Telemetry`, which needs OpenTelemetry, where this does not."""

    counts: Counts

    def traced_ports(self, ports: StorePorts) -> StorePorts:
        """The same ports, traced."""


@dataclass(frozen=True, slots=True)
class FunctionsSettings:
    """Settings of one application under a Functions host.

    `connect` makes the backend; it is called once for each event loop that handles anything, and may raise: then each
    invocation fails and says why.  `servicebus` is the *name* of the app setting (or the prefix of settings) that the
    host's triggers read.  `attempt_s` is how long an invocation waits for its message: it must be below the host's
    functionTimeout, which kills the process and every other invocation in it.  `rest_s` is the longest that a message
    waits in an invocation before it is abandoned: the host abandons it at once, and it would be redelivered at once.
    A message whose key is blocked behind a dead letter waits for both together, with each delivery.  No handler may
    take longer than nine tenths of `attempt_s`, whatever limit it declares.  `threads` is how many blocking handlers
    may run at a time in one process.
    """

    connect: Callable[[], Backend] = field(repr=False)
    servicebus: str = "OUTBOX_SERVICEBUS"
    sweep_schedule: str = "30 * * * * *"
    """When the timer sweeps: second 30 of every minute."""
    sweep_grace_s: float = GRACE_S
    """The age of a pending record at which the timer sweeps it: younger ones, their own process may still push."""
    processors_schedule: str = "0 * * * * *"
    """When the timer runs processors: at the beginning of every minute."""
    processors_s: float = 50.0
    """How long at most it begins further steps; below the schedule's interval, or runs overlap, which is safe."""
    attempt_s: float = 150.0
    rest_s: float = 60.0
    lock_s: float = 300.0
    """How long the host renews a lock (maxAutoLockRenewalDuration)."""
    has_blobs: bool | None = None
    """Whether `connect` names a blob store: a handler that needs one fails at the start; None: at the first message."""
    threads: int = THREAD_COUNT
    telemetry: Telemetry | None = None
    """An `outbox.otel.Telemetry` of the application, whose spans and counts are then this process'."""

    @property
    def time_limit_s_max(self) -> float:
        """How long a handler may take, so that its invocation is there to see how it ended."""
        return 0.9 * self.attempt_s

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads={self.threads}: a blocking handler needs at least one")
        if self.processors_s <= 0:
            raise ValueError(f"processors_s={self.processors_s:g}: a processor needs some time for a step")
        if not 0 < self.attempt_s + self.rest_s < self.lock_s:
            raise ValueError(
                f"attempt_s={self.attempt_s:g} and rest_s={self.rest_s:g} together must be above 0 and below "
                f"lock_s={self.lock_s:g}: the host renews a lock no longer than that"
            )
