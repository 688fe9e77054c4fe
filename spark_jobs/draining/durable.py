"""The sync of a Delta table before a landed file goes: on a folder we do it, delta-rs does not.

`Place.create` syncs data and key files with their folders.  What is left are the entries and checkpoints that delta-rs
wrote, and the names of folders in the folders above them.  A store of blobs answers when it has a blob, so there is
nothing to do.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from spark_jobs.common.folder import Folder, sync_path
from spark_jobs.common.folder_errors import refusing
from spark_jobs.common.places import Place
from spark_jobs.draining.entries import LAST_CHECKPOINT, LOG, newest_checkpoint


@dataclass(slots=True)
class Durable:
    """Syncs one table; remembers which log files it has synced, because none is ever written again."""

    place: Place
    synced: set[str] = field(default_factory=set)

    def sync(self) -> None:
        """Wait until the disk has its folders, and the log as a reader of the newest version needs it.

        All of it, whoever wrote it: a version whose landed files go rests on the entries before it.

        Raises:
            Refused: the folder cannot be synced; the landed files stay.
        """
        if isinstance(self.place, Folder):
            with refusing("syncing", self.place):
                self._sync(self.place.path)

    def _sync(self, root: Path) -> None:
        first = f"{newest_checkpoint(self.place):020}"
        names = {entry.name for entry in os.scandir(root / LOG) if entry.is_file() and entry.name >= first}
        for name in sorted(names - self.synced):
            sync_path(root / LOG / name)
        self.synced = names - {Path(LAST_CHECKPOINT).name}  # the one that is written again
        for folder in (root / LOG, root, *root.parents):
            try:
                sync_path(folder)
            except PermissionError:
                return
