"""A disk in memory that loses unsynced bytes on demand and fails where it is told to.

It stands in for a folder wherever a test or the simulator must crash: a file's bytes and the folder's names reach
the "platter" separately, each only by its own sync.  `crash` returns the disk that a machine would find afterwards.

What each `Crash` keeps (synced bytes and names always survive):

    PROCESS     everything written; the operating system lives on
    POWER       only what was synced
    TORN        unsynced bytes up to any place; the file as long as before, as now or up to there; names drawn
    ZEROED      sizes survive, unsynced bytes are lost from a drawn place on; names drawn
    REORDERED   sizes survive, each page of unsynced bytes survives or is lost by itself; names drawn
    RESIZED     as REORDERED, but each file is as long as at its last sync

A lost byte reads as it did at the last sync, and as zero where the file ended then.  A sync that fails leaves its
bytes readable but marks them clean, as Linux does: no later sync of that file writes them.  Assumed, as by every log:
bytes once synced survive a torn overwrite of their page.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from outbox.errors import AlreadyOpen

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The errors of a disk, a quota or a file that is full."""


class Crash(StrEnum):
    """How the machine died."""

    PROCESS = "process"
    POWER = "power"
    TORN = "torn"
    ZEROED = "zeroed"
    REORDERED = "reordered"
    RESIZED = "resized"


class SimulatedCrash(BaseException):
    """The process died at this disk call; no `except Exception` may swallow it."""


@dataclass(slots=True)
class _Inode:
    """`content` is what readers see, `platter` what a power loss leaves, `dirty` the spans that it would take."""

    content: bytearray = field(default_factory=bytearray)
    platter: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    links: int = 1

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self.content[offset:end] = data
        if self.dirty and self.dirty[-1][1] == offset:
            offset = self.dirty.pop()[0]
        self.dirty.append((offset, end))

    def truncate(self, size_bytes: int) -> None:
        del self.content[size_bytes:]
        self.dirty = [(start, min(end, size_bytes)) for start, end in self.dirty if start < size_bytes]

    def twin(self) -> _Inode:
        return _Inode(self.content[:], self.platter[:], self.dirty[:], self.links)

    def sync(self) -> None:
        _resize(self.platter, len(self.content))
        for start, end in self.dirty:
            self.platter[start:end] = self.content[start:end]
        self.dirty.clear()

    def lose_unsynced(self) -> None:
        """Mark the unsynced bytes clean without writing them: the platter keeps what it has, for good."""
        _resize(self.platter, len(self.content))
        self.dirty.clear()

    def after(self, crash: Crash, chance: random.Random, page_size_bytes: int) -> bytearray:
        """Return the bytes that survive."""
        if crash is Crash.PROCESS:
            return bytearray(self.content)
        synced, size = len(self.platter), len(self.content)
        if crash is Crash.POWER or (not self.dirty and synced == size):
            return bytearray(self.platter)
        cut = chance.randint(min([size, *(start for start, _ in self.dirty)]), size)
        pages: dict[int, bool] = {}
        survived = self.platter + bytes(max(0, size - synced))
        for start, end, page in self._dirty_pages(page_size_bytes):
            if crash in (Crash.TORN, Crash.ZEROED):
                end = max(start, min(end, cut))
            elif not pages.setdefault(page, chance.random() < 0.5):
                continue
            survived[start:end] = self.content[start:end]
        if crash is Crash.TORN:
            return survived[: chance.choice((synced, max(synced, cut), size))]
        return survived[: synced if crash is Crash.RESIZED else size]

    def _dirty_pages(self, page_size_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield each dirty span cut at the borders of pages, and the page's number."""
        for first, last in self.dirty:
            start = first
            while start < last:
                page = start // page_size_bytes
                end = min(last, (page + 1) * page_size_bytes)
                yield start, end, page
                start = end


def _resize(data: bytearray, size_bytes: int) -> None:
    del data[size_bytes:]
    data += bytes(size_bytes - len(data))


@dataclass(slots=True)
class _Failure:
    verb: str
    countdown: int
    error: int
    written_bytes: int


class MemoryFile:
    """A file of a `MemoryDisk`, written from front to back."""

    def __init__(self, disk: MemoryDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The bytes written so far; zeros ahead of them are not counted."""
        return self._size_bytes

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        failure = self._disk.on_call("write")
        taken = data if failure is None else data[: failure.written_bytes]
        self._inode.write(self._size_bytes, taken)
        self._size_bytes += len(taken)
        if failure is not None:
            raise OSError(failure.error, "injected")

    def reserve(self, size_bytes: int) -> bool:
        """Fill the file with zeros up to this size; False if there is no room, what fitted then stays."""
        failure = self._disk.on_call("reserve")
        end = len(self._inode.content)
        missing = max(0, size_bytes - end)
        self._inode.write(end, bytes(missing if failure is None else min(missing, failure.written_bytes)))
        if failure is not None and failure.error not in NO_ROOM:
            raise OSError(failure.error, "injected")
        return failure is None

    def trim(self) -> None:
        """Cut off the zeros behind the records."""
        self._disk.fail_on("trim")
        self._inode.truncate(self._size_bytes)

    def sync(self) -> None:
        """Make every byte written so far survive a power loss; refuse if another file took the name."""
        failure = self._disk.on_call("sync")
        if failure is not None:
            self._inode.lose_unsynced()
            raise OSError(failure.error, "injected")
        self._inode.sync()
        if not self._inode.links:
            raise OSError(errno.ESTALE, "the file was replaced by another process")

    def close(self) -> None:
        """Nothing is held; present because real files need it."""


class MemoryDisk:
    """A folder in memory; see the module for what a crash keeps."""

    def __init__(
        self, where: str = "memory", *, files: Mapping[str, bytes] | None = None, page_size_bytes: int = 4096
    ) -> None:
        self.where = where
        self.page_size_bytes = page_size_bytes
        self.calls: list[str] = []
        """The changing calls made so far, in order."""
        self._names = {name: _Inode(bytearray(data), bytearray(data)) for name, data in (files or {}).items()}
        self._synced_names = dict(self._names)
        self._unsynced: list[tuple[str, _Inode | None, str]] = []
        self._failures: list[_Failure] = []
        self._crash_before: int | None = None
        self._locked = False

    def names(self) -> list[str]:
        """Return the names in the folder, sorted."""
        return sorted(self._names)

    def holds(self, name: str) -> bool:
        """Whether a name is that of a file."""
        return name in self._names

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        return bytes(self._inode(name).content)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a file's bytes piece by piece, all of one file even if its name goes to another meanwhile."""
        content = self._inode(name).content
        for start in range(0, len(content), self.page_size_bytes):
            yield bytes(content[start : start + self.page_size_bytes])

    def create(self, name: str) -> MemoryFile:
        """Create an empty file; the name must be free."""
        self.fail_on("create")
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "exists", name)
        inode = self._names[name] = _Inode()
        self._unsynced.append((name, inode, ""))
        return MemoryFile(self, inode)

    def rename(self, name: str, target: str) -> None:
        """Give a file another name, in place of whatever had it."""
        self.fail_on("rename")
        inode = self._inode(name)
        del self._names[name]
        if (replaced := self._names.get(target)) is not None:
            replaced.links -= 1
        self._names[target] = inode
        self._unsynced.append((target, inode, name))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.fail_on("remove")
        self._inode(name).links -= 1
        del self._names[name]
        self._unsynced.append((name, None, ""))

    def sync_dir(self) -> None:
        """Make every change of names so far survive a power loss."""
        self.fail_on("sync_dir")
        self._synced_names = dict(self._names)
        self._unsynced.clear()

    def lock(self) -> None:
        """Become the only writer.

        Raises:
            AlreadyOpen: another writer holds the folder.
        """
        if self._locked:
            raise AlreadyOpen(f"{self.where}: held by another engine; close it first, or ask it instead of opening")
        self._locked = True

    def unlock(self) -> None:
        """Let another writer in."""
        self._locked = False

    def crash_before(self, call: int) -> None:
        """Die before the changing call with this index (0: the next one), and at every later one."""
        self._crash_before = len(self.calls) + call

    def fail(self, verb: str, *, after: int = 0, error: int = errno.EIO, written_bytes: int = 0) -> None:
        """Let one coming call of `verb` fail, the first after `after` good ones; a write leaves `written_bytes`."""
        self._failures.append(_Failure(verb, after, error, written_bytes))

    def crash(self, crash: Crash, chance: random.Random | None = None) -> MemoryDisk:
        """Return the disk that is found after this crash; this one stays unchanged."""
        chance = chance or random.Random(0)
        names = self._names if crash is Crash.PROCESS else self._names_after(crash, chance)
        survivors = {
            name: bytes(inode.after(crash, chance, self.page_size_bytes)) for name, inode in sorted(names.items())
        }
        after = MemoryDisk(self.where, files=survivors, page_size_bytes=self.page_size_bytes)
        if crash is Crash.PROCESS:
            after._keep_unsynced(self)
        return after

    def on_call(self, verb: str) -> _Failure | None:
        """Count a changing call; die or fail here if that was asked for."""
        if self._crash_before is not None and len(self.calls) >= self._crash_before:
            raise SimulatedCrash(f"before call {self._crash_before} ({verb})")
        self.calls.append(verb)
        for failure in self._failures:
            if failure.verb == verb:
                failure.countdown -= 1
                if failure.countdown < 0:
                    self._failures.remove(failure)
                    return failure
        return None

    def fail_on(self, verb: str) -> None:
        """Count a changing call that a failure leaves without effect."""
        if (failure := self.on_call(verb)) is not None:
            raise OSError(failure.error, "injected")

    def _inode(self, name: str) -> _Inode:
        if (inode := self._names.get(name)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return inode

    def _names_after(self, crash: Crash, chance: random.Random) -> dict[str, _Inode]:
        names = dict(self._synced_names)
        for target, inode, source in self._unsynced:
            if crash is Crash.POWER or chance.random() < 0.5:
                continue
            if source:
                names.pop(source, None)
            if inode is None:
                names.pop(target, None)
            else:
                names[target] = inode
        return names

    def _keep_unsynced(self, before: MemoryDisk) -> None:
        """Take over what the operating system still owes the platter: its page cache outlives a process."""
        changed = [inode for _, inode, _ in before._unsynced if inode is not None]
        every = (*before._names.values(), *before._synced_names.values(), *changed)
        twins = {id(inode): inode.twin() for inode in every}
        self._names = {name: twins[id(inode)] for name, inode in before._names.items()}
        self._synced_names = {name: twins[id(inode)] for name, inode in before._synced_names.items()}
        self._unsynced = [
            (name, None if inode is None else twins[id(inode)], source) for name, inode, source in before._unsynced
        ]
