"""A replay is what happened: whatever was done to an engine, log and snapshots give the same memory again.

The oracle is the records themselves, kept beside the engine and applied to an empty state; see `drawn_engine`.
"""

from __future__ import annotations

import random

import pytest

from outbox.engine.backend.journal import EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings, dead_letter_path
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records, snapshot
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.errors import LockLost
from outbox.message import Message
from outbox.ports import Commit, StateChange
from outbox.testing import START_S, VirtualClock
from tests.unit.engine.drawn_engine import HISTORY, Actor, declared, forget_lost, ordinal_of, recorded, replayed
from tests.unit.engine.remembered import differences

LIMITS = EngineLimits(segment_bytes_max=4_000)
LIFE_COUNT, STEP_COUNT = 4, 60


@pytest.mark.parametrize("seed", range(30))
async def test_what_an_open_finds_is_what_was_logged(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives of drawn work, snapshots of every kind among it; each ends by a drawn crash with unsynced work in hand."""
    if seed % 2:
        sliced(monkeypatch)
    clock, chance, disk = VirtualClock(START_S), random.Random(seed), MemoryDisk("replay", page_size_bytes=64)
    history: HISTORY = []
    synced = 0
    for life in range(LIFE_COUNT):
        logged = recorded(history, chance)
        engine = logged.open(disk, clock=clock, log_id=b"0" * 16, compact=chance.random() < 0.5, limits=LIMITS)
        forget_lost(history, engine)
        assert engine.log is not None and engine.log.recovered.last_ordinal >= synced, "something acknowledged is gone"
        found = differences(engine.state, replayed(history), engine.now_ms())
        assert not found, f"life {life}: " + "\n".join(found[:9])
        declared(engine)
        actor = Actor(engine, clock, chance, f"{life}.")
        for _ in range(STEP_COUNT):
            await actor.act()
            if chance.random() < 0.05:
                compact(engine, disk, chance)
        synced = engine.log.synced
        disk = disk.crash(chance.choice(list(Crash)), chance)
    logged.open(disk, clock=clock, log_id=b"0" * 16, limits=LIMITS)


def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let snapshots have many slices, and opens write them anew only where it pays."""
    monkeypatch.setattr(snapshot, "SLICE_BYTES", 500)
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)


def compact(engine: Engine, disk: MemoryDisk, chance: random.Random) -> None:
    """By the host itself, or by a job beside it whose snapshot the host adopts now or at its next open."""
    if chance.random() < 0.5:
        engine.compact()
        return
    engine.core.write()
    snapshot.compact_sealed(disk)
    if chance.random() < 0.5:
        engine.adopt()


@pytest.mark.parametrize("seed", range(20))
async def test_a_snapshot_stands_for_the_records_that_it_replaces(seed: int) -> None:
    clock, chance, disk = VirtualClock(START_S), random.Random(seed), MemoryDisk("compact")
    history: HISTORY = []
    engine = recorded(history).open(disk, clock=clock, log_id=b"0" * 16)
    declared(engine)
    actor = Actor(engine, clock, chance)
    for _ in range(STEP_COUNT * 2):
        await actor.act()
    copy, ordinal = snapshot.decode(snapshot.encode(engine.state, 7))
    found = differences(copy, replayed(history), engine.now_ms())
    assert ordinal == 7 and not [line for line in found if ".lock:" not in line], found[:9]


async def test_the_actor_logs_every_kind_of_record_that_there_is() -> None:
    clock, chance, history = VirtualClock(START_S), random.Random(1), HISTORY()
    engine = recorded(history).open(MemoryDisk("all"), clock=clock, log_id=b"0" * 16)
    declared(engine)
    actor = Actor(engine, clock, chance)
    for _ in range(STEP_COUNT * 10):
        await actor.act()
    assert {type(record) for _, record in history} == set(records.TYPES.values())
    assert len({ordinal_of(version) for version, _ in history}) == len(history)


def test_a_lock_token_of_an_older_epoch_is_void() -> None:
    clock, disk = VirtualClock(START_S), MemoryDisk("epochs")
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    declared(engine)
    engine.broker.send("plain", [Message(body=b"x", outbox_id="1")])
    (claim,) = engine.broker.claim("plain", 1)
    engine.core.write()
    reopened = Engine.open(disk.crash(Crash.PROCESS, random.Random(1)), clock=clock, log_id=b"0" * 16)
    with pytest.raises(LockLost):
        reopened.broker.settle(claim.token, Settlement.COMPLETE)
    (again,) = reopened.broker.claim("plain", 1)
    assert again.delivery_count == 1
    with pytest.raises(LockLost):  # now that another client has it
        reopened.broker.settle(claim.token, Settlement.COMPLETE)


async def test_a_claim_counts_as_a_delivery_when_the_host_is_killed() -> None:
    disk, clock = MemoryDisk("claims"), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    declared(engine)
    engine.broker.send("plain", [Message(body=b"x", outbox_id="1")])
    engine.core.write()
    await EngineJournal(engine.core, engine.broker).claim(["plain"], count_max=1, wait_s=0)
    reopened = Engine.open(disk.crash(Crash.PROCESS), clock=clock, log_id=b"0" * 16)
    (again,) = reopened.broker.claim("plain", 1)
    assert again.delivery_count == 1


async def test_a_commit_is_synced_when_it_is_answered() -> None:
    disk, clock = MemoryDisk("commits"), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    now_ms, states = engine.now_ms(), {"s": StateChange(b"1", 1, 1)}
    journal = EngineJournal(engine.core, engine.broker)
    assert await journal.commit(Commit(now_ms, now_ms, [], {"s": 0}, states, [], {}, {}, {}, [], [], [])) is None
    reopened = Engine.open(disk.crash(Crash.POWER), clock=clock, log_id=b"0" * 16)
    documents, _ = await EngineJournal(reopened.core, reopened.broker).load(["s"], [])
    assert documents["s"].value == b"1"


def test_a_repeated_modification_gives_its_first_answer() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    declared(engine)
    change = records.Modify(operation_id="op", inserts=[records.TaskInsert("plain", Message(body=b"x", outbox_id="1"))])
    assert engine.documents.modify(change) == engine.documents.modify(change)
    assert engine.broker.queue("plain").counts()["active"] == 1


def test_a_subscription_keeps_its_own_settings_when_its_topic_is_declared_with_it() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("t/Subscriptions/s", max_delivery_count=3), TopicSettings("t", ("s",)))
    assert engine.topology.queues["t/Subscriptions/s"].max_delivery_count == 3


def test_changed_settings_count_for_dead_letters_at_once_and_behind_a_snapshot() -> None:
    clock, disk = VirtualClock(START_S), MemoryDisk("changed")
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    engine.declare(QueueSettings("q", lock_s=60.0))
    engine.broker.send("q", [Message(body=b"x", outbox_id="1")])
    [claim] = engine.broker.claim("q", 1)
    engine.broker.settle(claim.token, Settlement.DEAD_LETTER)
    engine.declare(QueueSettings("q", lock_s=10.0))
    engine.core.write()
    restored, _ = snapshot.decode(snapshot.encode(engine.state, 7))
    assert not differences(restored, engine.state, engine.now_ms())
    [dead_letter] = engine.broker.claim(dead_letter_path("q"), 1)
    assert dead_letter.locked_until_ms - engine.now_ms() == 10_000
