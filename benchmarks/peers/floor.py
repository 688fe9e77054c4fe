"""The floor: the least that any durable framework must do for W1 in Python.

Decode the message, change the state that a dictionary holds, encode state, output and dedupe record into one framed
record with a checksum, append it, flush after each message (`flush1`) or each 64 (`flush64`).  The log is filled with
zeros beforehand, because a file that grows makes every flush write the file system's journal too.  No claim, no lease,
no retry, no transaction, no recovery: nobody can offer the guarantee for less, so it tells how much of a system's cost
is the system's own.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from zlib import crc32

import msgspec

from outbox_bench.measure import Add, Added, Counter, Measurement, Stopwatch, expected_total, inputs, measured

SYSTEM = "floor"
VARIANTS = ("flush1", "flush64")
FLUSH_COUNTS = {"flush1": 1, "flush64": 64}

HEADER = struct.Struct("<II")
RECORD_BYTES_MAX = 256


class Record(msgspec.Struct, array_like=True):
    """What one message's commit must hold: its id, the changed state and the output."""

    id: str
    account: str
    state: Counter
    output: Added


decode_add = msgspec.json.Decoder(Add).decode
encode = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(Record).decode


def run(variant: str, folder: Path, message_count: int) -> Measurement:
    """Run W1 in `folder`, which must be fresh, and read the log back to check it."""
    every = FLUSH_COUNTS[variant]
    queue = [encode(message) for message in inputs(message_count)]
    write_durably(folder / "inputs", b"\n".join(queue))
    path = folder / "log"
    write_durably(path, bytes(RECORD_BYTES_MAX * message_count))
    log = os.open(path, os.O_WRONLY)
    try:
        watch = Stopwatch()
        latencies_s, flush_count = consume(queue, log, every)
        watch.stop()
    finally:
        os.close(log)
    verify(path, message_count)
    return measured(
        system=SYSTEM,
        variant=variant,
        in_flight=every,
        durable=True,
        watch=watch,
        latencies_s=latencies_s,
        flush_count=flush_count,
    )


def write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def consume(queue: list[bytes], log: int, every: int) -> tuple[list[float], int]:
    """Handle everything, `every` messages a flush; gives the latencies and the number of flushes."""
    clock, sync, pack = time.perf_counter, os.fdatasync, HEADER.pack
    states: dict[str, Counter] = {}
    seen: set[str] = set()
    latencies_s: list[float] = []
    flush_count = 0
    for first in range(0, len(queue), every):
        started = clock()
        pieces: list[bytes] = []
        batch = queue[first : first + every]
        for body in batch:
            message = decode_add(body)
            if message.id in seen:
                continue
            seen.add(message.id)
            state = states.get(message.account)
            if state is None:
                state = states[message.account] = Counter()
            state.total += message.amount
            state.changes += 1
            output = Added(message.id, message.account, state.total)
            payload = encode(Record(message.id, message.account, state, output))
            pieces += (pack(len(payload), crc32(payload)), payload)
        data = b"".join(pieces)
        if os.write(log, data) != len(data):
            raise OSError("short write to the log: the disk is full")
        sync(log)
        flush_count += 1
        latencies_s.extend([clock() - started] * len(batch))
    return latencies_s, flush_count


def verify(path: Path, message_count: int) -> None:
    """Read the log as a recovery would; a run that lost or doubled anything is no measurement."""
    data, at = path.read_bytes(), 0
    ids: set[str] = set()
    totals: dict[str, int] = {}
    while True:
        length, checksum = HEADER.unpack_from(data, at)
        if not length:
            break
        payload = data[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        record = decode_record(payload)
        if crc32(payload) != checksum or record.id in ids:
            raise AssertionError(f"floor: record of {record.id} is damaged or doubled; do not publish this run")
        ids.add(record.id)
        totals[record.account] = record.state.total
    if (len(ids), sum(totals.values())) != (message_count, expected_total(message_count)):
        raise AssertionError("floor: the log does not hold every message once; do not publish this run")
