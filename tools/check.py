"""The static checks: ruff (rules and format), mypy --strict, the arrows between modules,
and the first sentences of docstrings.

`python tools/check.py` runs them all, two at a time, prints one line each and the whole output of those that fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300
TYPED = (
    *("outbox", "outbox_bench", "function_app", "spark_jobs", "benchmarks", "tools", "tests"),
    "examples/inverted_index",
)
EXAMPLE = "examples/shooting_range"
"""A folder as it is deployed: what lies in it is imported from there, and its function_app is another than ours."""
EXAMPLE_TESTS = "tests/examples"


def main() -> int:
    typed = [folder for folder in TYPED if any((ROOT / folder).rglob("*.py"))]
    types = {  # one behind the other: what the first has read of the library, the second finds in its cache
        "mypy --strict": ["mypy", "--strict", "--exclude", f"^{EXAMPLE_TESTS}/", *typed],
        "mypy --strict, example": ["mypy", "--strict", EXAMPLE, EXAMPLE_TESTS],
    }
    others = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "import-linter": ["tools/arrows.py"],
        "docstrings": ["tools/docstrings.py"],
    }
    with ThreadPoolExecutor(2) as pool:
        failed = [name for names in pool.map(failing, (types, others)) for name in names]
    if failed:
        print(f"check: {', '.join(failed)} failed", flush=True)
    return 1 if failed else 0


def failing(commands: dict[str, list[str]]) -> list[str]:
    """Run checks one after the other; the names of those that fail."""
    return [name for name, command in commands.items() if not passes(name, command)]


def passes(name: str, command: list[str]) -> bool:
    """Run one check with this interpreter; its output is shown where it fails."""
    started = time.monotonic()
    module = [] if command[0].endswith(".py") else ["-m"]
    try:
        done = subprocess.run(
            [sys.executable, *module, *command],
            cwd=ROOT,
            env=os.environ | ({"MYPYPATH": EXAMPLE} if EXAMPLE in command else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"check: {name}: no answer after {LIMIT_S} s", flush=True)
        return False
    line = f"check: {name} {'FAILED' if done.returncode else 'passed'} in {time.monotonic() - started:.1f} s"
    print(f"{line}\n{done.stdout}" if done.returncode else line, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
