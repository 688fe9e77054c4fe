"""A ledger on a folder, the Blob emulator and Azurite: each row once, whoever dies and whatever answer is lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

from outbox.emulator.faults import FaultRule, drawn
from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.places import joined, place_of
from spark_jobs.draining.leftovers import sweep
from spark_jobs.draining.merging import CONFLICTS, DATA, Merged, Merger
from spark_jobs.ledger import merge
from tests.spark.lakes import BOX, Lake
from tests.spark.ledgers import Died, conflicts, dies_at, ids, landed, nothing_else_is_left
from tests.spark.ledgers import land_texts as land

PLACES = ("folder", "emulator", pytest.param("azurite", marks=pytest.mark.soak))


def drawn_seeds(count: int, soak_count: int) -> list[Any]:
    """So many seeds for every run, and the rest of them for `make soak`."""
    return [*range(count), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(count, soak_count))]


@pytest.fixture
def ledger(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger on the emulator."""
    lake.plant()
    monkeypatch.setenv("OUTBOX_LAKE", lake.environ["OUTBOX_LAKE"])
    return f"abfss://{BOX}@devstoreaccount1.dfs.core.windows.net/{uuid4().hex}"


def merged_in_the_end(ledger: str) -> Merged:
    """Merge as often as it takes where answers are lost."""
    total = Merged()
    for _ in range(20):
        try:
            return total.and_then(merge(ledger))
        except OutcomeUnknown:
            continue
    pytest.fail("no end of unknown outcomes")


@pytest.mark.parametrize("address", PLACES, indirect=True)
@pytest.mark.parametrize("point", ["conflicts", "prepared", "committed", "synced"])
def test_a_merger_dies_at_every_step_and_each_row_is_there_once(
    address: str, disturbed: Lake | None, point: str
) -> None:
    land(address, "one", ("a", "1"))
    merge(address)
    land(address, "two", ("a", "2"), ("b", "1"), ("c", "1"), first=1)
    with pytest.raises(Died):
        merge(address, crash_point=dies_at(point))
    land(address, "three", ("b", "1"), ("d", "1"), first=1)
    merge(address)
    assert ids(address) == ["a", "b", "c", "d"] and conflicts(address) == [("a", "2")] and landed(address) == []
    nothing_else_is_left(address)


@pytest.mark.parametrize("seed", drawn_seeds(5, 12))
def test_drawn_faults_cost_no_row_and_double_none(ledger: str, lake: Lake, seed: int) -> None:
    kinds: tuple[Any, ...] = ("lost-reply", "lost-reply", "throttled", "reset", "status", "lost-reply")
    for number in range(4):
        land(ledger, f"{number}", ("a", f"{number}"), (f"b{number}", "1"), ("b0", "1"), first=number)
        lake.plant(*drawn(seed * 10 + number, kinds, within=40, status=500))
        merged_in_the_end(ledger)
        lake.plant()
    assert ids(ledger) == ["a", "b0", "b1", "b2", "b3"]
    assert conflicts(ledger) == [("a", "1"), ("a", "2"), ("a", "3")] and landed(ledger) == []
    nothing_else_is_left(ledger)


@pytest.mark.parametrize("seed", drawn_seeds(3, 6))
def test_a_vacuum_under_drawn_faults_takes_nothing_that_is_named(ledger: str, lake: Lake, seed: int) -> None:
    place = place_of(ledger, os.environ)
    land(ledger, "one", ("a", "1"), ("b", "1"))
    merge(ledger)
    for number in range(5):
        place.create(f"{DATA}/orphan-{number}.parquet", b"of nobody")
    lake.plant(*drawn(seed, ("lost-reply", "throttled", "reset", "status", "lost-reply"), within=25, status=500))
    for _ in range(10):
        try:
            sweep(place, age_s=-5.0)
            break
        except OutcomeUnknown as unknown:
            assert "vacuum stopped half-way" in str(unknown) and "\n" not in str(unknown)
    lake.plant()
    assert ids(ledger) == ["a", "b"]
    nothing_else_is_left(ledger)


def test_a_commit_whose_answer_is_lost_on_the_wire_stands(ledger: str, lake: Lake) -> None:
    """delta-rs puts again, is told that the version exists, and raises a failed commit."""
    merge(ledger)
    for number in range(2):
        land(ledger, f"{number}", ("a", f"{number}"), (f"b{number}", "1"), first=number)
        rules = [
            FaultRule(kind="lost-reply", operation="blob.put", key=f"{folder}_delta_log/")
            for folder in ("", f"{CONFLICTS}/")
        ]
        lake.plant(*rules)
        found = merge(ledger)
        assert (found.version, found.added, found.conflicts) == (number + 1, 2 - number, number)
        assert lake.emulator is not None and any(lake.emulator.faults.fired.values())
    assert ids(ledger) == ["a", "b0", "b1"] and conflicts(ledger) == [("a", "1")]


def test_of_two_racing_mergers_one_commits_each_row(ledger: str) -> None:
    land(ledger, "one", ("a", "1"), ("b", "1"))
    Merger(place_of(ledger, os.environ)).table.read_or_create()
    together, left = Barrier(2, timeout=60), [2]

    def meet(point: str) -> None:
        if point == "prepared" and left[0]:
            left[0] -= 1
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: merge(ledger, crash_point=meet), range(2)))
    assert sorted(result.added for result in results) == [0, 2] and ids(ledger) == ["a", "b"]


FORBIDDEN = FaultRule(
    kind="status", status=403, code="AuthorizationPermissionMismatch", operation="blob.put", count=None
)


def test_rights_that_are_taken_away_end_in_one_line_and_the_same_again_goes_on(ledger: str, lake: Lake) -> None:
    merge(ledger)
    land(ledger, "one", ("a", "1"))
    lake.plant(FORBIDDEN)
    with pytest.raises(Refused, match="give it the role Storage Blob Data Contributor") as refused:
        merge(ledger)
    assert "\n" not in str(refused.value) and landed(ledger) == ["one"]
    lake.plant()
    assert merge(ledger).added == 1


def test_who_may_read_and_not_write_is_told(ledger: str, lake: Lake) -> None:
    lake.plant(FORBIDDEN)
    with pytest.raises(
        OutcomeUnknown, match=r"privileges .*give whoever signs in the role Storage Blob Data"
    ) as refused:
        merge(ledger)
    assert "\n" not in str(refused.value)


def test_a_container_that_does_not_exist_is_told(ledger: str) -> None:
    absent = joined(ledger.replace(f"//{BOX}@", "//absent@"), "/x")
    with pytest.raises(Refused, match="absent") as refused:
        merge(absent)
    assert "\n" not in str(refused.value)
