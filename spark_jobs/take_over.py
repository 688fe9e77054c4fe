"""Take a ledger of the form before Delta over in place, once.

    python -m spark_jobs.take_over --ledger ledger/

It needs no Spark and copies no row.  Killed, it is run again; what had landed waits for the next `consume`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from spark_jobs.common.installed import check_installed

    check_installed("take_over", "deltalake")

import msgspec

from outbox.errors import OutboxError
from spark_jobs.common.places import place_of
from spark_jobs.draining.taking_over import take_over


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.take_over", description="Make a Delta table of an older ledger.")
    found.add_argument("--ledger", required=True, metavar="DIR", help="what an earlier build of consume wrote")
    found.add_argument("--json", action="store_true", help="the report as one JSON object")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    arguments = parser().parse_args(argv)
    try:
        done = take_over(place_of(arguments.ledger, os.environ))
    except OutboxError as error:
        print(f"take_over: {error}", file=sys.stderr, flush=True)
        return 1
    text = f"{done.rows:,} rows in {done.files:,} files are a Delta table now; {done.waiting:,} landed files wait"
    print(msgspec.json.encode(asdict(done)).decode() if arguments.json else text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
