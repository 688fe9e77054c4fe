"""The entries of a Delta log as written: a commit's note about itself, and whether an entry is whole.

    _delta_log/00000000000000000007.json    one JSON object a line: commitInfo, add ..., txn

delta-rs opens an entry of 0 bytes as an empty version, and one that was cut behind a line as what is left of it.  Ours
says in `commitInfo` how many files it adds and which number its transaction has, so a cut is seen.
"""

from __future__ import annotations

import io

import msgspec
import pyarrow.parquet as pq

from outbox.errors import CorruptRecord
from spark_jobs.common.places import Place
from spark_jobs.draining.parquet import UNREADABLE

LOG = "_delta_log"
CHECKPOINT, LAST_CHECKPOINT = ".checkpoint.parquet", f"{LOG}/_last_checkpoint"
APP_ID = "outbox-consume"
OURS = "outbox"
"""The member of `commitInfo` that is ours; a text, because delta-rs takes nothing else."""
ENTRY_BYTES_MAX = 64 << 20
LOOK_COUNT_MAX = 10_000
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for foreign or torn bytes."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False, omit_defaults=True):
    """A commit's note about itself: its own token, the transaction's number, the number of files that it adds.

    `consumed` are the names of the landing files whose rows are in this version.  Whoever commits the next one has
    deleted them before, so the newest says all that there is to know.  A table of a log says where it ends instead.
    """

    token: str
    number: int
    files: int
    consumed: list[str]
    end: str = ""


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `_last_checkpoint` that concerns us."""

    version: int


class CommitInfo(msgspec.Struct, frozen=True):
    """A commit's note about itself, as the entry holds it."""

    outbox: str | None = None


class Txn(msgspec.Struct, frozen=True):
    """The number of a writer's transaction."""

    version: int


class Added(msgspec.Struct, frozen=True):
    """A data file; which one is the table's concern."""

    path: str


class Action(msgspec.Struct, frozen=True):
    """A line of an entry, with the names of Delta's protocol; lines of other kinds have none of these."""

    commitInfo: CommitInfo | None = None  # noqa: N815 - as Delta has it
    add: Added | None = None
    txn: Txn | None = None


class TornError(Exception):
    """An entry lacks something that its commit wrote."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One version's entry, as far as it concerns us."""

    version: int
    progress: Progress | None


ACTION = msgspec.json.Decoder(Action)


def entry_file(version: int) -> str:
    """Twenty digits, within the table."""
    return f"{LOG}/{version:020}.json"


def read_entry(place: Place, version: int) -> Entry | None:
    """The entry of a version; None where there is none.

    Raises:
        CorruptRecord: it is torn.
    """
    name = entry_file(version)
    data = place.read(name, 0, ENTRY_BYTES_MAX + 1)
    if data is None:
        return None
    if len(data) > ENTRY_BYTES_MAX:
        raise CorruptRecord(f"{place / name} has more than {ENTRY_BYTES_MAX} bytes, so no build of this wrote it")
    try:
        return Entry(version=version, progress=whole_progress(data))
    except TornError as error:
        raise torn(place, name) from error


def whole_progress(data: bytes) -> Progress | None:
    """The note of an entry's commit about itself, None where it is not ours.

    Raises:
        TornError: something of the entry is missing.
    """
    try:
        actions = [ACTION.decode(line) for line in data.splitlines() if line.strip()]
        told = [action.commitInfo.outbox for action in actions if action.commitInfo and action.commitInfo.outbox]
        progress = msgspec.json.decode(told[0], type=Progress) if told else None
    except UNDECODABLE as error:
        raise TornError from error
    if not actions or (progress is not None and not is_whole(actions, progress)):
        raise TornError
    return progress


def is_whole(actions: list[Action], progress: Progress) -> bool:
    """Whether all that the commit wrote is there."""
    added = sum(action.add is not None for action in actions)
    return added == progress.files and progress.number in [action.txn.version for action in actions if action.txn]


def torn(place: Place, name: str) -> CorruptRecord:
    """An entry that a power loss cut, and its cure: a source stays until all entries are on disk."""
    newer = any(item.name > name for item in place.list(f"{LOG}/", ".json"))
    which = "this file and the entries of higher numbers" if newer else "this one file"
    return CorruptRecord(
        f"{place / name} is torn, as a power loss leaves it; delete {which} and run the same again: what was "
        "committed was not on disk yet, so it is still where it came from: in _landing, or in the log"
    )


def newest_checkpoint(place: Place) -> int:
    """The version of the checkpoint that readers begin at; -1 without one, or with a torn hint."""
    try:
        return msgspec.json.decode(place.read(LAST_CHECKPOINT) or b"", type=Hint).version
    except UNDECODABLE:
        return -1


def check_checkpoints(place: Place) -> None:
    """Say so where a checkpoint cannot be read.

    Raises:
        CorruptRecord: one is torn.
    """
    for item in place.list(f"{LOG}/", CHECKPOINT):
        try:
            pq.ParquetFile(io.BytesIO(place.read(item.name) or b""))
        except UNREADABLE as error:
            raise CorruptRecord(
                f"{place / item.name} is torn, as a power loss leaves it; delete it and {LAST_CHECKPOINT}, and "
                "run the same again: the entries that it sums up are still there"
            ) from error
