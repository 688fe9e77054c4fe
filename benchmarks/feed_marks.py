"""The feed job as it is, with the times at which its steps began and ended, as JSON in the last line of its errors.

python -m benchmarks.feed_marks [the feed's arguments]

Times are those of the machine's monotonic clock, which a process beside reads as well.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STARTED_S = time.monotonic()
STEPS = ("start", "Input", "snapshot_of", "open_plan", "send_chunk")


def timed(name: str, step: Callable[..., Any], marks: list[tuple[str, float, float]]) -> Callable[..., Any]:
    """The same step, which leaves a mark."""

    def run(*values: Any, **named: Any) -> Any:
        began_s = time.monotonic()
        try:
            return step(*values, **named)
        finally:
            marks.append((name, began_s, time.monotonic()))

    return run


def main() -> int:
    from spark_jobs import feed

    marks = [("imports", STARTED_S, time.monotonic())]
    for name in STEPS:
        setattr(feed, name, timed(name, getattr(feed, name), marks))
    code = feed.main()
    marks.append(("over", time.monotonic(), time.monotonic()))
    print(json.dumps(marks), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
