"""What a process remembers of ids is bounded for all of its rows together, in number and in bytes."""

from __future__ import annotations

import tracemalloc

import pytest

from outbox.engine.engine import Engine
from outbox.streams import Position, row
from outbox.streams.row import Recent
from tests.unit.streams.making import made, values


def test_the_newest_half_is_remembered_and_what_is_older_is_not() -> None:
    recent = Recent[int](count_max=10)
    for n in range(100):
        recent.put(n % 2, f"id-{n}", n)
        assert len(recent) <= 10
        assert [recent.get(k % 2, f"id-{k}") for k in range(max(0, n - 4), n + 1)] == [*range(max(0, n - 4), n + 1)]
    assert recent.get(0, "id-0") is None and recent.get(1, "id-98") is None
    recent.pop(1, "id-99")
    assert recent.get(1, "id-99") is None and "id-98" in recent.of(0)


def test_long_ids_are_fewer_so_that_all_take_no_more_than_so_many_bytes() -> None:
    bytes_max = 4 << 20
    tracemalloc.start()
    try:
        recent = Recent[int](count_max=1 << 30, bytes_max=bytes_max)
        for n in range(40_000):
            recent.put(n % 100, f"{n:01000}" if n % 2 else f"{n}", n)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(recent) > 1_000 and size_bytes < bytes_max


async def test_rows_share_what_they_may_remember(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Recent[int](count_max=200)
    monkeypatch.setattr(row, "_passed", passed)
    logs = [made(f"log-{n}", engine, int) for n in range(50)]
    for n in range(20):
        for log in logs:
            at = await log.append(n, id=f"{n}")
            assert await log.append(n, id=f"{n}") == at == Position(n), "the newest are known"
    assert len(passed) <= 200
    assert all([len(await values(log)) == 20 for log in logs])
