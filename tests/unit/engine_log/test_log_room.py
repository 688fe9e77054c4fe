"""Room ahead of the records: the file grows in steps, its meaning does not change, and without room the log goes on.

That every crash at every call leaves a good log is shown in `test_log_crashes`, that no damage passes for room in
`test_log_damage`.
"""

from __future__ import annotations

import errno
import random
import sys
from pathlib import Path

import pytest

from outbox.engine.log.disk import Crash, FolderDisk, MemoryDisk, SimulatedCrash
from outbox.engine.log.salvage import inspect, salvage
from outbox.engine.log.segments import Limits, read_sealed, segment_name, segment_ordinals
from outbox.engine.log.wal import Log
from outbox.errors import CorruptRecord, EngineStopped
from tests.commands import ran

LOG_ID = b"0123456789abcdef"
ROOM_BYTES = 300

FILLS_UP = """
import resource, sys
from outbox.engine.log.disk import FolderDisk
from outbox.engine.log.segments import Limits
from outbox.engine.log.wal import Log
from outbox.errors import EngineStopped
log = Log.open(FolderDisk(sys.argv[1]), log_id=b"0123456789abcdef", clock_ms=lambda: 7, limits=Limits(room_bytes=5_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
count = 0
try:
    while True:
        log.append(9, bytes([count]) * 1000); log.write(); log.sync()
        count += 1
except EngineStopped as stopped:
    print(count, stopped)
"""


def opened(disk: MemoryDisk | FolderDisk, *, room_bytes: int = ROOM_BYTES, segment_size_bytes: int = 2000) -> Log:
    limits = Limits(segment_size_bytes=segment_size_bytes, room_bytes=room_bytes)
    return Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7, limits=limits)


def flushed(log: Log, *payloads: bytes) -> None:
    for payload in payloads:
        log.append(9, payload)
    log.write()
    log.sync()


def payloads_of(log: Log) -> list[bytes]:
    return [record.payload for record in log.recovered.records]


def test_a_flush_into_room_changes_no_size_and_one_beyond_it_takes_a_step() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    size, before = len(disk.read(segment_name(1))), len(disk.calls)
    assert size == log.size_bytes + ROOM_BYTES
    flushed(log, b"x" * 100)
    flushed(log, b"x" * 100)
    assert len(disk.read(segment_name(1))) == size
    assert disk.calls[before:] == ["write", "sync"] * 2
    flushed(log, b"x" * 100)
    assert disk.calls[before:] == ["write", "sync"] * 2 + ["reserve", "write", "sync"]
    assert len(disk.read(segment_name(1))) == log.size_bytes + ROOM_BYTES


def test_the_size_of_a_log_is_that_of_its_records(tmp_path: Path) -> None:
    open_sizes, closed_sizes = set(), set()
    for room_bytes in (0, ROOM_BYTES, 1500, 1 << 20):
        log = opened(FolderDisk(tmp_path / str(room_bytes)), room_bytes=room_bytes)
        flushed(log, *(b"x" * 100 for _ in range(30)))
        open_sizes.add(log.size_bytes)
        log.close()
        closed_sizes.add(sum(path.stat().st_size for path in (tmp_path / str(room_bytes)).glob("*.log")))
    assert (len(open_sizes), len(closed_sizes)) == (1, 1)
    assert 0 < closed_sizes.pop() - open_sizes.pop() < 4300, "the witness of the close"


def test_sealed_segments_and_a_closed_log_hold_no_room(tmp_path: Path) -> None:
    log = opened(FolderDisk(tmp_path))
    flushed(log, *(b"x" * 100 for _ in range(30)))
    files = sorted(tmp_path.glob("*.log"))
    assert len(files) > 1
    assert [path.read_bytes().endswith(b"\0") for path in files] == [False] * (len(files) - 1) + [True]
    log.close()
    assert not any(path.read_bytes().endswith(b"\0") for path in sorted(tmp_path.glob("*.log")))


def test_a_segment_is_not_given_more_room_than_its_size() -> None:
    disk = MemoryDisk()
    log = opened(disk, room_bytes=1 << 20)
    assert len(disk.read(segment_name(1))) == 2000
    flushed(log, b"x" * 5000)
    assert len(disk.read(segment_name(1))) == log.size_bytes


def test_room_left_by_a_crash_is_neither_damage_nor_cut_and_is_not_carried_along() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one", bytes(40))
    disk = disk.crash(Crash.POWER)
    assert disk.read(segment_name(1)).endswith(bytes(100))
    log = opened(disk)
    assert payloads_of(log) == [b"one", bytes(40)]
    assert log.recovered.cut_bytes == 0
    assert not disk.read(segment_name(1)).endswith(b"\0")


def test_zeros_in_place_of_a_record_that_a_later_one_saw_synced_are_refused() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for payload in (b"first", b"second", b"third"):
        flushed(log, payload)
    data = disk.read(segment_name(1))
    for payload, lost in ((b"first", True), (b"second", True), (b"third", False)):
        end = data.index(b"\xfe\xfd", data.index(payload))
        start = data.rindex(b"\xfe\xfd", 0, end) + 2
        holed = data[:start] + bytes(end - start) + data[end:]
        damaged = MemoryDisk(files={segment_name(1): holed})
        if lost:
            with pytest.raises(CorruptRecord, match="salvage"):
                opened(damaged)
        else:
            assert payloads_of(opened(damaged)) == [b"first", b"second"]


def test_zeros_in_place_of_the_last_record_of_a_sealed_segment_are_refused_and_behind_it_they_are_not() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one", b"two")
    log.seal()
    log.close()
    files = {name: disk.read(name) for name in disk.names()}
    data = files[segment_name(1)]
    assert payloads_of(opened(MemoryDisk(files={**files, segment_name(1): data + bytes(500)}))) == [b"one", b"two"]
    cut = data[: data.rindex(b"\xfe\xfd", 0, len(data) - 2) + 2]
    with pytest.raises(CorruptRecord, match="missing"):
        opened(MemoryDisk(files={**files, segment_name(1): cut.ljust(len(data) + 500, b"\0")}))


def test_no_room_to_be_had_is_no_reason_to_stop_and_is_asked_for_again_in_the_next_segment() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    before = len(disk.calls)
    disk.fail("reserve", error=errno.ENOSPC, written_bytes=10)
    for number in range(10):
        flushed(log, bytes([number]) * 100)
    assert disk.calls[before:].count("reserve") == 1
    assert len(disk.read(segment_name(1))) == log.size_bytes
    log.seal()
    assert disk.read(segment_name(segment_ordinals(disk.names())[-1])).endswith(bytes(ROOM_BYTES))
    assert payloads_of(opened(disk.crash(Crash.POWER))) == [bytes([number]) * 100 for number in range(10)]


def test_a_segment_starts_without_room_where_there_is_none() -> None:
    disk = MemoryDisk()
    disk.fail("reserve", error=errno.EDQUOT)
    log = opened(disk)
    flushed(log, b"one")
    assert payloads_of(opened(disk.crash(Crash.POWER))) == [b"one"]


def test_a_disk_that_fails_while_the_file_grows_stops_the_log_before_a_record_is_written() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    disk.fail("reserve", error=errno.EIO, written_bytes=200)
    log.append(9, b"x" * 400)
    before = len(disk.calls)
    with pytest.raises(EngineStopped, match="start again"):
        log.write()
    assert disk.calls[before:] == ["reserve"]
    assert b"x" not in disk.read(segment_name(1))


@pytest.mark.parametrize("crash", list(Crash))
def test_a_crash_at_any_call_of_a_rotation_leaves_every_synced_record(crash: Crash) -> None:
    for call in range(12):
        disk = MemoryDisk(page_size_bytes=64)
        log = opened(disk)
        flushed(log, b"one", b"two")
        disk.crash_before(call)
        try:
            log.seal()
            flushed(log, b"three")
        except SimulatedCrash:
            pass
        else:
            return
        for seed in range(8):
            found = opened(disk.crash(crash, random.Random(seed)))
            assert payloads_of(found)[:2] == [b"one", b"two"]
            assert found.recovered.cut_bytes == 0 or call > 6
    pytest.fail("a rotation made more disk calls than this test follows")


def test_inspection_and_salvage_and_a_reader_beside_the_host_distinguish_room_from_damage() -> None:
    disk, target = MemoryDisk(), MemoryDisk()
    log = opened(disk)
    flushed(log, b"one")
    log.seal()
    flushed(log, b"two")
    seen = inspect(disk)
    assert [segment.room_bytes > 0 for segment in seen.segments] == [False, True]
    assert [segment.damage for segment in seen.segments] == [(), ()]
    assert sum(segment.size_bytes for segment in seen.segments) == log.size_bytes
    assert f"and {seen.segments[1].room_bytes} zeros behind them" in seen.text
    salvage(disk, target, log_id=LOG_ID, clock_ms=lambda: 8)
    assert payloads_of(opened(target)) == [b"one", b"two"]
    assert [record.payload for record in read_sealed(disk).records] == [b"one"]


def test_a_file_that_may_not_grow_takes_records_without_room_and_then_stops(tmp_path: Path) -> None:
    done = ran([sys.executable, "-c", FILLS_UP, tmp_path], check=True)
    count, text = done.stdout.split(" ", 1)
    assert "File too large" in text
    assert int(count) == 11, "every record that fits whole is taken"
    log = opened(FolderDisk(tmp_path))
    assert [payload[0] for payload in payloads_of(log)] == list(range(11))
