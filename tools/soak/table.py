"""What all soaks together came to: a table that grows from run to run, as `soak.json` and for people as `soak.txt`.

A kind's seeds are handed out once: the next soak continues behind the last seed that was counted, so that no run
counts twice.  Each piece is counted as it ends, and the files are replaced whole: a reader, or a soak after one that
was killed, finds the table before that piece or behind it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.soak.pieces import KINDS, Piece

NAME = "soak"
FIRST_SEED = 1_000
"""Seeds below were used before there was this table."""
AIM = 1_000_000
FAULTY = ("drawn-", "bank-")
"""The kinds whose runs are runs of the protocols under drawn faults."""
COUNTED = ("runs", "worlds", "steps", "faults", "cpu_s")
EARLIER = (
    "Not in the table: 105,670 drawn runs of the larger shape, from before it was kept\n"
    "(75,000 engine, 23,400 partition, 7,270 item; seeds below 1,000), none of which broke a promise."
)
HEADS = ("kind", "one run is", "seeds", "runs", "worlds", "steps", "faults", "CPU hours", "findings")
FINDING_COUNT_MAX = 200

Row = dict[str, Any]


class Table:
    """The table in a folder; every change is on disk when a method returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._content: dict[str, Any] = {"rows": {}, "findings": [], "soaks": []}
        file = folder / f"{NAME}.json"
        if file.exists():
            self._content = json.loads(file.read_text())

    @property
    def rows(self) -> Mapping[str, Row]:
        """The row of each kind that ever ran."""
        found: dict[str, Row] = self._content["rows"]
        return found

    def next_seed(self, kind: str) -> int:
        """The first seed that was not counted for a kind."""
        return int(self.rows[kind]["last_seed"]) + 1 if kind in self.rows else FIRST_SEED

    def begin(self, circumstances: str) -> None:
        """Begin a soak: when and where."""
        self._content["soaks"].append({"circumstances": circumstances, "pieces": 0, "minutes": 0.0})

    def count(self, kind: str, seed: int, piece: Piece, *, minutes: float) -> None:
        """Count a piece that has ended, `minutes` after the soak's begin."""
        empty: Row = {"first_seed": seed, "last_seed": seed, "findings": 0, **dict.fromkeys(COUNTED, 0)}
        row = self._content["rows"].setdefault(kind, empty)
        row["first_seed"], row["last_seed"] = min(row["first_seed"], seed), max(row["last_seed"], seed)
        for name in COUNTED:
            row[name] = round(row[name] + getattr(piece, name), 1)
        row["findings"] += len(piece.findings)
        texts = [{"kind": kind, "seed": seed, "text": text[:4_000]} for text in piece.findings]
        self._content["findings"] = [*self._content["findings"], *texts][-FINDING_COUNT_MAX:]
        self._content["soaks"][-1] |= {"pieces": self._content["soaks"][-1]["pieces"] + 1, "minutes": round(minutes, 1)}
        self._save()

    def _save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / f"{NAME}.json", json.dumps(self._content, indent=1) + "\n")
        replace_file(self._folder / f"{NAME}.txt", self.text + "\n")

    @property
    def faulty_count(self) -> int:
        """Runs of the protocols under faults that a seed drew."""
        return int(sum(row["runs"] for kind, row in self.rows.items() if kind.startswith(FAULTY)))

    @property
    def text(self) -> str:
        """The whole, for people."""
        lines = ["What `make soak` has run, over all its runs; seeds go on from run to run, so none counts twice.", ""]
        kinds = [kind for kind in KINDS if kind in self.rows]
        kinds += [kind for kind in self.rows if kind not in KINDS]  # of a kind that there is no more
        lines += aligned([HEADS, *(_cells(kind, self.rows[kind]) for kind in kinds), _total(self.rows.values())])
        lines += ["", f"{self.faulty_count:,} runs under seeded faults of the {AIM:,} aimed at.", EARLIER]
        if self._content["findings"]:
            lines += ["", "Findings, each with the command that runs it again:"]
            lines += [text_of(found) for found in self._content["findings"]]
        soaks: list[dict[str, Any]] = self._content["soaks"]
        lines += ["", f"{len(soaks)} soaks, {sum(soak['minutes'] for soak in soaks) / 60:.1f} hours; the last one:"]
        return "\n".join([*lines, *(str(soak["circumstances"]) for soak in soaks[-1:])])


def again(kind: str, seed: int) -> str:
    """The command that runs a piece again."""
    return f'make soak ARGS="--again {kind} {seed}"'


def text_of(found: Mapping[str, Any]) -> str:
    """A finding, for people."""
    return f"  {again(found['kind'], found['seed'])}\n    " + str(found["text"]).replace("\n", "\n    ")


def _cells(kind: str, row: Row) -> tuple[str, ...]:
    seeds = f"{row['first_seed']:,} to {row['last_seed']:,}"
    about = KINDS[kind].about if kind in KINDS else ""
    return (kind, about, seeds, *_figures(row), str(row["findings"]))


def _figures(row: Row) -> list[str]:
    counts = [f"{int(row[name]):,}" if row[name] else "" for name in COUNTED[:-1]]
    return [*counts, f"{row['cpu_s'] / 3_600:.2f}"]


def _total(rows: Collection[Row]) -> tuple[str, ...]:
    whole = {name: sum(row[name] for row in rows) for name in (*COUNTED, "findings")}
    return ("all", "", "", "", *_figures(whole)[1:], str(whole["findings"]))  # runs of different kinds do not add up


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns: two of text, then numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return [rows[0], "  ".join("-" * width for width in widths), *rows[1:]]


def replace_file(file: Path, text: str) -> None:
    """Write a file whole: whoever reads it, or finds it after a crash, sees the text before or this one."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}-", delete=False) as fresh:
        fresh.write(text)
        fresh.flush()
        os.fsync(fresh.fileno())
    Path(fresh.name).chmod(0o644)
    Path(fresh.name).replace(file)
