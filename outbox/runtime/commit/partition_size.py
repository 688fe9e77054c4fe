"""Warn before a key's partition is full: records stay for retention, and a store limits the bytes of a partition.

A key with `rate` records a second of `size` bytes holds rate x size x retention of them in the long run (33 a second of
1 KB are 20 GB after seven days), and a full partition takes no more writes.  So the bytes written for each key are
summed, with a half-life of about ten minutes, and a key that heads for the limit is logged in time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from math import exp

import msgspec

from outbox.runtime.start.plan import CompiledApp
from outbox.stored import Record, encode

log = logging.getLogger("outbox.fullness")

WINDOW_S = 900.0
"""A write of this age counts a third."""

LOG_SHARE = 0.8
"""From which share of the limit on a key is logged, at its present rate."""

LOG_EVERY_S = 3_600.0
KEY_COUNT_MAX = 10_000
"""How many keys are metered, those written to last; a key that heads for the limit is among them."""

DOCUMENT_BYTES = 400
"""The bytes of a document beside its body: its ids, and the store's own fields."""


KEY_CURE = "shorten retention, or spread the key over several"


class Meter(msgspec.Struct):
    """The bytes written for a key, fading with time."""

    bytes_faded: float
    at_ms: int
    logged_ms: int = 0

    def fade(self, now_ms: int) -> float:
        """Fade the sum to now, and return it."""
        self.bytes_faded *= exp(min(0, self.at_ms - now_ms) / (1_000 * WINDOW_S))
        self.at_ms = now_ms
        return self.bytes_faded


class PartitionSizes:
    """The partition sizes of one store; nothing is metered where the store declares no limit (0)."""

    def __init__(self, plan: CompiledApp, bytes_max: int, *, now_ms: Callable[[], int], cure: str = KEY_CURE) -> None:
        self._plan = plan
        self._cure = cure
        self._bytes_max = bytes_max
        self._now_ms = now_ms
        self._meters: OrderedDict[str, Meter] = OrderedDict()
        if bytes_max:
            plan.counts.fillings.add(self)

    def note(self, state_id: str | None, record: Record) -> None:
        """Count a record written for a key, at its size once marked."""
        if self._bytes_max and state_id is not None:
            self.add(state_id, len(encode(record.marked())))

    def add(self, state_id: str, body_bytes: int) -> None:
        """Count a record with so large a body."""
        if not self._bytes_max:
            return
        now_ms = self._now_ms()
        meter = self._meters.get(state_id)
        if meter is None:
            meter = self._meters[state_id] = Meter(0.0, now_ms)
            if len(self._meters) > KEY_COUNT_MAX:
                self._meters.popitem(last=False)
        self._meters.move_to_end(state_id)
        meter.fade(now_ms)
        meter.bytes_faded += body_bytes + DOCUMENT_BYTES
        share = self._share(meter)
        if share >= LOG_SHARE and (not meter.logged_ms or now_ms - meter.logged_ms >= LOG_EVERY_S * 1_000):
            meter.logged_ms = now_ms
            fields = {"state": state_id, "share": round(share, 2), "bytes_per_s": round(meter.bytes_faded / WINDOW_S)}
            log.warning(f"partition will be full; {self._cure}", extra=fields)

    def fullest(self) -> tuple[str, float]:
        """The key that heads for the largest share of the limit, and that share (0: none)."""
        now_ms = self._now_ms()
        for meter in self._meters.values():
            meter.fade(now_ms)
        found = max(self._meters, key=lambda key: self._meters[key].bytes_faded, default="")
        return (found, self._share(self._meters[found])) if found else ("", 0.0)

    def share(self, state_id: str) -> float:
        """The share of the limit that a key heads for; 0 without recent writes or without a limit."""
        meter = self._meters.get(state_id)
        if meter is None:
            return 0.0
        meter.fade(self._now_ms())
        return self._share(meter)

    def _share(self, meter: Meter) -> float:
        """The share of the limit that a key's records take in the long run, at its present rate."""
        return meter.bytes_faded / WINDOW_S * (self._plan.record_life_ms / 1_000) / self._bytes_max
