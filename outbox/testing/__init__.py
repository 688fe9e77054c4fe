"""A harness for tests of an application: the real engine, in virtual time, with faults on demand."""

from outbox.testing.clock import START_S, VirtualClock
from outbox.testing.harness import Harness, SentRecord

__all__ = ["Harness", "SentRecord", "START_S", "VirtualClock"]
