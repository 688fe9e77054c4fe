"""One Delta table of ours: opened anew each time, and committed to once or not at all.

Theory of operation.  A commit is a put-if-absent of the version behind the one that was read, so a handle that is
opened anew and never tries another version (`max_commit_retries=0`) is the fence: of two that decided on one version
one commits.  delta-rs would commit a repeated transaction number from a fresh handle, so the number is read first and
its successor written; it also says which commit of the log is the newest of ours.

A failed commit is not a lost one: where the answer of a put is lost, delta-rs puts again, is told that the version
exists, and raises `CommitFailedError` although its commit stands.  Each commit carries a token of its own, and what
failed is looked up: with our token the version is ours, with another it is theirs, and where there is none the outcome
is unknown.  Nobody deletes files after that: a version may name them, and `vacuum` takes them where none does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from outbox.errors import CorruptRecord, OutcomeUnknown, Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.places import Place
from spark_jobs.draining.entries import (
    APP_ID,
    LOOK_COUNT_MAX,
    OURS,
    Progress,
    check_checkpoints,
    newest_checkpoint,
    read_entry,
)
from spark_jobs.draining.parquet import DataFile
from spark_jobs.draining.received import ROW

PROTOCOL = (1, 2)
"""Reader and writer: what Synapse Spark 3.5 and serverless SQL read, and any older Delta reader."""
PROPERTIES: dict[str, str | None] = {
    "delta.appendOnly": "true",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "10",
}
ROLE = "Storage Blob Data Contributor"
ANSI, ARROW = re.compile(r"\x1b\[[0-9;]*m"), "↳"
ERROR_CHARACTERS = 600
FAILED = (DeltaError, OSError, ValueError)
"""The errors of delta-rs; none of them says whether a commit stands."""
HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Entries expire in `leftovers` only: the checkpoint that sums them up must be on disk before they go."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version; `number` is that of the newest transaction of ours, `progress` what it said."""

    handle: DeltaTable
    version: int
    number: int
    progress: Progress
    files: Mapping[str, DataFile]

    @property
    def rows(self) -> int:
        """Rows of all files that state theirs."""
        return sum(file.rows or 0 for file in self.files.values())


@dataclass(slots=True)
class Table:
    """A table of ours: `name` says which kind, and is written into its metadata."""

    place: Place
    name: str
    id: str = ""
    checked: int = -1
    """The newest version whose entry is known to be whole."""
    schema: pa.Schema = ROW
    app_id: str = APP_ID
    thing: str = "ledger"
    writer: str = "consume"
    """The job that errors name."""

    def read(self) -> Snapshot | None:
        """The newest version; None where there is no table.

        Raises:
            CorruptRecord: its log is torn.
            Refused: it is none of ours, or not the one that was read before.
        """
        uri, options = delta_address(self.place)
        try:
            handle = DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            return None
        except FAILED as error:
            self._check()
            check_checkpoints(self.place)
            raise Refused(
                f"{self.place}: delta-rs cannot open this table: {in_one_line(error)}; run the same again, and where "
                f"it is of a newer protocol begin a {self.thing} of a new name"
            ) from error
        self._refuse_foreign(handle)
        version = handle.version()
        self._check()
        number = handle.transaction_version(self.app_id) or 0
        return Snapshot(handle, version, number, self._progress(version, number), files_of(handle))

    def files_at(self, newest: Snapshot, version: int) -> Mapping[str, DataFile]:
        """The data files of an older version.

        Raises:
            Refused: it is none of this table, or its entries have expired.
        """
        if version == newest.version:
            return newest.files
        cure = "give one that a report named as `version`, or leave it out"
        if not 0 <= version < newest.version:
            raise Refused(f"{self.place} has no version {version}, its newest is {newest.version}; {cure}")
        uri, options = delta_address(self.place)
        try:
            return files_of(DeltaTable(uri, version=version, storage_options=options))
        except FAILED as error:
            raise Refused(
                f"{self.place}: version {version} cannot be read any more, as where its entries have expired: "
                f"{in_one_line(error)}; {cure}"
            ) from error

    def read_or_create(self) -> Snapshot:
        """The newest version; of a table that is not there, an empty one."""
        for _ in range(2):
            found = self.read()
            if found is not None:
                return found
            self.create([], Progress(token=uuid4().hex, number=0, files=0, consumed=[]))
        raise OutcomeUnknown(f"{self.place}: a table was created and is not there; run the same again")

    def create(self, files: Sequence[DataFile], progress: Progress) -> None:
        """Create the table with these files in its first version; where somebody else did, theirs stands.

        Raises:
            OutcomeUnknown: neither is there.
        """
        uri, options = delta_address(self.place)
        try:
            create_table_with_add_actions(
                uri,
                Schema.from_arrow(self.schema),
                [added(file) for file in files],
                name=self.name,
                configuration=PROPERTIES,
                storage_options=options,
                commit_properties=properties(progress, self.app_id),
            )
        except FAILED as error:
            if read_entry(self.place, 0) is None:
                raise unknown(self.place, 0, error) from error

    def commit(self, base: Snapshot, files: Sequence[DataFile], progress: Progress) -> bool:
        """Write the version behind `base`; False where another writer has it.

        Raises:
            OutcomeUnknown: the version is not there, and may come yet.
        """
        try:
            base.handle.create_write_transaction(
                [added(file) for file in files],
                mode="append",
                schema=base.handle.schema(),
                partition_by=[],
                commit_properties=properties(progress, self.app_id),
                post_commithook_properties=HOOKS,
            )
        except FAILED as error:
            entry = read_entry(self.place, base.version + 1)
            if entry is None:
                raise unknown(self.place, base.version + 1, error) from error
            return entry.progress is not None and entry.progress.token == progress.token
        return True

    def _check(self) -> None:
        """Look whether the entries behind the newest checkpoint are whole, each once."""
        first = max(newest_checkpoint(self.place), self.checked) + 1
        for version in range(first, first + LOOK_COUNT_MAX):
            if read_entry(self.place, version) is None:
                return
            self.checked = version

    def _progress(self, version: int, number: int) -> Progress:
        """The progress in our newest commit; an empty one where its entry has expired.

        Then what is still in _landing is merged once more, and its rows are known by their identity.
        """
        for back in range(version, max(-1, version - LOOK_COUNT_MAX), -1):
            entry = read_entry(self.place, back)
            if entry is None:
                break
            if entry.progress is not None:
                if entry.progress.number != number:
                    raise CorruptRecord(
                        f"{self.place}: version {back} is transaction {entry.progress.number} and the table is at "
                        f"{number}; another program wrote under {self.app_id!r}: restore the table from a copy"
                    )
                return entry.progress
        return Progress(token="", number=number, files=0, consumed=[])

    def _refuse_foreign(self, handle: DeltaTable) -> None:
        """Write to nothing that another program made or that a newer one must read.

        Raises:
            Refused: with what to do.
        """
        told, protocol = handle.metadata(), handle.protocol()
        features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
        versions = (protocol.min_reader_version, protocol.min_writer_version)
        if told.name != self.name:
            raise Refused(
                f"{self.place} is a Delta table named {told.name!r}, none that {self.writer} wrote; give the "
                f"{self.thing} a folder of its own"
            )
        if versions != PROTOCOL or features:
            raise Refused(
                f"{self.place} asks for Delta reader {versions[0]} and writer {versions[1]}"
                f"{' with ' + ', '.join(features) if features else ''}; this build writes {PROTOCOL[0]} and "
                f"{PROTOCOL[1]}: drop what was switched on, or copy the rows to a {self.thing} of a new name"
            )
        if pa.schema(handle.schema().to_arrow()) != self.schema or told.partition_columns:
            raise Refused(
                f"{self.place} has other columns than this build writes; use the build that added them, or begin a "
                f"{self.thing} of a new name"
            )
        if self.id and str(told.id) != self.id:
            raise Refused(
                f"{self.place} is another table than before: two {self.thing}s of one name; give each job a "
                f"{self.thing} of its own"
            )
        self.id = str(told.id)


def delta_address(place: Place) -> tuple[str, dict[str, str]]:
    """How delta-rs finds a place, and how it signs in there.

    Raises:
        Refused: a path that delta-rs would take for another, or no token can be had.
    """
    if isinstance(place, Folder) and unquote(place.uri) != place.uri:
        raise Refused(f"{place} has a percent sign and two digits in it, which delta-rs decodes; rename that folder")
    try:
        return place.uri, place.storage_options()
    except GaveUpError as error:
        raise Refused(f"{place}: {error}") from error


def properties(progress: Progress, app_id: str) -> CommitProperties:
    """The properties that make a commit ours, and the only one of its version."""
    return CommitProperties(
        app_transactions=[Transaction(app_id, progress.number)],
        custom_metadata={OURS: msgspec.json.encode(progress).decode()},
        max_commit_retries=0,
    )


def added(file: DataFile) -> AddAction:
    """The action that names a data file."""
    return AddAction(
        path=quote(file.name),
        size=file.size,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def files_of(handle: DeltaTable) -> dict[str, DataFile]:
    """The data files of a version by name, in order."""
    told = pa.table(handle.get_add_actions(flatten=True)).select(["path", "size_bytes", "num_records"]).to_pylist()
    files = [DataFile(unquote(row["path"]), row["size_bytes"], row["num_records"]) for row in told]
    return {file.name: file for file in sorted(files, key=lambda file: file.name)}


def unknown(place: Place, version: int, error: Exception) -> OutcomeUnknown:
    """A commit that failed, and whose version is not there."""
    reason = in_one_line(error)
    cure = f"give whoever signs in the role {ROLE}" if "necessary privileges" in reason else "mend that"
    return OutcomeUnknown(
        f"{place}: version {version} was not written, or comes yet: {reason}; its source still has what it adds: "
        f"{cure} and run the same again"
    )


def in_one_line(error: Exception) -> str:
    """The message of delta-rs, and the innermost of the causes drawn below it, an arrow a line."""
    first, *below = [ANSI.sub("", line).strip() for line in str(error).splitlines() if line.strip()] or [""]
    causes = [line.removeprefix(ARROW).strip() for line in below if line.startswith(ARROW)]
    return ": ".join([first or type(error).__name__, *causes[-1:]])[:ERROR_CHARACTERS]
