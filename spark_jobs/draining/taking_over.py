"""A ledger of the form before Delta becomes a Delta table in place; no row is copied.

Theory of operation.  The steps, each of which is done again without harm:

1. Close the old log: a build that still writes it loses the next version and stops.
2. Sync the files that the log names, because builds before did not and landing files go for them.
3. Create and sync the table of conflicts, then create the table of rows; each is there whole or not at all, and a
   second one of a name is none.  A table of rows that a power loss took is missed, one of conflicts would not be.
4. Delete what the closing record repeats.  The record itself stays, because it is what stops older builds, and what
   all of this is repeated from.

What has landed and no version consumed stays where it is, and the next merge takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

from outbox.errors import CorruptRecord, Refused
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.folder import Folder, sync_path
from spark_jobs.common.folder_errors import refusing
from spark_jobs.common.places import Place
from spark_jobs.draining.durable import Durable
from spark_jobs.draining.entries import Progress
from spark_jobs.draining.manifest import LOG, ManifestLog, State, two_ledgers
from spark_jobs.draining.merging import ATTEMPT_COUNT_MAX, CONFLICTS, CONFLICTS_NAME, LANDING, LANE_COUNT, LEDGER_NAME
from spark_jobs.draining.parquet import DataFile, row_count
from spark_jobs.draining.tables import Table


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The rows of the table now, and the number of landing files that wait for the next merge."""

    rows: int
    files: int
    conflicts: int
    waiting: int


def take_over(place: Place, crash_point: CrashPoint = no_crash) -> TakenOver:
    """Make a Delta table of the files that the old log names.

    Raises:
        Refused: there is no such ledger, or another of this name.
        CorruptRecord: a file that the log names is missing or damaged.
    """
    log, table = ManifestLog(place), Table(place, LEDGER_NAME)
    if not log.is_there():
        raise Refused(f"{place} has no ledger of the form before Delta: there is no {LOG} in it")
    state = closed(log, place, table)
    crash_point("closed")
    landed = {item.name for item in (place / LANDING).list(suffix=".parquet")}
    if state.conflicts:
        beside = place / CONFLICTS
        names = [name.removeprefix(f"{CONFLICTS}/") for name in state.conflicts]
        created(Table(beside, CONFLICTS_NAME), names, ())
        Durable(beside).sync()
        crash_point("conflicts")
    files = created(table, state.files, [name for name in state.consumed if name in landed])
    crash_point("created")
    log.let_go(state)
    rows = sum(file.rows or 0 for file in files)
    return TakenOver(rows, len(files), len(state.conflicts), len(landed - set(state.consumed)))


def closed(log: ManifestLog, place: Place, table: Table) -> State:
    """The newest version of a log that nobody adds to any more.

    Raises:
        Refused: a table was there before, or mergers of an older build won every time.
    """
    for _ in range(ATTEMPT_COUNT_MAX):
        state, is_closed = log.read()
        if is_closed:
            return state
        if table.read() is not None:
            raise two_ledgers(place)
        if log.close(state):
            return state
    raise Refused(f"{place}: an older build commits to it all the time; let it finish, and run the same again")


def created(table: Table, names: Sequence[str], consumed: Sequence[str]) -> list[DataFile]:
    """The table with exactly these files in its first version, made now or by an earlier run; gives the files."""
    with ThreadPoolExecutor(LANE_COUNT) as pool:
        files = list(pool.map(lambda name: found(table.place, name), names))
    sync_data(table.place, names)
    table.create(files, Progress(token=uuid4().hex, number=0, files=len(files), consumed=list(consumed)))
    made = table.read()
    if made is None or not {*names} <= {*made.files}:
        raise two_ledgers(table.place)
    return files


def found(place: Place, name: str) -> DataFile:
    """A data file as its table states it.

    Raises:
        CorruptRecord: it is missing or damaged.
    """
    size = next((item.size for item in place.list(name) if item.name == name), None)
    if size is None:
        raise CorruptRecord(f"{place / name} is not there, and the ledger names it; restore it from a copy")
    return DataFile(name, size, row_count(place, DataFile(name, size)))


def sync_data(place: Place, names: Sequence[str]) -> None:
    """Wait until the disk has data files of a folder, which Spark wrote, and their names."""
    if not isinstance(place, Folder):
        return
    paths = [place.path / name for name in names]
    folders = sorted({path.parent for path in paths})
    with refusing("syncing", place):
        for path in (*paths, *folders, *(folder.parent for folder in folders)):
            sync_path(path)
