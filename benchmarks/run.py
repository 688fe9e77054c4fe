"""Run W1 on every system and measure the log alone, repeats interleaved so that noise of the machine hits all alike.

    python -m benchmarks.run [--repeats 5] [--messages 20000] [--records 200000] [--output FOLDER]
                                   [--only PART|SYSTEM[:VARIANT] ...]

A system is a module of the shape `measure.Benchmark`; name it in SYSTEMS to take part.  `--only log` measures the log,
`--only folder` opening and compacting a large one, `--only profile` the stages of our own W1, `--only scopes` the three
commit protocols side by side, `--only history` what recording costs and judging takes, `--only azure` what a message
asks of the Azure services and what the adapters cost beside the bare SDKs, `--only latency` the rate with these
services a round trip away, `--only feed` a Spark feed, `--only streams` ordered logs and processors, `--only telemetry`
what OpenTelemetry costs a message, `--only looks` for how long an operator's answers hold a host's event loop,
`--only ledger` merges into a ledger of `consume`, `--only pipeline` a pipeline beside handlers and SQLite,
`--only recovery` what a kill costs one, `--only catch-up` its history on Spark beside the local runner, `--only
large-state` states there of ten times the executor's memory, `--only stalls` what holds a pipeline's event loop.
Writes w1, log, folder, profile, scopes, history, azure, azure-latency, feed, streams, telemetry, looks, ledger,
pipeline, recovery, catch-up, large-state and stalls, those of what was chosen, into the folder, each as .json and .txt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import (
    bench_azure,
    bench_catch_up,
    bench_feed,
    bench_folder,
    bench_history,
    bench_large_state,
    bench_ledger,
    bench_log,
    bench_looks,
    bench_pipeline,
    bench_recovery,
    bench_scopes,
    bench_stalls,
    bench_streams,
    bench_telemetry,
    profile_w1,
)
from outbox_bench import bench_latency, w1
from outbox_bench.measure import MESSAGE_COUNT

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "docs" / "benchmarks"
LATENCY_REPEATS_MAX = 3
"""Each takes some minutes; `python -m outbox_bench.bench_latency` takes more, and the whole cross."""
FOLDER_REPEATS_MAX = 3
"""Each takes a minute for a million messages."""
FEED_REPEATS_MAX = 3
"""Each starts Spark."""
LOOKS_REPEATS_MAX = 3
"""Each takes half a minute."""
LEDGER_REPEATS_MAX = 3
"""Ten million rows take three minutes to make, and each repeat half a minute."""
SCRATCH = ROOT / "build"  # beside the sources, so on a real disk and not in memory

SYSTEMS = ("benchmarks.peers.floor", *w1.SYSTEMS)
PARTS = (
    "log", "folder", "profile", "scopes", "history", "azure", "latency", "feed", "streams", "telemetry", "looks",
    "ledger", "pipeline", "recovery", "catch-up", "large-state", "stalls",
)  # fmt: skip
LOG, FOLDER, PROFILE, SCOPES, HISTORY, AZURE, LATENCY, FEED, STREAMS, TELEMETRY, LOOKS, *_ = PARTS
LEDGER, PIPELINE, RECOVERY, CATCH_UP, LARGE_STATE, STALLS = PARTS[-6:]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    SCRATCH.mkdir(exist_ok=True)
    systems = w1.entrants(SYSTEMS)
    chosen = [entrant for entrant in systems if wanted(entrant, options.only)]
    parts = {each for each in PARTS if not options.only or each in options.only}
    if not (chosen or parts):
        names = [*map(w1.name, systems), *PARTS]
        print(f"no system matches {options.only}; there are {names}", file=sys.stderr)
        return 2
    if chosen:
        measured = w1.publish(chosen, options.repeats, options.messages, scratch=SCRATCH, folder=options.output)
        print(measured)
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
    if PIPELINE in parts:
        print(bench_pipeline.publish(options.repeats, bench_pipeline.SECONDS, options.output))
    if RECOVERY in parts:
        print(bench_recovery.publish(bench_recovery.KILLS, bench_recovery.STATE_S, options.output))
    if CATCH_UP in parts:
        print(bench_catch_up.publish(bench_catch_up.ENTRIES, bench_catch_up.KEYS, options.output))
    if LARGE_STATE in parts:
        print(bench_large_state.publish(bench_large_state.STATE_MB, bench_large_state.HEAP_MB, options.output))
    if STALLS in parts:
        print(bench_stalls.publish(bench_stalls.MINUTES, options.output))
    if TELEMETRY in parts:
        print(bench_telemetry.publish(options.repeats, options.messages, options.output))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Run W1 and publish figures.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGE_COUNT)
    parser.add_argument("--records", type=int, default=bench_log.RECORD_COUNT, help="of the log's measurement")
    parser.add_argument("--only", nargs="*", default=[], metavar="|".join((*PARTS, "SYSTEM[:VARIANT]")))
    parser.add_argument("--output", type=Path, default=PUBLISHED)
    return parser.parse_args(arguments)


def wanted(entrant: w1.Entrant, only: list[str]) -> bool:
    return not only or any(choice in (w1.name(entrant), entrant[0].SYSTEM) for choice in only)


if __name__ == "__main__":
    sys.exit(main())
