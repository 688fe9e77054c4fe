"""A folder beside a target, in which a backup or a restore is made before it gets its name.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outbox.engine.log.disk import hold, is_held
from outbox.errors import Refused
from outbox.ops.folder.backup_files import BLOBS, LOG, MANIFEST
from outbox.ops.shared.control_file import is_alive

UNPACKED, MADE = "unpacked", "made"
_PARTS = frozenset((BLOBS, LOG, MANIFEST, UNPACKED, MADE))
TRY_COUNT = 100
LEFT_COUNT_MAX = 1_000
"""How many that were left are removed at once."""


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
    for number in range(TRY_COUNT):
        root = target.with_name(f".{target.name}.{os.getpid()}{f'-{number}' if number else ''}.tmp")
        with suppress(FileExistsError, FileNotFoundError, BlockingIOError):  # another takes it for one that was left
            root.mkdir(mode=0o700)
            return root, hold(root, os.O_RDONLY | os.O_DIRECTORY)
    raise Refused(f"{target.parent}: {TRY_COUNT} folders like {root.name} are there; remove those that nobody uses")


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
        if not is_ours or is_held(descriptor):
            return
        path.with_suffix(".tar.tmp").unlink(missing_ok=True)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
