"""Worker processes: killed, stopped, and too often."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.errors import OutboxError
from outbox.streams import Position
from outbox.streams.pipeline import workers
from outbox.streams.pipeline.workers import WorkerLost, Workers
from tests.unit.streams.pipeline.counting import Count, Counting, expected

COUNTING = "tests.unit.streams.pipeline.counting:Counting"


def send(found: Workers, number: signal.Signals) -> None:
    os.kill(found.links[0].process.pid, number)


async def test_a_worker_is_killed_and_another_stopped_and_all_comes_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the cat", "sat on", "the mat", "the end"]
    async with Engine.open(tmp_path) as engine, asyncio.timeout(60):
        made = Counting(engine)
        with pytest.raises(WorkerLost, match="worker 0: "):
            async with made.pipeline.run(engine, checkpoint_s=0.05, workers=2, imported=COUNTING) as running:
                found = running.loops[0].workers
                assert found is not None
                found.stalled_s = 2.0
                for number, text in enumerate(texts, 1):
                    await made.write(text)
                    await running.until(Position(number))
                    if number < 3:
                        send(found, (signal.SIGKILL, signal.SIGSTOP)[number - 1])
                assert await running.get(made.pipeline.plan().operators[1], "the") == (Count(3), Position(4))
                processes = [found.links[number].process for number in (0, 1, workers.SPARE)]
                monkeypatch.setattr(workers, "RESTARTS_MAX", -5)
                send(found, signal.SIGKILL)
                await running.until(Position(5))
        assert found is not None and not found.links
        assert all(process.returncode is not None for process in processes), "the spare one as well"
        assert await made.released() == expected(texts)


async def test_what_workers_cannot_import_is_said() -> None:
    made = Counting(Engine.in_memory())
    with pytest.raises(OutboxError, match=r"imported=.*No module named.*module:attribute"):
        async with made.pipeline.run(made.engine, workers=1, imported="tests.unit.nothing:index") as running:
            await running.until(Position(1))
