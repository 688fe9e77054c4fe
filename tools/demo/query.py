"""The ledger as a person would ask it: by one line of Python that a reader can copy, and that knows nothing of ours."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

PROGRAM = (
    "import json, time; from deltalake import DeltaTable; from pyarrow.parquet import read_table; "
    'rows = read_table(DeltaTable({ledger}).file_uris(), columns=["body", "created_ms"]).to_pylist(); '
    'print(len(rows), "rows, amounts", sum(json.loads(row["body"])["amount"] for row in rows), "in all, newest", '
    'time.ctime(max(row["created_ms"] for row in rows) / 1000))'
)
WITHIN_S = 60


def command(ledger: Path) -> list[str]:
    """The line, with paths as short as they are from here."""
    python, place = (os.path.relpath(path) for path in (sys.executable, ledger))
    return [python, "-c", PROGRAM.format(ledger=f'"{place}"')]


def asked(ledger: Path) -> str:
    """Run the line; what it is and what it said.

    Raises:
        RuntimeError: it failed.
    """
    line = command(ledger)
    done = subprocess.run(line, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{ledger} cannot be read: {(done.stderr.splitlines() or [''])[-1]}")
    return f"\nthe ledger, by any reader of Delta:\n{shlex.join(line)}\n{done.stdout.strip()}"
