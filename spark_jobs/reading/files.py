"""The files of an input: which there are, how large, and their bytes in ranges.

A path is a file or a folder, whose subfolders are read as well.  What begins with `_` or `.` is no data (`_SUCCESS`,
checksums), as for Spark.  A folder named `day=1` is a column of the rows below it.  The size and the time of change of
each file are noted before the first byte is read and compared after the last, so a file that grows or is replaced
meanwhile is found, and nothing of it is sent.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from outbox.errors import Refused
from spark_jobs.common.folder import local_path
from spark_jobs.reading.source import PACKED

FILE_COUNT_MAX = 100_000
DEPTH_MAX = 32
CHUNK_BYTES = 1024 * 1024
GZIP_MARK = b"\x1f\x8b"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class File:
    """A file by its name below the input's path, as it was when it was listed."""

    name: str
    size: int
    version: str

    @property
    def partition(self) -> tuple[tuple[str, str | None], ...]:
        """Columns and values that the names of its folders tell."""
        parts = [part.partition("=") for part in self.name.split("/")[:-1] if "=" in part]
        return tuple((unquote(key), None if value == NO_VALUE else unquote(value)) for key, _, value in parts)

    @property
    def is_gzip(self) -> bool:
        """Whether it can only be read from its beginning."""
        return self.name.lower().endswith(".gz")


class Files:
    """The files below a local path."""

    def __init__(self, path: str) -> None:
        self.path = str(local_path(path))

    def list(self) -> list[File]:
        """All files, in the order of their names.

        Raises:
            Refused: there are none, too many, or one that cannot be data.
        """
        root = Path(self.path)
        if root.is_file():
            found = [self._file(root.name, root.stat())]
        elif root.is_dir():
            found = sorted(self._below(root, "", 0), key=lambda file: file.name)
        else:
            raise Refused(f"there is no {self.path}; --input takes a file or a folder")
        if not found:
            raise Refused(f"{self.path} has no files with data; names that begin with _ or . are left out")
        for file in found:
            if not file.size:
                raise Refused(f"{self.shown(file)} has 0 bytes; is it still being written? Wait for it, or take it out")
            if file.name.lower().endswith(PACKED):
                raise Refused(f"{self.shown(file)} is packed; unpack it, or pack it by gzip")
        return found

    def _below(self, folder: Path, prefix: str, depth: int) -> Iterator[File]:
        if depth > DEPTH_MAX:
            raise Refused(f"{folder} lies more than {DEPTH_MAX} folders deep in {self.path}; is it linked to itself?")
        seen = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                name = prefix + entry.name
                if entry.is_dir():
                    inner = self._below(folder / entry.name, f"{name}/", depth + 1)
                elif entry.is_file():
                    inner = iter([self._file(name, entry.stat())])
                else:
                    continue
                for file in inner:
                    seen += 1
                    if seen > FILE_COUNT_MAX:
                        raise Refused(f"{self.path} has more than {FILE_COUNT_MAX:,} files; feed it folder by folder")
                    yield file

    def _file(self, name: str, told: os.stat_result) -> File:
        return File(name, told.st_size, f"{told.st_mtime_ns}")

    def shown(self, file: File) -> str:
        """A file's name for people."""
        return self.place(file).removeprefix(f"{Path.cwd()}/")

    def place(self, file: File) -> str:
        """Where a file is."""
        root = Path(self.path)
        return self.path if root.is_file() else str(root / file.name)

    def open(self, file: File) -> io.RawIOBase:
        """A file's bytes, from any place of it."""
        return io.FileIO(self.place(file))

    def chunks(self, file: File, begin: int = 0, end: int | None = None, *, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """A file's bytes from `begin`, up to `end` or its end; an archive's as they were before it was packed.

        Raises:
            Refused: an archive that is cut or broken.
        """
        with self.open(file) as raw:
            if file.is_gzip:
                yield from self._unpacked(file, raw, begin, size)
                return
            raw.seek(begin)
            left = (file.size if end is None else end) - begin
            while left > 0:
                chunk = raw.read(min(size, left))
                if not chunk:
                    raise Refused(f"{self.shown(file)} became shorter while it was read; wait until it is whole")
                left -= len(chunk)
                yield chunk

    def _unpacked(self, file: File, raw: io.RawIOBase, begin: int, size: int) -> Iterator[bytes]:
        try:
            with gzip.GzipFile(fileobj=io.BufferedReader(raw, size)) as unpacked:
                unpacked.seek(begin)
                while chunk := unpacked.read(size):
                    yield chunk
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Refused(f"{self.shown(file)} is no whole gzip archive ({error}); fetch or pack it again") from None

    def head(self, file: File, size: int) -> bytes:
        """The first bytes of a file, unpacked: those up to a line end, at least.

        Raises:
            Refused: it is an archive by its bytes and not by its name.
        """
        found = b""
        for chunk in self.chunks(file, size=min(size, 64 * 1024)):
            found += chunk
            if len(found) >= size or b"\n" in chunk:
                break
        if found.startswith(GZIP_MARK):
            raise Refused(f"{self.shown(file)} is a gzip archive by its first bytes; give it a name that ends with .gz")
        return found
