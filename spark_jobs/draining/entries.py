"""The entries of a Delta log as written: what a commit of ours says of itself, and whether an entry is whole.

    _delta_log/00000000000000000007.json    one JSON object a line: commitInfo, add ..., txn

delta-rs opens an entry of 0 bytes as an empty version, and one that was cut behind a line as what is left of it.  Ours
says in `commitInfo` how many files it adds and which number its transaction has, so a cut is seen.
"""

from __future__ import annotations

import io
from typing import Any

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


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What a commit says of itself: its own token, the transaction's number, how many files it adds.

    `consumed` are the names of the landing files whose rows are in this version.  Whoever commits the next one has
    deleted them before, so the newest says all that there is to know.
    """

    token: str
    number: int
    files: int
    consumed: list[str]


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """What `_last_checkpoint` says, as far as it concerns us."""

    version: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One version's entry, as far as it concerns us."""

    version: int
    progress: Progress | None


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
        actions = [msgspec.json.decode(line, type=dict[str, Any]) for line in data.splitlines() if line.strip()]
        progress = progress_of(actions)
    except msgspec.DecodeError as error:
        raise torn(place, name) from error
    if not actions or (progress is not None and not is_whole(actions, progress)):
        raise torn(place, name)
    return Entry(version=version, progress=progress)


def progress_of(actions: list[dict[str, Any]]) -> Progress | None:
    """What `commitInfo` says, where the commit is ours."""
    for action in actions:
        told = action.get("commitInfo")
        if isinstance(told, dict) and isinstance(told.get(OURS), str):
            return msgspec.json.decode(told[OURS], type=Progress)
    return None


def is_whole(actions: list[dict[str, Any]], progress: Progress) -> bool:
    """Whether all that the commit wrote is there."""
    added = sum("add" in action for action in actions)
    numbers = [action["txn"].get("version") for action in actions if isinstance(action.get("txn"), dict)]
    return added == progress.files and progress.number in numbers


def torn(place: Place, name: str) -> CorruptRecord:
    """An entry that a power loss cut, and its cure."""
    return CorruptRecord(
        f"{place / name} is torn, as a power loss leaves it; delete this one file and run the same again: what it "
        "committed was not on disk yet, so its messages are still in _landing"
    )


def newest_checkpoint(place: Place) -> int:
    """The version of a checkpoint that readers begin at, -1 without one; a hint that is torn is none, as to them."""
    try:
        return msgspec.json.decode(place.read(LAST_CHECKPOINT) or b"", type=Hint).version
    except msgspec.DecodeError:
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
