"""A pipeline's operators by slot, from files, make what they make live: as Spark runs them, without Spark."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, OtherLog, OutcomeUnknown, Refused
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.streams import export as exporting
from outbox.ops.streams.export import export
from outbox.ops.values.streams import ReadPipelines, ReadPipelineState
from outbox.streams import GraphChanged, OrderedLog, Position, release
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline import checkpoint
from outbox.streams.pipeline.hand_over import hand_over
from outbox.streams.pipeline.operators import Path as RecordPath
from outbox.streams.pipeline.release import Release
from outbox.verify.faults import FaultPlan, Faults, FaultyBlobs, FaultyStore, SimulatedCrash
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.streams import recorded_log, rows_of
from spark_jobs import pipeline
from spark_jobs.common.places import Folder
from spark_jobs.common.until import Until
from spark_jobs.exporting.files import Files
from spark_jobs.pipeline import Job, catch_up
from spark_jobs.replaying import catching_up, epoch, rows, tasks
from spark_jobs.replaying.catching_up import CatchUp
from spark_jobs.replaying.here import Here
from spark_jobs.replaying.rows import path_in, stored_path
from tests.spark.drawn_pipelines import HISTORIES, Drawn, Newer, Older, judged, totals, totals_behind
from tests.spark.drawn_world import World, stored

EVENTS, RUNS_MAX = 60, 8
OLDER, NEWER = "tests.spark.drawn_pipelines:totals", "tests.spark.drawn_pipelines:totals_behind"


@pytest.fixture(autouse=True)
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, batches and parts that are full after a few records."""
    monkeypatch.setattr(tasks, "FRAME_COUNT", 3)
    monkeypatch.setattr(rows, "BATCH_COUNT", 5)
    monkeypatch.setattr(rows, "SECTION_BYTES", 60)
    monkeypatch.setattr(epoch, "POSITIONS_AT_ONCE", 4)
    monkeypatch.setattr(exporting, "FILE_ROWS_MAX", 20)
    monkeypatch.setattr(checkpoint, "PART_BYTES", 300)
    monkeypatch.setattr(catching_up, "PARTS_MAX", 3)
    monkeypatch.setattr(catching_up, "PAUSE_S_FIRST", 0.001)


def often(seeds: int, every: int) -> list[object]:
    return [pytest.param(seed, marks=[] if seed < every else [pytest.mark.soak]) for seed in range(seeds)]


@pytest.mark.parametrize("seed", often(200, 40))
async def test_drawn_pipelines_make_the_same(tmp_path: Path, seed: int) -> None:
    async with Engine.in_memory() as live, Engine.in_memory() as state:
        world = World(partial(Here, 3), tmp_path, seed, live)
        await world.write(EVENTS)
        await world.made.pipeline.run_until_idle(world.place)
        end = await world.export()
        found = [each.position async for each in world.made.source.read()]
        until = found[world.draw.randrange(1, len(found))]
        entries_max = world.draw.choice((7, EVENTS))
        first = await catch_up(world.job(place_of(state), entries_max=entries_max), until)
        assert (first.begin, first.end, first.entries) == ("0.0", str(until), found.index(until))
        assert first.epochs >= first.entries / entries_max
        second = await catch_up(world.job(place_of(state)))
        assert (second.begin, second.end, first.entries + second.entries) == (str(until), str(end), EVENTS)
        assert await stored(Drawn(seed, state)) == await stored(world.made)
        report = await catch_up(world.job(place_of(state)))
        assert (report.begin, report.entries, report.epochs) == (str(end), 0, 0)
        assert not [*Folder(tmp_path / "scratch").list()]


@pytest.mark.parametrize("given", [release.in_order(), release.by_epoch()], ids=lambda given: given.name)
@pytest.mark.parametrize("beside", [True, False], ids=["beside a live one", "alone"])
@pytest.mark.parametrize("seed", often(100, 6))
async def test_jobs_that_fail_and_die_make_what_a_live_pipeline_does(
    tmp_path: Path, seed: int, beside: bool, given: Release
) -> None:
    """Two jobs at once under drawn faults, each run again until it is done."""
    history = HISTORIES[seed] = History()
    history.life(is_empty=True)
    async with Engine.in_memory() as engine, Engine.in_memory() as alone:
        world, same = World(partial(Here, 3), tmp_path, seed, engine), World(partial(Here, 3), tmp_path, seed, alone)
        world.made.source = recorded_log(world.made.source, history)
        for each in (world, same):
            await each.write(EVENTS)
        end = await world.export()
        draw = random.Random(seed)
        pipeline = judged(seed, world.place)

        async def jobs() -> None:
            for run in range(RUNS_MAX):
                seed, crashes = draw.randrange(1 << 30), int(run < RUNS_MAX - 1)
                plan = FaultPlan(Faults.drawn(seed=seed, crashes=crashes, lost=2, refused=2, delayed=4, within=120))
                place = Place(FaultyStore(world.place.store, plan), FaultyBlobs(world.place.blobs, plan))
                try:
                    job = world.job(place, entries_max=20, release=given)
                    assert (await catch_up(replace(job, name=job.name.replace("seed", "judged")))).end == str(end)
                except SimulatedCrash:  # what the store refuses or does not answer is sat out
                    continue
                return
            raise AssertionError("not done")

        async def live() -> None:
            if beside:
                await asyncio.sleep(draw.random() / 5)
                await pipeline.run_until_idle(world.place, release=given)

        async with asyncio.timeout(60):
            await asyncio.gather(jobs(), jobs(), live())
        await same.made.pipeline.run_until_idle(same.place)
        await pipeline.run_until_idle(world.place, release=given)
        found = await stored(world.made)
        assert found == await stored(same.made)
        history.quiesce(rows_of(world.made.source))
        verdict = check(history)
        assert verdict.ok and verdict.counts.outputs == sum(map(len, found.values())), verdict.text


def test_a_path_is_read_back_and_its_bytes_have_its_order() -> None:
    draw = random.Random(1)
    paths: list[RecordPath] = [(), (-(1 << 62),), ((1 << 62), 0)]
    for _ in range(300):
        text = "".join(draw.choices("\0\1a\xff\U0001f600", k=draw.randrange(4)))
        paths.append((draw.randrange(-3, 3), draw.randrange(2), text, draw.randrange(3))[: draw.randrange(5)])
    for path in paths:
        assert path_in(stored_path(path)) == path
    paths.sort()
    assert all(stored_path(one) <= stored_path(other) for one, other in pairwise(paths))
    for data in (b"\3", b"\1\0", b"\2ab", b"\2a\0\xff"):
        with pytest.raises(CorruptRecord, match="no path"):
            path_in(data)


async def test_entries_and_states_of_an_older_schema_are_read_and_all_states_are_written_anew(tmp_path: Path) -> None:
    async with Engine.in_memory() as live:
        at = place_of(live)
        log = totals(at).source.log
        job = Job(Here, "", at, Folder(tmp_path / "log"), Folder(tmp_path / "scratch"))
        for first, name in ((0, OLDER), (4, NEWER)):
            for number in range(first, first + 4):
                await log.append(Older(number), id=f"{number}")
            await export(EngineAdmin(live), partial(Files, job.log), "numbers", "")
            report = await catch_up(replace(job, name=name))
            assert report.entries == 4
        sums = [each.value async for each in OrderedLog("totals", live, type=int).read()]
        assert sums == [0, 1, 2, 4, 6, 9, 12, 16]
        for key, count in ((0, 12), (1, 16)):
            state = await EngineAdmin(live).ask(ReadPipelineState("totals", "total", f"{key}", "int"))
            assert bytes(state.value) == b'{"count":%d}' % count
        (view,) = await EngineAdmin(live).ask(ReadPipelines("totals"))
        assert view.stands is not None and view.stands.parts == 1
        await totals_behind(at).source.log.append(Newer(8), id="8")
        whole = Folder(tmp_path / "whole")  # with entries of both in one frame
        await export(EngineAdmin(live), partial(Files, whole), "numbers", "")
        async with Engine.in_memory() as other:
            assert (await catch_up(replace(job, name=NEWER, place=place_of(other), log=whole))).entries == 9
            assert [each.value async for each in OrderedLog("totals", other, type=int).read()] == [*sums, 20]


async def test_one_state_of_an_older_schema_is_enough_to_save_all(tmp_path: Path) -> None:
    async with Engine.in_memory() as engine:
        at = place_of(engine)
        data = b"\n".join(checkpoint.line_of(checkpoint.Section("total", slot, slot + 1, {})) for slot in range(2))
        await at.blobs.write("part", data)
        part = checkpoint.PartRef("part", sha256(data).hexdigest(), len(data))
        replica = CatchUp(totals_behind(at).plan(), at, Folder(tmp_path), Position(0))
        await replica._load(checkpoint.Checkpoint(1, Position(1), {}, [part]))
        assert replica._saves_all


@pytest.mark.parametrize(
    ("sizes", "saves_all"),
    [
        ([], False),
        ([100], False),
        ([100, 50, 50], False),
        ([100, 50, 51], True),
        ([100, 1, 1, 1], True),  # as many parts of changes as may be
        ([300, 300, 100, 1, 1], False),  # what is full is no part of changes
    ],
)
async def test_all_states_are_saved_where_changes_are_many_parts_or_large(sizes: list[int], saves_all: bool) -> None:
    parts = [checkpoint.PartRef("", "", size) for size in sizes]
    stands = SimpleNamespace(register=SimpleNamespace(stands=SimpleNamespace(parts=parts)))
    async with Engine.in_memory() as engine:
        replica = CatchUp(totals(place_of(engine)).plan(), place_of(engine), Folder(Path()), Position(0))
        replica.known = cast(Any, stands)
        assert (replica.saves_all, replica.states_bytes) == (saves_all, sum(sizes))


@pytest.mark.parametrize(
    ("error", "count"), [(Refused("busy"), 3), (OutcomeUnknown("no answer"), 3), (OtherLog("x"), 1), (ValueError(), 1)]
)
async def test_a_store_is_asked_again_unless_that_changes_nothing(error: Exception, count: int) -> None:
    asked = list[int]()

    async def ask() -> None:
        asked.append(1)
        if len(asked) < 3:
            raise error

    with nullcontext() if count == 3 else pytest.raises(type(error)):
        await catching_up.patiently(ask, 60.0)
    assert len(asked) == count


def test_a_part_that_is_gone_from_where_executors_read_is_named(tmp_path: Path) -> None:
    numbers = [pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])]
    with pytest.raises(CorruptRecord, match=r"gone is missing; run the same command again"):
        [*epoch.read_parts(epoch.Parts(Folder(tmp_path), ["gone"]), numbers)]


@pytest.mark.parametrize(("entries", "size", "is_here"), [(4, 1 << 20, True), (3, 1 << 20, False), (4, 60, False)])
async def test_the_driver_takes_epochs_of_few_entries_and_few_states(
    tmp_path: Path, entries: int, size: int, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "DRIVER_STATES_BYTES", size)
    made: list[Let] = []
    async with Engine.in_memory() as engine:
        world = World(lambda: made.append(Let()) or made[-1], tmp_path, 11, engine)  # type: ignore[func-returns-value]
        await world.write(8)
        end = await world.export()
        half = [each.position async for each in world.made.source.read()][4]
        for until, has_states in ((half, False), (end, True)):
            made.clear()
            await catch_up(world.job(world.place, driver_entries=entries), until)
            assert bool(made) == (not is_here and (has_states or entries < 4)) and all(each.is_let_go for each in made)


class Let(Here):
    """Tables that say whether they were let go of."""

    is_let_go = False

    def end(self) -> None:
        self.is_let_go = True


class Full(Folder):
    """A lake that refuses to write where it has no room left."""

    room = 0

    def create(self, name: str, data: bytes) -> bool:
        if not Full.room:
            raise Refused(f"no room for {name}")
        is_new = super().create(name, data)
        Full.room -= is_new
        return is_new


@pytest.mark.parametrize("seed", often(50, 5))
async def test_what_a_lake_refuses_half_way_is_made_by_the_next_run(tmp_path: Path, seed: int) -> None:
    """Each run may write a few files only; the next one continues from the files that are there."""
    async with Engine.in_memory() as engine, Engine.in_memory() as alone:
        world, same = World(partial(Here, 3), tmp_path, seed, engine), World(partial(Here, 3), tmp_path, seed, alone)
        log, scratch, runs, is_done = Full(tmp_path / "log"), Full(tmp_path / "scratch"), 0, False
        draw = random.Random(seed)
        job = world.job(world.place, entries_max=20, timeout_s=0.0, admin=EngineAdmin(engine))
        for each in (world, same):
            await each.write(EVENTS)
        while not is_done:
            Full.room, runs = draw.randrange(1, 60) if runs else 1, runs + 1
            try:
                await catch_up(replace(job, log=log, scratch=scratch))
                is_done = True
            except Refused as error:
                assert "no room for" in str(error) and runs < 200
                if runs % 3 == 0:
                    await world.write(2)
                    await same.write(2)
        assert runs > 1 and not [*scratch.list()]
        await same.made.pipeline.run_until_idle(same.place)
        assert await stored(world.made) == await stored(same.made)


async def test_an_export_that_does_not_fit_is_refused_with_the_cure(tmp_path: Path) -> None:
    async with Engine.in_memory() as live, Engine.in_memory() as state:
        world = World(partial(Here, 3), tmp_path, 11, live)
        await world.write(EVENTS)
        end = await world.export()
        job = world.job(place_of(state))
        with pytest.raises(Refused, match=rf"log ends at {end}, before 999.0; export the log again, or give an"):
            await catch_up(job, Position(999))
        with pytest.raises(Refused, match=r"entries of log/events/0.0, and pipeline totals reads log/numbers/0.0"):
            await catch_up(replace(job, name="tests.spark.drawn_pipelines:totals"))
        assert await EngineAdmin(state).ask(ReadPipelines()) == []  # so nothing has begun
        first, second, _ = sorted(file.name for file in (tmp_path / "log").iterdir())
        (tmp_path / "log" / second).rename(tmp_path / second)
        with pytest.raises(Refused, match="restore the file between them from a copy"):
            await catch_up(job)
        (tmp_path / second).rename(tmp_path / "log" / second)
        assert (await catch_up(job, Position(1))).end == "1.0"
        (tmp_path / "log" / first).unlink()
        with pytest.raises(Refused, match=r"its checkpoint stands at 1.0, and .*log begins at .*; export the log from"):
            await catch_up(job)
        with pytest.raises(GraphChanged, match=r"give it version=2"):
            await catch_up(replace(job, name="tests.spark.drawn_pipelines:seed12"))
        with pytest.raises(GraphChanged, match=r"give all machines one version"):
            tasks.Replayed("tests.spark.drawn_pipelines:totals", str(tmp_path), b"another").plan()
        with pytest.raises(Refused, match=r"there is nothing of pipeline totals to go on from"):
            await hand_over(totals(place_of(live)).plan(), place_of(state), place_of(live))


async def test_a_job_ends_when_it_is_to_though_entries_keep_coming(tmp_path: Path) -> None:
    async with Engine.in_memory() as live:
        at = place_of(live)
        log = totals(at).source.log
        job = Job(
            Here, "tests.spark.drawn_pipelines:totals", at, Folder(tmp_path / "log"), Folder(tmp_path / "scratch")
        )
        job = replace(job, admin=EngineAdmin(live))
        with pytest.raises(Refused, match="there is no log 'numbers'"):
            await catch_up(job)
        await log.append(Older(0), id="0")

        async def write() -> None:
            for number in range(1, 2_000):
                await log.append(Older(number), id=f"{number}")
                await asyncio.sleep(0.002)

        writing = asyncio.create_task(write())
        async with asyncio.timeout(60):
            first = await catch_up(job)  # what was there when it began, though there is more by its end
            looks = iter([False, False, True])
            follow = Until(seconds=60, is_asked=lambda: next(looks))
            second = await catch_up(job, follow=follow, every_s=0.05)
        writing.cancel()
        assert first.entries and (second.begin, second.epochs) == (first.end, 3)
        await catch_up(job)
        nothing = replace(job, log=Folder(tmp_path / "another"))  # whose export would begin at the checkpoint
        assert (await catch_up(nothing)).epochs == 0
        sums = [each.value async for each in OrderedLog("totals", live, type=int).read()]
        assert len(sums) == (await log.end()).index
