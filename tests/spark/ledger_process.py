"""One step of a ledger in a process of its own: python ledger_process.py vacuum LEDGER, or race LEDGER ROWS."""

from __future__ import annotations

import os
import sys
import time

from spark_jobs.common.places import Place, place_of
from spark_jobs.draining.leftovers import sweep
from spark_jobs.draining.merging import Merger

RACE_S_MAX = 60.0


def race(place: Place, rows: int) -> None:
    """Merge as one of several; print how many rows this one added."""
    merger, added, until_s = Merger(place), 0, time.monotonic() + RACE_S_MAX
    while (found := merger.table.read_or_create()).rows < rows and time.monotonic() < until_s:
        added += merger.merge().added
    print(added, found.rows)


if __name__ == "__main__":
    step, ledger, *rows = sys.argv[1:]
    place = place_of(ledger, os.environ)
    if step == "vacuum":
        sweep(place, age_s=-5.0)  # blobs are dated by the second
    else:
        race(place, int(rows[0]))
