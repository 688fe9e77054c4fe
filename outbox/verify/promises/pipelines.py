"""The promises of a pipeline, watched from every write that takes effect.

NoHole            a bundle is created behind the last one, and begins where that ends
ConsistentOutput  a bundle holds what the operators put out at its positions, in their order, and so nothing twice
Monotone          checkpoints, their position and the version never fall
NoLost            a checkpoint stands only where all below its position has left, or is held; at the end everything has
Recoverable       a checkpoint's parts are there, and are the states at its position
Held              by_epoch: nothing leaves before a checkpoint that contains it stands
NoRepeat          at_most_once: no position leaves twice; then outputs may be lost

With at_least_once, positions may leave again, and none may be skipped: that is NoHole there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from outbox.ports import Delete, Won, Write
from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline.barrier import Names
from outbox.streams.pipeline.checkpoint import (
    Checkpoint,
    Held,
    PipelineRegister,
    Section,
    lines_of,
    merged,
    sections_of,
)
from outbox.streams.pipeline.cores import core_of, lead, states_of
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.states import GONE, text_of
from outbox.verify.explorer.ops import Finding, Op, Outcome, Raised

States = dict[str, dict[str, bytes]]
"""States as stored, by operator and key."""


class Released(NamedTuple):
    """The chain of a sink: how many bundles, up to which position, and the version of the last.

    `spans` are what has left, where there is no chain.
    """

    sink: str
    bundles: int
    until: Position
    version: int
    spans: tuple[tuple[Position, Position], ...] = ()


class PipelineGhost(NamedTuple):
    """The writes so far: what has left each sink, the digest of the register, and where each version took over."""

    sinks: tuple[Released, ...]
    register: bytes = b""
    starts: tuple[tuple[int, Position], ...] = ()


class Expected:
    """The outputs and states of a pipeline when nothing fails, made by its own operators."""

    def __init__(self, plan: PipelinePlan, values: Sequence[Any], at_ms: int) -> None:
        self.items: dict[str, list[tuple[Position, bytes]]] = {name: [] for name in plan.sinks}
        cores = {operator.name: core_of(plan.name, operator) for operator in plan.operators}
        self.states: list[States] = [_states(cores)]
        """The states before each entry, and behind the last."""
        for index, value in enumerate(values):
            ticks = [(Position(0), at_ms)] if index == 0 else []
            first = Frame([(Position(index), (), at_ms, value)], Position(index + 1), ticks)
            for name, made in lead(plan, cores, first, [entry_id(index)]).items():
                raws, _ = plan.sinks[name][1].values.encoded([record[3] for record in made.records])
                self.items[name] += [(Position(index), bytes(raw)) for raw in raws]
            self.states.append(_states(cores))

    def between(self, sink: str, begin: Position, until: Position) -> list[bytes]:
        """The items of a sink from one position up to another."""
        return [raw for at, raw in self.items[sink] if begin <= at < until]


def entry_id(number: int) -> str:
    """The id of an entry of the source that is explored, from 0."""
    return f"entry {number}"


def _states(cores: Mapping[str, Any]) -> States:
    return {
        name: {text_of(key): states.encode(state) for key, state in states.all().items()}
        for name, core in cores.items()
        if (states := states_of(core)) is not None and len(states)
    }


class PipelineMonitor:
    """Watches the sinks and the register of a pipeline, of one version or several, over a source of known values."""

    def __init__(
        self, plans: Sequence[PipelinePlan], values: Sequence[Any], given: Mapping[Any, bytes], at_ms: int
    ) -> None:
        self._expected = {plan.version: Expected(plan, values, at_ms) for plan in plans}
        self._names = {plan.version: Names(plan.name, plan.version, plan.graph, "") for plan in plans}
        self._end = Position(len(values))
        plan = plans[0]
        self._release = plan.release
        self._is_held = all(each.release.holds for each in plans)
        self._rows = {row.name: name for name, row in plan.sink_rows().items()}
        self._registers: dict[bytes, PipelineRegister] = {}
        self._cells: dict[bytes, Cell] = {}
        self._blobs: dict[str, bytes] = {}
        self._partition = f"pipeline/{plan.name}"
        register = [body for key, body in given.items() if key.partition == self._partition]
        first = PipelineGhost(tuple(Released(name, 0, Position(0), 0) for name in sorted(plan.sinks)))
        self._given = self._begun(first, self._kept(register[0])) if register else first

    def _kept(self, body: bytes) -> bytes:
        digest = blake2b(body, digest_size=12).digest()
        self._registers[digest] = msgspec.json.decode(body, type=PipelineRegister)
        return digest

    def _begun(self, ghost: PipelineGhost, digest: bytes) -> PipelineGhost:
        """The writes with this register, which another version may have taken over."""
        after = self._registers[digest]
        starts = ghost.starts
        if after.version not in dict(starts):
            starts = (*starts, (after.version, after.stands.c if starts else Position(0)))
        return ghost._replace(register=digest, starts=starts)

    # What an explorer asks

    def initial(self) -> PipelineGhost:
        return self._given

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.verb == "write" and isinstance(op.args[0], str) and not isinstance(outcome.result, Raised):
            self._blobs[op.args[0]] = op.args[1]
            return None
        if op.verb != "write" or not isinstance(outcome.result, Won):
            return None
        return tuple(event for write in op.args[0] if (event := self._meaning(write)) is not None) or None

    def _meaning(self, write: Write) -> Hashable:
        partition, id = write.key.partition, write.key.id
        if isinstance(write, Delete):
            return None
        if partition == self._partition:
            return "register", self._kept(write.body)
        sink = self._rows.get(partition.rpartition("/")[0])
        if sink is None or not id.isdigit():
            return None
        digest = blake2b(write.body, digest_size=12).digest()
        self._cells[digest] = msgspec.json.decode(write.body, type=Cell)
        return sink, int(id), digest

    def step(self, ghost: PipelineGhost, event: Any) -> Hashable:
        for one in event:
            after = self._swapped(ghost, one[1]) if one[0] == "register" else self._appended(ghost, *one)
            if isinstance(after, Finding):
                return after
            ghost = after
        return ghost

    def check(self, ghost: PipelineGhost, states: Sequence[Any]) -> Finding | None:
        return None

    def is_over(self, ghost: PipelineGhost, states: Sequence[Any], now_ms: int) -> bool:
        return False

    def final(self, ghost: PipelineGhost, states: Sequence[Any], now_ms: int) -> list[Finding]:
        found: list[Finding] = []
        if self._release.claims:
            return found
        version = self._registers[ghost.register].version if ghost.register else min(self._expected)
        for sink, _, until, *_ in ghost.sinks:
            lost = self._wanted(ghost, version, sink, until, self._end)
            if lost:
                found.append(Finding("NoLost", f"{lost[0].decode()} never came to {sink}, nor anything behind it"))
        return found

    def outcome(self, ghost: PipelineGhost, states: Sequence[Any]) -> Hashable:
        return tuple((released.sink, released.until) for released in ghost.sinks)

    # What is known after an event

    def _appended(self, ghost: PipelineGhost, sink: str, index: int, digest: bytes) -> PipelineGhost | Finding:
        cell, place = self._cells[digest], f"{sink}/{index}"
        if cell.gone:
            return ghost
        known = next(released for released in ghost.sinks if released.sink == sink)
        begin, until = cell.begin, cell.until
        if index != known.bundles or begin is None or until is None or not self._goes_on(known, begin):
            return Finding(
                "NoHole", f"{place} is from {begin} to {until}; the chain goes to {known.until}, {known.bundles} cells"
            )
        version = self._version_of(sink, cell)
        if version < known.version and self._release.chained:
            return Finding("Monotone", f"{place} is of version {version}, behind one of version {known.version}")
        made, wanted = [bytes(raw) for raw in cell.v], self._wanted(ghost, version, sink, begin, until)
        if made != wanted:
            return Finding("ConsistentOutput", f"{place} holds {made} from {begin} to {until}, not {wanted}")
        if self._is_held and self._wanted(ghost, version, sink, (c := self._registers[ghost.register].stands.c), until):
            return Finding("Held", f"{place} goes to {until}, and the checkpoint that stands is at {c}")
        spans = known.spans
        if self._release.claims:
            if any(begin < end and first < until for first, end in spans):
                return Finding("NoRepeat", f"{place} is from {begin} to {until}, of which some has left before")
            spans = tuple(sorted((*spans, (begin, until))))
        after = Released(sink, index + 1, max(known.until, until), version, spans)
        return ghost._replace(sinks=tuple(after if one is known else one for one in ghost.sinks))

    def _goes_on(self, known: Released, begin: Position) -> bool:
        """Whether a bundle that begins there may follow."""
        if self._release.chained:
            return begin == known.until
        return self._release.claims or begin <= known.until

    def _wanted(self, ghost: PipelineGhost, version: int, sink: str, begin: Position, until: Position) -> list[bytes]:
        """The items of a sink from one position up to another: below where a version took over the earlier one's."""
        starts = [(at, each) for each, at in ghost.starts if each <= version] or [(Position(0), version)]
        ends = [*(at for at, _ in starts[1:]), until]
        return [
            raw
            for (at, each), end in zip(starts, ends, strict=True)
            for raw in self._expected[each].between(sink, max(begin, at), min(until, end))
        ]

    def _swapped(self, ghost: PipelineGhost, digest: bytes) -> PipelineGhost | Finding:
        after = self._registers[digest]
        before = self._registers[ghost.register].stands if ghost.register else None
        stands = after.stands
        if before is not None and (stands.n < before.n or stands.c < before.c):
            return Finding("Monotone", f"checkpoint {stands.n} at {stands.c} follows {before.n} at {before.c}")
        begun = self._begun(ghost, digest)
        differs = self._state_differs(stands, self._expected[after.version])
        for sink, _, until, *_ in () if self._release.claims or differs is not None else ghost.sinks:
            lines = [line for part in stands.held for line in lines_of(self._blobs[part.blob], part, Held)]
            held = [(line.at, bytes(raw)) for line in lines if line.sink == sink for raw in line.v]
            if [raw for at, raw in held if at >= until] != self._wanted(begun, after.version, sink, until, stands.c):
                return Finding("NoLost", f"checkpoint {stands.n} is at {stands.c}; {sink} ends at {until}, held {held}")
            chain = stands.sinks[sink]
            made = len(self._wanted(begun, after.version, sink, chain.begin, stands.c))
            if self._release.chained and len(self._names) == 1 and made != chain.below + len(held):
                return Finding(
                    "Recoverable", f"checkpoint {stands.n} at {stands.c} has {chain} and {held}; {made} items"
                )
        return begun if differs is None else differs

    def _version_of(self, sink: str, cell: Cell) -> int:
        """The version whose bundle a cell is; 0: none's."""
        assert cell.begin is not None and cell.until is not None
        for version, names in self._names.items():
            if names._replace(sink=sink).id(cell.begin, cell.until) == cell.id:
                return version
        return 0

    def _state_differs(self, stands: Checkpoint, expected: Expected) -> Finding | None:
        sections: dict[tuple[str, int], list[Section]] = {}
        missing = stands.blobs() - {*self._blobs}
        if missing:
            return Finding("Recoverable", f"checkpoint {stands.n} names {missing}, which was never written")
        for part in stands.parts:
            for section in sections_of(self._blobs[part.blob], part):
                sections.setdefault(section.place, []).append(section)
        found: States = {}
        for section in map(merged, sections.values()):
            if section.changes:
                return Finding("Recoverable", f"checkpoint {stands.n} has changes of {[*section.changes]}, not a state")
            states = {key: bytes(raw) for key, raw in section.states.items() if raw != GONE}
            if states:
                found.setdefault(section.operator, {}).update(states)
        wanted = expected.states[stands.c.index]
        if found != wanted:
            return Finding("Recoverable", f"checkpoint {stands.n} at {stands.c} holds {found}, not {wanted}")
        return None
