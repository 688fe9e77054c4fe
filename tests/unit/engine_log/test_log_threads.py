"""The threads of a host at one log: a failure of one leaves it free for the others, and an end waits for its call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.wal import Log
from outbox.errors import EngineStopped

WITHIN_S = 10


def opened(disk: MemoryDisk) -> Log:
    log = Log.open(disk, log_id=b"0123456789abcdef", clock_ms=lambda: 7)
    log.append(9, b"one")
    return log


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_a_log_that_a_failure_has_stopped_is_closed_by_another_thread(verb: str) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    disk.fail(verb)
    with pytest.raises(EngineStopped, match="injected"):
        log.write()
        log.sync()
    closing = in_thread(log.close)
    closing.join(WITHIN_S)
    assert not closing.is_alive()
    opened(disk)


def test_an_abandoned_log_writes_nothing_more_once_that_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.write()
    begun, may_end = threading.Event(), threading.Event()
    called = disk.on_call

    def slow(verb: str) -> object:
        begun.set()
        assert may_end.wait(WITHIN_S)
        return called(verb)

    monkeypatch.setattr(disk, "on_call", slow)
    in_thread(log.sync)
    assert begun.wait(WITHIN_S)
    abandoning = in_thread(lambda: log.abandon("for a reason of its own"))
    abandoning.join(0.05)
    assert abandoning.is_alive()
    may_end.set()
    abandoning.join(WITHIN_S)
    count = len(disk.calls)
    with pytest.raises(EngineStopped, match="for a reason of its own"):
        log.write()
    assert len(disk.calls) == count
