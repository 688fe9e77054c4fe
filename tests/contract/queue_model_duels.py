"""Journal and bus, checked against their models: the same messages, claims, commits and settlements on both.

The real side says what happened (which message was claimed, say), and the model must have that among its outcomes.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from outbox.message import Message
from outbox.ports import (
    Commit,
    Conflict,
    DeadLettering,
    Delivery,
    Journal,
    MessageBus,
    Operations,
    Output,
    Postponement,
    Refusal,
    Settle,
    StateChange,
    StateDocument,
)
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.models.journal import JournalModel
from outbox.verify.explorer.models.queues import QueueModel
from outbox.verify.explorer.ops import Raised
from tests.contract.model_duels import STEP_COUNT, Names, Wait, answer, kind_of, op_of, same

QUEUES = (QueueModel("plain"), QueueModel("ordered", is_ordered=True), QueueModel("sink", is_read=False))
READ = ("plain", "ordered")
ROUTES = {queue.path: [queue.path] for queue in QUEUES}
STATE_IDS = ("Account:a", "Account:b")
INBOXES = (b"i" * 32, b"j" * 32)
LIFE_MS = 500_000


@dataclass(frozen=True, slots=True)
class Bench:
    """The real side: its ports, its time, and how the lock on a message can be made to run out."""

    operations: Operations
    wait: Wait
    lapse: Callable[[str, int], object]

    async def prepare(self, outputs: Sequence[Output]) -> None:
        """Declare the queues and send what lies in them at the beginning."""
        await self.operations.declare({q.path: "per_key" if q.is_ordered else "unordered" for q in QUEUES}, {})
        await self.operations.send(outputs)


def drawn_messages(draw: random.Random, now_ms: int) -> list[Output]:
    """What lies in the queues at the beginning, some of it twice."""
    found = []
    for n in range(6):
        name = f"m{draw.randrange(4)}"
        queue = draw.choice(READ)
        due_ms = draw.choice((0, 0, 0, now_ms + 5_000))
        found.append(Output(queue, due_ms, _message(name, f"{n % 2}" if queue == "ordered" else "", now_ms)))
    return found


def _message(name: str, session_id: str, now_ms: int) -> Message:
    return Message(body=name.encode(), outbox_id=name, type="T", created_ms=now_ms, session_id=session_id)


class QueueDuel:
    """What journal and bus have in common: deliveries by two names, and locks that run out."""

    def __init__(self, model: Any, bench: Bench, seed: int) -> None:
        self.model = model
        self.state = model.initial()
        self.bench = bench
        self.draw = random.Random(seed)  # the same seed draws the same operations
        self.held: list[tuple[Delivery, Delivery]] = []
        """Deliveries that were handed out, theirs and ours; some of them ended long ago."""
        self._sequences = Names("sequence")
        self._until_ms: dict[int, int] = {}
        self.compared = 0

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.bench.operations.now_ms()

    def took(self, theirs: Sequence[Delivery], op: Any) -> None:
        """Follow what was claimed: the model must have it among its outcomes."""
        outcomes = self.model.outcomes(self.state, op, self.now_ms)
        if not theirs:
            same(not outcomes, f"{op.verb}: nothing was given, the model has {[o.label for o in outcomes]}")
            return
        for outcome in outcomes:
            if len(outcome.result) == len(theirs) and all(map(self._fits, theirs, outcome.result)):
                self.state = outcome.state
                for their, our in zip(theirs, outcome.result, strict=True):
                    self._sequences.learn(their.sequence, our.sequence)
                    self._until_ms[our.sequence] = their.locked_until_ms
                    self.held.append((their, our))
                return
        raise AssertionError(f"{op.verb} gave {_told(theirs)}, the model has {[_told(o.result) for o in outcomes]}")

    def _fits(self, theirs: Delivery, ours: Delivery) -> bool:
        blind = {"sequence": 0, "lock": 0, "locked_until_ms": 0}
        same = msgspec.structs.replace(theirs, **blind) == msgspec.structs.replace(ours, **blind)
        return same and self._sequences.fits(theirs.sequence, ours.sequence)

    def one(self) -> tuple[Delivery, Delivery] | None:
        """One of the deliveries handed out."""
        return self.draw.choice(self.held[-6:]) if self.held else None

    def lapse(self) -> None:
        """Let a lock run out, on both sides."""
        pair = self.one()
        if pair is not None and self.model.queues.holder(self.state, pair[1]) is not None:
            self.bench.lapse(pair[0].queue, pair[0].sequence)
            self.state = self.with_lock_over(pair[1])

    def with_lock_over(self, ours: Delivery) -> Any:
        """The model's queues when the lock of a delivery has run out; as they are, where it is not held."""
        queues = self.model.queues
        index = queues.holder(self.state, ours)
        return self.state if index is None else queues.lapsed(self.state, queues.numbers[ours.queue], index)

    def renewed(self, ours: Delivery) -> None:
        """Remember that a lock has all its time again."""
        self._until_ms[ours.sequence] = self.now_ms + 60_000

    async def wait(self) -> None:
        """Let time pass; locks run out by it."""
        await self.bench.wait(self.draw.choice((1, 7, 40)))
        for _, ours in self.held:
            if self._until_ms[ours.sequence] <= self.now_ms:
                self.state = self.with_lock_over(ours)

    async def compare_dead_letters(self) -> None:
        """Compare what is dead-lettered."""
        theirs = [(q.path, d.message.identity, d.reason) for q in QUEUES for d in await self._dead(q.path)]
        ours = [
            (QUEUES[d.queue].path, self.model.queues.messages[d.message].identity, d.reason) for d in self.state.dead
        ]
        same(sorted(theirs) == sorted(ours), f"dead letters are {sorted(theirs)}, the model's {sorted(ours)}")

    async def _dead(self, path: str) -> Sequence[Any]:
        return await self.bench.operations.dead_letters(path)


async def check_journal_model(journal: Journal, bench: Bench, *, seed: int, step_count: int = STEP_COUNT) -> int:
    """Compare a journal with its model; how many answers were compared.

    Raises:
        AssertionError: they differ.
    """
    draw = random.Random(seed)  # the same seed draws the same messages
    outputs = drawn_messages(draw, bench.operations.now_ms())
    model = JournalModel(QUEUES, ROUTES, sent=outputs, start_ms=bench.operations.now_ms(), merges_copies=False)
    await bench.prepare(outputs)
    duel = JournalDuel(journal, model, bench, seed)
    return await _fight(
        duel, {"claim": 3, "load": 2, "commit": 4, "renew": 1, "release": 1, "lapse": 1, "wait": 1}, seed, step_count
    )


async def check_bus_model(bus: MessageBus, bench: Bench, *, seed: int, step_count: int = STEP_COUNT) -> int:
    """Compare a bus with its model; how many answers were compared.

    Raises:
        AssertionError: they differ.
    """
    draw = random.Random(seed)  # the same seed draws the same messages
    outputs = drawn_messages(draw, bench.operations.now_ms())
    model = BusModel(QUEUES, ROUTES, sent=outputs, start_ms=bench.operations.now_ms(), merges_copies=False)
    await bench.prepare(outputs)
    duel = BusDuel(bus, model, bench, seed)
    return await _fight(
        duel, {"send": 2, "receive": 3, "settle": 4, "renew": 1, "lapse": 1, "wait": 1}, seed, step_count
    )


async def _fight(duel: Any, weights: dict[str, int], seed: int, step_count: int) -> int:
    kinds = list(weights)
    for step in range(step_count):
        kind = duel.draw.choices(kinds, [weights[kind] for kind in kinds])[0]
        try:
            done = getattr(duel, kind)()
            if isinstance(done, Awaitable):
                await done
            await duel.compare_dead_letters()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}, {kind}: {error}") from error
    return int(duel.compared)


class JournalDuel(QueueDuel):
    """A journal and its model, side by side."""

    def __init__(self, journal: Journal, model: JournalModel, bench: Bench, seed: int) -> None:
        super().__init__(model, bench, seed)
        self._journal = journal
        self._versions = {id: Names(f"version of {id}") for id in STATE_IDS}
        self._known: dict[str, list[int]] = {id: [0] for id in STATE_IDS}

    async def claim(self) -> None:
        count = self.draw.choice((1, 2, 3))
        queues = self.draw.choice((READ, READ[:1], READ[1:]))
        theirs = await self._journal.claim(queues, count_max=count, wait_s=0)
        self.compared += 1
        self.took(theirs, op_of("claim", queues, count))

    async def load(self) -> None:
        theirs, markers = await self._journal.load(STATE_IDS, INBOXES)
        documents, seen = self.model.outcomes(self.state, op_of("load", STATE_IDS, INBOXES), self.now_ms)[0].result
        self.compared += 1
        same(markers == seen, f"markers are {markers}, the model's {seen}")
        same(theirs.keys() == documents.keys(), f"states are {theirs}, the model's {documents}")
        for id, document in theirs.items():
            same(_body(document) == _body(documents[id]), f"{id} is {document}, the model's {documents[id]}")
            self._versions[id].learn(document.version, documents[id].version)
            self._known[id].append(document.version)

    async def commit(self) -> None:
        theirs = self._drawn()
        if theirs is None:
            return
        ours = self._translated(theirs)
        said = await answer(self._journal.commit(theirs))
        outcome = self.model.outcomes(self.state, op_of("commit", ours), self.now_ms)[0]
        self.state = outcome.state
        self.compared += 1
        told = f"a commit came to {said}, the model's to {outcome.result}"
        if isinstance(said, Conflict):
            same(isinstance(outcome.result, Conflict) and self._renamed(said) == outcome.result, told)
        else:
            same(kind_of(said) == kind_of(outcome.result), told)

    def _drawn(self) -> Commit | None:
        draw, now_ms = self.draw, self.now_ms
        pairs = draw.sample(self.held[-4:], min(len(self.held[-4:]), draw.choice((1, 1, 2))))
        if not pairs:
            return None
        commit = Commit(now_ms, now_ms + LIFE_MS, [], {}, {}, [], {}, {}, {}, [], [], [])
        for theirs, _ in pairs:
            how = draw.choice(("consume", "consume", "bury", "postpone"))
            if how == "consume":
                commit.consumed.append(theirs)
            elif how == "bury":
                stops_key = theirs.queue == "ordered" and draw.random() < 0.5
                commit.dead_lettered.append(DeadLettering(theirs, "unfit", "", theirs.failures + 1, stops_key))
            else:
                due_ms = draw.choice((0, now_ms + 3_000))
                commit.postponed.append(Postponement(theirs, due_ms, theirs.failures + 1))
        for id in draw.sample(STATE_IDS, draw.randrange(3)):
            commit.if_versions[id] = draw.choice(self._known[id][-2:])
            if draw.random() < 0.7:
                commit.states[id] = StateChange(draw.choice((b"1", b"2", b"")), 1, 1)
        inbox = draw.choice(INBOXES)
        match draw.randrange(4):
            case 0:
                commit.applied[inbox] = b"f" * 32
            case 1:
                commit.refused[inbox] = Refusal(b"f" * 32, "unfit", "", draw.randrange(2))
                if draw.random() < 0.5:
                    commit.replacing[inbox] = draw.randrange(2)
        for _ in range(draw.randrange(3)):
            destination = draw.choice(
                ("plain", "sink", "ordered", "plain", "nowhere") if draw.random() < 0.2 else ("plain", "sink")
            )
            self.compared += 1
            name = f"o{self.compared}"
            due_ms = draw.choice((0, 0, now_ms + 2_000))
            commit.outputs.append(
                Output(destination, due_ms, _message(name, "0" if destination == "ordered" else "", now_ms))
            )
        return commit

    def _translated(self, commit: Commit) -> Commit:
        ours = {their.sequence: our for their, our in self.held}
        by_lock = {(their.sequence, their.lock): our for their, our in self.held}

        def of(delivery: Delivery) -> Delivery:
            return by_lock.get((delivery.sequence, delivery.lock), ours[delivery.sequence])

        replace = msgspec.structs.replace
        return replace(
            commit,
            consumed=[of(d) for d in commit.consumed],
            dead_lettered=[
                DeadLettering(of(b.delivery), b.reason, b.description, b.failures, b.stops_key)
                for b in commit.dead_lettered
            ],
            postponed=[Postponement(of(p.delivery), p.due_ms, p.failures) for p in commit.postponed],
            if_versions={id: self._versions[id].ours(v) for id, v in commit.if_versions.items()},
        )

    def _renamed(self, conflict: Conflict) -> Conflict:
        return Conflict(frozenset(map(self._sequences.ours, conflict.locks)), conflict.states, conflict.markers)

    async def renew(self) -> None:
        pair = self.one()
        if pair is not None:
            self._compare_count(await self._journal.renew([pair[0]]), op_of("renew", (pair[1],)))
            if self.model.queues.holder(self.state, pair[1]) is not None:
                self.renewed(pair[1])

    def _compare_count(self, theirs: int, op: Any) -> None:
        self.compared += 1
        ours = self.model.outcomes(self.state, op, self.now_ms)[0].result
        same(theirs == ours, f"{theirs} were held, the model's {ours}")

    async def release(self) -> None:
        pair = self.one()
        if pair is not None:
            await self._journal.release([pair[0]])
            self.state = self.model.outcomes(self.state, op_of("release", (pair[1],)), self.now_ms)[0].state


class BusDuel(QueueDuel):
    """A bus and its model, side by side."""

    def __init__(self, bus: MessageBus, model: BusModel, bench: Bench, seed: int) -> None:
        super().__init__(model, bench, seed)
        self._bus = bus

    async def send(self) -> None:
        draw, outputs = self.draw, []
        for _ in range(draw.choice((1, 1, 2))):
            queue = draw.choice(("plain", "sink", "ordered"))
            message = _message(f"s{draw.randrange(3)}", "0" if queue == "ordered" else "", self.now_ms)
            outputs.append(Output(queue, draw.choice((0, 0, self.now_ms + 2_000)), message))
        await self._bus.send(outputs)
        self.state = self.model.outcomes(self.state, op_of("send", tuple(outputs)), self.now_ms)[0].state
        self.compared += 1

    async def receive(self) -> None:
        queue, count = self.draw.choice(READ), self.draw.choice((1, 2))
        theirs = await self._bus.receive(queue, count_max=count, wait_s=0)
        self.compared += 1
        self.took(theirs, op_of("receive", queue, count))

    async def settle(self) -> None:
        pair = self.one()
        if pair is None:
            return
        hows: tuple[Literal["complete", "abandon", "release", "dead-letter"], ...]
        hows = ("complete", "abandon", "release", "dead-letter")
        how = self.draw.choice(hows)
        due_ms = self.draw.choice((0, self.now_ms + 3_000)) if how in ("abandon", "release") else 0
        settle = Settle(how, "unfit" if how == "dead-letter" else "", "", due_ms)
        said = await answer(self._bus.settle(pair[0], settle))
        outcome = self.model.outcomes(self.state, op_of("settle", pair[1], settle), self.now_ms)[0]
        self.state = outcome.state
        self.compared += 1
        same(kind_of(said) == kind_of(outcome.result), f"{settle} came to {said}, the model's to {outcome.result}")

    async def renew(self) -> None:
        pair = self.one()
        if pair is None:
            return
        said = await answer(self._bus.renew(pair[0]))
        ours = self.model.outcomes(self.state, op_of("renew", pair[1]), self.now_ms)[0].result
        self.compared += 1
        same(kind_of(said) == kind_of(ours), f"a renewal came to {said}, the model's to {ours}")
        if not isinstance(said, Raised):
            self.renewed(pair[1])


def _told(deliveries: Sequence[Delivery]) -> list[tuple[Any, ...]]:
    return [
        (d.queue, d.sequence, d.message.identity, d.delivery_count, d.failures, d.from_outside, d.enqueued_ms)
        for d in deliveries
    ]


def _body(document: StateDocument) -> Any:
    return msgspec.structs.replace(document, version=0)
