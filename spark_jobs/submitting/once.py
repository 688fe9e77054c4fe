"""Runs on a service that knows no idempotency key: each is started once, whoever asks and however often.

*Theory of operation.*  A batch has no key that the service would compare, so a second `create` is a second batch.
Three things stand against that, each where the one before ends:

    claim   before it asks for a batch, a submitter writes into the run's document, under compare-and-swap, that it is
            going to, and until when what it asked for may turn up.  Nobody else asks before that time.
    list    a `create` whose outcome is unknown, or whose submitter died, may have been applied.  After the claim's
            time the batches are listed by the run's tag; only where none is there the run is claimed anew.
    lease   the job itself takes the run's lease at its start and ends where another holds it, where the run is over or
            cancelled (`spark_jobs.submitted`).  So even a batch that turns up after every stated time does nothing.

The first two rest on time (a request does not take effect `settle_s` after its answer was given up, clocks are that
close); they keep surplus batches from being made.  The third does not; it keeps them from working.

A claim is given up at once where the service has refused, and otherwise runs out, so a run that was asked for is
started in the end, as long as somebody asks again: a request on the queue does, by coming again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.spark import ENDED, NotRunnable, Phase, RunId, RunPending, RunRequest, RunStatus, SparkRuns
from spark_jobs.submitting.documents import Claim, RunDocument, RunDocuments, change, ended

log = logging.getLogger("outbox.spark")

ROUND_COUNT_MAX = 20
BUSY_AFTER_S = 5.0


class Batch(msgspec.Struct, frozen=True):
    """A batch as the service tells of it."""

    id: str
    phase: Phase
    detail: str = ""


class Batches(Protocol):
    """A service that runs batches."""

    async def create(self, run: RunId, request: RunRequest, *, within_s: float) -> Batch:
        """Ask for a batch that carries the run's tag; no request begins after `within_s` seconds.

        Raises:
            Refused, Throttled: none was made.
            OutcomeUnknown: one may have been made.
        """

    async def find(self, run: RunId) -> list[Batch]:
        """The batches that carry the run's tag, oldest first.

        Raises:
            OutcomeUnknown, Refused: nobody can tell.
        """

    async def get(self, batch: str) -> Batch | None:
        """A batch, None where the service knows it no more."""

    async def cancel(self, batch: str) -> None:
        """End a batch; one that has ended or is not known is left."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a start may take: requests begin within `window_s`, each takes `request_s` at most.

    What was asked for may take effect until `settle_s` after that; clocks of submitters differ by less.
    """

    window_s: float = 20.0
    request_s: float = 30.0
    settle_s: float = 40.0

    @property
    def claim_s(self) -> float:
        """How long nobody else may ask."""
        return self.window_s + self.request_s + self.settle_s


class OnceRuns:
    """Starts runs, each once."""

    def __init__(
        self,
        documents: RunDocuments,
        batches: Batches,
        *,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        new_owner: Callable[[], str],
        timing: Timing | None = None,
    ) -> None:
        self._documents = documents
        self._batches = batches
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._new_owner = new_owner
        self.timing = timing or Timing()

    # Starting

    async def submit(self, run: RunId, request: RunRequest) -> RunStatus:
        """Start a run, or say what became of it; see `SparkRuns`."""
        for _ in range(ROUND_COUNT_MAX):
            seen = await self._documents.read(run)
            if seen is None:
                known = RunDocument(job=request.job, arguments=request.arguments, asked_ms=self._now_ms())
            else:
                known = seen.document
                _check_same(run, known, request)
                if known.batch or known.ended is not None:
                    return self._told(run, known)
                found = await self._settled(run, known)
                if found is not None or known.is_cancelled or known.lease is not None:
                    return await self._recorded(run, found)
            began_s = self._monotonic_s()
            claimed = self._claimed(known)
            if await self._documents.write(run, claimed, "" if seen is None else seen.version):
                return await self._created(run, claimed, began_s)
        raise RunPending(f"run {run} is being changed by others all the time", after_s=BUSY_AFTER_S)

    def _claimed(self, document: RunDocument) -> RunDocument:
        claim = Claim(self._new_owner(), self._now_ms() + round(self.timing.claim_s * 1_000))
        return msgspec.structs.replace(document, claim=claim, claim_count=document.claim_count + 1)

    async def _settled(self, run: RunId, document: RunDocument) -> Batch | None:
        """The batch that an earlier submitter got, None where it is certain that it got none.

        Raises:
            RunPending: one may still turn up.
        """
        claim = document.claim
        left_ms = 0 if claim is None else claim.until_ms - self._now_ms()  # before the list: what it shows is complete
        found = await self._batches.find(run)
        if found:
            return found[0]
        if left_ms > 0 and document.lease is None:
            raise RunPending(
                f"run {run} was claimed by another submitter and no batch is there yet", after_s=left_ms / 1_000
            )
        return None

    async def _created(self, run: RunId, claimed: RunDocument, began_s: float) -> RunStatus:
        """Ask for a batch under a claim that is ours."""
        within_s = self.timing.window_s - (self._monotonic_s() - began_s)
        try:
            if within_s <= 0:
                # Others count on the times of the claim.
                raise Throttled(f"run {run} was claimed too slowly; ask again", retry_after_s=1.0)
            batch = await self._batches.create(run, claimed.request, within_s=within_s)
        except Refused:
            with suppress(OutcomeUnknown, Refused):  # it runs out by itself
                await change(self._documents, run, lambda now: _released(now, claimed))
            raise
        except OutcomeUnknown as unknown:
            log.warning("spark run may have been started", extra={"run": run, "error": str(unknown)})
            with suppress(OutcomeUnknown, Refused):
                if found := await self._batches.find(run):
                    return await self._recorded(run, found[0])
            left_s = self.timing.claim_s - (self._monotonic_s() - began_s)
            raise RunPending(f"whether run {run} was started is not known: {unknown}", after_s=max(1.0, left_s)) from (
                unknown
            )
        log.info("spark run started", extra={"run": run, "job": claimed.job, "batch": batch.id})
        return await self._recorded(run, batch)

    async def _recorded(self, run: RunId, batch: Batch | None) -> RunStatus:
        """Write down which batch it is; a run that was cancelled meanwhile ends."""
        document = await change(self._documents, run, lambda now: _with_batch(now, batch))
        if document is None:
            raise OutcomeUnknown(f"the document of run {run} is gone; who deletes there? Ask again")
        if document.is_cancelled and batch is not None:
            await self._batches.cancel(batch.id)
        return self._told(run, document)

    # Looking and ending

    async def status(self, run: RunId) -> RunStatus:
        """The status of a run; see `SparkRuns`."""
        seen = await self._documents.read(run)
        if seen is None:
            return RunStatus(run=run, phase="unknown", detail="nobody has asked for a run of this id")
        document = seen.document
        told = self._told(run, document)
        if told.phase != "submitted":
            return told
        batch = await self._batches.get(document.batch)
        if batch is None:
            return _with(told, "unknown", f"the service knows batch {document.batch} no more, and it left no result")
        if document.is_cancelled and batch.phase in ENDED:
            return _with(told, "cancelled", batch.detail)
        return _with(told, batch.phase, batch.detail)

    async def cancel(self, run: RunId) -> RunStatus:
        """End a run; see `SparkRuns`."""
        document = await change(self._documents, run, _cancelled)  # from here on no job begins, whoever starts it
        if document is None or document.ended is not None:
            return await self.status(run)
        found = [document.batch] if document.batch else [batch.id for batch in await self._batches.find(run)]
        for batch in found:
            await self._batches.cancel(batch)
        return await self.status(run)

    def _told(self, run: RunId, document: RunDocument) -> RunStatus:
        """The status by the document alone."""
        phase: Phase = "submitted" if document.batch else "waiting"
        if document.ended is not None:
            phase = document.ended
        elif document.is_leased(self._now_ms()) and not document.is_cancelled:
            phase = "running"
        elif document.is_cancelled and not document.batch:
            phase = "cancelled"
        return RunStatus(run=run, job=document.job, phase=phase, batch=document.batch, detail=document.detail)


def _check_same(run: RunId, document: RunDocument, request: RunRequest) -> None:
    if document.request != request:
        raise NotRunnable(
            f"run {run} was asked for as another job or with other arguments; give the new one another id"
        )


def _released(now: RunDocument, claimed: RunDocument) -> RunDocument:
    return msgspec.structs.replace(now, claim=None) if now.claim == claimed.claim else now


def _with_batch(now: RunDocument, batch: Batch | None) -> RunDocument:
    """The first batch that is known stays: a surplus one finds the lease taken, and is not ours to end."""
    return now if batch is None or now.batch else msgspec.structs.replace(now, batch=batch.id)


def _cancelled(now: RunDocument) -> RunDocument:
    if now.ended is not None or now.is_cancelled:
        return now
    wanted = msgspec.structs.replace(now, is_cancelled=True)
    return wanted if now.claim is not None or now.batch else ended(wanted, "cancelled")


def _with(told: RunStatus, phase: Phase, detail: str) -> RunStatus:
    return msgspec.structs.replace(told, phase=phase, detail=detail)


_conforms: type[SparkRuns] = OnceRuns
