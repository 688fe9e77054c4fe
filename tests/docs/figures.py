"""The README's table of figures, made from what `make bench` published.  `python -m tests.docs.figures` writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
PUBLISHED = ROOT / "docs" / "benchmarks" / "w1.json"
_PLACE = re.compile(r"(<!-- w1: [^>]*-->\n)(.*?)(<!-- /w1 -->)", re.DOTALL)
_NAMES = {"default": "", "one": "one transaction a message"}


def table(rows: list[dict[str, Any]]) -> str:
    """The durable rows: messages a second, latency and CPU, each the median."""
    lines = ["| | in flight | messages/s | p50 ms | CPU µs a message |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        if row["durable"]:
            variant = _NAMES.get(row["variant"], row["variant"].replace("batch", "batches of "))
            name = f"{row['system']}, {variant}" if variant else row["system"]
            speed, wait, cost = (row[key]["median"] for key in ("messages_per_s", "p50_ms", "cpu_us"))
            lines.append(f"| {name} | {row['in_flight']} | {speed:,.0f} | {wait:.2f} | {cost:.1f} |")
    return "\n".join(lines) + "\n"


def with_table(readme: str, rows: list[dict[str, Any]]) -> str:
    """The README with the table of these rows in its place."""
    found, count = _PLACE.subn(lambda place: place[1] + table(rows) + place[3], readme)
    assert count == 1, "README.md has no place for the table"
    return found


def main() -> None:
    README.write_text(with_table(README.read_text(), json.loads(PUBLISHED.read_text())))


if __name__ == "__main__":
    main()
