"""How full a key's partition gets: records stay for retention, and a store takes so many bytes a partition.

A key that gets `rate` records a second of `size` bytes holds rate x size x retention of them in the long run (33 a
second of 1 KB are 20 GB after seven days), and a partition that is full takes nothing more.  So what is written for
each key is metered, as a sum that halves every ten minutes or so, and whoever heads for the limit is told in time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from math import exp

import msgspec

from outbox.runtime.start.plan import Plan
from outbox.stored import Record, encode

log = logging.getLogger("outbox.fullness")

WINDOW_S = 900.0
"""What was written this long ago counts a third."""

TOLD_SHARE = 0.8
"""From which share of the limit on a key is told, if it goes on as it does."""

TELL_EVERY_S = 3_600.0
KEY_COUNT_MAX = 10_000
"""How many keys are metered, those written to last; one that writes enough to matter is among them."""

DOCUMENT_BYTES = 400
"""What a document takes beside its body: its ids, and what the store itself keeps with it."""


class Meter(msgspec.Struct):
    """What was written for a key: bytes, fading with time."""

    bytes_faded: float
    at_ms: int
    told_ms: int = 0

    def fade(self, now_ms: int) -> float:
        """Bring the sum up to date."""
        self.bytes_faded *= exp(min(0, self.at_ms - now_ms) / (1_000 * WINDOW_S))
        self.at_ms = now_ms
        return self.bytes_faded


class PartitionSizes:
    """How full the partitions of one store get; nothing is kept where the store declares no limit (0)."""

    def __init__(self, plan: Plan, bytes_max: int, *, now_ms: Callable[[], int]) -> None:
        self._plan = plan
        self._bytes_max = bytes_max
        self._now_ms = now_ms
        self._meters: OrderedDict[str, Meter] = OrderedDict()

    def note(self, state_id: str | None, record: Record) -> None:
        """Count a record that was written for a key, as small as it is when it is marked."""
        if not self._bytes_max or state_id is None:
            return
        now_ms = self._now_ms()
        meter = self._meters.get(state_id)
        if meter is None:
            meter = self._meters[state_id] = Meter(0.0, now_ms)
            if len(self._meters) > KEY_COUNT_MAX:
                self._meters.popitem(last=False)
        self._meters.move_to_end(state_id)
        meter.fade(now_ms)
        meter.bytes_faded += len(encode(record.marked())) + DOCUMENT_BYTES
        share = self._share(meter)
        if share >= TOLD_SHARE and (not meter.told_ms or now_ms - meter.told_ms >= TELL_EVERY_S * 1_000):
            meter.told_ms = now_ms
            fields = {"state": state_id, "share": round(share, 2), "bytes_per_s": round(meter.bytes_faded / WINDOW_S)}
            log.warning("partition will be full; shorten retention, or spread the key over several", extra=fields)

    def fullest(self) -> tuple[str, float]:
        """The key that heads for the largest share of its partition's limit, and that share (0: none)."""
        now_ms = self._now_ms()
        for meter in self._meters.values():
            meter.fade(now_ms)
        found = max(self._meters, key=lambda key: self._meters[key].bytes_faded, default="")
        return (found, self._share(self._meters[found])) if found else ("", 0.0)

    def _share(self, meter: Meter) -> float:
        """The share of the limit that a key's records take in the long run, if it goes on as it does."""
        return meter.bytes_faded / WINDOW_S * (self._plan.record_life_ms / 1_000) / self._bytes_max
