"""Back up an engine's folder beside its host, and restore it as a log of its own.

Theory of operation.  A running host is asked to seal its log: everything up to that ordinal is synced and in segments
that are never written again.  The newest snapshot and those segments are then copied, file by file, without the host;
of the segment that it writes to only the header comes along, which was synced before the segment had a name.  So the
cut is one ordinal: all that was acknowledged before the backup began is in it, and of every commit all or nothing.  A
file that the host has retired under the copy makes it begin again.  Large bodies that the host deletes from before the
cut on are kept until they are copied, because the cut may name them.  Without a host the folder's lock is taken, and
the last segment is judged as an open does: a torn tail is left out.  A backup has its name only once it was read back
whole.

A restored log has an id of its own, and its epochs go on well behind those of the log it was copied from, whose host
may have gone on: a lock that was given out there is void here.

A backup or a restore is made in a folder beside its target before it gets its name:

    .NAME.PID.tmp, .NAME.PID-N.tmp    the folder; its process holds a lock on it for as long as it lives
    the same, ending in .tar.tmp      a backup that is just being packed

A process that is killed leaves both.  The next one with the same target removes them: only a folder of this user that
has nothing but parts of a backup, that nobody holds, and whose process is gone.  The lock is what decides; the number
is asked beside it because a folder has its name a moment before it is held.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from outbox.engine.backend.blobs import keep_deleted
from outbox.engine.log import records, snapshot
from outbox.engine.log import salvage as salvaging
from outbox.engine.log.disk import FolderDisk, hold
from outbox.engine.log.disk import is_held as is_folder_held
from outbox.engine.log.framing import DELIMITER, end_of
from outbox.engine.log.segments import (
    Limits,
    Recovery,
    read_segment,
    recover,
    segment_name,
    segment_ordinals,
    snapshot_name,
)
from outbox.engine.log.segments import snapshot_ordinals as snapshots_in
from outbox.errors import CorruptRecord, Refused
from outbox.ops.admins.folder import connect_admin
from outbox.ops.folder.backup_files import (
    BLOBS,
    FORMAT,
    LOG,
    MANIFEST,
    BackupFile,
    Manifest,
    checked,
    copied,
    finished,
    named,
    unpacked,
    written,
)
from outbox.ops.shared.control_file import check_folder, is_alive, is_held
from outbox.ops.values.status import Seal

EPOCH_STEP = 256
"""How far a restored log's epoch is ahead: more than what a host restarts between a backup and its loss."""
TRY_COUNT = 5
UNPACKED, MADE = "unpacked", "made"
_PARTS = frozenset((BLOBS, LOG, MANIFEST, UNPACKED, MADE))
LEFT_COUNT_MAX = 1_000
"""How many that were left are removed at once."""


class BackedUp(msgspec.Struct, frozen=True):
    """A backup: its path, last ordinal, size and file count; `cut_bytes` of torn tail were left out."""

    target: str
    ordinal: int
    size_bytes: int
    file_count: int
    cut_bytes: int = 0


class Restored(msgspec.Struct, frozen=True):
    """A restored folder: up to which ordinal of the log it was backed up, and when, in seconds since 1970."""

    folder: str
    ordinal: int
    at: float


async def back_up(folder: Path, target: Path) -> BackedUp:
    """Copy a folder's log and blobs, while a host is running or not.

    Raises:
        Refused: it is not an engine's folder, another backup of it is running, or something is where this is to go.
        AlreadyOpen: a process holds the folder and does not answer.
        CorruptRecord: what was copied cannot be read.
    """
    check_folder(folder)
    _check_free(target)
    with scratch(target) as root:
        cut_bytes = 0
        if is_held(folder):
            with keep_deleted(folder / BLOBS) as deleted:
                async with connect_admin(folder) as admin:
                    least = await admin.ask(Seal())
                    files = _sealed(folder, root)
                files += _blobs(root, folder / BLOBS, deleted)
        else:
            files, least, cut_bytes = _closed(folder, root)
        found = _recovered(root)
        if found.cut_bytes or found.last_ordinal < least:
            raise CorruptRecord(f"{folder}: the copy ends at ordinal {found.last_ordinal}, before {least}; try again")
        manifest = Manifest(FORMAT, found.log_id.hex(), found.last_ordinal, time.time(), files)
        written(root, MANIFEST, [msgspec.json.encode(manifest)])
        checked(root)
        finished(root, target)
    size_bytes = sum(file.size_bytes for file in manifest.files)
    return BackedUp(str(target), manifest.ordinal, size_bytes, len(manifest.files), cut_bytes)


def restore(backup: Path, folder: Path) -> Restored:
    """Make a folder of a backup, with a log id of its own; a host may then run on it.

    Raises:
        Refused: it is no backup, or the folder is there already.
        CorruptRecord: the backup is damaged.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Refused(f"{folder}: is there already; restore into an empty or new folder, and move this one away first")
    if not backup.exists():
        raise Refused(f"{backup}: is not there; name what `outbox backup` has made")
    _check_parent(folder)
    with scratch(folder) as beside:
        root = backup
        if backup.is_file():
            root = beside / UNPACKED
            root.mkdir(mode=0o700)
            unpacked(backup, root)
        manifest = checked(root)
        found = _recovered(root)
        if (found.cut_bytes, found.last_ordinal) != (0, manifest.ordinal):
            raise CorruptRecord(f"{backup}: its log ends at ordinal {found.last_ordinal}, not {manifest.ordinal}")
        _log_anew(root, beside / MADE, found)
        for file in manifest.files:
            if file.name.startswith(f"{BLOBS}/"):
                copied(root / file.name, beside / MADE, file.name)
        named(beside / MADE, folder)
    return Restored(str(folder), manifest.ordinal, manifest.at)


def _log_anew(root: Path, made: Path, found: Recovery) -> None:
    """Write the log of a backup under a new id, into a folder that can be opened."""
    done = salvaging.salvage(
        FolderDisk(root / LOG, create=False),
        FolderDisk(made),
        log_id=os.urandom(16),
        clock_ms=lambda: found.clock_ms,
        accept_snapshot=snapshot.accept,
        readable=records.readable,
        epoch_step=EPOCH_STEP,
    )
    if done.missing or done.skipped_count:
        raise CorruptRecord(f"{root}: ordinals {done.missing} cannot be read by this code; restore with a newer one")


def _check_free(target: Path) -> None:
    is_file = target.suffix == ".tar"
    if target.exists() and (is_file or not target.is_dir() or any(target.iterdir())):
        raise Refused(f"{target}: is there already; name a new folder, or a new file that ends in .tar")
    _check_parent(target)


def _check_parent(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise Refused(f"{path}: its folder is not there; make it first")


def _blobs(root: Path, *folders: Path) -> list[BackupFile]:
    """Copy the blobs of some folders; a missing one is in the next, or was deleted before the cut."""
    files: dict[str, BackupFile] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.blob")):
            name = f"{BLOBS}/{path.name}"
            if name not in files:
                with suppress(FileNotFoundError):
                    files[name] = copied(path, root, name)
    return list(files.values())


def _sealed(folder: Path, root: Path) -> list[BackupFile]:
    """Copy the newest snapshot and the sealed segments behind it, while a host writes the live one.

    Raises:
        Refused: the host removed files under the copy at every try.
    """
    disk = FolderDisk(folder, create=False)
    for _ in range(TRY_COUNT):
        names = disk.names()
        newest = max(snapshots_in(names), default=0)
        *sealed, live = segment_ordinals(names)
        before = [ordinal for ordinal in sealed if ordinal <= newest + 1][-1:]
        wanted = [*before, *(ordinal for ordinal in sealed if ordinal > newest + 1)]
        chosen = [*([snapshot_name(newest)] if newest else []), *map(segment_name, wanted)]
        try:
            files = [copied(folder / name, root, f"{LOG}/{name}") for name in chosen]
            return [*files, written(root, f"{LOG}/{segment_name(live)}", [_header(disk, live)])]
        except FileNotFoundError:
            shutil.rmtree(root / LOG, ignore_errors=True)
    raise Refused(f"{folder}: files were retired while being copied, {TRY_COUNT} times; run the backup again")


def _header(disk: FolderDisk, ordinal: int) -> bytes:
    """The live segment's first record, which was synced before the segment had a name: it says where the cut is."""
    segment = read_segment(disk, ordinal, record_size_max_bytes=Limits().record_size_max_bytes)
    if segment.first is None:
        raise CorruptRecord(f"{disk.where}/{segment.name}: its header cannot be read; run `outbox log inspect`")
    return segment.data[: end_of(segment.data, segment.first) + len(DELIMITER)]


def _closed(folder: Path, root: Path) -> tuple[list[BackupFile], int, int]:
    """Copy a closed folder without its torn tail; return its files, its last ordinal, and the tail's bytes."""
    disk = FolderDisk(folder, create=False)
    disk.lock()
    try:
        found = recover(disk, Limits(), restore=_is_whole)
        names = [snapshot_name(found.snapshot)] if found.snapshot else []
        names += [segment_name(ordinal) for ordinal in sorted(found.sizes_bytes) if ordinal != found.last_segment]
        files = [copied(folder / name, root, f"{LOG}/{name}") for name in names]
        if found.last_segment:
            files.append(written(root, f"{LOG}/{segment_name(found.last_segment)}", [found.tail]))
        files += _blobs(root, folder / BLOBS)
        return files, found.last_ordinal, found.cut_bytes
    finally:
        disk.unlock()


def _recovered(root: Path) -> Recovery:
    return recover(FolderDisk(root / LOG), Limits(), restore=_is_whole)


def _is_whole(ordinal: int, pieces: Iterator[bytes]) -> bool:
    try:
        return snapshot.verify(pieces) == ordinal
    except CorruptRecord:
        return False


NUMBER_COUNT = 100


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder beside a target, held by this process and gone afterwards unless it was renamed."""
    target = target.absolute()
    _remove_left(target)
    root, descriptor = _held(target)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(descriptor)


def _held(target: Path) -> tuple[Path, int]:
    """Make a folder that nobody has and hold it: in another container a process may have the same number."""
    for number in range(NUMBER_COUNT):
        root = target.with_name(f".{target.name}.{os.getpid()}{f'-{number}' if number else ''}.tmp")
        with suppress(FileExistsError, FileNotFoundError, BlockingIOError):  # another takes it for one that was left
            root.mkdir(mode=0o700)
            return root, hold(root, os.O_RDONLY | os.O_DIRECTORY)
    raise Refused(f"{target.parent}: {NUMBER_COUNT} folders like {root.name} are there; remove those that nobody uses")


def _remove_left(target: Path) -> None:
    """Remove what killed processes have left beside a target."""
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d{{1,10}})(?:-\d+)?\.tmp").fullmatch
    left = list[tuple[Path, int]]()
    with suppress(OSError):  # it may be a folder whose names may not be read
        left = [(path, int(found[1])) for path in target.parent.iterdir() if (found := name(path.name)) is not None]
    for path, process in left[:LEFT_COUNT_MAX]:
        if process == os.getpid() or not is_alive(process):  # this one has not made its folder yet
            with suppress(OSError):
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder of ours that nobody holds, and its packed file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        parts = {each.name for each in path.iterdir()}
        is_ours = os.fstat(descriptor).st_uid == os.getuid() and parts <= _PARTS
        if not is_ours or is_folder_held(descriptor):
            return
        path.with_suffix(".tar.tmp").unlink(missing_ok=True)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
