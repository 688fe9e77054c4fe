"""The files of an input: which there are, how large, and their bytes in ranges, over any place.

An input is a file or a folder, whose subfolders are read as well.  What begins with `_` or `.` is no data (`_SUCCESS`,
checksums), as for Spark.  A folder named `day=1` is a column of the rows below it.  Size and version of each file are
noted before the first byte is read; each read asks for that version, and all are compared after the last.  So a file
that grows or is replaced meanwhile is found, and nothing of it is sent.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from outbox.errors import Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.items import Item
from spark_jobs.common.places import Place, place_of
from spark_jobs.reading.source import PACKED

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FILE_COUNT_MAX = 100_000
CHUNK_BYTES = 1024 * 1024
AHEAD_BYTES = 64 * 1024
"""Read first behind the end of a span, where only the rest of its last row is of use."""
GZIP_MARK, PARQUET_MARK = b"\x1f\x8b", b"PAR1"
OWN = (".feed", ".quarantine")
"""How the folders end that a feed makes beside its input."""
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


@dataclass(frozen=True, slots=True)
class Files:
    """The files below a place, or the one of a name; an export may be empty, an input may not."""

    place: Place
    name: str = ""
    may_be_empty: bool = False

    def lend(self) -> Self:
        """The same for executors."""
        return replace(self, place=self.place.lend())

    def check(self) -> None:
        """Look whether there is a file at all, before anything is started to read it.

        Raises:
            Refused: there is none, or it may not be listed.
        """
        if next(iter(self._found()), None) is None:
            self._refuse_nothing()

    def _found(self) -> Iterator[Item]:
        """The one file, or those of the folder that are data."""
        if self.name:
            return (item for item in islice(self.place.list(self.name), 1) if item.name == self.name)
        return (item for item in self.place.list() if is_input(item.name))

    def list(self) -> list[File]:
        """All files, in the order of their names.

        Raises:
            Refused: there are none, too many, or one that cannot be data.
        """
        listed = islice(self._found(), FILE_COUNT_MAX + 1)
        found = [File(item.name, item.size, item.version) for item in listed]
        if not found:
            self._refuse_nothing()
        if len(found) > FILE_COUNT_MAX:
            raise Refused(f"{self.place} has more than {FILE_COUNT_MAX:,} files; feed it folder by folder")
        for file in found:
            if not file.size and not self.may_be_empty:
                raise Refused(f"{self.shown(file)} has 0 bytes; is it still being written? Wait for it, or take it out")
            if file.name.lower().endswith(PACKED):
                raise Refused(f"{self.shown(file)} is packed; unpack it, or pack it by gzip")
        return sorted(found, key=lambda file: file.name)

    def _refuse_nothing(self) -> None:
        whole = f"{self.place}/{self.name}" if self.name else f"{self.place}"
        if self.name or next(self.place.list(), None) is None:
            raise Refused(f"there is no {whole}, or no file in it; --input takes a file or a folder")
        raise Refused(f"{whole} has no files with data; names that begin with _ or . are left out")

    def shown(self, file: File) -> str:
        """A file's name for people."""
        try:
            return self.address(file).removeprefix(f"{Path.cwd()}/")
        except FileNotFoundError:  # the folder in which Spark started this task's process is gone
            return self.address(file)

    def address(self, file: File) -> str:
        """Where a file is."""
        return str(self.place.path / file.name) if isinstance(self.place, Folder) else f"{self.place}/{file.name}"

    def read(self, file: File, start: int, size: int) -> bytes:
        """Bytes of a file as it was when it was listed; fewer at its end.

        Raises:
            Refused: it has changed since, or is gone.
        """
        data = self.place.read(file.name, start, size, file.version)
        if data is None:
            raise Refused(f"{self.shown(file)} is gone since it was first looked at; give the input whole")
        return data

    def open(self, file: File) -> io.RawIOBase:
        """A file's bytes, from any place of it."""
        return Ranges(self, file)

    def chunks(self, file: File, begin: int = 0, end: int | None = None, *, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """A file's bytes from `begin`, up to `end` or its end; an archive's as they were before it was packed.

        Raises:
            Refused: an archive that is cut or broken.
        """
        if file.is_gzip:
            yield from self._unpacked(file, begin, size)
            return
        last = file.size if end is None else min(end, file.size)
        while begin < last:
            chunk = self.read(file, begin, min(size, last - begin))
            if not chunk:
                raise Refused(f"{self.shown(file)} became shorter while it was read; wait until it is whole")
            yield chunk
            begin += len(chunk)

    def owned(self, file: File, begin: int, end: int) -> Iterator[bytes]:
        """The bytes of a span, and those behind it in parts that grow; an archive's whole."""
        yield from self.chunks(file, begin, end)
        if not file.is_gzip:
            begin, size = end, AHEAD_BYTES
            while begin < file.size:
                yield from self.chunks(file, begin, begin + size)
                begin, size = begin + size, min(2 * size, CHUNK_BYTES)

    def _unpacked(self, file: File, begin: int, size: int) -> Iterator[bytes]:
        try:
            with gzip.GzipFile(fileobj=io.BufferedReader(self.open(file), size)) as unpacked:
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
        if found.startswith(PARQUET_MARK):
            raise Refused(f"{self.shown(file)} is Parquet by its first bytes; give --format parquet, or leave it out")
        return found


def is_input(name: str) -> bool:
    """Whether a file is data: not hidden, and not the progress or quarantine of a neighbour's feed."""
    return not any(part.startswith((".", "_")) or part.endswith(OWN) for part in name.split("/"))


def check_apart(place: Place, *own: Place) -> None:
    """Refuse to keep what a feed writes among the files that it reads.

    Raises:
        Refused: one of its own places lies in the input, under a name that is data.
    """
    within = f"{resolved(place)}/"
    for each in own:
        inside, _, rest = f"{resolved(each)}/".partition(within)
        if not inside and is_input(rest):
            raise Refused(f"{each} lies in {place}, whose files are fed; give a place beside it")


def resolved(place: Place) -> str:
    """The address of a place, or its path without links and dots."""
    return str(place.path.resolve() if isinstance(place, Folder) else place).rstrip("/")


class Ranges(io.RawIOBase):
    """A file of a place, for readers of archives and of Parquet; each read is one of the place."""

    def __init__(self, files: Files, file: File) -> None:
        self._files, self._file, self._at = files, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place of the file."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on."""
        left = max(0, self._file.size - self._at)
        wanted = left if size < 0 else min(size, left)
        data = self._files.read(self._file, self._at, wanted) if wanted else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer) -> int:
        """The same into a buffer."""
        target = memoryview(buffer).cast("B")
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)


def files_at(path: str, environ: Mapping[str, str]) -> Files:
    """The files of a path or an address: those below a folder, or one.

    Raises:
        Refused: the address or the environment does not tell enough, or it may not be read.
    """
    place = place_of(path.rstrip("/") or "/", environ)
    if isinstance(place, Folder):
        place = Folder(place.given, follow=True)
    around, name = place.parted()
    first = next(around.list(name), None) if name else None
    return Files(around, name) if first is not None and first.name == name else Files(place)
