"""The times that a start of a Spark run counts on, moved by hand: claims, slow answers, leases without a renewal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.ports import Document, DocumentKey, Version
from outbox.spark import RunId, RunPending, RunRequest
from spark_jobs.submitted import LeaseKeeper, LeaseTimes, keep
from spark_jobs.submitting.documents import Claim, FolderRuns, NotedRuns, RunDocument, Seen, change
from spark_jobs.submitting.once import Batch, OnceRuns

RUN, REQUEST = RunId("nightly-1"), RunRequest("feed", ("--input", "x.csv"))


class Hand:
    """A clock that is moved by hand."""

    s = 1_000.0

    def ms(self) -> int:
        return round(self.s * 1_000)


class Pool:
    """A service of batches; something may happen before it answers."""

    def __init__(self) -> None:
        self.created: list[Batch] = []
        self.cancelled: list[str] = []
        self.before_list: Callable[[], None] = lambda: None
        self.on_create: Any = None

    async def create(self, run: RunId, request: RunRequest, *, within_s: float) -> Batch:
        if self.on_create is not None:
            await self.on_create()
        self.created.append(Batch(str(len(self.created)), "submitted"))
        return self.created[-1]

    async def find(self, run: RunId) -> list[Batch]:
        self.before_list()
        return []

    async def get(self, batch: str) -> Batch | None:
        return None

    async def cancel(self, batch: str) -> None:
        self.cancelled.append(batch)


class SlowDocuments(FolderRuns):
    """Documents of runs of which a write takes a while."""

    def __init__(self, folder: Path, hand: Hand, takes_s: float) -> None:
        super().__init__(folder)
        self.hand = hand
        self.takes_s = takes_s

    async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        self.hand.s += self.takes_s
        return await super().write(run, document, version)


def runs_over(documents: Any, pool: Pool, hand: Hand) -> OnceRuns:
    return OnceRuns(
        documents, pool, now_ms=hand.ms, monotonic_s=lambda: hand.s, new_owner=lambda: f"owner-{len(pool.created)}"
    )


async def test_a_claim_that_took_too_long_is_given_up_and_nothing_is_asked_for(tmp_path: Path) -> None:
    hand, pool = Hand(), Pool()
    documents = SlowDocuments(tmp_path, hand, takes_s=25)  # others count on a request within twenty seconds
    with pytest.raises(Throttled):
        await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    seen = await documents.read(RUN)
    assert pool.created == [] and seen is not None and seen.document.claim is None
    documents.takes_s = 0
    await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    assert len(pool.created) == 1


async def test_who_is_refused_late_leaves_the_claim_of_another_alone(tmp_path: Path) -> None:
    hand, pool, documents = Hand(), Pool(), FolderRuns(tmp_path)
    theirs = Claim("another", hand.ms() + 500_000)

    async def refused_late() -> None:
        await change(documents, RUN, lambda now: msgspec.structs.replace(now, claim=theirs))  # ours had run out
        raise Refused("the pool is full")

    pool.on_create = refused_late
    with pytest.raises(Refused):
        await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    seen = await documents.read(RUN)
    assert seen is not None and seen.document.claim == theirs
    pool.on_create = None
    with pytest.raises(RunPending):
        await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    assert pool.created == []


async def test_a_claim_that_ends_while_batches_are_listed_is_waited_for(tmp_path: Path) -> None:
    hand, pool, documents = Hand(), Pool(), FolderRuns(tmp_path)
    claim = Claim("another", hand.ms() + 5_000)
    await documents.write(RUN, RunDocument(job="feed", arguments=REQUEST.arguments, asked_ms=1, claim=claim), "")

    def slow() -> None:
        hand.s += 10  # what was asked for at the claim's end need not be in a list that began before it

    pool.before_list = slow
    with pytest.raises(RunPending):
        await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    assert pool.created == []
    await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    assert len(pool.created) == 1


async def test_a_run_that_is_cancelled_while_its_batch_is_made_ends_it(tmp_path: Path) -> None:
    hand, pool, documents = Hand(), Pool(), FolderRuns(tmp_path)

    async def cancelled() -> None:
        await change(documents, RUN, lambda now: msgspec.structs.replace(now, is_cancelled=True))

    pool.on_create = cancelled
    await runs_over(documents, pool, hand).submit(RUN, REQUEST)
    assert pool.cancelled == ["0"]


async def test_a_job_stops_in_time_where_a_renewal_does_not_answer(tmp_path: Path) -> None:
    documents, told, times = FolderRuns(tmp_path), list[str](), LeaseTimes(lease_s=2.0, renew_s=0.02, spare_s=1.9)
    await documents.write(RUN, RunDocument(job="feed", asked_ms=1), "")
    keeper = LeaseKeeper(documents, RUN, "one", now_ms=Hand().ms, times=times)

    async def hangs() -> None:
        await asyncio.sleep(60)

    keeper.renew = hangs  # type: ignore[method-assign]  # a service that does not answer
    began_s = asyncio.get_running_loop().time()
    await keep(keeper, told.append)
    assert len(told) == 1 and asyncio.get_running_loop().time() - began_s < 1.0  # the spare is left


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_document_whose_writing_got_no_answer_is_read_to_see_who_won(is_applied: bool) -> None:
    class Notes:
        body = b""

        async def note(self, name: str) -> Document | None:
            return Document(DocumentKey("notes", name), self.body, "1") if self.body else None

        async def write_note(self, name: str, body: bytes, version: Version) -> bool:
            self.body = body if is_applied else msgspec.json.encode(RunDocument(job="sweep", asked_ms=2))
            raise OutcomeUnknown("no answer")

    documents = NotedRuns(cast(Any, Notes()))
    assert await documents.write(RUN, RunDocument(job="feed", asked_ms=1), "") is is_applied
    assert isinstance(await documents.read(RUN), Seen)
