"""The protocol of FlameStream ("Optimistic exactly-once"), as it was published, and the repairs, one flag each.

The source numbers its records and keeps them.  Tasks take records as they come, and put their results out at once.
Who sends or has processed something reports its id to the acker, whose ring tells the *bound*: the position below which
nothing is under way.  The barrier keeps results until the bound has passed them, and hands them to the consumer as
bundles, in the order of their causes.  The coordinator commits at the bound, beside that: each task saves its state as
it was there.  After a failure all begin again at the last commit, and the barrier drops what the consumer says it has.

A part that has died is one that is slow, until somebody notices and all begin again: so one event, at any moment,
stands for the death of any part.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from outbox.verify.explorer.ops import NO_LOCKS, Event, Finding, Locks, Op, Outcome, Reach
from outbox.verify.explorer.run import Calls
from tests.simulation.prior_art.small import Resource, Watch

CLUSTER = 0
SOURCE, BARRIER, COORDINATOR = "source", "barrier", "coordinator"
CHILDREN_MAX = 7

State = tuple[int, ...]
"""A task's state: the positions of the records that it has taken."""
Item = tuple[int, int, State]
"""A result: the position of the record that it comes from, which of its results it is, and the state behind it."""
Place = tuple[int, int]
"""Where a result stands in the order of all: its position, and which of its results it is."""


@dataclass(frozen=True)
class Rules:
    """What the repairs add to the published protocol; the last two it has, and is broken without."""

    waits: bool = False
    """A commit waits for the barrier to have released all below it."""
    by_path: bool = False
    """What has left is known by position and path; published: by position."""
    notes: Literal["before", "after", "together"] = "before"
    """When the consumer notes the last bundle: before it takes the results (published), after that, or with them."""
    bounded: bool = False
    """A record that is a whole ring ahead of its head waits; published: it shares the head's slot."""
    heartbeats_follow: bool = True
    """The source tells that it is past a position behind the record there."""
    children_first: bool = True
    """A task reports what it sends before, or with, what it was sent for."""


PUBLISHED = Rules()
REPAIRED = Rules(waits=True, by_path=True, notes="together", bounded=True)


class AckTable(NamedTuple):
    """The acker's ring: for each position from the head on the XOR of all ids that were sent or processed there.

    An id goes in twice, in whatever order, so a slot is zero where nothing is under way.
    """

    head: int
    """The bound, if heartbeats have come as far."""
    slots: tuple[int, ...]

    def acked(self, at: int, ids: int) -> AckTable:
        """The ring after a report; one from behind the head comes too late."""
        if at < self.head:
            return self
        slots = list(self.slots)
        slots[at % len(slots)] ^= ids
        return AckTable(self.head, tuple(slots))

    def promoted(self, up_to: int) -> AckTable:
        """The ring with its head at the first position under way, or where heartbeats end."""
        head = self.head
        while head < up_to and not self.slots[head % len(self.slots)]:
            head += 1
        return AckTable(head, self.slots)


def id_of(at: int, child: int = -1) -> int:
    """The id of a record, or of one of its results: no XOR of several is that of others."""
    return 1 << (at * (CHILDREN_MAX + 1) + child + 1)


def ids_of(items: Sequence[Item]) -> int:
    """The XOR of the ids of results."""
    return sum(id_of(at, child) for at, child, _ in items)


class Now(NamedTuple):
    """A cluster; what is behind `out` is lost when it begins again."""

    committed: int
    states: tuple[State, ...]
    """The tasks' states at the commit."""
    last: Place
    """The last result that the consumer has noted."""
    out: tuple[Item, ...]
    """What the consumer has taken."""
    table: AckTable
    heartbeat: int
    queues: tuple[tuple[Any, ...], ...]
    """What is on its way to each task, and to the barrier."""
    asked: int = 0
    """The position of the commit that is being prepared."""
    parts: tuple[tuple[str, State], ...] = ()
    """Who has prepared it, with the state there."""

    def told(self, heartbeat: int, table: AckTable) -> Now:
        """The cluster after a report to the acker."""
        return self._replace(heartbeat=heartbeat, table=table.promoted(heartbeat))


class Cluster(Resource):
    """All that lies between the parts: channels, the acker, what is durable at the coordinator and the consumer.

    Tasks that `hold` a record until the bound has come to it are another way to keep the order.
    """

    name = "cluster"

    def __init__(self, rules: Rules, *, tasks: int, slots: int, hold: bool) -> None:
        self._rules, self._tasks, self._slots, self._hold = rules, tasks, slots, hold
        self._names = [task_name(index) for index in range(tasks)]
        self._voters = {*self._names, BARRIER} if rules.waits else {*self._names}

    def initial(self) -> Now:
        return self._begun(0, ((),) * self._tasks, (-1, -1), ())

    def _begun(self, at: int, states: tuple[State, ...], last: Place, out: tuple[Item, ...]) -> Now:
        table = AckTable(at, (0,) * self._slots)
        return Now(at, states, last, out, table, at, ((),) * (self._tasks + 1))

    def events(self, state: Now, now_ms: int) -> list[Event]:
        after = self._begun(*state[:4])
        return [Event("all begin again at the last commit", after, None, "power", ends_all=True)]

    def reach(self, verb: str) -> Reach:
        return "write"

    def outcomes(self, state: Now, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        return [Outcome(*each) for each in getattr(self, f"_{op.verb}")(state, *op.args)]

    def describe(self, op: Op) -> str:
        return f"{op.verb} {' '.join(map(str, op.args))}"

    # Recovery

    def _begin(self, now: Now, name: str) -> Iterator[tuple[str, Now, Any]]:
        own = now.states[self._names.index(name)] if name in self._names else now.committed
        yield f"-> {own}", now, own

    def _last(self, now: Now) -> Iterator[tuple[str, Now, Any]]:
        yield f"-> {now.last}", now, now.last

    # Records and the acker

    def _enter(self, now: Now, at: int) -> Iterator[tuple[str, Now, Any]]:
        """A record of the source is sent, and its id reported."""
        if at - now.table.head < self._slots + (not self._rules.bounded):
            yield "", _sent(now, at % self._tasks, (at,)).told(now.heartbeat, now.table.acked(at, id_of(at))), None

    def _heartbeat(self, now: Now, at: int) -> Iterator[tuple[str, Now, Any]]:
        yield "", now.told(at, now.table), None

    def _take(self, now: Now, name: str, known: int) -> Iterator[tuple[str, Now, Any]]:
        """What comes next to a task, whose record stays under way until it is passed on, or to the barrier."""
        index = self._tasks if name == BARRIER else self._names.index(name)
        queue, bound = now.queues[index], now.table.head
        is_asked = now.asked and name in self._voters - {voter for voter, _ in now.parts}
        if is_asked and (name != BARRIER or known >= now.asked):
            yield f"-> prepare {now.asked}", now, ("prepare", now.asked)
        if name != BARRIER:
            if queue and (bound >= queue[0] or not self._hold):
                yield f"-> record {queue[0]}", now, ("record", queue[0])
            return
        if queue:
            at, child, _ = queue[0]
            after = _taken(now, index).told(now.heartbeat, now.table.acked(at, id_of(at, child)))
            yield f"-> {queue[0]}", after, ("item", queue[0])
        if bound > known:
            yield f"-> bound {bound}", now, ("bound", bound)

    def _done(self, now: Now, at: int) -> Iterator[tuple[str, Now, Any]]:
        yield "", now.told(now.heartbeat, now.table.acked(at, id_of(at))), None

    def _forward(self, now: Now, name: str, at: int, items: Sequence[Item], ids: int) -> Iterator[tuple[str, Now, Any]]:
        """A record's results are sent, and ids reported."""
        after = _sent(_taken(now, self._names.index(name)), self._tasks, items)
        yield "", after.told(now.heartbeat, now.table.acked(at, ids)), None

    # Commits

    def _bound(self, now: Now, known: int) -> Iterator[tuple[str, Now, Any]]:
        if now.table.head > known:
            yield f"-> {now.table.head}", now, now.table.head

    def _prepare(self, now: Now, at: int) -> Iterator[tuple[str, Now, Any]]:
        yield "", now._replace(asked=at, parts=()), None

    def _prepared(self, now: Now, name: str, state: State) -> Iterator[tuple[str, Now, Any]]:
        yield "", now._replace(parts=tuple(sorted((*now.parts, (name, state))))), None

    def _commit(self, now: Now, at: int) -> Iterator[tuple[str, Now, Any]]:
        parts = dict(now.parts)
        if parts.keys() == self._voters:
            states = tuple(parts[name] for name in self._names)
            yield "", now._replace(committed=at, states=states, asked=0, parts=()), None

    # The consumer

    def _note(self, now: Now, last: Place) -> Iterator[tuple[str, Now, Any]]:
        yield "", now._replace(last=last), None

    def _accept(self, now: Now, items: Sequence[Item], last: Place | None) -> Iterator[tuple[str, Now, Any]]:
        yield "", now._replace(out=(*now.out, *items), last=last or now.last), None

    def _nothing(self, now: Now) -> Iterator[tuple[str, Now, Any]]:
        """A wait that never ends."""
        yield from ()


def task_name(index: int) -> str:
    """The name of a task."""
    return f"task {index}"


def _sent(now: Now, queue: int, what: Sequence[Any]) -> Now:
    queues = list(now.queues)
    queues[queue] = (*queues[queue], *what)
    return now._replace(queues=tuple(queues))


def _taken(now: Now, queue: int) -> Now:
    queues = list(now.queues)
    queues[queue] = queues[queue][1:]
    return now._replace(queues=tuple(queues))


class Source:
    """Sends its records one after the other, and tells that it is past them."""

    name = SOURCE

    def __init__(self, rules: Rules, records: int) -> None:
        self._rules, self._records = rules, records

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        at: int = await calls(CLUSTER, "begin", self.name) if carried is None else carried
        if at == self._records:
            await calls(CLUSTER, "nothing")
        if not self._rules.heartbeats_follow:
            await calls(CLUSTER, "heartbeat", at + 1)
        await calls(CLUSTER, "enter", at)
        if self._rules.heartbeats_follow:
            await calls(CLUSTER, "heartbeat", at + 1)
        return at + 1


class Task:
    """Takes its records and puts out one result or several for each; it knows its state as it was at any bound."""

    def __init__(self, rules: Rules, index: int, children: int) -> None:
        self.name = task_name(index)
        self._rules, self._children = rules, children

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        state: State = await calls(CLUSTER, "begin", self.name) if carried is None else carried
        kind, at = await calls(CLUSTER, "take", self.name, 0)
        if kind == "prepare":
            await calls(CLUSTER, "prepared", self.name, tuple(each for each in state if each < at))
            return state
        state = (*state, at)
        items = results(at, state, self._children)
        if not self._rules.children_first:
            await calls(CLUSTER, "done", at)
        own = id_of(at) if self._rules.children_first else 0
        await calls(CLUSTER, "forward", self.name, at, items, own ^ ids_of(items))
        return state


def results(at: int, state: State, children: int) -> tuple[Item, ...]:
    """What a task puts out for a record."""
    return tuple((at, child, state) for child in range(children))


class Barrier:
    """Releases what the bound has passed, at most `bundle_max` results at once."""

    name = BARRIER

    def __init__(self, rules: Rules, bundle_max: int) -> None:
        self._rules, self._bundle_max = rules, bundle_max

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        held, known, left = carried or ((), 0, await calls(CLUSTER, "last"))
        kind, what = await calls(CLUSTER, "take", self.name, known)
        if kind == "prepare":
            await calls(CLUSTER, "prepared", self.name, ())
        elif kind == "item" and not self._has_left(what, left):
            held = tuple(sorted((*held, what)))
        elif kind == "bound":
            ready = [item for item in held if item[0] < what]
            for begin in range(0, len(ready), self._bundle_max):
                await self._release(calls, ready[begin : begin + self._bundle_max])
            held, known = held[len(ready) :], what
        return held, known, left

    def _has_left(self, item: Item, left: Place) -> bool:
        return item[:2] <= left if self._rules.by_path else item[0] <= left[0]

    async def _release(self, calls: Calls, bundle: Sequence[Item]) -> None:
        notes, last = self._rules.notes, bundle[-1][:2]
        if notes == "before":
            await calls(CLUSTER, "note", last)
        await calls(CLUSTER, "accept", bundle, last if notes == "together" else None)
        if notes == "after":
            await calls(CLUSTER, "note", last)


class Coordinator:
    """Commits at the bound, over and over."""

    name = COORDINATOR

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        at: int = await calls(CLUSTER, "begin", self.name) if carried is None else carried
        at = await calls(CLUSTER, "bound", at)
        await calls(CLUSTER, "prepare", at)
        await calls(CLUSTER, "commit", at)
        return at


class FlowMonitor(Watch):
    """The promises, decided from what is under way, what the consumer has taken, and the commit."""

    def __init__(self, *promises: str, records: int, tasks: int, children: int) -> None:
        super().__init__(*promises)
        self._records = records
        states = [tuple(range(at % tasks, at + 1, tasks)) for at in range(records)]
        self._expected = [item for at in range(records) for item in results(at, states[at], children)]
        self._tasks = tasks

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        return None

    def step(self, ghost: Hashable, event: Hashable) -> Hashable:
        return ghost

    def check(self, ghost: Hashable, states: Sequence[Now]) -> Finding | None:
        (now,) = states
        *taken, to_barrier = now.queues
        under_way = [at for queue in taken for at in queue] + [at for at, _, _ in to_barrier]
        found = [
            Finding("BoundHolds", f"the bound is {now.table.head}, and {at} is under way")
            for at in under_way
            if at < now.table.head
        ]
        wanted = tuple(tuple(range(task, now.committed, self._tasks)) for task in range(self._tasks))
        if now.states != wanted:
            found.append(Finding("Recoverable", f"the commit at {now.committed} holds {now.states}, not {wanted}"))
        for count, (item, expected) in enumerate(zip(now.out, self._expected, strict=False)):
            if item != expected:
                promise = "NoDuplicate" if item in now.out[:count] else "NoHole"
                found.append(Finding(promise, f"{item} was released in place of {expected}"))
        if len(now.out) > len(self._expected):
            found.append(Finding("NoDuplicate", f"{now.out[-1]} was released twice"))
        return next(iter(self.chosen(found)), None)

    def is_over(self, ghost: Any, states: Sequence[Now], now_ms: int) -> bool:
        return False

    def final(self, ghost: Hashable, states: Sequence[Now], now_ms: int) -> list[Finding]:
        (now,) = states
        found = [Finding("NoLost", f"{item} was never released") for item in self._expected if item not in now.out]
        if now.table.head < self._records:
            found = [Finding("EveryMessageEnds", f"the bound stands at {now.table.head} of {self._records}")]
        return self.chosen(found)
