"""A snapshot in slices: the same memory as a whole one, refused when anything of it is not as it was written.

Crashes come between any two of its steps, and traffic between any two of its slices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.limits import EngineLimits
from outbox.engine.log import slices, snapshot
from outbox.engine.log.disk import DiskFile, MemoryDisk
from outbox.engine.log.memory_disk import Crash, SimulatedCrash
from outbox.engine.log.segments import snapshot_name, snapshot_ordinals
from outbox.engine.state.state import State
from outbox.errors import CorruptRecord, FormatTooNew, OutboxError, Refused
from outbox.message import Message
from outbox.testing import START_S, VirtualClock
from tests.unit.engine.drawn_engine import Actor, declared, recorded
from tests.unit.engine.remembered import differences, remembered

HISTORIES = Path(__file__).parents[2] / "histories" / "golden-snapshots"
LIMITS = EngineLimits(segment_bytes_max=700)
STEP_COUNT = 160


@pytest.fixture(autouse=True)
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of some messages each, which opens write anew only where it pays."""
    monkeypatch.setattr(snapshot, "SLICE_BYTES", 700)
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)


async def worked(seed: int) -> tuple[State, int]:
    clock = VirtualClock(START_S)
    engine = recorded([]).open(MemoryDisk("slices"), clock=clock, log_id=b"0" * 16)
    declared(engine)
    actor = Actor(engine, clock, random.Random(seed))
    for _ in range(STEP_COUNT):
        await actor.act()
    return engine.state, engine.now_ms()


def opened(disk: MemoryDisk, **options: object) -> Engine:
    options = {"clock": VirtualClock(START_S), "log_id": b"0" * 16, "limits": LIMITS, **options}
    return Engine.open(disk, **options)  # type: ignore[arg-type]  # passed on as they are


def sent(engine: Engine, *ids: str) -> None:
    for id in ids:
        engine.broker.send("q", [Message(body=b"x" * 100, outbox_id=id)])
    engine.core.flush()


def held(engine: Engine) -> list[str]:
    return [task.message.outbox_id for task in engine.broker.queue("q").tasks.values()]


def filled(disk: MemoryDisk, count: int = 12, **options: object) -> Engine:
    engine = opened(disk, **options)
    engine.declare(QueueSettings("q"))
    sent(engine, *map(str, range(count)))
    return engine


def as_an_older_build(data: bytes) -> None:
    """What the version before slices did with a snapshot's bytes, in its own order."""
    body = data[32:]
    if sha256(body).digest() != data[:32]:
        raise CorruptRecord("passed over")
    try:
        image = msgspec.msgpack.Decoder(snapshot.Image).decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptRecord("passed over") from error
    if image.format > 2:
        raise FormatTooNew(f"the snapshot has format {image.format}")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slice_bytes", [1, 700, 1 << 20])
async def test_slices_hold_what_one_image_holds(seed: int, slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SLICE_BYTES", slice_bytes)
    state, now_ms = await worked(seed)
    data = snapshot.encode(state, 7)
    copy, ordinal = snapshot.decode(data)
    assert (ordinal, snapshot.verify((data,))) == (7, 7)
    assert len(list(slices.bodies((data,)))) > 3 or slice_bytes > 700
    assert not [line for line in differences(copy, state, now_ms) if ".lock:" not in line]


async def test_pieces_of_any_size_give_the_same() -> None:
    state, _ = await worked(1)
    data = snapshot.encode(state, 7)
    whole = remembered(snapshot.decode(data)[0])
    for size in (1, 7, 100, 4096):
        copy, _ = snapshot.restored(data[at : at + size] for at in range(0, len(data), size))
        copy.rebuild()
        assert remembered(copy) == whole


async def test_an_older_build_refuses_slices_by_the_name_of_their_format() -> None:
    state, _ = await worked(1)
    with pytest.raises(FormatTooNew, match="3"):
        as_an_older_build(snapshot.encode(state, 1 << 40))


async def test_what_fits_into_one_slice_is_written_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SLICE_BYTES", 1 << 20)
    state, _ = await worked(1)
    as_an_older_build(snapshot.encode(state, 7))


async def test_the_golden_snapshots_are_read_and_written_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole one was written by the version before slices; the other holds the same."""
    found = {path.stem: path.read_bytes() for path in HISTORIES.glob("*.snapshot")}
    states = {name: remembered(snapshot.decode(data)[0]) for name, data in found.items()}
    assert states["whole"] == states["sliced"]
    state = snapshot.decode(found["whole"])[0]
    assert snapshot.encode(state, 7) == found["sliced"]
    monkeypatch.setattr(snapshot, "SLICE_BYTES", 1 << 20)
    assert snapshot.encode(state, 7) == found["whole"]


def test_damage_at_any_place_is_refused() -> None:
    data = snapshot.encode(filled(MemoryDisk("damage")).state, 7)
    for at in range(len(data)):
        with pytest.raises(OutboxError):
            snapshot.verify((data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],))
        with pytest.raises(OutboxError):
            snapshot.decode(data[:at])
    with pytest.raises(CorruptRecord):
        snapshot.verify((data + b"\0",))


def test_a_damaged_slice_is_not_handed_out() -> None:
    data = snapshot.encode(filled(MemoryDisk("one")).state, 7)
    images = list(slices.bodies((data,)))
    place = data.index(images[1])
    found = slices.bodies((data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],))
    assert next(found) == images[0]
    with pytest.raises(CorruptRecord, match="slice 1 of the snapshot is damaged"):
        next(found)


def test_slices_that_are_whole_are_refused_in_another_order_or_number() -> None:
    data = snapshot.encode(filled(MemoryDisk("order")).state, 7)
    digest, images = data[:32], list(slices.bodies((data,)))
    for wrong in ([images[0], *images[:0:-1]], images[:-1], [*images, images[-1]]):
        forged = b"".join(slices.sliced(7, len(wrong), wrong.__iter__))
        with pytest.raises(CorruptRecord, match="digest"):
            snapshot.verify((digest + forged[32:],))


def test_a_slice_of_another_ordinal_or_queue_is_refused() -> None:
    engine = filled(MemoryDisk("others"))
    images = list(slices.bodies((snapshot.encode(engine.state, 7),)))
    other = list(slices.bodies((snapshot.encode(engine.state, 8),)))
    with pytest.raises(CorruptRecord, match="ordinal 8"):
        snapshot.verify(slices.sliced(7, 2, [images[0], other[1]].__iter__))
    foreign = filled(MemoryDisk("foreign"))
    foreign.declare(QueueSettings("another"))
    foreign.broker.send("another", [Message(body=b"x" * 900, outbox_id="1")])
    last = list(slices.bodies((snapshot.encode(foreign.state, 7),)))[-1]
    with pytest.raises(CorruptRecord, match="declare"):
        snapshot.verify(slices.sliced(7, 2, [images[0], last].__iter__))


# Crashes, and what goes on meanwhile


class Meanwhile:
    """The folder as a compaction job sees it; between any two of its calls the host has its turn."""

    def __init__(self, disk: MemoryDisk, turn: Callable[[str], None]) -> None:
        self._disk, self._turn = disk, turn
        self.where, self.names, self.read = disk.where, disk.names, disk.read
        self.remove, self.lock, self.unlock, self.holds = disk.remove, disk.lock, disk.unlock, disk.holds

    def pieces(self, name: str) -> Iterator[bytes]:
        for piece in self._disk.pieces(name):
            self._turn("read")
            yield piece

    def create(self, name: str) -> DiskFile:
        self._turn("create")
        return SlowFile(self._disk.create(name), self._turn)

    def rename(self, name: str, target: str) -> None:
        self._turn("rename")
        self._disk.rename(name, target)

    def sync_dir(self) -> None:
        self._turn("sync_dir")
        self._disk.sync_dir()


class SlowFile:
    def __init__(self, file: DiskFile, turn: Callable[[str], None]) -> None:
        self._file, self._turn = file, turn
        self.reserve, self.trim, self.close = file.reserve, file.trim, file.close

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def write(self, data: bytes) -> None:
        self._turn("write")
        self._file.write(data)

    def sync(self) -> None:
        self._turn("sync")
        self._file.sync()


def life(disk: MemoryDisk, acknowledged: list[str]) -> None:
    """Everything that compacts: an open, a host, a job beside it that the host adopts, two jobs at once."""

    def tell(engine: Engine, *ids: str) -> None:
        for id in ids:
            sent(engine, id)
            acknowledged.append(id)

    engine = opened(disk)
    engine.declare(QueueSettings("q"))
    tell(engine, *map(str, range(8)))
    engine.compact()
    tell(engine, "a", "b")
    between = iter([f"between {n}" for n in range(1000)])
    snapshot.compact_sealed(Meanwhile(disk, lambda verb: tell(engine, next(between)) if verb == "write" else None))
    engine.adopt()
    tell(engine, "c", "d", "e", "f", "g")
    pending = [True]

    def another(verb: str) -> None:
        if verb == "write" and pending:
            pending.clear()
            snapshot.compact_sealed(disk)
            engine.adopt()
            tell(engine, "meanwhile")

    snapshot.compact_sealed(Meanwhile(disk, another))
    tell(engine, "h")
    engine.adopt()
    engine.close()
    opened(disk).close()


@pytest.mark.parametrize("crash", list(Crash))
def test_a_crash_between_any_two_steps_loses_nothing_acknowledged(crash: Crash) -> None:
    disk = MemoryDisk("counted")
    life(disk, [])
    calls = len(disk.calls)
    for call in range(calls):
        disk, acknowledged = MemoryDisk("crashed", page_size_bytes=128), list[str]()
        disk.crash_before(call)
        with pytest.raises(SimulatedCrash):
            life(disk, acknowledged)
        for _ in range(2):  # what an open leaves is as good as what it found
            disk = disk.crash(crash, random.Random(call))
            engine = opened(disk)
            if acknowledged:
                assert held(engine)[: len(acknowledged)] == acknowledged, f"before call {call}"
            assert not [name for name in disk.names() if name.endswith(".tmp")]


def test_a_snapshot_of_a_host_at_work_is_of_one_moment() -> None:
    """Between any two calls of the job the host sends, settles and starts segments."""
    disk = MemoryDisk("moment")
    engine = filled(disk)
    serial = iter(range(100, 10_000))

    def turn(verb: str) -> None:
        sent(engine, str(next(serial)))
        (claim,) = engine.broker.claim("q", 1)
        engine.broker.settle(claim.token, Settlement.COMPLETE)
        engine.core.flush()

    before = held(engine)
    sealed = engine.log.seal() if engine.log is not None else 0
    assert snapshot.compact_sealed(Meanwhile(disk, turn)) == sealed
    state, ordinal = snapshot.restored(disk.pieces(snapshot_name(sealed)))
    assert ordinal == sealed
    assert [task.message.outbox_id for task in state.paths["q"].tasks.values()] == before
    now = held(engine)
    assert now != before and engine.adopt() == sealed
    assert held(opened(disk.crash(Crash.POWER))) == now


def test_an_open_during_a_job_of_the_host_before_makes_it_give_up() -> None:
    for verb in ("create", "write", "sync", "rename"):
        disk = MemoryDisk("reopened")
        engine = filled(disk)
        assert engine.log is not None
        engine.log.seal()
        later: list[Engine] = []

        def turn(step: str, verb: str = verb, disk: MemoryDisk = disk, later: list[Engine] = later) -> None:
            if step == verb and not later:
                disk.unlock()  # the host was killed
                later.append(opened(disk))
                sent(later[0], "behind")

        try:
            snapshot.compact_sealed(Meanwhile(disk, turn))
        except Refused:
            assert verb != "create"
        expected = [*map(str, range(12)), "behind"]
        assert held(opened(disk.crash(Crash.POWER))) == expected
        later[0].adopt()
        assert held(opened(disk.crash(Crash.POWER))) == expected


def test_a_job_reads_what_has_the_name_in_the_end() -> None:
    disk = MemoryDisk("spoiled")
    engine = filled(disk)

    def turn(step: str) -> None:
        if step == "sync_dir":
            (ordinal,) = snapshot_ordinals(disk.names())
            disk._inode(snapshot_name(ordinal)).content[-1] ^= 1

    with pytest.raises(CorruptRecord, match="does not read back"):
        snapshot.compact_sealed(Meanwhile(disk, turn))
    assert engine.adopt() == 0 and len(held(opened(disk.crash(Crash.POWER)))) == 12


def test_a_snapshot_that_reads_back_differently_gets_no_name() -> None:
    disk = MemoryDisk("lost")
    engine = filled(disk)

    def turn(step: str) -> None:
        if step == "sync":
            (name,) = (name for name in disk.names() if name.endswith(".tmp"))
            disk._inode(name).content[-1] ^= 1

    with pytest.raises(OSError, match="reads back differently"):
        snapshot.compact_sealed(Meanwhile(disk, turn))
    assert not snapshot_ordinals(disk.names()) and len(held(engine)) == 12


def test_an_older_snapshot_that_a_job_leaves_behind_does_no_harm() -> None:
    """The job's rename comes after the host compacted further and retired what the job had read."""
    disk = MemoryDisk("late")
    engine = filled(disk)
    assert engine.log is not None
    first = engine.log.seal()

    def turn(step: str) -> None:
        if step == "rename":
            sent(engine, "behind")
            engine.compact()

    assert snapshot.compact_sealed(Meanwhile(disk, turn)) == first
    assert engine.adopt() == 0 and len(snapshot_ordinals(disk.names())) == 2
    assert held(opened(disk.crash(Crash.POWER))) == [*map(str, range(12)), "behind"]
    engine.compact()


# What an open does


class Counted:
    """How often a snapshot's bytes were decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        before = slices.bodies

        def bodies(pieces: Iterator[bytes]) -> Iterator[bytes]:
            self.count += 1
            return before(pieces)

        monkeypatch.setattr(snapshot, "bodies", bodies)


def test_an_open_decodes_a_large_snapshot_once_and_writes_none_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk("once")
    engine = filled(disk, 100, limits=EngineLimits())
    engine.compact()
    engine.close()
    opened(disk, limits=EngineLimits()).close()
    before, counted = disk.names(), Counted(monkeypatch)
    engine = opened(disk, limits=EngineLimits())
    assert counted.count == 1 and set(before) - set(disk.names()) <= {"closed"}
    assert len(held(engine)) == 100


def test_an_open_writes_a_snapshot_where_much_came_behind_it() -> None:
    disk = MemoryDisk("much")
    engine = filled(disk, 20)
    ordinal = engine.compact()
    sent(engine, *map(str, range(20, 40)))
    engine.close()
    assert len(held(opened(disk))) == 40
    assert snapshot_ordinals(disk.names())[0] > ordinal


def test_an_open_writes_a_snapshot_behind_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_MIN", 1_000)
    disk = MemoryDisk("many")
    engine = filled(disk, 20)
    ordinal = engine.compact()
    engine.close()
    for _ in range(snapshot.SEGMENT_COUNT_MAX + 1):
        opened(disk).close()
    (found,) = snapshot_ordinals(disk.names())
    assert found > ordinal and len(disk.names()) < snapshot.SEGMENT_COUNT_MAX


def test_an_open_retires_what_the_snapshot_of_a_job_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_MIN", 1_000)
    disk = MemoryDisk("jobs")
    engine = filled(disk, 20)
    ordinal = snapshot.compact_sealed(disk)
    engine.close()
    opened(disk).close()
    names = disk.names()
    assert snapshot_ordinals(names) == [ordinal] and min(names) == snapshot_name(ordinal)


def test_an_open_replaces_a_snapshot_that_does_not_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_MIN", 1_000)
    disk = MemoryDisk("bad")
    engine = filled(disk, 20)
    engine.compact()
    sent(engine, *"abcdefgh")
    ordinal = snapshot.compact_sealed(disk)
    assert ordinal
    engine.close()
    files = {name: disk.read(name) for name in disk.names()}
    files[snapshot_name(ordinal)] = files[snapshot_name(ordinal)][:-1] + b"!"
    disk = MemoryDisk("bad", files=files)
    expected = held(opened(MemoryDisk(files=files)))
    assert len(expected) == 28 and held(opened(disk)) == expected
    assert snapshot_ordinals(disk.names())[0] > ordinal
