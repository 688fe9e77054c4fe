"""Draw what was published: `python -m benchmarks.charts` writes docs/benchmarks/*.svg from the JSON beside them.

Each drawing has the digest of the rows that it was made from in its description, so that a test can tell whether it is
of today's figures without drawing it again.  Its colours, for a light and a dark screen, are those of `tools.pictures`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from tools.pictures.drawing import DARK, FONT, LIGHT

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
INK, GRID, GROUND, OURS = (LIGHT[name] for name in ("ink", "edge", "ground", "blue"))
GREEN, ORANGE, GREY, SKY, PURPLE = "#1a7f37", "#bc4c00", "#8c959f", "#80ccff", "#8250df"
DEPTHS = {1: SKY, 16: "#218bff", 64: "#0550ae", 256: PURPLE}
ON_DARK = {LIGHT[name]: DARK[name] for name in ("ink", "edge", "ground", "blue")}
ON_DARK |= {GREEN: "#3fb950", ORANGE: "#f0883e", GREY: "#8b949e"}
ON_DARK |= {SKY: "#a5d6ff", PURPLE: "#bc8cff", "#218bff": "#58a6ff", "#0550ae": "#1f6feb", LIGHT["red"]: DARK["red"]}
SMALL = 9
"""Points: twelve pixels."""
KINDS = {"new": "a new\nkey", "existing": "a known\nkey, read", "warm": "again within\ntwo seconds", "ten": "ten keys"}
RECKONED_RU = {"NServiceBus,\n5 operations\n(reckoned)": 27.0}

Row = dict[str, Any]
Rows = list[Row]
Axes = Any
Figure = Any
"""Both of matplotlib."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing: its file, the published file, which rows of it, and how they are drawn."""

    name: str
    published: str
    chosen: Callable[[Row], bool]
    draw: Callable[[Figure, Rows], None]
    height: float = 3.6
    """In inches; all are 7.2 wide."""

    def rows(self) -> Rows:
        """What is drawn."""
        return [row for row in json.loads((FOLDER / self.published).read_text()) if self.chosen(row)]

    def digest(self) -> str:
        """The digest of what is drawn."""
        return hashlib.sha256(json.dumps(self.rows(), sort_keys=True).encode()).hexdigest()

    @property
    def path(self) -> Path:
        return FOLDER / self.name


# Forms


def titled(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Name a chart and its axes."""
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def bars(
    axes: Axes,
    names: Sequence[str],
    figures: Sequence[Mapping[str, float]],
    colors: Sequence[str],
    number: Callable[[float], str] = "{:,.0f}".format,
) -> None:
    """Bars from left to right, each the median with its range and its number."""
    places = range(len(names))
    middle = [figure["median"] for figure in figures]
    spread = [[figure["median"] - figure["min"] for figure in figures], [f["max"] - f["median"] for f in figures]]
    axes.barh(places, middle, 0.62, color=colors, xerr=spread, error_kw={"ecolor": INK, "elinewidth": 1.5})
    for place, figure in zip(places, figures, strict=True):
        noted(axes, number(figure["median"]), (figure["max"], place))
    listed(axes, names)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.16)


def grouped(
    axes: Axes, groups: Sequence[str], series: Mapping[str, tuple[str, Mapping[str, float]]], number: str
) -> None:
    """Bars side by side, for each group one of each series that has it."""
    width = 0.8 / len(series)
    for place, (label, (color, found)) in enumerate(series.items()):
        at = [index + (place - (len(series) - 1) / 2) * width for index, name in enumerate(groups) if name in found]
        drawn = axes.bar(at, [found[name] for name in groups if name in found], width * 0.92, color=color, label=label)
        axes.bar_label(drawn, fmt=number, fontsize=SMALL, color=INK, padding=2)
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.15)


def noted(axes: Axes, text: str, at: tuple[float, float], **options: Any) -> None:
    """Write a note to the right of a place."""
    options = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": SMALL} | options
    axes.annotate(text, at, **options)


def stacked(
    axes: Axes,
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    colors: Mapping[str, str],
    number: Callable[[float], str] = "{:.2f}".format,
) -> None:
    """Bars from left to right that consist of parts, each with its sum."""
    left = [0.0] * len(names)
    for part, color in colors.items():
        sizes = [found.get(part, 0.0) for found in parts]
        axes.barh(range(len(names)), sizes, 0.62, left=left, color=color, label=part)
        left = [begin + size for begin, size in zip(left, sizes, strict=True)]
    for place, end in enumerate(left):
        noted(axes, number(end), (end, place))
    listed(axes, names)
    axes.margins(x=0.12)


def listed(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart from top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def legend(axes: Axes, **options: Any) -> None:
    """The legend, without a frame."""
    axes.legend(frameon=False, fontsize=SMALL, **options)


# W1 and its parts


def w1(figure: Figure, rows: Rows) -> None:
    """Messages a second of the floor, SQLite and ours, one at a time and 64 in flight."""
    names = {"floor": "floor", "sqlite": "SQLite by hand", "outbox": "outbox"}
    batches = {"batch64": ", batches of 64", "batch100": ", batches of 100"}
    for axes, in_flight in zip(figure.subplots(2, 1, height_ratios=[3, 4]), (1, 64), strict=True):
        some = [row for row in rows if row["in_flight"] == in_flight]
        labels = [names[row["system"]] + batches.get(row["variant"], "") for row in some]
        colors = [OURS if row["system"] == "outbox" else GREY for row in some]
        bars(axes, labels, [row["messages_per_s"] for row in some], colors)
        titled(axes, "Messages a second, one at a time" if in_flight == 1 else "64 in flight")


def peers(figure: Figure, rows: Rows) -> None:
    """Messages a second of ours and of DBOS, on a scale of tens."""
    axes = figure.subplots()
    names = {"default": "outbox", "call": "DBOS, a call each", "queue": "DBOS, its queue"}
    labels = [f"{names[row['variant'].partition('-')[0]]}, {row['in_flight']} in flight" for row in rows]
    for place, row in enumerate(rows):
        rate, color = row["messages_per_s"], OURS if row["system"] == "outbox" else ORANGE
        axes.plot([rate["min"], rate["max"]], [place, place], color=color, linewidth=2, alpha=0.5)
        axes.plot([rate["median"]], [place], "o", color=color, markersize=8)
        noted(axes, f"{rate['median']:,.0f}", (rate["max"], place), xytext=(8, 0))
    listed(axes, labels)
    axes.set_xscale("log")
    axes.set_xlim(20, 300_000)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    titled(
        axes,
        "Messages a second: outbox, and DBOS on SQLite (not its production database)",
        "a scale of tens; lines: the range of the runs",
    )


def stages(figure: Figure, rows: Rows) -> None:
    """What a message of W1 spends its time on."""
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(places, [row["median_us"] for row in rows], 0.62, color=OURS)
    for place, row in zip(places, rows, strict=True):
        noted(axes, f"{row['median_us']:.2f}", (row["median_us"], place))
    listed(axes, [row["stage"] for row in rows])
    titled(axes, "W1 by stage, 64 messages a commit", "µs of wall clock a message, median")


def calls(figure: Figure, rows: Rows) -> None:
    """Which calls of a store or a bus a message takes in each scope."""
    axes, colors = figure.subplots(), {"read": GREY, "commit": OURS, "marker": ORANGE, "send": GREEN, "settle": SKY}
    names = {"swap": "commit", "processed": "marker", "complete": "settle"}
    parts = []
    for row in rows:
        found = {names.get(name, name): count for name, count in row["calls_per_message"].items()}
        kept = {name: found[name] for name in colors if name in found}
        parts.append(kept | {"all others": row["requests_per_message"]["median"] - sum(kept.values())})
    stacked(axes, [f"{row['scope']} scope" for row in rows], parts, colors | {"all others": PURPLE})
    titled(axes, "Calls of a store or bus a message, by scope", "calls a message, 64 in flight")
    legend(axes, loc="upper right")


def telemetry(figure: Figure, rows: Rows) -> None:
    """CPU a message by how much of it is traced."""
    axes = figure.subplots()
    labels = [row["telemetry"] for row in rows]
    colors = [GREY if "alone" in label else OURS for label in labels]
    bars(axes, labels, [row["cpu_us"] for row in rows], colors, "{:.1f}".format)
    titled(axes, "What traces cost, W1 in memory", "CPU µs a message")


# Azure


def rates(figure: Figure, rows: Rows) -> None:
    """Messages a second against the round trip, for each number in flight, and the bare loop's."""
    axes = figure.subplots()
    for in_flight, color in DEPTHS.items():
        some = sorted((row for row in rows if row["concurrency"] == in_flight), key=lambda row: row["rtt_ms"])
        trips = [row["rtt_ms"] for row in some]
        ours, bare = ([row[name] for row in some] for name in ("messages_per_s", "bare_messages_per_s"))
        axes.plot(trips, ours, color=color, marker="o", linewidth=2)
        axes.plot(trips, bare, color=color, linestyle=":", linewidth=1.5)
        noted(axes, f"{in_flight} in flight", (trips[-1], ours[-1]), xytext=(8, 0), color=color)
    axes.set_yscale("log")
    axes.set_yticks([5, 10, 20, 50, 100, 200, 500], ["5", "10", "20", "50", "100", "200", "500"])
    axes.minorticks_off()
    axes.set_xlim(-1, 36)
    axes.set_xticks([0, 10, 20, 30])
    titled(axes, "Messages a second of a worker; dotted: the bare SDKs", "round trip to Azure, ms")


def charges(figure: Figure, rows: Rows) -> None:
    """Requests and request units a message, by kind of key and design."""
    designs: dict[str, tuple[str, Callable[[Row], bool]]] = {
        "partition scope": (OURS, lambda row: row["scope"] == "partition" and not row["ledger"]),
        "with a dispatch ledger": (GREEN, lambda row: row["ledger"]),
        "item scope": (ORANGE, lambda row: row["scope"] == "item"),
    }
    upper, lower = figure.subplots(2, 1)
    for axes, name, number in ((upper, "requests", "%.1f"), (lower, "ru", "%.0f")):
        series = {
            label: (color, {row["kind"]: row[name] for row in rows if is_of(row)})
            for label, (color, is_of) in designs.items()
        }
        grouped(axes, list(KINDS), series, number)
        axes.set_xticks(range(len(KINDS)), list(KINDS.values()))
    for place, (label, ru) in enumerate(RECKONED_RU.items(), len(KINDS)):
        lower.bar_label(lower.bar([place], [ru], 0.25, color=GREY), fmt="%.0f", fontsize=SMALL, color=INK, padding=2)
        lower.set_xticks(range(place + 1), [*KINDS.values(), label])
    upper.set_xlim(lower.get_xlim())
    upper.set_ylim(0, 6.5)
    titled(upper, "Requests to Cosmos DB a message")
    titled(lower, "Request units a message of 1 KB with one output (estimated)")
    legend(upper, loc="upper right")


def shares(figure: Figure, rows: Rows) -> None:
    """Which requests a message takes, the fewer keys the messages have."""
    axes, found = figure.subplots(), {row["workload"]: row["calls_per_message"] for row in rows}
    names = {
        "existing": "each a key that was there, and is read",
        "cold": "each a new key",
        "W1": "1,000 keys, four messages each",
        "warm": "a key again within two seconds",
        "ten keys": "ten keys, a hundred messages each at once",
    }
    stacked(axes, list(names.values()), [found[name] for name in names], {"read": GREY, "commit": OURS, "mark": ORANGE})
    titled(axes, "Requests to Cosmos DB a message, partition scope", "requests a message")
    legend(axes, loc="lower right")


# Streams


def stores(figure: Figure, rows: Rows) -> None:
    """Entries a second of a processor's steps by the entries of a cell, on each store."""
    axes = figure.subplots()
    drawn = {"engine": ("engine", OURS), "blobs": ("Blob Storage", GREEN), "cosmos": ("Cosmos DB", ORANGE)}
    for store, (name, color) in drawn.items():
        found = {int(row["what"].split()[-1]): row["rate"]["median"] for row in rows if row["what"].startswith(store)}
        axes.plot(list(found), list(found.values()), color=color, marker="o", linewidth=2)
        noted(axes, name, (max(found), found[max(found)]), xytext=(8, 0), color=color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
    axes.minorticks_off()
    axes.set_xlim(0.8, 2_000)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    titled(axes, "Entries a second of a processor; Azure's stores emulated", "entries that were appended together")


def waits(figure: Figure, rows: Rows) -> None:
    """How long a page waits until its changes are durable, by mode."""
    axes = figure.subplots()
    modes = [row["mode"].replace("_", " ") for row in rows]
    for place, row in enumerate(rows):
        axes.plot([row[share]["median"] for share in ("p50_ms", "p99_ms")], [place, place], color=GRID, lw=2, zorder=1)
    for share, marker, color in (("p50_ms", "o", OURS), ("p99_ms", "^", ORANGE)):
        label = {"p50_ms": "median", "p99_ms": "99th percentile"}[share]
        axes.plot([row[share]["median"] for row in rows], range(len(rows)), marker, color=color, label=label)
    axes.set_yticks(range(len(rows)), modes)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.invert_yaxis()
    titled(
        axes,
        "From a page's append until all its changes are durable",
        "ms; behind a release the interval of its checkpoints, ms",
    )
    figure.legend(frameon=False, fontsize=SMALL, loc="outside lower right", ncols=2)


def gaps(figure: Figure, rows: Rows) -> None:
    """How long pages take in each second, and the seconds in which a replica is killed."""
    axes = figure.subplots()
    seconds = [row["second"] for row in rows]
    for row in rows:
        if row["kills"]:
            axes.axvline(row["second"], color=LIGHT["red"], linewidth=1, alpha=0.6)
    killed = [row["second"] for row in rows if row["kills"]]
    axes.plot(killed, [0] * len(killed), "x", color=LIGHT["red"], mew=2, label="kill -9 of one of two", clip_on=False)
    for share, color, label in (("max_ms", ORANGE, "slowest page of the second"), ("p50_ms", OURS, "median")):
        axes.plot(seconds, [row[share] for row in rows], color=color, label=label, linewidth=2)
    axes.set_ylim(bottom=0)
    titled(axes, "From a page's append to its last change, two replicas, Blob Storage emulated", "second", "ms")
    legend(axes, loc="upper right")


# Spark and the command line


def feeds(figure: Figure, rows: Rows) -> None:
    """The seconds of a feed by phase, beside a loop over the bare SDK."""
    axes = figure.subplots()
    colors = {"start Spark": GREY, "read": ORANGE, "stage": GREEN, "send": OURS, "the bare SDK alone": SKY}
    names, parts = list[str](), list[dict[str, float]]()
    for row in rows:
        took = {name: row[name]["median"] for name in ("imports", "start", "snapshot_of", "open_plan", "send_chunk")}
        rest = row["seconds"]["median"] - sum(took.values())
        shown = {"start Spark": took["imports"] + took["start"] + rest, "read": took["snapshot_of"]}
        shown |= {"stage": took["open_plan"], "send": took["send_chunk"]}
        names += [f"{row['rows']:,} rows", "bare SDK"]
        parts += [shown, {"the bare SDK alone": row["bare_seconds"]["median"]}]
    stacked(axes, names, parts, colors, "{:.1f} s".format)
    titled(axes, "A feed of rows of a file to a queue, on two cores", "seconds")
    legend(axes, loc="upper right")


def answers(figure: Figure, rows: Rows) -> None:
    """How long an operator waits for an answer, and for how long that holds the host's loop."""
    axes, places = figure.subplots(), range(len(rows))
    for key, label, marker, color in (("took_ms", "answered", "o", OURS), ("held_ms", "loop held", "^", ORANGE)):
        axes.plot([row[key]["median"] for row in rows], places, marker, color=color, label=label)
    listed(axes, [row["what"] for row in rows])
    axes.grid(visible=True, axis="y")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    titled(axes, "An operator's answers, 100,000 messages held", "ms, a scale of tens")
    figure.legend(frameon=False, fontsize=SMALL, loc="outside lower right", ncols=2)


CHARTS = (
    Chart("w1.svg", "w1.json", lambda row: row["durable"], w1, 4.2),
    Chart("peers.svg", "peers.json", lambda row: row["system"] != "sqlite", peers, 3.0),
    Chart("profile.svg", "profile.json", lambda row: True, stages),
    Chart("scopes.svg", "scopes.json", lambda row: True, calls, 2.8),
    Chart("telemetry.svg", "telemetry.json", lambda row: True, telemetry, 2.6),
    Chart(
        "azure-rate.svg",
        "azure-latency.json",
        lambda row: (
            (row["scope"], row["path"], row["kind"]) == ("partition", "worker", "new")
            and not row["settle_ms"]
            and not row["ledger"]
        ),
        rates,
    ),
    Chart(
        "azure-charge.svg",
        "azure-latency.json",
        lambda row: (row["rtt_ms"], row["concurrency"], row["path"]) == (10.0, 64, "worker") and not row["settle_ms"],
        charges,
        5.4,
    ),
    Chart(
        "azure-keys.svg", "azure.json", lambda row: "workload" in row and "ledger" not in row["workload"], shares, 3.0
    ),
    Chart("streams.svg", "streams.json", lambda row: ": step of " in row["what"] and "far" not in row["what"], stores),
    Chart("pipeline.svg", "pipeline.json", lambda row: "p50_ms" in row, waits, 3.8),
    Chart("recovery.svg", "recovery.json", lambda row: "second" in row, gaps, 3.4),
    Chart("feed.svg", "feed.json", lambda row: True, feeds, 3.4),
    Chart("looks.svg", "looks.json", lambda row: row["count"] == 100_000 and row["what"] != "nothing", answers, 4.2),
)


def themed(svg: str) -> str:
    """A drawing of matplotlib's in the pictures' font, with colours for a dark screen as well."""
    rules = [
        f'[style*="{name}: {light}"] {{ {name}: {dark} !important }}'
        for light, dark in ON_DARK.items()
        for name in ("fill", "stroke")
    ]
    style = "\n".join(["@media (prefers-color-scheme: dark) {", *rules, "}"])
    font = FONT.replace('"', "'")
    return svg.replace("</defs>", f'<style type="text/css">\n{style}\n</style>\n</defs>', 1).replace(
        "'DejaVu Sans'", font
    )


def main() -> int:
    """Draw all of them; 1 where there is nothing to draw with."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not here, nothing is drawn; `make charts` installs it", file=sys.stderr)
        return 1
    mpl.rcParams.update({"svg.hashsalt": "outbox", "svg.fonttype": "none", "font.family": "DejaVu Sans"})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True})
    mpl.rcParams.update({"axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.8, "axes.titlesize": 11})
    mpl.rcParams.update({"axes.titleweight": "bold", "axes.titlepad": 10, "axes.labelsize": SMALL})
    mpl.rcParams.update(dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), SMALL))
    mpl.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK))
    mpl.rcParams.update(dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), INK))
    mpl.rcParams.update(dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), GROUND))
    for chart in CHARTS:
        figure = Figure(figsize=(7.2, chart.height), layout="constrained")
        chart.draw(figure, chart.rows())
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Description": f"rows {chart.digest()}"})
        chart.path.write_text(themed(drawn.getvalue()))
        print(f"{chart.path.relative_to(FOLDER.parents[1])}: {len(chart.rows())} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
