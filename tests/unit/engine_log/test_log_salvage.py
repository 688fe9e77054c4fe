"""A log that an open refuses gives up every record that is still valid, and tells what it could not give."""

from __future__ import annotations

import pytest

from outbox.engine.log import salvage as salvages
from outbox.engine.log.closed import CLOSED_NAME
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.framing import DELIMITER, encode_record, seed_of, stuff
from outbox.engine.log.salvage import Salvaged, inspect, salvage
from outbox.engine.log.segments import Limits, segment_name, snapshot_name
from outbox.engine.log.wal import Log
from outbox.errors import CorruptRecord, Refused, TooLarge

LOG_ID = b"0123456789abcdef"


def opened(disk: MemoryDisk) -> Log:
    return Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7, limits=Limits(segment_size_bytes=200))


def written() -> tuple[dict[str, bytes], dict[int, bytes]]:
    """Return the files of a log of several segments, and its records by ordinal."""
    disk = MemoryDisk()
    log = opened(disk)
    records = {log.append(9, b"record %d" % number * 4): b"record %d" % number * 4 for number in range(12)}
    log.close()
    return {name: disk.read(name) for name in disk.names() if name != CLOSED_NAME}, records


FILES, RECORDS = written()
NAMES = sorted(name for name in FILES if name.endswith(".log"))


def salvaged(files: dict[str, bytes]) -> tuple[Salvaged, dict[int, bytes]]:
    damaged, target = MemoryDisk(files=files), MemoryDisk()
    result = salvage(damaged, target, log_id=b"a fresh log's id", clock_ms=lambda: 8)
    assert {name: damaged.read(name) for name in damaged.names()} == files, "the damaged folder is only read"
    return result, {record.ordinal: record.payload for record in opened(target).recovered.records}


def test_a_sound_log_is_copied_record_for_record() -> None:
    result, found = salvaged(FILES)
    assert found == RECORDS
    assert (result.missing, result.skipped_count, result.inspection.missing) == ((), 0, ())
    assert result.copied_count == sum(segment.record_count for segment in result.inspection.segments)
    assert "damage" not in result.inspection.text


def test_one_flipped_byte_costs_one_record_and_is_reported() -> None:
    name = NAMES[1]
    for place in range(60, len(FILES[name]) - 60, 7):
        data = bytearray(FILES[name])
        data[place] ^= 0x40
        files = {**FILES, name: bytes(data)}
        with pytest.raises(CorruptRecord):
            opened(MemoryDisk(files=files))
        result, found = salvaged(files)
        lost = set(RECORDS) - set(found)
        assert 1 <= len(lost) <= 2
        assert {ordinal for first, last in result.missing for ordinal in range(first, last + 1)} == lost
        assert all(RECORDS[ordinal] == payload for ordinal, payload in found.items())
        assert name in result.inspection.text
        assert "was synced" in result.inspection.text


def test_a_record_of_the_live_segment_that_a_later_one_says_was_synced_is_reported_as_such() -> None:
    disk = MemoryDisk()
    log = Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7)
    log.append(9, b"first")
    lost = log.append(9, b"second")
    log.close()
    files = {segment_name(1): disk.read(segment_name(1)).replace(b"second", b"sec0nd")}
    with pytest.raises(CorruptRecord):
        opened(MemoryDisk(files=files))
    assert f"missing: ordinals {lost}..{lost} (was synced)" in inspect(MemoryDisk(files=files)).text


def test_a_record_that_nothing_says_was_synced_is_reported_as_such() -> None:
    disk = MemoryDisk()
    log = Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7)
    lost = log.append(9, b"first")
    log.append(9, b"second")
    log.write()
    files = {segment_name(1): disk.read(segment_name(1)).replace(b"first", b"f1rst")}
    assert f"missing: ordinals {lost}..{lost} (above the synced ordinal)" in inspect(MemoryDisk(files=files)).text


def test_a_record_above_the_limit_that_is_given_is_damage() -> None:
    assert inspect(MemoryDisk(files=FILES), limits=Limits(record_size_max_bytes=20)).missing


@pytest.mark.parametrize("index", range(len(NAMES)))
def test_a_missing_segment_is_reported_and_the_others_are_copied(index: int) -> None:
    result, found = salvaged({name: data for name, data in FILES.items() if name != NAMES[index]})
    first = int(NAMES[index].removesuffix(".log"), 16)
    last = int(NAMES[index + 1].removesuffix(".log"), 16) - 1 if index + 1 < len(NAMES) else 0
    assert set(RECORDS) - set(found) == {ordinal for ordinal in RECORDS if ordinal >= first and ordinal <= (last or 99)}
    assert result.missing == (((first, last),) if last else ())


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]], ids=["with neighbours", "alone"])
def test_a_damaged_header_costs_no_record(names: list[str]) -> None:
    files = {name: FILES[name] for name in names}
    data = bytearray(files[NAMES[0]])
    data[10] ^= 0xFF
    result, found = salvaged({**files, NAMES[0]: bytes(data)})
    after = int(NAMES[1].removesuffix(".log"), 16) if len(names) == 1 else 99
    assert found == {ordinal: payload for ordinal, payload in RECORDS.items() if ordinal < after}
    assert len(found) > 1
    assert result.missing == ((1, 1),)
    assert not result.inspection.segments[0].header_valid
    assert result.inspection.text.count("header damaged") == 1


def test_the_snapshot_comes_along_and_what_it_contains_is_not_missing() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(9, b"contained")
    sealed = log.seal()
    log.store_snapshot(sealed, b"snapshot")
    log.retire(sealed)
    behind = [log.append(9, b"behind"), log.append(9, b"more")]
    log.close()
    files = {name: disk.read(name) for name in disk.names()}
    last = segment_name(sealed + 1)
    data = files[last].replace(b"behind", b"bahind")
    target = MemoryDisk()
    result = salvage(MemoryDisk(files={**files, last: data}), target, log_id=LOG_ID, clock_ms=lambda: 8)
    recovered = opened(target).recovered
    assert (result.snapshot, recovered.snapshot_data) == (sealed, b"snapshot")
    assert result.missing == result.inspection.missing == ((behind[0], behind[0]),)
    assert [(record.ordinal, record.payload) for record in recovered.records] == [(behind[1], b"more")]


@pytest.mark.parametrize(("usable", "taken"), [((0, 1, 2), 2), ((0, 1), 1), ((0,), 0)])
def test_the_newest_snapshot_that_decodes_is_taken(usable: tuple[int, ...], taken: int) -> None:
    """An older one is there while a retirement is half done: segments behind it are gone already."""
    disk = MemoryDisk()
    log = opened(disk)
    sealed, behind = [], [b"first", b"second", b"third"]
    for payload in behind:
        log.append(9, payload)
        sealed.append(log.seal())
        log.store_snapshot(sealed[-1], b"up to " + payload)
    log.append(9, b"last")
    log.close()
    files = {name: disk.read(name) for name in disk.names() if name != CLOSED_NAME}
    for ordinal in [1, *[sealed[index] + 1 for index in range(taken)]]:
        del files[segment_name(ordinal)]
    target = MemoryDisk()
    result = salvage(
        MemoryDisk(files=files),
        target,
        log_id=LOG_ID,
        clock_ms=lambda: 8,
        accept_snapshot=lambda ordinal, data: data in [b"up to " + behind[index] for index in usable],
    )
    assert (result.snapshot, result.missing) == (sealed[taken], ())
    recovered = opened(target).recovered
    assert recovered.snapshot_data == b"up to " + behind[taken]
    assert [record.payload for record in recovered.records] == [*behind[taken + 1 :], b"last"]


def test_duplicates_are_counted_and_the_greater_epoch_wins() -> None:
    files = {**FILES, NAMES[-1]: FILES[NAMES[-1]] + FILES[NAMES[0]][FILES[NAMES[0]].index(b"\xfe\xfd", 2) + 2 :]}
    result, found = salvaged(files)
    assert found == RECORDS
    assert result.skipped_count > 0


def test_a_record_of_a_stale_writer_is_left_behind() -> None:
    last = inspect(MemoryDisk(files=FILES)).segments[-1].last_ordinal + 1
    behind = encode_record(last, last - 1, 0, 9, b"stale", seed_of(LOG_ID))
    result, found = salvaged({**FILES, NAMES[-1]: FILES[NAMES[-1]] + behind})
    assert found == RECORDS
    assert result.skipped_count == 1


def test_of_two_records_of_an_ordinal_the_greater_epoch_wins_and_the_next_writer_is_above_it() -> None:
    last = inspect(MemoryDisk(files=FILES)).segments[-1].last_ordinal + 1
    stale, valid = (encode_record(last, last - 1, epoch, 9, b"epoch %d" % epoch, seed_of(LOG_ID)) for epoch in (1, 5))
    damaged, target = MemoryDisk(files={**FILES, NAMES[-1]: FILES[NAMES[-1]] + stale + valid}), MemoryDisk()
    result = salvage(damaged, target, log_id=b"a fresh log's id", clock_ms=lambda: 8)
    log = opened(target)
    assert {record.ordinal: record.payload for record in log.recovered.records} == {**RECORDS, last: b"epoch 5"}
    assert (result.skipped_count, log.epoch) == (1, 6)  # no lock of that record's writer counts any more


def test_a_folder_that_holds_a_log_is_no_target() -> None:
    with pytest.raises(Refused, match="empty folder"):
        salvage(MemoryDisk(files=FILES), MemoryDisk(files=FILES), log_id=LOG_ID, clock_ms=lambda: 8)


def test_a_folder_without_a_log_is_reported_as_such() -> None:
    assert inspect(MemoryDisk(files={"notes.txt": b"", snapshot_name(3): b""})).segments == ()


def test_a_log_that_misses_more_than_a_copy_can_stand_in_for_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: data for name, data in FILES.items() if name != NAMES[1]}
    lost = int(NAMES[2][:16], 16) - int(NAMES[1][:16], 16)
    monkeypatch.setattr(salvages, "LOST_COUNT_MAX", lost)
    salvaged(files)
    monkeypatch.setattr(salvages, "LOST_COUNT_MAX", lost - 1)
    with pytest.raises(TooLarge, match="restore the missing segments"):
        salvaged(files)


def test_a_single_frame_without_a_header_is_no_record() -> None:
    """Any bytes are a record under some seed; it takes two that agree on one."""
    frame = DELIMITER + stuff(bytes(range(59, -1, -1))) + DELIMITER
    (found,) = inspect(MemoryDisk(files={segment_name(1): frame})).segments
    assert (found.record_count, found.header_valid) == (0, False)
