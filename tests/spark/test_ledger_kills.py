"""SIGKILL at every step of a merge, a vacuum and a take-over, and mergers that race, in real processes."""

from __future__ import annotations

import os
import signal
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
from tests.spark.ledgers import conflicts, ids, land, landed, nothing_else_is_left, older_form

ROOT = Path(__file__).resolve().parents[2]
ORPHANS = 3_000


PLACES = ("folder", *(pytest.param(place, marks=pytest.mark.soak) for place in ("emulator", "azurite")))
"""In every run a folder: on the emulator, `test_ledger_lakes.py` has a death at each of these steps, and each race."""


def started(step: str, ledger: Path | str, markers: Path, point: str) -> subprocess.Popen[str]:
    markers.mkdir(exist_ok=True)
    command = [sys.executable, str(ROOT / "tests/spark/ledger_process.py"), step, str(ledger), str(markers), point]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("address", PLACES, indirect=True)
@pytest.mark.parametrize("point", ["conflicts", "prepared", "committed", "synced"])
def test_a_merger_that_is_killed_adds_each_row_once(tmp_path: Path, address: str, point: str) -> None:
    ledger = address
    land(ledger, "one", "a", body="1", fingerprint="f1")
    merge(ledger)
    land(ledger, "two", "a", "b", "c", body="2", fingerprint="f2", first=1)
    process = started("merge", ledger, tmp_path / "markers", point)
    assert process.wait(timeout=60) == -signal.SIGKILL
    land(ledger, "three", "b", "d", body="2", fingerprint="f2", first=1)
    merge(ledger)
    assert ids(ledger) == ["a", "b", "c", "d"] and conflicts(ledger) == [("a", "2")] and landed(ledger) == []
    nothing_else_is_left(ledger)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["closed", "conflicts", "created"])
def test_a_take_over_that_is_killed_is_done_again(tmp_path: Path, point: str) -> None:
    ledger = tmp_path / "ledger"
    older_form(ledger)
    assert started("take_over", ledger, tmp_path / "markers", point).wait(timeout=60) == -signal.SIGKILL
    again = started("take_over", ledger, tmp_path / "markers", "none")
    assert again.wait(timeout=60) == 0, again.stdout and again.stdout.read()
    merge(ledger)
    assert ids(ledger) == ["a", "b", "c", "d"] and conflicts(ledger) == [("a", "2")]
    nothing_else_is_left(ledger)


@pytest.mark.slow
@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_a_vacuum_that_is_killed_between_its_deletions_is_done_again(tmp_path: Path, address: str) -> None:
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
    process = started("vacuum", ledger, tmp_path / "markers", "none")
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
def test_mergers_that_race_add_each_row_once(tmp_path: Path, address: str) -> None:
    ledger, rounds = address, 40
    merge(ledger)
    racers = [started("race", ledger, tmp_path / "markers", str(2 * rounds)) for _ in range(3)]
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
