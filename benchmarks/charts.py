"""Draw what was published: `python -m benchmarks.charts` writes docs/benchmarks/*.svg from the JSON beside them.

Each drawing has the digest of the rows that it was made from in its description, so that a test can tell whether it is
of today's figures without drawing it again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
INK, GRID, OURS, LEDGER, ITEM, OTHERS = "#333333", "#dddddd", "#1f6fb2", "#2a9d62", "#c7702e", "#999999"
DEPTHS = {1: "#9ecae1", 16: "#6baed6", 64: "#2171b5", 256: "#08306b"}
KINDS = {"new": "new key", "existing": "known key,\nread", "warm": "again within\ntwo seconds", "ten": "ten keys"}
RECKONED_RU = {"NServiceBus,\n5 operations\n(reckoned)": 27.0}

Rows = list[dict[str, Any]]
Axes = Any
"""Of matplotlib."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing: its file, the published file, which rows of it, and how they are drawn."""

    name: str
    published: str
    chosen: Callable[[dict[str, Any]], bool]
    draw: Callable[[Axes, Rows], None]

    def rows(self) -> Rows:
        """What is drawn."""
        return [row for row in json.loads((FOLDER / self.published).read_text()) if self.chosen(row)]

    def digest(self) -> str:
        """The digest of what is drawn."""
        return hashlib.sha256(json.dumps(self.rows(), sort_keys=True).encode()).hexdigest()

    @property
    def path(self) -> Path:
        return FOLDER / self.name


def rates(axes: Axes, rows: Rows) -> None:
    """Messages a second against the round trip, for each number in flight, and the bare loop's."""
    for in_flight, color in DEPTHS.items():
        some = sorted((row for row in rows if row["concurrency"] == in_flight), key=lambda row: row["rtt_ms"])
        trips = [row["rtt_ms"] for row in some]
        ours, bare = ([row[name] for row in some] for name in ("messages_per_s", "bare_messages_per_s"))
        axes.plot(trips, ours, color=color, marker="o", label=f"{in_flight} in flight")
        axes.plot(trips, bare, color=color, linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("round trip to Azure, ms")
    axes.set_ylabel("messages a second")
    axes.set_title("A worker on Cosmos DB and Service Bus; dotted: the bare SDKs")
    axes.legend(frameon=False)


def charges(axes: Axes, rows: Rows) -> None:
    """Request units a message, by kind of key and design."""
    designs: tuple[tuple[str, str, Callable[[dict[str, Any]], bool]], ...] = (
        ("partition scope", OURS, lambda row: row["scope"] == "partition" and not row.get("ledger")),
        ("with a dispatch ledger", LEDGER, lambda row: bool(row.get("ledger"))),
        ("item scope", ITEM, lambda row: row["scope"] == "item"),
    )
    for place, (label, color, is_of) in enumerate(designs):
        found = {row["kind"]: row["ru"] for row in rows if is_of(row)}
        at = [number + (place - 1) * 0.27 for number, kind in enumerate(KINDS) if kind in found]
        bars = axes.bar(at, [found[kind] for kind in KINDS if kind in found], 0.25, color=color, label=label)
        axes.bar_label(bars, fmt="%.0f", fontsize=8, color=INK)
    for number, (label, ru) in enumerate(RECKONED_RU.items(), len(KINDS)):
        axes.bar_label(axes.bar([number], [ru], 0.25, color=OTHERS), fmt="%.0f", fontsize=8, color=INK)
        axes.set_xticks(range(number + 1), [*KINDS.values(), label])
    axes.set_ylabel("request units a message")
    axes.set_title("What a message of 1 KB with one output costs in Cosmos DB (estimated)")
    axes.legend(frameon=False)


def shares(axes: Axes, rows: Rows) -> None:
    """Requests a message, by how many messages a key has at once."""
    known = {"cold": (1, "each its own key"), "W1": (4, "1,000 keys"), "ten keys": (100, "ten keys")}
    points = [(*known[row["workload"]], row["requests_per_message"]) for row in rows]
    axes.plot([count for count, _, _ in points], [requests for _, _, requests in points], color=OURS, marker="o")
    for count, label, requests in points:
        axes.annotate(f"{label}: {requests:.2g}", (count, requests), (6, 6), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(0.8, 400)
    axes.set_ylim(0, 3.4)
    axes.set_xlabel("messages of one key at once")
    axes.set_ylabel("requests to Cosmos DB a message")
    axes.set_title("The more messages a key has, the fewer requests each costs")


def waits(axes: Axes, rows: Rows) -> None:
    """How long a page waits until its changes are durable, by mode."""
    modes = [row["mode"] for row in rows]
    for share, marker, color in (("p50_ms", "o", OURS), ("p99_ms", "^", ITEM)):
        axes.plot([row[share]["median"] for row in rows], modes, marker, color=color, label=share.removesuffix("_ms"))
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("ms from a page's append until all its changes are durable")
    axes.set_title("An inverted index, 50 pages a second; behind a release its checkpoints' interval, ms")
    axes.legend(frameon=False)


def gaps(axes: Axes, rows: Rows) -> None:
    """How long pages take in each second, and the seconds in which a replica is killed."""
    seconds = [row["second"] for row in rows]
    for share, color, label in (("max_ms", ITEM, "slowest"), ("p50_ms", OURS, "median")):
        axes.plot(seconds, [row[share] for row in rows], color=color, label=label)
    killed = [row["second"] for row in rows if row["kills"]]
    axes.plot(killed, [0] * len(killed), "x", color=INK, label="kill -9 of one replica of two", clip_on=False)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("second")
    axes.set_ylabel("ms from a page's append to its last change")
    axes.set_title("Two replicas on Blob Storage (emulated), each killed again and again, then left alone")
    axes.legend(frameon=False)


CHARTS = (
    Chart(
        "azure-rate.svg",
        "azure-latency.json",
        lambda row: (
            (row["scope"], row["path"], row["kind"]) == ("partition", "worker", "new")
            and not row["settle_ms"]
            and not row.get("ledger")
        ),
        rates,
    ),
    Chart(
        "azure-charge.svg",
        "azure-latency.json",
        lambda row: (row["rtt_ms"], row["concurrency"], row["path"]) == (10.0, 64, "worker") and not row["settle_ms"],
        charges,
    ),
    Chart("azure-keys.svg", "azure.json", lambda row: row.get("workload") in ("cold", "W1", "ten keys"), shares),
    Chart("pipeline.svg", "pipeline.json", lambda row: "p50_ms" in row, waits),
    Chart("recovery.svg", "recovery.json", lambda row: "second" in row, gaps),
)


def main() -> int:
    """Draw all of them; 1 where there is nothing to draw with."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not here, nothing is drawn; `make charts` installs it", file=sys.stderr)
        return 1
    mpl.rcParams.update({"svg.hashsalt": "outbox", "svg.fonttype": "none", "font.family": "sans-serif"})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK})
    for chart in CHARTS:
        figure = Figure(figsize=(7.2, 4), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=True, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.title.set_fontsize(10)
        chart.draw(axes, chart.rows())
        axes.title.set_fontsize(10)
        figure.savefig(chart.path, metadata={"Date": None, "Description": f"rows {chart.digest()}"})
        print(f"{chart.path.relative_to(FOLDER.parents[1])}: {len(chart.rows())} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
