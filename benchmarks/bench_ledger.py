"""Merges into a Delta ledger of so many rows: what has landed into versions, by the driver alone.

    python -m benchmarks.bench_ledger [--repeats 3] [--count 10000000] [--output FOLDER]

A ledger on disk has a million rows a file, as merges leave it, with ids that are random.  Then 100,000 rows land in 500
files of 200, as receivers write them, of which a share is in the ledger already, anywhere in it.  Each merge is a
process of its own, which reads the hashes of all files first: that is what the first merge of `consume` costs.  The
second merge of a process has them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from outbox_bench import report
from spark_jobs.common.folder import Folder
from spark_jobs.draining.entries import Progress
from spark_jobs.draining.merging import LANDING, Merger
from spark_jobs.draining.parquet import encoded
from spark_jobs.draining.received import ROW

ROOT = Path(__file__).resolve().parents[1]
COUNTS = (1_000_000, 10_000_000)
SHARES = (0.01, 0.5)
LANDED, FILE_ROWS, DATA_ROWS = 100_000, 200, 1_000_000
ONE_S = 600

Row = dict[str, Any]


def identity(number: int) -> str:
    """The id of a row of the ledger."""
    return f"{random.Random(number).getrandbits(128):032x}"


def rows(ids: Sequence[str]) -> pa.Table:
    """Rows as receivers write them."""
    numbers = pa.array(range(len(ids)), pa.int64())
    body = pa.array(['{"account": "account-00001234", "amount": 50, "kind": "deposit"}'] * len(ids))
    texts = pa.array(["Posting"] * len(ids))
    given = {"message_id": pa.array(ids), "fingerprint": pa.array([id[::-1] for id in ids]), "body": body}
    made = [
        given.get(field.name, numbers if field.type == pa.int64() else texts if field.type == pa.string() else None)
        for field in ROW
    ]
    nothing = pa.nulls(len(ids), pa.binary())
    return pa.Table.from_arrays([nothing if column is None else column for column in made], schema=ROW)


def fill(ledger: Folder, count: int) -> None:
    """Commit a version for each million rows, without a landing file."""
    merger = Merger(ledger)
    for first in range(0, count, DATA_ROWS):
        base = merger.table.read_or_create()
        made = rows([identity(number) for number in range(first, min(count, first + DATA_ROWS))])
        files = merger._written(ledger, merger.known, base, made)
        progress = Progress(token=f"{first}", number=base.number + 1, files=len(files), consumed=[])
        assert merger.table.commit(base, files, progress)


def land(ledger: Folder, count: int, share: float, seed: int) -> None:
    """Land 100,000 rows in files of 200, of which a share is in the ledger, anywhere."""
    chance, known = random.Random(seed), int(LANDED * share)
    ids = [identity(number) for number in chance.sample(range(count), known)]
    ids += [f"{seed:08x}{number:024x}" for number in range(LANDED - known)]
    chance.shuffle(ids)
    for first in range(0, LANDED, FILE_ROWS):
        data = encoded(rows(ids[first : first + FILE_ROWS]))
        assert (ledger / LANDING).create(f"{seed:08x}-{first:06}.parquet", data)


def one(ledger: Folder, count: int, share: float, seed: int) -> Iterator[dict[str, float]]:
    """What a first and a second merge of a process take."""
    merger = Merger(ledger)
    for again in range(2):
        land(ledger, count, share, seed + again)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        merged = merger.merge()
        known = int(LANDED * share)
        assert (merged.landed, merged.duplicates, merged.added) == (LANDED, known, LANDED - known), merged
        yield {
            "wall_s": time.perf_counter() - began_s,
            "cpu_s": time.process_time() - cpu_s,
            "peak_mb": peak_mb(),
        }


def peak_mb() -> float:
    """The most memory that this process had; `ru_maxrss` would count what its parent had when it began."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def measured(repeats: int, counts: Sequence[int]) -> list[Row]:
    """A row for each size, share and merge."""
    found: list[Row] = []
    (ROOT / "build").mkdir(exist_ok=True)
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="ledger-", dir=ROOT / "build") as folder:
            fill(Folder(folder), count)
            for share in SHARES:
                runs = [apart(folder, count, share, seed=1 + 2 * n + int(share * 1_000_000)) for n in range(repeats)]
                for at, merge in enumerate(("first", "second")):
                    figures = {name: report.spread([run[at][name] for run in runs]) for name in runs[0][at]}
                    found.append({"rows": count, "known": share, "merge": merge, **figures})
    return found


def apart(folder: str, count: int, share: float, seed: int) -> list[dict[str, float]]:
    """The same in a process of its own, so that its memory is that of one consumer."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench_ledger",
        "--one",
        folder,
        str(count),
        str(share),
        str(seed),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ONE_S, check=True)
    found: list[dict[str, float]] = json.loads(done.stdout)
    return found


def table(found: list[Row]) -> str:
    lines = [["rows in the ledger", "known", "merge of the process", "wall s", "CPU s", "peak MB"]]
    for row in found:
        figures = [report.cell(row[name], digits) for name, digits in (("wall_s", 2), ("cpu_s", 2), ("peak_mb", 0))]
        lines.append([f"{row['rows']:,}", f"{row['known']:.0%}", row["merge"], *figures])
    return report.aligned(lines)


def publish(repeats: int, counts: Sequence[int], output: Path) -> str:
    """Measure, and write ledger.json and ledger.txt."""
    found = measured(repeats, counts)
    about = [
        f"{LANDED:,} landed rows in {LANDED // FILE_ROWS} files merged into a Delta ledger in a folder, without Spark;",
        "known: the share of them that the ledger holds, anywhere in it.  Peak: of the process, with what lands in it.",
        f"Median of {repeats} repeats [least..greatest], each in a process of its own on the same ledger.",
        *report.circumstances(ROOT / "build"),
    ]
    return report.publish("ledger", found, about, output, table(found))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_ledger", description="Measure merges.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--count", type=int, nargs="*", default=list(COUNTS))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--one", nargs=4, metavar=("FOLDER", "COUNT", "SHARE", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, count, share, seed = options.one
        print(json.dumps(list(one(Folder(folder), int(count), float(share), int(seed)))))
    else:
        print(publish(options.repeats, options.count, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
