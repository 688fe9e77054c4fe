"""Work on a folder's log without a running engine: inspect, salvage, compact beside a host."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outbox.engine.backend.blobs import DELETED
from outbox.engine.log import records, snapshot
from outbox.engine.log import salvage as salvaging
from outbox.engine.log.disk import FolderDisk
from outbox.errors import Refused
from outbox.ops.shared.control_file import check_folder, is_held

Answer = tuple[dict[str, Any], str]
"""The answer as data and as text."""

BLOBS = "blobs"


def inspect(folder: Path) -> Answer:
    """Read every segment and report its content.

    Raises:
        Refused: it is not an engine's folder, or a host retired files meanwhile.
    """
    check_folder(folder)
    try:
        found = salvaging.inspect(FolderDisk(folder, create=False))
    except FileNotFoundError as error:
        raise Refused(f"{folder}: {error.filename} was retired while being read; run it again") from error
    return asdict(found), found.text


def compact_sealed(folder: Path) -> Answer:
    """Write a snapshot of the sealed segments; the host or the next open adopts it.

    Raises:
        CorruptRecord: a sealed segment is damaged.
    """
    check_folder(folder)
    ordinal = snapshot.compact_sealed(FolderDisk(folder, create=False))
    what = f"snapshot at {ordinal}" if ordinal else "nothing is sealed behind the last snapshot"
    return {"ordinal": ordinal}, f"{folder}: {what}"


def salvage(folder: Path, target: Path) -> Answer:
    """Copy the readable part of a log, and its blobs, into a fresh folder.

    Raises:
        Refused: a host is using the folder, or the target is not empty.
    """
    check_folder(folder)
    if is_held(folder):
        raise Refused(f"{folder}: a host is using it, so it opens and needs no salvage; stop the host first")
    if target.exists() and any(target.iterdir()):
        raise Refused(f"{target}: is not empty; salvage into an empty or new folder")
    done = salvaging.salvage(
        FolderDisk(folder, create=False),
        FolderDisk(target),
        log_id=os.urandom(16),
        clock_ms=lambda: time.time_ns() // 1_000_000,
        accept_snapshot=snapshot.accept,
        readable=records.readable,
    )
    if (folder / BLOBS).is_dir():
        shutil.copytree(folder / BLOBS, target / BLOBS, ignore=shutil.ignore_patterns(DELETED))
    kept = f"the snapshot at {done.snapshot}" if done.snapshot else "no snapshot"
    copied = f"{target}: copied {kept} and {done.copied_count} records, skipped {done.skipped_count}"
    lost = [f"  lost: ordinals {first}..{last}" for first, last in done.missing]
    lost += [f"  ordinal {ordinal} is whole, but this code cannot read it" for ordinal in done.unreadable]
    return asdict(done), "\n".join([done.inspection.text, copied, *lost])
