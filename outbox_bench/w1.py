"""Run W1 on systems, repeats interleaved so that noise of the machine hits all alike.

A system is a module of the shape `measure.Benchmark`; each of its variants takes part.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from outbox_bench import report
from outbox_bench.apart import Apart
from outbox_bench.measure import Benchmark, Measurement

SYSTEMS = ("outbox_bench.sqlite", "outbox_bench.ours")

Entrant = tuple[Benchmark, str]


def entrants(systems: Iterable[str] = SYSTEMS) -> list[Entrant]:
    """Every system that is there, with each of its variants."""
    found = [Apart(importlib.import_module(path)) for path in systems if importlib.util.find_spec(path)]
    return [(system, variant) for system in found for variant in system.VARIANTS]


def name(entrant: Entrant) -> str:
    """How an entrant is chosen."""
    return f"{entrant[0].SYSTEM}:{entrant[1]}"


def measurements(chosen: Sequence[Entrant], repeats: int, message_count: int, scratch: Path) -> list[Measurement]:
    """Run everything `repeats` times, one of each after the other, each in a fresh folder of `scratch`."""
    found: list[Measurement] = []
    for repeat in range(repeats):
        for system, variant in chosen:
            with tempfile.TemporaryDirectory(prefix="w1-", dir=scratch) as folder:
                found.append(system.run(variant, Path(folder), message_count))
            rate = f"{found[-1].messages_per_s:,.0f} messages/s"
            print(f"{repeat + 1}/{repeats} {system.SYSTEM}:{variant}: {rate}", file=sys.stderr, flush=True)
    return found


def publish(chosen: Sequence[Entrant], repeats: int, message_count: int, *, scratch: Path, folder: Path) -> str:
    """Measure on the disk of `scratch`, write w1.json and w1.txt into `folder`; give the text."""
    about = [
        f"W1: {message_count:,} messages over 1,000 keys; state, output and dedupe record commit atomically.",
        f"Median of {repeats} interleaved repeats [least..greatest], each in a fresh process.",
        *report.circumstances(scratch),
    ]
    found = report.rows(measurements(chosen, repeats, message_count, scratch))
    return report.publish("w1", found, about, folder, report.table(found))
