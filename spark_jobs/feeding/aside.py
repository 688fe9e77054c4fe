"""Rows that cannot be sent, as people read them: JSON lines in the quarantine, copied by tasks from the stage.

quarantine/<queue>.<plan>/rows/<token>.json         {"id", "reason", "detail", "row", "file", "line"} for each row
quarantine/<queue>.<plan>/sending-<chunk>.json      messages that turned out to be larger than the queue takes
quarantine/<queue>.<plan>/_fed-<digest>             which state of an input was fed, also where no row was set aside
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import msgspec
import pyarrow as pa

from outbox.errors import OutboxError
from spark_jobs.common.arrow_rows import as_batches
from spark_jobs.common.places import Place
from spark_jobs.common.staging import read_file

COPIED = "failed string"
FED = "_fed-"
_SCHEMA = pa.schema([("failed", pa.string())])


class Fed(msgspec.Struct, frozen=True, kw_only=True):
    """A state of an input: its rows' digest, and its files' names, sizes and versions; a frame has none."""

    digest: str
    files: list[tuple[str, int, str]]

    @property
    def name(self) -> str:
        """The file that says so."""
        return f"{FED}{sha256(self.encoded).hexdigest()[:16]}"

    @property
    def encoded(self) -> bytes:
        """The bytes of that file."""
        return msgspec.json.encode(self)


def name_aside(staged: str) -> str:
    """The file of the quarantine that a file of the stage is copied to."""
    return f"rows/{staged.rpartition('/')[2].removesuffix('.parquet')}.json"


@dataclass(frozen=True, slots=True)
class Copying:
    """From which files of a run to which place."""

    run: Place
    target: Place
    names: tuple[str, ...]

    def copy(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the files whose numbers come in; gives a row of `COPIED` for each that failed."""
        for part in parts:
            for number in part.column(0).to_pylist():
                try:
                    self._copied(self.names[number])
                except OutboxError as error:
                    yield from as_batches([{"failed": str(error)}], _SCHEMA)

    def _copied(self, name: str) -> None:
        """Copy a file under a name and as bytes that do not depend on who makes the copy."""
        lines = list[bytes]()
        for batch in read_file(self.run, name):
            rows = batch.to_pylist()
            lines += [
                msgspec.json.encode({key: value for key, value in row.items() if value is not None}) for row in rows
            ]
        self.target.create(name_aside(name), b"\n".join(lines) + b"\n")
