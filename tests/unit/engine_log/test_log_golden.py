"""A log written by format version 1 is read for ever, and today's code still writes one byte for byte.

`golden-log-v1` was written before a witness was padded and a close left a mark, `golden-log-v1-closed` after.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox.engine.log.closed import CLOSED_NAME
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.segments import Limits
from outbox.engine.log.wal import Log

HISTORIES = Path(__file__).parents[2] / "histories"
BEFORE, TODAY = "golden-log-v1", "golden-log-v1-closed"
LOG_ID = bytes(range(16))
PAYLOADS = [b"", b"\xfe\xfd", b"a" * 252, b"plain", b"\xfe\xfd" * 20, b"b" * 700, b"tail\xfe", bytes(3)]


def golden(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (HISTORIES / folder).iterdir() if path.name != ".gitattributes"}


@pytest.mark.parametrize(("folder", "last_ordinal"), [(BEFORE, 20), (TODAY, 21)])
def test_the_golden_log_opens_with_everything_it_holds(folder: str, last_ordinal: int) -> None:
    log = Log.open(MemoryDisk(files=golden(folder)), log_id=bytes(16), clock_ms=lambda: 0)
    found = log.recovered
    assert (found.snapshot, found.snapshot_data) == (9, b"golden snapshot")
    assert [(record.type, record.payload) for record in found.records] == list(enumerate(PAYLOADS, 1))
    assert (found.log_id, found.epoch, found.clock_ms) == (LOG_ID, 2, 1_700_000_000_002)
    assert (found.cut_bytes, found.last_ordinal) == (0, last_ordinal)
    assert found.durable == 19 and (found.closed is not None) == (folder == TODAY)


@pytest.mark.parametrize("folder", [BEFORE, TODAY])
def test_the_golden_log_is_complete_without_its_snapshot(folder: str) -> None:
    disk = MemoryDisk(files=golden(folder))
    log = Log.open(disk, log_id=bytes(16), clock_ms=lambda: 0, accept_snapshot=lambda *_: False)
    assert [record.payload for record in log.recovered.records] == PAYLOADS * 2
    assert [record.epoch for record in log.recovered.records] == [1] * 8 + [2] * 8


def written() -> dict[str, bytes]:
    disk, clock = MemoryDisk(), iter(range(1_700_000_000_000, 1_700_000_000_100))
    for run in range(2):
        limits = Limits(segment_size_bytes=8192)
        log = Log.open(disk, log_id=LOG_ID, clock_ms=lambda: next(clock), limits=limits)
        for index, payload in enumerate(PAYLOADS):
            log.append(1 + index, payload)
            if index % 3 == 0:
                log.write()
                log.sync()
        if run == 0:
            log.store_snapshot(log.seal(), b"golden snapshot")
        log.close()
    return {name: disk.read(name) for name in disk.names()}


def test_the_same_calls_write_the_golden_log_byte_for_byte() -> None:
    assert written() == golden(TODAY)


def test_only_the_last_witness_and_the_mark_differ_from_before() -> None:
    today, before = golden(TODAY), golden(BEFORE)
    last = max(name for name in before if name.endswith(".log"))
    witness = before[last].rindex(b"\xfe\xfd", 0, -2)
    assert today[last].startswith(before[last][:witness])
    assert {name: data for name, data in today.items() if name not in (last, CLOSED_NAME)} == {
        name: data for name, data in before.items() if name != last
    }
