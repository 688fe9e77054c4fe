"""The rows that a feed is measured with: transfers, as CSV and as the bodies that they become."""

from __future__ import annotations

from pathlib import Path

TYPE = "Transfer"
ACCOUNTS = 1_000


def id_of(n: int) -> str:
    """A row's id."""
    return f"t{n:08d}"


def body_of(n: int) -> bytes:
    """The message's body."""
    amount, source, target = _row(n)
    return f'{{"amount":{amount},"id":"{id_of(n)}","source":"{source}","target":"{target}"}}'.encode()


def write(path: Path, count: int) -> None:
    """A file of rows."""
    with path.open("w") as file:
        file.write("id,source,target,amount\n")
        for n in range(count):
            amount, source, target = _row(n)
            file.write(f"{id_of(n)},{source},{target},{amount}\n")


def _row(n: int) -> tuple[int, str, str]:
    return n % 90 + 1, f"a{n % ACCOUNTS}", f"a{(n * 7 + 1) % ACCOUNTS}"
