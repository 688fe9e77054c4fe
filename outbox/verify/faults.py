"""Ports that fail on purpose: a wrapper for each port, and a plan of which call fails how.

The fault model.  A call of a port can
    crash before   the process dies, the call had no effect
    crash after    the call took full effect, the process dies before it learns of it
    be lost        the call took full effect, its reply is lost: `OutcomeUnknown`
    be refused     nothing happened: `Throttled`
    be delayed     others go first: the call is made some turns of the loop later
and a delivery can be doubled: the message is there a second time, as a copy under the same identity or by the lock
running out under its owner.  The same faults by their names where they are explored and on the wire:

    Faults       explorer.ops   emulator.faults
    crashes      crash
    lost         lost           lost-reply; of a settlement lost-disposition
    refused      error          throttled
    delayed      delay          delay
    duplicates   expire         lock-expiry; of a copy duplicate
                 stale          stale-read

`n` counts the calls of all wrapped ports together, from 1; for duplicates it counts
deliveries.  Crashes are `SimulatedCrash`, which no handler can catch as an ordinary error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import msgspec

from outbox.errors import OutcomeUnknown, Throttled
from outbox.ports import (
    BlobStore,
    Commit,
    Conflict,
    Delivery,
    Document,
    DocumentKey,
    Journal,
    Lost,
    Marker,
    MessageBus,
    Output,
    Session,
    Settle,
    StateDocument,
    StateStore,
    StoreCapabilities,
    Won,
    Write,
)

Result = TypeVar("Result")
Moment = Literal["before", "after"]

DELAY_TURN_COUNT = 5
DRAWN_WITHIN = 24
"""Among how many calls `Faults.drawn` places its faults by default."""


class SimulatedCrash(BaseException):
    """The process dies here."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The numbers, from 1, of port calls that fail, and of deliveries that come twice."""

    crashes: tuple[tuple[int, Moment], ...] = ()
    lost: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    delayed: tuple[int, ...] = ()
    duplicates: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for crash in self.crashes:
            if not (isinstance(crash, tuple) and len(crash) == 2 and crash[1] in ("before", "after")):
                raise ValueError(f'crashes={self.crashes!r}: each is (n, "before") or (n, "after")')
        numbers = {
            "crashes": tuple(n for n, _ in self.crashes),
            "lost": self.lost,
            "refused": self.refused,
            "delayed": self.delayed,
            "duplicates": self.duplicates,
        }
        for name, calls in numbers.items():
            if not isinstance(calls, tuple) or not all(isinstance(n, int) and n >= 1 for n in calls):
                raise ValueError(f"{name}={calls!r}: a tuple of call numbers from 1, such as (3,)")

    @classmethod
    def drawn(
        cls,
        *,
        seed: int,
        crashes: int = 0,
        lost: int = 0,
        refused: int = 0,
        delayed: int = 0,
        duplicates: int = 0,
        within: int = DRAWN_WITHIN,
    ) -> Faults:
        """Faults placed by chance, the same ones for the same seed.

        `crashes`, `lost`, `refused`, `delayed` and `duplicates` say how many of each, `within` among how many calls.
        """
        draw = random.Random(seed)  # chosen by a seed on purpose
        calls = draw.sample(range(1, within + 1), min(within, crashes + lost + refused + delayed))
        moments: tuple[Moment, ...] = ("before", "after")
        return cls(
            tuple((n, draw.choice(moments)) for n in sorted(calls[:crashes])),
            tuple(sorted(calls[crashes : crashes + lost])),
            tuple(sorted(calls[crashes + lost : crashes + lost + refused])),
            tuple(sorted(calls[crashes + lost + refused :])),
            tuple(sorted(draw.sample(range(1, within + 1), min(within, duplicates)))),
        )


Double = Callable[[Sequence[Delivery]], Awaitable[None]]
"""Makes deliveries come a second time."""


@dataclass(slots=True)
class FaultPlan:
    """Counts calls and deliveries, and lets the planned ones fail; shared by the ports of one worker."""

    faults: Faults = field(default_factory=Faults)
    call_count: int = 0
    delivery_count: int = 0
    fired: list[str] = field(default_factory=list)

    async def call(self, name: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Make one port call, or let it fail as planned."""
        self.call_count += 1
        n = self.call_count
        if (n, "before") in self.faults.crashes:
            self.fired.append(f"crash before call {n}, {name}")
            raise SimulatedCrash(self.fired[-1])
        if n in self.faults.refused:
            self.fired.append(f"refused call {n}, {name}")
            raise Throttled(self.fired[-1])
        if n in self.faults.delayed:
            self.fired.append(f"delayed call {n}, {name}")
            for _ in range(DELAY_TURN_COUNT):
                await asyncio.sleep(0)
        result = await call()
        if (n, "after") in self.faults.crashes:
            self.fired.append(f"crash after call {n}, {name}")
            raise SimulatedCrash(self.fired[-1])
        if n in self.faults.lost:
            self.fired.append(f"lost reply of call {n}, {name}")
            raise OutcomeUnknown(self.fired[-1])
        return result

    async def deliver(
        self, name: str, call: Callable[[], Awaitable[Sequence[Delivery]]], double: Double
    ) -> Sequence[Delivery]:
        """Make one port call that hands out messages, and double the deliveries that are planned to come twice."""
        deliveries = await self.call(name, call)
        twice = []
        for delivery in deliveries:
            self.delivery_count += 1
            if self.delivery_count in self.faults.duplicates:
                self.fired.append(f"duplicate of delivery {self.delivery_count}, {delivery.message.identity}")
                twice.append(delivery)
        if twice:
            await double(twice)
        return deliveries


class FaultyJournal:
    """A journal whose calls fail as planned."""

    def __init__(self, journal: Journal, plan: FaultPlan, double: Double) -> None:
        self._journal = journal
        self._plan = plan
        self._double = double

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        call = partial(self._journal.claim, queues, count_max=count_max, wait_s=wait_s)
        return await self._plan.deliver("claim", call, self._double)

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        return await self._plan.call("load", lambda: self._journal.load(states, markers))

    async def commit(self, commit: Commit) -> Conflict | None:
        return await self._plan.call("commit", lambda: self._journal.commit(commit))

    async def durable(self) -> None:
        await self._plan.call("durable", self._journal.durable)

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        return await self._plan.call("renew", lambda: self._journal.renew(deliveries))

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._plan.call("release", lambda: self._journal.release(deliveries))


class FaultyStore:
    """A state store whose calls fail as planned."""

    def __init__(self, store: StateStore, plan: FaultPlan) -> None:
        self._store = store
        self._plan = plan
        self.scan, self.unfinished = store.scan, store.unfinished

    @property
    def capabilities(self) -> StoreCapabilities:
        """The store's capabilities, except that a reply may be lost."""
        return replace(self._store.capabilities, ambiguous_replies=True)

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        return await self._plan.call("read", lambda: self._store.read(key, session=session))

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        return await self._plan.call("write", lambda: self._store.write(operations))


class FaultyBus:
    """A message bus whose calls fail as planned."""

    def __init__(self, bus: MessageBus, plan: FaultPlan, double: Double | None = None) -> None:
        self._bus = bus
        self._plan = plan
        self._double = double or self._send_copies

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._plan.call("send", lambda: self._bus.send(outputs))

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        call = partial(self._bus.receive, queue, count_max=count_max, wait_s=wait_s)
        return await self._plan.deliver("receive", call, self._double)

    async def _send_copies(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            copy = msgspec.structs.replace(delivery.message, message_id=f"{delivery.message.broker_id}-copy")
            await self._bus.send([Output(delivery.queue, 0, copy)])

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        await self._plan.call(settle.how, lambda: self._bus.settle(delivery, settle))

    async def renew(self, delivery: Delivery) -> int:
        return await self._plan.call("renew", lambda: self._bus.renew(delivery))


class FaultyBlobs:
    """A blob store whose calls fail as planned."""

    def __init__(self, blobs: BlobStore, plan: FaultPlan) -> None:
        self._blobs = blobs
        self._plan = plan

    async def write(self, name: str, data: bytes) -> bool:
        return await self._plan.call("write blob", lambda: self._blobs.write(name, data))

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        return await self._plan.call("read blob", lambda: self._blobs.read(name, bytes_max=bytes_max))

    async def delete(self, name: str) -> None:
        await self._plan.call("delete blob", lambda: self._blobs.delete(name))


_journal: type[Journal] = FaultyJournal
_store: type[StateStore] = FaultyStore
_bus: type[MessageBus] = FaultyBus
_blobs: type[BlobStore] = FaultyBlobs
