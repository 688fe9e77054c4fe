"""The exploration of ordered logs and processors: their own code over models of stores, and its programs.

A replica's attempt is one step; what it keeps for the next one is nothing, as after a restart, unless it is `warm`:
then it is the register, and where its logs are known to end.  Whatever waits, waits for a change in a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outbox.engine.engine import Engine
from outbox.errors import OtherLog, Trimmed
from outbox.ports import BlobStore, Create, DocumentKey, NoBlobs, StateStore, StoreCapabilities, Tag
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.streams.log import OrderedLog
from outbox.streams.log_places import ChangeWait, Place
from outbox.streams.pipeline.plan import PipelinePlan, Superseded
from outbox.streams.pipeline.replica import FINAL, PipelineReplica
from outbox.streams.pipeline.tasks import BeginAgain
from outbox.streams.plan import ProcessorPlan, QueueOutput
from outbox.streams.replica import Progress, Replica
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.models.store import CAPABILITIES, StoreModel
from outbox.verify.explorer.ops import Model, Monitor
from outbox.verify.explorer.ports import ExploredBlobs, ExploredBus, ExploredStore
from outbox.verify.explorer.run import Calls, Program, done
from outbox.verify.explorer.scenario import START_MS


@dataclass(frozen=True, slots=True)
class Stores:
    """The models of logs and registers, by name (default: the first), and the capabilities of the stores.

    `item_bytes_max` says of some stores how much a document may hold; what does not fit goes to `blobs`, a model's
    number (default: nowhere).
    """

    capabilities: StoreCapabilities = CAPABILITIES
    of_logs: Mapping[str, int] = field(default_factory=dict)
    of_registers: Mapping[str, int] = field(default_factory=dict)
    item_bytes_max: Mapping[int, int] = field(default_factory=dict)
    blobs: int | None = None

    @property
    def count(self) -> int:
        return 1 + max([0, *self.of_logs.values(), *self.of_registers.values()])

    def places(self, calls: Calls) -> Places:
        """The stores as a program reaches them."""
        stores = [ExploredStore(calls, resource, self.of(resource)) for resource in range(self.count)]
        blobs: BlobStore = NoBlobs() if self.blobs is None else ExploredBlobs(calls, self.blobs)
        return Places(self, [Place(store, blobs, calls.now_ms, calls.new_id) for store in stores])

    def of(self, resource: int) -> StoreCapabilities:
        """The capabilities of one of the stores."""
        size = self.item_bytes_max.get(resource)
        return self.capabilities if size is None else replace(self.capabilities, item_bytes_max=size)


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one program's logs and registers."""

    at: Stores
    made: Sequence[Place]

    def of(self, log: OrderedLog[Any]) -> Place:
        """The place of a log."""
        return self.made[self.at.of_logs.get(log.name, 0)]

    def register_of(self, processor: str) -> StateStore:
        """The store of a processor's register."""
        return self.made[self.at.of_registers.get(processor, 0)].store


class Given:
    """A store at the beginning of an exploration."""

    def __init__(self) -> None:
        self.engine = Engine.in_memory()
        self.place = Place(self.engine.store(), self.engine.blobs, lambda: START_MS)

    def documents(self) -> dict[DocumentKey, bytes]:
        """All that is in it."""
        spaces = self.engine.state.documents.spaces
        return {
            DocumentKey(space.removeprefix("p/"), id): document.value
            for space, documents in spaces.items()
            for id, document in documents.items()
        }

    def apart(self, at: Stores) -> list[dict[DocumentKey, bytes]]:
        """All that is in it, for each of several stores."""
        given: list[dict[DocumentKey, bytes]] = [{} for _ in range(at.count)]
        for key, body in self.documents().items():
            kind, name = key.partition.split("/")[:2]
            given[(at.of_logs if kind == "log" else at.of_registers).get(name, 0)][key] = body
        return given

    def begun(self, plan: ProcessorPlan) -> Replica:
        """A replica that has created the register of a processor."""
        first = Replica(plan, self.place.store, now_ms=lambda: START_MS, new_id=lambda: "first")
        done(first.look_or_begin())
        return first


async def never(calls: Calls) -> None:
    """Wait for what does not happen: a program that is over."""
    await calls(0, "changed", ())


@dataclass(frozen=True)
class Replicas:
    """Replicas of a processor, whose queues are a model's; one that `ends` is over when it has nothing to do."""

    plan: ProcessorPlan
    at: Stores
    warm: bool = False
    ends: bool = False
    report_every: int = 1 << 30
    upkeep: bool = False
    make: Callable[..., Replica] = Replica
    bus: int | None = None

    @property
    def name(self) -> str:
        return f"replica of {self.plan.name}"

    def _on(self, places: Places, calls: Calls) -> ProcessorPlan:
        plan = self.plan.on(places.of)
        if self.bus is None:
            return plan
        send = ExploredBus(calls, self.bus).send
        queues = {key: each for key, each in plan.outputs.items() if isinstance(each, QueueOutput)}
        moved = {key: QueueOutput(replace(each.queue, send=send)) for key, each in queues.items()}
        return replace(plan, outputs={**plan.outputs, **moved})

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        places = self.at.places(calls)
        replica = self.make(
            self._on(places, calls),
            places.register_of(self.plan.name),
            now_ms=calls.now_ms,
            new_id=calls.new_id,
            report_every=self.report_every,
            upkeep=self.upkeep,
        )
        if carried is not None:
            replica.remember(carried)
        try:
            progress = await replica.step()
            if progress is Progress.IDLE and self.ends:
                await never(calls)
            if progress is Progress.IDLE:
                await ChangeWait().wait(replica.seen())
        except (Trimmed, OtherLog):  # which stop a replica
            raise
        except MAY_RETRY:
            replica.known = None
        return replica.remembered() if self.warm else None


@dataclass(frozen=True)
class PipelineReplicas:
    """Replicas of a pipeline that feed up to `entries_max` entries at once, and make a checkpoint behind each
    `checkpoint_every`th time.

    With `beside` checkpoints are made while entries go on, as in production, and as often as there is something new.
    """

    plan: PipelinePlan
    at: Stores
    checkpoint_every: int = 1
    make: Callable[..., PipelineReplica] = PipelineReplica
    beside: bool = False
    entries_max: int = 1

    @property
    def name(self) -> str:
        return f"replica of {self.plan.name}, version {self.plan.version}, {self.entries_max} at once"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        places = self.at.places(calls)
        place = replace(places.made[0], store=places.register_of(self.plan.name))
        replica = self.make(self.plan.on(places.of), place, entries_max=self.entries_max)
        tasks = []
        try:
            await replica.begin(again=carried is not None)
            loops = [self._turns(replica, 0 if self.beside else self.checkpoint_every)]
            loops += [self._checkpoints(replica)] if self.beside else []
            tasks = [asyncio.ensure_future(each) for each in loops]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except Superseded:
            await never(calls)
        except FINAL:
            raise
        except BeginAgain:
            return "again"
        except MAY_RETRY:
            pass
        finally:
            for task in tasks:
                task.cancel()
        return None

    async def _turns(self, replica: PipelineReplica, checkpoint_every: int) -> None:
        turns = 0
        while True:
            try:
                has_more = await replica.turn()
                turns += has_more
                if checkpoint_every and (turns % checkpoint_every == 0 if has_more else replica.holds_back):
                    await replica.checkpoint()
                elif not has_more:
                    await ChangeWait().wait(replica.seen())
            except FINAL:
                raise
            except MAY_RETRY:
                continue

    async def _checkpoints(self, replica: PipelineReplica) -> None:
        while True:
            await replica.fed.wait()
            replica.fed.clear()
            try:
                await replica.checkpoint()
                if replica.holds_back:
                    replica.fed.set()
            except FINAL:
                raise
            except MAY_RETRY:
                replica.fed.set()


@dataclass(frozen=True)
class Feeder:
    """Puts cells into a row, one after the other; no other program writes there."""

    key: Callable[[int], DocumentKey]
    cells: Sequence[bytes]
    resource: int
    capabilities: StoreCapabilities
    name: str = "feeder"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        index: int = carried or 0
        if index == len(self.cells):
            await never(calls)
        store = ExploredStore(calls, self.resource, self.capabilities)
        try:
            await store.write([Create(self.key(index), self.cells[index], tag=Tag("append"))])
        except MAY_RETRY:
            return index
        return index + 1  # won, or there already: a crash made it forget


@dataclass(frozen=True)
class StreamScenario:
    """Logs and processors to explore: who runs, on which stores, from which documents, with which faults."""

    programs: Sequence[Program]
    monitor: Monitor
    at: Stores = field(default_factory=Stores)
    documents: Sequence[Mapping[DocumentKey, bytes]] = ()
    budgets: Budgets = field(default_factory=Budgets)
    settled: Sequence[str] = ()
    keeps: bool = True
    """Whether nothing is deleted."""
    beside: Sequence[Model] = ()
    """Models behind those of the stores."""
    words: str = ""
    symmetric: bool = True
    pause_ms: int = 0
    """How long a process may be paused within a write, by a fault (`jump`)."""

    def describe(self) -> str:
        """The scope in a few words."""
        names = ", ".join(program.name for program in self.programs)
        return f"{self.words or names}; {self.budgets.describe()}"

    def kernel(self) -> Kernel:
        """The transition relation of this scenario."""
        given = [*self.documents, *[{}] * (self.at.count - len(self.documents))]
        models: list[Model] = [
            StoreModel(
                capabilities=self.at.of(number),
                documents=documents,
                stale_count=self.budgets.stale,
                settled=self.settled,
                keeps=self.keeps and not self.budgets.jump,
                name="store" if self.at.count == 1 else f"store {number}",
            )
            for number, documents in enumerate(given)
        ]
        return Kernel(
            [*models, *self.beside],
            self.programs,
            self.monitor,
            self.budgets,
            start_ms=START_MS,
            symmetric=self.symmetric,
            flight_ms_max=self.pause_ms,
        )
