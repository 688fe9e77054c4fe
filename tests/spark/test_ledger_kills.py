"""SIGKILL in a vacuum, and mergers that race, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.common.folder import Folder
from spark_jobs.common.places import Place, place_of
from spark_jobs.draining.entries import entry_file
from spark_jobs.draining.merging import DATA
from spark_jobs.ledger import merge
from tests.spark.ledgers import ids, land, nothing_else_is_left

ROOT = Path(__file__).resolve().parents[2]
ORPHANS = 3_000


PLACES = ("folder", *(pytest.param(place, marks=pytest.mark.soak) for place in ("emulator", "azurite")))
"""In every run a folder: on the emulator, `test_ledger_lakes.py` has a vacuum under faults, and a race."""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests/spark/ledger_process.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_a_vacuum_that_is_killed_between_its_deletions_is_done_again(address: str) -> None:
    ledger, place = address, place_of(address, os.environ)
    for name in ("one", "two"):
        land(ledger, name, name)
        merge(ledger)
    count = ORPHANS if isinstance(place, Folder) else ORPHANS // 6
    for number in range(count):
        name = f"{DATA}/orphan-{number}.parquet"
        if isinstance(place, Folder):
            (place.path / name).write_bytes(b"of nobody")
        else:
            place.create(name, b"of nobody")
    process = started("vacuum", ledger)
    until_s = time.monotonic() + 60
    while place.read(entry_file(3), 0, 1) is None and time.monotonic() < until_s:
        pass
    process.kill()
    process.wait(timeout=10)
    left = len(list(place.list(f"{DATA}/"))) - 2
    assert version_of(place) == 3 and 0 < left <= count  # START, and not END
    land(ledger, "three", "one", "three")
    assert merge(ledger).added == 1
    assert ids(ledger) == ["one", "three", "two"]
    nothing_else_is_left(ledger)


def version_of(place: Place) -> int:
    return DeltaTable(place.uri, storage_options=place.storage_options()).version()


@pytest.mark.slow
@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_mergers_that_race_add_each_row_once(address: str) -> None:
    ledger, rounds = address, 40
    merge(ledger)
    racers = [started("race", ledger, str(2 * rounds)) for _ in range(3)]
    for number in range(rounds):
        land(ledger, f"{number}", f"m{number}", f"n{number}", *(f"m{earlier}" for earlier in range(number)))
        time.sleep(0.02)
    counts = []
    for racer in racers:
        told, _ = racer.communicate(timeout=90)
        assert racer.returncode == 0, told
        counts.append([int(text) for text in told.split()])
    assert all(rows == 2 * rounds for _, rows in counts) and sum(added for added, _ in counts) == 2 * rounds
    assert ids(ledger) == sorted([*(f"m{n}" for n in range(rounds)), *(f"n{n}" for n in range(rounds))])
    nothing_else_is_left(ledger)
