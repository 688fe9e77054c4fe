"""An export as Parquet files, each created once and named by where it begins; written here, and read.

    0000000000000017.0000000.parquet    entries from 17.0 on
    _begin.json                         where the first file begins

Theory of operation.  A file's metadata says its span, [begin, end), and the next file begins where it ends.  So a
writer that begins again reads the last file's, and one that loses the create of a name reads how far the winner is and
goes on behind that: no entry is in two files.  Where the first one begins is written once before it, because two
writers may find the log's floor at two places, and would begin two chains.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from outbox.errors import CorruptRecord, Refused
from outbox.streams.cells import Position
from spark_jobs.common.folder import Folder, sync_path
from spark_jobs.common.folder_errors import refusing
from spark_jobs.common.items import Item
from spark_jobs.common.places import Place
from spark_jobs.draining.parquet import UNREADABLE, DataFile, opened
from spark_jobs.exporting.rows import ENTRY, Entry, Span, Target, encoded, span_of

BEGIN = "_begin.json"
LANE_COUNT = 8
DELTA_LOG = "_delta_log/"
_NAME = re.compile(r"\d{16}\.\d{7}\.parquet")
_AT_MS = ENTRY.get_field_index("at_ms")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of an export: the span [begin, end) that it has, its rows, and the greatest `at_ms` of them."""

    name: str
    size: int
    rows: int
    at_ms_max: int
    log: str
    row: str
    begin: Position
    end: Position


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an export in order, without a hole from `begin` to `end`."""

    log: str
    row: str
    begin: Position
    end: Position
    files: tuple[ExportedFile, ...]


def exported(place: Place) -> Export:
    """The export in a place, by the metadata of its files.

    Raises:
        Refused: there is nothing, a file is missing, or files are of two logs or rows.
        CorruptRecord: a file is none of an export.
    """
    items = listed(place)
    if not items:
        if next(place.list(DELTA_LOG), None) is not None:
            raise Refused(f"{place} is a Delta table; run `outbox stream export` without --format to another place")
        raise Refused(f"{place} has no file of an export; look at the address, or run `outbox stream export` first")
    with ThreadPoolExecutor(LANE_COUNT) as pool:
        files = tuple(pool.map(partial(looked_at, place), items))
    for before, file in pairwise(files):
        if (before.log, before.row) != (file.log, file.row):
            raise other_log(place, file, before.log, before.row)
        if before.end != file.begin:
            raise Refused(
                f"{place}: {before.name} ends at {before.end} and {file.name} begins at {file.begin}; restore the "
                "file between them from a copy, or export to a new place"
            )
    return Export(files[0].log, files[0].row, files[0].begin, files[-1].end, files)


def listed(place: Place) -> list[Item]:
    """The files of an export, in order."""
    return [item for item in place.list("0", ".parquet") if _NAME.fullmatch(item.name)]


def looked_at(place: Place, item: Item) -> ExportedFile:
    """A file by its metadata, which is read by ranges.

    Raises:
        CorruptRecord: it is none of an export.
    """
    try:
        told = opened(place, DataFile(item.name, item.size)).metadata
        span = span_of((told.metadata or {}).get(b"outbox", b""))
        if told.schema.to_arrow_schema().remove_metadata() != ENTRY:
            raise ValueError("its columns are others")
        if name_of(span.begin) != item.name or span.begin >= span.end:
            raise ValueError(f"it says that it has {span.begin} to {span.end}")
        groups = [told.row_group(number).column(_AT_MS).statistics for number in range(told.num_row_groups)]
        if not groups or not all(groups):
            raise ValueError("it has no statistics")
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptRecord(
            f"{place / item.name} is no file of an export: {reason}; restore it from a copy, or export to a new place"
        ) from error
    at_ms_max = max(group.max for group in groups)
    return ExportedFile(item.name, item.size, told.num_rows, at_ms_max, span.log, span.row, span.begin, span.end)


def name_of(begin: Position) -> str:
    """The name of the file that begins at a position; names sort as positions do."""
    return f"{begin.index:016d}.{begin.offset:07d}.parquet"


def other_log(place: Place, found: Span | ExportedFile, log: str, row: str) -> Refused:
    """Files of another log or row in a place."""
    return Refused(
        f"{place} has an export of log {found.log}, row {found.row}, and this is one of log {log}, row {row}; give "
        "each a place of its own"
    )


@dataclass(slots=True)
class Files:
    """The files of one row of a log, for whoever writes them."""

    place: Place
    log: str
    row: str
    _has_begun: bool = field(default=False, init=False)

    def reached(self) -> Position | None:
        """Where the last file ends, else where the first is to begin; None where there is nothing yet."""
        items = listed(self.place)
        if items:
            return self._end_of(items[-1])
        if next(self.place.list(DELTA_LOG), None) is not None:
            raise Refused(f"{self.place} is a Delta table; say --format delta, or give another place")
        begun = self.place.read(BEGIN)
        return None if begun is None else self._checked(self._begun(begun)).begin

    def add(self, entries: Sequence[Entry], begin: Position, end: Position) -> Position | None:
        """Create a file; where another writer has, the end of its last one."""
        if not self._has_begun:
            self.place.create(BEGIN, Span(self.log, self.row, begin, begin).encoded())
            self._has_begun = True
            if (at := self.reached()) != begin:
                return at
        if self.place.create(name_of(begin), encoded(entries, Span(self.log, self.row, begin, end))):
            return None
        return self.reached() or begin

    def sync(self) -> None:
        """Wait until the disk has the names, also of a writer that was killed between a name and its sync."""
        if isinstance(self.place, Folder) and self.place.path.is_dir():
            with refusing("syncing", self.place):
                sync_path(self.place.path)

    def _end_of(self, item: Item) -> Position:
        return self._checked(looked_at(self.place, item)).end

    def _begun(self, data: bytes) -> Span:
        try:
            return span_of(data)
        except ValueError as error:
            raise CorruptRecord(f"{self.place / BEGIN} is damaged: {error}; export to a new place") from error

    def _checked(self, found: Span | ExportedFile) -> Span | ExportedFile:
        if (found.log, found.row) != (self.log, self.row):
            raise other_log(self.place, found, self.log, self.row)
        return found


_conforms: type[Target] = Files
