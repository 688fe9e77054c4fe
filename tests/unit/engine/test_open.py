"""Opening: whose clock is believed, whose snapshot is taken over, and what is left alone."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest

from outbox.engine import engine
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import snapshot
from outbox.engine.log.disk import MemoryDisk, keeps_modes
from outbox.engine.log.memory_disk import Crash
from outbox.errors import CorruptRecord, EngineStopped, OutboxError, Refused
from outbox.message import Message
from outbox.testing import START_S, VirtualClock

DAY_S = 86_400


def opened(disk: MemoryDisk, clock: VirtualClock, **options: object) -> Engine:
    return Engine.open(disk, clock=clock, log_id=b"0" * 16, **options)  # type: ignore[arg-type]  # passed on as they are


def test_a_clock_far_ahead_of_the_log_needs_confirmation() -> None:
    disk, clock = MemoryDisk("clock"), VirtualClock(START_S)
    opened(disk, clock).close()
    clock.seconds += 8 * DAY_S
    before = disk.names()
    for wrong in (True, timedelta(0), timedelta(days=0.9), timedelta(days=15.1), timedelta(days=-8)):
        with pytest.raises(OutboxError, match=r"8 days ahead.*accept_clock=timedelta\(days=8\).*--accept-clock 8d"):
            opened(disk, clock, accept_clock=wrong)
    assert disk.names() == before
    opened(disk, clock, accept_clock=timedelta(days=8)).close()
    opened(disk, clock, accept_clock=timedelta(days=8)).close()  # as it stands in a script


@pytest.mark.parametrize("name", [".", "blobs", "segment"])
def test_what_any_user_may_write_to_is_warned_of(disk_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = disk_path / "data"
    Engine.open(folder).close()
    (folder / "blobs").mkdir()
    Engine.open(folder).close()
    assert not caplog.messages
    path = max(folder.glob("*.log")) if name == "segment" else folder / name
    path.chmod(0o777)
    Engine.open(folder).close()
    assert [
        f"any user of this machine may write to {path.relative_to(folder)}, " in line for line in caplog.messages
    ] == [True]


def test_modes_that_mean_nothing_are_not_warned_of(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On such a mount a file has not the mode that it was made with."""
    made = disk_path / "made"
    made.touch(0o600)
    assert keeps_modes(made)
    made.chmod(0o777)
    assert not keeps_modes(made)
    disk_path.chmod(0o777)
    monkeypatch.setattr(engine, "keeps_modes", lambda segment: keeps_modes(made))
    Engine.open(disk_path).close()
    assert not caplog.messages


@pytest.mark.parametrize(("back_s", "warned"), [(59, False), (61, True), (400 * DAY_S, True)])
def test_a_start_on_a_clock_behind_the_log_says_how_far(
    back_s: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk("clock")
    opened(disk, VirtualClock(START_S)).close()
    assert not caplog.messages
    opened(disk, VirtualClock(START_S - back_s)).close()
    assert [str(timedelta(seconds=back_s)) in line for line in caplog.messages] == [True] * warned


async def test_a_folder_without_its_log_is_refused_and_a_new_one_renames_what_is_left(disk_path: Path) -> None:
    folder = disk_path / "data"
    async with Engine.open(folder) as engine:
        await engine.blobs.write("large", b"body")
    (folder / "access.key").write_text("key")
    for path in folder.glob("*.log"):
        path.unlink()
    for left in ("closed", "blobs", "access.key"):
        with pytest.raises(CorruptRecord, match=f"{left}.* shows that there was one.*new=True"):
            Engine.open(folder)
        if left == "closed":
            (folder / left).rename(disk_path / left)
    (disk_path / "closed").rename(folder / "closed")
    Engine.open(folder, new=True).close()
    assert (folder / "access.key").read_text() == "key"
    assert len([*folder.glob("blobs.before-*/*.blob")]) == len([*folder.glob("closed.before-*")]) == 1
    Engine.open(folder).close()
    with pytest.raises(Refused, match="holds a log"):
        Engine.open(folder, new=True)


@pytest.mark.parametrize("there", [None, "lock", "notes.txt", "blobs"])
def test_a_folder_that_never_had_a_log_opens_as_new(disk_path: Path, there: str | None) -> None:
    folder = disk_path / "data"
    if there == "blobs":
        (folder / there).mkdir(parents=True)
    elif there:
        folder.mkdir()
        (folder / there).touch()
    Engine.open(folder).close()


def test_a_log_that_was_used_lately_is_not_behind_however_old_its_segment() -> None:
    disk, clock = MemoryDisk("clock"), VirtualClock(START_S)
    engine = opened(disk, clock)
    engine.declare(QueueSettings("q"))
    clock.seconds += 8 * DAY_S
    engine.broker.send("q", [Message(body=b"x", outbox_id="1")])
    engine.close()
    opened(disk, clock).close()


def test_an_open_that_finds_nothing_new_writes_no_snapshot() -> None:
    disk, clock = MemoryDisk("idle"), VirtualClock(START_S)
    engine = opened(disk, clock)
    engine.declare(QueueSettings("q"))
    engine.close()
    opened(disk, clock).close()
    snapshots = [name for name in disk.names() if name.endswith(".snapshot")]
    assert len(snapshots) == 1


def test_a_running_engine_adopts_what_a_separate_job_compacted() -> None:
    disk, clock = MemoryDisk("sealed"), VirtualClock(START_S)
    engine = opened(disk, clock, limits=EngineLimits(segment_bytes_max=2_000), compact=False)
    engine.declare(QueueSettings("q"))
    for n in range(100):
        engine.broker.send("q", [Message(body=b"x" * 50, outbox_id=str(n))])
        engine.core.flush()
    segments = len([name for name in disk.names() if name.endswith(".log")])
    ordinal = snapshot.compact_sealed(disk)
    assert ordinal and engine.adopt() == ordinal
    assert engine.adopt() == 0
    assert len([name for name in disk.names() if name.endswith(".log")]) < segments
    engine.core.flush()
    recovered = opened(disk.crash(Crash.POWER, random.Random(1)), clock)
    assert recovered.broker.queue("q").counts()["active"] == 100


async def test_a_compaction_in_the_background_lets_sends_go_on(disk_path: Path) -> None:
    async with Engine.open(disk_path / "data", limits=EngineLimits(segment_bytes_max=100_000)) as engine:
        engine.declare(QueueSettings("q"))
        for n in range(2_000):
            engine.broker.send("q", [Message(body=b"x" * 50, outbox_id=str(n))])
        compacting = asyncio.create_task(engine.compact_in_background())
        sent = 2_000
        while not compacting.done():
            engine.broker.send("q", [Message(body=b"x", outbox_id=str(sent))])
            sent += 1
            await asyncio.sleep(0.001)
        ordinal = await compacting
    assert sent > 2_000
    async with Engine.open(disk_path / "data") as engine:
        assert engine.log is not None and engine.log.recovered.snapshot >= ordinal > 0
        assert engine.broker.queue("q").counts()["active"] == sent


async def test_an_engine_stops_when_it_could_not_retire_what_a_snapshot_replaces(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.open(disk_path / "data")
    monkeypatch.setattr(engine.log, "newest_snapshot", lambda: 7)

    def fail(ordinal: int) -> None:
        raise EngineStopped("retire failed")

    monkeypatch.setattr(engine.log, "retire", fail)
    assert engine.log is not None and engine.folder is not None
    with pytest.raises(EngineStopped, match="retire failed"):
        await engine._adopt_beside(engine.log, engine.folder, 7)
    assert engine.stopped is not None
    engine.close()


def test_a_job_that_finds_nothing_new_writes_nothing() -> None:
    disk, clock = MemoryDisk("nothing"), VirtualClock(START_S)
    engine = opened(disk, clock)
    engine.declare(QueueSettings("q"))
    ordinal = engine.compact()
    before = len(disk.calls)
    assert ordinal and snapshot.compact_sealed(disk) == 0 and len(disk.calls) == before


def test_a_snapshot_holds_no_id_whose_window_is_over() -> None:
    disk, clock = MemoryDisk("windows"), VirtualClock(START_S)
    engine = opened(disk, clock)
    engine.declare(QueueSettings("q", duplicate_window_s=10), QueueSettings("other"))
    engine.broker.send("q", [Message(body=b"x", message_id="1")])
    for left in ({"1"}, set[str]()):
        assert snapshot.decode(snapshot.encode(engine.state, 0))[0].paths["q"].seen.keys() == left
        clock.seconds += 10
        engine.broker.send("other", [Message(body=b"x")])


def test_a_folder_is_free_again_when_it_could_not_be_opened() -> None:
    disk, clock = MemoryDisk("again"), VirtualClock(START_S)
    with pytest.raises(ValueError, match="sync policy"):
        opened(disk, clock, sync="sometimes")
    disk.fail("create")
    with pytest.raises(EngineStopped):
        opened(disk, clock)
    opened(disk, clock).close()
