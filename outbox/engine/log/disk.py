"""The disk as the log sees it: ten verbs on one flat folder, and the two folders that there are.

`FolderDisk` is a real one; `MemoryDisk` (its own module) is one that can crash.  Files are created, written from front
to back and replaced whole.  A file may be longer than what was written to it: `reserve` fills it with zeros ahead of
the next write, so that a sync has data to flush but no new size and no new blocks, which costs a journalling file
system about half; `trim` gives back what is left.  Nothing is retried: what a failed sync left behind is not known,
and it is the log's part to stop.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from outbox.engine.log.memory_disk import NO_ROOM, Crash, MemoryDisk, SimulatedCrash
from outbox.errors import AlreadyOpen, Refused

__all__ = ["Crash", "Disk", "DiskFile", "FolderDisk", "MemoryDisk", "SimulatedCrash", "replace_file", "sync_folder"]

LOCK_NAME = "lock"
TEMPORARY = ".tmp"
_RANDOM, _SERIAL = secrets.token_hex(4), count(1)
_WRITE_SIZE_MAX_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_RELEASE_STEP_BYTES = 8 << 20
_SYNC_STEP_BYTES = 4 << 20
"""The bytes of a large file written before a sync, so that a host's own sync waits for no more."""
_ZEROS = bytes(256 << 10)
_LEASE: int | None = getattr(fcntl, "F_SETLEASE", None)
_FULL_SYNC: int | None = getattr(
    fcntl, "F_FULLFSYNC", None
)  # looked up once: a name that is missing costs an exception


class DiskFile(Protocol):
    """An open file that is written from front to back."""

    @property
    def size_bytes(self) -> int:
        """The bytes written so far; zeros ahead of them are not counted."""

    def write(self, data: bytes) -> None:
        """Append `data`, all of it; a file that took a part of it raises OSError."""

    def reserve(self, size_bytes: int) -> bool:
        """Fill the file with zeros up to this size; False if there is no room, what fitted then stays."""

    def trim(self) -> None:
        """Cut off the zeros behind the records; survives a power loss with the next sync."""

    def sync(self) -> None:
        """Make every byte written so far survive a power loss; OSError if the file lost its name to another."""

    def close(self) -> None:
        """Release the file; syncs nothing."""


class Disk(Protocol):
    """One flat folder with one writer."""

    @property
    def where(self) -> str:
        """The folder, for messages."""

    def names(self) -> list[str]:
        """Return the names in the folder, sorted."""

    def holds(self, name: str) -> bool:
        """Whether a name is that of a file, or of a folder that is not empty."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a file's bytes piece by piece, all of one file even if its name goes to another meanwhile."""

    def create(self, name: str) -> DiskFile:
        """Create an empty file; FileExistsError if the name is taken."""

    def rename(self, name: str, target: str) -> None:
        """Give a file another name, in place of whatever had it."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync_dir(self) -> None:
        """Make every change of names so far survive a power loss."""

    def lock(self) -> None:
        """Become the only writer, or raise AlreadyOpen; ends with the process at the latest."""

    def unlock(self) -> None:
        """Let another writer in."""


def replace_file(
    disk: Disk,
    name: str,
    data: bytes | Iterable[bytes],
    check: Callable[[Iterator[bytes]], None] | None = None,
    *,
    reserve_bytes: int = 0,
) -> DiskFile:
    """Put `data` under `name` so that a crash leaves the old file or the whole new one; return it open.

    Temporary file, write piece by piece, sync, `check` what reads back, rename, sync the folder.  `reserve_bytes` is
    the size up to which the file is filled with zeros behind `data`, as far as there is room.

    Nobody else has the temporary file's name: a compaction beside a running host must neither remove nor fill the
    host's file.  What a crash leaves of them, the next writer removes when it holds the folder.
    """
    temporary = f"{name}.{os.getpid()}-{_RANDOM}-{next(_SERIAL)}{TEMPORARY}"
    file = disk.create(temporary)
    try:
        synced_bytes = 0
        for piece in (data,) if isinstance(data, bytes) else data:
            if file.size_bytes - synced_bytes >= _SYNC_STEP_BYTES:
                file.sync()
                synced_bytes = file.size_bytes
            file.write(piece)
        if reserve_bytes > file.size_bytes:
            file.reserve(reserve_bytes)
        file.sync()
        if check is not None:
            check(disk.pieces(temporary))
        disk.rename(temporary, name)
        disk.sync_dir()
    except BaseException as error:
        file.close()
        if isinstance(error, Exception):  # it may hold much of a disk that is full
            with suppress(OSError):
                disk.remove(temporary)
        raise
    return file


class _FolderFile:
    """A file of a folder; the descriptor's own position is where the next write goes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = 0
        self._reserved_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def write(self, data: bytes) -> None:
        """Write all of `data`, in as many calls as the system needs."""
        written = os.write(self._descriptor, data) if data else 0
        self._size_bytes += written
        while written < len(data):
            count = os.write(self._descriptor, memoryview(data)[written : written + _WRITE_SIZE_MAX_BYTES])
            if count <= 0:
                raise OSError(errno.EIO, "write took nothing")
            written += count
            self._size_bytes += count

    def reserve(self, size_bytes: int) -> bool:
        """Write zeros, because blocks that were only promised to a file cost the same journal entry when used."""
        end = max(self._reserved_bytes, self._size_bytes)
        try:
            while end < size_bytes:
                end += os.pwrite(self._descriptor, memoryview(_ZEROS)[: size_bytes - end], end)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        finally:
            self._reserved_bytes = end
        return True

    def trim(self) -> None:
        """Truncate to the end of the records, none of which is touched; any size is right after a crash."""
        if self._reserved_bytes > self._size_bytes:
            os.ftruncate(self._descriptor, self._size_bytes)
            self._reserved_bytes = 0

    def sync(self) -> None:
        """Flush data and size; a file whose name was taken over in the meantime is nobody's log any more."""
        _sync_data(self._descriptor)
        if _is_nameless(self._descriptor):
            raise OSError(errno.ESTALE, "the file was replaced or removed by another process")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_nameless(descriptor: int) -> bool:
    """Whether the last name of an open file is gone.

    Asked of Linux through /proc where that is mounted: on a kernel 6.18 an fstat was seen to make the flush behind the
    next write take half as long again, probably because that write then stores a new time.
    """
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").endswith(" (deleted)")  # noqa: PTH115  # a Path costs as much again
    except OSError:
        return os.fstat(descriptor).st_nlink == 0


class FolderDisk:
    """A folder of the file system, made on first use with mode 0700; its files have mode 0600."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self._path = Path(path)
        self._lock = -1
        if create:
            _make_folder(self._path)

    @property
    def where(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self._path) if entry.is_file(follow_symlinks=False))

    def holds(self, name: str) -> bool:
        path = self._path / name
        return path.is_file() or (path.is_dir() and any(path.iterdir()))

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def pieces(self, name: str) -> Iterator[bytes]:
        with (self._path / name).open("rb", buffering=0) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def create(self, name: str) -> DiskFile:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        return _FolderFile(os.open(self._path / name, flags, 0o600))

    def rename(self, name: str, target: str) -> None:
        (self._path / name).replace(self._path / target)

    def remove(self, name: str) -> None:
        path = self._path / name
        if path.lstat().st_size <= _RELEASE_STEP_BYTES:
            path.unlink()
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            path.unlink()
            _release(descriptor)
        finally:
            os.close(descriptor)

    def sync_dir(self) -> None:
        sync_folder(self._path)

    def lock(self) -> None:
        """Take the folder by flock, which the kernel gives back however the process ends.

        Raises:
            AlreadyOpen: another process, or another engine of this one, holds it.
        """
        try:
            self._lock = hold(self._path / LOCK_NAME, os.O_CREAT | os.O_RDWR)
        except BlockingIOError as error:
            raise AlreadyOpen(
                f"{self._path}: held by another process; stop it, or ask it over its control endpoint "
                "(the commands with --data do); append to its logs in that process, or beside it over "
                "`outbox run --cosmos-port`, as docs/how-to/process-a-log.md shows"
            ) from error

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def keeps_modes(made: Path) -> bool:
    """Whether a new file has the mode that it was made with; on some mounts modes mean nothing."""
    return stat.S_IMODE(_mode_of(made)) == 0o600


def writable_by_others(folder: Path) -> list[str]:
    """Return which of a folder, its blobs and its log any user may write to, `.` for the folder itself."""
    names = [entry.name for entry in os.scandir(folder) if entry.name.endswith((".log", ".snapshot"))]
    return [name for name in (".", "blobs", *sorted(names)) if _mode_of(folder / name) & stat.S_IWOTH]


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def hold(path: Path, flags: int) -> int:
    """Open a file or folder, hold it by flock, which every end of the process releases, and return its descriptor.

    Raises:
        BlockingIOError: somebody else holds it, or it was replaced meanwhile.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino != path.stat().st_ino:
            raise BlockingIOError(errno.EWOULDBLOCK, f"{path} was replaced meanwhile")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_held(descriptor: int) -> bool:
    """Whether somebody holds the open file; if nobody does, nobody can until this descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _sync_data(descriptor: int) -> None:
    """Flush a file's data and size through the drive's own cache; macOS has a verb of its own for that."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)


def _release(descriptor: int) -> None:
    """Free the blocks of a nameless file in steps: in one, a sync of any file waits for all.

    Only where the system grants the lease that it has for the only one who has a file open: a reader, or another name
    of the file, keeps all of it.
    """
    if _LEASE is None or os.fstat(descriptor).st_nlink:
        return
    try:
        fcntl.fcntl(descriptor, _LEASE, fcntl.F_WRLCK)
    except OSError:
        return
    for end in range(os.fstat(descriptor).st_size - _RELEASE_STEP_BYTES, 0, -_RELEASE_STEP_BYTES):
        os.ftruncate(descriptor, end)


def sync_folder(path: Path) -> None:
    """Make every change of a folder's names so far survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> None:
    """Create the folder and its missing parents so that their names survive a power loss.

    Raises:
        Refused: it, or what it would lie in, is a file.
    """
    missing: list[Path] = []
    for folder in (path, *path.parents):
        if folder.is_dir():
            break
        if folder.exists():
            raise Refused(f"{folder}: is a file, and the engine's log is a folder; name a folder, a new one if need be")
        missing.append(folder)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


_folder_conforms: type[Disk] = FolderDisk
_memory_conforms: type[Disk] = MemoryDisk
