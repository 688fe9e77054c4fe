"""`make explore`: every interleaving of two workers, two messages on one key and a duplicate, under each single fault,
of a request over HTTP that is asked twice at once, and of logs and processors.

    python -m tests.simulation.explore [--only SCOPE] [--large] [--cpu-s 900] [--runs 300] [--output FOLDER]

Each cell runs in a process of its own, so that its peak of memory is its own.  The table goes to
`docs/benchmarks/explorations.txt` and .json.  `--large` (of `make soak`) explores pairs of faults, three messages and
the scope of the Exactly-Once talk instead, each up to its limit of CPU, and says what it did not exhaust; then it draws
runs of a larger world (4 workers, 20 messages, 5 keys, all faults).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Limits, Report, sample, search
from outbox_bench import report
from tests.simulation import streamed
from tests.simulation.drawn import large
from tests.simulation.explored import GIVEN, T1, T2, Transfer, asked, counter, desk, expecting_new
from tests.simulation.sunk import SinkScope

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "benchmarks"
SCOPES = ("engine", "partition", "item")
LOGS: dict[str, dict[str, Any]] = {
    "2 producers, 2 replicas": {"name": "produced"},
    "2 processors of 2 replicas, a trimmer": {"name": "trimmed", "warm": True},
    "2 processors, a reader, a trimmer": {"name": "trimmed", "replicas": 1, "reader": True, "warm": True},
    "2 processes take 2 messages in, 3 copies": {"name": "ingested", "copies": 2, "processes": 2},
    "funds between 2 stores, 2 replicas each": {"name": "funds"},
    "2 replicas write a log and send to a queue": {"name": "to a queue"},
    "2 replicas from 2 writers' rows to 2 readers' rows": {"name": "sharded"},
    "2 replicas write blobs and the cells that name them": {"name": "overflowing"},
    "2 replicas write a blob that is read and trimmed": {"name": "trimmed blobs"},
    "2 producers of one large entry, a reader, a trimmer": {"name": "repeated", "tries": 3},
    "2 producers, a reader, a trimmer, pauses within a call": {"name": "paused"},
    "2 replicas, a trimmer, thresholds at one cell": {"name": "small", "of": "resting", "report_every": 1},
    "2 replicas that fail at an entry, a producer": {"name": "failing", "traffic": (4, 5)},
    "2 replicas of which one may rest, a trimmer": {"name": "resting"},
    "2 sinks into a database, a producer": {"name": "sink", "kind": "database"},
    "2 sinks into documents, a producer": {"name": "sink", "kind": "documents"},
}
"""Scopes of logs and processors, by what they are; their options are those of `streamed`."""
LOG_FAULTS = ("crash", "lost", "delay", "stale")
ANEW = "2 producers of one large entry, a reader, a trimmer"
"""What is not explored with crashes: in a model a process that begins anew draws the ids that it drew before."""
TOO_LARGE = {
    ("2 replicas write a blob that is read and trimmed", "delay"),
    ("2 processors of 2 replicas, a trimmer", "delay"),
    ("2 processors, a reader, a trimmer", "delay"),
}
"""Scopes that are explored with `--large` only."""
SINGLE = ("crash", "lost", "delay", "error", "expire", "stale", "jump", "power")
NEW_DIFFERS = {("partition", "delay"), ("item", "delay")}
"""The cells in which a new state makes other worlds than a known one; elsewhere one of the two is explored."""
PAIRS = ({"crash": 1, "lost": 1}, {"lost": 1, "stale": 1})
T3 = ("transfers", Transfer("t3", "alice", "bob", 1), "t3")
MESSAGES = (T1, T2, T3)
MEMORY_BYTES_MAX = 6 << 30
STATES_MAX = 40_000_000

Cell = dict[str, Any]


def single_faults() -> Iterator[Cell]:
    """Two messages, the first of them twice, and one fault of one kind; an engine never answers from the past.

    A state that is new makes as many worlds as a known one, but where a late write may find what it was to create.
    """
    for scope in SCOPES:
        for kind in SINGLE:
            if happens(scope, kind):
                for given in (True, False) if (scope, kind) in NEW_DIFFERS else (True,):
                    yield {"scope": scope, "messages": 2, "copies": [2, 1], "faults": {kind: 1}, "given": given}


def staged() -> Iterator[Cell]:
    """The same in item scope, where all outputs are staged, as large ones are."""
    for cell in single_faults():
        if cell["scope"] == "item" and cell["given"]:
            yield {**cell, "staged": True}


def unread() -> Iterator[Cell]:
    """The same in partition scope, by workers that take a state to be new and do not read it."""
    for cell in single_faults():
        if cell["scope"] == "partition" and cell["given"]:
            yield from ({**cell, "given": given, "unread": True} for given in (True, False))


def happens(scope: str, kind: str) -> bool:
    """Whether a fault can happen in a scope."""
    return kind not in {"engine": ("stale",)}.get(scope, ("power",))


def requests() -> Iterator[Cell]:
    """A request over HTTP that is asked twice at once, and one fault; over a store and a bus beside a sweeper."""
    for scope in SCOPES:
        for kind in SINGLE:
            if happens(scope, kind):
                yield {"scope": scope, "asked": 2, "fronts": 2, "faults": {kind: 1}}
    yield {"scope": "item", "asked": 1, "fronts": 1, "pair": True, "faults": {}}


def ledgers() -> Iterator[Cell]:
    """With a dispatch ledger: messages that are dead once their lock has run out, one fault, and a sweeper."""
    for kind in SINGLE:
        if happens("partition", kind):
            yield {"scope": "partition", "ledger": True, "messages": 2, "faults": {kind: 1}}


def logs(*, large: bool = False) -> Iterator[Cell]:
    """Logs and processors, under each single fault; of two processes that take messages in also a lock that ends."""
    for what in LOGS:
        kinds = (*kinds_of(what), "expire") if "take" in what else kinds_of(what)
        for kind in kinds:
            if ((what, kind) in TOO_LARGE) is large:
                yield {"scope": "log", "logs": what, "faults": {kind: 1}}


def kinds_of(what: str) -> tuple[str, ...]:
    """The faults of a scope of logs."""
    if "pauses" in what:
        return ("jump",)
    return LOG_FAULTS[what == ANEW :]


def pairs() -> Iterator[Cell]:
    """Logs and processors under each pair of faults."""
    for what in LOGS:
        for one, other in combinations(kinds_of(what), 2):
            yield {"scope": "log", "logs": what, "faults": {one: 1, other: 1}}


def larger() -> Iterator[Cell]:
    """What may be too large to exhaust."""
    yield from logs(large=True)
    yield from pairs()
    for scope in SCOPES:
        for faults in PAIRS:
            if not (scope == "engine" and "stale" in faults):
                yield {"scope": scope, "messages": 2, "copies": [2, 1], "faults": faults, "given": True}
        yield {"scope": scope, "messages": 3, "copies": [1, 1, 1], "faults": {"crash": 1}, "given": True}
        yield {"scope": scope, "messages": 3, "copies": [2, 2, 2], "faults": {}, "given": True}


def told(cell: Cell) -> str:
    """A cell in words."""
    faults = " + ".join(cell["faults"]) or "no faults"
    if "logs" in cell:
        return f"log: {cell['logs']}, {faults}"
    if "pair" in cell:
        return f"{cell['scope']}: 1 answering, 2 requests of one state at once, {faults}"
    if "asked" in cell:
        return f"{cell['scope']}: {cell['fronts']} answering, 1 request, asked {cell['asked']} times at once, {faults}"
    if "ledger" in cell:
        return (
            f"{cell['scope']}, ledger: 2 workers, 1 sweeper, {cell['messages']} messages that are soon gone, {faults}"
        )
    state = ", new state" if not cell["given"] else ""
    scope = f"{cell['scope']}, staged" if "staged" in cell else cell["scope"]
    scope = f"{cell['scope']}, unread" if "unread" in cell else scope
    return f"{scope}: 2 workers, {cell['messages']} messages, {sum(cell['copies'])} copies, {faults}{state}"


def explored(cell: Cell, cpu_s: float) -> Report:
    """Explore one cell, here."""
    limits = Limits(states=STATES_MAX, cpu_s=cpu_s, memory_bytes=MEMORY_BYTES_MAX)
    if "logs" in cell:
        return in_logs(cell, limits)
    if "asked" in cell:
        return search(asking(cell), limits=limits, hashing="64")
    if "ledger" in cell:
        return search(soon_gone(cell), limits=limits, hashing="64")
    scenario = Scenario(
        desk(),
        MESSAGES[: cell["messages"]],
        GIVEN if cell["given"] else (),
        copies=cell["copies"],
        scope=cell["scope"],
        staged="staged" in cell,
        make=expecting_new if "unread" in cell else None,
        budgets=Budgets(**cell["faults"]),
    )
    return search(scenario, limits=limits, hashing="64")


def in_logs(cell: Cell, limits: Limits) -> Report:
    """Explore a cell of logs and processors."""
    options = dict(LOGS[cell["logs"]])
    name = options.pop("name")
    if name == "sink":
        return SinkScope(given=(1, 2), appended=(3,), **options).explored(cpu_s=limits.cpu_s, **cell["faults"])
    if name == "ingested":
        options["expire"] = "expire" in cell["faults"]
    if name != "funds":
        return streamed.SCOPES[name](**options).explored(limits=limits, **cell["faults"])
    scope = streamed.funds(streamed.Withdraw("t1", "alice", "carol", 3), **options)
    return scope.explored(invariant=streamed.law, limits=limits, **cell["faults"])


def soon_gone(cell: Cell) -> Scenario:
    """A cell with a dispatch ledger as a scenario."""
    return Scenario(
        desk(),
        MESSAGES[: cell["messages"]],
        GIVEN,
        sweepers=1,
        scope=cell["scope"],
        ledger=True,
        delivery_count_max=1,
        allow=frozenset({"dead-letter"}),
        budgets=Budgets(**cell["faults"]),
    )


def asking(cell: Cell) -> Scenario:
    """A cell of requests as a scenario; a pair is two of one state, in one process."""
    is_pair = "pair" in cell
    return Scenario(
        counter(),
        (),
        GIVEN,
        workers=0,
        sweepers=0 if cell["scope"] == "engine" or is_pair else 1,
        scope=cell["scope"],
        budgets=Budgets(**cell["faults"]),
        requests=[asked("k1", 5), asked("k2", 3)][: 1 + is_pair],
        asked_times=cell["asked"],
        fronts=cell["fronts"],
        front_batch=1 + is_pair,
    )


def row(cell: Cell, cpu_s: float) -> Cell:
    """Explore one cell in a process of its own."""
    command = [sys.executable, "-m", "tests.simulation.explore", "--cell", json.dumps(cell), "--cpu-s", str(cpu_s)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=cpu_s * 5 + 60)
    found: Cell = json.loads(done.stdout.splitlines()[-1])
    return cell | found


def one(cell: Cell, cpu_s: float) -> Cell:
    """What came of a cell."""
    found = explored(cell, cpu_s)
    return {
        "exhausted": found.exhausted,
        "anomalies": [f"{a.promise}: {a.text}\n{a.trace.text}" for a in found.anomalies],
        "states": found.states,
        "transitions": found.transitions,
        "cpu_s": round(found.cpu_s, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024,
        "stopped": found.stopped,
    }


def line(found: Cell) -> str:
    """A row in the table."""
    verdict = (
        "BROKEN" if found["anomalies"] else "exhausted" if found["exhausted"] else f"not exhausted: {found['stopped']}"
    )
    figures = f"{found['states']:>10,} worlds {found['transitions']:>11,} steps {found['cpu_s']:>6.1f} CPU s"
    return f"{told(found):<76} {figures} {found['peak_mb']:>6,} MB  {verdict}"


def drawn(runs: int, seed: int) -> list[Report]:
    """Runs of a larger world in each scope: 4 workers, 20 messages on 5 keys, all faults."""
    return [sample(large(scope), seed=seed, runs=runs, cpu_s=86_400) for scope in SCOPES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, print and publish; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__)
    parser.add_argument("--only", choices=(*SCOPES, "log"))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--cpu-s", type=float, default=900.0, help="the limit of one cell")
    parser.add_argument("--runs", type=int, default=300, help="drawn runs of the larger world in each scope")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=PUBLISHED)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell:
        print(json.dumps(one(json.loads(options.cell), options.cpu_s)))
        return 0
    found: list[Cell] = []
    for cell in (
        larger() if options.large else (*single_faults(), *unread(), *staged(), *requests(), *ledgers(), *logs())
    ):
        if options.only in (None, cell["scope"]):
            found.append(row(cell, options.cpu_s))
            print(line(found[-1]), flush=True)
    broken = [text for each in found for text in each["anomalies"]]
    if options.large:
        for each in drawn(options.runs, options.seed):
            print(f"{each.scope}: {each.finals} runs, {each.transitions:,} steps, {each.cpu_s:.0f} CPU s", flush=True)
            broken += [f"{a.promise}: {a.text}\n{a.trace.text}" for a in each.anomalies]
    if options.only is None:
        name = "explorations-large" if options.large else "explorations"
        about = ["Every interleaving of the shipped runtime over models of its ports.", *report.circumstances(ROOT)]
        report.publish(name, found, about, options.output, "\n".join(map(line, found)))
    print("\n\n".join(broken) if broken else "nothing broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
