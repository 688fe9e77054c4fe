"""One replica of a pipeline: it begins at the checkpoint that stands, replays from there, and goes on.

Theory of operation: what operators put out at a position is decided by the source up to there, so every replica makes
the same, and whoever is first with a bundle has written it for all.  A replica reads the register once, takes the
states that it names, reads the source from its position on, and creates bundle after bundle in its sinks; where
another's lies it takes that over.  There is no recovery of its own: beginning is all there is, after a crash as on the
first day.  Checkpoints are taken beside that.  Only a checkpoint waits, for what lies below it to have left: were it to
stand before, outputs that nobody has written could never be made again.

Source: FlameStream, "Optimistic exactly-once"; the bundles' chain in place of its acknowledged last bundle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import Any

import msgspec

from outbox.errors import (
    CorruptRecord,
    DeadlinePassed,
    NoBlobStore,
    OtherLog,
    OutcomeUnknown,
    Refused,
    TooLarge,
    Trimmed,
)
from outbox.lineage import Key
from outbox.streams.cells import Cell, Position
from outbox.streams.log_places import Place, Seen, together
from outbox.streams.pipeline.barrier import END, Barrier, Names, OtherWriter
from outbox.streams.pipeline.checkpoint import (
    PIPELINE,
    Chain,
    Checkpoint,
    Held,
    PartRef,
    PipelineRegister,
    Section,
    in_parts,
    line_of,
    lines_of,
    merge_count,
    merging,
    sections_of,
    without_gone,
)
from outbox.streams.pipeline.operators import Frame, Record
from outbox.streams.pipeline.plan import PipelinePlan, Superseded
from outbox.streams.pipeline.tasks import STATES_AT_ONCE, BeginAgain, LocalTasks, give_way
from outbox.streams.pipeline.workers import Workers, WorkerTasks
from outbox.streams.read_ahead import FrameRoom, ReadAhead
from outbox.streams.register import Kept, RegisterCell
from outbox.streams.row import Row
from outbox.streams.values import whole

EPOCH_CELLS_MAX = 4_096
"""The cells of the source whose outputs wait for a checkpoint, at most: then one is made at once."""
AT_FIRST = 4
"""The cells that are read at once when a replica begins: there is most often more than one."""
BEGIN_COUNT_MAX = 20
DEADLINES_MAX = 8
PART_BYTES_MAX = 1 << 30
COPIES_MAX = 1_000
"""The copies of states that wait together until their outputs have left; those of a slot may be more."""
PIECE_BYTES = 1 << 18
"""The bytes of a part that are copied and hashed before others go on."""


FINAL = (Trimmed, NoBlobStore, TooLarge, OtherLog, OtherWriter, Superseded)
"""Refusals that another try does not change: they stop a replica, with their cure."""


class _Passed(Exception):
    """Another cell lies where a bundle was to be created."""

    def __init__(self, index: int, cell: Cell) -> None:
        super().__init__(index)
        self.index, self.cell = index, cell


@dataclass
class Sink:
    """A sink of one incarnation: its row, its barrier, and until when a create may be made."""

    row: Row[Any]
    barrier: Barrier
    until_ms: int = 0


def _stop(index: int, cell: Cell) -> None:
    raise _Passed(index, cell)


async def read_part(place: Place, part: PartRef) -> bytes:
    """The bytes of a part of a checkpoint.

    Raises:
        CorruptRecord: it is missing.
    """
    data = await place.blobs.read(part.blob, bytes_max=PART_BYTES_MAX)
    if data is None:
        raise CorruptRecord(f"part {part.blob} of a checkpoint is missing; restore it from a backup")
    return data


class PipelineReplica:
    """One incarnation of a pipeline's tasks, in this process; `begin` it, then take `turn`s and make `checkpoint`s."""

    def __init__(
        self, plan: PipelinePlan, place: Place, *, entries_max: int | None = None, workers: Workers | None = None
    ) -> None:
        """Take the parts; a frame has `entries_max` entries at most, and goes through `workers` if there are any."""
        self.plan = plan
        self._who = f"{PIPELINE}{plan.name}"
        self._room = FrameRoom(entries_max)
        self._output_count = 0
        self.place = place
        self.register = RegisterCell(place.store, f"pipeline/{plan.name}", PipelineRegister, new_id=place.new_id)
        self.known: Kept[PipelineRegister] | None = None
        """The register with the checkpoint that stands, as this replica knows it."""
        self.at = Position(0)
        """The position behind the last entry that was fed."""
        self.time_ms = 0
        self.sinks: dict[str, Sink] = {}
        self.tasks = (
            WorkerTasks(plan, self._deliver, workers) if workers else LocalTasks(plan, self._deliver, place.now_ms)
        )
        self.fed = asyncio.Event()
        """Set when entries were fed; whoever makes checkpoints clears it."""
        self._released_again = asyncio.Event()
        self._has_ended = False
        self._checkpoints = asyncio.Lock()
        self._releases = asyncio.Lock()
        self._source: Row[Any] = plan.source_row()
        self._ahead = ReadAhead(min(self._room.count, AT_FIRST))
        self._saves_all = False
        """Whether the next checkpoint saves all states, because some were loaded from an older schema."""
        self._handled_count = 0

    # Beginning

    async def begin(self, *, again: bool = False) -> None:
        """Read the register, once, and take the states that it names; make one where there is none.

        `again` takes those of the last checkpoint that is kept: the parts of the one that stands went while they were
        read.

        Raises:
            BeginAgain: another checkpoint stands by now.
            Superseded: a newer version runs.
            GraphChanged: the graph is another than this version's.
            Trimmed: the source is trimmed beyond the checkpoint.
        """
        known = await self._entered()
        checkpoint = known.register.kept[-1] if again and known.register.kept else known.register.stands
        names = Names(self.plan.name, self.plan.version, self.plan.graph, "")
        older = [names._replace(version=version, graph=graph) for version, graph in known.register.before]
        try:
            await self._report(known.register)
            await self.tasks.begin(checkpoint.c)
            held = await self._load(checkpoint)
        except (Trimmed, CorruptRecord):
            await self._confirm(known)
            raise
        self.at, self.time_ms = checkpoint.c, checkpoint.time
        for name, row in self.plan.sink_rows().items():
            chain, is_chained = checkpoint.sinks[name], self.plan.release.chained
            if not is_chained:  # outputs below a checkpoint are those of who made it, where each has one of its own
                chain = Chain(chain.next, known.register.stands.c if self.plan.release.claims else checkpoint.c)
            mine, theirs = names._replace(sink=name), [one._replace(sink=name) for one in older]
            barrier = self.plan.barrier(mine, row.values, chain, checkpoint.c, theirs, held, is_chained=is_chained)
            self.sinks[name] = Sink(row, barrier, row.until_ms)
        self.known = await self._confirm(known)  # what was read may be long past

    async def _entered(self) -> Kept[PipelineRegister]:
        """The register, of this version."""
        for _ in range(BEGIN_COUNT_MAX):
            known = await self.register.read()
            try:
                after = await self._first() if known is None else await self._taken_over(known.register)
            except Trimmed:  # meanwhile
                continue
            if known is not None and after == known.register:
                return known
            swapped = await self.register.swap(known, after)
            if swapped is not None:
                if known is not None:
                    await self._drop(known.register.blobs() - swapped.register.blobs())
                return swapped
        raise Refused(f"the register of pipeline {self.plan.name} is changed by others all the time; try again later")

    async def _first(self) -> PipelineRegister:
        """The register of a pipeline that has not begun."""
        await self._source.opened()
        first = Position(await self._source.first())
        rows = self.plan.sink_rows()
        chains = {name: Chain((await row.opened()).index, first) for name, row in rows.items()}
        nothing = Checkpoint(0, first, chains, made=self.place.now_ms())
        kind = self.plan.release.kind
        register = PipelineRegister(self.plan.version, self.plan.graph, self._source.name, nothing, release=kind)
        await self._report(register)
        return register

    async def _taken_over(self, found: PipelineRegister) -> PipelineRegister:
        """The register under this version: from here on no checkpoint of an older one stands.

        The chain of a sink that the older one did not have begins at the checkpoint that stands.
        """
        plan = self.plan
        plan.check_goes_on(found)
        if found.version == plan.version:
            return found
        before = (*found.before, (found.version, found.graph))
        rows = {name: row for name, row in plan.sink_rows().items() if name not in found.stands.sinks}
        new = {name: Chain((await row.opened()).index, found.stands.c) for name, row in rows.items()}
        stands = msgspec.structs.replace(found.stands, sinks=found.stands.sinks | new)
        return msgspec.structs.replace(
            found, version=plan.version, graph=plan.graph, before=before, stands=stands, kept=()
        )

    async def _report(self, register: PipelineRegister) -> None:
        """Tell the floors what the oldest checkpoint that is kept needs."""
        oldest, source = register.oldest, self._source
        await source.horizon.register(reader=self._who, at=oldest.c.index, kind=source.kind)
        for name, row in self.plan.sink_rows().items():
            await row.horizon.register(writer=self._who, at=oldest.sinks[name].next, kind=row.kind)

    async def _load(self, checkpoint: Checkpoint) -> list[Held]:
        """Load the states of a checkpoint, and read the outputs that it holds."""
        for part in checkpoint.parts:
            for section in sections_of(await read_part(self.place, part), part):
                self._saves_all |= await self.tasks.load(section)
        return [line for part in checkpoint.held for line in lines_of(await read_part(self.place, part), part, Held)]

    # Going on

    async def turn(self) -> bool:
        """Feed what the source has, and release it; whether there was anything.

        Raises:
            BeginAgain: the incarnation is over.
            OperatorFailed, NotDeterministic, OtherWriter: the pipeline stops.
            Refused, OutcomeUnknown: a store failed; take another turn.
        """
        await self.release()
        if self.at.index - self._gate.index >= EPOCH_CELLS_MAX:
            await self.checkpoint()
        try:
            entries, at = await self._ahead.entries(self._source, self.at, self._room.count)
        except Trimmed:
            await self._check_current()
            raise
        if not entries:
            return await self.tasks.arrived()
        records: list[Record] = []
        ticks: list[tuple[Position, int]] = []
        for entry in entries:
            if entry.at_ms > self.time_ms:
                self.time_ms = entry.at_ms
                ticks.append((entry.position, entry.at_ms))
            records.append((entry.position, (), self.time_ms, entry.value))
        self.at, self._output_count, began_ms = at, 0, self.place.now_ms()
        await self.tasks.feed(Frame(records, at, ticks), [entry.id for entry in entries])
        self._room.adapt(len(entries), self._output_count, self.place.now_ms() - began_ms)
        self.fed.set()
        if self.plan.release.claims:
            await self.checkpoint()
        await self.release()
        return True

    def _deliver(self, sink: str, frame: Frame, is_stored: bool) -> None:
        self._output_count += len(frame.records)
        self.sinks[sink].barrier.feed(frame, is_stored)
        if is_stored:  # it comes from workers, at any time
            self._released_again.set()

    async def release(self) -> None:
        """Write all bundles that are ready."""
        async with self._releases:
            await together([self._release(sink) for sink in self.sinks.values()])
        self._released_again.set()

    async def _release(self, sink: Sink) -> None:
        while (bundle := sink.barrier.bundle(self.place.now_ms(), self._gate)) is not None:
            index, there = await self._placed(sink, bundle)
            if there.gone:
                raise BeginAgain
            if not self.plan.release.chained:
                sink.barrier.pass_by(bundle.until or END, index + 1)
                continue
            if there.blob:
                there = await whole(there, sink.row.place.blobs, f"{sink.row.name}/{index}")
            try:
                sink.barrier.adopt(index, there)
            except OtherWriter:
                await self._check_current()
                raise

    @property
    def _gate(self) -> Position:
        """The position below which outputs may leave."""
        return self.known.register.stands.c if self.plan.release.waits and self.known is not None else END

    @property
    def holds_back(self) -> bool:
        """Whether there may be outputs that wait for a checkpoint."""
        return self._gate < self.at

    async def _placed(self, sink: Sink, bundle: Cell) -> tuple[int, Cell]:
        """Where a bundle was to be created, and what lies there."""
        try:
            cell = await sink.row.fitted(bundle, owner=bundle.id)
        except TooLarge as error:
            span = f"from {bundle.begin} to {bundle.until} of the source"
            raise TooLarge(f"pipeline {self.plan.name}: what it puts out {span} does not fit: {error}") from error
        for _ in range(DEADLINES_MAX):
            until_ms, next_ms = sink.until_ms, sink.row.until_ms
            try:
                passed = _stop if self.plan.release.chained else None
                found = await sink.row.place_cell(cell, sink.barrier.next, until_ms=until_ms, passed=passed)
            except _Passed as other:
                sink.until_ms = next_ms
                return other.index, other.cell
            except DeadlinePassed:
                await self._check_current()
                sink.until_ms = next_ms
                continue
            if found is None:
                raise BeginAgain
            sink.until_ms = next_ms
            return found.at, bundle if found.cell is cell else found.cell
        raise Refused(f"the appends to {sink.row.name} take over half its margin each time; try again later")

    async def _confirm(self, known: Kept[PipelineRegister]) -> Kept[PipelineRegister]:
        """The register, where its checkpoint still stands: by a swap to what it holds, because a read may be stale.

        Raises:
            BeginAgain: another checkpoint stands, or it is not known.
        """
        for _ in range(BEGIN_COUNT_MAX):
            swapped = await self.register.swap(known, known.register)
            if swapped is not None:
                return swapped
            found = await self.register.read()
            if found is None or not found.register.confirms(known.register):
                break
            known = found  # another replica has confirmed it
        raise BeginAgain

    async def _check_current(self) -> None:
        """Check that the checkpoint that stands is the one that this replica knows.

        Raises:
            BeginAgain: it is not.
        """
        if self.known is None:
            raise BeginAgain
        self.known = await self._confirm(self.known)

    def seen(self) -> Mapping[Any, list[Seen]]:
        """The documents whose change an idle replica waits for."""
        return {self._source.place.store: self._source.seen(self.at.index)}

    @property
    def released(self) -> Position:
        """The position of the source below which everything has left."""
        return min(sink.barrier.released for sink in self.sinks.values())

    # Asking

    async def state(self, operator: str, key: Key, since: Position) -> tuple[Any, Position] | None:
        """A copy of a key's state at or behind a position, and the position that it rests on.

        It answers once all below that has left.  None: the key has none.
        """
        await self._until(lambda: self._made, since)
        state, at = await self.tasks.state(operator, key)
        await self._until_released(at)
        return None if state is None else (state, at)

    async def items(self, operator: str, since: Position) -> AsyncIterator[tuple[Key, Any]]:
        """All keys with copies of their states at or behind a position, some slots at a time.

        They come once all below the position of the last one has left.
        """
        await self._until(lambda: self._made, since)
        waiting: list[tuple[Key, Any]] = []
        reached = since
        async for copies, reached in self.tasks.items(operator):
            waiting += copies
            if len(waiting) >= COPIES_MAX:
                await self._until_released(reached)
                for copy in waiting:
                    yield copy
                waiting = []
        await self._until_released(reached)
        for copy in waiting:
            yield copy

    def end(self) -> None:
        """End this incarnation: whoever waits on it has to ask the next one."""
        self._has_ended = True
        self.tasks.end()
        self._released_again.set()

    @property
    def _made(self) -> Position:
        """The position of the source below which all outputs are made."""
        return min(sink.barrier.watermark for sink in self.sinks.values())

    async def _until_released(self, at: Position) -> None:
        await self._until(lambda: self.released, at)

    async def _until(self, reached: Callable[[], Position], at: Position) -> None:
        while reached() < at:
            if self._has_ended:
                raise BeginAgain
            self._released_again.clear()
            await self._released_again.wait()

    # Checkpoints

    async def checkpoint(self) -> bool:
        """Make a checkpoint behind the last entry that was fed; whether it stands.

        Where outputs wait for one, those of the checkpoint before are released first, and then those of this one.

        Raises:
            BeginAgain: the incarnation is over.
            Refused, OutcomeUnknown: a store failed; make another one later.
        """
        async with self._checkpoints:
            if not self.plan.release.waits:
                return await self._checkpoint()
            await self.release()
            is_new = await self._checkpoint()
            await self.release()
            return is_new

    async def _checkpoint(self) -> bool:
        known, until = self.known, self.at
        assert known is not None
        stands = known.register.stands
        if until <= stands.c:
            return False
        saves_all, time_ms = self._saves_all, self.time_ms
        saved = await self.tasks.saved(None if saves_all else stands.c)
        parts = [] if saves_all else stands.parts
        try:
            parts = await self._parts(parts, saved)
        except CorruptRecord:  # others have written them anew meanwhile
            await self._lost(known, set())
            if self.known is known:
                await self._check_current()  # what was read of the register may be long past
                raise
            return False
        waits = self.plan.release.waits
        await self._until((lambda: self._made) if waits else (lambda: self.released), until)
        least = stands.c if waits else until  # all below has left, and more beside replicas that do not wait
        left = {name: min(until, max(least, sink.barrier.begin)) for name, sink in self.sinks.items()}
        held = [line for name, at in left.items() for line in self.sinks[name].barrier.held(at, until)]
        chains = {name: self.sinks[name].barrier.chain_at(at) for name, at in left.items()}
        waiting = [await self._written(map(line_of, held))] if held and self.plan.release.holds else []
        made = Checkpoint(stands.n + 1, until, chains, parts, time_ms, self.place.now_ms(), waiting)
        return await self._swap(known, made)

    async def _parts(self, before: list[PartRef], saved: dict[tuple[str, int], Section]) -> list[PartRef]:
        """The parts with the saved states, some of the last written anew."""
        if not saved:
            return before
        lines = await self._encoded(saved.values())
        count = merge_count(before, sum(len(line) + 1 for line in lines))
        kept, again = before[: len(before) - count], before[len(before) - count :]
        if again or not kept:
            lines = await self._merged(again, saved.values(), is_first=not kept)
        return [*kept, *[await self._written(part) for part in in_parts(lines)]]

    async def _merged(self, parts: Iterable[PartRef], saved: Iterable[Section], *, is_first: bool) -> list[bytes]:
        """The lines of one part in place of some, with the states that were saved.

        The first part names no key that has no state any more.
        """
        found: dict[tuple[str, int], list[Section]] = {}
        for part in parts:
            for section in sections_of(await read_part(self.place, part), part):
                found.setdefault(section.place, []).append(section)
                await self._handled(section)
        for section in saved:
            found.setdefault(section.place, []).append(section)
        lines = []
        for place in sorted(found):
            for joined in merging(found.pop(place)):  # letting go of all at once takes milliseconds
                await self._handled(joined)
                if joined is not None:
                    lines.append(line_of(without_gone(joined) if is_first else joined))
        return lines

    async def _encoded(self, sections: Iterable[Section]) -> list[bytes]:
        """The lines of a part."""
        lines = []
        for section in sections:
            lines.append(line_of(section))
            await self._handled(section)
        return lines

    async def _handled(self, section: Section | None = None) -> None:
        """Let others go on between some states, or a section as large as some, and the next."""
        self._handled_count += 1 if section is None else 1 + (len(section.states) + len(section.changes)) // 8
        if self._handled_count >= STATES_AT_ONCE:
            self._handled_count = 0
            await give_way(self.place.now_ms)

    async def _written(self, lines: Iterable[bytes]) -> PartRef:
        """Write a part, put together piece by piece: its bytes at once are milliseconds."""
        blob, data, digest, waiting = f"{self._who}/{self.place.new_id()}", BytesIO(), sha256(), 0
        for line in lines:
            if data.tell():
                data.write(b"\n")
                digest.update(b"\n")
            for begin in range(0, len(line), PIECE_BYTES):
                piece = memoryview(line)[begin : begin + PIECE_BYTES]
                data.write(piece)
                digest.update(piece)
                waiting += len(piece)
                if waiting >= PIECE_BYTES:
                    waiting = 0
                    await give_way(self.place.now_ms)
        await self.place.blobs.write(blob, data.getvalue())
        return PartRef(blob, digest.hexdigest(), data.tell())

    async def _swap(self, known: Kept[PipelineRegister], made: Checkpoint) -> bool:
        apart_ms = max(row.margin_ms for row in (self._source, *self.plan.sink_rows().values())) // 2
        for _ in range(BEGIN_COUNT_MAX):
            swapped = await self.register.swap(known, known.register.after(made, apart_ms))
            found = await self.register.read() if swapped is None else None
            if found is None or not found.register.confirms(known.register):
                break
            known = found  # another replica has confirmed it
        if swapped is None:
            await self._lost(known, made.blobs() - known.register.blobs())
            return False
        self.known, self._saves_all = swapped, False
        with suppress(Refused, OutcomeUnknown):
            if swapped.register.oldest != known.register.oldest:
                await self._report(swapped.register)
            await self._drop(known.register.blobs() - swapped.register.blobs())
        return True

    async def _lost(self, known: Kept[PipelineRegister], written: set[str]) -> None:
        """Take the checkpoint of another replica, which is as good as one's own.

        Where the register has not moved, as far as one can see, the swap may still take effect, and needs its part.

        Raises:
            BeginAgain: the pipeline is of another version by now.
        """
        found = await self.register.read()
        if found is None or found.register.serial <= known.register.serial:
            return
        if found.register.version != self.plan.version:
            raise BeginAgain
        self.known = found
        if self.plan.release.claims:  # the outputs below are those of who has made that checkpoint
            for sink in self.sinks.values():
                sink.barrier.pass_by(found.register.stands.c, 0)
        await self._drop(written - found.register.blobs())

    async def _drop(self, blobs: set[str]) -> None:
        """Delete parts that nothing names; one that stays takes room, and changes nothing."""
        with suppress(Refused, OutcomeUnknown):
            for blob in sorted(blobs):
                await self.place.blobs.delete(blob)


MakeReplica = Callable[[PipelinePlan, Place], PipelineReplica]
