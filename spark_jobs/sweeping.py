"""One part of a store, swept: what runs on an executor while `sweep` goes over all of it.

Nothing of a commit protocol is here.  Documents go to several of the runtime's own sweeps side by side, which differ
only in what they are given: all documents of a partition go to the same one, so that they do not meet each other.

What is read is taken up once, in order.  Where reading fails it begins again, without what was taken up before; where
the time is over the rest is left.  The last thing this does is give back one row of counts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa

from outbox.azure.cosmos.placed_states import PlacedStates
from outbox.azure.cosmos.store import CosmosStateStore, KeyRange
from outbox.errors import OutcomeUnknown, Refused
from outbox.ports import Backend, Document, StorePorts
from outbox.runtime.commit.sweeper import Redo, Swept, Unfinished, sweep
from outbox.runtime.scopes import plan_without_app, protocol_without_app, stores_of
from outbox.runtime.start.plan import CompiledApp

ROUND_COUNT = 100
"""How many documents one of the sweeps is given before it marks."""
WAITING_COUNT_MAX = 200
"""How many documents wait for one of the sweeps."""
TAKEN_COUNT_MAX = 200_000
"""How many documents a part takes up; it remembers them for the case that reading begins again."""
PASS_COUNT_MAX = 3
"""How often a part is gone over while some of it can be finished and some not."""
READ_COUNT_MAX = 8
READ_PAUSE_S = 0.5
ERROR_CHARACTERS = 300

SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        *((name, pa.int64()) for name in ("finished", "young", "foreign", "left", "unsent", "reads")),
        ("oldest_s", pa.float64()),
        ("seconds", pa.float64()),
        ("is_whole", pa.bool_()),
        ("troubles", pa.list_(pa.string())),
    ]
)
RESULT = (
    "part string, finished bigint, young bigint, foreign bigint, left bigint, unsent bigint, reads bigint, "
    "oldest_s double, seconds double, is_whole boolean, troubles array<string>"
)

log = logging.getLogger("outbox.sweep")


class Part(msgspec.Struct, frozen=True):
    """The part of a store that one task sweeps: hashes from `start` up to `end`.

    Of a store that has no ranges every task reads everything, and takes the partitions that fall to its share.
    """

    store: int = 0
    start: str = ""
    end: str = ""
    share: int = 0
    shares: int = 1

    @property
    def name(self) -> str:
        """Where this is, for people."""
        where = f"{self.start or '0'}..{self.end}" if self.end else f"share {self.share + 1} of {self.shares}"
        return f"store {self.store + 1}, {where}" if self.store else where

    def lane_of(self, partition: str, lane_count: int) -> int | None:
        """The lane of a partition, None where it falls to another share."""
        number = crc32(partition.encode(errors="surrogatepass"))
        return number // self.shares % lane_count if number % self.shares == self.share else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """The settings of a sweep of parts: the backend, the life of records, the least age, the lanes.

    `connect` makes a backend of its own on every executor.  It may hold keys, so it is part of no `repr`.
    """

    connect: Callable[[], Backend] = field(repr=False)
    life_ms: int
    margin_ms: int
    grace_s: float
    lanes: int
    limit_s: float

    def plan(self) -> CompiledApp:
        """The least plan that finishes transactions without their application."""
        return plan_without_app(self.life_ms, self.margin_ms)


def sweep_parts(settings: Sweeping, parts: Sequence[Part], given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sweep the parts whose numbers are given; one row of `RESULT` for each."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # an outage is told once, in the result
    for batch in given:
        for row in batch.to_pylist():
            result = asyncio.run(swept_part(settings, parts[row["id"]]))
            yield pa.RecordBatch.from_pylist([result], schema=SCHEMA)


async def swept_part(settings: Sweeping, part: Part) -> dict[str, Any]:
    """Sweep one part; its row."""
    started_s = time.monotonic()
    async with AsyncExitStack() as stack:
        ports = await opened(stack, settings.connect)
        now_ms, plan = ports.operations.now_ms, settings.plan()
        protocol, failed_pushes = protocol_without_app(ports, plan)
        guarded = Guarded(protocol)
        store, counts, passes = stores_of(ports)[part.store], Counts(), list[Reading]()
        while True:
            reading = Reading(store, part, settings.lanes, until_s=started_s + settings.limit_s)
            passes.append(reading)
            found = await swept_once(guarded, reading, now_ms=now_ms, grace_s=settings.grace_s)
            counts.add(found)
            if not (found.left and found.finished) or len(passes) == PASS_COUNT_MAX:
                break  # else what is left may have been in the way of each other, or is gone with what is finished
        unsent = [f"{one.destination}: {one.count} not sent, {one.error}" for one in failed_pushes.take()]
        return {
            "part": part.name,
            **msgspec.structs.asdict(counts),
            "unsent": failed_pushes.count,
            "reads": sum(reading.read_count for reading in passes),
            "seconds": time.monotonic() - started_s,
            "is_whole": reading.is_whole,
            "troubles": [text[:ERROR_CHARACTERS] for text in (*unsent, *guarded.troubles, *reading.troubles)],
        }


async def swept_once(protocol: Redo, reading: Reading, *, now_ms: Callable[[], int], grace_s: float) -> Counts:
    """Go over a part once, by all lanes."""
    counts = Counts()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reading.run())
        for lane in reading.lanes:
            tasks.create_task(sweep_lane(protocol, lane, counts, now_ms=now_ms, grace_s=grace_s))
    return counts


async def opened(stack: AsyncExitStack, connect: Callable[[], Backend]) -> StorePorts:
    """The ports of a backend that is closed with the stack.

    Raises:
        Refused: it has no store and bus of its own.
    """
    backend: Any = connect()
    if hasattr(backend, "__aenter__"):
        await stack.enter_async_context(backend)
    ports = backend.ports()
    if not isinstance(ports, StorePorts):
        raise Refused(f"{type(backend).__name__} has no store apart from its bus: there is nothing to sweep")
    return ports


class Counts(msgspec.Struct):
    """The counts of a part's documents by outcome."""

    finished: int = 0
    young: int = 0
    foreign: int = 0
    left: int = 0
    oldest_s: float = 0.0

    def note(self, swept: Swept) -> None:
        """Add what one sweep of several has seen."""
        self.finished += swept.finished_count
        self.young += swept.young_count
        self.foreign += swept.foreign_count
        done_count = swept.finished_count + swept.young_count + swept.foreign_count + swept.idle_count
        self.left += swept.seen_count - done_count
        self.oldest_s = max(self.oldest_s, swept.oldest_s)

    def add(self, later: Counts) -> None:
        """Add the counts of another pass over the whole part."""
        self.finished += later.finished
        self.young, self.foreign, self.left = later.young, later.foreign, later.left
        self.oldest_s = max(self.oldest_s, later.oldest_s)


class Guarded:
    """A protocol of which one document cannot stop the others: what it does not foresee is told, and left."""

    def __init__(self, protocol: Redo) -> None:
        self._protocol = protocol
        self.troubles: list[str] = []

    async def redo(self, document: Document) -> bool | None:
        """Finish a document; whether it is finished."""
        try:
            return await self._protocol.redo(document)
        except (OutcomeUnknown, Refused) as error:
            if len(self.troubles) < 10:
                self.troubles.append(f"{document.key.partition}/{document.key.id}: {type(error).__name__}: {error}")
            return False

    async def finish(self) -> None:
        """Mark what has left."""
        await self._protocol.finish()


class Lane:
    """The documents for one of the sweeps of a part, as they are read, some at a time."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[Document | None] = asyncio.Queue(WAITING_COUNT_MAX)
        self.is_over = False
        self._in_hand: Document | None = None
        """The document given out and perhaps not handled: a sweep whose time is over releases its last one."""

    async def unfinished(self) -> AsyncIterator[Document]:
        """Yield the next documents, up to a round of them; a document released before comes again."""
        for _ in range(ROUND_COUNT):
            self._in_hand = self._in_hand or await self.waiting.get()
            if self._in_hand is None:
                self.is_over = True
                return
            yield self._in_hand
            self._in_hand = None


async def sweep_lane(protocol: Redo, lane: Lane, counts: Counts, *, now_ms: Callable[[], int], grace_s: float) -> None:
    """Sweep what a lane is given until nothing comes any more."""
    while not lane.is_over:
        counts.note(await sweep(protocol, lane, now_ms=now_ms, grace_s=grace_s))


class Reading:
    """Reads the unfinished documents of a part and hands them to lanes, each once."""

    def __init__(self, store: Unfinished, part: Part, lane_count: int, *, until_s: float) -> None:
        self.lanes = [Lane() for _ in range(lane_count)]
        self.read_count = 0
        self.is_whole = False
        self.troubles: list[str] = []
        self._store = store
        self._part = part
        self._until_s = until_s
        self._taken: set[int] = set()

    async def run(self) -> None:
        """Read to the end, beginning again where that fails, and tell the lanes that nothing comes any more."""
        while not self.is_whole and not self.troubles:
            self.read_count += 1
            try:
                self.is_whole = await self._read()
            except (OutcomeUnknown, Refused) as error:
                if self.read_count == READ_COUNT_MAX or time.monotonic() > self._until_s:
                    self.troubles.append(f"cannot be read: {type(error).__name__}: {error}")
                else:
                    await asyncio.sleep(READ_PAUSE_S * 2**self.read_count * (0.5 + random.random()))
        for lane in self.lanes:
            await lane.waiting.put(None)

    async def _read(self) -> bool:
        """Go through the part once; whether to its end."""
        async for document in self._documents():
            if time.monotonic() > self._until_s or len(self._taken) >= TAKEN_COUNT_MAX:
                self.troubles.append("the time or the room for documents was over; run it again for the rest")
                return False
            lane = self._part.lane_of(document.key.partition, len(self.lanes))
            which = hash((document.key, document.version))
            if lane is not None and which not in self._taken:
                self._taken.add(which)
                await self.lanes[lane].waiting.put(document)
        return True

    def _documents(self) -> AsyncIterator[Document]:
        if not self._part.end:
            return self._store.unfinished()
        assert isinstance(self._store, CosmosStateStore | PlacedStates), "only these have ranges"
        return self._store.unfinished(KeyRange(self._part.start, self._part.end))
