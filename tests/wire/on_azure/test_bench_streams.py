"""The benchmark of streams on the emulators counts what the protocol asks for: small, so that it stays so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import streams_stores
from benchmarks.streams_stores import appended, cosmos_store, one_by_one, stepped
from benchmarks.streams_work import Sizes

STEPS = 4


async def test_an_append_is_one_request_and_a_step_three(tmp_path: Path) -> None:
    async with cosmos_store(tmp_path) as store:
        cell = await appended(store.near, "", STEPS + streams_stores.SPARE_CELLS, 8)
        step = await stepped(store.near, "", STEPS, 8)
        alone = [await one_by_one(store.near, f"{count}-", STEPS, count) for count in (1, 2)]
    assert (cell["requests"], cell["requests_per_entry"], step["requests"]) == (1, 1 / 8, 3)
    assert 5 < cell["ru"] < 6 and 16 < step["ru"] < 18  # create 5; read 1, replace 10, create 5; and their sizes
    assert 6 <= alone[0].requests < alone[1].requests  # read, swap, create, two reads of an end, swap


@pytest.mark.slow
@pytest.mark.soak  # as `make bench-streams`, smaller
async def test_a_run_has_every_store_and_what_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_stores, "CELL_SIZES", (1,))
    monkeypatch.setattr(streams_stores, "FAR_SIZES", (1,))
    sizes = Sizes(engine_steps=STEPS, steps=STEPS, far_steps=STEPS, idle_s=3.5)
    rows = streams_stores.rows([await streams_stores.measured(tmp_path, sizes)])
    found = {row["what"]: row for row in rows}
    for store in ("cosmos", "blobs"):
        hour = found[f"{store}: idle reader, an hour"]["requests"]["median"]
        assert 6_000 < hour <= 7_200  # two reads a second, less what they take
        assert hour < found[f"{store}: idle replica, an hour"]["requests"]["median"] < 8_000
        assert found[f"{store} far: step of 1, 2 replicas"]["requests"]["median"] > 3
    assert len(streams_stores.table(rows).splitlines()) == 1 + len(rows)
