"""Processors, ingests, pipelines and logs whose steps and appends are recorded into a `History`.

    averages = recorded_processor(averages, history)
    async with averages.run(replicas=2): ...
    history.quiesce(rows_of(left, right))          # they have taken all of these

A wrapper round each store, as `recording` has them for handlers: the replicas know nothing of it.  A swap of the
register is a commit.  It changes the version of the register, takes the entries between the cursors before and after,
and emits what the step put into it.  An append is a push of one cell to one index of a log, and a cell that is read
tells that it lies there.  So a judge sees where each identity lies, that cursors leave nothing out and take nothing
twice, and that a register moves on only when what it had emitted is in its logs.

Of a pipeline there are four events: `in`, a cell of its source was read; `result`, what it made for a sink at a
position; `left`, a bundle lies in a sink; `durable`, a checkpoint stands.

All replicas of a processor or pipeline must be recorded into one history: the swaps of another would look like a fork,
and its bundles like ghosts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import repeat
from typing import Any
from zlib import crc32

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.errors import PoisonMessage
from outbox.message import Message
from outbox.ports import (
    Create,
    Document,
    DocumentKey,
    Lost,
    Output,
    Replace,
    Session,
    StateStore,
    StorePorts,
    Version,
    Won,
    Write,
)
from outbox.streams.cells import DECODE_ERRORS, Cell, Position
from outbox.streams.ingest import Ingest
from outbox.streams.log import OrderedLog
from outbox.streams.log_places import Place
from outbox.streams.pipeline.barrier import Barrier
from outbox.streams.pipeline.barrier import Names as BundleNames
from outbox.streams.pipeline.checkpoint import Chain, PipelineRegister
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.plan import QueueOutput, RowTarget, Target
from outbox.streams.processor import Processor
from outbox.streams.register import Out, Register, cell_id
from outbox.streams.values import Values
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.events import digest_of
from outbox.verify.recorded.recording import RecordedBus, emitted, recorded_call, recorded_write, remember, state_digest

MADE_COUNT_MAX = 100_000
"""How many identities are remembered with the step that made them; a later push of one counts as from outside."""
READ_COUNT_MAX = 100_000
"""How many cells are remembered as told already; one that is forgotten is told again when it is read."""
KNOWN_COUNT_MAX = 64
"""How many versions of registers are remembered; after another it is not known from where a step took its entries."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names behind a register's identities, and its rows and queues by the register's names."""

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, Target]


@dataclass(slots=True)
class Steps:
    """The state that one processor's or ingest's recorders share: registers by partition, and the reported events."""

    history: History
    registers: Mapping[str, Names] = field(default_factory=dict)
    made: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """The step that made an identity."""
    known: OrderedDict[tuple[str, Version], dict[str, Position]] = field(default_factory=OrderedDict)
    """The cursors of a version of a register."""
    told: OrderedDict[tuple[str, int], str] = field(default_factory=OrderedDict)
    """The cells that were told of, with their identities."""
    nonces: dict[str, str] = field(default_factory=dict)
    """Of each register the newest swap that was told of."""

    # A register

    def commit(self, operation: Create | Replace, others: Sequence[Write]) -> events.Commit:
        """The commit that a swap is, with the records of messages that are written beside it."""
        partition = operation.key.partition
        names = self.registers[partition]
        after = msgspec.json.decode(operation.body, type=Register)
        before = self.known.get((partition, operation.if_match)) if isinstance(operation, Replace) else None
        step = self._remember(names, after)
        records = [other for other in others if isinstance(other, Create | Replace) and other.tag.what == "commit"]
        refused = {record.tag for record in records if msgspec.json.decode(record.body, type=_Reason).reason}
        history = self.history
        return events.Commit(
            at_ms=history.now_ms(),
            op=history.next_op(),
            changes=[events.Change(partition, after.serial, after.serial + 1, state_digest(bytes(after.state)))],
            outputs=[made for out in after.outs for made in _emitted(names, after, out, step)],
            applied=[key.hex() for record in records if record.tag not in refused for key in record.tag.inbox],
            refused=[key.hex() for tag in refused for key in tag.inbox],
            staged=True,
            tx=after.nonce,
            step=step,
            taken=_taken(names, before, after) if isinstance(operation, Replace) else _begun(names, after),
            spilled=[
                cell_id(names.name, after, out.to)
                for out in after.outs
                if isinstance(names.outputs.get(out.to), QueueOutput) and any(map(_is_large, out.v))
            ],
        )

    def found(self, document: Document) -> None:
        """Note a register that was read: its swap took effect."""
        try:
            register = msgspec.json.decode(document.body, type=Register)
        except DECODE_ERRORS:
            return  # not one of ours: its reader will raise
        partition = document.key.partition
        self._remember(self.registers[partition], register)
        remember(self.known, (partition, document.version), register.cursors, KNOWN_COUNT_MAX)
        if self.nonces.get(partition) != register.nonce:
            self.nonces[partition] = register.nonce
            self.history.append(events.Found(at_ms=self.history.now_ms(), txs=[register.nonce]))

    def _remember(self, names: Names, register: Register) -> str:
        """Remember what a register's step has made; the step."""
        step = f"{names.name}#{register.serial}"
        for out in register.outs:
            remember(self.made, cell_id(names.name, register, out.to), step, MADE_COUNT_MAX)
        return step

    # A log

    def push(self, operation: Create) -> events.Push:
        """The push that an append is."""
        cell = msgspec.json.decode(operation.body, type=Cell)
        row, _, _ = operation.key.partition.rpartition("/")
        lies = events.Emitted(cell.id, row, cell_digest(cell), self.made.get(cell.id, ""), index=int(operation.key.id))
        history = self.history
        return events.Push(at_ms=history.now_ms(), op=history.next_op(), outputs=[lies])

    def lies(self, document: Document) -> None:
        """Note a cell that was read, once."""
        row, _, _ = document.key.partition.rpartition("/")
        try:
            cell = msgspec.json.decode(document.body, type=Cell)
        except DECODE_ERRORS:
            return  # not one of ours: its reader will raise
        place = row, int(document.key.id)
        if not cell.gone and self.told.get(place) != cell.id:
            remember(self.told, place, cell.id, READ_COUNT_MAX)
            told = [(place[1], cell.id, cell_digest(cell))]
            self.history.append(events.Read(at_ms=self.history.now_ms(), log=row, cells=told))

    # A store

    def look(self, document: Document) -> None:
        """Note a document that was read."""
        key = document.key
        if key.id == "register" and key.partition in self.registers:
            self.found(document)
        elif key.partition.startswith("log/") and key.id.isdecimal():
            self.lies(document)

    async def write(self, store: StateStore, operations: Sequence[Write]) -> Won | Lost:
        """Write, and record a swap as a commit and an append as a push."""
        *others, last = operations
        event: events.Commit | events.Push
        if isinstance(last, Create | Replace) and last.key.partition in self.registers and last.tag.what == "register":
            event = self.commit(last, others)
        elif isinstance(last, Create) and last.tag.what == "append":
            event = self.push(last)
        else:
            return await store.write(operations)
        answer = await recorded_write(self.history, event, store.write(operations), self.look)
        if isinstance(event, events.Commit) and isinstance(answer, Won):
            cursors = msgspec.json.decode(last.body, type=Register).cursors
            remember(self.known, (last.key.partition, answer.versions[-1]), cursors, KNOWN_COUNT_MAX)
        return answer

    # A queue

    def sending(self, queue: QueueOutput) -> QueueOutput:
        """A queue whose sends are recorded."""

        async def send(outputs: Sequence[Output]) -> None:
            history = self.history
            told = [
                msgspec.structs.replace(each, cause=self.made.get(each.id.rpartition("-")[0], ""))
                for each in map(emitted, outputs)
            ]
            push = events.Push(at_ms=history.now_ms(), op=history.next_op(), outputs=told)
            await recorded_call(history, push, queue.queue.send(outputs))

        return QueueOutput(replace(queue.queue, send=send))


class RecordedDocuments:
    """A store of which steps, or a pipeline's source and register, are recorded."""

    def __init__(self, store: StateStore, seen: Steps | PipelineEvents) -> None:
        self._store = store
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # where a plan is all that is wanted, there is no store

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self._store.read(key, session=session)
        if found is not None:
            self._seen.look(found)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        return await self._seen.write(self._store, operations)


def recorded_processor(processor: Processor[Any], history: History) -> Processor[Any]:
    """The same processor, for as many replicas as this process runs, recorded."""
    plan = processor.plan
    rows = {key: row.name for found in plan.rows().values() for key, row in found.items()}
    steps = Steps(history, {f"processor/{plan.name}": Names(plan.name, rows, plan.targets())})
    return processor.over(lambda place: _recorded(place, steps), steps.sending)


def recorded_ingest(ingest: Ingest, history: History) -> Ingest:
    """The same ingest, recorded: what it receives and settles, its messages' records, its registers and appends."""
    steps = Steps(
        history, {f"ingest/{name}": Names(f"ingest/{name}", {}, targets) for name, targets in ingest.rows().items()}
    )

    def ports(given: StorePorts) -> StorePorts:
        apart = given.infrastructure
        return StorePorts(
            given.store if apart is not None else RecordedDocuments(given.store, steps),
            RecordedBus(given.bus, history),
            given.operations,
            given.blobs,
            None if apart is None else RecordedDocuments(apart, steps),
        )

    return ingest.over(ports, lambda place: _recorded(place, steps))


def recorded_pipeline(pipeline: Pipeline, history: History) -> Pipeline:
    """The same pipeline, for as many replicas as this process runs, recorded.

    `History(bodies=True)` keeps entries and outputs, for `words_of`.
    """
    seen = PipelineEvents(history, pipeline.plan())
    barrier: Any = partial(RecordedBarrier, seen)
    return pipeline.over(lambda place: _recorded(place, seen), barrier)


def recorded_log(log: OrderedLog[Any], history: History) -> OrderedLog[Any]:
    """The same log for producers and readers, whose appends are recorded as given from outside."""
    return log.on(_recorded(log.place, Steps(history)))


class PipelineEvents:
    """The events of one pipeline's replicas."""

    def __init__(self, history: History, plan: PipelinePlan) -> None:
        self.history = history
        self._plan = plan
        self._source = plan.source_row().name
        self._rows = {name: row.name for name, row in plan.sink_rows().items()}
        self._told: OrderedDict[tuple[str, int], str] = OrderedDict()
        """The cells that were told of, and of each version the last checkpoint."""
        self._left = Position(0)
        """The position of the last checkpoint, which the next one stands behind when what that held has left."""

    def look(self, found: Document | Create | Replace) -> None:
        """Note a document that is there: a register, or a cell of the source."""
        key = found.key
        row, _, _ = key.partition.rpartition("/")
        try:
            if key == DocumentKey(f"pipeline/{self._plan.name}", "register"):
                self._stands(key, msgspec.json.decode(found.body, type=PipelineRegister))
            elif row == self._source and key.id.isdecimal():
                self._came(row, int(key.id), msgspec.json.decode(found.body, type=Cell))
        except DECODE_ERRORS:
            return  # not one of ours: its reader will raise

    def _stands(self, key: DocumentKey, register: PipelineRegister) -> None:
        stands, id = register.stands, f"{self._plan.name}/{register.stands.n}"
        if self._is_new(key.partition, register.version, id):
            c = min(self._left, stands.c) if stands.held else stands.c  # what it holds leaves now that it stands
            self._left = stands.c
            now_ms, sinks, until = self.history.now_ms(), [*self._rows.values()], (c.index, c.offset)
            self.history.append(events.Durable(at_ms=now_ms, id=id, sinks=sinks, version=register.version, until=until))

    def _came(self, row: str, index: int, cell: Cell) -> None:
        if not cell.gone and self._is_new(row, index, cell.id):
            given, values = [(cell.id, cell_digest(cell))], cell.v if self.history.bodies else []
            now_ms = self.history.now_ms()
            self.history.append(events.In(at_ms=now_ms, queue=row, messages=given, index=index, values=values))

    def _is_new(self, place: str, index: int, id: str) -> bool:
        is_new = self._told.get((place, index)) != id
        remember(self._told, (place, index), id, READ_COUNT_MAX)
        return is_new

    async def write(self, store: StateStore, operations: Sequence[Write]) -> Won | Lost:
        """Write, and note the documents that are there then."""
        self.history.flush()  # what was made is on record before it can leave
        answer = await store.write(operations)
        for operation in operations if isinstance(answer, Won) else ():
            if isinstance(operation, Create | Replace):
                self.look(operation)
        return answer

    def made(self, names: BundleNames, values: Values, frame: Frame, is_stored: bool) -> None:
        """Note what a replica has made for a sink, and up to where."""
        by_place: dict[Position, list[int]] = {}
        with suppress(PoisonMessage):  # the barrier raises it
            found = [record[3] for record in frame.records]
            pairs = [each if isinstance(each, tuple) else (each, "") for each in found] if is_stored else []
            raws, types = [raw for raw, _ in pairs], [name for _, name in pairs if name]
            if not is_stored:
                raws, types = values.encoded(found)
            for (at, *_), item in zip(frame.records, _digests(raws, types), strict=True):
                by_place.setdefault(at, []).append(item)
        name = f"{names.pipeline} to {names.sink}"
        for at, items in [*by_place.items(), (frame.watermark, [])]:
            result = events.Result(
                at_ms=self.history.now_ms(),
                id=f"{name} at {at}, version {names.version}" if items else name,
                parents=[f"{self._source}/{at}"],
                is_ordered=True,
                sink=self._rows[names.sink],
                version=names.version,
                at=(at.index, at.offset),
                items=items,
            )
            self.history.append(result)

    def left(self, names: Sequence[BundleNames], index: int, there: Cell) -> None:
        """Note a bundle that lies in a sink, with its entries."""
        sink, begin, until = self._rows[names[0].sink], there.begin, there.until
        if begin is None or until is None or not self._is_new(sink, index, there.id):
            return
        left = events.Left(
            at_ms=self.history.now_ms(),
            id=there.id,
            parents=[],
            sink=sink,
            version=next((each.version for each in names if each.id(begin, until) == there.id), 0),
            index=index,
            digest=cell_digest(there),
            since=(begin.index, begin.offset),
            until=(until.index, until.offset),
            items=_digests(there.v, there.types),
            values=there.v if self.history.bodies else [],
        )
        self.history.append(left)


class RecordedBarrier:
    """A barrier whose results and bundles are recorded."""

    def __init__(
        self,
        seen: PipelineEvents,
        names: BundleNames,
        values: Values,
        chain: Chain,
        at: Position,
        older: Sequence[BundleNames] = (),
        *given: Any,
        **options: Any,
    ) -> None:
        self._barrier = Barrier(names, values, chain, at, older, *given, **options)
        self._seen, self._names, self._values = seen, (names, *older), values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._barrier, name)

    def feed(self, frame: Frame, is_stored: bool = False) -> None:
        self._seen.made(self._names[0], self._values, frame, is_stored)
        self._barrier.feed(frame, is_stored)

    def adopt(self, index: int, there: Cell) -> None:
        self._seen.left(self._names, index, there)
        self._barrier.adopt(index, there)

    def pass_by(self, until: Position, next: int) -> None:
        bundle = self._barrier.bundled
        if bundle is not None and bundle.until == until and next:
            self._seen.left(self._names, next - 1, bundle)
        self._barrier.pass_by(until, next)


def _digests(raws: Sequence[msgspec.Raw], types: Sequence[str]) -> list[int]:
    """Check numbers of outputs as stored."""
    return [
        crc32(bytes(raw), crc32(type.encode())) for raw, type in zip(raws, types or repeat("", len(raws)), strict=True)
    ]


def rows_of(*logs: OrderedLog[Any]) -> list[str]:
    """The rows of logs by name, for `History.quiesce`: what lies in them has been taken."""
    return [
        log.row(writer, reader).name for log in logs for writer in range(log.writers) for reader in range(log.readers)
    ]


def _recorded(place: Place, seen: Steps | PipelineEvents) -> Place:
    return replace(place, store=RecordedDocuments(place.store, seen))


def cell_digest(cell: Cell) -> int:
    """A check number of what a cell says, the same whether its entries lie in it or in a blob."""
    values = cell.digest if cell.blob else sha256(msgspec.json.encode(cell.v)).hexdigest()
    return crc32(msgspec.json.encode(cell.types), crc32(values.encode()))


def _taken(names: Names, before: dict[str, Position] | None, after: Register) -> list[events.Taken]:
    taken: list[events.Taken] = []
    for name, row in names.inputs.items():
        until = after.cursors.get(name)
        since = None if before is None else before.get(name)
        if until is not None and until != since:
            begun = (-1, -1) if since is None else (since.index, since.offset)
            taken.append(events.Taken(row, begun, (until.index, until.offset)))
    return taken


def _emitted(names: Names, register: Register, out: Out, step: str) -> list[events.Emitted]:
    id, to = cell_id(names.name, register, out.to), names.outputs.get(out.to)
    if isinstance(to, RowTarget):
        return [events.Emitted(id, to.row.name, cell_digest(Cell(id, v=out.v, types=out.types)), step)]
    if not isinstance(to, QueueOutput):
        return []
    return [
        events.Emitted(f"{id}-{offset}", to.queue.name, digest_of(Message(body=bytes(raw), type=type)), step)
        for offset, (raw, type) in enumerate(zip(out.v, out.types, strict=True))
        if not _is_large(raw)
    ]


def _is_large(raw: msgspec.Raw) -> bool:
    """Whether the body of a message is sent by a blob."""
    return len(bytes(raw)) > CLAIM_CHECK_BYTES


def _begun(names: Names, register: Register) -> list[events.Taken]:
    """Where a register begins to take entries."""
    return [
        events.Taken(row, (at.index, at.offset), (at.index, at.offset))
        for name, row in names.inputs.items()
        if (at := register.cursors.get(name)) is not None
    ]


class _Reason(msgspec.Struct):
    """Of a stored record, why it is a refusal."""

    reason: str = ""


_store: type[StateStore] = RecordedDocuments
