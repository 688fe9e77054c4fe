"""The clock that an engine takes where none is given."""

from __future__ import annotations

import time

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.disk import MemoryDisk
from outbox.message import Message
from outbox.testing import START_S, VirtualClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system's clocks do not tell of a suspension")
def test_a_message_falls_due_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.in_memory()
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"m")], due_ms=engine.now_ms() + 3_600_000)
    engine.tick()
    assert engine.broker.claim("q", 1) == []
    real, slept_s = time.clock_gettime, {time.CLOCK_BOOTTIME: 3_600.0}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + slept_s.get(clock, 0.0))
    engine.tick()
    assert len(engine.broker.claim("q", 1)) == 1
    engine.close()


def test_the_steady_clock_does_not_run_backwards() -> None:
    engine = Engine.in_memory()
    readings = [engine.now_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
    engine.close()


def test_time_goes_on_from_the_log_when_the_wall_clock_was_set_back() -> None:
    disk, clock = MemoryDisk("back"), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock)
    engine.declare(QueueSettings("q"))
    clock.seconds += 3_600
    engine.broker.send("q", [Message(body=b"m")])
    logged_ms = engine.now_ms()
    engine.close()
    again = Engine.open(disk, clock=VirtualClock(START_S))
    assert again.now_ms() == logged_ms
