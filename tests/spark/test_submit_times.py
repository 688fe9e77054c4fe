"""The times that a start of a Spark run counts on, moved by hand: claims, slow answers, leases without a renewal."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox.errors import CorruptRecord, OutcomeUnknown, Refused, Throttled
from outbox.ports import Document, DocumentKey, Version
from outbox.spark import RunId, RunPending, RunRequest
from spark_jobs import submitted
from spark_jobs.submitted import LeaseKeeper, LeaseTimes, keep
from spark_jobs.submitting.documents import (
    DETAIL_CHARACTERS,
    Claim,
    FolderRuns,
    Lease,
    NotedRuns,
    RunDocument,
    Seen,
    change,
    ended,
)
from spark_jobs.submitting.once import Batch, OnceRuns, Timing

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
        self.known: Batch | None = None
        self.listed: list[Batch] = []

    async def create(self, run: RunId, request: RunRequest, *, within_s: float) -> Batch:
        if self.on_create is not None:
            await self.on_create()
        self.created.append(Batch(str(len(self.created)), "submitted"))
        return self.created[-1]

    async def find(self, run: RunId) -> list[Batch]:
        self.before_list()
        return self.listed

    async def get(self, batch: str) -> Batch | None:
        return self.known if self.known is not None and self.known.id == batch else None

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
    seen = await documents.read(RUN)
    assert len(pool.created) == 1 and seen is not None and seen.document.claim_count == 2


@pytest.mark.parametrize(("answer_s", "after_s"), [(0, 90), (30, 60), (500, 1)])
async def test_a_start_that_may_have_taken_effect_is_asked_for_when_its_claim_ends(
    tmp_path: Path, answer_s: float, after_s: float
) -> None:
    hand, pool = Hand(), Pool()

    async def lost() -> None:
        hand.s += answer_s
        raise OutcomeUnknown("no answer")

    pool.on_create = lost
    with pytest.raises(RunPending) as pending:
        await runs_over(FolderRuns(tmp_path), pool, hand).submit(RUN, REQUEST)
    assert pending.value.after_s == after_s


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


async def test_of_the_batches_that_an_earlier_submitter_left_the_oldest_is_the_runs(tmp_path: Path) -> None:
    hand, pool, documents = Hand(), Pool(), FolderRuns(tmp_path)
    claim = Claim("another", hand.ms())
    await documents.write(RUN, RunDocument(job="feed", arguments=REQUEST.arguments, asked_ms=1, claim=claim), "")
    pool.listed = [Batch("5", "submitted"), Batch("6", "submitted")]
    assert (await runs_over(documents, pool, hand).submit(RUN, REQUEST)).batch == "5" and pool.created == []


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


@pytest.mark.parametrize(("writing_s", "left_s"), [(0, 180), (100, 80)])
async def test_the_wait_for_a_renewal_leaves_its_time_out_of_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing_s: float, left_s: float
) -> None:
    """The lease runs from before it was written down, not from its answer or from where the next renewal begins."""
    told, given_s, hand, times = list[str](), list[float](), Hand(), LeaseTimes(lease_s=300, renew_s=60, spare_s=60)

    async def gives_up(renewal: Coroutine[Any, Any, None], within_s: float) -> None:
        renewal.close()
        given_s.append(within_s)
        raise TimeoutError

    async def sleep(pause_s: float) -> None:
        hand.s += pause_s

    monkeypatch.setattr(submitted, "time", SimpleNamespace(monotonic=lambda: hand.s))
    documents = SlowDocuments(tmp_path, hand, writing_s)
    await documents.write(RUN, RunDocument(job="feed", asked_ms=1), "")
    keeper = LeaseKeeper(documents, RUN, "one", now_ms=hand.ms, times=times)
    hand.s += 40  # until it is taken
    await keeper.take()
    ours = SimpleNamespace(**{**vars(asyncio), "wait_for": gives_up, "sleep": sleep})
    monkeypatch.setattr(submitted, "asyncio", ours)
    await keep(keeper, told.append)
    assert given_s == [left_s] and len(told) == 1


@pytest.mark.parametrize(
    ("known", "phase"),
    [
        ({"ended": "succeeded"}, "succeeded"),
        ({"batch": "7"}, "submitted"),
        ({"lease": Lease("its job", 1)}, "waiting"),
        ({"lease": Lease("its job", 1), "claim": Claim("another", 1 << 50)}, "waiting"),
        ({"is_cancelled": True}, "cancelled"),
    ],
    ids=["over", "made", "worked at", "worked at and claimed", "cancelled"],
)
async def test_a_run_that_was_started_is_not_started_again_when_its_batch_is_listed_no_more(
    known: dict[str, Any], phase: str, tmp_path: Path
) -> None:
    hand, pool, documents = Hand(), Pool(), FolderRuns(tmp_path)
    given = {"claim": Claim("another", hand.ms() - 1), **known}
    document = RunDocument(job="feed", arguments=REQUEST.arguments, asked_ms=1, **given)
    await documents.write(RUN, document, "")
    assert (await runs_over(documents, pool, hand).submit(RUN, REQUEST)).phase == phase
    assert pool.created == []


OURS, OVER = Lease("its job", 1_000_001), Lease("its job", 1_000_000)


@pytest.mark.parametrize(
    ("known", "batch_phase", "phase"),
    [
        (None, None, "unknown"),
        ({}, None, "waiting"),
        ({"is_cancelled": True}, None, "cancelled"),
        ({"ended": "failed", "batch": "7"}, "running", "failed"),
        ({"batch": "7"}, None, "unknown"),
        ({"batch": "7"}, "running", "running"),
        ({"batch": "7"}, "dead", "dead"),
        ({"batch": "7", "lease": OURS}, None, "running"),
        ({"batch": "7", "lease": OVER}, "submitted", "submitted"),
        ({"batch": "7", "lease": OURS, "is_cancelled": True}, "submitted", "submitted"),
        ({"batch": "7", "is_cancelled": True}, "failed", "cancelled"),
        ({"batch": "7", "is_cancelled": True}, "running", "running"),
    ],
)
async def test_what_a_run_is_follows_from_its_document_and_then_from_its_batch(
    known: dict[str, Any] | None, batch_phase: Any, phase: str, tmp_path: Path
) -> None:
    pool, documents = Pool(), FolderRuns(tmp_path)
    pool.known = batch_phase and Batch("7", batch_phase)
    if known is not None:
        await documents.write(RUN, RunDocument(job="feed", asked_ms=1, **known), "")
    assert (await runs_over(documents, pool, Hand()).status(RUN)).phase == phase


@pytest.mark.parametrize(
    ("known", "cancelled"),
    [
        (None, []),
        ({"ended": "succeeded", "batch": "7"}, []),
        ({"batch": "7"}, ["7"]),
        ({"batch": "7", "is_cancelled": True}, ["7"]),  # the first call may have died before it ended the batch
        ({"claim": Claim("another", 1)}, ["1", "2"]),
    ],
)
async def test_a_cancelled_run_has_its_batches_ended_also_those_that_no_document_names(
    known: dict[str, Any] | None, cancelled: list[str], tmp_path: Path
) -> None:
    pool, documents = Pool(), FolderRuns(tmp_path)
    pool.listed = [Batch("1", "running"), Batch("2", "running")]
    if known is not None:
        await documents.write(RUN, RunDocument(job="feed", asked_ms=1, **known), "")
    await runs_over(documents, pool, Hand()).cancel(RUN)
    assert pool.cancelled == cancelled


async def test_a_claim_lasts_until_nothing_of_it_can_turn_up_and_who_waits_learns_how_long(tmp_path: Path) -> None:
    assert Timing(window_s=1, request_s=2, settle_s=4).claim_s == 7
    hand, pool, documents = Hand(), Pool(), FolderRuns(tmp_path)
    claimed = list[Claim | None]()

    async def no_answer() -> None:
        seen = await documents.read(RUN)
        claimed.append(seen and seen.document.claim)
        hand.s += 30
        raise OutcomeUnknown("no answer")

    pool.on_create = no_answer
    for left_s in (60, 60):  # by who asked, and by who comes after
        with pytest.raises(RunPending) as pending:
            await runs_over(documents, pool, hand).submit(RUN, REQUEST)
        assert pending.value.after_s == left_s
    assert claimed == [Claim("owner-0", hand.ms() + 60_000)]


async def test_a_batch_that_is_listed_is_ours_though_its_creation_had_no_answer(tmp_path: Path) -> None:
    pool, documents = Pool(), FolderRuns(tmp_path)

    async def no_answer() -> None:
        pool.listed = [Batch("5", "submitted"), Batch("6", "submitted")]
        raise OutcomeUnknown("no answer")

    pool.on_create = no_answer
    told = await runs_over(documents, pool, Hand()).submit(RUN, REQUEST)
    assert (told.batch, told.phase) == ("5", "submitted")


async def test_the_first_batch_that_is_known_stays_a_runs_batch(tmp_path: Path) -> None:
    pool, documents = Pool(), FolderRuns(tmp_path)

    async def recorded_by_another() -> None:
        await change(documents, RUN, lambda now: msgspec.structs.replace(now, batch="7"))

    pool.on_create = recorded_by_another
    assert (await runs_over(documents, pool, Hand()).submit(RUN, REQUEST)).batch == "7"


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Refused("not allowed")])
async def test_what_fails_behind_a_creation_that_failed_does_not_hide_why(tmp_path: Path, error: Exception) -> None:
    class Failing(FolderRuns):
        async def read(self, run: RunId) -> Seen | None:
            if pool.created:
                raise error
            return await super().read(run)

    pool = Pool()

    def fails() -> None:
        raise error

    async def refused() -> None:
        pool.created.append(Batch("0", "submitted"))
        raise Refused("the pool is full")

    async def no_answer() -> None:
        pool.before_list = fails
        raise OutcomeUnknown("was it made?")

    for on_create, meant in ((refused, Refused), (no_answer, RunPending)):
        pool.on_create = on_create
        with pytest.raises(meant, match=r"the pool is full|was it made"):
            await runs_over(Failing(tmp_path / meant.__name__), pool, Hand()).submit(RUN, REQUEST)
        pool.created.clear()


def test_the_first_end_of_a_run_counts_and_lets_go_of_its_lease() -> None:
    at_work = RunDocument(job="feed", asked_ms=1, lease=Lease("one", 5))
    over = ended(at_work, "failed", "x" * (DETAIL_CHARACTERS + 1))
    assert (over.ended, over.detail, over.lease) == ("failed", "x" * DETAIL_CHARACTERS, None)
    assert ended(over, "succeeded", "after all") == over


async def test_documents_that_others_change_all_the_time_are_left_to_them(tmp_path: Path) -> None:
    class Busy(FolderRuns):
        async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
            return False

    documents, pool = Busy(tmp_path), Pool()
    with pytest.raises(RunPending, match="by others all the time"):
        await runs_over(documents, pool, Hand()).submit(RUN, REQUEST)
    await FolderRuns(tmp_path).write(RUN, RunDocument(job="feed", asked_ms=1), "")
    with pytest.raises(OutcomeUnknown, match="by others all the time"):
        await change(documents, RUN, lambda now: msgspec.structs.replace(now, batch="7"))
    assert pool.created == []


async def test_a_document_is_compared_under_its_lock_and_on_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, file, documents = list[tuple[str, bytes]](), tmp_path / f"{RUN}.json", FolderRuns(tmp_path)
    await documents.write(RUN, RunDocument(job="feed", asked_ms=1), "")
    before, read = await documents.read(RUN), documents._read

    def noted(step: str) -> None:
        [part] = tmp_path.glob("*.part") if step == "sync" else [file]
        seen.append((step, part.read_bytes() if file.exists() else b""))

    def compared(run: RunId) -> Seen | None:
        noted("read")
        return read(run)

    assert before is not None
    monkeypatch.setattr(fcntl, "flock", lambda *_: noted("lock"))
    monkeypatch.setattr(os, "fsync", lambda _: noted("sync"))
    monkeypatch.setattr(documents, "_read", compared)
    after = RunDocument(job="feed", asked_ms=1, batch="7")
    assert await documents.write(RUN, after, before.version)
    old, new = (msgspec.json.encode(document) for document in (before.document, after))
    assert seen == [("lock", old), ("read", old), ("sync", new)] and file.read_bytes() == new
    file.write_bytes(b'{"job": "fe')
    with pytest.raises(CorruptRecord, match="use another id"):
        await documents.read(RUN)


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
