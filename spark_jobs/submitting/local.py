"""Batches on this machine: each is a spark-submit of its own, which lives on when its submitter ends.

A run's process inherits a lock on the run's file and holds it as long as it lives, whatever becomes of the submitter:
who can take the lock knows that nothing runs, and who cannot starts nothing.  No process id has to be trusted for that.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from outbox.errors import Refused, Throttled
from outbox.spark import RunId, RunRequest, run_id
from spark_jobs.common import java
from spark_jobs.common.folder import local_path
from spark_jobs.submitting.once import Batch, Batches

ROOT = Path(__file__).resolve().parents[2]
LOOK_COUNT_MAX, LOOK_S = 500, 0.01
"""How often, and how far apart, a start tries for a lock that others share for a moment to look."""
RUNNING_COUNT_MAX = 4


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The settings of a run's process: `environ` is its whole environment, secrets among it."""

    folder: str
    environ: Mapping[str, str] = field(repr=False)
    file: str = str(ROOT / "spark_jobs" / "submitted.py")
    python_files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """The arguments before the job's name."""
    master: str = "local[2]"
    spark_submit: str = ""


class LocalBatches:
    """The processes of runs."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._folder = local_path(settings.folder)
        self._children: list[subprocess.Popen[bytes]] = []

    async def create(self, run: RunId, request: RunRequest, *, within_s: float) -> Batch:
        return await asyncio.to_thread(self._create, run, request)

    async def find(self, run: RunId) -> list[Batch]:
        return [Batch(run, "running")] if await asyncio.to_thread(self._is_running, run) else []

    async def get(self, batch: str) -> Batch | None:
        return await asyncio.to_thread(self._get, run_id(batch))

    async def cancel(self, batch: str) -> None:
        await asyncio.to_thread(self._kill, run_id(batch))

    def _create(self, run: RunId, request: RunRequest) -> Batch:
        command, environ = self._command(run, request), self._environment()
        self._children = [child for child in self._children if child.poll() is None]
        if len(self._children) >= RUNNING_COUNT_MAX:
            raise Throttled(f"{RUNNING_COUNT_MAX} runs are at work on this machine; ask again", retry_after_s=10.0)
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(run, "lock").open("ab") as lock, self._file(run, "log").open("ab") as said:
            if not _is_ours(lock):
                return Batch(run, "running")
            self._file(run, "pid").unlink(missing_ok=True)  # an earlier process's: who has its number now is not ours
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env=environ,
                    pass_fds=[lock.fileno()],  # the lock is let go when the last process that has it ends
                    start_new_session=True,
                )
            except OSError as error:
                raise Refused(f"run {run}: {command[0]} cannot be started: {error}") from error
        self._file(run, "pid").write_text(str(child.pid))
        self._children.append(child)
        return Batch(run, "submitted")

    def _command(self, run: RunId, request: RunRequest) -> list[str]:
        chosen = self._settings
        beside = Path(sys.executable).parent / "spark-submit"
        program = chosen.spark_submit or (str(beside) if beside.exists() else shutil.which("spark-submit") or "")
        if not program:
            raise Refused("there is no spark-submit; install the `spark` extra, or say where one is")
        zips = ["--py-files", ",".join(chosen.python_files)] if chosen.python_files else []
        before = ["--run", run, *chosen.arguments]
        return [program, "--master", chosen.master, *zips, chosen.file, *before, request.job, *request.arguments]

    def _environment(self) -> dict[str, str]:
        environ = dict(self._settings.environ)
        java.prepare(environ)
        return environ

    def _is_running(self, run: RunId) -> bool:
        try:
            with self._file(run, "lock").open("rb") as lock:
                return not _is_taken(lock, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def _get(self, run: RunId) -> Batch | None:
        self._children = [child for child in self._children if child.poll() is None]
        if self._is_running(run):
            return Batch(run, "running", f"its log is {self._file(run, 'log')}")
        if not self._file(run, "log").exists():
            return None
        return Batch(run, "failed", f"its process ended without a result; its log is {self._file(run, 'log')}")

    def _kill(self, run: RunId) -> None:
        if not self._is_running(run):
            return  # its process id may be another's by now
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.killpg(int(self._file(run, "pid").read_text()), signal.SIGTERM)

    def _file(self, run: RunId, kind: str) -> Path:
        return self._folder / f"{run}.{kind}"


def _is_ours(lock: BinaryIO) -> bool:
    """Take a run's lock; whether nothing works on the run.  Whoever only looks shares the lock, for a moment."""
    for _ in range(LOOK_COUNT_MAX):
        if _is_taken(lock, fcntl.LOCK_EX):
            return True
        if not _is_taken(lock, fcntl.LOCK_SH):
            return False
        time.sleep(LOOK_S)
    raise Throttled("somebody looks at this run all the time; ask again", retry_after_s=10.0)


def _is_taken(lock: BinaryIO, how: int) -> bool:
    """Take a lock if it can be had at once; whether it was."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_conforms: type[Batches] = LocalBatches
