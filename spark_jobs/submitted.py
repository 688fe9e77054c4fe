"""The main definition of every submitted batch: take the run's lease, run the job, write down how it ended.

    submitted.py --run RUN --runs cosmos:bank [--secret OUTBOX_COSMOS=vault/name/linked-service ...] feed --input ...

A batch that nobody submitted by way of `spark_jobs.submit`, say one of a pipeline, begins its run itself: `--begin`.

A batch that finds the run over, cancelled or in the hands of another process ends at once and touches nothing: that is
what makes a batch that the service started twice harmless.  The lease is renewed while the job works; a process that
can not renew it stops before anybody else may take it, for from then on it would not be alone.

Secrets come from Key Vault by the workspace's linked service and go into this process's environment, where the jobs
look; never into arguments, configuration or logs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from outbox.errors import OutboxError, OutcomeUnknown, Refused, Throttled
from outbox.spark import Phase, RunId, RunRequest, run_id, run_request
from spark_jobs.submitting.documents import Lease, RunDocument, RunDocuments, change, ended
from spark_jobs.submitting.places import documents_of

T = TypeVar("T")

CALL_S = 60.0
"""How long one look at the run's document may take."""
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a lease lasts and how often it is renewed; a job stops `spare_s` before its lease runs out."""

    lease_s: float = 300.0
    renew_s: float = 60.0
    spare_s: float = 60.0


class Turned(Exception):
    """The job is not to run here; `code` is what the process ends with."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class LeaseKeeper:
    """The lease of a run in the hands of one process."""

    def __init__(
        self,
        documents: RunDocuments,
        run: RunId,
        holder: str,
        *,
        now_ms: Callable[[], int],
        times: LeaseTimes | None = None,
        begin: RunRequest | None = None,
    ) -> None:
        """Take the run and its holder; `begin` is the request, where nobody may have asked before."""
        self._documents = documents
        self._run = run
        self._holder = holder
        self._now_ms = now_ms
        self.times = times or LeaseTimes()
        self.taken_s = time.monotonic()
        """When the newest lease that was asked for began, on this process's own clock."""
        self._begin = begin

    async def take(self) -> RunDocument:
        """Take the lease.

        Raises:
            Turned: the run is over, cancelled, or in other hands.
            OutcomeUnknown, Throttled: nobody can tell now.
        """
        document = await change(self._documents, self._run, self._taken)
        if document is None and self._begin is not None:
            made = RunDocument(job=self._begin.job, arguments=self._begin.arguments, asked_ms=self._now_ms())
            await self._documents.write(self._run, made, "")  # or somebody else did
            document = await change(self._documents, self._run, self._taken)
        if document is None:
            raise Turned(f"run {self._run} is not known; its document was deleted, or --runs names another place", 1)
        if document.ended is not None:
            raise Turned(f"run {self._run} is over: {document.ended}", 0 if document.ended != "failed" else 1)
        if document.is_cancelled:
            raise Turned(f"run {self._run} was cancelled")
        if document.lease is None or document.lease.holder != self._holder:
            raise Turned(f"run {self._run} is in the hands of another process")
        return document

    async def renew(self) -> None:
        """Extend the lease.

        Raises:
            Turned: it is not ours any more, or the run was cancelled.
            OutcomeUnknown, Throttled: it may not have been extended.
        """
        await self.take()

    def _taken(self, now: RunDocument) -> RunDocument:
        now_ms, self.taken_s = self._now_ms(), time.monotonic()
        if now.ended is not None or now.is_cancelled or now.is_leased(now_ms, but_for=self._holder):
            return now
        lease = Lease(self._holder, now_ms + round(self.times.lease_s * 1_000))
        return msgspec.structs.replace(now, lease=lease)

    async def end(self, phase: Phase, detail: str) -> None:
        """Write down how the run ended, if it is still ours."""
        await change(self._documents, self._run, lambda now: self._ended(now, phase, detail))

    def _ended(self, now: RunDocument, phase: Phase, detail: str) -> RunDocument:
        is_ours = now.lease is not None and now.lease.holder == self._holder
        return ended(now, phase, detail) if is_ours else now


class Beside:
    """An event loop in a thread of its own: the lease is renewed while the job has the main thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="run lease", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Do something there and wait for it."""
        return self.start(asyncio.wait_for(coroutine, CALL_S)).result(CALL_S + 5)


async def again(call: Callable[[], Coroutine[Any, Any, T]], within_s: float) -> T:
    """Do what may be done twice, again for so long while nobody can tell."""
    ends_s = time.monotonic() + within_s
    while True:
        try:
            return await call()
        except (OutcomeUnknown, Throttled):
            if time.monotonic() + 1 > ends_s:
                raise
        await asyncio.sleep(1)


async def keep(keeper: LeaseKeeper, stop: Callable[[str], None]) -> None:
    """Renew a lease for ever; `stop` ends the process when a renewal fails, or the run is to end."""
    times = keeper.times
    while True:
        ends_s = keeper.taken_s + times.lease_s - times.spare_s  # writing it down may have taken part of a lease
        await asyncio.sleep(times.renew_s)
        try:
            await asyncio.wait_for(again(keeper.renew, times.lease_s), ends_s - time.monotonic())
        except Turned as turned:
            return stop(str(turned))
        except Exception as error:
            return stop(f"the lease cannot be renewed: {error!r}")


def holder_of(environ: Mapping[str, str]) -> str:
    """The holder of a lease: YARN's application, so that its second attempt goes on; else this process."""
    found = _CONTAINER.search(environ.get("CONTAINER_ID", ""))
    return f"application_{found[1]}" if found else uuid4().hex


def fetch_secrets(named: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Put secrets of Key Vault into the environment: VARIABLE=vault/name or VARIABLE=vault/name/linked-service.

    Raises:
        Refused: one is not named so, or cannot be had.
    """
    for text in named:
        found = re.fullmatch(r"([A-Z][A-Z0-9_]*)=([\w-]+)/([\w-]+)(?:/([\w -]+))?", text)
        if not found:
            raise Refused(
                "--secret takes VARIABLE=vault/name or VARIABLE=vault/name/linked-service, and no secret itself"
            )
        variable, *where = (part for part in found.groups() if part)
        try:
            credentials = importlib.import_module("notebookutils").mssparkutils.credentials
        except ImportError as error:
            raise Refused(f"--secret {variable}: notebookutils is there in a Synapse or Fabric pool only") from error
        environ[variable] = str(credentials.getSecret(*where))


def put_settings(named: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Put settings that are no secrets into the environment.

    Raises:
        Refused: one is not named so, or looks like a secret.
    """
    for text in named:
        run_request("setting", [text])  # nothing that looks like a secret
        variable, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"OUTBOX_\w+|AZURE_(TENANT|CLIENT)_ID", variable):
            raise Refused("--setting takes VARIABLE=TEXT, of OUTBOX_..., AZURE_TENANT_ID and AZURE_CLIENT_ID")
        environ[variable] = value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.submitted", description="Run a job as a run that was submitted.")
    found.add_argument("--run", help="the run's id; default with --begin: a fresh one")
    found.add_argument("--begin", action="store_true", help="the run begins here, if nobody has asked for it yet")
    found.add_argument("--runs", required=True, metavar="PLACE", help="cosmos:DATABASE[/CONTAINER], or a folder")
    found.add_argument("--secret", action="append", default=[], metavar="VARIABLE=VAULT/NAME[/LINKED-SERVICE]")
    found.add_argument("--setting", action="append", default=[], metavar="VARIABLE=TEXT", help="what is no secret")
    found.add_argument("job", help="a module of spark_jobs, such as feed")
    found.add_argument("arguments", nargs=argparse.REMAINDER)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job from a command line."""
    arguments = parser().parse_args(argv)
    if not arguments.run and not arguments.begin:
        parser().error("say which run this is: --run RUN, or --begin for one of its own")
    try:
        request = run_request(arguments.job, arguments.arguments)
        put_settings(arguments.setting, os.environ)
        fetch_secrets(arguments.secret, os.environ)
        run, documents = run_id(arguments.run or uuid4().hex), documents_of(arguments.runs, os.environ)
        begin = request if arguments.begin else None
        keeper = LeaseKeeper(documents, run, holder_of(os.environ), now_ms=wall_ms, begin=begin)
        return worked(keeper, request.job, request.arguments)
    except Turned as turned:
        said(str(turned))
        return turned.code
    except OutboxError as error:
        said(f"{type(error).__name__}: {error}")
        return 1


def worked(keeper: LeaseKeeper, job: str, arguments: Sequence[str]) -> int:
    """Run a job under its lease; the exit code."""
    beside = Beside()
    beside.run(again(keeper.take, CALL_S / 2))
    renewing = beside.start(keep(keeper, stop_process))
    phase: Phase = "failed"
    detail, code = "it was stopped", 1
    try:
        code = int(importlib.import_module(f"spark_jobs.{job}").main(list(arguments)))
        phase, detail = ("succeeded", "") if code == 0 else ("failed", f"exit code {code}; its log says why")
    except SystemExit as ending:  # as argparse ends
        code = 0 if ending.code is None else ending.code if isinstance(ending.code, int) else 1
        phase, detail = ("succeeded", "") if code == 0 else ("failed", f"exit code {code}; its log says why")
    except Exception as error:
        detail = f"{type(error).__name__}; its log says more"
        raise
    finally:
        renewing.cancel()
        beside.run(again(lambda: keeper.end(phase, detail), CALL_S / 2))
    return code


def stop_process(why: str) -> None:
    """End this process where it stands; what it has not committed is not done."""
    said(why)
    os._exit(3)


def said(text: str) -> None:
    """One line to whoever reads the log."""
    print(f"submitted: {text}", file=sys.stderr, flush=True)


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
