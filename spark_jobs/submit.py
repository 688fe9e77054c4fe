"""Start Spark jobs, look after them, end them: on Synapse or on this machine, each run once.

    python -m spark_jobs.submit feed --target local -- --input transfers.csv --queue transfers --type Transfer
    python -m spark_jobs.submit feed --target synapse --run nightly-2026-11-22 -- --input /synfs/...
    python -m spark_jobs.submit status RUN        python -m spark_jobs.submit cancel RUN

The same run again starts nothing and tells what became of it; without `--run` each call is a run of its own.
Exit codes: 0 done (with `--wait`: succeeded), 1 refused, failed, or not known yet (the same command again), 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import msgspec

from outbox.errors import OutboxError, OutcomeUnknown, Throttled
from outbox.spark import ENDED, RunId, RunPending, RunRequest, RunStatus, SparkRuns, run_id, run_request
from spark_jobs.submitting.settings import TARGETS, SparkSettings, runs_over

LOOK_S = 5.0


async def started(runs: SparkRuns, run: RunId, request: RunRequest, *, within_s: float) -> RunStatus:
    """Start a run, asking again for so long while nobody can tell.

    Raises:
        OutcomeUnknown, Throttled: nobody could; the same again is safe.
    """
    ends_s = time.monotonic() + within_s
    while True:
        try:
            return await runs.submit(run, request)
        except (OutcomeUnknown, Throttled) as error:
            pause_s = error.after_s if isinstance(error, RunPending) else LOOK_S
            if time.monotonic() + pause_s > ends_s:
                raise
        await asyncio.sleep(pause_s)


async def waited(runs: SparkRuns, run: RunId, *, within_s: float) -> RunStatus:
    """Wait for a run to end, at most `within_s`, and return its status."""
    ends_s = time.monotonic() + within_s
    while True:
        status = await runs.status(run)
        if status.phase in ENDED or time.monotonic() + LOOK_S > ends_s:
            return status
        await asyncio.sleep(LOOK_S)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="spark_jobs.submit",
        description="Start a Spark job as a run that happens once. What stands behind -- are the job's own arguments.",
    )
    found.add_argument(
        "what", metavar="JOB|status|cancel", help="feed, consume, reconcile, sweep, pipeline; or what to do"
    )
    found.add_argument("id", nargs="?", metavar="RUN", help="of status and cancel")
    found.add_argument("--target", choices=TARGETS, help="default: OUTBOX_SPARK, else local")
    found.add_argument("--run", metavar="RUN", help="the run's id: the same again starts nothing; default: a fresh one")
    found.add_argument("--runs", metavar="PLACE", help="where runs are kept; default: OUTBOX_SPARK_RUNS")
    found.add_argument("--timeout-s", type=float, default=300.0, help="how long to ask while nobody can tell")
    found.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="wait so long for the job's end")
    found.add_argument("--json", action="store_true", help="what became of it as one JSON object")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if "--" in given else len(given)
    arguments = parser().parse_args(given[:cut])
    if (arguments.what in ("status", "cancel")) != (arguments.id is not None):
        parser().error("status and cancel take a run's id; a job's own arguments stand behind --")
    try:
        status = asyncio.run(command(arguments, given[cut + 1 :]))
    except OutboxError as error:
        print(f"submit: {error}", file=sys.stderr, flush=True)
        return 1
    print(msgspec.json.encode(status).decode() if arguments.json else text_of(status), flush=True)
    wanted = status.phase == "succeeded" if arguments.wait else status.phase not in ("failed", "unknown")
    return 0 if wanted else 1


async def command(arguments: argparse.Namespace, of_job: Sequence[str]) -> RunStatus:
    """Do what the command line asks for."""
    settings = SparkSettings.of(os.environ)
    settings = replace(
        settings, target=arguments.target or settings.target or "local", runs=arguments.runs or settings.runs
    )
    runs = runs_over(settings, os.environ)
    if arguments.what == "cancel":
        return await runs.cancel(run_id(arguments.id))
    if arguments.what == "status":
        run = run_id(arguments.id)
        status = await runs.status(run)
    else:
        run = run_id(arguments.run or uuid4().hex)
        print(f"submit: run {run}", file=sys.stderr, flush=True)
        status = await started(runs, run, run_request(arguments.what, of_job), within_s=arguments.timeout_s)
    return await waited(runs, run, within_s=arguments.wait) if arguments.wait else status


def text_of(status: RunStatus) -> str:
    """A line for people."""
    detail = f"  {status.detail}" if status.detail else ""
    return f"{status.run}  {status.job or '-'}  {status.phase}  batch {status.batch or '-'}{detail}"


if __name__ == "__main__":
    sys.exit(main())
