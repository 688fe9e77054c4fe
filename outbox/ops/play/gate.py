"""A gate before every port call of one worker: the call waits there until a player says how it goes.

The faults are those of `outbox.verify.faults`: killed before or after the call, its reply lost, refused; and the call
itself lost, of which the worker sees the same.  Only calls of the attempt in hand wait.  What the worker does beside it
(marks, renewals, signs of life) passes, unless the worker is dead: then no call of it has an effect any more.  Its own
sweeps find nothing, because the player says when a sweep happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast, get_args

import msgspec

from outbox.errors import OutboxError, OutcomeUnknown, Throttled
from outbox.ops.play.shop import Stock
from outbox.ports import (
    Delivery,
    Document,
    DocumentKey,
    Lost,
    MessageBus,
    Output,
    Replace,
    Session,
    Settle,
    StateStore,
    StoreCapabilities,
    StorePorts,
    Won,
    Write,
)
from outbox.stored import STATE, StateItem
from outbox.verify.faults import SimulatedCrash

Result = TypeVar("Result")
Step = Literal["receive", "load", "decide", "commit", "push", "settle"]
STEPS: tuple[Step, ...] = get_args(Step)
Decision = Literal["go", "kill-before", "kill-after", "lose-call", "lose", "refuse"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)


@dataclass(frozen=True, slots=True)
class Call:
    """A port call of the attempt in hand: its step, the message, and for a commit what it writes.

    `doubts` says that it follows a commit or push of unknown outcome; `etag` is the version that the state must have.
    """

    step: Step
    id: str = ""
    pieces: int = 0
    etag: int = 0
    doubts: bool = False


@dataclass(frozen=True, slots=True)
class Passed:
    """A call that was decided on, and its result: a value or an error; None where it was not made."""

    call: Call
    decision: Decision
    result: object = None


class Gate:
    """The gate of one process of a worker."""

    def __init__(self, *, changed: Callable[[], None], passed: Callable[[Passed], None]) -> None:
        """Take the listeners: to any change, and to each call that was decided on."""
        self.waiting: Call | None = None
        """The call that waits; None: the worker is on its way to one, or dead."""
        self.is_dead = False
        self.died: Passed | None = None
        """The call at which it was killed."""
        self.doubt: Step | Literal[""] = ""
        """The step of the last call, if its outcome is unknown to the worker."""
        self.put_down()
        self._changed = changed
        self._passed = passed
        self._decided: asyncio.Future[Decision] | None = None

    def put_down(self) -> None:
        """Have no message in hand, thus no lock, and no steps whose calls had an effect in its present run.

        A run `looks_late` that looks for the record behind its commit, and not before its load.
        """
        self.id, self.lock, self.looks_late = "", 0, False
        self.seen: set[Step] = set()

    def decide(self, decision: Decision) -> None:
        """Let the waiting call go as decided."""
        assert self._decided is not None, "no call waits"
        self._decided.set_result(decision)
        self.waiting = self._decided = None

    def die(self) -> None:
        """Let no call have an effect from now on."""
        self.is_dead, self.waiting = True, None
        if self._decided is not None and not self._decided.done():
            self._decided.set_exception(SimulatedCrash("killed while it waited"))
            self._decided.exception()  # marks it as retrieved, for a worker that is cancelled first

    async def through(self, call: Call, make: Callable[[], Awaitable[Result]]) -> Result:
        """Make a call as the player decides; those beside the attempt are made at once."""
        self.check_alive()
        if not _is_of_attempt():
            made = await make()
            self._changed()
            return made
        decision = await self._wait(call)
        is_made = decision in ("go", "kill-after", "lose")
        result = await _result_of(make) if is_made else None
        passed = Passed(call, decision, result)
        self._note(passed, is_made=is_made)
        if decision.startswith("kill"):
            self.died = passed
            self.die()
        self._passed(passed)
        if self.died is not None:
            raise SimulatedCrash(f"{decision} {call.step}")
        if decision == "refuse":
            raise Throttled(f"{call.step} of {call.id or 'a message'} was refused by the player; go on")
        if isinstance(result, OutboxError):
            raise result
        if decision.startswith("lose"):
            raise OutcomeUnknown(f"{call.step} of {call.id or 'a message'}: {decision} by the player; go on")
        return cast(Result, result)

    def check_alive(self) -> None:
        """Let a dead process do nothing.

        Raises:
            SimulatedCrash: it is dead.
        """
        if self.is_dead:
            raise SimulatedCrash("the process is dead")

    async def _wait(self, call: Call) -> Decision:
        self.waiting, self._decided = call, asyncio.get_running_loop().create_future()
        self._changed()
        return await self._decided

    def _note(self, passed: Passed, *, is_made: bool) -> None:
        """Keep what the view shows of the attempt in hand."""
        call, result = passed.call, passed.result
        if is_made and call.step == "receive":
            self.put_down()
            if isinstance(result, list) and result and passed.decision != "lose":
                self.id, self.lock = result[0].message.identity, result[0].lock
        self.doubt = call.step if passed.decision.startswith("lose") else ""
        if not is_made and passed.decision != "lose-call":
            return
        if call.step == "load":
            self.looks_late, self.seen = False, self.seen & {"receive", "decide"}  # a new run
        if call.step == "settle":
            self.put_down()
        elif is_made and self.id and not isinstance(result, Lost):
            self.seen.add(call.step)


async def _result_of(make: Callable[[], Awaitable[Result]]) -> Result | OutboxError:
    try:
        return await make()
    except OutboxError as error:
        return error


def _is_of_attempt() -> bool:
    """Whether this task claims and handles messages; the worker names its tasks."""
    task = asyncio.current_task()
    return task is not None and task.get_name().endswith(" claims")


class GatedStore:
    """A state store behind a gate."""

    def __init__(self, store: StateStore, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    @property
    def capabilities(self) -> StoreCapabilities:
        """The store's capabilities, except that a reply may be lost."""
        return replace(self._store.capabilities, ambiguous_replies=True)

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        gate = self._gate
        step: Step = "load" if key.id == STATE else "decide"
        gate.looks_late = gate.looks_late or (step == "decide" and (gate.doubt == "commit" or "load" in gate.seen))
        call = Call(step, gate.id, doubts=gate.doubt == "commit" and step == "decide")
        return await gate.through(call, lambda: self._store.read(key, session=session))

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        if len({operation.key for operation in operations}) < len(operations):
            return await self._store.write(operations)  # refused at a glance, and written again without its marks
        return await self._gate.through(_commit(self._gate.id, operations), lambda: self._store.write(operations))

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        async for document in self._store.scan(partition, prefix=prefix):
            self._gate.check_alive()
            yield document

    async def unfinished(self) -> AsyncIterator[Document]:
        """Nothing: a worker's own sweeps come by real time, and here a sweep is the player's."""
        for document in tuple[Document, ...]():
            yield document


def _commit(id: str, operations: Sequence[Write]) -> Call:
    """The call of a commit: what becomes of the state, and under which version."""
    for operation in operations:
        if operation.key.id == STATE and isinstance(operation, Replace):
            item = msgspec.json.decode(operation.body, type=StateItem)
            return Call("commit", id, msgspec.json.decode(item.value, type=Stock).pieces, item.version - 1)
    return Call("commit", id)


class GatedBus:
    """A message bus behind a gate."""

    def __init__(self, bus: MessageBus, gate: Gate) -> None:
        self._bus = bus
        self._gate = gate

    async def send(self, outputs: Sequence[Output]) -> None:
        call = Call("push", self._gate.id, doubts=self._gate.doubt == "push")
        await self._gate.through(call, lambda: self._bus.send(outputs))

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Receive as soon as the player lets it through; time stands still meanwhile."""
        self._gate.put_down()
        return await self._gate.through(
            Call("receive"), lambda: self._bus.receive(queue, count_max=count_max, wait_s=0)
        )

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        call = Call("settle", delivery.message.identity)
        await self._gate.through(call, lambda: self._bus.settle(delivery, settle))

    async def renew(self, delivery: Delivery) -> int:
        return await self._gate.through(Call("settle"), lambda: self._bus.renew(delivery))


class GatedBackend:
    """A store and a bus behind the gate of one worker."""

    def __init__(self, ports: StorePorts, gate: Gate) -> None:
        self._ports = replace(ports, store=GatedStore(ports.store, gate), bus=GatedBus(ports.bus, gate))

    def ports(self) -> StorePorts:
        return self._ports


_store: type[StateStore] = GatedStore
_bus: type[MessageBus] = GatedBus
