"""An export as a Delta table: the entries of a row of an ordered log, each once by its position.

    _delta_log/, data/*.parquet     a Delta table named after the log and the row

Theory of operation.  Each commit adds one data file, and the number of its transaction is the position where that file
ends: Delta keeps the newest of a writer when the entries of its log expire.  The next commit begins there.  Of two
writers one has a version (`draining.tables` says how), and the other reads how far the table has come.  What a writer
put into `data` and no version names is nobody's, and `vacuum` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from outbox.errors import Refused
from outbox.streams.cells import Position
from spark_jobs.common.places import Place
from spark_jobs.draining.durable import Durable
from spark_jobs.draining.entries import LOG, Progress
from spark_jobs.draining.parquet import DataFile
from spark_jobs.draining.tables import Snapshot, Table
from spark_jobs.exporting.rows import ENTRY, Entry, Span, Target, encoded

APP_ID = "outbox-export"
DATA = "data"
OFFSET_BITS = 20
"""The bits of a number that have the offset; a cell has at most 1,000 entries."""
ATTEMPT_COUNT_MAX = 20


class DeltaExport:
    """The Delta table of one row of a log, for whoever writes it."""

    def __init__(self, place: Place, log: str, row: str) -> None:
        self.place, self.log, self.row = place, log, row
        name, writer = f"outbox log {log} {row}", f"an export of log {log}, row {row}"
        self.table = Table(place, name, schema=ENTRY, app_id=APP_ID, thing="table", writer=writer)

    def reached(self) -> Position | None:
        """Where the newest commit ends; None where there is none yet."""
        base = self.table.read()
        if base is not None:
            return self._end_of(base)
        other = next((item.name for item in self.place.list() if not item.name.startswith((f"{DATA}/", LOG))), "")
        if other:
            raise Refused(f"{self.place} is no Delta table and has other files, such as {other}; give another place")
        return None

    def add(self, entries: Sequence[Entry], begin: Position, end: Position) -> Position | None:
        """Commit a file of entries; where another writer has come on from `begin`, its end."""
        name, data = f"{DATA}/{uuid4().hex}.parquet", encoded(entries, Span(self.log, self.row, begin, end))
        progress = Progress(token=uuid4().hex, number=number_of(end), files=1, consumed=[], end=str(end))
        for attempt in range(ATTEMPT_COUNT_MAX):
            base = self.table.read_or_create()
            if (self._end_of(base) or begin) != begin:
                return self._end_of(base)
            if not attempt:
                self.place.create(name, data)
            if self.table.commit(base, [DataFile(name, len(data), len(entries))], progress):
                return None
        raise Refused(f"{self.place}: {ATTEMPT_COUNT_MAX} commits were lost to others; let them finish, then go on")

    def sync(self) -> None:
        """Wait until the disk has the log of the table, which delta-rs does not sync."""
        if self.table.id:
            Durable(self.place).sync()

    def _end_of(self, base: Snapshot) -> Position | None:
        if base.files and not base.number:
            raise Refused(f"{self.place} does not say how far it is, as a copy does not; export to a new place")
        return Position(base.number >> OFFSET_BITS, base.number % (1 << OFFSET_BITS)) if base.number else None


def number_of(end: Position) -> int:
    """The number of a transaction whose file ends at a position."""
    return (end.index << OFFSET_BITS) + end.offset


_conforms: type[Target] = DeltaExport
