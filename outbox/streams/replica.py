"""One replica of a processor: its step.

Theory of operation: every replica does the same over and over.  It reads the register.  WRITING: it appends what the
last step emitted, each cell under an identity that follows from the register's serial, so that each lies in its log
once, however often and by how many replicas it is appended.  HANDLING: it reads the inputs at the register's cursors
and runs the handler on a copy of the state.  PREPARING: one swap of the register holds the new state, the cursors
behind what was read, what is to be written next, and where to begin looking for it.  One replica's swap wins; the
others drop what they have and read again.  There is no recovery: after any interruption the register says what is
next, and any replica does it.

A replica may be killed, paused or started at any moment.  What a step emits was in the register before it is in a log,
so a step that lost leaves no trace.  Registers and logs may be on stores of different kinds: no step writes two.

Source: "Heterogeneous concurrent exactly-once", its handlers HANDLING, PREPARING and WRITING.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from enum import Enum
from inspect import isawaitable
from typing import Any

import msgspec

from outbox.errors import FormatTooNew, NotRegistrable, OutcomeUnknown, Refused, TooLarge, Trimmed
from outbox.lineage import step_id
from outbox.ports import StateStore
from outbox.runtime.failures.error_text import failure_text
from outbox.streams.callables import NotCalled, call, check_run, unless_cancelled
from outbox.streams.cells import Position
from outbox.streams.failures import Ready, after_success, count_of, failed_step, is_timer_first, noted, rows_left
from outbox.streams.log_places import Seen, together
from outbox.streams.plan import (
    REFUSED,
    Inputs,
    ProcessorPlan,
    RefusedEntry,
    RowTarget,
    Step,
    Target,
    check_reached,
    names_of,
    until_ms,
)
from outbox.streams.read_ahead import ReadAhead
from outbox.streams.register import (
    Kept,
    LastCell,
    Register,
    RegisterCell,
    StateFull,
    check_lasts,
    check_size,
    check_state,
    last_of,
    lasts_at,
)
from outbox.streams.row import Entry, Row

log = logging.getLogger("outbox.streams")

REPORT_EVERY = 64
"""The won steps after which a replica reports its register's position at the floors of its logs."""
REPORT_EVERY_MS = 5_000
"""The time after which an idle replica reports its won steps; a report for each would cost too much."""
ENTER_COUNT_MAX = 20
MISS_COUNT_MAX = 3
"""The vain reads of a row after which entries read by a failed step count as gone."""
LOOK_EVERY_MS = 60_000
"""How often an idle replica looks where its outputs end."""
CLOCKS_AGREE_MS = 1_000
"""The difference between clocks below which the register keeps no note of it."""


class Progress(Enum):
    """The result of a step."""

    WON = "the register was swapped"
    LOST = "another replica was first"
    IDLE = "there was nothing to do"


class Replica:
    """One replica of a processor: its steps, and what it remembers from one to the next.

    `register` is the register as this replica last read or swapped it; None: it is to be read.
    """

    def __init__(
        self,
        plan: ProcessorPlan,
        store: StateStore,
        *,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        report_every: int = REPORT_EVERY,
        upkeep: bool = True,
    ) -> None:
        self.plan = plan
        self._who = f"processor/{plan.name}"
        self.register = RegisterCell(store, self._who, Register, new_id=new_id)
        self.known: Kept[Register] | None = None
        self.won_count = 0
        self.lost_count = 0
        self._inputs = plan.rows()
        self._rows = {key: row for rows in self._inputs.values() for key, row in rows.items()}
        self._targets = plan.targets()
        self._now_ms = now_ms
        self._margin_ms = min(row.margin_ms for row in [*self._rows.values(), *self._target_rows().values()])
        self._known_ms = 0
        """When the register was read or swapped; what it says is too old to append by after a while."""
        self._ahead = {key: ReadAhead() for key in self._rows}
        self._report_every = report_every
        self._upkeep = upkeep
        self._looked_ms = 0
        self._unreported = 0
        self._reported_ms = 0
        self._since: dict[str, int] = {}
        """Where outputs begin that the register does not know yet."""
        self._begins: dict[str, Position] = {}
        """The same of inputs."""
        self._is_reached = False
        """Whether the cells before the cursors were seen."""
        self._is_same = not upkeep
        """Whether the logs were seen to hold the last cells that the register knows of."""
        self._written: dict[str, LastCell] = {}
        """The cells that hold what the register holds, by row."""

    def remembered(self) -> Hashable:
        """The memory of this replica for its next step: the register, and the known ends of its rows."""
        ends = tuple((row.cells.end, row.horizon.index, row.horizon.version) for row in self._all_rows())
        known = None if self.known is None else (msgspec.json.encode(self.known.register), self.known.version)
        ahead = tuple((key, each.count) for key, each in self._ahead.items())
        return known, self._known_ms, self._looked_ms, ahead, ends, self._is_same

    def remember(self, kept: Any) -> None:
        """Go on with what a replica has remembered."""
        known, self._known_ms, self._looked_ms, ahead, ends, self._is_same = kept
        self.known = None if known is None else Kept(msgspec.json.decode(known[0], type=Register), known[1])
        self._ahead = {key: ReadAhead(count) for key, count in ahead}
        for row, (end, floor, version) in zip(self._all_rows(), ends, strict=True):
            row.cells.end, row.horizon.index, row.horizon.version = end, floor, version

    def _all_rows(self) -> list[Row[Any]]:
        rows = {row.name: row for row in (*self._rows.values(), *self._target_rows().values())}
        return [rows[name] for name in sorted(rows)]

    def _target_rows(self) -> dict[str, Row[Any]]:
        return {key: target.row for key, target in self._targets.items() if isinstance(target, RowTarget)}

    async def step(self) -> Progress:
        """Do the next step.

        Raises:
            HandlerFailed: the handler fails; nothing was swapped beyond its count.
            NotRegistrable, FormatTooNew: the register belongs to other, or newer, code.
            Trimmed: what is to be read, or where to write, is below the floor.
            Refused, OutcomeUnknown: a store failed; step again.
        """
        try:
            return await self._step()
        except Trimmed:  # another replica may have gone on, and let that be trimmed
            known, self.known = self.known, None
            if known is None or await self.register.is_current(known):
                raise
            return self._lost()

    async def _step(self) -> Progress:
        began_ms = self._now_ms()
        is_past = began_ms - self._known_ms > self._margin_ms // 4
        known = await self.look_or_begin() if self.known is None or is_past else self.known
        if known is None:
            return self._lost()
        register = known.register
        await self._check_lasts(register)
        since = await self._write(register)
        ready = await self._read_inputs(register)
        clock_ms = self._now_ms()
        now_ms = max(register.now, clock_ms)
        if not any(ready.entries.values()) and not 0 < register.wake <= now_ms:
            is_taken_over = register.version == self.plan.version
            if not register.outs and is_taken_over and not await self._raises_since(since, began_ms):
                await self._check_reaches(register)
                await self._report_if_due(register, idle=True)
                return Progress.IDLE
            after = msgspec.structs.replace(self._by_this_code(register), outs=[], since=since)  # trims may pass them
        else:
            after = await self._handled(register, ready, since, clock_ms)
            await check_reached(self._targets, {out.to: after.since[out.to] for out in after.outs})
        swapped_ms = self._now_ms()
        self.known = await self.register.swap(known, after)
        if self.known is None:
            return self._lost()
        self._known_ms, self.won_count = swapped_ms, self.won_count + 1
        await self._report_if_due(self.known.register)
        return Progress.WON

    def _lost(self) -> Progress:
        self.lost_count += 1
        return Progress.LOST

    async def look(self) -> Kept[Register] | None:
        """Read the register, and go on from it.

        Raises:
            NotRegistrable, FormatTooNew: it belongs to other, or newer, code.
        """
        began_ms, known = self._now_ms(), await self.register.read()
        self.known = None if known is None else Kept(await self._checked(known.register), known.version)
        self._known_ms = began_ms
        return self.known

    # The register

    async def look_or_begin(self) -> Kept[Register] | None:
        """Read the register, create it where there is none, and go on from it."""
        began_ms = self._now_ms()
        self.known, self._known_ms = await self._read(), began_ms
        return self.known

    async def _read(self) -> Kept[Register] | None:
        """The register, created where there is none; None where another replica creates it just now."""
        known = await self.register.read()
        if known is None:
            self._forget()
            first, past = await self._first()
            known = await self.register.read() if past else None  # another replica may have begun meanwhile
            if known is None and past:
                raise NotRegistrable(
                    f"processor {self.plan.name} has no register, and has read in {', '.join(past)} before: its "
                    f'register is lost, or elsewhere; restore it, or unregister "processor/{self.plan.name}" from '
                    "these logs to begin at their first entries"
                )
            if known is None:
                return await self.register.swap(None, first)
        return Kept(await self._checked(known.register), known.version)

    def _forget(self) -> None:
        """Begin as a process that has just begun: where a register is gone, so may be what its logs held."""
        for row in self._all_rows():
            row.cells.forget()
            row.horizon.forget()
        self._since.clear()
        self._begins.clear()
        self._is_reached, self._is_same = False, not self._upkeep

    async def _first(self) -> tuple[Register, list[str]]:
        """The first value: inputs from where they begin, outputs from their ends; both registered at the floors.

        And the inputs that somebody of this name has read from already.
        """
        plan = self.plan
        cursors = {key: Position(await self._enter(row, reader=True)) for key, row in self._rows.items()}
        past = [row.name for key, row in self._rows.items() if cursors[key] > Position(await row.first())]
        since = {key: await self._enter_output(target) for key, target in self._targets.items()}
        state = msgspec.Raw(plan.codec.encode(plan.codec.fresh()))
        register = Register(
            code=plan.code,
            version=plan.version,
            state=state,
            schema=plan.codec.version,
            cursors=cursors,
            since=since,
            reads=names_of(self._rows),
            writes=names_of(self._target_rows()),
        )
        return register, past

    async def _enter(self, row: Row[Any], *, reader: bool) -> int:
        """Register as a reader or writer at a row's floor, and return the index from which it needs the row."""
        for _ in range(ENTER_COUNT_MAX):
            at = await row.first() if reader else await row.end()
            who = {"reader" if reader else "writer": self._who}
            with suppress(Trimmed):  # the floor has passed it meanwhile
                known = await row.horizon.register(**who, at=at, kind=row.kind, moves=False)
                return (known.readers if reader else known.writers)[self._who]
        raise Refused(f"{row.name} is trimmed all the time; start again")

    async def _enter_output(self, target: Target) -> int:
        return await self._enter(target.row, reader=False) if isinstance(target, RowTarget) else 0

    async def _checked(self, register: Register) -> Register:
        """Check that this code may go on with a register, and learn where new inputs and outputs begin.

        Gives the register without what it says of logs that others stand for by now.

        Raises:
            NotRegistrable, FormatTooNew: it may not.
        """
        plan, name = self.plan, self.plan.name
        if register.version > plan.version or register.schema > plan.codec.version:
            raise FormatTooNew(
                f"processor {name} runs as version {register.version}, schema {register.schema}; this code is version "
                f"{plan.version}, schema {plan.codec.version}; deploy the newer"
            )
        if register.version == plan.version and register.code != plan.code:
            raise NotRegistrable(
                f"processor {name} is {register.code}, this is {plan.code}; give it another name, or version="
                f"{plan.version + 1} if it goes on from the other's state"
            )
        gone = [key for key in register.cursors if key not in self._rows]
        if gone and register.version == plan.version:
            raise NotRegistrable(
                f"processor {name} reads {', '.join(gone)} by its register, and this code has no such input; name it "
                f"as before, or give version={plan.version + 1} to drop it"
            )
        owed = [out.to for out in register.outs if out.to not in self._targets]
        if owed:
            raise NotRegistrable(
                f"processor {name} has yet to write to {', '.join(owed)}, and this code has no such output; declare it "
                "until that is written"
            )
        here = names_of(self._rows)
        left = {row: register.cursors[key] for key, row in register.reads.items() if here.get(key) != row}
        register = self._without_other_logs(register)
        if register.version < plan.version:  # the failures of this code are counted anew
            register = msgspec.structs.replace(register, failed=None, failures=0)
        for key, target in self._targets.items():
            if key not in register.since and key not in self._since:
                self._since[key] = await self._enter_output(target)
        for key, row in self._rows.items():
            if key not in register.cursors and key not in self._begins:
                await self._enter(row, reader=True)
                self._begins[key] = Position(await row.first())
            if key not in register.cursors and row.name in left:  # of this register: older code may have gone on
                self._begins[key] = left[row.name]
        return register

    def _without_other_logs(self, register: Register) -> Register:
        """A register without the cursors and `since` that were in other logs than this code gives under their names.

        Raises:
            NotRegistrable: the version is the same, or what is owed would go to another log.
        """
        reads, writes, plan = names_of(self._rows), names_of(self._target_rows()), self.plan
        others = {key: row for key, row in register.reads.items() if reads.get(key, row) != row}
        changed = {key: row for key, row in register.writes.items() if writes.get(key, row) != row}
        owed = [out.to for out in register.outs if out.to in changed]
        if owed or ((others or changed) and register.version == plan.version):
            was = ", ".join(f"{key} is not {row}" for key, row in (others | changed).items())
            raise NotRegistrable(
                f"processor {plan.name}: in this code {was} any more"
                + (", which has not been written yet" if owed else "")
                + f"; give the same logs, other names, or (once all is written) version={plan.version + 1}"
            )
        if not others and not changed:
            return register
        return msgspec.structs.replace(
            register,
            cursors={key: at for key, at in register.cursors.items() if key not in others},
            since={key: at for key, at in register.since.items() if key not in changed},
        )

    def _cursor(self, register: Register, key: str) -> Position:
        return register.cursors.get(key) or self._begins.get(key, Position(0))

    # WRITING

    async def _write(self, register: Register) -> dict[str, int]:
        """Write what the last step emitted, to all outputs at once; from where on each is looked for next."""
        left_ms = self._known_ms + self._margin_ms // 2 - self._now_ms()
        ids = [step_id(self.plan.name, register.serial, out.to) for out in register.outs]
        calls = [
            self._targets[out.to].write(
                id,
                out,
                since=register.since[out.to],
                at_ms=register.now if isinstance(self._targets[out.to], RowTarget) else register.made_ms,
                until_ms=until_ms(self._targets[out.to], left_ms, self._now_ms),
            )
            for id, out in zip(ids, register.outs, strict=True)
        ]
        ends = await together(calls)
        since = {key: at for key, at in (self._since | register.since).items() if key in self._targets}
        since |= {out.to: end for out, end in zip(register.outs, ends, strict=True)}
        rows = self._target_rows()
        self._written = lasts_at(rows, register.outs, ids, ends)
        for key, row in rows.items():  # what is known to exist now was written before the next serial
            since[key] = max(since[key], row.cells.end)
        return since

    # HANDLING

    async def _read_inputs(self, register: Register) -> Ready:
        """The entries at the cursors, up to `batch_max` of each input; after a failure what its note asks for."""
        entries: dict[str, list[Entry[Any]]] = {name: [] for name in self._inputs}
        cursors, lasts = {key: self._cursor(register, key) for key in self._rows}, dict[str, LastCell]()
        failed = None if register.failed is None else noted(register, cursors, self._now_ms())
        if failed is not None:
            of_note = await self._read_failed(register, Ready(entries, cursors, lasts, failed))
            if of_note is not None:
                return of_note
        for name, rows in self._inputs.items():
            found: dict[str, list[Entry[Any]]] = {key: [] for key in rows}
            room = self.plan.batch_max
            turn = register.serial % len(rows)  # a row that has always more must not keep the others out
            for key in (*list(rows)[turn:], *list(rows)[:turn]):
                if room:
                    found[key], cursors[key] = await self._ahead[key].entries(rows[key], cursors[key], room)
                    room -= len(found[key])
                if found[key]:
                    lasts[rows[key].name] = last_of(found[key][-1])
            entries[name] = [entry for each in found.values() for entry in each]
        return Ready(entries, cursors, lasts)

    async def _read_failed(self, register: Register, ready: Ready) -> Ready | None:
        """Read as the note of a failure says: a timer's step, or entries of the first row left.

        None: no row has any, as where a log was restored from an older backup.
        """
        failed = ready.failed
        assert failed is not None, "there is a note"
        if is_timer_first(failed, register, self._now_ms()):
            return ready
        left, room = rows_left(failed, ready.cursors), min(failed.take, self.plan.batch_max)
        for _ in range(MISS_COUNT_MAX):  # a read may be stale
            for key, at in left.items():
                read = self._ahead[key].entries(self._rows[key], ready.cursors[key], room, at)
                entries, ready.cursors[key] = await read
                if entries:
                    (name,) = [name for name, rows in self._inputs.items() if key in rows]
                    ready.entries[name], ready.lasts[self._rows[key].name] = entries, last_of(entries[-1])
                    return ready
        return None

    async def _handled(self, register: Register, ready: Ready, since: dict[str, int], clock_ms: int) -> Register:
        """The register after the handler has run, by a replica with this clock."""
        now_ms = max(register.now, clock_ms)
        clock = clock_ms if now_ms - clock_ms > CLOCKS_AGREE_MS else 0
        plan, codec = self.plan, self.plan.codec
        step = Step(plan.emits_to, now_ms, register.serial + 1)
        base = msgspec.structs.replace(self._by_this_code(register), since=since, now=now_ms, clock=clock)
        state, refusable = self._state_of(register), self._refusable(register, ready)
        try:
            await self._run(state, Inputs(ready.entries), step)
            encoded = codec.encode(step.saved[0] if step.saved else state)
            codec.decode(encoded, codec.version)  # a state that cannot be read would be the register's for good
            outs = plan.outs(step.emitted)
            check_state(plan.name, self.register.store, register, len(encoded), ready.entry_count)
            check_size(self._target_rows(), self.register.store, len(encoded), outs)
        except (StateFull, NotCalled):
            raise
        except Exception as error:
            return failed_step(plan, base, ready, refusable, error)
        wake = register.wake if register.wake > now_ms else 0
        failed = after_success(base, ready)
        return msgspec.structs.replace(
            base,
            state=msgspec.Raw(encoded),
            schema=codec.version,
            cursors=ready.cursors,
            lasts=base.lasts | ready.lasts,
            outs=outs,
            wake=min(wake, step.wake_ms) if wake and step.wake_ms else wake or step.wake_ms,
            failed=failed,
            failures=count_of(failed),
        )

    def _by_this_code(self, register: Register) -> Register:
        """A register as this code leaves it: of its version, and with the logs that it was given."""
        lasts = register.lasts | self._written
        return msgspec.structs.replace(
            register,
            code=self.plan.code,
            version=self.plan.version,
            cursors={key: self._cursor(register, key) for key in self._rows},
            reads=names_of(self._rows),
            writes=names_of(self._target_rows()),
            lasts={row.name: lasts[row.name] for row in self._all_rows() if row.name in lasts},
        )

    async def _run(self, state: Any, inputs: Inputs, step: Step) -> None:
        handler_s = self.plan.handler_s
        result = call("processor", self.plan.name, self.plan.handler, state, inputs, step)
        if isawaitable(result):
            try:
                with unless_cancelled():
                    async with asyncio.timeout(handler_s) as limit:
                        result = await result
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimeoutError(f"it did not end in {handler_s} s; wait for less, or raise handler_s=") from error
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise RuntimeError("it was cancelled, and not by us: await only what nobody cancels") from error
        check_run("processor", self.plan.name, result)

    def _state_of(self, register: Register) -> Any:
        """The state in a register, for the handler to change.

        Raises:
            NotRegistrable, FormatTooNew: this code cannot read it, which is no entry's fault.
        """
        codec = self.plan.codec
        try:
            return codec.decode(bytes(register.state), register.schema)
        except FormatTooNew:
            raise
        except Exception as error:  # an upcast's as well
            raise NotRegistrable(
                f"processor {self.plan.name}: the state in its register cannot be read: {failure_text(error)}; give "
                "the class that it was written with, or a higher state_version= and the upcasts to it"
            ) from error

    def _refusable(self, register: Register, ready: Ready) -> RefusedEntry | None:
        """The one entry of a step, encoded for a refusal before the handler can change it.

        Without its value where that does not fit into the register, beside the state.
        """
        entries = [(input, entry) for input, found in ready.entries.items() for entry in found]
        if not self.plan.refuses or len(entries) != 1:
            return None
        ((input, entry),) = entries
        raws, _ = next(iter(self._inputs[input].values())).values.encoded([entry.value])
        refused = RefusedEntry(input, str(entry.position), entry.id, "", raws[0])
        try:
            outs = self.plan.outs({REFUSED: [refused]})
            check_size(self._target_rows(), self.register.store, len(bytes(register.state)), outs)
        except TooLarge:
            size_bytes = len(bytes(raws[0]))
            text = f"its value of {size_bytes} bytes did not fit here; it is at its position until that is trimmed"
            return msgspec.structs.replace(refused, reason=text, value=msgspec.Raw(b"null"))
        return refused

    # Idle

    async def _raises_since(self, since: dict[str, int], now_ms: int) -> bool:
        """Look now and then where the outputs end, and raise `since` to there; whether that makes a difference.

        Else a processor that emits nothing would keep its outputs from being trimmed.
        """
        if not self._upkeep or now_ms - self._looked_ms < LOOK_EVERY_MS:
            return False
        self._looked_ms, before = now_ms, dict(since)
        for key, row in self._target_rows().items():
            since[key] = max(since[key], await row.end())
        self._unreported += since != before
        return since != before

    def seen(self) -> dict[StateStore, list[Seen]]:
        """The versions that this replica has seen, to wait until one of them changes."""
        assert self.known is not None, "it has stepped"
        found: dict[StateStore, list[Seen]] = {self.register.store: [(self.register.key, self.known.version)]}
        for key, row in self._rows.items():
            at = self._cursor(self.known.register, key)
            found.setdefault(row.place.store, []).extend(row.seen(max(at.index, row.cells.end)))
        return found

    def due_s(self) -> float | None:
        """In how many seconds a step is due without input; None: none is."""
        wake = self.known.register.wake if self.known is not None else 0
        return max(0.001, (wake - self._now_ms()) / 1_000) if wake else None

    def age_s(self, register: Register) -> float:
        """How long ago the last step was, by this replica's clock."""
        return (self._now_ms() - register.now) / 1_000

    async def _check_lasts(self, register: Register) -> None:
        """Check once that the logs are the ones that the register has read and written."""
        if not self._is_same:
            cursors = [(row, self._cursor(register, key)) for key, row in self._rows.items()]
            await check_lasts(self._who, register.lasts, cursors, self._target_rows().values())
            self._is_same = True

    async def _check_reaches(self, register: Register) -> None:
        """Check once that the cells before the cursors are there: behind the end a processor would wait for ever."""
        if not self._is_reached:
            for key, row in self._rows.items():
                await row.check_reaches(self._cursor(register, key).index, f"the cursor of processor {self.plan.name}")
            self._is_reached = True

    async def report_now(self) -> None:
        """Report the positions not reported yet, if any."""
        if self.known is not None and self._unreported:
            with suppress(Refused, OutcomeUnknown):
                await self.report(self.known.register)

    async def _report_if_due(self, register: Register, *, idle: bool = False) -> None:
        """Report at the floors where the register is, now and then; that it lags only makes trims take less."""
        self._unreported += not idle
        now_ms = self._now_ms()
        is_due = idle and self._unreported and now_ms - self._reported_ms >= REPORT_EVERY_MS
        if self._unreported >= self._report_every or is_due:
            self._unreported, self._reported_ms = 0, now_ms
            with suppress(Refused, OutcomeUnknown):
                await self.report(register)

    async def report(self, register: Register, *, inputs: bool = True) -> None:
        """Report at the floors of the logs where a register is, which was read or swapped."""
        for key, row in self._rows.items() if inputs else ():
            await row.horizon.register(reader=self._who, at=self._cursor(register, key).index)
        for key, row in self._target_rows().items():
            await row.horizon.register(writer=self._who, at=register.since.get(key, self._since.get(key, 0)))
