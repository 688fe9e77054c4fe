"""A replay is what happened: whatever was done to an engine, the log alone gives the same memory again."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from outbox.engine import records, snapshot
from outbox.engine.disk import MemoryDisk
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings
from outbox.engine.items import ACTIVE, SCHEDULED, Claim
from outbox.engine.memory_disk import Crash
from outbox.engine.state import State
from outbox.errors import LockLost
from outbox.message import Message
from outbox.testing import START_S, VirtualClock

QUEUES = ("plain", "keyed", "once")


def declared(engine: Engine) -> None:
    engine.declare(
        QueueSettings("plain", max_delivery_count=4, lock_s=10),
        QueueSettings("keyed", ordering="per_key", lock_s=10),
        QueueSettings("once", duplicate_window_s=30, time_to_live_s=60),
        TopicSettings("news", ("a", "b")),
    )


def image(state: State, now_ms: int) -> bytes:
    """What a state remembers, apart from locks, which no restart keeps."""
    copy, _ = snapshot.decode(snapshot.encode(state, 0))
    for queue in copy.queues:
        for task in queue.tasks.values():
            task.lock = task.locked_until_ms = 0
            if task.status == SCHEDULED and task.due_ms <= now_ms:
                task.status = ACTIVE  # whether time was already looked at is no memory
        queue.tasks = dict(sorted(queue.tasks.items()))
    return snapshot.encode(copy, 0)


class Actor:
    """Does drawn things to an engine."""

    def __init__(self, engine: Engine, clock: VirtualClock, chance: random.Random) -> None:
        self.engine, self.clock, self.chance = engine, clock, chance
        self.claims: list[Claim] = []
        self.sent = 0

    def act(self) -> None:
        step = self.chance.choice(
            (
                self.send,
                self.send,
                self.claim,
                self.claim,
                self.settle,
                self.settle,
                self.wait,
                self.modify,
                self.session,
            )
        )
        step()

    def send(self) -> None:
        self.sent += 1
        name = self.chance.choice((*QUEUES, "news"))
        message = Message(
            body=b"%d" % self.sent, outbox_id=f"m{self.chance.randrange(40)}", session_id=f"s{self.chance.randrange(3)}"
        )
        due_ms = self.engine.now_ms() + 5_000 if self.chance.random() < 0.2 else 0
        self.engine.send(name, [message], due_ms=due_ms)

    def claim(self) -> None:
        self.claims += self.engine.claim(self.chance.choice(("plain", "once", "news/Subscriptions/a")), 3)

    def session(self) -> None:
        lock = self.engine.accept_session("keyed", None)
        if lock is not None:
            self.claims += self.engine.claim("keyed", 2, session=lock.session_id)
            if self.chance.random() < 0.3:
                self.engine.set_session_state(lock.token, b"state")
            if self.chance.random() < 0.5:
                self.engine.release_session(lock.token)

    def settle(self) -> None:
        if self.claims:
            claim = self.claims.pop(self.chance.randrange(len(self.claims)))
            with suppress(LockLost):
                self.engine.settle(claim.token, self.chance.choice(list(Settlement)), reason="drawn")

    def wait(self) -> None:
        self.clock.seconds += self.chance.choice((0.5, 4, 12))
        self.engine.tick()

    def modify(self) -> None:
        id = f"d{self.chance.randrange(4)}"
        version = self.engine.document_version("docs", id)
        write = records.DocWrite("docs", id, b"%d" % self.sent, version)
        assert self.engine.modify(records.Modify(operation_id=f"op{self.sent}", documents=[write])) is not None
        self.sent += 1


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_gives_the_memory_that_was_lost(seed: int) -> None:
    clock, chance, disk = VirtualClock(START_S), random.Random(seed), MemoryDisk("replay")
    for life in range(3):
        engine = Engine.open(disk, clock=clock, log_id=b"0" * 16, compact=life == 1)
        declared(engine)
        actor = Actor(engine, clock, chance)
        for _ in range(60):
            actor.act()
        engine.flush()
        disk = disk.crash(Crash.POWER, chance)
        recovered = Engine.open(disk.crash(Crash.POWER, chance), clock=clock, log_id=b"1" * 16, compact=False)
        now_ms = engine.now_ms()
        engine.state.apply(records.Opened(now_ms), 0)
        assert image(recovered.state, now_ms) == image(engine.state, now_ms), f"life {life} differs"


@pytest.mark.parametrize("seed", range(10))
def test_a_snapshot_stands_for_the_records_that_it_replaces(seed: int) -> None:
    clock, chance, disk = VirtualClock(START_S), random.Random(seed), MemoryDisk("compact")
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    declared(engine)
    actor = Actor(engine, clock, chance)
    for _ in range(80):
        actor.act()
    engine.flush()
    with_log = disk.crash(Crash.PROCESS, chance)
    engine.compact()
    with_snapshot = disk.crash(Crash.PROCESS, chance)
    opened = [Engine.open(found, clock=clock, log_id=b"1" * 16, compact=False) for found in (with_log, with_snapshot)]
    assert image(opened[0].state, engine.now_ms()) == image(opened[1].state, engine.now_ms())


def test_a_lock_token_of_an_older_epoch_is_void() -> None:
    clock, disk = VirtualClock(START_S), MemoryDisk("epochs")
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    declared(engine)
    engine.send("plain", [Message(body=b"x", outbox_id="1")])
    (claim,) = engine.claim("plain", 1)
    engine.write()
    reopened = Engine.open(disk.crash(Crash.PROCESS, random.Random(1)), clock=clock, log_id=b"0" * 16)
    with pytest.raises(LockLost):
        reopened.settle(claim.token, Settlement.COMPLETE)
    (again,) = reopened.claim("plain", 1)
    assert again.delivery_count == 1


def test_a_repeated_modification_gives_its_first_answer() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    declared(engine)
    change = records.Modify(operation_id="op", inserts=[records.TaskInsert("plain", Message(body=b"x", outbox_id="1"))])
    assert engine.modify(change) == engine.modify(change)
    assert engine.queue("plain").counts()["active"] == 1


def test_a_subscription_keeps_its_own_settings_when_its_topic_is_declared_with_it() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("t/Subscriptions/s", max_delivery_count=3), TopicSettings("t", ("s",)))
    assert engine.queues["t/Subscriptions/s"].max_delivery_count == 3
