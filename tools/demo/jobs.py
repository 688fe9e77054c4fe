"""Spark jobs as processes of their own, and what a comparison that runs is at.

A comparison keeps each of its steps in a folder; looking into that from outside tells how far it is, and a demo is not
silent while Spark plans, joins and sorts.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from tools.demo.data import SCHEMA

JOB_WITHIN_S = 600.0
LOOK_EVERY_S = 0.2
USUAL_STEP_COUNT = 6
STARTING, PLANNING = "starting", "planning"
WORDS = {
    STARTING: "Spark starts",
    PLANNING: "the next step is planned",
    "inputs": "every input against the postings that name it",
    "messages": "every posting: is it there twice?",
    "repeated": "postings that are there twice",
    "few": "the rows of whatever is suspect",
    "buckets": "sums of postings against balances",
    "postings": "the postings of suspect accounts",
    "findings": "what is wrong with what is suspect",
}
"""What the steps of `spark_jobs.reconcile` do, by their names or the last part of these."""

LookAtStep = Callable[[str, int], None]
"""Is told the step that a comparison is at, and how many are done."""


async def run_job(folder: Path, name: str, *arguments: str, connection: str = "") -> tuple[int, dict[str, Any]]:
    """Run a Spark job as a process of its own; its exit code and its report.

    The connection string is passed in the environment: arguments stand in lists of processes, and it holds a key.

    Raises:
        RuntimeError: it failed; its log is in the folder.
    """
    with (folder / f"{name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"spark_jobs.{name}",
            *arguments,
            *("--json", "--quiet", "--master", "local[2,4]"),
            env=os.environ | ({"OUTBOX_SERVICEBUS": connection} if connection else {}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), JOB_WITHIN_S)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    lines = output.decode().strip().splitlines()
    if process.returncode not in (0, 1) or not lines:
        raise RuntimeError(f"spark_jobs.{name} failed with exit code {process.returncode}; see {log.name}")
    return process.returncode, json.loads(lines[-1])


async def reconciled(
    folder: Path, transfers: Path, states: bytes, refused: Iterable[tuple[str, str]], look: LookAtStep
) -> tuple[bool, dict[str, Any]]:
    """Compare inputs, drained ledger, states and dead letters (id and reason), and look at the step that this is at.

    Gives whether each transfer took effect exactly once, and the report.

    Raises:
        RuntimeError: it failed; its log is in the folder.
    """
    letters = [msgspec.json.encode({"id": id, "reason": reason}) for id, reason in refused]
    for name, data in (("states.jsonl", states), ("dead-letters.jsonl", b"\n".join(letters))):
        await asyncio.to_thread((folder / name).write_bytes, data)
    progress = folder / "reconcile.progress"
    await asyncio.to_thread(shutil.rmtree, progress, ignore_errors=True)  # every run is to be seen
    arguments = (
        *("--input", str(transfers), "--schema", SCHEMA, "--ledger", str(folder / "ledger")),
        *("--quarantine", str(folder / "feed.quarantine"), "--dead-letters", str(folder / "dead-letters.jsonl")),
        *("--rule", "bank", "--state", str(folder / "states.jsonl"), "--everything", "--progress", str(progress)),
    )
    running = asyncio.create_task(run_job(folder, "reconcile", *arguments))
    try:
        while not (await asyncio.wait([running], timeout=LOOK_EVERY_S))[0]:
            look(*step_of(progress))
        code, report = await running
        return code == 0, report
    finally:
        running.cancel()


def step_of(progress: Path) -> tuple[str, int]:
    """The step that a comparison is at, by the folder that it keeps its steps in, and how many are done."""
    done = {path.stem for path in progress.glob("*/*.json")}
    under_way = sorted({path.stem for path in progress.glob("*/*.begun")} - done)
    if under_way:
        return under_way[0], len(done)
    return (PLANNING if done else STARTING), len(done)


class StepLines:
    """A line for each step of a comparison as it begins, with the seconds since the first."""

    def __init__(self, say: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._now_s = now_s
        self._began_s = now_s()
        self._told: set[str] = set()

    def look(self, step: str, done_count: int) -> None:
        """Tell of a step that was not told of yet."""
        if step == PLANNING or step in self._told:
            return
        self._told.add(step)
        words = WORDS.get(step.rpartition("-")[2], step)
        self._say(f"{self._now_s() - self._began_s:6.0f} s  {words}")
