"""The pages' tables of figures and sentences of result (`tests.docs.results`), made from what `make bench` published.

`python -m tests.docs.figures` writes them.  Each stands between
`<!-- NAME: ... -->` and `<!-- /NAME -->`.  The list of files says when each was measured, and at which commit, as the
head of the file does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs.results import RESULTS

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "docs/what-was-run.md"
LIST = ROOT / "docs/benchmarks/README.md"
Rows = list[dict[str, Any]]

_NAMES = {"default": "", "one": "one transaction a message"}
_PROVISIONED_RU = (400, 4_000, 10_000)
_WORKLOADS = {
    "cold": "a new key",
    "existing": "a key that is there, and that this worker has not seen lately",
    "warm": "a key that it has, again within two seconds",
    "W1": "1,000 keys, four messages each",
    "ten keys": "ten keys, a hundred messages each at once",
    "cold, ledger": "a new key, with a dispatch ledger",
    "existing, ledger": "a key that is there, with a ledger",
    "warm, ledger": "a key that it has, with a ledger",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the page and the place in it, the published file, and what makes the one of the other."""

    page: Path
    name: str
    published: str
    make: Callable[[Rows], str]

    def put(self, text: str) -> str:
        """The page's text with the table in its place."""
        rows: Rows = json.loads((ROOT / "docs" / "benchmarks" / self.published).read_text())
        place = re.compile(rf"(<!-- {self.name}: [^>]*-->\n)(.*?)(<!-- /{self.name} -->)", re.DOTALL)
        found, count = place.subn(lambda at: at[1] + self.make(rows) + at[3], text)
        assert count == 1, f"{self.page.name} has no place for the table {self.name}"
        return found


def _lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    first, *rest = (f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (head, *rows))
    return "\n".join([first, "|---" + "|---:" * (len(head) - 1) + "|", *rest, ""])


def speeds(rows: Rows) -> str:
    """W1, the durable rows: messages a second, latency and CPU, each the median."""
    found = []
    for row in rows:
        if row["durable"]:
            variant = _NAMES.get(row["variant"], row["variant"].replace("batch", "batches of "))
            name = f"{row['system']}, {variant}" if variant else row["system"]
            speed, wait, cost = (row[key]["median"] for key in ("messages_per_s", "p50_ms", "cpu_us"))
            found.append((name, str(row["in_flight"]), f"{speed:,.0f}", f"{wait:.2f}", f"{cost:.1f}"))
    return _lines(("", "in flight", "messages/s", "p50 ms", "CPU µs a message"), found)


def scopes(rows: Rows) -> str:
    """The three commit protocols on the engine in memory: port calls and CPU, each the median."""
    found = [
        (row["scope"], f"{row['requests_per_message']['median']:.2f}", f"{row['cpu_us']['median']:.0f}") for row in rows
    ]
    return _lines(("scope", "calls of a store or bus a message", "CPU µs a message"), found)


def requests(rows: Rows) -> str:
    """Partition scope: what a message asks of Cosmos DB and Service Bus."""
    found = []
    for row in rows:
        if "workload" in row:
            calls = row["calls_per_message"]
            bus = (f"{calls[call]:.2f}" for call in ("receive", "send", "complete"))
            cosmos = (f"{row['requests_per_message']:.2f}", f"{row['ru_per_message']:.1f}")
            found.append((_WORKLOADS[row["workload"]], *cosmos, *bus))
    return _lines(("", "Cosmos DB requests", "RU", "receives", "sends", "settlements"), found)


def rates(rows: Rows) -> str:
    """Messages a second that some provisioned throughputs have room for, by request units alone."""
    found = []
    for row in rows:
        if "workload" in row:
            room = (f"{ru_per_s / row['ru_per_message']:,.0f}" for ru_per_s in _PROVISIONED_RU)
            found.append((_WORKLOADS[row["workload"]], *room))
    return _lines(("messages a second", *(f"{ru_per_s:,} RU/s" for ru_per_s in _PROVISIONED_RU)), found)


def explored(rows: Rows) -> str:
    """How much was explored, as an entry of a list."""
    assert all(row["exhausted"] and not row["anomalies"] for row in rows), "no page says what else there is"
    worlds = sum(row["states"] for row in rows) / 1e6
    faults = {name for row in rows for name in row["faults"]}
    return (
        f"- [{len(rows)} scopes](benchmarks/explorations.txt) of the real code are exhausted, {worlds:,.0f} million "
        f"worlds in all, under {len(faults)} kinds\n  of faults; no promise broke.\n"
    )


def lined(make: Callable[[Rows], str]) -> Callable[[Rows], str]:
    """A sentence as a paragraph of its own, in bold."""
    return lambda rows: f"\n**{make(rows)}**\n\n"


TABLES = (
    Table(ROOT / "docs/verification.md", "explored", "explorations.json", explored),
    Table(RUN, "w1", "w1.json", speeds),
    Table(ROOT / "docs/how-to/choose-a-scope.md", "scopes", "scopes.json", scopes),
    Table(ROOT / "docs/how-to/cost.md", "requests", "azure.json", requests),
    Table(ROOT / "docs/how-to/cost.md", "rates", "azure.json", rates),
    *(Table(LIST, f"{name}-result", file, lined(make)) for name, (file, make) in RESULTS.items()),
)


def dated(text: str) -> str:
    """The list of files with the day and the commit of each in its last column."""
    return re.sub(
        r"^(\| \[([\w-]+)\]\(\2\.txt\) \|.*\|)[^|\n]*\|$",
        lambda row: f"{row[1]} {when(row[2])} |",
        text,
        flags=re.MULTILINE,
    )


def when(name: str) -> str:
    """When and at which commit a file was measured or published."""
    head = (LIST.parent / f"{name}.txt").read_text()
    day = re.search(r"^\d{4}-\d\d-\d\d\b", head, re.MULTILINE)
    commit = re.search(r"(Published in|Measured at|,) commit (\w+)((?:, with changes)?)", head)
    assert commit, f"{name}.txt names no commit"
    verb = "published in " if commit[1].startswith("Published") else ""
    return ", ".join([*([day[0]] if day else []), f"{verb}`{commit[2]}`{commit[3]}"])


def main() -> None:
    LIST.write_text(dated(LIST.read_text()))
    for table in TABLES:
        table.page.write_text(table.put(table.page.read_text()))


if __name__ == "__main__":
    main()
