"""An actor that does drawn things to an engine, everything that one can do, and a memory of what was logged.

What was logged is kept as records, copied before they take effect: the state that they give is the oracle, and it never
passes a snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from outbox.deliveries import Delivery
from outbox.engine.backend.journal import EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings, dead_letter_path
from outbox.engine.log import records
from outbox.engine.log.wal import Log
from outbox.engine.state.rules import Rule
from outbox.engine.state.state import State
from outbox.engine.state.tasks import DEFERRED, LOCKED, Claim
from outbox.engine_commit import WAITING, WAITING_ATTEMPT
from outbox.errors import LockLost, Refused
from outbox.message import Message
from outbox.ports import Commit, DeadLettering, Output, Postponement, Refusal, StateChange
from outbox.testing import VirtualClock

TEXTS = ("message_id", "type", "correlation_id", "causation_id", "traceparent", "reply_to", "claim")
QUEUES = ("plain", "keyed", "once")
OUTSIDE = ("plain", "once", "news/Subscriptions/a", "scratch")
ORDINAL_BITS = 48
HISTORY = list[tuple[int, Any]]
"""Records by the version under which they were logged."""


class Recorded(Engine):
    """An engine that copies what it logs; `chance` says which commits wait for the flush, without it all do."""

    history: HISTORY
    chance: random.Random | None = None

    def __init__(self, state: State, log: Log | None, **options: Any) -> None:
        take = state.apply

        def apply(record: records.Record, version: int) -> None:
            copy = records.decode(records.NUMBERS[type(record)], records.encode(record))
            take(record, version)
            self.history.append((version, copy))

        state.apply = apply  # type: ignore[method-assign]  # for this engine alone
        super().__init__(state, log, **options)
        through = self.core.gate

        async def gate(**options: bool) -> None:
            if self.chance is None or self.chance.random() < 0.5:
                await through(**options)

        self.core.gate = gate  # type: ignore[method-assign]  # for this engine alone


def recorded(kept: HISTORY, drawn: random.Random | None = None) -> type[Recorded]:
    """An engine's class that writes to this history."""

    class Here(Recorded):
        history = kept
        chance = drawn

    return Here


def forget_lost(history: HISTORY, engine: Engine) -> None:
    """Drop from the history what an open did not find any more."""
    assert engine.log is not None
    last = engine.log.recovered.last_ordinal
    kept = [(version, record) for version, record in history if ordinal_of(version) <= last or is_of(engine, version)]
    history[:] = kept


def ordinal_of(version: int) -> int:
    return version & ((1 << ORDINAL_BITS) - 1)


def is_of(engine: Engine, version: int) -> bool:
    return version >> ORDINAL_BITS == engine.core.epoch


def replayed(history: HISTORY) -> State:
    """The state that records give, without a log and without a snapshot."""
    state = State()
    for version, record in history:
        copy = records.decode(records.NUMBERS[type(record)], records.encode(record))
        state.apply(copy, version)
    state.rebuild()
    return state


def declared(engine: Engine) -> None:
    """Queues and topics of every kind."""
    engine.declare(
        QueueSettings("plain", max_delivery_count=4, lock_s=10),
        QueueSettings("keyed", ordering="per_key", lock_s=10, max_delivery_count=2, stop_key=True),
        QueueSettings("once", duplicate_window_s=30, time_to_live_s=60),
        QueueSettings("scratch"),
        TopicSettings("news", ("a", "b")),
    )


class Actor:
    """Does drawn things to an engine."""

    def __init__(self, engine: Engine, clock: VirtualClock, chance: random.Random, name: str = "") -> None:
        self.engine, self.clock, self.chance, self.name = engine, clock, chance, name
        self.journal = EngineJournal(engine.core, engine.broker)
        self.claims: list[Claim] = []
        self.deliveries: list[Delivery] = []
        self.serial = 0
        self.steps: tuple[Callable[[], None], ...] = (
            self.send, self.send, self.send, self.claim, self.settle, self.settle, self.session, self.session,
            self.wait, self.cancel, self.renew, self.deferred, self.documents, self.tasks, self.resubmit,
            self.discard, self.entities, self.rules,
        )  # fmt: skip

    async def act(self) -> None:
        """Do one thing; a commit as often as anything else together."""
        if self.chance.random() < 0.35:
            await self.commit()
        else:
            with suppress(LockLost, LookupError):
                self.chance.choice(self.steps)()

    def message(self) -> Message:
        """A message; now and then one with everything that it may have."""
        draw, chance = self.chance.random, self.chance
        self.serial += 1
        serial = self.serial
        message = Message(
            body=b"%d" % serial,
            outbox_id=f"m{chance.randrange(40)}",
            session_id=f"s{chance.randrange(8)}",
            time_to_live_ms=9_000 if draw() < 0.2 else 0,
            properties={"tone": chance.choice(("loud", "soft"))} if draw() < 0.5 else None,
        )
        if draw() < 0.8:
            return message
        texts = {name: f"{name} {serial}" for name in TEXTS}
        return msgspec.structs.replace(
            message, created_ms=serial, hops=1, attempt=1, failures=2, wire=b"as it", wire_body=b"came", **texts
        )

    def later_ms(self, chance: float = 0.25) -> int:
        return self.engine.now_ms() + self.chance.choice((5_000, 40_000)) if self.chance.random() < chance else 0

    # Messages from outside

    def send(self) -> None:
        name = self.chance.choice((*QUEUES, "news", "scratch"))
        self.engine.broker.send(
            name, [self.message() for _ in range(self.chance.randrange(1, 4))], due_ms=self.later_ms()
        )

    def cancel(self) -> None:
        queue = self.engine.broker.queue(self.chance.choice(("plain", "scratch")))
        self.engine.broker.cancel(queue.path, [*list(queue.tasks)[:3], *list(queue.tasks)[:1]])  # one twice

    def claim(self) -> None:
        self.claims += self.engine.broker.claim(self.chance.choice(OUTSIDE), 3)

    def session(self) -> None:
        lock = self.engine.sessions.accept("keyed", None)
        if lock is not None:
            self.claims += self.engine.broker.claim("keyed", 2, session=lock.session_id)
            if self.chance.random() < 0.5:
                self.engine.sessions.set_state(lock.token, self.chance.choice((b"state", b"", b"other")))
            if self.chance.random() < 0.5:
                self.engine.sessions.release(lock.token)

    def settle(self) -> None:
        if self.claims:
            claim = self.claims.pop(self.chance.randrange(len(self.claims)))
            self.engine.broker.settle(
                claim.token, self.chance.choice(list(Settlement)), reason="drawn", description="why"
            )

    def renew(self) -> None:
        if self.claims:
            self.engine.broker.renew(self.chance.choice(self.claims).token)

    def deferred(self) -> None:
        for path in OUTSIDE:
            found = [task.sequence for task in self.engine.broker.queue(path).tasks.values() if task.status == DEFERRED]
            self.claims += self.engine.broker.claim_deferred(path, [*found[:2], *found[:1]])

    def wait(self) -> None:
        self.clock.seconds += self.chance.choice((0.5, 2, 4, 12))
        self.engine.tick()

    # The general mutation

    def documents(self) -> None:
        id = f"d{self.chance.randrange(4)}"
        version = self.engine.documents.version("docs", id)
        self.serial += 1
        change = records.Modify(operation_id=f"{self.name}op{self.serial}")
        if version and self.chance.random() < 0.3:
            change.document_deletes = [records.DocRef("docs", id, version)]
        else:
            change.documents = [
                records.DocWrite("docs", id, b"%d" % self.serial, version, self.later_ms(), 1 + self.serial % 3)
            ]
        assert self.engine.documents.modify(change) is not None

    def tasks(self) -> None:
        self.serial += 1
        insert = records.TaskInsert("plain", self.message(), self.later_ms())
        change = records.Modify(operation_id=f"{self.name}op{self.serial}", inserts=[insert])
        free = [task for task in self.engine.broker.queue("plain").tasks.values() if task.status != LOCKED]
        if free:
            task = self.chance.choice(free)
            if self.chance.random() < 0.5:
                change.deletes = [records.TaskRef("plain", task.sequence, task.version)]
            else:
                to_path, message = self.chance.choice((None, "scratch")), self.chance.choice((None, self.message()))
                change.changes = [
                    records.TaskChange("plain", task.sequence, task.version, to_path, self.later_ms(), message)
                ]
        assert self.engine.documents.modify(change) is not None

    # Dead letters and entities

    def dead(self) -> tuple[str, int]:
        path = self.chance.choice(QUEUES)
        return path, self.chance.choice([0, *self.engine.broker.queue(dead_letter_path(path)).tasks])

    def resubmit(self) -> None:
        with suppress(Refused):  # the record of its refusal is gone
            self.engine.dead_letters.resubmit(*self.dead())

    def discard(self) -> None:
        self.engine.dead_letters.discard(*self.dead())

    def entities(self) -> None:
        made = f"made-{self.chance.randrange(4)}"
        gone = self.chance.choice(("scratch", "news/Subscriptions/b", "news", made, made, ""))
        if gone in self.engine.state.paths or gone in self.engine.topology.topics:
            self.engine.topology.delete(gone)
        elif gone:
            self.engine.declare(QueueSettings(made, "per_key", 5.0, 7, 9.0, 11.0, False, True))
        else:
            self.engine.declare(QueueSettings("plain", max_delivery_count=self.chance.randrange(2, 6), lock_s=10))
        if gone not in (made, ""):  # what was changed stays so for a while
            declared(self.engine)

    def rules(self) -> None:
        rules = {
            "none": [],
            "loud": [
                Rule("loud", "correlation", {"message_id": "m1"}, {"tone": "loud"}),
                Rule("soft", "correlation", {}, {"tone": "soft"}),
            ],
            "all": [Rule("z", "true"), Rule("a", "false")],
        }
        self.engine.topology.set_rules("news/Subscriptions/b", self.chance.choice(list(rules.values())))

    # Engine scope

    async def commit(self) -> None:
        """A batch of deliveries that end in every way there is, with states, markers and outputs."""
        self.deliveries += await self.journal.claim(QUEUES, count_max=4, wait_s=0)
        now_ms, chance = self.engine.now_ms(), self.chance
        commit = Commit(now_ms, now_ms + chance.choice((9_000, 60_000)), [], {}, {}, [], {}, {}, {}, [], [])
        taken, self.deliveries = self.deliveries[:4], self.deliveries[4:]
        if taken and taken[0].waits:
            await self.wait_behind(commit, taken[0])
            return
        if chance.random() < 0.1:
            await self.journal.release(taken[:1])
            return
        for delivery in taken:
            self.end(commit, delivery)
        for id in {f"S:{chance.randrange(5)}" for _ in range(chance.randrange(3))}:
            self.change_state(commit, id)
        for _ in range(chance.randrange(3)):
            destination = chance.choice((*QUEUES, "news", "scratch"))
            commit.outputs.append(Output(destination, self.later_ms(), self.message()))
        await self.journal.commit(commit)  # a conflict writes nothing

    async def wait_behind(self, commit: Commit, delivery: Delivery) -> None:
        """Put on record that a message waits; mostly it is one of its own."""
        key = sha256(b"%d" % self.chance.randrange(25)).digest()
        commit.markers_expire_ms = 0
        commit.refused[key] = Refusal(sha256(delivery.message.body).digest(), WAITING, "", WAITING_ATTEMPT)
        commit.postponed.append(Postponement(delivery, 0, delivery.failures))
        await self.journal.commit(commit)

    def change_state(self, commit: Commit, id: str) -> None:
        known = self.engine.state.documents.spaces["state"].get(id)
        commit.if_versions[id] = 0 if known is None else known.version
        value = b"" if self.chance.random() < 0.2 else b"v%d" % self.serial
        commit.states[id] = StateChange(value, 1 + self.serial % 2, 1 if known is None else known.serial + 1)

    def end(self, commit: Commit, delivery: Delivery) -> None:
        chance = self.chance
        key = sha256(b"%d" % chance.randrange(25)).digest()
        known = self.engine.state.markers.known.get(key)
        if isinstance(known, Refusal) and chance.random() < 0.7:
            commit.replacing[key] = known.attempt + 1
        match chance.choice(("apply", "apply", "refuse", "refuse", "bury", "postpone")):
            case "apply":
                commit.applied[key] = sha256(delivery.message.body).digest() + chance.choice((b"", b"a reply"))
                commit.consumed.append(delivery)
            case "refuse":
                refusal = Refusal(sha256(delivery.message.body).digest(), "no", "too little", chance.randrange(3))
                commit.refused[key] = refusal
                commit.dead_lettered.append(
                    DeadLettering(delivery, "no", "too little", delivery.failures, chance.random() < 0.7)
                )
            case "bury":
                commit.dead_lettered.append(DeadLettering(delivery, "failed", "too often", 7, chance.random() < 0.5))
            case _:
                commit.postponed.append(Postponement(delivery, self.later_ms(0.7), delivery.failures + 1))
        if key in commit.applied and key in commit.refused:
            del commit.applied[key]
