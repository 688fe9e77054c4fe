"""Jobs for a pipeline in Cosmos DB or Blob Storage, beside one that runs live there: real SDKs and the emulators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outbox.azure.blobs.account import BlobAccount
from outbox.engine.engine import Engine
from outbox.errors import Refused
from spark_jobs import pipeline
from spark_jobs.common.places import Folder
from spark_jobs.replaying.here import Here
from tests.spark.drawn_world import World, stored
from tests.wire.on_azure.ground import blob_emulator, cosmos_ground

EVENTS, SEED = 30, 11


@asynccontextmanager
async def arguments(kind: str) -> AsyncIterator[list[str]]:
    async with blob_emulator() as blobs:
        account = BlobAccount(blobs.connection.connection_string, "outbox-states" if kind == "blobs" else "outbox")
        await account.prepare(create=True)
        await account.close()
        if kind == "blobs":
            yield ["--store", blobs.connection.connection_string]
            return
        async with cosmos_ground() as ground:
            cosmos = ground.emulator.connection.connection_string
            yield ["--store", cosmos, "--database", "bank", "--blobs", blobs.connection.connection_string]


@pytest.mark.parametrize("kind", ["blobs", "cosmos"])
async def test_a_job_and_a_live_pipeline_go_on_from_each_other_in_one_store(tmp_path: Path, kind: str) -> None:
    name = f"tests.spark.drawn_pipelines:seed{SEED}"
    async with arguments(kind) as given, Engine.in_memory() as alone:
        options = pipeline.parser().parse_args(["catch-up", name, *given])
        async with pipeline.opened(options) as (place, admin):
            world, same = World(Here, tmp_path, SEED, alone), World(Here, tmp_path, SEED, alone)
            world.open_at(place)
            job = pipeline.Job(Here, name, place, Folder(tmp_path / "log"), Folder(tmp_path / "scratch"), admin=admin)
            begin = "0.0"
            for is_live in (False, True, False):
                await world.write(EVENTS)
                await same.write(EVENTS)
                end = str(await world.made.source.end())
                if is_live:
                    async with world.made.pipeline.run(place) as running:
                        await running.until(await world.made.source.end())
                else:
                    report = await pipeline.catch_up(job)
                    assert (report.begin, report.end, report.entries) == (begin, end, EVENTS)
                begin = end
            await same.made.pipeline.run_until_idle(same.place)
            assert await stored(world.made) == await stored(same.made)


def test_where_a_pipeline_is_has_to_be_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OUTBOX_STORE", raising=False)
    for given, text in (
        ([], r"--state FOLDER, --store ADDRESS, or OUTBOX_STORE"),
        (["--state", "s"], r"--state needs --log, the place to which `outbox stream export` wrote"),
        (["--state", "s", "--log", "nowhere"], r"nowhere has no file of an export"),
        (["--store", "x", "--for-s", "1"], r"--for-s ends what --follow began"),
        (["--store", "x", "--follow", "1s", "--until", "3.0"], r"--follow goes on behind --until"),
        (["--store", "x", "--epoch-entries", "0"], r"--epoch-entries is at least 1"),
    ):
        with pytest.raises(Refused, match=text):
            pipeline.command(pipeline.parser().parse_args(["catch-up", "m:p", *given]))
    for given, text in (
        (["--until", "x"], "'x' is no position"),
        (["--follow", "soon"], "'soon' is no time such as 10s"),
    ):
        with pytest.raises(SystemExit):
            pipeline.parser().parse_args(["catch-up", "m:p", "--store", "x", *given])
        assert text in capsys.readouterr().err
