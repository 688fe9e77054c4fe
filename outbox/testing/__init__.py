"""What applications test with: a harness of the real engine, in virtual time, with faults on demand."""

from outbox.testing.clock import START_S, VirtualClock
from outbox.testing.harness import Harness, SentRecord

__all__ = ["Harness", "SentRecord", "START_S", "VirtualClock"]
