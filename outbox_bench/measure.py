"""W1, the workload that every system under test runs, and what one run of it yields.

W1: 20,000 messages over 1,000 keys.  Each handler loads a small state, adds to its counter and emits one message;
state, output and dedupe record commit atomically.  Inputs are durable and queued before the clock starts; latency
runs from the claim of a message to the durable commit of its effects.  Everyone decodes and encodes with msgspec.

A benchmark module names its `SYSTEM` and `VARIANTS` and has `run(variant, folder, message_count) -> Measurement`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

MESSAGE_COUNT = 20_000
KEY_COUNT = 1_000


class Add(msgspec.Struct):
    """The input."""

    id: str
    account: str
    amount: int


class Counter(msgspec.Struct):
    """The state; a new account has none yet."""

    total: int = 0
    changes: int = 0


class Added(msgspec.Struct):
    """The output."""

    id: str
    account: str
    total: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run: `durable` tells whether a commit survives power loss, `flushes_per_message` counts real syncs."""

    system: str
    variant: str
    in_flight: int
    durable: bool
    messages_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    flushes_per_message: float


class Benchmark(Protocol):
    """What a benchmark module looks like."""

    SYSTEM: str
    VARIANTS: tuple[str, ...]

    def run(self, variant: str, folder: Path, message_count: int) -> Measurement: ...


def inputs(message_count: int = MESSAGE_COUNT) -> list[Add]:
    """The same messages for everyone; neighbours in the queue have different keys."""
    return [Add(f"m{n:08d}", f"account-{n * 7919 % KEY_COUNT:04d}", 1 + n % 97) for n in range(message_count)]


def expected_total(message_count: int) -> int:
    return sum(message.amount for message in inputs(message_count))


class Stopwatch:
    """Wall clock and CPU of the process, all threads, from `start` to `stop`."""

    def __init__(self) -> None:
        gc.collect()
        self.wall_s = self.cpu_s = 0.0
        self._cpu_from_s = time.process_time()
        self._wall_from_s = time.perf_counter()

    def stop(self) -> None:
        self.wall_s = time.perf_counter() - self._wall_from_s
        self.cpu_s = time.process_time() - self._cpu_from_s


def measured(
    *,
    system: str,
    variant: str,
    in_flight: int,
    durable: bool,
    watch: Stopwatch,
    latencies_s: Sequence[float],
    flush_count: int,
) -> Measurement:
    """Put one run's figures together; `latencies_s` has one entry a message."""
    count = len(latencies_s)
    ordered = sorted(latencies_s)
    return Measurement(
        system=system,
        variant=variant,
        in_flight=in_flight,
        durable=durable,
        messages_per_s=count / watch.wall_s,
        p50_ms=ordered[count // 2] * 1e3,
        p99_ms=ordered[min(count - 1, count * 99 // 100)] * 1e3,
        cpu_us=watch.cpu_s / count * 1e6,
        flushes_per_message=flush_count / count,
    )
