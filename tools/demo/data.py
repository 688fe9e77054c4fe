"""The transfers of the demo, drawn from a seed, and what can be known of any transfers before they run."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

COLUMNS = ("id", "source", "target", "amount")
SCHEMA = "id string, source string, target string, amount bigint"
OPENING_BALANCE = 1_000
DUPLICATE_SHARE = 0.02
MALFORMED_SHARE = 0.002
UNACCEPTABLE_SHARE = 0.001
CLOSED_EVERY = 97


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file of transfers holds, read once, row by row."""

    row_count: int
    id_count: int
    accounts: tuple[str, ...]

    @property
    def closed(self) -> tuple[str, ...]:
        """The accounts that are closed before the first transfer, so that some deposits come back."""
        return self.accounts[::CLOSED_EVERY]


def write_transfers(path: Path, *, transfer_count: int, account_count: int, seed: int) -> None:
    """Write a CSV file: skewed accounts, 2 % repeated rows, some that are malformed, some that are unacceptable."""
    draw = random.Random(seed)
    names = [f"account-{n:04d}" for n in range(account_count)]
    weights = list(accumulate(1 / (n + 10) for n in range(account_count)))
    lines: list[tuple[object, ...]] = []
    for n in range(transfer_count):
        source, target = draw.choices(names, cum_weights=weights, k=2)
        row: tuple[object, ...] = (f"transfer-{n:06d}", source, target, draw.randint(1, 120))
        chance = draw.random()
        if chance < MALFORMED_SHARE:
            row = (*row[:3], "a lot")
        elif chance < MALFORMED_SHARE + UNACCEPTABLE_SHARE:
            row = (*row[:3], 0)
        lines.append(row)
        if draw.random() < DUPLICATE_SHARE:
            lines.append(lines[draw.randrange(len(lines))])
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(lines)
    temporary.replace(path)


def read_facts(path: Path) -> Facts:
    """Read which accounts a file of transfers names and how many ids it has.

    Raises:
        ValueError: the file has no such columns.
    """
    ids: set[str] = set()
    accounts: dict[str, None] = {}
    row_count = 0
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is None or not set(COLUMNS) <= set(reader.fieldnames):
            raise ValueError(f"{path}: the first line must name the columns {', '.join(COLUMNS)}")
        for row in reader:
            row_count += 1
            ids.add(row["id"])
            for name in (row["source"], row["target"]):
                if name:
                    accounts[name] = None
    return Facts(row_count, len(ids), tuple(sorted(accounts)))
