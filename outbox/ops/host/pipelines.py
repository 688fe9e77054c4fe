"""Replicas of a pipeline as a process, on a folder or a store, until a signal or the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from outbox.engine.engine import Engine
from outbox.errors import Refused
from outbox.metrics import prometheus
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.host.endpoints import EndpointSettings, listen_metrics
from outbox.ops.host.host import ControlTask, HostSettings, open_engine, stop_on_signals
from outbox.ops.shared.loading import make_pipeline
from outbox.ops.shared.meter import note_pipelines
from outbox.ops.values.requests import Admin
from outbox.ops.values.streams import ReadPipelines
from outbox.runtime.counts import Counts
from outbox.streams import Position
from outbox.streams.log import LogReader
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.hand_over import hand_over
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import RELEASES
from outbox.streams.pipeline.running import RunningPipeline

log = logging.getLogger("outbox.host")


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """A pipeline to run, as `module:name`, and until when: a signal, `for_s` seconds, or the end of its source."""

    pipeline: str
    release: str = "in-order"
    checkpoint_s: float = 1.0
    replicas: int = 1
    for_s: float | None = None
    until_idle: bool = False
    metrics_port: int | None = None
    workers: int = 0
    from_state: Path | None = None
    """A folder of an engine where the pipeline has caught up: what it has of it is taken over first."""


@asynccontextmanager
async def open_folder(folder: Path, accept_clock: timedelta) -> AsyncIterator[tuple[Place, Admin]]:
    """Open an engine, and answer commands for its folder meanwhile.

    Raises:
        AlreadyOpen: another process has the folder.
    """
    engine = await open_engine(HostSettings(folder, accept_clock=accept_clock))
    admin = EngineAdmin(engine)
    async with engine, ControlTask(admin, folder, ""):
        yield place_of(engine), admin


async def run_pipeline(
    settings: PipelineSettings, opened: AbstractAsyncContextManager[tuple[Place, Admin]]
) -> tuple[str, Position]:
    """Run replicas until they are to end, then make a checkpoint; the pipeline, and below what all has left.

    Raises:
        Refused: the pipeline cannot run or go on, or has not come to the end of its source in time.
    """
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    async with AsyncExitStack() as stack:
        place, admin = await stack.enter_async_context(opened)
        pipeline = make_pipeline(settings.pipeline, place)
        chosen = next(each for each in RELEASES if each.name == settings.release.replace("-", "_"))
        if settings.from_state is not None:
            await _taken_over(settings.from_state, pipeline.plan(chosen), place)
        running = await stack.enter_async_context(
            pipeline.run(
                place,
                release=chosen,
                checkpoint_s=settings.checkpoint_s,
                replicas=settings.replicas,
                workers=settings.workers,
                imported=settings.pipeline,
            )
        )
        endpoints = EndpointSettings(metrics_port=settings.metrics_port)
        for line in await listen_metrics(stack, partial(_metrics, admin, pipeline.name), endpoints):
            log.info("metrics at %s", line)
        log.info("pipeline %s runs: version %d", pipeline.name, pipeline.version)
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(stopping.wait())]
        if settings.until_idle:
            waits.append(asyncio.ensure_future(_idle(running, pipeline.source)))
        done, _ = await asyncio.wait(
            [*waits, *running.tasks], timeout=settings.for_s, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        for ended in done:
            ended.result()
    released = max(loop.released for loop in running.loops)
    if settings.until_idle and not done:
        raise Refused(
            f"pipeline {pipeline.name} has not come to the end of its source in {settings.for_s:g} s: all below "
            f"{released} has left.  Run it again; it goes on from there"
        )
    return pipeline.name, released


async def _taken_over(folder: Path, plan: PipelinePlan, place: Place) -> None:
    async with Engine.open(folder) as engine:
        at = await hand_over(plan, place_of(engine), place)
    log.info("pipeline %s goes on %s", plan.name, "as it is" if at is None else f"at {at}, from {folder}")


async def _idle(running: RunningPipeline, source: LogReader[Any]) -> None:
    """Wait until all that the source has has left."""
    at = Position(0)
    while (end := await source.end()) > at:
        await running.until(end)
        at = end


async def _metrics(admin: Admin, name: str) -> str:
    counts = Counts()
    with suppress(LookupError):  # it has not begun yet
        note_pipelines(counts, await admin.ask(ReadPipelines(name)))
    return prometheus(name, counts)
