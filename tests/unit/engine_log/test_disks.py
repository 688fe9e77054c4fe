"""The real folder and the one in memory keep the same contract; the real one also against other processes."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from outbox.engine.log.disk import LOCK_NAME, Crash, Disk, FolderDisk, MemoryDisk, replace_file
from outbox.engine.log.wal import Log
from outbox.errors import AlreadyOpen, EngineStopped

OPEN = Path("/proc/self/fd")
"""What this process has open."""
HOLDER = """
import sys, time
from outbox.engine.log.disk import FolderDisk
from outbox.engine.log.wal import Log
log = Log.open(FolderDisk(sys.argv[1]), log_id=b"0123456789abcdef", clock_ms=lambda: 7)
log.append(9, b"acknowledged"); log.write(); log.sync()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["folder", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return FolderDisk(tmp_path / "deep" / "data") if request.param == "folder" else MemoryDisk()


def opened(disk: Disk) -> Log:
    return Log.open(disk, log_id=b"0123456789abcdef", clock_ms=lambda: 7)


def test_a_file_grows_and_reads_back(disk: Disk) -> None:
    file = disk.create("a")
    file.write(b"one")
    file.write(b"two")
    file.sync()
    assert (disk.read("a"), file.size_bytes) == (b"onetwo", 6)
    file.close()
    with pytest.raises(FileExistsError):
        disk.create("a")


def test_room_is_zeros_ahead_of_what_was_written_and_can_be_released(disk: Disk) -> None:
    file = disk.create("a")
    file.write(b"one")
    assert file.reserve(10)
    assert (disk.read("a"), file.size_bytes) == (b"one" + bytes(7), 3)
    file.write(b"two")
    assert (disk.read("a"), file.size_bytes) == (b"onetwo" + bytes(4), 6)
    assert file.reserve(8)
    assert disk.read("a") == b"onetwo" + bytes(4), "a file never shrinks under a reservation"
    file.trim()
    assert disk.read("a") == b"onetwo"
    file.write(b"beyond the room")
    file.sync()
    assert (disk.read("a"), file.size_bytes) == (b"onetwobeyond the room", 21)


def test_room_larger_than_one_block_of_zeros_is_filled(disk: Disk) -> None:
    file = disk.create("a")
    assert file.reserve(1_000_001)
    assert disk.read("a") == bytes(1_000_001)


def test_replacing_a_file_takes_its_place_and_fences_its_writer(disk: Disk) -> None:
    old = disk.create("a")
    old.write(b"old")
    old.sync()
    replace_file(disk, "a", b"new").close()
    assert (disk.names(), disk.read("a")) == (["a"], b"new")
    with pytest.raises(OSError, match="another process"):
        old.sync()
    disk.remove("a")
    with pytest.raises(FileNotFoundError):
        disk.read("a")


def test_a_replacement_that_reads_back_wrongly_does_not_take_the_place(disk: Disk) -> None:
    def refuse(pieces: Iterator[bytes]) -> None:
        raise OSError(f"{b''.join(pieces)!r} is not what was meant")

    replace_file(disk, "a", b"old").close()
    with pytest.raises(OSError, match="not what was meant"):
        replace_file(disk, "a", b"new", refuse)
    assert disk.read("a") == b"old"
    replace_file(disk, "a", b"third").close()
    assert disk.read("a") == b"third"


def test_one_writer_at_a_time(disk: Disk) -> None:
    disk.lock()
    other = FolderDisk(disk.where) if isinstance(disk, FolderDisk) else disk
    open_before = {path.name for path in OPEN.iterdir()}
    with pytest.raises(AlreadyOpen, match=r"stop it|close it"):
        other.lock()
    assert {path.name for path in OPEN.iterdir()} == open_before
    disk.unlock()
    other.lock()
    other.unlock()


def test_a_lock_on_a_file_that_has_lost_its_name_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of the lock file and its lock somebody may put another in its place, and hold that."""
    folder, flock = FolderDisk(tmp_path), fcntl.flock

    def late(descriptor: int, how: int) -> None:
        (tmp_path / LOCK_NAME).unlink()
        (tmp_path / LOCK_NAME).touch()
        flock(descriptor, how)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(fcntl, "flock", late)
        with pytest.raises(AlreadyOpen):
            folder.lock()
    folder.lock()
    folder.unlock()


def test_a_log_lives_on_either(disk: Disk) -> None:
    for number in range(3):
        log = opened(disk)
        assert len(log.recovered.records) == number
        log.append(9, b"record")
        log.close()


def test_folder_and_files_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    log = opened(FolderDisk(folder))
    log.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:3])))
    file = FolderDisk(tmp_path).create("a")
    file.write(b"0123456789")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_stops_the_log(tmp_path: Path) -> None:
    log = opened(FolderDisk(tmp_path))
    descriptor = log._file._descriptor  # type: ignore[union-attr]  # the only way to fill up a real file's device
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    log.append(9, b"one")
    with pytest.raises(EngineStopped, match="No space left"):
        log.write()
    os.close(full)
    log.close()
    assert opened(FolderDisk(tmp_path)).recovered.records == []


def test_another_process_is_refused_until_it_is_killed_and_then_nothing_is_lost(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyOpen, match="stop it"):
            opened(FolderDisk(tmp_path))
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=10)
    assert [record.payload for record in opened(FolderDisk(tmp_path)).recovered.records] == [b"acknowledged"]


def test_a_power_loss_takes_unsynced_bytes_and_names() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    file.write(b"synced")
    file.sync()
    disk.sync_dir()
    file.write(b" not")
    disk.create("b").sync()
    disk.rename("a", "c")
    after = disk.crash(Crash.POWER)
    assert {name: after.read(name) for name in after.names()} == {"a": b"synced"}
    assert disk.crash(Crash.PROCESS).read("c") == b"synced not"


def test_a_failed_sync_loses_its_bytes_for_good() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    disk.sync_dir()
    file.write(b"lost")
    disk.fail("sync", error=errno.EIO)
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.write(b"kept")
    file.sync()
    assert disk.read("a") == b"lostkept"
    assert disk.crash(Crash.PROCESS).crash(Crash.POWER).read("a") == bytes(4) + b"kept"


def test_pages_survive_one_by_one() -> None:
    disk = MemoryDisk(page_size_bytes=4)
    file = disk.create("a")
    disk.sync_dir()
    file.write(b"aabb")
    file.sync()
    file.write(b"ccccddddee")
    found = {disk.crash(Crash.REORDERED, random.Random(seed)).read("a") for seed in range(60)}
    assert len(found) == 8
    assert b"aabb" + bytes(4) + b"ddddee" in found


def overwritten() -> MemoryDisk:
    """Room synced with "aa" in front of it, then records over the zeros and room behind those; pages of 4 bytes."""
    disk = MemoryDisk(page_size_bytes=4)
    file = disk.create("a")
    disk.sync_dir()
    file.write(b"aa")
    file.reserve(8)
    file.sync()
    file.write(b"bbbbbb")
    file.reserve(12)
    file.write(b"cc")
    return disk


def found_after(crash: Crash) -> set[bytes]:
    disk = overwritten()
    return {disk.crash(crash, random.Random(seed)).read("a") for seed in range(200)}


def test_records_in_room_and_the_size_of_the_file_reach_the_platter_separately() -> None:
    first, second, third = (b"aa\0\0", b"aabb"), (bytes(4), b"bbbb"), (bytes(4), b"cc\0\0")
    old_size = {one + two for one in first for two in second}
    assert found_after(Crash.POWER) == {b"aa" + bytes(6)}
    assert found_after(Crash.RESIZED) == old_size
    assert found_after(Crash.REORDERED) == {front + page for front in old_size for page in third}
    assert found_after(Crash.ZEROED) == {(b"aabbbbbbcc"[:size]).ljust(12, b"\0") for size in range(2, 11)}
    assert {len(data) for data in found_after(Crash.TORN)} == {8, 9, 10, 11, 12}
    assert {data.rstrip(b"\0") for data in found_after(Crash.TORN)} == {b"aabbbbbbcc"[:size] for size in range(2, 11)}


def test_room_that_is_released_is_gone_for_good_only_with_the_next_sync() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    disk.sync_dir()
    file.write(b"aa")
    file.reserve(4)
    file.sync()
    file.trim()
    assert {disk.crash(Crash.TORN, random.Random(seed)).read("a") for seed in range(30)} == {b"aa", b"aa\0\0"}
    assert disk.crash(Crash.PROCESS).crash(Crash.POWER).read("a") == b"aa\0\0"
    file.sync()
    assert disk.crash(Crash.POWER).read("a") == b"aa"


def test_a_failed_sync_leaves_the_zeros_of_the_room_where_the_record_was() -> None:
    disk = overwritten()
    disk.fail("sync")
    file = disk.create("b")
    with pytest.raises(OSError, match="injected"):
        file.sync()
    assert disk.crash(Crash.PROCESS).crash(Crash.POWER).read("a") == b"aa" + bytes(6)


@pytest.mark.parametrize("verb", ["write", "sync", "rename", "sync_dir"])
def test_a_file_that_could_not_be_put_in_place_leaves_nothing_on_a_disk_that_is_full(verb: str) -> None:
    disk = MemoryDisk()
    replace_file(disk, "a", b"old").close()
    disk.fail(verb, error=errno.ENOSPC)
    with pytest.raises(OSError, match="injected"):
        replace_file(disk, "a", b"new")
    assert disk.names() == ["a"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists the open files so")
def test_a_file_that_is_removed_or_could_not_be_put_in_place_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.engine.log.disk._RELEASE_STEP_BYTES", 1_000)

    def refused(_: Iterable[bytes]) -> None:
        raise OSError("it reads back differently")

    disk = FolderDisk(tmp_path)
    file = disk.create("large")
    file.write(bytes(3_500))
    file.close()
    disk.remove("large")
    with pytest.raises(OSError, match="reads back differently"):
        replace_file(disk, "other", b"x", refused)
    held = [each.resolve() for each in list(Path("/proc/self/fd").iterdir())]
    assert [each for each in held if each.is_relative_to(tmp_path)] == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_only_a_disk_that_is_full_may_refuse_room(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(error, "injected")

    file = FolderDisk(tmp_path).create("a")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "pwrite", failing)
        if error == errno.ENOSPC:
            assert not file.reserve(100)
        else:
            with pytest.raises(OSError, match="injected"):
                file.reserve(100)
    file.close()


def test_a_large_file_is_given_back_in_steps_unless_somebody_reads_it_or_has_its_name(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.engine.log.disk._RELEASE_STEP_BYTES", 1_000)
    sizes: list[int] = []
    truncate = os.ftruncate

    def truncated(descriptor: int, size_bytes: int) -> None:
        sizes.append(size_bytes)
        truncate(descriptor, size_bytes)

    monkeypatch.setattr(os, "ftruncate", truncated)
    disk = FolderDisk(disk_path / "data")
    content = bytes(range(250)) * 14
    for name in ("alone", "read", "linked"):
        replace_file(disk, name, content).close()
    disk.remove("alone")
    assert sizes in ([2_500, 1_500, 500], [])  # some file systems know no leases
    sizes.clear()
    with (disk_path / "data" / "read").open("rb") as reader:
        disk.remove("read")
        assert reader.read() == content
    os.link(disk_path / "data" / "linked", disk_path / "data" / "backup")
    disk.remove("linked")
    assert disk.read("backup") == content and disk.names() == ["backup"] and not sizes
