"""Copies of messages that were fed, as a producer sends them that does not know whether they arrived.

Spark drops repeated rows before it sends, and sends a batch again only if a kill took the answer to it, which is rare.
So the demo itself sends every so many messages a second time: under the same id, with the same body and the same time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from outbox.ops.values.messages import NewMessage

RESENT_EVERY = 20
"""One of so many fed messages is sent again."""


def copies_of_fed(progress: Path, type: str) -> list[NewMessage]:
    """Every twentieth message of a finished feed, the first included, by the messages that it keeps in its folder."""
    import pyarrow.parquet

    copies: list[NewMessage] = []
    for run in sorted(progress.iterdir()):
        files = [run / file["name"] for file in msgspec.json.decode((run / "manifest.json").read_bytes())["staged"]]
        tables = (pyarrow.parquet.read_table(file, columns=["id", "body", "created_ms"]) for file in files)
        fed = sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["id"])
        copies += [
            NewMessage(
                body=msgspec.Raw(row["body"].encode()), id=row["id"], type=type, created=row["created_ms"] / 1_000
            )
            for row in fed[::RESENT_EVERY]
        ]
    return copies
