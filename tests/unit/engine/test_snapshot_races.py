"""A compaction job beside a host: whatever it leaves of its files, the host retires nothing that it still needs."""

from __future__ import annotations

import random

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log import snapshot
from outbox.engine.log.disk import Disk, MemoryDisk
from outbox.engine.log.memory_disk import Crash, MemoryFile, SimulatedCrash
from outbox.errors import CorruptRecord
from outbox.message import Message
from outbox.testing import START_S, VirtualClock


class Job:
    """The folder as a compaction job sees it, which dies right behind the creation of its temporary file."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.where, self.names, self.read, self.pieces = disk.where, disk.names, disk.read, disk.pieces
        self.rename, self.remove, self.sync_dir = disk.rename, disk.remove, disk.sync_dir
        self.lock, self.unlock, self.holds = disk.lock, disk.unlock, disk.holds

    def create(self, name: str) -> MemoryFile:
        self._disk.create(name)
        raise SimulatedCrash("killed")


class Interrupted(MemoryDisk):
    """A host's disk; between the host's read-back of a snapshot and its rename another process gets its turn."""

    spoils = False
    armed = False

    def rename(self, name: str, target: str) -> None:
        if self.armed and target.endswith(".snapshot"):
            self.armed = False
            job: Disk = Job(self)
            with pytest.raises(SimulatedCrash):
                snapshot.compact_sealed(job)
            super().rename(name, target)
            if self.spoils:
                self._inode(target).content[40:44] = b"\0\0\0\0"
        else:
            super().rename(name, target)


def hosted(disk: MemoryDisk) -> Engine:
    engine = Engine.open(disk, clock=VirtualClock(START_S), log_id=b"0" * 16)
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"x", outbox_id="acknowledged")])
    engine.core.flush()
    return engine


def test_a_job_killed_between_a_hosts_read_back_and_its_rename_loses_nothing() -> None:
    disk = Interrupted("raced")
    engine = hosted(disk)
    disk.armed = True
    assert engine.compact()
    found = disk.crash(Crash.POWER, random.Random(1))
    again = Engine.open(found, clock=VirtualClock(START_S))
    assert again.broker.queue("q").counts()["active"] == 1
    assert not any(name.endswith(".tmp") for name in found.names())


def test_a_host_retires_nothing_behind_a_snapshot_that_does_not_decode_under_its_name() -> None:
    disk = Interrupted("spoiled")
    engine = hosted(disk)
    disk.armed = disk.spoils = True
    with pytest.raises(CorruptRecord):
        engine.compact()
    again = Engine.open(disk.crash(Crash.PROCESS, random.Random(1)), clock=VirtualClock(START_S))
    assert again.broker.queue("q").counts()["active"] == 1


def test_a_host_leaves_a_snapshot_of_a_newer_format_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk("newer")
    engine = hosted(disk)
    assert engine.log is not None
    engine.log.seal()
    with monkeypatch.context() as newer:
        newest = snapshot.FORMAT_VERSION + 1
        newer.setattr(snapshot, "PLAIN_VERSION", newest)
        newer.setattr(snapshot, "FORMAT_VERSION", newest)
        assert snapshot.compact_sealed(disk)
    before = disk.names()
    assert engine.adopt() == 0 and disk.names() == before
