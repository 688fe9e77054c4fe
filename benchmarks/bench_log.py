"""The log alone: how fast records go in under each sync policy, and how fast they come back.

    python -m benchmarks.bench_log [--repeats 5] [--records 200000] [--output FOLDER]

Append: encode, buffer, one write(2) for each batch, then fdatasync or not.  "sync each" takes 1/40 of the records,
because it measures the disk, and 1/200 where a record is as large as the commit of a batch of 64 messages; "no room"
is the same without the zeros that the log otherwise takes ahead of its records.  Replay: open a folder with that log,
up to `Recovery`, the last segment written anew included.  Each figure is the median of interleaved repeats with its
least and greatest.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outbox.engine.log.disk import FolderDisk
from outbox.engine.log.segments import Limits
from outbox.engine.log.wal import Log
from outbox_bench import report
from outbox_bench.measure import Stopwatch

RECORD_COUNT = 200_000
SIZES_BYTES = (100, 1_000)
BATCH_SIZE_BYTES = 18_000
SYNC_EACH_DIVISOR = 40
BATCH_DIVISOR = 200
NEVER_BATCH = 64
SCRATCH = Path(__file__).resolve().parents[1] / "build"

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Case:
    """One row: `sync_every` 0 means never."""

    name: str
    size_bytes: int
    sync_every: int
    record_count: int
    replay: bool = False
    room: bool = True

    @property
    def limits(self) -> Limits:
        return Limits() if self.room else Limits(room_bytes=0)


@dataclass(frozen=True, slots=True)
class Figures:
    records_per_s: float
    megabytes_per_s: float
    cpu_us: float


def cases(record_count: int) -> list[Case]:
    """Every row, in the order of the table."""
    found = []
    divisors = {**dict.fromkeys(SIZES_BYTES, SYNC_EACH_DIVISOR), BATCH_SIZE_BYTES: BATCH_DIVISOR}
    for size, divisor in divisors.items():
        count = max(1, record_count // divisor)
        found.append(Case("append, sync each", size, 1, count))
        found.append(Case("append, sync each, no room", size, 1, count, room=False))
    for size in SIZES_BYTES:
        found.append(Case("append, sync every 64", size, 64, record_count))
        found.append(Case("append, sync never", size, 0, record_count))
        found.append(Case("replay", size, 0, record_count, replay=True))
    return found


def run(case: Case, folder: Path) -> Figures:
    """Measure one case in an empty folder."""
    payload = os.urandom(case.size_bytes)
    log = _open(folder, case.limits)
    append = Stopwatch()
    _append(log, payload, case)
    append.stop()
    log.close()
    if not case.replay:
        return _figures(case, append)
    replay = Stopwatch()
    log = _open(folder, case.limits)
    replay.stop()
    found_count = len(log.recovered.records)
    log.close()
    if found_count != case.record_count:
        raise RuntimeError(f"{case.name}: {found_count} records came back, {case.record_count} were written")
    return _figures(case, replay)


def rows(repeats: int = 5, record_count: int = RECORD_COUNT) -> list[Row]:
    """Run every case `repeats` times, interleaved, and give one row a case."""
    SCRATCH.mkdir(exist_ok=True)
    chosen = cases(record_count)
    found: dict[Case, list[Figures]] = {case: [] for case in chosen}
    for _ in range(repeats):
        for case in chosen:
            with tempfile.TemporaryDirectory(prefix="log-", dir=SCRATCH) as folder:
                found[case].append(run(case, Path(folder)))
    return [_row(case, figures) for case, figures in found.items()]


def table(found: list[Row]) -> str:
    """A text table: medians, and in brackets the least and the greatest."""
    lines = [["case", "bytes", "records", "records/s", "MB/s", "CPU µs/record"]]
    for row in found:
        cells = [_cell(row[name], digits) for name, digits in zip(_FIGURES, (0, 1, 2), strict=True)]
        lines.append([str(row["case"]), str(row["size_bytes"]), f"{row['record_count']:,}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_log", description="Measure the log.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--records", type=int, default=RECORD_COUNT)
    parser.add_argument("--output", type=Path, default=None, help="publish log.json and log.txt into this folder")
    options = parser.parse_args(arguments)
    if options.output is not None:
        print(publish(options.repeats, options.records, options.output))
    else:
        print("\n".join([*_about(options.repeats), "", table(rows(options.repeats, options.records))]))
    return 0


def publish(repeats: int, record_count: int, folder: Path) -> str:
    """Measure, write log.json and log.txt into `folder` and give the text."""
    about = _about(repeats)
    found = rows(repeats, record_count)
    return report.publish("log", found, about, folder, table(found))


def _about(repeats: int) -> list[str]:
    SCRATCH.mkdir(exist_ok=True)
    return [
        "The log alone: records encoded, written and synced, or read back.",
        f"Median of {repeats} interleaved repeats [least..greatest].",
        *report.circumstances(SCRATCH),
    ]


_FIGURES = ("records_per_s", "megabytes_per_s", "cpu_us")


def _open(folder: Path, limits: Limits) -> Log:
    return Log.open(FolderDisk(folder), log_id=os.urandom(16), clock_ms=lambda: 0, limits=limits)


def _append(log: Log, payload: bytes, case: Case) -> None:
    batch = case.sync_every or NEVER_BATCH
    append: Callable[[int, bytes], int] = log.append
    for first in range(0, case.record_count, batch):
        for _ in range(min(batch, case.record_count - first)):
            append(9, payload)
        log.write()
        if case.sync_every:
            log.sync()


def _figures(case: Case, watch: Stopwatch) -> Figures:
    return Figures(
        records_per_s=case.record_count / watch.wall_s,
        megabytes_per_s=case.record_count * case.size_bytes / watch.wall_s / 1e6,
        cpu_us=watch.cpu_s / case.record_count * 1e6,
    )


def _row(case: Case, repeats: list[Figures]) -> Row:
    figures = {name: report.spread([getattr(each, name) for each in repeats]) for name in _FIGURES}
    return {"case": case.name, "size_bytes": case.size_bytes, "record_count": case.record_count, **figures}


def _cell(figure: object, digits: int) -> str:
    assert isinstance(figure, dict)
    low, high = (f"{figure[name]:,.{digits}f}" for name in ("min", "max"))
    return f"{figure['median']:,.{digits}f} [{low}..{high}]"


if __name__ == "__main__":
    sys.exit(main())
