"""Write-once blobs in a folder or in memory."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from outbox.errors import Throttled, TooLarge
from outbox.ports import BlobStore


class FolderBlobStore:
    """Blobs as files of one folder, named by the digest of their names so that a name can never leave it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{sha256(name.encode()).hexdigest()}.blob"

    async def write(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            _write_synced(temporary, data)
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise Throttled(f"blob {name} could not be written ({error}); free the disk or repair it") from error
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(self._folder)
        return True

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        data = _read_at_most(self._path(name), bytes_max + 1)
        return None if data is None else _checked(name, data, bytes_max)

    async def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)


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


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
