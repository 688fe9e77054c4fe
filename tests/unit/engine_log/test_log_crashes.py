"""The log dies at every disk call of its life, in every way a machine can die, also while it recovers.

One promise is checked throughout: what was acknowledged (synced) is recovered, in order, and what is recovered is a
prefix of what was appended.  Nothing else may come back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
from dataclasses import dataclass, field

import pytest

from outbox.engine.log.disk import Crash, MemoryDisk, SimulatedCrash
from outbox.engine.log.segments import Limits, Recovery
from outbox.engine.log.wal import Log
from outbox.errors import EngineStopped

PAGE_SIZE_BYTES = 32
SEGMENT_SIZE_BYTES = 200
ROOM_BYTES = 48
ALL_CRASHES = tuple(Crash)


def decoded(recovered: Recovery) -> list[str]:
    before: list[str] = json.loads(recovered.snapshot_data) if recovered.snapshot_data else []
    return before + [record.payload.decode("latin-1") for record in recovered.records]


def is_whole(_ordinal: int, data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def opened(disk: MemoryDisk, room_bytes: int = ROOM_BYTES) -> Log:
    limits = Limits(segment_size_bytes=SEGMENT_SIZE_BYTES, room_bytes=room_bytes)
    return Log.open(disk, log_id=b"0123456789abcdef", clock_ms=lambda: 7, limits=limits, accept_snapshot=is_whole)


@dataclass
class Life:
    """What one log was told, and what it promised to keep."""

    disk: MemoryDisk
    appended: list[str] = field(default_factory=list)
    acknowledged: int = 0
    room_bytes: int = ROOM_BYTES

    def open(self) -> Log:
        log = opened(self.disk, self.room_bytes)
        self.check(decoded(log.recovered))
        return log

    def check(self, found: list[str]) -> None:
        """Compare with what an open found, which from then on is the truth."""
        assert found[: self.acknowledged] == self.appended[: self.acknowledged], "an acknowledged record is gone"
        assert found == self.appended[: len(found)], "something came back that was never appended"
        self.appended, self.acknowledged = found, len(found)

    def append(self, log: Log, text: str) -> None:
        self.appended.append(text)
        log.append(9, text.encode("latin-1"))

    def sync(self, log: Log) -> None:
        log.write()
        log.sync()
        assert log.synced == log.appended
        self.acknowledged = len(self.appended)

    def compact(self, log: Log) -> None:
        sealed = log.seal()
        self.acknowledged = len(self.appended)
        log.store_snapshot(sealed, json.dumps(self.appended).encode())
        log.retire(sealed)

    def live(self) -> None:
        """Open, append, rotate, compact, close, and open again with what is left over."""
        for run in range(2):
            log = self.open()
            for number in range(6):
                self.append(log, f"{run}.{number}.\xfe\xfd" + "x" * (15 * number))
                log.write()
                if number % 3 == 1:
                    self.sync(log)
            if run == 0:
                self.compact(log)
            self.append(log, "behind the snapshot")
            self.sync(log)
            self.append(log, "")
            log.close()
            self.acknowledged = len(self.appended)

    def after(self, crash: Crash, chance: random.Random) -> Life:
        return Life(self.disk.crash(crash, chance), list(self.appended), self.acknowledged, self.room_bytes)


def call_count(room_bytes: int = ROOM_BYTES) -> int:
    life = Life(MemoryDisk(), room_bytes=room_bytes)
    life.live()
    return len(life.disk.calls)


CALLS = call_count()


def crashed_at(call: int, room_bytes: int = ROOM_BYTES) -> Life:
    life = Life(MemoryDisk(page_size_bytes=PAGE_SIZE_BYTES), room_bytes=room_bytes)
    life.disk.crash_before(call)
    with pytest.raises(SimulatedCrash):
        life.live()
    return life


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES, SEGMENT_SIZE_BYTES])
@pytest.mark.parametrize("crash", ALL_CRASHES)
def test_a_crash_before_any_disk_call_loses_nothing_acknowledged(crash: Crash, room_bytes: int) -> None:
    for call in range(call_count(room_bytes)):
        life = crashed_at(call, room_bytes)
        for seed in range(4):
            life.after(crash, random.Random(seed)).open()


@pytest.mark.parametrize("crash", ALL_CRASHES)
def test_what_an_open_served_survives_a_power_loss_right_behind_it(crash: Crash) -> None:
    for call in range(CALLS):
        second = crashed_at(call).after(crash, random.Random(call))
        log = second.open()
        second.append(log, "after the crash")
        second.sync(log)
        third = second.after(Crash.POWER, random.Random(call))
        third.open()
        assert third.appended[-1] == "after the crash"


@pytest.mark.parametrize("crash", ALL_CRASHES)
@pytest.mark.parametrize("again", [Crash.PROCESS, Crash.POWER, Crash.TORN, Crash.RESIZED])
def test_a_crash_during_recovery_loses_nothing_acknowledged(crash: Crash, again: Crash) -> None:
    for call in range(0, CALLS, 2):
        life = crashed_at(call)
        for recovery_call in range(20):
            second = life.after(crash, random.Random(call))
            second.disk.crash_before(recovery_call)
            try:
                second.open()
            except SimulatedCrash:
                second.after(again, random.Random(recovery_call)).open()
            else:
                break
        else:
            pytest.fail("recovery made more disk calls than this test follows")


@pytest.mark.parametrize("verb", ["write", "reserve", "trim", "sync", "create", "rename", "remove", "sync_dir"])
@pytest.mark.parametrize("crash", [Crash.PROCESS, Crash.POWER, Crash.ZEROED])
def test_a_failed_disk_call_stops_the_log_for_good_and_loses_nothing_acknowledged(verb: str, crash: Crash) -> None:
    for after in range(CALLS):
        life = Life(MemoryDisk(page_size_bytes=PAGE_SIZE_BYTES))
        life.disk.fail(verb, after=after, written_bytes=after % 40)
        try:
            life.live()
        except EngineStopped as stopped:
            assert "start again" in str(stopped)
        else:
            assert after >= life.disk.calls.count(verb)
            return
        life.after(crash, random.Random(after)).open()


@pytest.mark.parametrize("seed", range(60))
def test_a_drawn_life_of_many_crashes_loses_nothing_acknowledged(seed: int) -> None:
    chance = random.Random(seed)
    life = Life(MemoryDisk(page_size_bytes=PAGE_SIZE_BYTES))
    for _ in range(8):
        life.disk.crash_before(chance.randrange(60))
        if chance.random() < 0.3:
            verb, error = chance.choice(["write", "reserve", "trim", "sync"]), chance.choice([errno.EIO, errno.ENOSPC])
            life.disk.fail(verb, after=chance.randrange(6), error=error, written_bytes=9)
        with contextlib.suppress(SimulatedCrash, EngineStopped):
            drawn_steps(life, chance)
        life = life.after(chance.choice(ALL_CRASHES), chance)
    life.open()


def drawn_steps(life: Life, chance: random.Random) -> None:
    log = life.open()
    for number in range(chance.randrange(40)):
        match chance.randrange(10):
            case 0 | 1:
                life.sync(log)
            case 2 | 3:
                log.write()
            case 4 if chance.random() < 0.3:
                life.compact(log)
            case 5 if log.synced == log.appended:
                log.witness()
            case _:
                life.append(log, f"{number}" + chance.choice(["", "\xfe\xfd", "z" * 90, "\x00" * 40]))


def test_bytes_that_a_failed_sync_marked_clean_are_written_anew_by_the_next_open() -> None:
    life = Life(MemoryDisk())
    log = life.open()
    life.append(log, "readable but not on the platter")
    log.write()
    life.disk.fail("sync")
    with pytest.raises(EngineStopped):
        log.sync()
    second = life.after(Crash.PROCESS, random.Random(0))
    second.open()
    assert second.appended == ["readable but not on the platter"]
    third = second.after(Crash.POWER, random.Random(0))
    third.open()
    assert third.appended == ["readable but not on the platter"]


def test_the_same_seed_draws_the_same_crash() -> None:
    life = crashed_at(CALLS // 2)
    images = [life.disk.crash(Crash.TORN, random.Random(5)) for _ in range(2)]
    contents = [{name: image.read(name) for name in image.names()} for image in images]
    assert contents[0] == contents[1]
