"""The engine's limits, stated in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of an engine, beyond which it refuses.

    `message_bytes_max` is one message with its properties, `memory_bytes_max` an estimate of all that is held
    (messages with what they came in, documents, markers): beyond it sends are refused, because retention that does
    not fit must not be admitted.  `segment_bytes_max` is the size at which the log rotates.
    """

    message_bytes_max: int = 1 << 20
    memory_bytes_max: int = 4 << 30
    segment_bytes_max: int = 64 << 20
    reason_length_max: int = 4_096
    clock_ahead_max_s: float = 7 * 86_400.0
