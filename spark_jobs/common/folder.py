"""A folder whose files appear whole or not at all, and only once: what every record of progress rests on.

`create` is the one conditional write: of several writers of a name exactly one is told that it won, and the loser can
read the winner's bytes.  A file is written under another name, synced, and linked to its own; then the folder itself
is synced.  Executors write where the driver reads, so the folder must be on a file system that all of them see.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from outbox.errors import Refused

TMP_SUFFIX = ".tmp"


class Folder:
    """Write-once files below a path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take a local path, or one that is mounted.

        Raises:
            Refused: an address that is no path of this machine.
        """
        self.path = local_path(str(path))

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False where somebody else wrote it first."""
        self.path.mkdir(parents=True, exist_ok=True)
        part = self.path / f"{name}.{uuid4().hex}{TMP_SUFFIX}"
        write_synced(part, data)
        try:
            os.link(part, self.path / name)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
        sync_folder(self.path)
        return True

    def read(self, name: str) -> bytes | None:
        """The file's bytes, None where there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, suffix: str) -> list[str]:
        """The names that end so, in order; none where the folder does not exist."""
        try:
            return sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith(suffix))
        except FileNotFoundError:
            return []


def local_path(text: str) -> Path:
    """The path that a text such as `ledger/` or `file:///data/ledger` names.

    Raises:
        Refused: an address of another scheme.
    """
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text:
        raise Refused(
            f"{text.split('://')[0]}://... cannot be written to here: a commit needs a file system that links a name "
            "exactly once; mount the container and give the path of the mount"
        )
    return Path(text).absolute()


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk knows the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def older_than(paths: Iterable[Path], age_s: float) -> list[Path]:
    """Those whose last change is at least so long ago; a live writer's own are younger."""
    horizon_s = time.time() - age_s
    found = []
    for path in paths:
        try:
            if path.stat().st_mtime <= horizon_s:
                found.append(path)
        except FileNotFoundError:
            continue
    return found
