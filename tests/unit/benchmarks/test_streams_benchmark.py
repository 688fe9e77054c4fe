"""The benchmark of streams on an engine: a run checks that every entry counts once, and rows say what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_streams, streams_replicas, streams_stores
from benchmarks.peers import environment
from benchmarks.streams_work import Sizes, adder, check_sums, fill
from outbox.engine.engine import Engine
from tools.setup import SetupFailed

SMALL = Sizes(entries=200, paced=20, sharded=16, peer_entries=20)


async def test_shards_and_replicas_have_a_row_each(disk_path: Path) -> None:
    found = await streams_replicas.measured(disk_path, SMALL)
    rows = streams_replicas.rows([found, found])
    assert [row["ratio"]["median"] > 0 for row in rows if "ratio" in row] == [True] * 4
    times = [row for row in rows if "p99_ms" in row]
    assert [row["what"] for row in times][:2] == ["paced, 0 replicas", "paced, 1 replica"]
    assert all(0 < row["p50_ms"]["median"] <= row["p99_ms"]["median"] for row in times)
    assert len(streams_replicas.table(times).splitlines()) == 1 + len(times)


async def test_a_processor_stands_beside_the_peer_with_one_entry_a_step_and_with_many(disk_path: Path) -> None:
    ours = await bench_streams.beside_peer(disk_path, SMALL)
    rows = {row["what"]: row for row in bench_streams.rows([{"eventsourcing": 10.0, **ours}])}
    assert rows["processor, 64 a step"]["ratio"]["median"] == pytest.approx(ours["steps_64"] / 10, rel=1e-4)
    assert set(rows) == {"processor, 64 a step", "processor, 1 a step", "eventsourcing, 1 a step"}


async def test_an_entry_that_is_missing_spoils_a_run(engine: Engine) -> None:
    await fill(engine, 3, 1)
    await adder(engine, 1).run_until_idle()
    with pytest.raises(AssertionError, match="3 outputs for 4 inputs"):
        await check_sums(engine, 4)


def test_without_the_peers_environment_its_part_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise SetupFailed("no index")

    monkeypatch.setattr(environment, "ready", fails)
    text = bench_streams.publish(1, 20, tmp_path, ["peer"])
    assert "`eventsourcing` was not measured: no index." in text
    assert json.loads((tmp_path / "streams.json").read_text()) == []


def test_a_rate_of_a_store_is_compared_with_the_engine_and_two_replicas_with_one() -> None:
    beside = streams_stores.beside_of
    assert beside("cosmos: step of 64") == "engine: step of 64"
    assert beside("blobs far: step of 1, 2 replicas") == "blobs far: step of 1, 1 replica"
    assert beside("engine: append 1") == beside("blobs far: step of 1, 1 replica") == ""
