"""The Spark job `sweep` over a container of which some documents are stuck: what it takes, and whose time that is.

    python -m tools.soak.sweep [--documents 200000] [--stuck-percent 1] [--publish docs/benchmarks]

The container is the Cosmos DB emulator's, and the queue the Service Bus emulator's, in a process of their own; the job
runs as a user types it, twice: the second must find nothing.  Then every posting that was held back is in the queue
under its stored id, and none of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from outbox.azure.connecting import AzureBackend, connect
from tools.soak.measured import Measured, concluded, measured

ROOT = Path(__file__).resolve().parent.parent.parent
JOB_S = 3_000.0
NAME = "soak"

Scope = Literal["partition", "item"]


@dataclass(frozen=True, slots=True)
class Told:
    """What a place tells of one name's accounts; `posted` are (account, identity) of what was sent.

    Telling takes CPU as well: `begun_cpu_s` is the place's own before that, `ended_cpu_s` behind it.
    """

    documents: int
    pending: int
    posted: list[tuple[str, str]]
    requests: Mapping[str, int]
    begun_cpu_s: float
    ended_cpu_s: float


class Place:
    """Both emulators with an application's documents, in a process of their own."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.soak.sweep_place", scope],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._addresses: dict[str, Any] = self._answer()

    @property
    def connect(self) -> partial[AzureBackend]:
        """What makes a backend there, as `azure.connect` does."""
        return partial(connect, **self._addresses, database="bank", scope=self.scope)

    @property
    def environment(self) -> dict[str, str]:
        """What the job's command line looks for."""
        return {
            "OUTBOX_COSMOS": self._addresses["cosmos"],
            "OUTBOX_SERVICEBUS": self._addresses["servicebus"],
            "OUTBOX_DATABASE": "bank",
        }

    def leave(self, name: str, count: int, every: int) -> Told:
        """Let workers leave so many accounts, of which every so-many-th is stuck."""
        return self._asked(f"{name} {count} {every}")

    def told(self, name: str) -> Told:
        """What there is now."""
        return self._asked(name)

    def _asked(self, line: str) -> Told:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        found = self._answer()
        return Told(**{**found, "posted": [(account, identity) for account, identity in found["posted"]]})

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the place did not start, or has ended; its error is above"
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:  # closes its pipes, and waits for it
            self._process.kill()


def swept(place: Place, *options: str) -> Measured:
    """Run the job as a user types it."""
    command = [sys.executable, "-m", "spark_jobs.sweep", "--json", "--quiet", "--scope", place.scope, *options]
    return measured(command, cwd=ROOT, env={**os.environ, **place.environment}, limit_s=JOB_S)


def run(documents: int, stuck_percent: float, scope: Scope) -> tuple[dict[str, Any], list[str]]:
    """One measurement, and what was found broken."""
    count, every = documents // 2, round(50 / stuck_percent)
    with Place(scope) as place:
        started_s = time.monotonic()
        before = place.leave(NAME, count, every)
        made_s = time.monotonic() - started_s
        print(f"  {before.documents:,} documents, {before.pending:,} stuck, {made_s:.0f} s to make", flush=True)
        first = swept(place)
        after = place.told(NAME)
        second = swept(place)
        end = place.told(NAME)
    stuck = [f"{NAME}-{number:06}" for number in range(0, count, every)]
    broken = judge(before, after, end, stuck)
    broken += [f"the sweep ended with {one.code}: {one.errors[-300:]}" for one in (first, second) if one.code]
    reports = [json.loads(one.output or "{}") for one in (first, second)]
    if reports[1].get("seen"):
        broken.append(f"the second sweep found {reports[1]['seen']} documents")
    emulators_s = [round(until.begun_cpu_s - since.ended_cpu_s, 1) for since, until in ((before, after), (after, end))]
    figures = {
        "scope": scope,
        "documents": before.documents,
        "transactions": len(stuck),
        "pending": before.pending,
        "first": {"report": reports[0], **first.figures, "emulators_cpu_s": emulators_s[0]},
        "second": {"report": reports[1], **second.figures, "emulators_cpu_s": emulators_s[1]},
        "requests": {kind: n - before.requests.get(kind, 0) for kind, n in after.requests.items()},
    }
    return figures, broken


def judge(before: Told, after: Told, end: Told, stuck: Sequence[str]) -> list[str]:
    """What is wrong after two sweeps."""
    broken = [] if not after.pending else [f"{after.pending} documents are still pending"]
    posted = sorted({account for account, _ in after.posted})
    if posted != sorted(stuck):
        broken.append(f"{len(posted)} accounts were posted, {len(stuck)} were stuck")
    if len({identity for _, identity in after.posted}) != len(stuck):
        broken.append(f"{len(after.posted)} messages do not have {len(stuck)} identities")
    if before.posted or end.posted != after.posted:
        broken.append("something was sent before the sweep, or by the second one")
    return broken


def text_of(figures: Mapping[str, Any]) -> str:
    """One measurement, for people."""
    what = f"{figures['transactions']:,} transactions stuck, {figures['pending']:,} documents pending"
    lines = [f"{figures['scope']} scope: {figures['documents']:,} documents, {what}"]
    for which in ("first", "second"):
        one = figures[which]
        report = one["report"]
        share = one["emulators_cpu_s"] / (one["emulators_cpu_s"] + one["cpu_s"])
        lines.append(
            f"  {which:<7} {one['seconds']:7.1f} s in all, {report['seconds']:7.1f} s for the sweep, finished "
            f"{report['finished']:,}; CPU {one['cpu_s']:.1f} s of the job and {one['emulators_cpu_s']:.1f} s of the "
            f"emulators ({share:.0%}); peak RSS {one['rss_mb']:,} MB"
        )
    counted = ", ".join(f"{kind} {count:,}" for kind, count in sorted(figures["requests"].items()) if count)
    return "\n".join([*lines, f"  requests of the first: {counted}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; 0 if nothing was found broken."""
    parser = argparse.ArgumentParser(prog="tools.soak.sweep", description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--stuck-percent", type=float, default=1.0)
    parser.add_argument("--scope", choices=("partition", "item"), action="append")
    parser.add_argument("--publish", type=Path, metavar="DIR", help="write sweep.txt and sweep.json there")
    arguments = parser.parse_args(argv)
    scopes: Sequence[Scope] = arguments.scope or ("partition", "item")
    runs = (run(arguments.documents, arguments.stuck_percent, scope) for scope in scopes)
    return concluded(arguments.publish, "sweep", runs, text_of)


if __name__ == "__main__":
    sys.exit(main())
