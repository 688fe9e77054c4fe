"""What a healthy log promises its engine: ordinals, sealing, snapshots, one writer, limits, a stop for good."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from outbox.engine.log.closed import CLOSED_NAME
from outbox.engine.log.disk import Crash, MemoryDisk, SimulatedCrash
from outbox.engine.log.framing import encode_record
from outbox.engine.log.segments import (
    Header,
    Limits,
    Recovery,
    read_sealed,
    segment_name,
    segment_ordinals,
    snapshot_name,
)
from outbox.engine.log.wal import Log, store_snapshot
from outbox.errors import AlreadyOpen, CorruptRecord, EngineStopped, Refused, Throttled, TooLarge

LOG_ID = b"0123456789abcdef"


def opened(disk: MemoryDisk, **options: object) -> Log:
    return Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7, **options)  # type: ignore[arg-type]  # tests pass options on


def flushed(log: Log, *payloads: bytes) -> int:
    for payload in payloads:
        log.append(9, payload)
    log.write()
    log.sync()
    return log.synced


def test_appending_reaches_the_disk_by_write_and_counts_by_sync() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    before = len(disk.calls)
    ordinal = log.append(9, b"one")
    assert (log.appended, log.written, log.synced) == (ordinal, ordinal - 1, ordinal - 1)
    assert len(disk.calls) == before
    log.append(9, b"two")
    log.write()
    assert (log.written, log.synced) == (ordinal + 1, ordinal - 1)
    assert disk.calls[before:] == ["write"]
    log.sync()
    log.sync()
    assert log.synced == ordinal + 1
    assert disk.calls[before:] == ["write", "sync"]


def test_empty_and_awkward_payloads_come_back_in_every_later_open() -> None:
    disk = MemoryDisk()
    payloads = [b"", b"\xfe\xfd", b"\xfe", b"", b"a" * 252, b"b" * 64_260, b"\xfe\xfd" * 500, b""]
    log = opened(disk)
    flushed(log, *payloads)
    log.close()
    for _ in range(3):
        log = opened(disk)
        assert [record.payload for record in log.recovered.records] == payloads
        log.close()


def test_each_open_has_a_greater_epoch_and_no_version_repeats() -> None:
    disk, versions = MemoryDisk(), set()
    for _ in range(4):
        log = opened(disk)
        versions.add((log.epoch, log.append(9, b"never written")))
        disk = disk.crash(Crash.PROCESS)
    assert len(versions) == 4
    assert sorted(epoch for epoch, _ in versions) == [1, 2, 3, 4]


def test_a_crash_right_behind_a_rotation_leaves_a_log_that_opens_for_ever() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one")
    log.seal()
    for number in range(3):
        disk = disk.crash(Crash.POWER)
        log = opened(disk)
        assert len(log.recovered.records) == number + 1
        flushed(log, b"more")


def test_segments_rotate_by_size_and_only_the_last_can_hold_unsynced_bytes() -> None:
    disk = MemoryDisk()
    log = opened(disk, limits=Limits(segment_size_bytes=1000))
    for number in range(40):
        log.append(9, bytes([number]) * 100)
    log.write()
    assert log.synced == segment_ordinals(disk.names())[-1] > 1 and 5 <= len(segment_ordinals(disk.names())) <= 7
    found = opened(disk.crash(Crash.POWER)).recovered.records
    assert [record.payload[0] for record in found] == list(range(len(found)))
    assert found[-1].ordinal == segment_ordinals(disk.names())[-1] - 1


def test_the_buffer_and_a_record_are_limited() -> None:
    log = opened(MemoryDisk(), limits=Limits(record_size_max_bytes=100, buffer_size_max_bytes=300))
    with pytest.raises(TooLarge, match="101 bytes"):
        log.append(9, b"x" * 101)
    with pytest.raises(Throttled, match="flush"):
        for _ in range(4):
            log.append(9, b"x" * 100)
    appended = log.appended
    log.write()
    assert log.append(9, b"x" * 100) == appended + 1


def test_sealing_gives_the_position_of_a_snapshot_once() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    assert log.seal() == 0
    last = flushed(log, b"one", b"two")
    log.append(9, b"three, not written yet")
    assert log.seal() == last + 1
    assert log.seal() == last + 1
    assert disk.names() == [segment_name(1), segment_name(last + 2)]


def test_a_snapshot_takes_the_place_of_the_records_it_contains() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one", b"two")
    sealed = log.seal()
    log.store_snapshot(sealed, b"one two")
    log.retire(sealed)
    flushed(log, b"three")
    assert disk.names() == [snapshot_name(sealed), segment_name(sealed + 1)]
    log.close()
    recovered = opened(disk).recovered
    assert (recovered.snapshot, recovered.snapshot_data) == (sealed, b"one two")
    assert [record.payload for record in recovered.records] == [b"three"]


def test_a_segment_that_goes_on_behind_a_snapshot_is_not_retired_with_it() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    two = flushed(log, b"one", b"two")
    flushed(log, b"three")
    log.seal()
    log.store_snapshot(two, b"one two")
    log.retire(two)
    log.close()
    recovered = opened(disk).recovered
    assert (recovered.snapshot, [record.payload for record in recovered.records]) == (two, [b"three"])


def test_a_snapshot_that_does_not_decode_is_passed_over_while_the_older_one_is_there() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one")
    first = log.seal()
    log.store_snapshot(first, b"good")
    log.retire(first)
    flushed(log, b"two")
    second = log.seal()
    log.store_snapshot(second, b"bad")
    log.close()
    log = opened(disk, accept_snapshot=lambda ordinal, data: data == b"good")
    assert (log.recovered.snapshot, log.recovered.refused_snapshots) == (first, (second,))
    assert [record.payload for record in log.recovered.records] == [b"two"]
    log.retire(second)
    log.close()
    with pytest.raises(CorruptRecord, match="missing"):
        opened(disk, accept_snapshot=lambda ordinal, data: data == b"good")


def test_a_snapshot_ahead_of_the_log_is_refused() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one")
    log.close()
    files = {name: disk.read(name) for name in disk.names()}
    with pytest.raises(CorruptRecord):
        opened(MemoryDisk(files={**files, snapshot_name(99): b"from elsewhere"}))


def test_a_snapshot_that_is_ahead_of_what_is_sealed_is_not_adopted() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one")
    sealed = log.seal()
    store_snapshot(disk, flushed(log, b"two"), b"from elsewhere")
    assert log.newest_snapshot() == 0
    store_snapshot(disk, sealed, b"one")
    assert log.newest_snapshot() == sealed


def test_only_a_sealed_position_can_be_stored_and_only_a_stored_one_retired() -> None:
    log = opened(MemoryDisk())
    last = flushed(log, b"one")
    with pytest.raises(ValueError, match="seal"):
        log.store_snapshot(last, b"")
    with pytest.raises(ValueError, match="no snapshot"):
        log.retire(log.seal())
    assert log.append(9, b"still alive") > last


def test_a_half_done_retirement_and_left_over_temporary_files_do_no_harm() -> None:
    disk = MemoryDisk()
    log = opened(disk, limits=Limits(segment_size_bytes=60))
    flushed(log, b"one" * 20, b"two" * 20, b"three" * 20)
    sealed = log.seal()
    log.store_snapshot(sealed, b"all three")
    log.close()
    names = disk.names()
    assert len([name for name in names if name.endswith(".log")]) > 3
    disk.remove(names[1])
    disk.create(snapshot_name(77) + ".tmp")
    log = opened(disk)
    assert log.recovered.snapshot == sealed
    assert not any(name.endswith(".tmp") for name in disk.names())


def test_a_second_writer_is_refused_with_the_cure() -> None:
    disk = MemoryDisk("bank.data")
    log = opened(disk)
    with pytest.raises(AlreadyOpen, match=r"bank\.data.*close it"):
        opened(disk)
    log.close()
    opened(disk)


def test_a_refused_open_gives_the_folder_back() -> None:
    disk = MemoryDisk(files={segment_name(1): b"rubbish"})
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            opened(disk)


@pytest.mark.parametrize("verb", ["sync", "seal"])
def test_a_stale_writer_behind_a_broken_lock_acknowledges_nothing(verb: str) -> None:
    disk = MemoryDisk()
    stale = opened(disk)
    stale.append(9, b"one")
    disk.unlock()
    fresh = opened(disk)
    stale.write()
    with pytest.raises(EngineStopped, match="another process"):
        getattr(stale, verb)()
    flushed(fresh, b"two")
    fresh.close()
    assert [record.payload for record in opened(disk).recovered.records] == [b"two"]


def test_a_stale_writer_does_not_put_a_segment_over_a_newer_one() -> None:
    disk = MemoryDisk()
    stale = opened(disk)
    stale.append(9, b"one")
    names = disk.names
    fresh: list[Log | None] = []

    def overtaken() -> list[str]:
        if not fresh:
            fresh.append(None)
            disk.unlock()
            fresh[0] = opened(disk)
        return names()

    disk.names = overtaken  # type: ignore[method-assign]  # the other process arrives exactly here
    with pytest.raises(EngineStopped, match="greater epoch"):
        stale.seal()
    assert fresh[0] is not None
    flushed(fresh[0], b"two")
    assert [record.payload for record in opened(disk.crash(Crash.POWER)).recovered.records] == [b"one", b"two"]


def test_retiring_keeps_even_a_segment_that_holds_nothing_but_its_header() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one")
    sealed = log.seal()
    log.store_snapshot(sealed, b"one")
    log.close()
    log = opened(disk)
    log.retire(sealed)
    log.close()
    assert disk.names() == [snapshot_name(sealed), segment_name(sealed + 1), segment_name(sealed + 2), CLOSED_NAME]
    assert opened(disk).recovered.snapshot == sealed


def test_a_segment_of_a_stale_epoch_is_refused() -> None:
    disk = MemoryDisk()
    for _ in range(2):
        opened(disk).close()
    files = {name: disk.read(name) for name in disk.names()}
    header = encode_record(3, 2, 1, 0, Header(LOG_ID, 7).encoded(), 0)
    with pytest.raises(CorruptRecord, match="stale"):
        opened(MemoryDisk(files={**files, segment_name(3): b"\xfe\xfd" + header}))


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_after_a_failed_flush_every_call_is_refused_with_the_cure_and_nothing_is_retried(verb: str) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(9, b"one")
    disk.fail(verb, error=errno.ENOSPC, written_bytes=3)
    with pytest.raises(EngineStopped, match="injected"):
        log.write()
        log.sync()
    calls = len(disk.calls)
    for call in (log.write, log.sync, log.seal, lambda: log.append(9, b""), lambda: log.retire(0)):
        with pytest.raises(EngineStopped, match="Free or replace the disk, then start again"):
            call()
    log.close()
    assert len(disk.calls) == calls
    assert log.synced == 1


def test_confirmation_sees_the_recovery_before_anything_is_written() -> None:
    disk = MemoryDisk()
    opened(disk).close()
    calls = len(disk.calls)

    def refuse(recovery: Recovery) -> None:
        raise Refused(f"clock {recovery.clock_ms} needs a look")

    with pytest.raises(Refused, match="clock 7 needs a look"):
        opened(disk, confirm=refuse)
    assert len(disk.calls) == calls
    opened(disk)


def test_a_witness_is_written_once_and_only_where_it_proves_something() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    assert log.witnessed
    last = log.append(9, b"one")
    log.witness()
    assert log.appended == last, "unsynced records first"
    log.write()
    log.sync()
    before, size_bytes = len(disk.calls), log.size_bytes
    log.witness()
    log.witness()
    assert (log.appended, log.witnessed) == (last + 2, True), "a padded one and an empty one"
    log.write()
    log.sync()
    assert disk.calls[before:] == ["write", "sync"]
    log.witness()
    assert log.appended == last + 2, "nothing new to tell"
    assert 4096 < log.size_bytes - size_bytes < 4200


def test_a_compaction_beside_a_host_reads_sealed_segments_only() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one", b"two")
    sealed = log.seal()
    flushed(log, b"live")
    found = read_sealed(disk)
    assert [record.payload for record in found.records] == [b"one", b"two"]
    assert found.last_ordinal == sealed
    assert log.append(9, b"the host goes on") > sealed


def test_one_thread_appends_while_another_flushes() -> None:
    disk = MemoryDisk()
    log = opened(disk, limits=Limits(segment_size_bytes=2000))
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            log.write()
            log.sync()

    thread = threading.Thread(target=flush)
    thread.start()
    for number in range(5_000):
        log.append(9, b"%d" % number)
    done.set()
    thread.join(timeout=10)
    log.close()
    found = opened(disk.crash(Crash.POWER)).recovered.records
    assert [int(record.payload) for record in found] == list(range(5_000))


def test_closing_flushes_and_a_closed_log_says_so() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(9, b"one")
    log.close()
    log.close()
    with pytest.raises(EngineStopped, match="closed"):
        log.append(9, b"two")
    assert [record.payload for record in opened(disk.crash(Crash.POWER)).recovered.records] == [b"one"]


class Job(MemoryDisk):
    """A folder in which a compaction dies between the rename of its snapshot and the sync of the folder."""

    dies = False

    def sync_dir(self) -> None:
        if self.dies:
            self.dies = False
            raise SimulatedCrash("killed")
        super().sync_dir()


@pytest.mark.parametrize("crash", list(Crash))
def test_retiring_behind_the_snapshot_of_a_job_that_was_killed_loses_nothing(crash: Crash) -> None:
    """The snapshot has its name, but no sync of the folder: it may go while the removals behind it stay."""
    for call in range(12):
        disk = Job()
        log = opened(disk, limits=Limits(segment_size_bytes=60))
        flushed(log, b"one" * 20, b"two" * 20, b"three" * 20)
        sealed = log.seal()
        disk.dies = True
        with pytest.raises(SimulatedCrash):
            store_snapshot(disk, sealed, b"all three")
        assert log.newest_snapshot() == sealed
        disk.crash_before(call)
        try:
            log.retire(sealed)
        except SimulatedCrash:
            for seed in range(20):
                recovered = opened(disk.crash(crash, random.Random(seed))).recovered
                payloads = [record.payload for record in recovered.records]
                assert recovered.snapshot_data == b"all three" or payloads == [b"one" * 20, b"two" * 20, b"three" * 20]
        else:
            return
    pytest.fail("a retirement made more disk calls than this test follows")


def test_an_open_takes_the_newest_snapshot_that_decodes() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for payload in (b"one", b"two", b"three"):
        flushed(log, payload)
        log.store_snapshot(log.seal(), b"up to " + payload)
    log.close()
    assert opened(MemoryDisk(files=files_of(disk))).recovered.snapshot_data == b"up to three"
    recovered = opened(disk, accept_snapshot=lambda ordinal, data: data != b"up to three").recovered
    assert recovered.snapshot_data == b"up to two"
    assert [record.payload for record in recovered.records] == [b"three"]


def files_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: disk.read(name) for name in disk.names()}


def test_a_job_that_finds_nothing_behind_the_snapshot_reads_up_to_that() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flushed(log, b"one", b"two")
    ordinal = log.seal()
    log.store_snapshot(ordinal, b"snapshot")
    log.retire(ordinal)
    found = read_sealed(disk)
    assert (found.snapshot, found.durable, found.last_ordinal) == (ordinal, ordinal, ordinal)
    assert not found.records
