"""A replica of a pipeline whose operators run on Spark, for one epoch: a checkpoint, entries, the next checkpoint.

Theory of operation: it is a replica as any other.  It reads the register once, its operators are the same, so are its
bundles, and where another's lie it takes these over.  So a job may run twice, half, or beside a live pipeline.  Only
where the work is done differs: entries and states come from files, outputs come back in the order of the source, a
thousand positions at a time, and each slot's states are a line of the next checkpoint's parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outbox.errors import OutcomeUnknown, Refused
from outbox.streams.cells import Position
from outbox.streams.log_places import Place
from outbox.streams.pipeline.checkpoint import (
    PARTS_MAX,
    Checkpoint,
    Held,
    PartRef,
    base_count,
    in_parts,
    lines_of,
    sections_of,
)
from outbox.streams.pipeline.cores import core_of, states_of
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.replica import FINAL, PipelineReplica, read_part
from spark_jobs.common import places
from spark_jobs.replaying.epoch import Epoch, Parts

T = TypeVar("T")

TIMEOUT_S = 120.0
PAUSE_S_FIRST, PAUSE_S_MAX = 0.05, 5.0
CHECKPOINTS_MAX = 20
"""How often the end of an epoch is swapped in while other replicas make checkpoints below it."""


class FileHorizon:
    """The floor of a source that is read from files: nothing trims them."""

    async def register(self, **told: Any) -> None:
        """Nobody needs to know who reads."""


class FileSource:
    """The row that a pipeline reads, in place of the log itself: its entries lie in files."""

    def __init__(self, row: Any, begin: Position) -> None:
        self.name, self.kind, self.margin_ms = row.name, row.kind, row.margin_ms
        self.horizon = FileHorizon()
        self._begin = begin

    async def opened(self) -> None:
        """There is nothing to open."""

    async def first(self) -> int:
        """The index at which the files begin."""
        return self._begin.index


class SparkTasks:
    """The tasks of a replica on Spark: they have run once its epoch is there."""

    def __init__(self) -> None:
        self.beside: list[asyncio.Task[None]] = []
        self.epoch: Epoch | None = None

    async def begin(self, at: Position) -> None:
        """Nothing runs yet."""

    async def saved(self, since: Position | None) -> Iterator[bytes]:
        """The lines of the next parts."""
        assert self.epoch is not None
        return self.epoch.sections()

    def end(self) -> None:
        """Let go of what the epoch keeps."""
        if self.epoch is not None:
            self.epoch.end()


class CatchUp(PipelineReplica):
    """A replica that takes one epoch's entries at once."""

    def __init__(
        self, plan: PipelinePlan, place: Place, scratch: places.Place, begin: Position, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Take where the register and the sinks are, where executors read parts, and where the source's files begin.

        An outage of the store is sat out for `timeout_s`.
        """
        super().__init__(plan, place)
        self._source = FileSource(plan.source_row(), begin)  # type: ignore[assignment]  # what a replica asks of it
        self._on_spark = SparkTasks()
        self.tasks = self._on_spark  # type: ignore[assignment]  # likewise
        self._scratch = scratch
        self._timeout_s = timeout_s
        self.files: list[str] = []

    @property
    def parts(self) -> Parts:
        """The parts of the checkpoint that it begins at, for tasks."""
        return Parts(self._scratch.lend(), self.files)

    @property
    def states_bytes(self) -> int:
        """The bytes of the states that it begins with."""
        assert self.known is not None
        return sum(part.size_bytes for part in self.known.register.stands.parts)

    @property
    def saves_all(self) -> bool:
        """Whether the next checkpoint has all states, changed or not."""
        assert self.known is not None
        sizes = [part.size_bytes for part in self.known.register.stands.parts]
        base = base_count(sizes)
        return self._saves_all or len(sizes) - base >= PARTS_MAX or sum(sizes[base:]) > sum(sizes[:base])

    async def _load(self, checkpoint: Checkpoint) -> list[Held]:
        schemas = {
            each.name: states.schema
            for each in self.plan.operators
            if (states := states_of(core_of(self.plan.name, each))) is not None
        }
        self.files = []
        for part in checkpoint.parts:
            data, name = await read_part(self.place, part), part.blob.replace("/", "_")
            for section in sections_of(data, part):
                self._saves_all |= section.schema != schemas.get(section.operator)
            await asyncio.to_thread(self._scratch.create, name, data)
            self.files.append(name)
        return [line for part in checkpoint.held for line in lines_of(await read_part(self.place, part), part, Held)]

    async def take(self, epoch: Epoch, until: Position, time_ms: int) -> Position:
        """Release what an epoch puts out, and make the checkpoint at its end; where the one is that stands.

        Raises:
            BeginAgain: another checkpoint stands than the one that it began at, and needs another epoch.
            OutputUnstorable, NotDeterministic, OtherWriter: as a live replica.
        """
        self._on_spark.epoch = epoch
        for name, sink in self.sinks.items():
            async for frame, is_stored in beside(epoch.outputs(name)):
                sink.barrier.feed(frame, is_stored)
                await patiently(partial(self._release, sink), self._timeout_s)
            sink.barrier.feed(Frame([], until))
            await patiently(partial(self._release, sink), self._timeout_s)
        self.at, self.time_ms = until, time_ms
        for _ in range(CHECKPOINTS_MAX):
            await patiently(self.checkpoint, self._timeout_s)
            assert self.known is not None
            if self.known.register.stands.c >= until:
                return self.known.register.stands.c
        raise Refused(f"pipeline {self.plan.name}: others make checkpoints all the time; run the same command again")

    async def _parts(self, before: list[PartRef], saved: Any) -> list[PartRef]:
        epoch = self._on_spark.epoch
        parts = [] if epoch is None or epoch.saves_all else [*before]
        return [*parts, *[await self._written(data) async for data in beside(in_parts(saved))]]


async def patiently(call: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Call again where a store fails in a way that may pass, for so long.

    Raises:
        Refused, OutcomeUnknown: it still fails, or it will not pass.
    """
    retrying = AsyncRetrying(
        retry=retry_if_exception(
            lambda error: isinstance(error, Refused | OutcomeUnknown) and not isinstance(error, FINAL)
        ),
        stop=stop_after_delay(timeout_s),
        wait=wait_random_exponential(multiplier=PAUSE_S_FIRST, max=PAUSE_S_MAX),
        reraise=True,
    )
    return await retrying(call)


async def beside(found: Iterator[T]) -> AsyncIterator[T]:
    """Yield from an iterator that waits for Spark; meanwhile others go on."""
    nothing = object()
    while (each := await asyncio.to_thread(next, found, nothing)) is not nothing:
        yield each  # type: ignore[misc]  # it is no `nothing`
