"""A benchmark whose every run has a process of its own.

What an earlier run has left in a process (a heap full of holes, objects for the collector to visit) costs whoever comes
next, and those most who keep most in memory.  `python -m outbox_bench.apart MODULE VARIANT FOLDER MESSAGES` is such
a process; it prints the measurement as JSON.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec

from outbox_bench.measure import Benchmark, Measurement

ROOT = Path(__file__).resolve().parents[1]
RUN_S_MAX = 900.0


class Apart:
    """A module of the shape `Benchmark`, run in a fresh interpreter each time."""

    def __init__(self, module: ModuleType) -> None:
        benchmark = cast(Benchmark, module)
        self.SYSTEM = benchmark.SYSTEM
        self.VARIANTS = benchmark.VARIANTS
        self._path = module.__name__

    def run(self, variant: str, folder: Path, message_count: int) -> Measurement:
        """Run it.

        Raises:
            RuntimeError: it failed; the text is what it wrote.
            subprocess.TimeoutExpired: it took longer than a quarter of an hour.
        """
        command = [sys.executable, "-m", __name__, self._path, variant, str(folder), str(message_count)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=RUN_S_MAX, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.SYSTEM} {variant} failed:\n{done.stderr.decode(errors='replace')}")
        return msgspec.json.decode(done.stdout, type=Measurement)


def main(arguments: list[str]) -> int:
    path, variant, folder, message_count = arguments
    benchmark = cast(Benchmark, importlib.import_module(path))
    print(msgspec.json.encode(benchmark.run(variant, Path(folder), int(message_count))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
