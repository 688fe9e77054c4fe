"""What crashes have left is finished once, over many partitions, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from outbox.azure.connecting import AzureBackend
from outbox.errors import Refused
from outbox.ports import Output, StorePorts
from spark_jobs.sweep import COUNTED, main, surveyed, sweep
from spark_jobs.sweeping import Part, Sweeping, swept_part
from tests.spark.crash import Kill
from tools.soak.sweep import Place, Told, judge

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module", params=["partition", "item"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with Place(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def partitions() -> Iterator[Place]:
    with Place("partition") as running:
        yield running


def stuck(name: str, count: int, every: int) -> list[str]:
    return [f"{name}-{number:06}" for number in range(0, count, every)]


def wrong(place: Place, before: Told, name: str, count: int, every: int) -> list[str]:
    """What is wrong when all is finished."""
    after = place.told(name)
    return judge(before, after, after, stuck(name, count, every))


@dataclass
class Changed:
    """Makes a backend with a bus or a store that behaves in another way."""

    connect: Any
    bus: Any = None
    store: Any = None

    def __call__(self) -> ChangedBackend:
        return ChangedBackend(self.connect(), self.bus, self.store)


@dataclass
class ChangedBackend:
    backend: AzureBackend
    bus: Any
    store: Any

    def ports(self) -> StorePorts:
        ports = self.backend.ports()
        bus: Any = ports.bus if self.bus is None else Sends(ports.bus, self.bus)
        return replace(ports, bus=bus, store=ports.store if self.store is None else self.store(ports.store))

    async def __aenter__(self) -> None:
        await self.backend.__aenter__()

    async def __aexit__(self, *details: Any) -> None:
        await self.backend.__aexit__(*details)


@dataclass
class Sends:
    """A bus of which a send is looked at before it is made."""

    bus: Any
    before: Any

    async def send(self, outputs: Sequence[Output]) -> None:
        self.before("send")
        await self.bus.send(outputs)


class NoRanges:
    """A store that is no Cosmos DB, as far as anybody can see."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def refusing(point: str) -> None:
    raise Refused("the queue is disabled")


def test_what_is_stuck_is_finished_once_and_a_second_sweep_finds_nothing(spark: Any, place: Place) -> None:
    before = place.leave("twice", 120, 4)
    first = sweep(spark, place.connect, tasks=3, lanes=4)
    assert (first.ok, first.finished, first.parts) == (True, 30, 3), first.text
    assert 7_000 < first.oldest_s < 9_000
    assert wrong(place, before, "twice", 120, 4) == []
    second = sweep(spark, place.connect, tasks=2)
    assert (second.ok, second.seen) == (True, 0)


def test_a_worker_that_is_killed_while_it_sends_costs_nothing(spark: Any, place: Place, tmp_path: Path) -> None:
    before = place.leave("killed", 80, 2)
    report = sweep(spark, Changed(place.connect, Kill(str(tmp_path), {"send": 15})), tasks=2, lanes=4)
    assert (tmp_path / "send").exists() and report.ok, report.text
    assert wrong(place, before, "killed", 80, 2) == []


async def test_two_sweeps_of_one_part_and_of_all_at_once_send_no_second_identity(place: Place) -> None:
    before = place.leave("raced", 60, 2)
    settings = Sweeping(connect=place.connect, life_ms=0, margin_ms=0, grace_s=60, lanes=4, limit_s=60)
    parts, settings = await surveyed(settings, 2)
    rows = await asyncio.gather(*(swept_part(settings, part) for part in (*parts, *parts)))
    assert all(row["is_whole"] for row in rows)
    left = await swept_part(settings, Part(shares=1))  # where two met, one of them left it
    assert left["left"] == 0
    assert wrong(place, before, "raced", 60, 2) == []


async def test_what_is_young_is_left_to_the_process_that_works_on_it(spark: Any, partitions: Place) -> None:
    before = partitions.leave("young", 20, 2)
    report = sweep(spark, partitions.connect, tasks=2, grace_s=86_400)
    assert (report.ok, report.young, report.finished) == (True, 10, 0)
    assert partitions.told("young").pending == before.pending
    sweep(spark, partitions.connect, tasks=2)


def test_what_cannot_be_sent_is_reported_and_stays_for_the_next_sweep(spark: Any, partitions: Place) -> None:
    before = partitions.leave("refused", 12, 2)
    report = sweep(spark, Changed(partitions.connect, refusing), tasks=2)
    assert (report.ok, report.left, report.unsent) == (False, 6, 6)
    assert "ledger: " in report.text and "the queue is disabled" in report.text
    assert sweep(spark, partitions.connect, tasks=2).finished == 6
    assert wrong(partitions, before, "refused", 12, 2) == []


def test_a_store_without_ranges_is_shared_out_by_partition(spark: Any, partitions: Place) -> None:
    before = partitions.leave("shared", 40, 2)
    report = sweep(spark, Changed(partitions.connect, store=NoRanges), tasks=3)
    assert (report.ok, report.finished, report.parts) == (True, 20, 3)
    assert wrong(partitions, before, "shared", 40, 2) == []


async def test_when_the_time_is_over_the_rest_is_left_for_the_next_sweep(partitions: Place) -> None:
    before = partitions.leave("late", 20, 2)
    settings = Sweeping(connect=partitions.connect, life_ms=0, margin_ms=0, grace_s=60, lanes=2, limit_s=-1)
    [part], settings = await surveyed(settings, 1)
    row = await swept_part(settings, part)
    assert not row["is_whole"] and "run it again" in row["troubles"][0]
    assert (await swept_part(replace(settings, limit_s=60), part))["finished"] == 10
    assert wrong(partitions, before, "late", 20, 2) == []


@pytest.mark.parametrize("wholes", [(True, True), (True, False), (False, True)])
def test_a_sweep_is_whole_where_each_of_its_parts_is(monkeypatch: pytest.MonkeyPatch, wholes: tuple[bool, ...]) -> None:
    row = dict.fromkeys(COUNTED, 0) | {"oldest_s": 0.0, "troubles": []}
    swept: Any = Mock()
    swept.range().mapInArrow().collect.return_value = [row | {"is_whole": whole} for whole in wholes]
    given = list[Any]()

    def survey(*asked: Any) -> Any:
        given.append(asked)
        return [Part(), Part()], asked[0]

    monkeypatch.setattr("spark_jobs.sweep.survey", survey)
    connect = Mock()
    assert sweep(swept, connect, grace_s=1, tasks=2, lanes=3, limit_s=4).ok == all(wholes)
    settings = Sweeping(connect=connect, life_ms=0, margin_ms=0, grace_s=1, lanes=3, limit_s=4)
    assert given == [(settings, 2)]


async def test_records_live_as_long_as_the_applications_have_registered(partitions: Place) -> None:
    settings = Sweeping(connect=partitions.connect, life_ms=0, margin_ms=0, grace_s=60, lanes=2, limit_s=60)
    _, found = await surveyed(settings, 1)
    assert found.plan().record_life_ms == (7 * 24 + 1) * 3_600_000
    assert found.plan().attempt_ms_max == 1_800_000


async def test_a_store_that_no_application_has_used_is_refused(partitions: Place) -> None:
    class Empty(NoRanges):
        async def scan(self, partition: str, *, prefix: str = "") -> Any:
            return
            yield

    settings = Sweeping(
        connect=Changed(partitions.connect, store=Empty), life_ms=0, margin_ms=0, grace_s=60, lanes=2, limit_s=60
    )
    with pytest.raises(Refused, match="check database and container"):
        await surveyed(settings, 1)


def test_no_key_is_shown(partitions: Place) -> None:
    settings = Sweeping(connect=partitions.connect, life_ms=0, margin_ms=0, grace_s=60, lanes=2, limit_s=60)
    assert "Account" not in repr(settings) and "Shared" not in repr(settings)


def test_the_command_says_so_by_its_exit_code(
    spark: Any, partitions: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OUTBOX_COSMOS", raising=False)
    assert main(["--quiet"]) == 1
    assert "OUTBOX_COSMOS" in capsys.readouterr().err
    for name, value in partitions.environment.items():
        monkeypatch.setitem(os.environ, name, value)
    partitions.leave("typed", 10, 5)
    assert main(["--json", "--tasks", "2"]) == 0
    assert '"finished":2' in capsys.readouterr().out
