"""Write-once blobs in a folder or in memory.

What the operating system refuses is `Throttled`: nothing that depends on the blob is done, and it is tried again.

A backup in another process needs what its log names, whatever the host deletes meanwhile.  So it makes a folder beside
the blobs and holds it by flock, which the kernel gives back however the process ends; a blob that is deleted is moved
there.  A folder that nobody holds was left by a backup that was killed, and is removed by the next deletion.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path

from outbox.engine.log.disk import hold, is_held, sync_folder
from outbox.errors import Refused, Throttled, TooLarge
from outbox.ports import BlobStore

DELETED = "deleted"
"""The folder that a backup holds, within that of the blobs."""
LARGE_BYTES = 1 << 18
"""From this size on a thread reads and writes a blob, because others would wait for milliseconds."""
_numbers = count()
"""Of temporary files: a write that was given up may still be under way when the blob is written again."""
HOLD_TRY_COUNT = 5
HOLD_PAUSE_S = 0.02


class FolderBlobStore:
    """Blobs as files of one folder, each named by a digest, so that no name leaves the folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Take the folder, made if need be.

        Raises:
            Throttled: it cannot be made.
        """
        self._folder = Path(folder)
        with _described(f"the folder {folder} of blobs cannot be made"):
            _make_folder(self._folder)

    def _path(self, name: str) -> Path:
        return self._folder / f"{sha256(name.encode()).hexdigest()}.blob"

    async def write(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        temporary = path.with_suffix(f".{os.getpid()}-{next(_numbers)}.tmp")
        with _described(f"blob {name} could not be written"):
            if len(data) < LARGE_BYTES:
                return _written(path, temporary, data)
            return await asyncio.to_thread(_written, path, temporary, data)

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        path, size_bytes = self._path(name), bytes_max + 1
        with _described(f"blob {name} could not be read"):
            if _is_large(path):
                data = await asyncio.to_thread(_read_at_most, path, size_bytes)
            else:
                data = _read_at_most(path, size_bytes)
        return None if data is None else _checked(name, data, bytes_max)

    async def delete(self, name: str) -> None:
        path, deleted = self._path(name), self._folder / DELETED
        with _described(f"blob {name} could not be deleted"):
            if _is_held(deleted):
                with suppress(FileNotFoundError):  # it is not there, or the backup has just ended
                    path.replace(deleted / path.name)
            path.unlink(missing_ok=True)


class MemoryBlobStore:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    async def write(self, name: str, data: bytes) -> bool:
        if name in self._blobs:
            return False
        self._blobs[name] = bytes(data)
        return True

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        data = self._blobs.get(name)
        return None if data is None else _checked(name, data, bytes_max)

    async def delete(self, name: str) -> None:
        self._blobs.pop(name, None)

    async def names(self, folder: str) -> AsyncIterator[str]:
        """The names in a folder."""
        for name in list(self._blobs):
            if name.startswith(f"{folder}/"):
                yield name


@contextmanager
def keep_deleted(folder: Path) -> Iterator[Path]:
    """Move the blobs that the folder's host deletes to another folder, which is yielded and removed at the end.

    Raises:
        Refused: somebody else has that done already.
    """
    deleted = folder / DELETED
    descriptor = _held(deleted)
    try:
        for left in deleted.iterdir():
            left.unlink(missing_ok=True)
        yield deleted
    finally:
        shutil.rmtree(deleted, ignore_errors=True)
        os.close(descriptor)


def _held(folder: Path) -> int:
    """Make a folder and hold it; a host may just be removing one that was left."""
    for _ in range(HOLD_TRY_COUNT):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError, BlockingIOError):
            return hold(folder, os.O_RDONLY | os.O_DIRECTORY)
        time.sleep(HOLD_PAUSE_S)
    raise Refused(f"{folder.parent}: another backup of it is running; wait until that has ended")


def _is_held(folder: Path) -> bool:
    """Whether a backup holds a folder; one that nobody holds is removed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if is_held(descriptor):
            return True
        shutil.rmtree(folder, ignore_errors=True)  # while nobody can hold it
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _described(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Throttled(f"{what} ({error}); free the disk or repair it, and it is tried again") from error


def _make_folder(folder: Path) -> None:
    """Make the folder and its missing parents; their names survive a power loss, whoever made them."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (*missing, folder):
        sync_folder(path.parent)


def _written(path: Path, temporary: Path, data: bytes) -> bool:
    is_new = _write_once(path, temporary, data)
    sync_folder(path.parent)  # also where the blob was: whoever wrote it may have ended before this
    return is_new


def _write_once(path: Path, temporary: Path, data: bytes) -> bool:
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _is_large(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size >= LARGE_BYTES
    return False


def _read_at_most(path: Path, size_bytes: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(size_bytes)
    except FileNotFoundError:
        return None


def _checked(name: str, data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise TooLarge(f"blob {name} is over {bytes_max} bytes; raise the limit or split it")
    return data


_folder: type[BlobStore] = FolderBlobStore
_memory: type[BlobStore] = MemoryBlobStore
