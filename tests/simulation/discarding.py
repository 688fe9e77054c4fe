"""Dead letters of a store and a bus under operators who discard, restore and resubmit them, as scopes to explore.

Each operator looks once, and does what it does with all that it finds there; it begins again after an error.  The host
that stores refused messages may have the message once more.  No worker handles what is resubmitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outbox.message import Message
from outbox.ports import Delivery, DocumentKey, NoBlobs, StorePorts
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.delivery.stored_dead_letters import DISCARDED, LETTERS, StoredDeadLetters
from outbox.runtime.store_operations import StoreOperations
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.models.bus import BusModel, BusState
from outbox.verify.explorer.models.queues import Dead, QueueModel
from outbox.verify.explorer.models.store import CAPABILITIES, visible
from outbox.verify.explorer.ops import Finding, Op, Outcome
from outbox.verify.explorer.ports import ExploredBus, ExploredOperations, ExploredStore
from outbox.verify.explorer.run import Calls, Program, done
from outbox.verify.explorer.scenario import START_MS
from outbox.verify.explorer.search import Report, search
from outbox.verify.explorer.streams import Given, StreamScenario, never

QUEUE = "orders"
STORE, BUS = 0, 1
LIFE_S = 3_600.0
REFUSED = Message(body=b"{}", outbox_id="o1", type="Order", created_ms=START_MS)
DELIVERY = Delivery(QUEUE, 7, REFUSED, 1, START_MS, START_MS + 30_000)

Act = Callable[[StoreOperations], Awaitable[None]]


@dataclass(frozen=True)
class Acting:
    """An operator, who acts so often."""

    name: str
    act: Act
    times: int = 1

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        count: int = carried or 0
        if count == self.times:
            await never(calls)
        operations: Any = ExploredOperations(calls, BUS)  # it needs no other of them
        store = ExploredStore(calls, STORE, CAPABILITIES)
        try:
            await self.act(StoreOperations(StorePorts(store, ExploredBus(calls, BUS), operations, NoBlobs())))
        except LookupError:  # another was first
            pass
        except MAY_RETRY:
            return count
        return count + 1


@dataclass(frozen=True)
class Host:
    """What stores a refused message, again and again until it may be completed."""

    name: str = "host"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        if carried:
            await never(calls)
        try:
            await StoredDeadLetters(ExploredStore(calls, STORE, CAPABILITIES), NoBlobs()).keep(DELIVERY, "no", "")
        except MAY_RETRY:
            return None
        return True


def discards(times: int = 1) -> Program:
    """Discards what is dead."""

    async def act(operations: StoreOperations) -> None:
        for dead in await operations.dead_letters(QUEUE):
            await operations.set_aside(dead, life_s=LIFE_S)

    return Acting("discards", act, times)


def restores(times: int = 1) -> Program:
    """Restores what was discarded."""

    async def act(operations: StoreOperations) -> None:
        for kept in await operations.set_aside_of(QUEUE):
            await operations.restore(QUEUE, kept.sequence)

    return Acting("restores", act, times)


def resubmits(times: int = 1) -> Program:
    """Resubmits what is dead."""

    async def act(operations: StoreOperations) -> None:
        for dead in await operations.dead_letters(QUEUE):
            await operations.resubmit(QUEUE, dead.sequence)

    return Acting("resubmits", act, times)


class Site(BusModel):
    """A bus, with a dead letter on it or none."""

    def __init__(self, *, is_dead: bool) -> None:
        super().__init__([QueueModel(QUEUE)], {QUEUE: [QUEUE]}, start_ms=START_MS)
        self._dead = (Dead(0, self.queues.message_number(REFUSED), "no", 1),) if is_dead else ()

    def initial(self) -> BusState:
        return msgspec.structs.replace(super().initial(), dead=self._dead)


@dataclass
class Watch:
    """NoLost: the message is a dead letter, kept, or waits to be handled again.  Once: of each kind there is one."""

    bus: Site

    def initial(self) -> Hashable:
        return None

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        return None

    def step(self, ghost: Hashable, event: Any) -> Hashable:
        return ghost

    def check(self, ghost: Any, states: Sequence[Any]) -> Finding | None:
        letters, kept, dead, sent = self.outcome(ghost, states)
        if not (letters or kept or dead or sent):
            return Finding("NoLost", "the dead letter is neither there, nor kept, nor resubmitted")
        if letters > 1 or kept > 1:
            return Finding("Once", f"one message is stored as {letters} dead letters, and kept as {kept}")
        return None

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        return False

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        return []

    def outcome(self, ghost: Any, states: Sequence[Any]) -> tuple[int, int, int, int]:
        """How often the message is a stored dead letter, kept, one of the bus, and in its queue again."""
        places = [key.partition for key in visible(states[STORE], START_MS)]
        bus: BusState = states[BUS]
        return places.count(LETTERS + QUEUE), places.count(DISCARDED + QUEUE), len(bus.dead), len(bus.tasks[0])


def stored(*, kept: bool) -> dict[DocumentKey, bytes]:
    """A dead letter in the store, `kept` as by a discard that was broken off."""
    given = Given()
    letters, aside = (StoredDeadLetters(given.place.store, NoBlobs(), discarded=each) for each in (False, True))
    done(letters.keep(DELIVERY, "no", ""))
    if kept:
        (dead,) = done(letters.list(QUEUE))
        done(aside.put(dead, ttl_s=LIFE_S))
    return given.documents()


def explored(*programs: Program, on_bus: bool = False, kept: bool = False, budgets: Budgets | None = None) -> Report:
    """The exploration of some operators and one dead letter, in the store or (`on_bus`) on the bus."""
    bus = Site(is_dead=on_bus)
    scenario: Any = StreamScenario(
        programs,
        Watch(bus),
        documents=[{} if on_bus else stored(kept=kept)],
        budgets=budgets or Budgets(),
        keeps=False,
        beside=[bus],
    )
    return search(scenario)


OPERATORS: dict[str, Callable[[], Program]] = {"discards": discards, "restores": restores, "resubmits": resubmits}


def acted(*, operators: Sequence[str], faults: dict[str, int] | None = None, **options: Any) -> Report:
    """The exploration of some operators by name."""
    programs = [OPERATORS[name]() for name in operators]
    return explored(*programs, budgets=Budgets(**(faults or {})), **options)
