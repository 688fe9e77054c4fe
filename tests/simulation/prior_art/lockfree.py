"""Lock-free queues over compare-and-swap, and handlers that move elements between them, with their known mistakes.

A queue is a row of cells and an index that says where to begin looking for its end.  To push is to swap an element
into the first empty cell; a handler keeps what it is about to do in a register of its own, so that any number of
replicas may do it together: `prepare i` (find out where element i would go), `write i k` (put it into cell k).
An element is an envelope: who made it from which input, and a value.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from outbox.errors import OutcomeUnknown
from outbox.verify.explorer.ops import NO_LOCKS, Finding, Locks, Op, Outcome, Reach
from outbox.verify.explorer.run import Calls
from tests.simulation.prior_art.keyvalue import Found, Lost, Put, Shelves, Wrote, cells
from tests.simulation.prior_art.small import Resource, Watch

STORE, DOOR = 0, 1
QUEUE, REGISTERS, INDEX = "queue", "registers", "index"

Sameness = Literal["none", "value", "identity", "reply"]
"""By what an element that lies in a cell already is known to be the one that was to be written there; by the identity
in the `reply` to the lost swap, where the store tells it, instead of that in another read."""


class Element(NamedTuple):
    """An envelope; a value of None: it was cleaned up, and its cell is never used again."""

    identity: str
    value: str | None


class Step(NamedTuple):
    """A handler's register: which input it is at and, while it writes, the cell that it has chosen."""

    phase: Literal["prepare", "write"] = "prepare"
    input: int = 0
    cell: int = -1


class Door(Resource):
    """Lets each process begin once, as one does that stays dead after a crash, and knows who has finished."""

    name = "door"

    def initial(self) -> tuple[str, ...]:
        return ()

    def reach(self, verb: str) -> Reach:
        return "read"

    def outcomes(self, state: tuple[str, ...], op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        entry = f"{op.verb} {op.args[0]}"
        return [] if entry in state else [Outcome("", tuple(sorted((*state, entry))), None)]

    def describe(self, op: Op) -> str:
        return f"{op.verb} {op.args[0]}"


class Cells:
    """One queue, or the registers, as a process reaches them."""

    def __init__(self, calls: Calls, partition: str) -> None:
        self._calls = calls
        self._partition = partition

    async def get(self, key: str) -> Found:
        found: Found = await self._calls(STORE, "read", self._partition, key, 0)
        return found

    async def wait(self, key: str) -> Found:
        found: Found = await self._calls(STORE, "wait", self._partition, key)
        return found

    async def swap(self, key: str, version: int, value: Hashable) -> Wrote | Lost:
        """Compare and swap, repeated until there is an answer."""
        while True:
            with suppress(OutcomeUnknown):
                answer: Wrote | Lost = await self._calls(STORE, "write", self._partition, (Put(key, value, version),))
                return answer

    async def remove(self, key: str) -> None:
        await self._calls(STORE, "write", self._partition, (Put(key, None),))

    async def index(self) -> int:
        return (await self.get(INDEX)).value or 0

    async def advance(self, index: int) -> None:
        """Raise the index, unless somebody was faster; it is only a hint."""
        while True:
            found = await self.get(INDEX)
            if (found.value or 0) >= index or isinstance(await self.swap(INDEX, found.version, index), Wrote):
                return

    async def end(self) -> int:
        """The first empty cell."""
        at = await self.index()
        while (await self.get(cell_key(at))).value is not None:
            at += 1
        return at


def cell_key(index: int) -> str:
    """Where an element lies."""
    return f"cell {index:03}"


class Producer:
    """Pushes one element.

    `index_first` raises the index before it writes; one that `knows_its_own` finds its element where a repeated swap
    has lost to its own first try.  One that `returns` begins again after a crash.
    """

    def __init__(
        self,
        name: str,
        value: str = "",
        *,
        index_first: bool = False,
        knows_its_own: bool = False,
        returns: bool = False,
    ) -> None:
        self.name = name
        self._element = Element(f"{name} 0", value or name)
        self._index_first = index_first
        self._knows_its_own = knows_its_own
        self._returns = returns

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        if not self._returns:
            await calls(DOOR, "begin", self.name)
        queue = Cells(calls, QUEUE)
        await (self._reserve(queue) if self._index_first else self._push(queue))
        await calls(DOOR, "done", self.name)
        return None

    async def _push(self, queue: Cells) -> None:
        at = await queue.index()
        while True:
            answer = await queue.swap(cell_key(at), 0, self._element)
            if isinstance(answer, Wrote) or (self._knows_its_own and answer.current.value == self._element):
                await queue.advance(at + 1)
                return
            at = max(await queue.index(), at + 1)

    async def _reserve(self, queue: Cells) -> None:
        while True:
            found = await queue.get(INDEX)
            at = found.value or 0
            if isinstance(await queue.swap(INDEX, found.version, at + 1), Wrote):
                await queue.swap(cell_key(at), 0, self._element)
                return


class Replica:
    """One of several processes that are together one handler: it moves each input to the end of the queue."""

    def __init__(self, handler: str, values: Sequence[str], sameness: Sameness) -> None:
        self.name = handler
        self._values = values
        self._sameness = sameness

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        registers, queue = Cells(calls, REGISTERS), Cells(calls, QUEUE)
        found = await registers.get(self.name)
        step = Step(*found.value or ())
        if step.input >= len(self._values):
            await calls(DOOR, "done", self.name)  # the first may say so; the others have nothing to wait for
            await registers.wait("never")
        after = await (self._prepared(queue, step) if step.phase == "prepare" else self._written(queue, step))
        await registers.swap(self.name, found.version, after)  # whoever loses begins anew with what is there
        return None

    async def _prepared(self, queue: Cells, step: Step) -> Step:
        return Step("write", step.input, await queue.end())

    async def _written(self, queue: Cells, step: Step) -> Step:
        element = Element(f"{self.name} {step.input}", self._values[step.input])
        if await self._push_at(queue, element, step.cell):
            return Step("prepare", step.input + 1)
        return Step("prepare", step.input)

    async def _push_at(self, queue: Cells, element: Element, at: int) -> bool:
        answer = await queue.swap(cell_key(at), 0, element)
        if isinstance(answer, Wrote):
            await queue.advance(at + 1)
            return True
        if self._sameness == "none":
            return False
        there = answer.current if self._sameness == "reply" else await queue.get(cell_key(at))
        if there.value is None:
            return False
        known = Element(*there.value)
        return known.value == element.value if self._sameness == "value" else known.identity == element.identity


class Cleaner:
    """Takes away what lies before the index; one that `leaves_tombstones` keeps who was there, and takes the value."""

    name = "cleaner"

    def __init__(self, *, leaves_tombstones: bool) -> None:
        self._leaves_tombstones = leaves_tombstones

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        queue, at = Cells(calls, QUEUE), int(carried or 0)
        found = await queue.wait(INDEX)
        if found.value <= at:
            await queue.wait("never")
        if self._leaves_tombstones:
            there = await queue.get(cell_key(at))
            await queue.swap(cell_key(at), there.version, Element(Element(*there.value).identity, None))
        else:
            await queue.remove(cell_key(at))
        return at + 1


class Counter:
    """Counts a queue's elements in a row of a database: the row says how far it is, and how many there were.

    As it was written it goes on to the next position whether there is an element or not.
    """

    name = "counter"

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        rows, queue = Cells(calls, REGISTERS), Cells(calls, QUEUE)
        found = await rows.get("row")
        at, count = found.value or (0, 0)
        there = await (queue.wait(cell_key(at)) if self._waits else queue.get(cell_key(at)))
        await rows.swap("row", found.version, (at + 1, count + (there.value is not None)))
        return None


class QueueMonitor(Watch):
    """The promises, decided from the cells, the registers, and every element that was ever written into a cell."""

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource != STORE or op.verb != "write" or not isinstance(outcome.result, Wrote) or op.args[0] != QUEUE:
            return None
        put = op.args[1][0]
        if put.key == INDEX or put.value is None or put.value[1] is None:
            return None
        return put.key, put.value[0]

    def step(self, ghost: tuple[tuple[str, str], ...], event: tuple[str, str]) -> Hashable:
        key, identity = event
        if any(identity == known for _, known in ghost):
            return Finding("NoDuplicate", f"{identity} was pushed before and is written into {key}")
        return tuple(sorted((*ghost, event)))

    def check(self, ghost: tuple[tuple[str, str], ...], states: Sequence[Any]) -> Finding | None:
        store: Shelves = states[STORE]
        used, pushed = {key for key, _ in ghost}, {identity for _, identity in ghost}
        found = []
        if any(cell_key(i) not in used for i in range(cells(store, QUEUE).get(INDEX) or 0)):
            found.append(Finding("IndexFollows", "the index is past a cell that was never written"))
        for name, register in cells(store, REGISTERS).items():
            if name == "row":
                at, count = register
                if count < sum(cell_key(i) in used for i in range(at)):
                    found.append(Finding("NoLost", f"the counter has passed {at} cells and counted {count}"))
                continue
            gone = [i for i in range(Step(*register).input) if f"{name} {i}" not in pushed]
            found += [Finding("NoLost", f"{name} has passed its input {i} and never pushed it") for i in gone]
        return next(iter(self.chosen(found)), None)

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        return False

    def final(self, ghost: tuple[tuple[str, str], ...], states: Sequence[Any], now_ms: int) -> list[Finding]:
        pushed, used = {identity.split()[0] for _, identity in ghost}, {key for key, _ in ghost}
        done = [entry.split()[1] for entry in states[DOOR] if entry.startswith("done")]
        found = [Finding("NoLost", f"{name} has ended and never pushed") for name in done if name not in pushed]
        if any(cell_key(i) not in used for i in range(max(len(used), cells(states[STORE], QUEUE).get(INDEX) or 0))):
            found.append(Finding("NoHole", "there is an empty cell before which readers wait for ever"))
        row = cells(states[STORE], REGISTERS).get("row")
        if row is not None and row[1] < len(ghost):
            found.append(Finding("EveryMessageEnds", f"{row[1]} of {len(ghost)} elements were counted"))
        for name, register in cells(states[STORE], REGISTERS).items():
            if name != "row" and f"done {name}" not in states[DOOR]:
                found.append(Finding("EveryMessageEnds", f"{name} stands still at {Step(*register)}"))
        return self.chosen(found)
