"""The promises of ordered logs and processors, watched from every write that takes effect.

OnePlace          an identity lies in one cell
OneOwner          a blob is named by one cell, and deleted only when that is trimmed
NoHole            a cell is created behind the last one, and never again where one was
NoGhost           what is appended was committed by a register before, or given by a producer
NoLost            a register leaves its serial when all that it emitted is in its logs; at the end everything is
Monotone          serials, cursors, times and `since` never fall, and a serial follows its predecessor
ConsistentOutput  a step is what its handler makes of the state before and of the entries between the cursors
EveryTimer        a register is due at the earliest time that was asked for and has not come
Bounded           while an entry fails, no other row is read beyond where it ended at the first failure
EveryMessageEnds  at the end every processor has read all there is
NoLeftover        at the end there is no document and no blob that nothing needs, where a scope asks; see `leftovers`
Invariant         a user's, of every world
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from inspect import isawaitable
from typing import Any, NamedTuple

import msgspec

from outbox.ports import Delete, Won, Write
from outbox.streams.cells import FLOOR, Cell, Position
from outbox.streams.horizon import Floor
from outbox.streams.log import LogWriter
from outbox.streams.plan import REFUSED, Inputs, ProcessorPlan, RowTarget, Step, Target, rows_written
from outbox.streams.register import Out, Register, cell_id
from outbox.streams.row import Entry, Row
from outbox.verify.explorer.models.store import body_at
from outbox.verify.explorer.ops import Finding, Op, Outcome
from outbox.verify.explorer.ops import Raised as Failed
from outbox.verify.explorer.run import done


class Lying(NamedTuple):
    """A created cell: its row, its index, its identity, its body's digest, and whether it was trimmed."""

    row: str
    at: int
    id: str
    digest: bytes
    gone: bool = False


class Standing(NamedTuple):
    """An entry that a processor's handler fails on: its row, its position, and all rows' ends at the failure."""

    processor: str
    key: str
    at: Position
    ends: tuple[tuple[str, int], ...]


class Ghost(NamedTuple):
    """The writes so far: cells, outputs that registers committed, each register's digest, sent messages.

    And the entries that handlers fail on.
    """

    cells: tuple[Lying, ...] = ()
    emitted: tuple[tuple[str, bytes], ...] = ()
    registers: tuple[tuple[str, bytes], ...] = ()
    sent: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    standing: tuple[Standing, ...] = ()


class Appended(NamedTuple):
    """A cell was created."""

    row: str
    at: int
    digest: bytes


class Sent(NamedTuple):
    """Messages were sent: the identity and the digest of each."""

    messages: tuple[tuple[str, bytes], ...]


class BlobStored(NamedTuple):
    """A blob is there, or there no more, by its name."""

    blob: str
    is_there: bool = True


class Buried(NamedTuple):
    """A cell was turned into a tombstone."""

    row: str
    at: int


class Swapped(NamedTuple):
    """A register was swapped, or created (`before` empty)."""

    name: str
    before: bytes
    after: bytes


class StreamView:
    """The view of an invariant on processors: their states, and the entries under way between them."""

    def __init__(self, monitor: StreamMonitor, ghost: Ghost) -> None:
        self._monitor = monitor
        self._ghost = ghost
        self._registers = {name: monitor.register(digest) for name, digest in ghost.registers}

    def state(self, processor: str) -> Any:
        """The state of a processor; a fresh one where it has not begun."""
        codec = self._monitor.plans[processor].codec
        register = self._registers.get(processor)
        return codec.fresh() if register is None else codec.decode(bytes(register.state), register.schema)

    def entries(self, log: str) -> list[Any]:
        """The values in a log, in order, of one row."""
        return [value for _, entries in self._monitor.entries_of(self._ghost, log) for value in entries]

    def in_flight(self, log: str) -> list[Any]:
        """The values that are committed to a log and that its processor has not handled."""
        found, handled = list[Any](), dict[str, Position]()
        for name, register in self._registers.items():
            for out in register.outs:
                row = self._monitor.row_of(name, out.to)
                is_there = any(cell.id == cell_id(name, register, out.to) for cell in self._ghost.cells)
                if row is not None and row.name.startswith(f"log/{log}/") and not is_there:
                    found += row.values.decoded(Cell("", 0, len(out.v), out.v, out.types, out.schema), row.name)
            for key, row in self._monitor.inputs.get(name, {}).items():
                handled[row.name] = register.cursors.get(key, Position(0))
        for (row_name, at), values in self._monitor.entries_of(self._ghost, log):
            cursor = handled.get(row_name, Position(0))
            found += [value for offset, value in enumerate(values) if Position(at, offset) >= cursor]
        return found


Invariant = Callable[[StreamView], Any]
Left = Callable[[Sequence[Any], int], list[Finding]]
"""A check of the models' remaining contents at the end."""


class StreamMonitor:
    """Watches the logs and registers of some processors and producers."""

    def __init__(
        self,
        plans: Sequence[ProcessorPlan],
        *,
        produced: Iterable[str] = (),
        ingests: Mapping[str, LogWriter[Any]] | None = None,
        sent: Sequence[Any] = (),
        invariant: Invariant | None = None,
        at_end: Invariant | None = None,
        repeated: Iterable[str] = (),
        takes_back: bool = False,
        left: Left | None = None,
    ) -> None:
        self.plans = {plan.name: plan for plan in plans}
        self._produced = frozenset(produced)
        self._repeated = frozenset(repeated)
        """The ids of producers that begin again without knowing where they had begun: these may lie in two cells."""
        self._left = left
        self._takes_back = takes_back
        """Whether writers may be paused so long that they write where a cell was trimmed, and have to begin again."""
        self._sent = tuple(sorted(msgspec.json.encode(value) for value in sent))
        """The values of the messages that an ingest must bring into its log, each once."""
        self._bodies: dict[bytes, bytes] = {}
        """Everything written, by digest."""
        self._blobs: dict[str, bytes] = {}
        """The blobs outside cells, by name."""
        self._given = Ghost()
        self._invariant, self._at_end = invariant, at_end
        self._targets: dict[str, Mapping[str, Target]] = {
            **{plan.name: plan.targets() for plan in plans},
            **{f"ingest/{name}": rows_written("log", output) for name, output in (ingests or {}).items()},
        }
        self.inputs = {plan.name: {k: r for rows in plan.rows().values() for k, r in rows.items()} for plan in plans}
        """The rows that each processor reads; an ingest reads none."""
        targets = [target for found in self._targets.values() for target in found.values()]
        rows: list[Row[Any]] = [row for found in self.inputs.values() for row in found.values()]
        rows += [target.row for target in targets if isinstance(target, RowTarget)]
        self._rows = {row.name: row for row in rows}

    def knows(self, writes: Iterable[Write]) -> None:
        """Take the writes that are there at the beginning."""
        for write in writes:
            match self._meaning(write, b""):
                case Appended(row, at, digest):
                    cells = (*self._given.cells, Lying(row, at, self._cell(digest).id, digest))
                    self._given = self._given._replace(cells=tuple(sorted(cells)))
                case Swapped() as swapped:
                    self._given = self._committed(self._given, swapped)

    def row_of(self, processor: str, to: str) -> Row[Any] | None:
        """The row of an output by its name in the register; None where it is no log."""
        target = self._targets[processor].get(to)
        return target.row if isinstance(target, RowTarget) else None

    def register(self, digest: bytes) -> Register:
        """A register that was written."""
        return msgspec.json.decode(self._bodies[digest], type=Register)

    def _cell(self, digest: bytes) -> Cell:
        cell = _as_cell(self._bodies[digest])
        if not cell.blob:
            return cell
        values = msgspec.json.decode(self._blobs[cell.blob], type=list[msgspec.Raw])
        return msgspec.structs.replace(cell, v=values, blob="")

    def entries_of(self, ghost: Ghost, log: str) -> list[tuple[tuple[str, int], list[Any]]]:
        """The values of each cell of a log, by row and index."""
        return [
            ((cell.row, cell.at), self._rows[cell.row].values.decoded(self._cell(cell.digest), cell.row))
            for cell in ghost.cells
            if cell.row.startswith(f"log/{log}/") and cell.row in self._rows
        ]

    # What an explorer asks

    def initial(self) -> Ghost:
        return self._given

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        match op.verb:
            case _ if isinstance(outcome.result, Failed):
                return None
            case "send":
                messages = [output.message for output in op.args[0]]
                return (Sent(tuple((each.identity, _digest([each.body, each.created_ms])) for each in messages)),)
            case "write" if isinstance(op.args[0], str):  # a blob, which its name tells from others
                self._blobs[op.args[0]] = op.args[1]
                return (BlobStored(op.args[0]),)
            case "delete":
                return (BlobStored(op.args[0], False),)
            case "write" if isinstance(outcome.result, Won):
                found = [self._meaning(write, body_at(before, write.key, now_ms) or b"") for write in op.args[0]]
                return tuple(event for event in found if event is not None) or None
        return None

    def _meaning(self, write: Write, before: bytes) -> Hashable:
        partition, id = write.key.partition, write.key.id
        if isinstance(write, Delete):
            return None
        if partition.startswith(("processor/", "ingest/")) and id == "register":
            name, known = partition.removeprefix("processor/"), self._kept(before) if before else b""
            return Swapped(name, known, self._kept(write.body))
        if partition.startswith("log/") and id == FLOOR:
            return self._floor(partition, before, write.body)
        if partition.startswith("log/") and id.isdigit():
            row = partition.rpartition("/")[0]
            if _as_cell(write.body).gone:
                return Buried(row, int(id))
            return Appended(row, int(id), self._kept(write.body))
        return None

    def _floor(self, row: str, before: bytes, after: bytes) -> Finding | None:
        """The finding about a floor, by itself and beside the one before."""
        floor = msgspec.json.decode(after, type=Floor)
        behind = min([floor.index, *floor.readers.values(), *floor.writers.values()])
        if behind < floor.index:
            return Finding("Kept", f"the floor of {row} is {floor.index}, past a registered {behind}")
        known = msgspec.json.decode(before, type=Floor) if before else Floor()
        moves = [(known.readers, floor.readers), (known.writers, floor.writers)]
        falls = [name for old, new in moves for name in old if new.get(name, 1 << 60) < old[name]]
        if floor.index > known.index and not known.readers:
            return Finding("Kept", f"the floor of {row} rises to {floor.index}, and no reader is registered")
        if falls or floor.index < known.index or floor.cleared < known.cleared:
            return Finding("Monotone", f"the floor of {row} goes back, or {falls} on it")
        return None

    def _kept(self, body: bytes) -> bytes:
        digest = blake2b(body, digest_size=12).digest()
        self._bodies[digest] = body
        return digest

    def step(self, ghost: Ghost, event: Any) -> Hashable:
        for one in event:
            match one:
                case Finding():
                    return one
                case Appended():
                    after = self._appended(ghost, one)
                case Sent():
                    after = self._sent_off(ghost, one)
                case BlobStored(name, True):
                    after = ghost._replace(blobs=tuple(sorted({*ghost.blobs, name})))
                case BlobStored(name):
                    after = self._deleted(ghost, name)
                case Buried(row, at):
                    cells = (c._replace(gone=True) if (c.row, c.at) == (row, at) else c for c in ghost.cells)
                    after = ghost._replace(cells=tuple(sorted(cells)))
                case _:
                    after = self._swapped(ghost, one)
            if isinstance(after, Finding):
                return after
            ghost = after
        return ghost

    def check(self, ghost: Ghost, states: Sequence[Any]) -> Finding | None:
        return None if self._invariant is None else self._asked(self._invariant, ghost, "Invariant", "the invariant")

    def _asked(self, invariant: Invariant, ghost: Ghost, promise: str, name: str) -> Finding | None:
        try:
            if invariant(StreamView(self, ghost)):
                return None
            reason = ""
        except AssertionError as error:
            reason = f": {error}"
        shown = ", ".join(f"{name} {bytes(self.register(digest).state).decode()}" for name, digest in ghost.registers)
        return Finding(promise, f"{name} does not hold{reason} at {shown}")

    def is_over(self, ghost: Ghost, states: Sequence[Any], now_ms: int) -> bool:
        return False

    def final(self, ghost: Ghost, states: Sequence[Any], now_ms: int) -> list[Finding]:
        there = {cell.id for cell in ghost.cells}
        found = [Finding("NoLost", f"{id} was never appended") for id in sorted(self._produced - there)]
        if self._sent:
            there_too = [bytes(raw) for cell in ghost.cells for raw in self._cell(cell.digest).v]
            lost = [value.decode() for value in self._sent if value not in there_too]
            if len(lost) > len({each.message for state in states for each in getattr(state, "dead", ())}):
                found.append(Finding("NoLost", f"{', '.join(lost)} was sent, and is neither entry nor dead letter"))
        registers = dict(ghost.registers)
        for name in self.plans:
            if name not in registers:
                found.append(Finding("EveryMessageEnds", f"{name} never began"))
                continue
            register = self.register(registers[name])
            if register.outs:
                found.append(Finding("NoLost", f"{name} ends with outs that may not be written"))
            for key, row in self.inputs[name].items():
                end = sum(cell.row == row.name for cell in ghost.cells)
                at = register.cursors[key]
                if at < Position(end):
                    found.append(Finding("EveryMessageEnds", f"{name} stands at {at} of {key}, which ends at {end}.0"))
        found += self._left(states, now_ms) if self._left is not None else []
        broken = None if self._at_end is None else self._asked(self._at_end, ghost, "AtEnd", "at_end")
        return found if broken is None else [*found, broken]

    def outcome(self, ghost: Ghost, states: Sequence[Any]) -> Hashable:
        return tuple((cell.row, cell.at, cell.digest) for cell in ghost.cells)

    # What is known after an event

    def _appended(self, ghost: Ghost, event: Appended) -> Ghost | Finding:
        place = f"{event.row}/{event.at}"
        blob = _as_cell(self._bodies[event.digest]).blob
        if blob and blob not in ghost.blobs:
            return Finding("NoLost", f"{place} is written, and its entries lie in a blob that is not there")
        if blob and (other := self._owner(ghost, blob)) is not None:
            return Finding("OneOwner", f"{place} is written, and its blob is that of {other.row}/{other.at}")
        cell = self._cell(event.digest)
        twin = next((known for known in ghost.cells if known.id == cell.id and known.row == event.row), None)
        if any((known.row, known.at) == (event.row, event.at) for known in ghost.cells):
            if self._takes_back:
                return ghost  # so it counts as not appended
            return Finding("NoHole", f"{place} was trimmed and is written again, by {cell.id[:12]}: lost")
        if twin is not None and cell.id not in self._repeated:
            return Finding("OnePlace", f"{cell.id[:12]} lies at {twin.at} of {event.row} and is written to {place}")
        if any((event.row, index) not in {(k.row, k.at) for k in ghost.cells} for index in range(event.at)):
            return Finding("NoHole", f"{place} is written, and a cell before it never was")
        if cell.id not in self._produced and (cell.id, _digest_of(cell)) not in ghost.emitted:
            return Finding("NoGhost", f"{place} holds {cell.id[:12]}, which no register had committed")
        cells = (*ghost.cells, Lying(event.row, event.at, cell.id, event.digest))
        return ghost._replace(cells=tuple(sorted(cells)))

    def _owner(self, ghost: Ghost, blob: str) -> Lying | None:
        """The cell that names a blob and is not trimmed."""
        named = (cell for cell in ghost.cells if not cell.gone and _as_cell(self._bodies[cell.digest]).blob == blob)
        return next(named, None)

    def _deleted(self, ghost: Ghost, blob: str) -> Ghost | Finding:
        owner = self._owner(ghost, blob)
        if owner is not None:
            return Finding("OneOwner", f"the blob of {owner.row}/{owner.at} is deleted, and the cell is not trimmed")
        return ghost._replace(blobs=tuple(name for name in ghost.blobs if name != blob))

    def _sent_off(self, ghost: Ghost, event: Sent) -> Ghost | Finding:
        for message in event.messages:
            if message not in ghost.emitted:
                return Finding("NoGhost", f"{message[0]} is sent, and no register had committed it like that")
        return ghost._replace(sent=tuple(sorted({*ghost.sent, *(id for id, _ in event.messages)})))

    def _swapped(self, ghost: Ghost, event: Swapped) -> Ghost | Finding:
        if event.before == event.after:
            return ghost  # a look whether it is current
        after = self.register(event.after)
        if event.before:
            before = self.register(event.before)
            finding = self._judged(ghost, event.name, before, after)
            if finding is not None:
                return finding
            if event.name in self.plans:
                ghost = ghost._replace(standing=self._standing(ghost, event.name, before, after))
        return self._committed(ghost, event)

    def _committed(self, ghost: Ghost, event: Swapped) -> Ghost:
        """The knowledge after a register was swapped: its outputs may be appended from now on."""
        after = self.register(event.after)
        emitted = {*ghost.emitted}
        for out in after.outs:  # a name with a slash is that of an ingest
            id = cell_id(event.name, after, out.to)
            if self.row_of(event.name, out.to) is None:
                emitted |= {
                    (f"{id}-{offset}", _digest([bytes(raw), after.made_ms])) for offset, raw in enumerate(out.v)
                }
            else:
                emitted.add((id, _digest_of(Cell(id, after.now, len(out.v), out.v, out.types, out.schema))))
        registers = {**dict(ghost.registers), event.name: event.after}
        return ghost._replace(emitted=tuple(sorted(emitted)), registers=tuple(sorted(registers.items())))

    def _judged(self, ghost: Ghost, name: str, before: Register, after: Register) -> Finding | None:
        there = {(cell.row, cell.id) for cell in ghost.cells}
        for out in before.outs:
            row, id = self.row_of(name, out.to), cell_id(name, before, out.to)
            messages = [f"{id}-{offset}" for offset in range(len(out.v))]
            is_done = (row.name, id) in there if row is not None else set(messages) <= set(ghost.sent)
            if not is_done:
                return Finding("NoLost", f"{name} leaves serial {before.serial}, and {out.to} has not what it emitted")
        falls = [key for key in before.cursors if after.cursors.get(key, Position(1 << 60)) < before.cursors[key]]
        falls += [key for key in before.since if after.since.get(key, 1 << 60) < before.since[key]]
        if falls or after.now < before.now or after.serial != before.serial + 1:
            return Finding("Monotone", f"{name} goes from serial {before.serial} back in {falls or 'time or serial'}")
        if name not in self.plans:
            return self._taken_in(ghost, before, after)
        for standing in ghost.standing:
            passed = self._passed(standing, after) if standing.processor == name else []
            if passed:
                return Finding("Bounded", f"{name} fails at {standing.key} {standing.at}, and goes on in {passed[0]}")
        if after.cursors == before.cursors and not after.outs and after.state == before.state:
            return None  # what was written is cleared, or a failure counted
        entries = self._between(ghost, name, before, after)
        if isinstance(entries, Finding):
            return entries
        if not any(entries.values()) and not 0 < before.wake <= after.now:
            return Finding("ConsistentOutput", f"{name} steps to serial {after.serial} without input")
        return self._rerun(name, before, after, entries)

    @staticmethod
    def _passed(standing: Standing, after: Register) -> list[str]:
        """The rows that are read beyond where they ended when an entry first failed that is still next."""
        if after.cursors[standing.key] != standing.at:
            return []
        return [key for key, end in standing.ends if after.cursors[key] > Position(end)]

    def _standing(self, ghost: Ghost, name: str, before: Register, after: Register) -> tuple[Standing, ...]:
        """The entries that handlers fail on, once a register was swapped."""
        known = [each for each in ghost.standing if each.processor != name or after.cursors[each.key] == each.at]
        is_failure = after.failures > 0 and (after.failures, after.failed) != (before.failures, before.failed)
        if is_failure and after.cursors == before.cursors and not 0 < before.wake <= after.now:
            rows = self.inputs[name]
            ends = tuple((key, sum(cell.row == row.name for cell in ghost.cells)) for key, row in rows.items())
            there = {each.key for each in known if each.processor == name}
            known += [
                Standing(name, key, after.cursors[key], ends)
                for key, end in ends
                if key not in there
                and after.cursors[key] < Position(end)
                and self._fails_alone(ghost, name, after, key)
            ]
        return tuple(sorted(known))

    def _fails_alone(self, ghost: Ghost, name: str, after: Register, key: str) -> bool:
        """Whether a handler fails on the next entry of a row, if a step has read that."""
        at, plan = after.cursors[key], self.plans[name]
        if after.failed is not None and at >= after.failed.until.get(key, at):
            return False
        cursors = after.cursors | {key: at.after()}
        entries = self._between(ghost, name, after, msgspec.structs.replace(after, cursors=cursors))
        try:
            state = plan.codec.decode(bytes(after.state), after.schema)
            read = {} if isinstance(entries, Finding) else entries
            _run(plan, state, read, Step(plan.emits_to, after.now, after.serial))
        except Exception:  # whatever a handler raises
            return True
        return False

    def _taken_in(self, ghost: Ghost, before: Register, after: Register) -> Finding | None:
        """The finding about the messages that an ingest commits; each has a value of its own."""
        known = [bytes(raw) for out in before.outs for raw in out.v]
        known += [bytes(raw) for cell in ghost.cells for raw in self._cell(cell.digest).v]
        twice = [bytes(raw) for out in after.outs for raw in out.v if bytes(raw) in known]
        unknown = [bytes(raw) for out in after.outs for raw in out.v if bytes(raw) not in self._sent]
        if twice:
            return Finding("NoDuplicate", f"{twice[0].decode()} is committed again")
        return Finding("NoGhost", f"{unknown[0].decode()} was never sent") if unknown else None

    def _between(
        self, ghost: Ghost, name: str, before: Register, after: Register
    ) -> dict[str, list[Entry[Any]]] | Finding:
        """The entries between the cursors of two registers."""
        there = {(cell.row, cell.at): cell for cell in ghost.cells}
        found: dict[str, list[Entry[Any]]] = {}
        for input, rows in self.plans[name].rows().items():
            found[input] = []
            for key, row in rows.items():
                at, end = before.cursors[key], after.cursors[key]
                while at < end:
                    lying = there.get((row.name, at.index))
                    if lying is None:
                        return Finding("NoGhost", f"{name} has read {key} {at}, which was never written")
                    cell = self._cell(lying.digest)
                    found[input] += [e for e in row.entries(at.index, cell, at.offset) if e.position < end]
                    at = Position(at.index + 1)
        return found

    def _rerun(
        self, name: str, before: Register, after: Register, entries: dict[str, list[Entry[Any]]]
    ) -> Finding | None:
        plan = self.plans[name]
        step = Noting(Step(plan.emits_to, after.now, after.serial))
        state = plan.codec.decode(bytes(before.state), before.schema)
        is_refused = [out.to for out in after.outs] == [REFUSED]
        try:
            _run(plan, state, entries, step)
            encoded, outs = plan.codec.encode(step.saved[0] if step.saved else state), plan.outs(step.emitted)
        except Exception as error:  # whatever a handler raises
            if is_refused and after.state == before.state and sum(map(len, entries.values())) == 1:
                return None
            return Finding("ConsistentOutput", f"{name} goes on over what its handler fails on: {error!r}")
        if is_refused:
            return Finding("ConsistentOutput", f"{name} refuses what its handler takes")
        if encoded != bytes(after.state):
            return Finding(
                "ConsistentOutput",
                f"{name} has {bytes(after.state)!r} at serial {after.serial}, and should have {encoded!r}",
            )
        if outs != after.outs:
            return Finding("ConsistentOutput", f"{name} emits {_shown(after.outs)}, and should emit {_shown(outs)}")
        wake = min([*step.asked_ms, *([before.wake] if before.wake > after.now else [])], default=0)
        if wake != after.wake:
            return Finding("EveryTimer", f"{name} is due at {after.wake} (0: never), and was asked for {wake}")
        return None


class Noting:
    """A step that notes all times that its handler asks for."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.asked_ms: list[int] = []

    def wake_at(self, ms: int) -> None:
        self._step.wake_at(ms)
        self.asked_ms.append(int(ms))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def _run(plan: ProcessorPlan, state: Any, entries: dict[str, list[Entry[Any]]], step: Any) -> None:
    """Run a handler, alone, to its end."""
    result = plan.handler(state, Inputs(entries), step)
    if isawaitable(result):
        done(result)


def _as_cell(body: bytes) -> Cell:
    return msgspec.json.decode(body, type=Cell)


def _digest_of(cell: Cell) -> bytes:
    """The digest by which two cells hold the same entries."""
    return _digest([cell.v, cell.types])


def _digest(value: Any) -> bytes:
    return blake2b(msgspec.json.encode(value), digest_size=8).digest()


def _shown(outs: Sequence[Out]) -> str:
    return "; ".join(f"{out.to}: {b', '.join(bytes(raw) for raw in out.v).decode()}" for out in outs) or "nothing"
