"""A log written by format version 1 is read for ever, and today's code still writes it byte for byte."""

from __future__ import annotations

from pathlib import Path

from outbox.engine.disk import MemoryDisk
from outbox.engine.segments import Limits
from outbox.engine.wal import Log

FOLDER = Path(__file__).parents[2] / "histories" / "golden-log-v1"
LOG_ID = bytes(range(16))
PAYLOADS = [b"", b"\xfe\xfd", b"a" * 252, b"plain", b"\xfe\xfd" * 20, b"b" * 700, b"tail\xfe", bytes(3)]


def golden() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in {".log", ".snapshot"}}


def test_the_golden_log_opens_with_everything_it_holds() -> None:
    log = Log.open(MemoryDisk(files=golden()), log_id=bytes(16), clock_ms=lambda: 0)
    found = log.recovered
    assert (found.snapshot, found.snapshot_data) == (9, b"golden snapshot")
    assert [(record.type, record.payload) for record in found.records] == list(enumerate(PAYLOADS, 1))
    assert (found.log_id, found.epoch, found.clock_ms) == (LOG_ID, 2, 1_700_000_000_002)
    assert (found.cut_bytes, found.last_ordinal, found.durable) == (0, 20, 19)


def test_the_golden_log_is_complete_without_its_snapshot() -> None:
    log = Log.open(MemoryDisk(files=golden()), log_id=bytes(16), clock_ms=lambda: 0, accept_snapshot=lambda *_: False)
    assert [record.payload for record in log.recovered.records] == PAYLOADS * 2
    assert [record.epoch for record in log.recovered.records] == [1] * 8 + [2] * 8


def test_the_same_calls_write_the_golden_log_byte_for_byte() -> None:
    disk, clock = MemoryDisk(), iter(range(1_700_000_000_000, 1_700_000_000_100))
    for run in range(2):
        limits = Limits(segment_size_bytes=2048)
        log = Log.open(disk, log_id=LOG_ID, clock_ms=lambda: next(clock), limits=limits)
        for index, payload in enumerate(PAYLOADS):
            log.append(1 + index, payload)
            if index % 3 == 0:
                log.write()
                log.sync()
        if run == 0:
            log.store_snapshot(log.seal(), b"golden snapshot")
        log.close()
    assert {name: disk.read(name) for name in disk.names()} == golden()
