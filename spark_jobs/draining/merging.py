"""The merge of landed rows into the ledger, each identity once: by the driver, without Spark.

    ledger/_delta_log/, data/*.parquet     a Delta table: every message once
    ledger/_keys/                          which identities each data file holds (spark_jobs.draining.keys)
    ledger/_conflicts/                     a Delta table: known identity, other type or body
    ledger/_landing/*.parquet              what receivers landed and no version has consumed

Theory of operation.  One version has both the rows and the names of the landing files that they came from, so data and
progress never disagree.  The steps, in an order in which a kill behind any of them is repeated safely:

1. Open the table anew; delete the landing files that its newest version consumed.
2. Read what else has landed, up to a limit, and judge each row by the digests of what the ledger holds.
3. Commit the conflicts that their table does not hold yet.
4. Write the new rows and their keys under a name of their own.
5. Commit the version behind the one that was opened; where another merger has it, begin again at 1.
6. Sync the tables, then delete the landing files.

A landing file that comes back after its version (a deletion that a power loss undid) adds nothing: its rows are known.
Memory holds 8 bytes for each row of the ledger, landed rows up to a limit, and a block of one key file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from outbox.errors import CorruptRecord, Refused
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.folder import Folder
from spark_jobs.common.places import Place
from spark_jobs.draining.durable import Durable
from spark_jobs.draining.entries import LOG, Progress
from spark_jobs.draining.judged import CONTRADICTIONS, MESSAGES, judge, order_of_delivery
from spark_jobs.draining.keys import KEYS, Known
from spark_jobs.draining.manifest import refuse_older_form
from spark_jobs.draining.parquet import UNREADABLE, DataFile, encoded
from spark_jobs.draining.received import ROW
from spark_jobs.draining.tables import Snapshot, Table

DATA, LANDING, CONFLICTS = "data", "_landing", "_conflicts"
LEDGER_NAME, CONFLICTS_NAME = "outbox ledger", "outbox conflicts"
FILE_COUNT_MAX, LANDED_BYTES_MAX = 2_000, 256 << 20
"""The most landing files that one version consumes, and the most bytes that these decode to."""
ATTEMPT_COUNT_MAX = 20
COMMIT_COUNT_MAX = 10_000
MERGE_S_MAX = 3_600.0
"""Younger than anything that `vacuum` takes, so that no version names a file that it took."""
LANE_COUNT = 8


@dataclass(frozen=True, slots=True)
class Merged:
    """Counts of a merge: landed rows, new ones, duplicates, and conflicts (a known identity with another body)."""

    version: int = 0
    landed: int = 0
    added: int = 0
    duplicates: int = 0
    conflicts: int = 0

    def and_then(self, later: Merged) -> Merged:
        """Both together, at the later version."""
        return Merged(
            later.version,
            self.landed + later.landed,
            self.added + later.added,
            self.duplicates + later.duplicates,
            self.conflicts + later.conflicts,
        )


class Merger:
    """Merges into one ledger; keeps what it knows of the ledger's files between two merges."""

    def __init__(self, place: Place, crash_point: CrashPoint = no_crash) -> None:
        """Take the ledger's place.

        Raises:
            Refused: a ledger of the form before Delta is there.
        """
        self.place = place
        self.crash_point = crash_point
        self.table = Table(place, LEDGER_NAME)
        self.known, self.durable = Known(place, MESSAGES), Durable(place)
        beside = place / CONFLICTS
        self.contradictions = Table(beside, CONFLICTS_NAME)
        self.known_contradictions, self.durable_contradictions = Known(beside, CONTRADICTIONS), Durable(beside)
        refuse_older_form(place)

    def merge(self) -> Merged:
        """Add what has landed, version by version, until nothing waits.

        Raises:
            Refused: other mergers won every time, or the table cannot be written to.
            OutcomeUnknown: a commit got no answer; run it again.
            CorruptRecord: a file is damaged; the text names it.
        """
        total, lost = Merged(), 0
        for _ in range(COMMIT_COUNT_MAX):
            base = self.table.read_or_create()
            waiting = self._waiting(base)
            if not waiting:
                return replace(total, version=base.version)
            done = self._merged(base, waiting)
            if done is not None:
                total, lost = total.and_then(done), 0
            elif (lost := lost + 1) == ATTEMPT_COUNT_MAX:
                raise Refused(f"{self.place}: {lost} commits were lost to other mergers; let one of them finish")
        return total

    def check(self) -> None:
        """Check whether rows can be added to the tables.

        Raises:
            Refused: one of the tables is none of ours.
            CorruptRecord: its log is torn.
        """
        if isinstance(self.place, Folder) and self.place.path.is_file():
            raise Refused(f"{self.place} is a file; a ledger is a folder, or a new name")
        if self.table.read() is None:
            self._check_empty()
        self.contradictions.read()

    def _check_empty(self) -> None:
        """Refuse to begin a ledger among the files of others, where a typing error leads."""
        own = tuple(f"{name}/" for name in (DATA, LANDING, CONFLICTS, KEYS, LOG))
        other = next((item.name for item in self.place.list() if not item.name.startswith(own)), "")
        if other:
            raise Refused(
                f"{self.place} is no ledger and has other files, such as {other}; give a ledger its own folder"
            )

    def is_due(self) -> bool:
        """Whether something has landed; asked before `merge`, it spares an idle round the opening of the table."""
        return any(True for _ in (self.place / LANDING).list(suffix=".parquet"))

    def sync_names(self) -> None:
        """Wait until the disk knows the ledger's folder, before receivers complete what they landed below it."""
        self.durable.sync()

    def _waiting(self, base: Snapshot) -> list[str]:
        """List unconsumed landing files up to the limit, and delete the ones that the newest version consumed."""
        consumed, gone = set(base.progress.consumed), []
        waiting = list[str]()
        for item in (self.place / LANDING).list(suffix=".parquet"):
            if item.name in consumed:
                gone.append(item.name)
            elif len(waiting) < FILE_COUNT_MAX:
                waiting.append(item.name)
        if gone:
            self._let_go(gone)
        return waiting

    def _merged(self, base: Snapshot, waiting: Sequence[str]) -> Merged | None:
        """Commit one version; None where another merger was first, here or at a landing file."""
        started_s = self.place.now_s()
        parts = self._landed(waiting)
        if any(part is None for part in parts):
            return None
        taken, landed = waiting[: len(parts)], pa.concat_tables(parts)
        identities = MESSAGES.identities(landed)
        known = self.known.among(identities, base.files)
        judged = judge(order_of_delivery(landed), identities, MESSAGES.contents(landed), known)
        if judged.conflicts:
            self._keep_conflicts(chosen(landed, judged.conflicts))
        added = self._written(self.place, self.known, base, chosen(landed, judged.new))
        self.crash_point("prepared")
        if self.place.now_s() - started_s > MERGE_S_MAX:
            raise Refused(f"{self.place}: a merge took longer than {MERGE_S_MAX:g} s; run the same again")
        progress = Progress(token=uuid4().hex, number=base.number + 1, files=len(added), consumed=list(taken))
        if not self.table.commit(base, added, progress):
            return None
        self.crash_point("committed")
        self._let_go(taken)
        return Merged(base.version + 1, landed.num_rows, len(judged.new), len(judged.duplicates), len(judged.conflicts))

    def _let_go(self, names: Sequence[str]) -> None:
        """Delete landing files whose version stands, once it is on disk."""
        self.durable.sync()
        self.crash_point("synced")
        with ThreadPoolExecutor(LANE_COUNT) as pool:
            list(pool.map((self.place / LANDING).delete, names))

    def _keep_conflicts(self, rows: pa.Table) -> None:
        """Commit the conflicts that their table does not hold yet; they are on disk when this returns."""
        for _ in range(ATTEMPT_COUNT_MAX):
            base = self.contradictions.read_or_create()
            identities = CONTRADICTIONS.identities(rows)
            known = self.known_contradictions.among(identities, base.files)
            new = judge(range(rows.num_rows), identities, CONTRADICTIONS.contents(rows), known).new
            added = self._written(self.contradictions.place, self.known_contradictions, base, chosen(rows, new))
            progress = Progress(token=uuid4().hex, number=base.number + 1, files=len(added), consumed=[])
            if not added or self.contradictions.commit(base, added, progress):
                self.durable_contradictions.sync()
                self.crash_point("conflicts")
                return
        raise Refused(f"{self.place / CONFLICTS}: {ATTEMPT_COUNT_MAX} commits were lost; let another merger finish")

    def _written(self, place: Place, known: Known, base: Snapshot, rows: pa.Table) -> list[DataFile]:
        """A data file of these rows and its keys, under a name that nobody else has; none for no rows."""
        if not rows.num_rows:
            return []
        name, data = f"{DATA}/{base.version + 1:08}-{uuid4().hex}.parquet", encoded(rows)
        if not place.create(name, data):
            raise CorruptRecord(f"{place / name} is there already, though its name is random; run the same again")
        known.add(name, rows)
        return [DataFile(name, len(data), rows.num_rows)]

    def _landed(self, names: Sequence[str]) -> list[pa.Table | None]:
        """The rows of the first of these files, up to the limit; None for one that another merger has consumed."""
        parts, size = list[pa.Table | None](), 0
        with ThreadPoolExecutor(LANE_COUNT) as pool:
            for first in range(0, len(names), LANE_COUNT):
                for part in pool.map(self._read_landed, names[first : first + LANE_COUNT]):
                    size += 0 if part is None else part.nbytes
                    if parts and size > LANDED_BYTES_MAX:
                        return parts
                    parts.append(part)
        return parts

    def _read_landed(self, name: str) -> pa.Table | None:
        data = (self.place / LANDING).read(name)
        if data is None:
            return None
        try:
            rows = pq.ParquetFile(io.BytesIO(data)).read()
        except UNREADABLE as error:
            raise damaged(self.place, name, str(error).splitlines()[0]) from error
        if rows.schema.remove_metadata() != ROW:
            raise damaged(self.place, name, "its columns are others")
        return rows


def chosen(rows: pa.Table, positions: Sequence[int]) -> pa.Table:
    """The rows at these places, in this order."""
    return rows.take(pa.array(positions, pa.int64()))


def damaged(place: Place, name: str, reason: str) -> CorruptRecord:
    """A landing file that is none."""
    return CorruptRecord(
        f"{place / LANDING / name} cannot be read: {reason}; its messages are in no other file: restore it from a "
        "copy, or move it elsewhere to go on without them"
    )
