"""Programs round ordered logs that only explorations here run: producers, readers, reporters, trimmers and ingests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from outbox.errors import OtherLog
from outbox.ports import NoBlobs, StorePorts
from outbox.runtime.delivery.admission import Admission
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.start.plan import CompiledApp
from outbox.streams.ingest import Ingestion
from outbox.streams.log import LogWriter, OrderedLog
from outbox.streams.log_places import ChangeWait
from outbox.streams.plan import ProcessorPlan
from outbox.streams.replica import Replica
from outbox.verify.explorer.ports import ExploredBus
from outbox.verify.explorer.programs import BACKOFF, settlement_over
from outbox.verify.explorer.run import Calls
from outbox.verify.explorer.streams import Stores, never


@dataclass(frozen=True)
class Reporter:
    """A replica that does nothing but tell the floors where the register is, whenever that has changed.

    Any replica does so between its steps; apart, so much of it need not be interleaved.
    """

    plan: ProcessorPlan
    at: Stores
    inputs: bool = False
    """Whether it reports at the floors of the inputs as well."""

    @property
    def name(self) -> str:
        return f"reporter of {self.plan.name}"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        places = self.at.places(calls)
        store = places.register_of(self.plan.name)
        replica = Replica(self.plan.on(places.of), store, now_ms=calls.now_ms, new_id=calls.new_id)
        version: str = carried or ""
        try:
            await ChangeWait().wait({store: [(replica.register.key, version)]})
            kept = await replica.register.read()
            if kept is not None:
                await replica.report(kept.register, inputs=self.inputs)
                return kept.version
        except MAY_RETRY:
            pass
        return version


@dataclass(frozen=True)
class Producer:
    """Appends values one after the other, each from the first position on, and begins again after a crash.

    With `since=None` it does not know where it had begun: each attempt is a process that has just begun, which makes so
    many `tries`.
    """

    log: OrderedLog[Any]
    values: Sequence[Any]
    at: Stores
    id: str = "p"
    since: int | None = 0
    tries: int = 1
    process: str = ""
    """Tells the chance of processes apart that append the same."""

    @property
    def name(self) -> str:
        return f"producer {self.id}{self.process}"

    def ids(self) -> list[str]:
        return [f"{self.id}{number}" for number in range(len(self.values))]

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        number: int = carried or 0
        if number == len(self.values):
            await never(calls)
        place = self.at.places(calls).of(self.log)
        log = self.log.on(replace(place, new_id=lambda: f"{self.process}{calls.new_id()}"))
        reader = log.reader_of(self.values[number])
        for _ in range(self.tries):
            with suppress(*MAY_RETRY):
                row, values = log.row(0, reader), self.values[number : number + 1]
                await row.append(values, self.ids()[number], since=self.since)
                return number + 1
        return number


@dataclass(frozen=True)
class Ingesting:
    """A process that takes the messages of a queue into a log, up to `batch` at a time; it begins by finishing.

    It does so `look_count` times: a process that finds no message finishes again, so one stale answer does not last.
    """

    plan: CompiledApp
    output: LogWriter[Any]
    at: Stores
    bus: int
    ingest: str = "i"
    batch: int = 2
    look_count: int = 1
    make: Callable[..., Ingestion] = Ingestion
    name: str = "ingest"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        place = self.at.places(calls).of(self.output.log)
        operations: Any = None  # an ingestion asks for nothing that a client would
        ports = StorePorts(place.store, ExploredBus(calls, self.bus), operations, NoBlobs())
        ingestion = self.make(
            self.ingest,
            self.plan,
            place.store,
            replace(self.output, log=self.output.log.on(place)),
            settlement_over(self.plan, ports, calls),
            now_ms=calls.now_ms,
            new_id=calls.new_id,
        )
        try:
            looks = carried or 0
            if looks < self.look_count:
                await ingestion.finish()
                return looks + 1
            found = await ExploredBus(calls, self.bus).receive_any(self.plan.paths, self.batch)
            await ingestion.take(await Admission(self.plan, NoBlobs(), BACKOFF).admit(found, calls.now_ms()))
        except OtherLog:  # which stops an ingest
            raise
        except MAY_RETRY:
            return None
        return looks


@dataclass(frozen=True)
class Trimmer:
    """Trims a log up to its horizon, whenever that has moved."""

    log: OrderedLog[Any]
    at: Stores
    name: str = "trimmer"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        log = self.log.on(self.at.places(calls).of(self.log))
        (row,) = log.rows()
        try:
            floor = await row.horizon.read()
            has_work = floor.index > floor.cleared or floor.horizon(1 << 30) > floor.index
            if not has_work or (await row.trim(None))[1] == floor:
                await ChangeWait().wait({row.place.store: [(row.horizon.key, row.horizon.version)]})
        except MAY_RETRY:
            return None
        return None


@dataclass(frozen=True)
class Reader:
    """Reads a log from its beginning, one cell after the other, and says how far it is."""

    log: OrderedLog[Any]
    at: Stores
    name: str = "reader"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        at: int = carried or 0
        log = self.log.on(self.at.places(calls).of(self.log))
        (row,) = log.rows()
        try:
            cell = await row.read(at)
            if cell is None:
                await ChangeWait().wait({row.place.store: row.seen(at)})
                return at
            await row.horizon.register(reader=self.name, at=at + 1)
        except MAY_RETRY:
            return at
        return at + 1
