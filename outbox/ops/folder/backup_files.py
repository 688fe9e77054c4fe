"""The files of a backup: copied with their digests, packed into one, and checked before anything is made of them.

    log/<ordinal>.snapshot, log/<ordinal>.log    a snapshot and the segments behind it
    blobs/<digest>.blob                          large bodies
    backup.json                                  what belongs to it, and where it was cut; written last

The log lies in a folder of its own, so that nobody runs a host on a backup.  A backup may come from anywhere: only
these names are read, each file has the size and digest that the manifest says, and a packed one is unpacked member by
member.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from outbox.engine.log.disk import sync_folder
from outbox.errors import CorruptRecord, Refused

FORMAT = 1
MANIFEST, LOG, BLOBS = "backup.json", "log", "blobs"
MANIFEST_BYTES_MAX = 256 << 20
FILE_COUNT_MAX = 1_000_000
PIECE_BYTES = 1 << 20
_NAME = re.compile(r"log/[0-9a-f]{16}\.(log|snapshot)|blobs/[0-9a-f]{64}\.blob").fullmatch


class BackupFile(msgspec.Struct, frozen=True):
    """One file: its name in the backup, its size and its SHA-256 in hexadecimal."""

    name: Annotated[str, msgspec.Meta(max_length=100)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a backup: log id, last ordinal, files, and when it was made, in seconds since 1970."""

    format: int
    log_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
    ordinal: Annotated[int, msgspec.Meta(ge=0)]
    at: float
    files: Annotated[list[BackupFile], msgspec.Meta(max_length=FILE_COUNT_MAX)]


def copied(source: Path, root: Path, name: str) -> BackupFile:
    """Copy a file into a backup, durably."""
    with source.open("rb") as file:
        return written(root, name, iter(lambda: file.read(PIECE_BYTES), b""))


def written(root: Path, name: str, pieces: Iterable[bytes]) -> BackupFile:
    """Write a file of a backup, durably; its digest as it was written."""
    path, digest, size_bytes = root / name, sha256(), 0
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        for piece in pieces:
            out.write(piece)
            digest.update(piece)
            size_bytes += len(piece)
        out.flush()
        os.fsync(out.fileno())
    return BackupFile(name, size_bytes, digest.hexdigest())


def finished(root: Path, target: Path) -> None:
    """Give a complete backup its name: as a folder, or packed into a file where the name ends in `.tar`."""
    if target.suffix == ".tar":
        packed = root.with_suffix(".tar.tmp")  # beside it: scratch.py removes what a killed process leaves
        try:
            _pack(root, packed)
            packed.rename(target)
        finally:
            packed.unlink(missing_ok=True)
        sync_folder(target.absolute().parent)
    else:
        named(root, target)


def named(root: Path, target: Path) -> None:
    """Rename a complete folder to its target, in place of an empty one; a crash leaves it whole or absent."""
    for folder in (*(path for path in root.iterdir() if path.is_dir()), root):
        sync_folder(folder)
    if target.exists():
        target.rmdir()
    root.rename(target)
    sync_folder(target.absolute().parent)


def _pack(root: Path, packed: Path) -> None:
    descriptor = os.open(packed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                archive.add(path, path.relative_to(root).as_posix(), recursive=False)
        file.flush()
        os.fsync(file.fileno())


def unpacked(packed: Path, root: Path) -> None:
    """Unpack a backup into an empty folder.

    Raises:
        CorruptRecord: it is no backup.
    """
    count = 0
    try:
        with tarfile.open(packed, mode="r:") as archive:
            for member in archive:
                count += 1
                if not member.isreg() or not (member.name == MANIFEST or _NAME(member.name)) or count > FILE_COUNT_MAX:
                    raise CorruptRecord(f"{packed}: holds {member.name[:100]!r}, which is no part of a backup")
                found = archive.extractfile(member)
                assert found is not None, "a regular file has bytes"
                with found:
                    written(root, member.name, iter(lambda found=found: found.read(PIECE_BYTES), b""))  # type: ignore[misc]  # bound at once
    except (tarfile.TarError, EOFError, FileExistsError) as error:
        raise CorruptRecord(f"{packed}: cannot be unpacked ({error}); take another copy of it") from error


def checked(root: Path) -> Manifest:
    """Read a backup's manifest and every file once.

    Raises:
        Refused: it is no backup, or of a later format.
        CorruptRecord: a file is missing, damaged, or does not belong to it.
    """
    path = root / MANIFEST
    if not path.is_file():
        raise Refused(f"{root}: is no backup, it has no {MANIFEST}; name what `outbox backup` has made")
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise CorruptRecord(f"{path}: is over {MANIFEST_BYTES_MAX} bytes and no manifest; take another copy of it")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(f"{path}: cannot be read ({error}); take another copy of it") from error
    if manifest.format > FORMAT:
        raise Refused(f"{root}: a backup of format {manifest.format}, this code reads {FORMAT}; upgrade it")
    for file in manifest.files:
        _check(root, file)
    there = {f"{LOG}/{each.name}" for each in (root / LOG).iterdir()} if (root / LOG).is_dir() else set()
    if extra := sorted(there - {file.name for file in manifest.files}):
        raise CorruptRecord(f"{root}: {extra[0]} does not belong to it; take another copy of it")
    return manifest


def _check(root: Path, file: BackupFile) -> None:
    path, digest = root / file.name, sha256()
    if not _NAME(file.name) or path.is_symlink() or not path.is_file():
        raise CorruptRecord(f"{root}: {file.name[:100]!r} is missing; take another copy of it")
    if path.stat().st_size != file.size_bytes:
        raise CorruptRecord(f"{path}: has {path.stat().st_size} bytes, not {file.size_bytes}; take another copy of it")
    with path.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            digest.update(piece)
    if digest.hexdigest() != file.sha256:
        raise CorruptRecord(f"{path}: its bytes are not those that were backed up; take another copy of it")
