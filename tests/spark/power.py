"""A power loss on a folder, by a stand-in: what nobody synced is gone, whoever wrote it.

Every fsync of this process is seen.  A file then has the bytes of its last one, a folder the names of its last one; a
file that was never synced has no bytes.  delta-rs syncs nothing, so what it wrote counts as far as we synced it.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

SYNC = os.fsync


@dataclass
class Disk:
    """What is on disk for sure; `held` keeps inodes from being given to other files."""

    bytes_of: dict[int, bytes] = field(default_factory=dict)
    names_in: dict[int, dict[str, int]] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)

    def fsync(self, handle: int) -> None:
        """Take down what is there now; in place of `os.fsync`."""
        self.held.append(os.dup(handle))
        path, told = Path(f"/proc/self/fd/{handle}").readlink(), os.fstat(handle)
        if stat.S_ISDIR(told.st_mode):
            self.names_in[told.st_ino] = names_in(path)
        else:
            self.bytes_of[told.st_ino] = path.read_bytes()

    def sync_all(self, root: Path) -> None:
        """Everything below, and the folder itself, is on disk."""
        for path in (root, *root.rglob("*")):
            handle = os.open(path, os.O_RDONLY)
            self.fsync(handle)
            os.close(handle)

    def after_loss(self, root: Path, target: Path, *, names: str, deletions: str) -> None:
        """What a machine that comes up again finds in `root`, written to `target`.

        `names` "synced": a name is there where its folder was synced with it; "all": all are, some without bytes.
        `deletions` "done": each took place at once; "undone": where the folder was synced behind it.
        """
        target.mkdir()
        now, synced = names_in(root), self.names_in.get(root.stat().st_ino, {})
        found = {name: inode for name, inode in synced.items() if deletions == "undone" or now.get(name) == inode}
        if names == "all":
            found |= now
        for name, inode in found.items():
            if name in now and (root / name).is_dir():
                self.after_loss(root / name, target / name, names=names, deletions=deletions)
            else:
                (target / name).write_bytes(self.bytes_of.get(inode, b""))

    def close(self) -> None:
        for handle in self.held:
            os.close(handle)


def names_in(folder: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}
