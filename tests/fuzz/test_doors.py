"""Servers under hostile clients: others are answered as before, nothing is held, and the log stays short."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.attacks import ATTACKS, beside
from tests.fuzz.doors import DOORS

ANSWER_S_MAX = 2.0
"""How long another client may wait; the machine is shared, and the attack runs in the same process."""
HELD_BYTES_MAX = 16 << 20
LINE_COUNT_MAX = 40
LEFT_TASKS_MAX = 3


class Lines(logging.Handler):
    """Keeps what the package logs, from `INFO` on."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @contextmanager
    def kept(self) -> Iterator[list[logging.LogRecord]]:
        log = logging.getLogger("outbox")
        level = log.level
        log.addHandler(self)
        log.setLevel(logging.INFO)
        try:
            yield self.records
        finally:
            log.setLevel(level)
            log.removeHandler(self)


async def attacked(door_name: str, attack_name: str, folder: Path, *, seed: int, times: int = 1) -> None:
    attack, count = ATTACKS[attack_name]
    with Lines().kept() as lines:
        async with DOORS[door_name](folder) as door:
            chance = random.Random(f"{seed} {door_name} {attack_name}")
            await beside(door, attack(door, chance, 2))  # what is made once is there
            task_count = len(asyncio.all_tasks())
            tracemalloc.start()
            try:
                longest_s = await beside(door, attack(door, chance, count * times))
                async with asyncio.timeout(10):
                    while len(asyncio.all_tasks()) > task_count + LEFT_TASKS_MAX:  # noqa: ASYNC110  # no event says so
                        await asyncio.sleep(0.05)
                gc.collect()
                held_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert not [record for record in lines if record.levelno >= logging.ERROR], [
        record.getMessage() for record in lines
    ]
    assert len(lines) <= LINE_COUNT_MAX * times, [record.getMessage() for record in lines[:50]]
    assert longest_s < ANSWER_S_MAX and held_bytes < HELD_BYTES_MAX, (longest_s, held_bytes)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("door", DOORS)
async def test_a_hostile_client_harms_no_other(door: str, attack: str, disk_path: Path) -> None:
    await attacked(door, attack, disk_path, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("door", DOORS)
async def test_a_hostile_client_harms_no_other_for_long(door: str, attack: str, seed: int, disk_path: Path) -> None:
    await attacked(door, attack, disk_path, seed=seed, times=40)
