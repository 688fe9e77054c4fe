"""The commands of a pipeline's history, as a data engineer types them, with a kill -9 of the job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from spark_jobs.replaying.here import Here
from tests.commands import ran, started
from tests.spark.drawn_world import World, stored

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 60


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_job_that_is_killed_is_run_again_and_handed_over_by_commands(tmp_path: Path) -> None:
    """As a data engineer does it: export, catch up with a kill -9 behind the first epoch, go on live."""
    name, live, state, log = (
        "tests.spark.drawn_pipelines:seed11",
        *(tmp_path / each for each in ("live", "state", "log")),
    )
    async with Engine.open(live) as engine:
        world = World(Here, tmp_path, 11, engine)
        await world.write(EVENTS)
    python: list[str | Path] = [sys.executable, "-m"]
    exported = ran([*python, "outbox", "stream", "export", "events", "--data", live, "--output", log, "--json"])
    assert json.loads(exported.stdout)["entries"] == EVENTS, exported.stderr
    command = [*python, "spark_jobs.pipeline", "catch-up", name, "--log", log, "--state", state, "--epoch-entries", "1"]
    with started([*command, "--driver-entries", "0"], ROOT) as job:
        assert job.stderr is not None
        while "checkpoint at" not in (line := job.stderr.readline()):
            assert line, "the job has ended"
        job.kill()
    done = ran([*command, "--json", "--quiet"], ROOT, within_s=90)
    assert done.returncode == 0, done.stderr
    run = [*python, "outbox", "pipeline", "run", name, "--data", live, "--from-state", state, "--until-idle", "--json"]
    assert (gone_on := ran(run, ROOT)).returncode == 0, gone_on.stderr
    async with Engine.open(live) as engine, Engine.in_memory() as alone:
        world.open(engine)
        same = World(Here, tmp_path, 11, alone)
        await same.write(EVENTS)
        await same.made.pipeline.run_until_idle(same.place)
        assert await stored(world.made) == await stored(same.made)
