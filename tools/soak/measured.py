"""A command run to its end: how long, how much CPU, and the most memory that it and all its children had at once."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outbox_bench.report import code

LOOK_EVERY_S = 0.2
PAGE_BYTES, TICKS_PER_S = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a command did, and what it took; CPU is that of its children too."""

    code: int
    output: str
    errors: str
    seconds: float
    cpu_s: float
    rss_bytes: int
    load: float

    @property
    def figures(self) -> dict[str, Any]:
        """What is published."""
        return {
            "seconds": round(self.seconds, 1),
            "cpu_s": round(self.cpu_s, 1),
            "rss_mb": self.rss_bytes >> 20,
            "load_before": round(self.load, 2),
        }


def measured(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], limit_s: float) -> Measured:
    """Run a command; after `limit_s` it is ended.

    Raises:
        TimeoutError: it took longer.
    """
    load, started_s = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=output, stderr=errors, start_new_session=True)
        watched = Watched(process.pid)
        while process.poll() is None:
            watched.look()
            if time.monotonic() - started_s > limit_s:
                os.killpg(process.pid, 9)
                process.wait()
                raise TimeoutError(f"{command[1:3]} took longer than {limit_s:g} s")
            time.sleep(LOOK_EVERY_S)
        seconds = time.monotonic() - started_s
        output.seek(0)
        errors.seek(0)
        said = output.read(), errors.read()
    return Measured(process.returncode, *said, seconds, watched.cpu_s, watched.peak_rss_bytes, load)


class Watched:
    """The processes of a session, looked at now and then; of one that has ended the last look counts."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._cpu_s: dict[int, float] = {}
        self.peak_rss_bytes = 0

    @property
    def cpu_s(self) -> float:
        """CPU of all of them, also of those that nobody waited for, as a driver does not for its JVM."""
        return sum(self._cpu_s.values())

    def look(self) -> None:
        """Look once; pages that processes share count for each."""
        rss_bytes = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    behind_name = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # it has ended
                if int(behind_name[3]) == self._session:
                    rss_bytes += int(behind_name[21]) * PAGE_BYTES
                    self._cpu_s[int(entry.name)] = (int(behind_name[11]) + int(behind_name[12])) / TICKS_PER_S
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss_bytes)


def place_text() -> str:
    """Where and when this was measured."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    date = datetime.now(UTC).date().isoformat()
    machine = f"{platform.platform()}, {model}, {os.cpu_count()} logical cores"
    return f"{date}, Python {platform.python_version()}, {machine}, {code()}"


def concluded(
    folder: Path | None,
    name: str,
    runs: Iterable[tuple[dict[str, Any], list[str]]],
    text_of: Callable[[Mapping[str, Any]], str],
    *,
    head: Sequence[str] = (),
) -> int:
    """Print the figures of each run, and what is broken in any; the exit code.

    If nothing is broken, NAME.txt, which begins with `head`, and NAME.json are written into a folder.
    """
    found, broken = list[dict[str, Any]](), list[str]()
    for figures, wrong in runs:
        found.append(figures)
        broken += wrong
        print(text_of(figures), flush=True)
    for line in broken:
        print(f"BROKEN: {line}", flush=True)
    if broken or folder is None:
        return 1 if broken else 0
    command = f"python -m tools.soak.{name} {' '.join(sys.argv[1:])}".rstrip()
    text = "\n\n".join([*head, *map(text_of, found)])
    (folder / f"{name}.txt").write_text(f"`{command}`\n{place_text()}\n\n{text}\n")
    content = {"command": command, "place": place_text(), "figures": found}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0
