"""A log at rest, idle or closed, never loses its last acknowledged record to one bad byte, bit or block unseen.

Damage is done at every place, the delimiters between records included, and the outcome is one of two: refused, or
everything is there.  Where the mark of a clean close is beside it, every truncation is refused too, and the mark itself
never speaks against a log that is whole, whenever the machine died and wherever it came from.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from outbox.engine.log.closed import CLOSED_NAME, Closed, store_closed
from outbox.engine.log.disk import Crash, MemoryDisk, SimulatedCrash
from outbox.engine.log.salvage import inspect, salvage
from outbox.engine.log.segments import Limits, recover, segment_name, segment_ordinals
from outbox.engine.log.wal import Log
from outbox.errors import CorruptRecord, EngineStopped, Refused

LOG_ID = b"0123456789abcdef"
FLUSHES = ((b"f" * 300,), (b"one", b"two \xfe\xfd" * 3), (b"", b"c" * 700), (b"the last thing said",))
PAYLOADS = [payload for flush in FLUSHES for payload in flush]
BLOCK_SIZES_BYTES = (512, 4096)
LIMITS = Limits(room_bytes=6_000)
FORMS = ("idle", "copied", "closed")
"""Killed when idle; closed, and copied without its mark; closed."""

Files = dict[str, bytes]


def opened(disk: MemoryDisk) -> Log:
    return Log.open(disk, log_id=LOG_ID, clock_ms=lambda: 7, limits=LIMITS)


def files_of(disk: MemoryDisk) -> Files:
    return {name: disk.read(name) for name in disk.names()}


def flush(log: Log, *payloads: bytes) -> None:
    for payload in payloads:
        log.append(9, payload)
    log.write()
    log.sync()


def last_of(files: Files) -> str:
    return segment_name(segment_ordinals(list(files))[-1])


@cache
def at_rest(form: str) -> tuple[Files, tuple[bytes, ...]]:
    """The files, and what the last segment's held after each of the flushes before."""
    disk, before = MemoryDisk(), []
    log = opened(disk)
    for payloads in FLUSHES:
        before.append(disk.read(segment_name(1)))
        flush(log, *payloads)
    before.append(disk.read(segment_name(1)))
    if form == "idle":
        log.witness()
        flush(log)
    else:
        log.close()
    files = files_of(disk)
    if form == "copied":
        del files[CLOSED_NAME]
    return files, tuple(before)


def verdict(files: Files) -> str:
    """What an open says of these files: refused, whole, or something is lost."""
    try:
        found = recover(MemoryDisk(files=files), LIMITS)
    except CorruptRecord:
        return "refused"
    return "whole" if [record.payload for record in found.records] == PAYLOADS else "lost"


def verdicts(form: str, damaged: Iterable[bytes]) -> Counter[str]:
    """The outcomes of every form of damage to the last segment that changes it."""
    files, _ = at_rest(form)
    name = last_of(files)
    return Counter(verdict({**files, name: data}) for data in damaged if data != files[name])


def check(form: str, found: Counter[str]) -> None:
    assert not found["lost"] and found["refused"], found
    if form == "closed":
        assert not found["whole"], "what differs from its mark is refused"


@pytest.mark.parametrize("form", FORMS)
def test_a_flipped_bit_at_any_place_of_a_log_at_rest_loses_nothing_unseen(form: str) -> None:
    data = at_rest(form)[0][segment_name(1)].rstrip(b"\0")

    def flipped() -> Iterator[bytes]:
        for place in range(len(data)):
            in_padding = not any(data[max(0, place - 8) : place + 8])
            for flip in (1, 0xFF) if in_padding else (1, 2, 4, 8, 16, 32, 64, 128, 0xFF):
                yield data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]

    check(form, verdicts(form, flipped()))


@pytest.mark.parametrize("size_bytes", BLOCK_SIZES_BYTES)
@pytest.mark.parametrize("form", FORMS)
def test_a_block_of_zeros_at_any_place_of_a_log_at_rest_loses_nothing_unseen(form: str, size_bytes: int) -> None:
    data = at_rest(form)[0][segment_name(1)]

    def holed() -> Iterator[bytes]:
        for place in (*range(0, len(data), 1 if size_bytes == 512 else 3), *range(0, len(data), 512)):
            yield (data[:place] + bytes(size_bytes) + data[place + size_bytes :])[: len(data)]

    check(form, verdicts(form, holed()))


@pytest.mark.parametrize("size_bytes", BLOCK_SIZES_BYTES)
@pytest.mark.parametrize("form", FORMS)
def test_a_block_with_the_content_of_before_loses_nothing_unseen(form: str, size_bytes: int) -> None:
    files, before = at_rest(form)
    data = files[segment_name(1)]

    def stale() -> Iterator[bytes]:
        for old in before:
            padded = old.ljust(len(data), b"\0")
            for place in (*range(0, len(data), 11), *range(0, len(data), 512)):
                yield data[:place] + padded[place : min(place + size_bytes, len(data))] + data[place + size_bytes :]

    check(form, verdicts(form, stale()))


@pytest.mark.parametrize("form", FORMS)
def test_a_block_with_the_content_of_another_loses_nothing_unseen(form: str) -> None:
    data = at_rest(form)[0][segment_name(1)].ljust(4096 * 2, b"\0")
    blocks = [data[place : place + 512] for place in range(0, len(data), 512)]

    def swapped() -> Iterator[bytes]:
        for index in range(len(blocks)):
            for other in range(len(blocks)):
                changed = [*blocks]
                changed[index] = blocks[other]
                yield b"".join(changed)
                changed[other] = blocks[index]
                yield b"".join(changed)

    found = verdicts(form, (damaged for damaged in swapped() if damaged != data))
    assert not found["lost"] and found["refused"], found


def test_a_closed_log_that_was_cut_anywhere_is_refused_and_left_as_it_was() -> None:
    files, _ = at_rest("closed")
    data = files[segment_name(1)]
    for size in range(len(data)):
        for cut in (data[:size], data[:size] + bytes(len(data) - size)):
            assert cut.rstrip(b"\0") == data or verdict({**files, segment_name(1): cut}) == "refused", size
    disk = MemoryDisk(files={**files, segment_name(1): data[:-4200]})
    before = files_of(disk)
    with pytest.raises(CorruptRecord, match="closed at ordinal"):
        opened(disk)
    assert files_of(disk) == before


def test_what_stands_behind_a_closed_log_is_refused_and_zeros_are_room() -> None:
    files, _ = at_rest("closed")
    data = files[segment_name(1)]
    for tail, outcome in ((bytes(5_000), "whole"), (b"\xfe\xfd", "refused"), (b"x", "refused"), (data, "refused")):
        assert verdict({**files, segment_name(1): data + tail}) == outcome


def test_a_log_that_was_cut_without_its_mark_gives_a_prefix() -> None:
    files, _ = at_rest("copied")
    data = files[segment_name(1)]
    for size in range(60, len(data), 7):
        found = recover(MemoryDisk(files={segment_name(1): data[:size]}), LIMITS).records
        assert [record.payload for record in found] == PAYLOADS[: len(found)]


# The mark


def closed_disk() -> MemoryDisk:
    return MemoryDisk(files=at_rest("closed")[0])


def cuts(disk: MemoryDisk) -> Iterator[Files]:
    """The folder with the segment that was closed cut at many places, at the borders of records among them."""
    files = files_of(disk)
    data = files[segment_name(1)]
    ends = [place for place in range(len(data) - 2) if data[place : place + 2] == b"\xfe\xfd"]
    for size in sorted({*range(0, len(data), 401), *[end + 2 for end in ends], *ends}):
        yield {**files, segment_name(1): data[:size]}


def test_closing_leaves_the_mark_behind_the_sync_of_what_it_names_and_opening_removes_it() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flush(log, b"one")
    before = len(disk.calls)
    log.close()
    assert disk.calls[before:] == ["write", "trim", "sync", "create", "write", "sync", "rename", "sync_dir"]
    assert CLOSED_NAME in disk.names()
    before = len(disk.calls)
    opened(disk)
    assert disk.calls[before:][-2:] == ["remove", "sync_dir"]
    assert CLOSED_NAME not in disk.crash(Crash.POWER).names()


@pytest.mark.parametrize("crash", list(Crash))
def test_a_closed_log_refuses_a_cut_after_a_power_loss_too(crash: Crash) -> None:
    disk = MemoryDisk(page_size_bytes=32)
    log = opened(disk)
    for payloads in FLUSHES:
        flush(log, *payloads)
    log.close()
    for seed in range(4):
        found = disk.crash(crash, random.Random(seed))
        assert verdict(files_of(found)) == "whole"
        assert {verdict(cut) for cut in cuts(found)} == {"refused"}


@pytest.mark.parametrize("crash", list(Crash))
def test_a_crash_at_any_call_of_a_close_leaves_a_log_that_opens(crash: Crash) -> None:
    for call in range(20):
        disk = MemoryDisk(page_size_bytes=32)
        log = opened(disk)
        for payloads in FLUSHES:
            flush(log, *payloads)
        disk.crash_before(call)
        try:
            log.close()
        except SimulatedCrash:
            for seed in range(6):
                assert verdict(files_of(disk.crash(crash, random.Random(seed)))) == "whole"
        else:
            return
    pytest.fail("a close made more disk calls than this test follows")


@pytest.mark.parametrize("crash", list(Crash))
def test_a_crash_at_any_call_of_the_next_open_hides_no_cut_and_refuses_nothing_that_is_whole(crash: Crash) -> None:
    for call in range(30):
        disk = closed_disk()
        disk.crash_before(call)
        try:
            log = opened(disk)
            flush(log, b"more")
        except SimulatedCrash:
            for seed in range(6):
                found = disk.crash(crash, random.Random(seed))
                again = opened(MemoryDisk(files=files_of(found)))
                assert [record.payload for record in again.recovered.records][: len(PAYLOADS)] == PAYLOADS
                assert {verdict(cut) for cut in cuts(found)} == {"refused"}
        else:
            return
    pytest.fail("an open made more disk calls than this test follows")


def test_a_log_that_lost_the_segment_that_its_mark_names_is_refused_and_left_as_it_was() -> None:
    disk = closed_disk()
    newer = opened(disk)
    flush(newer, b"what is gone")
    newer.close()
    kept = {name: data for name, data in files_of(disk).items() if name != last_of(files_of(disk))}
    short = MemoryDisk(files=kept)
    with pytest.raises(CorruptRecord, match=r"\.log.*missing.*restore a backup.*salvage"):
        opened(short)
    assert files_of(short) == kept
    found = inspect(short)
    assert "(was synced)" in found.text and found.closed == found.missing[-1][1] == newer.synced
    target = MemoryDisk()
    assert salvage(short, target, log_id=LOG_ID, clock_ms=lambda: 8).missing == found.missing
    assert [record.payload for record in recover(target, LIMITS).records] == PAYLOADS


@pytest.mark.parametrize(
    ("mark", "refused"),
    [(Closed(1, 2, 9, 9), True), (Closed(2, 1, 9, 9), True), (Closed(1, 0, 9, 9), False), (Closed(0, 1, 9, 9), False)],
    ids=["a later epoch", "a later segment", "an earlier epoch", "an earlier segment"],
)
def test_a_mark_of_a_later_writer_or_segment_is_refused_and_one_of_an_earlier_is_not(
    mark: Closed, refused: bool
) -> None:
    disk = MemoryDisk(files=at_rest("copied")[0])
    store_closed(disk, mark, LOG_ID)
    assert verdict(files_of(disk)) == ("refused" if refused else "whole")


@pytest.mark.parametrize(
    ("mark", "log_id"),
    [(Closed(1, 1, 9, 9), b"another log's id"), (Closed(1, 0, 9, 9), LOG_ID), (Closed(0, 1, 9, 9), LOG_ID)],
    ids=["another log", "an earlier epoch", "an earlier segment"],
)
def test_a_mark_of_something_else_does_not_count_and_is_removed(mark: Closed, log_id: bytes) -> None:
    disk = MemoryDisk(files=at_rest("copied")[0])
    store_closed(disk, mark, log_id)
    assert verdict(files_of(disk)) == "whole"
    assert verdict({**files_of(disk), segment_name(1): disk.read(segment_name(1))[:-2]}) == "whole"
    opened(disk)
    assert CLOSED_NAME not in disk.crash(Crash.POWER).names()


def test_a_damaged_mark_is_none() -> None:
    files, _ = at_rest("closed")
    mark = files[CLOSED_NAME]
    for place in range(len(mark)):
        for flip in (1, 128, 0xFF):
            damaged = mark[:place] + bytes([mark[place] ^ flip]) + mark[place + 1 :]
            assert verdict({**files, CLOSED_NAME: damaged}) == "whole"
    for data in (b"", mark[:-1], mark + b"\0", bytes(len(mark)), b"\xff" * 4_000):
        disk = MemoryDisk(files={**files, CLOSED_NAME: data})
        assert len(opened(disk).recovered.records) == len(PAYLOADS)
        assert CLOSED_NAME not in disk.names()


def test_a_mark_alone_in_a_folder_says_that_its_log_is_gone() -> None:
    disk = MemoryDisk(files={CLOSED_NAME: at_rest("closed")[0][CLOSED_NAME]})
    before = files_of(disk)
    with pytest.raises(CorruptRecord, match=r"closed shows that there was one.*restore a backup.*--new"):
        opened(disk)
    assert "no file of a log is there" in inspect(disk).text
    with pytest.raises(Refused, match="no file of a log is left to salvage"):
        salvage(disk, MemoryDisk(), log_id=LOG_ID, clock_ms=lambda: 8)
    assert files_of(disk) == before


def new_log(disk: MemoryDisk) -> Log:
    return Log.open(disk, log_id=b"another log's id", clock_ms=lambda: 7, limits=LIMITS, new=True)


@pytest.mark.parametrize("crash", list(Crash))
def test_a_new_log_keeps_the_mark_of_the_lost_one_aside_whenever_it_crashes(crash: Crash) -> None:
    mark = at_rest("closed")[0][CLOSED_NAME]
    for call in range(30):
        disk = MemoryDisk(files={CLOSED_NAME: mark})
        disk.crash_before(call)
        try:
            flush(new_log(disk), b"one")
        except SimulatedCrash:
            for seed in range(4):
                found = disk.crash(crash, random.Random(seed))
                assert mark in files_of(found).values()
        else:
            assert files_of(disk)[f"{CLOSED_NAME}.before-7"] == mark
            assert [record.payload for record in recover(disk, LIMITS).records] == [b"one"]
            return
    pytest.fail("an open made more disk calls than this test follows")


def test_a_new_log_never_takes_the_place_of_one() -> None:
    for form in FORMS:
        disk = MemoryDisk(files=at_rest(form)[0])
        before = files_of(disk)
        with pytest.raises(Refused, match="holds a log"):
            new_log(disk)
        assert files_of(disk) == before
    empty = MemoryDisk()
    flush(new_log(empty), b"one")
    assert len(recover(empty, LIMITS).records) == 1


def test_a_log_that_stopped_leaves_no_mark() -> None:
    for stop in ("sync", "abandon"):
        disk = MemoryDisk()
        log = opened(disk)
        log.append(9, b"one")
        if stop == "abandon":
            log.abandon("for a reason of its own")
        else:
            disk.fail("sync")
            with pytest.raises(Exception, match="injected"):
                flush(log)
        log.close()
        assert CLOSED_NAME not in disk.names()


@pytest.mark.parametrize("verb", ["create", "write", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_closes_without_a_mark_and_one_that_fails_is_reported(verb: str, error: int) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flush(log, *PAYLOADS)
    disk.fail(verb, after={"write": 1, "sync": 1}.get(verb, 0), error=error)  # behind those of the witness
    if error == errno.EIO:
        with pytest.raises(EngineStopped, match="injected"):
            log.close()
    else:
        log.close()
    for found in (disk.crash(Crash.POWER), disk):
        assert verdict(files_of(found)) == "whole"
    opened(disk)


def test_snapshots_and_retirement_leave_the_mark_true() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    flush(log, *PAYLOADS)
    sealed = log.seal()
    log.store_snapshot(sealed, b"everything")
    log.retire(sealed)
    flush(log, b"behind")
    log.close()
    files = files_of(disk)
    last = last_of(files)
    assert [record.payload for record in opened(MemoryDisk(files=files)).recovered.records] == [b"behind"]
    for size in range(60, len(files[last])):
        with pytest.raises(CorruptRecord):
            recover(MemoryDisk(files={**files, last: files[last][:size]}), LIMITS)


def test_inspection_and_salvage_report_what_a_cut_took() -> None:
    files, _ = at_rest("closed")
    assert "closed at ordinal" in inspect(MemoryDisk(files=files)).text
    assert "closed" not in inspect(MemoryDisk(files=at_rest("copied")[0])).text
    data = files[segment_name(1)]
    at = data.index(b"the last thing said")
    cut = MemoryDisk(files={**files, segment_name(1): data[:at]})
    found = inspect(cut)
    last = len(PAYLOADS) + 1
    assert found.missing == ((last, last + 2),) and found.closed == last + 2
    assert f"missing: ordinals {last}..{last + 2} (was synced)" in found.text
    target = MemoryDisk()
    assert salvage(cut, target, log_id=LOG_ID, clock_ms=lambda: 8).missing == found.missing
    assert [record.payload for record in recover(target, LIMITS).records] == PAYLOADS[:-1]


def test_a_salvaged_copy_is_refused_when_it_is_cut() -> None:
    target = MemoryDisk()
    salvage(closed_disk(), target, log_id=LOG_ID, clock_ms=lambda: 8)
    assert verdict(files_of(target)) == "whole"
    assert {verdict(cut) for cut in cuts(target)} == {"refused"}
