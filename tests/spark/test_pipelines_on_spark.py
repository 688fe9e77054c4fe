"""A pipeline on Spark beside the same one live: equal bytes, and hand-overs both ways."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.checkpoint import PIPELINE, PipelineRegister
from outbox.streams.pipeline.hand_over import hand_over
from outbox.streams.pipeline.replica import read_part
from outbox.streams.register import RegisterCell
from spark_jobs.pipeline import catch_up
from spark_jobs.replaying import on_spark
from spark_jobs.replaying.on_spark import OnSpark
from tests.spark.drawn_pipelines import Drawn
from tests.spark.drawn_world import World, stored

EVENTS = 60
GOLDEN = {0: "b88de363815ab9dd", 8: "90de4dcf95740948"}
"""Digests of parts and outputs, the same on every PySpark; of these seeds every kind of operator is somewhere."""

pytestmark = pytest.mark.spark


async def digest_of(place: Place, outputs: dict[str, list[bytes]]) -> str:
    """What the checkpoint's parts say and what came out."""
    cell = RegisterCell(place.store, f"{PIPELINE}drawn", PipelineRegister, new_id=place.new_id)
    found = await cell.read()
    assert found is not None
    parts = [await read_part(place, part) for part in found.register.stands.parts]
    return sha256(repr((parts, outputs)).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in GOLDEN else [pytest.mark.soak]) for seed in range(200)]
)
async def test_drawn_pipelines_make_the_same(
    spark: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_spark, "PARTITION_BYTES", 1_000 << seed % 3 * 8)  # of the least, several tasks sort the rows
    async with Engine.in_memory() as live, Engine.open(tmp_path / "state") as state:
        world = World(partial(OnSpark, spark), tmp_path, seed, live)
        await world.write(EVENTS)
        await world.made.pipeline.run_until_idle(world.place)
        end = await world.export()
        found = [each.position async for each in world.made.source.read()]
        until, entries_max = found[world.draw.randrange(1, len(found))], world.draw.choice((30, EVENTS))
        await catch_up(world.job(place_of(state), entries_max=entries_max), until)
        report = await catch_up(world.job(place_of(state), entries_max=entries_max, driver_entries=seed % 2 * EVENTS))
        assert (report.begin, report.end) == (str(until), str(end))
        outputs = await stored(Drawn(seed, state))
        assert outputs == await stored(world.made)
        assert seed not in GOLDEN or await digest_of(place_of(state), outputs) == GOLDEN[seed]


async def test_a_job_goes_on_from_a_live_pipeline_and_a_live_one_from_a_job(spark: Any, tmp_path: Path) -> None:
    live, state = tmp_path / "live", tmp_path / "state"
    async with Engine.in_memory() as alone:
        async with Engine.open(live) as engine:
            world, same = (World(partial(OnSpark, spark), tmp_path, 11, each) for each in (engine, alone))
            for each in (world, same):
                await each.write(30)
            async with world.made.pipeline.run(world.place) as running:
                await running.until(await world.made.source.end())
        copytree(live, state)
        async with Engine.open(live) as engine:
            world.open(engine)
            for each in (world, same):
                await each.write(30)
            end = await world.export()
            async with Engine.open(state) as there:
                report = await catch_up(world.job(place_of(there)))
                assert report.begin != "0.0" and report.end == str(end)
                plan = world.made.pipeline.plan()
                assert await hand_over(plan, place_of(there), world.place) == end
                assert await hand_over(plan, place_of(there), world.place) is None
            for each in (world, same):
                await each.write(30)
                await each.made.pipeline.run_until_idle(each.place)
            assert await stored(world.made) == await stored(same.made)
