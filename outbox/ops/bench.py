"""The quick benchmark: W1 on this machine, where the project's benchmarks are at hand."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from outbox.errors import Refused

SYSTEMS = ("outbox", "sqlite")


def run_bench(message_count: int, repeat_count: int) -> None:
    """Measure and print the table; nothing is published.

    Raises:
        Refused: the benchmarks are not here, because they are not part of the installed package.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = find_spec("tests.benchmarks.run")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Refused(f"the benchmarks are not in {here}; run this in a checkout of the project, or `make bench` there")
    with tempfile.TemporaryDirectory(prefix="outbox-bench-") as output:
        code = import_module("tests.benchmarks.run").main(
            ["--messages", str(message_count), "--repeats", str(repeat_count), "--only", *SYSTEMS, "--output", output]
        )
    if code:
        raise Refused("the benchmarks did not run through; see above")
