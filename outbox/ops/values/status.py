"""How an application is: counts of its queues, signs of life, findings."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from outbox.guards import GuardView
from outbox.ops.values.requests import Change, Read
from outbox.ops.values.streams import Streams


class QueueStatus(msgspec.Struct, frozen=True):
    """The counts of a queue. `active` includes locked messages, `oldest_s` is the age of the oldest active one,
    `received` counts all messages ever sent to it, `standing` the keys blocked by a dead letter; one that is `paused`
    hands out nothing.
    """

    active: int
    scheduled: int
    deferred: int
    dead_letters: int
    oldest_s: float | None
    received: int = 0
    standing: int = 0
    paused: bool = False
    unhandled: bool | UnsetType = UNSET
    """True where the application of the host that is asked has no handler for it; else absent."""
    handled: Handled | UnsetType = UNSET
    """The outcomes of its messages since a host's start; only a host with workers has them."""
    retrying: int | UnsetType = UNSET
    """How many of the scheduled ones wait for their next try; absent where a bus counts both."""


class Handled(msgspec.Struct, frozen=True):
    """Outcomes of messages since a host's start: applied, duplicates of applied ones, refused by reason.

    `failed` are attempts that raised, whatever came of them, `rescheduled` those after which the message was
    rescheduled without a failure; `minute` are the messages that came to an end in the last minute.
    """

    applied: int
    duplicates: int
    failed: int
    rescheduled: int
    refused: dict[str, int]
    minute: int
    newer: int = 0
    """Of those rescheduled the ones whose schema, or whose state's, a newer build wrote."""
    newer_s: float | UnsetType = UNSET
    """How long ago the last of these was; absent without one."""


class Handling(msgspec.Struct, frozen=True):
    """The work of a host since its start; latencies from claim to durable commit, None before the first."""

    handled: int
    p50_ms: float | None
    p99_ms: float | None


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """All queues; `pending` counts transactions in progress: locked messages that are not settled yet.

    Only a host with workers reports `handling`; `streams` is there where an engine has ordered logs or registers.
    """

    queues: dict[str, QueueStatus]
    pending: int
    handling: Handling | None = None
    streams: Streams | None = None
    guards: list[GuardView] = []
    """The breakers and rate limits of a host's handlers."""
    ahead_s: float | None = None
    """By how much an engine's time is ahead of the wall clock, where that is more than a minute."""


class LargeState(msgspec.Struct, frozen=True):
    """A state that is large, by its id, and its size."""

    id: str
    size_bytes: int


class WorkerSign(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process's sign of life: its application, its queues, and when it started and was `seen` last.

    `newer` says of queues for how many seconds no message of a newer schema was put back.
    """

    app: str
    process: str
    queues: list[str]
    started: float
    seen: float
    newer: dict[str, float] = {}


class Signs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The health of an application, beside its counts.

    `large` are the largest states over 64 kB: on an engine of all, over a store of those in the caches of its workers.
    Only over a store and a bus: how many seconds the oldest messages of queues have waited (`oldest`), how many keys
    dead letters block, at most a thousand (`blocked`), which processes gave a sign of life, and the queues of
    registered handlers that none of these takes from (`unattended`).
    """

    large: list[LargeState] = []
    oldest: dict[str, float] = {}
    blocked: int = 0
    workers: list[WorkerSign] = []
    unattended: list[str] = []


Level = Literal["error", "warning", "ok"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding about a subject: the fault (or, at level `ok`, the good state), and the cure."""

    level: Level
    about: str
    what: str
    cure: str = ""


class Check(Read[None], frozen=True):
    """Raise the error that keeps it from answering, if any."""


class ReadStatus(Read[Status], frozen=True):
    """Count the messages of every queue."""


class ReadSigns(Read[Signs], frozen=True):
    """Tell how an application is, beside its counts: large states, signs of life and so on."""


class ReadMetrics(Read[str], frozen=True):
    """Read the metrics of a host with workers, in Prometheus' text format."""


class Compacted(msgspec.Struct, frozen=True):
    """A compaction: the last ordinal in the snapshot, and the log's size before and after."""

    ordinal: int
    before_bytes: int
    after_bytes: int


class Compact(Change[Compacted], frozen=True):
    """Snapshot the engine in the background and drop the log before it."""


class Seal(Change[int], frozen=True):
    """Make all that is acknowledged part of segments that are never written again; the last ordinal in them."""
