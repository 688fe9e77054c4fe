"""Run W1 on every system and measure the log alone, repeats interleaved so that noise of the machine hits all alike.

    python -m tests.benchmarks.run [--repeats 5] [--messages 20000] [--records 200000] [--output FOLDER]
                                   [--only PART|SYSTEM[:VARIANT] ...]

A system is a module of the shape `measure.Benchmark`; name it in SYSTEMS to take part.  `--only log` measures the log,
`--only folder` opening and compacting a large one, `--only profile` the stages of our own W1, `--only scopes` the three
commit protocols side by side, `--only history` what recording costs and judging takes, `--only azure` what a message
asks of the Azure services and what the adapters cost beside the bare SDKs, `--only latency` the rate with these
services a round trip away, `--only feed` a Spark feed, `--only streams` ordered logs and processors, `--only telemetry`
what OpenTelemetry costs a message, `--only looks` for how long an operator's answers hold a host's event loop,
`--only ledger` merges into a ledger of `consume`.  Writes w1, log, folder, profile, scopes, history, azure,
azure-latency, feed, streams, telemetry, looks and ledger, those of what was chosen, into the folder, each as .json and
.txt.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import (
    bench_azure,
    bench_feed,
    bench_folder,
    bench_history,
    bench_latency,
    bench_ledger,
    bench_log,
    bench_looks,
    bench_scopes,
    bench_streams,
    bench_telemetry,
    profile_w1,
    report,
)
from tests.benchmarks.apart import Apart
from tests.benchmarks.measure import MESSAGE_COUNT, Benchmark, Measurement

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "benchmarks"
LATENCY_REPEATS_MAX = 3
"""Each takes some minutes; `python -m tests.benchmarks.bench_latency` takes more, and the whole cross."""
FOLDER_REPEATS_MAX = 3
"""Each takes a minute for a million messages."""
FEED_REPEATS_MAX = 3
"""Each starts Spark."""
LOOKS_REPEATS_MAX = 3
"""Each takes half a minute."""
LEDGER_REPEATS_MAX = 3
"""Ten million rows take three minutes to make, and each repeat half a minute."""
SCRATCH = ROOT / "build"  # beside the sources, so on a real disk and not in memory

SYSTEMS = (
    "tests.benchmarks.peers.floor",
    "tests.benchmarks.peers.sqlite",
    "tests.benchmarks.ours",
)
LOG, FOLDER, PROFILE, SCOPES, HISTORY, AZURE, LATENCY, FEED, STREAMS, TELEMETRY, LOOKS, LEDGER = PARTS = (
    "log", "folder", "profile", "scopes", "history", "azure", "latency", "feed", "streams", "telemetry", "looks",
    "ledger",
)  # fmt: skip

Entrant = tuple[Benchmark, str]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    SCRATCH.mkdir(exist_ok=True)
    chosen = [pair for pair in entrants() if wanted(pair, options.only)]
    parts = {each for each in PARTS if not options.only or each in options.only}
    if not (chosen or parts):
        names = [*map(name, entrants()), *PARTS]
        print(f"no system matches {options.only}; there are {names}", file=sys.stderr)
        return 2
    if chosen:
        publish_w1(chosen, options)
    if LOG in parts:
        print(bench_log.publish(options.repeats, options.records, options.output))
    if FOLDER in parts:
        print(bench_folder.publish(min(options.repeats, FOLDER_REPEATS_MAX), bench_folder.COUNTS, options.output))
    if PROFILE in parts:
        print(profile_w1.publish(options.repeats, options.messages, options.output))
    if HISTORY in parts:
        print(bench_history.publish(options.repeats, bench_history.EVENT_COUNT, options.messages, options.output))
    if SCOPES in parts:
        print(bench_scopes.publish(options.repeats, options.messages, options.output))
    if AZURE in parts:
        print(bench_azure.publish(options.repeats, options.messages, options.output))
    if LATENCY in parts:
        print(bench_latency.publish(min(options.repeats, LATENCY_REPEATS_MAX), options.output))
    if FEED in parts:
        print(bench_feed.publish(min(options.repeats, FEED_REPEATS_MAX), list(bench_feed.COUNTS), options.output))
    if STREAMS in parts:
        print(bench_streams.publish(options.repeats, bench_streams.ENTRIES, options.output))
    if LOOKS in parts:
        print(bench_looks.publish(min(options.repeats, LOOKS_REPEATS_MAX), bench_looks.COUNTS, options.output))
    if LEDGER in parts:
        print(bench_ledger.publish(min(options.repeats, LEDGER_REPEATS_MAX), bench_ledger.COUNTS, options.output))
    if TELEMETRY in parts:
        print(bench_telemetry.publish(options.repeats, options.messages, options.output))
    return 0


def publish_w1(chosen: list[Entrant], options: argparse.Namespace) -> None:
    about = [
        f"W1: {options.messages:,} messages over 1,000 keys; state, output and dedupe record commit atomically.",
        f"Median of {options.repeats} interleaved repeats [least..greatest], each in a fresh process.",
        *report.circumstances(SCRATCH),
    ]
    found = report.rows(measurements(chosen, options.repeats, options.messages))
    print(report.publish("w1", found, about, options.output, report.table(found)))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.run", description="Run W1 and publish figures.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGE_COUNT)
    parser.add_argument("--records", type=int, default=bench_log.RECORD_COUNT, help="of the log's measurement")
    parser.add_argument("--only", nargs="*", default=[], metavar="|".join((*PARTS, "SYSTEM[:VARIANT]")))
    parser.add_argument("--output", type=Path, default=PUBLISHED)
    return parser.parse_args(arguments)


def entrants() -> list[Entrant]:
    """Every system that is there, with each of its variants."""
    systems = [Apart(importlib.import_module(path)) for path in SYSTEMS if importlib.util.find_spec(path)]
    return [(system, variant) for system in systems for variant in system.VARIANTS]


def name(entrant: Entrant) -> str:
    return f"{entrant[0].SYSTEM}:{entrant[1]}"


def wanted(entrant: Entrant, only: list[str]) -> bool:
    return not only or any(choice in (name(entrant), entrant[0].SYSTEM) for choice in only)


def measurements(chosen: list[Entrant], repeats: int, message_count: int) -> list[Measurement]:
    """Run everything `repeats` times, one of each after the other, each in a fresh folder."""
    found: list[Measurement] = []
    for repeat in range(repeats):
        for system, variant in chosen:
            with tempfile.TemporaryDirectory(prefix="w1-", dir=SCRATCH) as folder:
                found.append(system.run(variant, Path(folder), message_count))
            rate = f"{found[-1].messages_per_s:,.0f} messages/s"
            print(f"{repeat + 1}/{repeats} {system.SYSTEM}:{variant}: {rate}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
