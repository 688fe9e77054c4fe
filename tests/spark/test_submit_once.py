"""One trigger, one job: submitters that race and die, creations whose answer is lost, batches that turn up late."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outbox import Engine
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, Throttled
from outbox.ports import Version
from outbox.runtime.store_operations import operations_over
from outbox.spark import NotRunnable, RunId, RunPending, RunRequest, RunStatus
from spark_jobs.submitted import LeaseKeeper, LeaseTimes, Turned
from spark_jobs.submitting.documents import FolderRuns, NotedRuns, RunDocument, RunDocuments, Seen
from spark_jobs.submitting.once import Batch, Batches, OnceRuns, Timing
from tests.spark.ledgers import Died
from tests.spark.livy import Livy

RUN, REQUEST = RunId("nightly-1"), RunRequest("feed", ("--input", "transfers.csv"))
TIMING = Timing(window_s=0.3, request_s=0.3, settle_s=0.2)
NUMBERS = itertools.count(1)


@dataclass
class Mortal:
    """A process's calls of its ports, counted: at one of them it dies, before it or after."""

    dies_at: int = 0
    moment: str = "before"
    calls: int = 0

    async def call(self, made: Any) -> Any:
        self.calls += 1
        is_last = self.calls == self.dies_at
        if is_last and self.moment == "before":
            made.close()
            raise Died
        result = await made
        if is_last:
            raise Died
        return result


@dataclass
class MortalDocuments:
    inner: RunDocuments
    life: Mortal

    async def read(self, run: RunId) -> Seen | None:
        return await self.life.call(self.inner.read(run))  # type: ignore[no-any-return]  # whatever it was called with

    async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        return await self.life.call(self.inner.write(run, document, version))  # type: ignore[no-any-return]  # as above


@dataclass
class MortalBatches:
    inner: Batches
    life: Mortal

    async def create(self, run: RunId, request: RunRequest, *, within_s: float) -> Batch:
        return await self.life.call(self.inner.create(run, request, within_s=within_s))  # type: ignore[no-any-return]  # as above

    async def find(self, run: RunId) -> list[Batch]:
        return await self.life.call(self.inner.find(run))  # type: ignore[no-any-return]  # as above

    async def get(self, batch: str) -> Batch | None:
        return await self.inner.get(batch)

    async def cancel(self, batch: str) -> None:
        await self.life.call(self.inner.cancel(batch))


@dataclass
class Site:
    """A pool, the documents of its runs, and which batches have worked."""

    livy: Livy
    documents: RunDocuments
    worked: list[int] = field(default_factory=list)

    async def job(self, batch: dict[str, Any]) -> None:
        """What a batch does: take the lease as the shipped main definition does, work, and say so."""
        times = LeaseTimes(lease_s=30.0)
        keeper = LeaseKeeper(self.documents, RunId(batch["args"][1]), f"app-{batch['id']}", now_ms=now_ms, times=times)
        try:
            await keeper.take()
        except Turned:
            batch |= {"state": "success", "result": "Succeeded"}
            return
        batch["state"] = "running"
        self.worked.append(batch["id"])
        await asyncio.sleep(0.01)
        await keeper.end("succeeded", "")
        batch |= {"state": "success", "result": "Succeeded"}

    def runs(self, life: Mortal | None = None, **settings: Any) -> OnceRuns:
        life = life or Mortal()
        return OnceRuns(
            MortalDocuments(self.documents, life),
            MortalBatches(self.livy.client(**settings), life),
            now_ms=now_ms,
            monotonic_s=time.monotonic,
            new_owner=lambda: f"owner-{next(NUMBERS)}",
            timing=TIMING,
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def site(documents: RunDocuments, **faults: Any) -> AsyncIterator[Site]:
    found = Site(Livy(**faults), documents)
    found.livy.run = found.job
    async with found.livy.serving():
        yield found


async def triggered(runs: Callable[[], OnceRuns], *, within_s: float = 8.0) -> RunStatus:
    """Ask as a queue does: again, by a new process if the last one died, until somebody has an answer."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await runs().submit(RUN, REQUEST)
            except RunPending as pending:
                await asyncio.sleep(min(pending.after_s, 0.3))
            except (OutcomeUnknown, Throttled, Died):
                await asyncio.sleep(0.02)


def lives(*first: Mortal) -> Callable[[], Mortal]:
    """The first processes as given, later ones immortal."""
    left = list(first)
    return lambda: left.pop(0) if left else Mortal()


@pytest.fixture
def folder(tmp_path: Path) -> FolderRuns:
    return FolderRuns(tmp_path / "runs")


MOMENTS = [(at, moment) for at in range(1, 6) for moment in ("before", "after")]


@pytest.mark.parametrize(("at", "moment"), MOMENTS)
async def test_a_submitter_that_dies_anywhere_leaves_one_job_and_not_none(
    at: int, moment: str, folder: FolderRuns
) -> None:
    async with site(folder) as found:
        next_life = lives(Mortal(at, moment))
        await triggered(lambda: found.runs(next_life()))
        await found.livy.quiet()
        assert len(found.livy.batches) == 1 and found.worked == [1]
        assert (await found.runs().status(RUN)).phase == "succeeded"


@pytest.mark.parametrize("fault", ["lost", "dark", "late", "dusk", "broken", "busy"])
@pytest.mark.parametrize("dies_at", [0, 3, 4])
async def test_a_creation_whose_answer_is_lost_is_not_made_twice(fault: str, dies_at: int, folder: FolderRuns) -> None:
    async with site(folder, faults=[fault]) as found:
        next_life = lives(Mortal(dies_at, "after"))
        await triggered(lambda: found.runs(next_life()))
        await found.livy.quiet()
        assert len(found.livy.batches) == 1 and found.worked == [1]


@pytest.mark.parametrize("seed", range(10))
async def test_submitters_that_race_and_die_make_one_job(seed: int, folder: FolderRuns) -> None:
    chance = random.Random(seed)
    faults = chance.choices(["done", "lost", "dark", "late", "dusk", "broken", "busy"], k=3)
    async with site(folder, faults=faults, reply_s=chance.choice([0.0, 0.05])) as found:
        deaths = [Mortal(chance.randint(1, 6), chance.choice(["before", "after"])) for _ in range(chance.randint(0, 3))]
        next_life = lives(*deaths)
        reported = await asyncio.gather(*(triggered(lambda: found.runs(next_life())) for _ in range(3)))
        await found.livy.quiet()
        assert len(found.livy.batches) == 1 and found.worked == [1], (faults, deaths)
        assert {status.batch for status in reported} <= {"1", ""}


async def test_a_batch_that_turns_up_after_every_stated_time_does_nothing(folder: FolderRuns) -> None:
    async with site(folder, faults=["late"], late_s=1.5) as found:
        await triggered(lambda: found.runs())
        await found.livy.quiet()
        assert len(found.livy.batches) == 2 and found.worked == [1]
        assert (await found.runs().status(RUN)).phase == "succeeded"


@pytest.mark.parametrize("kind", ["engine", "partition", "item"])
async def test_runs_are_kept_among_the_notes_of_any_backend(kind: str) -> None:
    async with Engine.in_memory() as engine:
        backend = engine if kind == "engine" else NarrowEngine(engine, kind)  # type: ignore[arg-type]  # of three texts
        async with site(NotedRuns(operations_over(backend.ports())), faults=["lost"]) as found:
            next_life = lives(Mortal(2, "after"), Mortal(3, "before"))
            both = [triggered(lambda: found.runs(next_life())) for _ in range(2)]
            await asyncio.gather(*both)
            await found.livy.quiet()
            assert len(found.livy.batches) == 1 and found.worked == [1]


async def test_a_refusal_gives_the_claim_up_so_that_the_next_attempt_need_not_wait(folder: FolderRuns) -> None:
    async with site(folder) as found:
        wrong = Livy(url=found.livy.url).client()
        wrong._url = wrong._url.replace("/small/", "/gone/")
        runs = found.runs()
        runs._batches = wrong
        with pytest.raises(Exception, match="the pool"):
            await runs.submit(RUN, REQUEST)
        assert (await found.runs().submit(RUN, REQUEST)).batch == "1"


async def test_the_same_run_with_other_arguments_is_refused(folder: FolderRuns) -> None:
    async with site(folder) as found:
        await found.runs().submit(RUN, REQUEST)
        with pytest.raises(NotRunnable, match="another id"):
            await found.runs().submit(RUN, RunRequest("feed", ("--input", "other.csv")))
        assert found.livy.creates == 1


async def test_a_run_that_is_cancelled_before_its_batch_is_there_never_works(folder: FolderRuns) -> None:
    async with site(folder, faults=["late"]) as found:
        with pytest.raises(RunPending):
            await found.runs().submit(RUN, REQUEST)
        assert (await found.runs().cancel(RUN)).phase == "cancelled"
        await found.livy.quiet()
        assert len(found.livy.batches) == 1 and found.worked == []
        assert (await triggered(lambda: found.runs())).batch == "1"
        assert (await found.runs().status(RUN)).phase == "cancelled"


async def test_a_run_that_works_is_ended_by_cancel(folder: FolderRuns) -> None:
    async with site(folder) as found:
        found.livy.run = None
        await found.runs().submit(RUN, REQUEST)
        found.livy.batches[0]["state"] = "running"
        assert (await found.runs().status(RUN)).phase == "running"
        assert (await found.runs().cancel(RUN)).phase == "cancelled"
        assert found.livy.batches[0]["state"] == "killed"


async def test_a_run_without_a_request_is_unknown(folder: FolderRuns) -> None:
    async with site(folder) as found:
        assert (await found.runs().status(RunId("other"))).phase == "unknown"
        assert (await found.runs().cancel(RunId("other"))).phase == "unknown"
