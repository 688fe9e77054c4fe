"""From repeated measurements to what is published: medians with their extremes, as a table and as JSON rows.

A row is `{system, variant, in_flight, durable, messages_per_s, p50_ms, p99_ms, cpu_us, flushes_per_message}`, each
figure `{median, min, max}` over the repeats.  What a module calls its variants is its own; here they get the names they
are published under, and (system, variant, in_flight, durable) tells rows apart.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outbox_bench.measure import Measurement

FIGURES = ("messages_per_s", "p50_ms", "p99_ms", "cpu_us", "flushes_per_message")
TITLES = ("messages/s", "p50 ms", "p99 ms", "CPU µs", "flushes/message")
DIGITS = (0, 3, 3, 1, 4)

PUBLISHED_VARIANTS = {
    "outbox": {"one": "default", "batch64": "default"},
    "floor": {"flush1": "default", "flush64": "default"},
    "sqlite": {f"{shape}-{sync}": shape for shape in ("one", "batch64", "batch100") for sync in ("full", "normal")},
}

DISTRIBUTION = "outbox-azure"
GIT_S = 30

Row = dict[str, Any]


def rows(measurements: Iterable[Measurement]) -> list[Row]:
    """One row for each system and variant, in the order of their first measurement."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.system, measurement.variant), []).append(measurement)
    return [row(group) for group in groups.values()]


def row(repeats: list[Measurement]) -> Row:
    first = repeats[0]
    figures = {name: spread([getattr(repeat, name) for repeat in repeats]) for name in FIGURES}
    return {
        "system": first.system,
        "variant": PUBLISHED_VARIANTS.get(first.system, {}).get(first.variant, first.variant),
        "in_flight": first.in_flight,
        "durable": first.durable,
        **figures,
    }


def spread(values: list[float]) -> dict[str, float]:
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.5g}") for name, value in numbers.items()}


def table(found: list[Row]) -> str:
    """A text table, a line for each row: the median and, in brackets, the least and the greatest."""
    lines = [["system", "variant", "in flight", "durable", *TITLES]]
    for each in found:
        figures = [cell(each[name], digits) for name, digits in zip(FIGURES, DIGITS, strict=True)]
        durable = "yes" if each["durable"] else "no"
        lines.append([each["system"], each["variant"], str(each["in_flight"]), durable, *figures])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def aligned(lines: list[list[str]]) -> str:
    """Lines of as many columns each, the columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def cell(figure: dict[str, float], digits: int) -> str:
    low, high = (f"{figure[name]:,.{digits}f}" for name in ("min", "max"))
    return f"{figure['median']:,.{digits}f} [{low}..{high}]"


def publish(name: str, found: list[Row], about: list[str], folder: Path, figures: str) -> str:
    """Write `name`.json and, with the table `figures`, `name`.txt into `folder`; give the text."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join([*about, "", figures, ""])
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / f"{name}.txt").write_text(text)
    return text


def circumstances(folder: Path) -> list[str]:
    """What a reader needs to judge the figures: machine, versions, code, load and what a flush costs in `folder`."""
    day, cores = time.strftime("%Y-%m-%d", time.gmtime()), f"{processor()}, {os.cpu_count()} logical cores"
    return [
        f"{day}, Python {platform.python_version()}, {platform.system()} {platform.release()}, {cores}",
        f"Measured at {code()}.",
        f"Load average before the first run: {os.getloadavg()[0]:.2f}.",
        f"One 4 KiB overwrite + fdatasync on this disk: median {flush_us(folder):.0f} µs.",
    ]


def code(file: Path = Path(__file__)) -> str:
    """The commit that `file` is of, and whether anything but docs differs from it; or the installed version."""
    here = file.resolve()
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        commit = _git(here.parent, "rev-parse", "--short=8", "HEAD")
        changes = _git(here.parents[1], "status", "--porcelain", "--", ".", ":!docs")
    except (OSError, subprocess.SubprocessError):
        return f"{DISTRIBUTION} {installed()}"
    return f"commit {commit}" + (", with changes" if changes else "")


def installed() -> str:
    """The version that is installed, if one is."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "of no version"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=GIT_S)
    return done.stdout.strip()


def processor() -> str:
    """The processor's name where Linux tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def flush_us(folder: Path, repeats: int = 200) -> float:
    """The median time of one small overwrite and its flush."""
    with tempfile.TemporaryFile(dir=folder) as file:
        block, times = bytes(4096), []
        for _ in range(repeats):
            started = time.perf_counter()
            os.pwrite(file.fileno(), block, 0)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
