"""A folder whose files appear whole, and only once: the place of a job on one machine.

`create` is the one conditional write: of several writers of a name exactly one is told that it won, and the loser can
read the winner's bytes.  A file is written under another name, synced, and linked to its own; then the folder itself
is synced, and so is each folder that was made for it.  Executors write where the driver reads, so the folder must be on
a file system that all of them see.  A mounted container of a lake has no links: give its address (`common.places`).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from outbox.errors import Refused
from spark_jobs.common.folder_errors import refusing
from spark_jobs.common.items import Item, changed, checked

TMP_SUFFIX = ".tmp"
NO_LINKS = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, errno.EOPNOTSUPP)
DEPTH_MAX = 32
CREATE_COUNT_MAX = 5
"""How often a file is begun whose folder somebody else has just found empty and removed."""
_PART = re.compile(r"\.[0-9a-f]{32}\.tmp")


class Folder:
    """Write-once files below a path."""

    def __init__(self, path: str | os.PathLike[str], *, follow: bool = False) -> None:
        """Take a local path, or one that is mounted; `follow`: folders that are linked to are listed as well.

        What jobs write and sweep has no links, and what a link leads to is not theirs to remove.

        Raises:
            Refused: an address that is no path of this machine.
        """
        self.given = str(path)
        self.path = local_path(self.given)
        self._follow = follow

    def __truediv__(self, name: str) -> Self:
        return type(self)(f"{self.given.rstrip('/')}/{checked(name)}", follow=self._follow)

    def parted(self) -> tuple[Self, str]:
        """The place that holds this one, and its name there."""
        return type(self)(self.path.parent, follow=self._follow), self.path.name

    def __str__(self) -> str:
        return self.given

    def __repr__(self) -> str:
        return f"Folder({self.given!r})"

    @property
    def uri(self) -> str:
        """The path that a reader of tables opens."""
        return str(self.path)

    def storage_options(self) -> dict[str, str]:
        """The options of delta-rs besides the address: none."""
        return {}

    def lend(self) -> Self:
        """The same for executors."""
        return self

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False where somebody else wrote it first.

        Raises:
            Refused: the folder has no room, no rights or no links.
            OutcomeUnknown: the file is there, and may not be on the disk.
        """
        target = self.path / checked(name)
        with refusing("writing", target):
            is_ours = _linked(target, data)
        if is_ours:
            with refusing("syncing", target.parent, is_there=True):
                sync_path(target.parent)
        return is_ours

    def read(self, name: str, start: int = 0, size: int | None = None, version: str = "") -> bytes | None:
        """The file's bytes from a place on, None where there is no file.

        Raises:
            Refused: it has another version than the one that is asked for.
        """
        with refusing("reading", self.path / checked(name)):
            try:
                with (self.path / name).open("rb") as file:
                    file.seek(start)
                    data = file.read(-1 if size is None else size)
                    if version and version_of(os.fstat(file.fileno())) != version:
                        raise changed(self, name)
                    return data
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, prefix: str = "", suffix: str = "") -> Iterator[Item]:
        """The whole files below, in order of their names; unfinished ones are left out."""
        for name, path in _walked(self.path, "", prefix, follow=self._follow):
            if name.startswith(prefix) and name.endswith(suffix) and not _PART.search(name[-37:]):
                with refusing("reading", path):
                    try:
                        about = path.stat()
                    except FileNotFoundError:
                        continue
                yield Item(name, about.st_size, about.st_mtime, version_of(about))

    def delete(self, name: str) -> None:
        """Remove a file, and the folders that are empty then; one that is not there is fine."""
        target = self.path / checked(name)
        with refusing("removing", target), suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
        for parent in target.parents:
            if parent == self.path:
                return
            try:
                parent.rmdir()
            except OSError:
                return

    def sweep_parts(self, age_s: float) -> int:
        """Remove what killed writers left unfinished, once it is so old; gives the count."""
        parts = (path for name, path in _walked(self.path, "", "", follow=False) if _PART.search(name[-37:]))
        with refusing("clearing", self.path):
            old = older_than(parts, age_s)
            for path in old:
                path.unlink(missing_ok=True)
        return len(old)


def _linked(target: Path, data: bytes) -> bool:
    """Write a file and give it its name; False where the name is taken."""
    for attempt in range(CREATE_COUNT_MAX):
        part = target.with_name(f"{target.name}.{uuid4().hex}{TMP_SUFFIX}")
        try:
            _make_parents(target)
            write_synced(part, data)
            os.link(part, target)
            break
        except FileExistsError:
            return False
        except FileNotFoundError:
            if attempt + 1 == CREATE_COUNT_MAX:
                raise
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise Refused(
                f"{target.parent} takes no file or no link ({error.strerror}); give a folder that this user may "
                "write to, or the address of a container (abfss://...) rather than a mount of it"
            ) from error
        finally:
            with suppress(OSError):  # `sweep_parts` takes it
                part.unlink(missing_ok=True)
    return True


def _make_parents(target: Path) -> None:
    try:
        make_folders(target.parent)
    except FileExistsError as error:  # which would read as: the name is taken
        raise NotADirectoryError(errno.ENOTDIR, "a folder above it is a file") from error


def _walked(path: Path, before: str, prefix: str, *, follow: bool) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the files below a folder, in order of whole names, where `prefix` may be met."""
    if before.count("/") > DEPTH_MAX:
        raise Refused(f"{path} lies more than {DEPTH_MAX} folders deep; is one of them linked to itself?")
    with refusing("listing", path):
        try:
            entries = (entry for entry in os.scandir(path) if _may_meet(f"{before}{entry.name}/", prefix))
            listed = [_marked(entry, follow) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return
    for name in sorted(filter(None, listed)):
        if name.endswith("/"):
            yield from _walked(path / name[:-1], f"{before}{name}", prefix, follow=follow)
        else:
            yield f"{before}{name}", path / name


def _marked(entry: os.DirEntry[str], follow: bool) -> str:
    """The sort key of an entry: its name, with a slash for a folder; empty for sockets and the like.

    Of a million entries only these texts are held.
    """
    if entry.is_dir(follow_symlinks=follow):
        return f"{entry.name}/"
    return entry.name if entry.is_file() else ""


def _may_meet(name: str, prefix: str) -> bool:
    return name.startswith(prefix) or prefix.startswith(name)


def version_of(about: os.stat_result) -> str:
    """The version of a file, which another write of it would change."""
    return f"{about.st_mtime_ns}-{about.st_size}"


def local_path(text: str) -> Path:
    """The path that a text such as `ledger/` or `file:///data/ledger` names.

    Raises:
        Refused: an address of another scheme.
    """
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text:
        raise Refused(
            f"{text.split('://')[0]}://... is no folder of this machine; what is asked for here has to be one"
        )
    return Path(text).absolute()


def make_folders(path: Path) -> None:
    """Make a folder and those above it, and wait until the disk knows the new ones."""
    missing = [path, *path.parents]
    missing = missing[: next(index for index, folder in enumerate(missing) if folder.is_dir())]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_path(folder.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Wait until the disk has what another wrote into a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def older_than(paths: Iterable[Path], age_s: float) -> list[Path]:
    """The files whose last change is at least `age_s` ago; a live writer's own are younger."""
    horizon_s = time.time() - age_s
    found = []
    for path in paths:
        try:
            if path.stat().st_mtime <= horizon_s:
                found.append(path)
        except FileNotFoundError:
            continue
    return found
