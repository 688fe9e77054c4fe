"""Histories of a correct system, made by chance, and faults that are planted into them."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import (
    Buried,
    Change,
    Claim,
    Commit,
    Delivered,
    Emitted,
    Ended,
    Event,
    Fail,
    Life,
    Ok,
    Quiesce,
    Seen,
    Tally,
    Unknown,
)
from outbox.verify.recorded.verdict import Finding

IN, NEXT, OUT = "transfers", "deposits", "ledger"


@dataclass
class Held:
    """A message that a worker has, and the commit that it has asked for."""

    delivery: Delivered
    commit: Commit
    has_landed: bool = False


@dataclass
class Maker:
    """Two queues of handlers behind each other, each message changing one state; a commit for one or more messages."""

    draw: random.Random
    key_count: int = 3
    crash_share: float = 0.05
    unknown_share: float = 0.1
    duplicate_share: float = 0.1
    refuse_share: float = 0.1
    late_share: float = 0.5
    events: list[Event] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    waiting: deque[Delivered] = field(default_factory=deque)
    held: list[Held] = field(default_factory=list)
    dead: dict[str, list[int]] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=lambda: {IN: 0, NEXT: 0, OUT: 0})
    left: dict[str, int] = field(default_factory=lambda: {IN: 0, NEXT: 0, OUT: 0})
    sequence: int = 0
    op: int = 0

    def run(self, message_count: int) -> list[Event]:
        """A whole history, from an empty system to quiescence."""
        self._live()
        for n in range(message_count):
            self._arrive(IN, f"t{n}", outside=True)
            if self.draw.random() < self.duplicate_share:
                self._arrive(IN, f"t{n}", outside=True)
        while self.waiting or self.held:
            self._turn()
        self.events.append(Quiesce(at_ms=1, queues=[IN, NEXT], tallies=self._tallies(), dead=self.dead))
        return self.events

    def _live(self) -> None:
        self.events.append(Life(boot="b", sequence=self.sequence, is_empty=not self.events, tallies=self._tallies()))

    def _tallies(self) -> dict[str, Tally]:
        return {queue: Tally(self.received[queue], self.left[queue]) for queue in (IN, NEXT, OUT)}

    def _arrive(self, queue: str, id: str, *, outside: bool) -> None:
        self.sequence += 1
        self.received[queue] += 1
        if queue != OUT:
            self.waiting.append(Delivered(id, queue, self.sequence, outside, 0, digest_of(id)))

    def _turn(self) -> None:
        chance = self.draw.random()
        if chance < self.crash_share:
            self._crash()
        elif self.waiting and (chance < 0.5 or not self.held):
            self._claim()
        elif self.held:
            self._land_or_answer(self.draw.choice(self.held))

    def _claim(self) -> None:
        self.waiting.rotate(self.draw.randrange(len(self.waiting)))
        delivery = self.waiting.popleft()
        self.events.append(Claim(deliveries=[delivery]))
        self.op += 1
        commit = self._asked(delivery)
        self.events.append(commit)
        self.held.append(Held(delivery, commit))

    def _asked(self, delivery: Delivered) -> Commit:
        """What a handler does; it knows what has landed up to now."""
        key, id = inbox_of(delivery), delivery.id
        state = f"Account:{sum(key.encode()) % self.key_count}"
        ended = Ended(delivery.queue, delivery.sequence, id)
        before = self.versions.get(state, 0)
        if key in self.applied:
            return Commit(op=self.op, ended=[ended])
        if self.draw.random() < self.refuse_share:
            seen, buried = Seen(state, before), Buried(delivery.queue, delivery.sequence, id, "no")
            return Commit(op=self.op, buried=[buried], seen=[seen], refused=[key])
        outputs = [Emitted(f"{key}-0", OUT, digest_of(f"{key}-0"), id)]
        if delivery.queue == IN:
            outputs.append(Emitted(f"{key}-1", NEXT, digest_of(f"{key}-1"), id))
        change = Change(state, before, before + 1, before + 7)
        return Commit(op=self.op, ended=[ended], changes=[change], outputs=outputs, applied=[key])

    def _land_or_answer(self, held: Held) -> None:
        if not held.has_landed:
            if not self._lands(held.commit):
                self.held.remove(held)
                self.events.append(Fail(op=held.commit.op, why="conflict"))
                self.waiting.append(held.delivery)
                return
            held.has_landed = True
            if self.draw.random() < self.late_share:
                return
        self.held.remove(held)
        unknown = self.draw.random() < self.unknown_share
        self.events.append(Unknown(op=held.commit.op) if unknown else Ok(op=held.commit.op))

    def _lands(self, commit: Commit) -> bool:
        conditions = [(c.state, c.before) for c in commit.changes] + [(s.state, s.version) for s in commit.seen]
        if any(self.versions.get(state, 0) != version for state, version in conditions):
            return False
        if any(key in self.applied for key in (*commit.applied, *commit.refused)):
            return False
        self.versions.update({change.state: change.version for change in commit.changes})
        self.applied.update(commit.applied)
        for ended in commit.ended:
            self.left[ended.queue] += 1
        for buried in commit.buried:
            self.left[buried.queue] += 1
            self.dead.setdefault(buried.queue, []).append(buried.sequence)
        for output in commit.outputs:
            self._arrive(output.destination, output.id, outside=False)
        return True

    def _crash(self) -> None:
        """The process dies: what has landed has, what was held comes again."""
        for held in self.held:
            if not held.has_landed and self.draw.random() < 0.5:
                held.has_landed = self._lands(held.commit)
            if not held.has_landed:
                self.waiting.append(held.delivery)
        self.held.clear()
        self._live()


def digest_of(id: str) -> int:
    return sum(id.encode())


def inbox_of(delivery: Delivered) -> str:
    return f"{delivery.queue}/{delivery.id}".replace("-", "_")


def made(seed: int, message_count: int = 12) -> list[Event]:
    return Maker(random.Random(seed)).run(message_count)


def calm(seed: int = 1, message_count: int = 6) -> list[Event]:
    """A history without faults, in which every commit is answered as it takes effect."""
    maker = Maker(random.Random(seed), crash_share=0, unknown_share=0, duplicate_share=0, refuse_share=0, late_share=0)
    return maker.run(message_count)


def answer_to(events: list[Event], index: int) -> int:
    """Where the answer to a commit is."""
    commit = events[index]
    assert isinstance(commit, Commit)
    return next(i for i in range(index, len(events)) if isinstance(answer := events[i], Ok) and answer.op == commit.op)


def committed(events: list[Event]) -> list[tuple[int, Commit]]:
    """Every commit that changed something and was answered, and where."""
    answered = {event.op for event in events if isinstance(event, Ok)}
    return [(i, e) for i, e in enumerate(events) if isinstance(e, Commit) and e.op in answered and e.applied]


def changed(events: list[Event], index: int, **fields: object) -> list[Event]:
    """The history with fields of one event changed."""
    return [*events[:index], replace(events[index], **fields), *events[index + 1 :]]


def inserted(events: list[Event], index: int, *fresh: Event) -> list[Event]:
    """The history with events put before the one at `index`."""
    return [*events[:index], *fresh, *events[index:]]


def first(events: list[Event], *, alone: bool = False) -> Finding:
    """The first finding, which there must be."""
    verdict = check(events, alone=alone)
    assert not verdict.ok, verdict.text
    return verdict.findings[0]
