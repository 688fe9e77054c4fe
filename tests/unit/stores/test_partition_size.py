"""What a key's records take of its partition is metered, and told before it is full."""

from __future__ import annotations

import dataclasses
import logging
import math
from datetime import timedelta

import pytest

from outbox import Worker
from outbox.metrics import METRICS
from outbox.runtime.commit.partition_size import KEY_COUNT_MAX, LOG_EVERY_S, WINDOW_S, PartitionSizes
from outbox.runtime.start.plan import compile_app
from outbox.stored import Record
from outbox.testing import START_S, VirtualClock
from tests.unit.stores.store_site import Add, adding, site

DAY_S = 86_400
RECORD = Record("t" * 32, b"f" * 32, 1_767_225_600_000)


def metered(gigabytes: float, clock: VirtualClock) -> PartitionSizes:
    return PartitionSizes(compile_app(adding()), round(gigabytes * (1 << 30)), now_ms=clock.wall_ms)


def run(fullness: PartitionSizes, clock: VirtualClock, *, rate: float, for_s: float, key: str = "Sum:a") -> None:
    for _ in range(round(rate * for_s)):
        clock.seconds += 1 / rate
        fullness.note(key, RECORD)


def test_a_key_that_goes_on_as_it_does_takes_its_rate_times_the_retention() -> None:
    clock = VirtualClock(START_S)
    fullness = metered(20, clock)
    run(fullness, clock, rate=20, for_s=5 * WINDOW_S)
    size_bytes = fullness._meters["Sum:a"].bytes_faded / WINDOW_S / 20
    assert 500 < size_bytes < 700  # a record of a message that emitted nothing, and what the store keeps with it
    key, share = fullness.fullest()
    assert key == "Sum:a" and share == pytest.approx(20 * size_bytes * (7 * DAY_S + 3_600) / (20 << 30))
    clock.seconds += WINDOW_S
    assert fullness.share("Sum:a") == pytest.approx(share / math.e)


def test_neither_a_record_without_a_state_nor_a_store_without_a_limit_is_metered() -> None:
    clock = VirtualClock(START_S)
    for fullness in (metered(20, clock), metered(0, clock)):
        fullness.note(None, RECORD)
        assert fullness.fullest() == ("", 0.0) and not fullness._meters
    metered(0, clock).add("Sum:a", 1_000)


def test_the_fullest_key_of_all_workers_of_a_process_is_a_metric_after_a_sweep() -> None:
    clock, plan = VirtualClock(START_S), compile_app(adding())
    sizes = [PartitionSizes(plan, 20 << 30, now_ms=clock.wall_ms) for _ in range(2)]
    (metric,) = [metric for metric in METRICS if metric.name == "outbox.partition.share"]
    assert list(metric.read(plan.counts)) == [({}, 0.0)]
    run(sizes[0], clock, rate=10, for_s=WINDOW_S)
    run(sizes[1], clock, rate=2, for_s=10)
    plan.counts.swept(0, 0, 0.0)
    assert list(metric.read(plan.counts)) == [({}, sizes[0].fullest()[1])] and sizes[0].fullest()[1] > 0.05
    clock.seconds += WINDOW_S
    plan.counts.swept(0, 0, 0.0)
    assert list(metric.read(plan.counts)) == [({}, sizes[0].fullest()[1])]


def test_a_burst_is_no_rate_and_fades() -> None:
    clock = VirtualClock(START_S)
    fullness = metered(20, clock)
    run(fullness, clock, rate=1_000, for_s=5)
    assert 0 < fullness.fullest()[1] < 0.2
    clock.seconds += 10 * WINDOW_S
    assert fullness.fullest()[1] < 0.001


def test_a_full_partition_is_reported_once_an_hour_a_key(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(START_S)
    fullness = metered(0.5, clock)
    with caplog.at_level(logging.WARNING, logger="outbox.fullness"):
        run(fullness, clock, rate=2, for_s=LOG_EVERY_S * 2.5)
        run(fullness, clock, rate=2, for_s=LOG_EVERY_S / 2, key="Sum:b")
    states = [vars(record)["state"] for record in caplog.records]
    assert states == ["Sum:a", "Sum:a", "Sum:a", "Sum:b"] and "shorten retention" in caplog.messages[0]


def test_so_many_keys_are_metered_and_no_more() -> None:
    clock = VirtualClock(START_S)
    fullness = metered(20, clock)
    run(fullness, clock, rate=100, for_s=60, key="Sum:busy")
    for number in range(KEY_COUNT_MAX + 100):
        fullness.note(f"Sum:{number}", RECORD)
        if not number % 1_000:
            fullness.note("Sum:busy", RECORD)
    assert len(fullness._meters) == KEY_COUNT_MAX and fullness.fullest()[0] == "Sum:busy"


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
async def test_a_worker_reports_which_key_is_the_fullest(scope: str, limit_bytes: int) -> None:
    async with site(scope) as at:
        at.store.capabilities = dataclasses.replace(at.store.capabilities, partition_bytes_max=limit_bytes)
        async with Worker(adding(retention=timedelta(days=2)), at) as worker:
            for number in range(30):
                await worker.send("adds", Add("b" if number % 3 else "a"), id=f"m{number}")
            await worker.wait_idle()
            figures = worker.figures
        assert figures.handled_count == 30 and figures.unsent_count == 0
        assert (figures.fullest_state, figures.fullest_share > 0) == (("Sum:b", True) if limit_bytes else ("", False))
