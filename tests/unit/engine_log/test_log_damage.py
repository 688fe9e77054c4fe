"""Damage by hand, at every place: unsynced tail is cut, anything that may have been acknowledged is refused.

The expectation is computed from the places of the records in the intact bytes, not by the code under test: a record
is hit when a byte of it or of a delimiter beside it changed, the greatest `durable` of the records that were not hit
decides, and the first ordinal that was hit is cut or refused.  Zeros at the end of the file count as nothing, they are
the room that a live segment takes ahead of its records; everything is tried with and without more of them.

This is a log that was killed at work; one at rest, idle or closed, is in `test_log_closed`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbox.engine.log.disk import Crash, MemoryDisk
from outbox.engine.log.framing import Record, encode_record, end_of, scan, seed_of
from outbox.engine.log.segments import Header, segment_name, segment_ordinals
from outbox.engine.log.wal import Log
from outbox.errors import CorruptRecord, FormatTooNew

LOG_ID = b"0123456789abcdef"
SEED = seed_of(LOG_ID)


def opened(disk: MemoryDisk) -> Log:
    return Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7)


def files_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: disk.read(name) for name in disk.names()}


def with_tail() -> tuple[str, dict[str, bytes], list[Record]]:
    """Two segments; the last one: header 6, records 7, 8 synced and told so by 9; 10 to 12 unsynced."""
    disk = MemoryDisk()
    log = opened(disk)
    for text in (b"one", b"two", b"three", b"four"):
        log.append(9, text)
    log.write()
    disk = disk.crash(Crash.PROCESS)
    log = opened(disk)
    for number in range(7, 13):
        log.append(9, b"%d \xfe\xfd" % number * 3)
        log.write()
        if number == 8:
            log.sync()
    files = files_of(disk.crash(Crash.PROCESS))
    name = segment_name(segment_ordinals(list(files))[-1])
    files[name] = files[name].rstrip(b"\0")
    header_end = files[name].index(b"\xfe\xfd", 2)
    records = scan(files[name], SEED, record_size_max_bytes=1000, start=header_end).records
    assert [(record.ordinal, record.durable) for record in records] == [
        (7, 6), (8, 6), (9, 8), (10, 8), (11, 8), (12, 8)
    ]  # fmt: skip
    header = Record(6, 5, 2, 0, b"", 2)
    return name, files, [header, *records]


NAME, FILES, RECORDS = with_tail()
LAST = FILES[NAME]


def changed_in(data: bytes) -> Callable[[Record], bool]:
    """Tell of a record whether its bytes or those of a delimiter beside it are others in `data`."""

    def hit(record: Record) -> bool:
        return data[record.offset - 2 : end_of(LAST, record) + 2] != LAST[record.offset - 2 : end_of(LAST, record) + 2]

    return hit


def split_at(place: int) -> Callable[[Record], bool]:
    """Tell of a record whether bytes inserted at `place` are inside it or a delimiter beside it."""
    return lambda record: record.offset - 2 < place < end_of(LAST, record) + 2


def among(ordinals: set[int]) -> Callable[[Record], bool]:
    return lambda record: record.ordinal in ordinals


def expect(data: bytes, hit: Callable[[Record], bool]) -> None:
    """Open the log with `data` as its last segment, with and without room, and compare with what the rule says."""
    for room in (b"", bytes(100)):
        expect_exactly(data + room, hit)


def expect_exactly(data: bytes, hit: Callable[[Record], bool]) -> None:
    whole = [record for record in RECORDS if not hit(record)]
    first_hit = next((record.ordinal for record in RECORDS if hit(record)), RECORDS[-1].ordinal + 1)
    disk = MemoryDisk(files={**FILES, NAME: data})
    if first_hit == RECORDS[0].ordinal or first_hit <= max(record.durable for record in whole):
        before = files_of(disk)
        with pytest.raises(CorruptRecord, match=r"outbox log salvage"):
            opened(disk)
        assert files_of(disk) == before, "a refused log is left as it was"
        return
    log = opened(disk)
    assert [record.ordinal for record in log.recovered.records if record.ordinal > 5] == list(range(7, first_hit))
    kept_bytes = end_of(LAST, RECORDS[first_hit - 7]) + 2
    assert log.recovered.cut_bytes == len(data.rstrip(b"\0")) - kept_bytes
    log.append(9, b"after")
    log.close()
    again = opened(disk)
    assert again.recovered.records[-1].payload == b"after"
    assert again.recovered.cut_bytes == 0


def test_a_tail_torn_at_any_byte_is_cut() -> None:
    for size in range(len(LAST) + 1):
        expect(LAST[:size], changed_in(LAST[:size]))


def test_a_tail_of_zeros_from_any_byte_is_cut() -> None:
    for size in range(len(LAST)):
        zeroed = LAST[:size] + bytes(len(LAST) - size)
        expect(zeroed, changed_in(zeroed))


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_at_any_place_is_cut_or_refused(flip: int) -> None:
    for place in range(len(LAST)):
        data = bytearray(LAST)
        data[place] ^= flip
        expect(bytes(data), changed_in(bytes(data)))


def test_one_stray_byte_at_any_place_is_cut_or_refused() -> None:
    for place in range(1, len(LAST) + 1):
        data = LAST[:place] + b"\x00" + LAST[place:]
        expect(data, split_at(place))


def test_a_delimiter_injected_at_any_place_is_cut_or_refused() -> None:
    for record in RECORDS:
        for place in range(record.offset + 1, end_of(LAST, record)):
            if LAST[place] != 0xFD and LAST[place - 1] != 0xFE:
                data = LAST[:place] + b"\xfe\xfd" + LAST[place:]
                expect(data, split_at(place))


def test_a_lost_page_is_cut_with_the_valid_records_behind_it() -> None:
    eleven = RECORDS[5]
    hole = LAST[: eleven.offset] + bytes(end_of(LAST, eleven) - eleven.offset) + LAST[end_of(LAST, eleven) :]
    expect(hole, changed_in(hole))


def test_a_missing_ordinal_above_the_synced_one_is_cut_and_below_it_refused() -> None:
    for gone in RECORDS[1:]:
        data = LAST[: gone.offset] + LAST[end_of(LAST, gone) + 2 :]
        expect(data, among({gone.ordinal}))


def test_garbage_behind_the_last_record_costs_nothing() -> None:
    for tail in (b"\xfe", b"\x00", bytes(5000), b"\xfe\xfd", b"\xfe\xfd\xfe\xfd", b"\xfc" * 300, b"rubbish\xfe\xfd"):
        log = opened(MemoryDisk(files={**FILES, NAME: LAST + tail}))
        assert log.recovered.records[-1].ordinal == 12
        assert log.recovered.cut_bytes == len(tail.rstrip(b"\0"))


def test_a_duplicate_ordinal_is_refused_even_in_the_tail() -> None:
    for ordinal, epoch in ((12, 2), (12, 3), (7, 2), (2, 2)):
        double = encode_record(ordinal, 0, epoch, 9, b"other", SEED)
        with pytest.raises(CorruptRecord, match="duplicate ordinal"):
            opened(MemoryDisk(files={**FILES, NAME: LAST + double}))
        torn_before = LAST[: end_of(LAST, RECORDS[-1]) - 1] + b"\xfe\xfd" + double
        if ordinal != 12:
            with pytest.raises(CorruptRecord, match="duplicate ordinal"):
                opened(MemoryDisk(files={**FILES, NAME: torn_before}))


def test_a_record_of_a_stale_writer_is_not_taken() -> None:
    stale = encode_record(13, 8, 1, 9, b"stale", SEED)
    log = opened(MemoryDisk(files={**FILES, NAME: LAST + stale}))
    assert log.recovered.last_ordinal == 12
    confirmed = encode_record(14, 13, 2, 9, b"its successor", SEED)
    with pytest.raises(CorruptRecord, match="stale"):
        opened(MemoryDisk(files={**FILES, NAME: LAST + stale + confirmed}))


def test_any_damage_in_a_sealed_segment_is_refused() -> None:
    first = segment_name(1)
    for place in range(len(FILES[first])):
        data = bytearray(FILES[first])
        data[place] ^= 0x10
        with pytest.raises(CorruptRecord, match=first):
            opened(MemoryDisk(files={**FILES, first: bytes(data)}))
    for size in range(len(FILES[first])):
        with pytest.raises(CorruptRecord):
            opened(MemoryDisk(files={**FILES, first: FILES[first][:size]}))


def test_a_missing_segment_is_refused_first_or_middle() -> None:
    disk = MemoryDisk()
    for _ in range(3):
        log = opened(disk)
        log.append(9, b"record")
        log.close()
    files = files_of(disk)
    for name in [name for name in files if name.endswith(".log")][:-1]:
        with pytest.raises(CorruptRecord, match="missing"):
            opened(MemoryDisk(files={other: data for other, data in files.items() if other != name}))


def test_a_segment_under_another_name_or_of_another_log_is_refused() -> None:
    other = MemoryDisk()
    Log.open(other, log_id=b"another log's id", clock_ms=lambda: 7).close()
    foreign = {**FILES, segment_name(13): other.read(segment_name(1))}
    with pytest.raises(CorruptRecord, match="another ordinal"):
        opened(MemoryDisk(files=foreign))
    header = encode_record(13, 12, 3, 0, Header(b"another log's id", 7).encoded(), 0)
    with pytest.raises(CorruptRecord, match="another log"):
        opened(MemoryDisk(files={**FILES, segment_name(13): b"\xfe\xfd" + header}))


def test_a_later_format_is_distinguished_from_damage() -> None:
    header = encode_record(1, 0, 1, 0, Header(LOG_ID, 7, version=2).encoded() + b"more", 0)
    with pytest.raises(FormatTooNew, match="upgrade"):
        opened(MemoryDisk(files={segment_name(1): b"\xfe\xfd" + header}))
