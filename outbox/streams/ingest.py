"""Messages of a queue into a log: each becomes one entry or a dead letter, despite duplicates and crashes.

    ingest = Ingest("pages", queue="pages", type=Page, source=backend, log=pages)
    async with ingest.run(): ...

    ingest/<name>/<shard>   `register`      {"serial", "since", "outs", ...}, as a processor's
                            `inbox:<key>`   the record of a message: it is in the log, or was refused

Theory of operation: one batch of one partition creates a record for each message of a group and swaps the register,
which from then on holds their entries; it is the commit.  After it the messages are completed, and the entries are
appended under the identity of the register's nonce, by this process or by any other.  A redelivered message finds
its record: its create loses, and it is completed without an entry.  The rules of identity, time, age, payload and
refusal are those of handlers: `runtime.delivery.admission`, `runtime.verdict`, `runtime.start.retention`.

Completed before the batch, a message is lost; appended before it, under its own id, one that is delivered again after
the entries of others is appended twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Literal
from uuid import uuid4

import msgspec

from outbox.app import RETENTION, App
from outbox.cancellation import cancelled, handled_identity
from outbox.errors import NotRegistrable, OutcomeUnknown, PoisonMessage, Refused, Trimmed
from outbox.lineage import shard_of
from outbox.ports import (
    BlobStore,
    Create,
    Delivery,
    Document,
    DocumentKey,
    MessageBus,
    Replace,
    StateStore,
    StorePorts,
    Tag,
    Won,
)
from outbox.runtime.commit.partition_size import PartitionSizes
from outbox.runtime.delivery.admission import Admission
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.start.notes import register_retention
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox.runtime.store_operations import operations_over
from outbox.runtime.verdict import Verdict, differs_from_record, edit_without_record, replaced_over
from outbox.runtime.work import Later, Outcome, Work, attempt_at
from outbox.stored import RECORD_PREFIX, Record, decode
from outbox.stored import encode as encode_record
from outbox.streams.log import LogWriter, OrderedLog, check_name
from outbox.streams.log_places import Place, together
from outbox.streams.plan import RowTarget, check_reached, names_of, rows_written, until_ms
from outbox.streams.processor import Errors, goes_on, raise_from, started
from outbox.streams.register import (
    BY_NONCE,
    Kept,
    LastCell,
    Out,
    Register,
    RegisterCell,
    cell_id,
    check_lasts,
    entry_bytes_max,
    groups_of,
    lasts_at,
)
from outbox.streams.replica import REPORT_EVERY

log = logging.getLogger("outbox.streams")

GROUP_MAX = 90
"""The most messages of one commit: a record each, and the register, in a batch of at most 100."""
TRIES_MAX = 20
RECEIVE_WAIT_S = 5.0
IDLE_S = 1.0
"""The seconds without a message after which a queue over a network counts as empty; an engine knows at once."""
_OUT = "log"
Phase = Literal["receiving", "writing"]


@dataclass(frozen=True, slots=True)
class IngestShardStatus:
    """Where a shard of an ingest is.

    `serial` counts the commits of all processes, `entry_count` the entries of this one.  Its partition heads for
    `partition_share` of what the store lets one hold, at the rate of this process and with records that live for
    retention and margin (0: nothing came lately, or the store has no limit).
    """

    name: str
    serial: int
    phase: Phase
    entry_count: int
    partition_share: float


class Ingestion:
    """One shard's register, and the commits of messages into it."""

    def __init__(
        self,
        name: str,
        plan: CompiledApp,
        store: StateStore,
        output: LogWriter[Any],
        settlement: Settlement,
        *,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        sizes: PartitionSizes | None = None,
    ) -> None:
        self.name = name
        self.register = RegisterCell(store, f"ingest/{name}", Register, new_id=new_id)
        self._sizes = sizes or PartitionSizes(plan, 0, now_ms=now_ms)
        self.known: Kept[Register] | None = None
        self.entry_count = 0
        self._plan = plan
        self._store = store
        self._output = output
        self._targets = rows_written(_OUT, output)
        self._rows = {key: target.row for key, target in self._targets.items()}
        self._margin_ms = min(row.margin_ms for row in self._rows.values())
        self._settlement = settlement
        self._now_ms = now_ms
        self._new_id = new_id
        self._known_ms = 0
        self._session = ""
        """The session token of the last loss, with which the next read sees the write that won."""
        self._entry_bytes_max = entry_bytes_max(store, output.log.place)
        """The bytes of entries that both the register and a cell of the log can hold."""
        self._unreported = 0
        """How many commits the floors of the log do not know of."""
        self._written: tuple[tuple[int, str], dict[str, int], dict[str, LastCell]] = (-1, ""), {}, {}
        """The swap whose outs this process has seen in the log, where the next are looked for, and their cells.  A
        serial alone is no swap: a register that was restored has the same once more."""
        self._is_same = False
        """Whether the log was seen to hold the last cells that the register knows of."""

    async def take(self, works: Sequence[Work]) -> None:
        """Commit a group of messages, append their entries, and settle them.

        Raises:
            Refused, OutcomeUnknown: a store failed; what was not settled is delivered again.
        """
        for group in groups_of(works, self._entry_bytes_max // 2):
            try:
                outcomes = await self._commit(group)
            except Trimmed as error:
                await self._check_moved(error)
                outcomes = await self._commit(group)
            known = await self._fresh()  # what a copy's record was committed with may not be appended yet
            settling = [self._settlement.settle(attempt_at(work), outcome) for work, outcome in outcomes]
            await together([*settling, self._append_known(known)])
            if self._unreported >= REPORT_EVERY:
                await self._report()

    async def finish(self) -> None:
        """Append what the register holds, also where another process committed it, and report how far the log is."""
        await self._append_known(await self._read())
        if self._unreported:
            await self._report()

    async def _append_known(self, known: Kept[Register]) -> None:
        """Append what a register holds, unless another process has done so and gone on.

        Raises:
            Trimmed: the log was trimmed beyond where this register goes on.
        """
        try:
            await self._append(known.register)
        except Trimmed as error:
            await self._check_moved(error)

    async def _check_moved(self, error: Trimmed) -> None:
        """Forget a register that another process has swapped meanwhile: what it held is in the log.

        Raises:
            Trimmed: none has.
        """
        known, self.known = self.known, None
        if known is None or await self.register.is_current(known):
            raise error

    async def _report(self) -> None:
        """Tell the floors from where on cells are looked for; that it lags only makes trims take less."""
        known, self._unreported = self.known, 0
        if known is not None:
            with suppress(Refused, OutcomeUnknown):
                for key, target in self._targets.items():
                    await target.row.horizon.register(writer=f"ingest/{self.name}", at=known.register.since.get(key, 0))

    # The commit

    async def _commit(self, works: Sequence[Work]) -> list[tuple[Work, Outcome]]:
        """Commit messages together; what each comes to.  Those of records that are found drop out, one by one."""
        done: list[tuple[Work, Outcome]] = []
        todo: list[Work] = []
        for work in works:
            if isinstance(work.refusal, Later) or not work.inbox:
                done.append((work, work.refusal))
            else:
                todo.append(work)
        replaces: dict[bytes, Document] = {}
        for _ in range(TRIES_MAX + len(todo)):
            if not todo:
                return done  # all of them were committed before
            known = await self._fresh()
            since = await self._append(known.register)
            await check_reached(self._targets, since)
            refusals = {work.inbox: self._refusal(work, replaces.get(work.inbox)) for work in todo}
            entering = [work for work in todo if refusals[work.inbox] is None and not work.cancels_due_ms]
            after = self._after(known.register, entering, since)
            records = [self._record(work, refusals[work.inbox], replaces.get(work.inbox)) for work in todo]
            self.known, lost, session, current = await self._swap(known, after, records)
            if self.known is not None:
                self.entry_count += len(entering)
                self._unreported += 1
                for record in records:
                    self._sizes.add(self.register.key.partition, len(record.body))
                return [*done, *((work, refusals[work.inbox]) for work in todo)]
            if lost is not None and lost < len(todo):
                document = current or await self._store.read(records[lost].key, session=session)
                if document is not None:
                    work = todo[lost]
                    outcome = self._found(work, decode(document, Record))
                    if outcome is Verdict.RESUBMISSION:
                        replaces[work.inbox] = document
                    else:
                        done.append((todo.pop(lost), None if isinstance(outcome, Verdict) else outcome))
        raise Refused(f"ingest {self.name}: others commit all the time; the messages are delivered again")

    async def _swap(
        self, known: Kept[Register], after: Register, records: Sequence[Create | Replace]
    ) -> tuple[Kept[Register] | None, int | None, str, Any]:
        """Write the records and the register together; the register, or which operation lost, and what it lost to."""
        write, made = self.register.swapping(known, after)
        swapped_ms = self._now_ms()
        try:
            answer = await self._store.write([*records, write])
        except OutcomeUnknown:
            return await self.register.mine(made), None, "", None
        if isinstance(answer, Won):
            self._known_ms = swapped_ms
            return Kept(made, answer.versions[-1]), None, "", None
        self._session = answer.session
        return None, answer.operation, answer.session, answer.current

    def _refusal(self, work: Work, replaced: Document | None) -> PoisonMessage | None:
        """Why a message is refused: the last look at its age, behind which nothing is waited for but the write.

        One whose record is `replaced` was not applied before, however old it is.
        """
        if isinstance(work.refusal, PoisonMessage):
            return work.refusal
        if work.cancels_due_ms:
            return None  # it enters nothing, and may do so twice
        now_ms = self._now_ms()
        if replaced is None and work.delivery.message.replaces is not None:
            return edit_without_record(work.delivery.message.identity)  # where there is a record, the create loses
        if replaced is None and work.created_ms <= self._plan.retention.oldest_ms(now_ms):
            return self._plan.retention.refusal(work.created_ms, now_ms)
        try:
            raws, _ = self._output.log.values.encoded([work.value])
            self._output.log.reader_of(work.value)
        except PoisonMessage as error:
            return error
        if len(bytes(raws[0])) > self._entry_bytes_max:
            return PoisonMessage("oversize", f"an entry has at most {self._entry_bytes_max} bytes; send a smaller one")
        return None

    def _record(self, work: Work, refusal: PoisonMessage | None, replaces: Document | None) -> Create | Replace:
        now_ms = self._now_ms()
        gone = replaced_over(None if replaces is None else decode(replaces, Record), work.digest, now_ms)
        if work.cancels_due_ms and refusal is None:
            gone = (*gone, cancelled(work.delivery.message.attempt, now_ms))
        record = Record(
            tx=self._new_id(),
            fingerprint=work.digest,
            at_ms=now_ms,
            reason="" if refusal is None else refusal.reason,
            description="" if refusal is None else refusal.description,
            attempt=work.delivery.message.attempt,
            replaced=gone,
        )
        key = DocumentKey(self.register.key.partition, RECORD_PREFIX + work.inbox.hex())
        life_s = self._plan.life_s(self._plan.record_life_ms + max(0, work.cancels_due_ms - now_ms))
        tag = Tag("commit", (work.inbox,), record.tx)
        if replaces is not None:
            return Replace(key, encode_record(record), replaces.version, life_s, tag)
        return Create(key, encode_record(record), life_s, tag)

    def _found(self, work: Work, record: Record) -> Verdict | PoisonMessage:
        is_past = work.created_ms <= self._plan.retention.oldest_ms(self._now_ms())
        match work.verdict(record, is_past_retention=is_past):
            case Verdict.PAYLOAD_DIFFERS:
                return differs_from_record(work.delivery.message)
            case Verdict.REFUSED:
                return record.refusal or Verdict.DUPLICATE
            case Verdict.TOO_OLD:
                return self._plan.retention.refusal(work.created_ms, self._now_ms())
            case verdict:
                return verdict

    def _after(self, before: Register, works: Sequence[Work], since: dict[str, int]) -> Register:
        outs: list[Out] = []
        target = self._output.log
        shares: dict[int, list[Any]] = {}
        for work in works:
            shares.setdefault(target.reader_of(work.value), []).append(work.value)
        for reader in sorted(shares):
            raws, types = target.values.encoded(shares[reader])
            outs.append(Out(list(self._targets)[reader], raws, types, target.values.version))
        return msgspec.structs.replace(
            before,
            outs=outs,
            since=since,
            now=max(before.now, self._now_ms()),
            writes=names_of(self._rows),
            lasts=before.lasts | self._written[2],
            version=BY_NONCE,
        )

    # The register

    async def _fresh(self) -> Kept[Register]:
        """The register, known from so short a time ago that what it holds may be appended.

        What is appended and what is swapped are of this one: a second read may be stale, and what the register holds
        by then would be swapped away unwritten.
        """
        known = self.known
        is_past = self._now_ms() - self._known_ms > self._margin_ms // 4
        return await self._read() if known is None or is_past else known

    async def _read(self) -> Kept[Register]:
        began_ms = self._now_ms()
        for _ in range(TRIES_MAX):
            known = await self.register.read(session=self._session)
            if known is None:
                known = await self.register.swap(None, await self._first())
            if known is not None:
                await self._check(known.register)
                self.known, self._known_ms = known, began_ms
                return known
        raise Refused(f"ingest {self.name}: its register is created by others all the time; start again")

    async def _check(self, register: Register) -> None:
        """Check that the register's entries belong into this log.

        Raises:
            NotRegistrable: it is a log of another name, or with other shards.
            OtherLog, NotThere: it does not hold what was written to it last.
        """
        here = names_of(self._rows)
        if register.since.keys() != here.keys() or any(here[key] != row for key, row in register.writes.items()):
            raise NotRegistrable(
                f"ingest {self.name} has written to {', '.join(register.writes.values()) or 'a log of other shards'}, "
                f"and this code gives {', '.join(here.values())}; give the log that it was, or the ingest another name"
            )
        if not self._is_same:
            await check_lasts(f"ingest/{self.name}", register.lasts, (), self._rows.values())
            self._is_same = True

    async def _first(self) -> Register:
        since = {}
        for key, target in self._targets.items():
            floor = await target.row.horizon.register(
                writer=f"ingest/{self.name}", at=await target.row.end(), kind=target.row.kind, moves=False
            )
            since[key] = floor.writers[f"ingest/{self.name}"]
        return Register(since=since, code=f"ingest {self.name}", writes=names_of(self._rows), version=BY_NONCE)

    async def _append(self, register: Register) -> dict[str, int]:
        """Append what a register holds; from where on the next is looked for."""
        if self._written[0] == (register.serial, register.nonce):
            return self._written[1]
        left_ms = self._known_ms + self._margin_ms // 2 - self._now_ms()
        ids = [cell_id(f"ingest/{self.name}", register, out.to) for out in register.outs]
        calls = [
            self._targets[out.to].write(
                id,
                out,
                since=register.since[out.to],
                at_ms=register.now,
                until_ms=until_ms(self._targets[out.to], left_ms, self._now_ms),
            )
            for id, out in zip(ids, register.outs, strict=True)
        ]
        ends = await together(calls)
        since = register.since | {out.to: end for out, end in zip(register.outs, ends, strict=True)}
        since = {key: max(at, self._targets[key].row.cells.end) for key, at in since.items()}
        self._written = (register.serial, register.nonce), since, lasts_at(self._rows, register.outs, ids, ends)
        return since


class Ingest:
    """Takes the messages of a queue into a log; any number of processes may run it at once.

    `source` is the backend whose queue it is, of partition scope; the registers and the messages' records lie in its
    store.  A message is of `type`, or of one of a union; the entry is its value.  `shards` spread the records over as
    many partitions, by identity: a record takes some 520 bytes, so one partition of 20 GB holds about 60 messages a
    second over seven days of `retention`; one that heads for 80 % is logged, and `status()` tells.  The number must not
    change while messages may be delivered again.

    Raises:
        NotRegistrable: something given cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: str,
        type: Any,
        source: Any,
        log: OrderedLog[Any] | LogWriter[Any],
        retention: timedelta = RETENTION,
        shards: int = 1,
    ) -> None:
        self.name = check_name("ingest", name)
        if not hasattr(source, "ports"):
            raise NotRegistrable(
                f"ingest {name}: {source.__class__.__name__} has no queues; give an Engine, or azure.connect(...)"
            )
        if not isinstance(log, OrderedLog | LogWriter):
            raise NotRegistrable(
                f"ingest {name}: {log.__class__.__name__} is no log; give an OrderedLog, or a writer(n) of one"
            )
        if not 1 <= shards <= 256:
            raise NotRegistrable(f"ingest {name}: shards={shards}: 1 to 256")
        ports = source.ports()
        self._idle_s = IDLE_S
        if not isinstance(ports, StorePorts):
            ports, self._idle_s = source.apart(), 0.0
        self._ports: StorePorts = ports
        self._store = ports.infrastructure or ports.store
        if self._store.capabilities.atomic_scope != "partition":
            raise NotRegistrable(
                f"ingest {name}: its records and its register are written together, and this store writes one document "
                "at a time; give a backend of partition scope (an Engine, or azure.connect(...) without states=); the "
                "log may be anywhere"
            )
        self._output = output = log.writer(0) if isinstance(log, OrderedLog) else log
        self._message_type, self._retention = type, retention
        self.app = ingest_app(name, queue, type, retention)
        self.queue = queue
        self.plan = compile_app(self.app)
        self._operations = operations_over(ports)
        self._admission = Admission(self.plan, ports.blobs, Backoff(asyncio.sleep))
        self._settlement = settlement_of(self.plan, ports.bus, ports.blobs, self._operations.now_ms)
        now_ms, bytes_max = self._operations.now_ms, self._store.capabilities.partition_bytes_max
        self._sizes = PartitionSizes(self.plan, bytes_max, now_ms=now_ms, cure="shorten retention, or raise shards=")
        self._shards = [
            Ingestion(
                f"{name}/{shard}",
                self.plan,
                self._store,
                output,
                self._settlement,
                now_ms=now_ms,
                new_id=lambda: uuid4().hex,
                sizes=self._sizes,
            )
            for shard in range(shards)
        ]

    @property
    def log(self) -> OrderedLog[Any]:
        """The log that the messages go to."""
        return self._output.log

    def over(
        self, ports: Callable[[StorePorts], StorePorts], place: Callable[[Place], Place] = lambda given: given
    ) -> Ingest:
        """The same ingest over what these make of its backend's ports and of its log's place."""
        log, made = self._output.log, ports(self._ports)
        return Ingest(
            self.name,
            queue=self.queue,
            type=self._message_type,
            source=SimpleNamespace(ports=lambda: made),
            log=replace(self._output, log=log.on(place(log.place))),
            retention=self._retention,
            shards=len(self._shards),
        )

    def rows(self) -> dict[str, dict[str, RowTarget]]:
        """The rows that each shard's register writes to, by the names that they have in it."""
        return {shard.name: rows_written(_OUT, self._output) for shard in self._shards}

    async def open(self) -> None:
        """Create the queue where that is for us to do, and register the retention."""
        await self._operations.declare({self.queue: "unordered"}, {})
        await register_retention(self.app.name, self.plan.retention, self._operations)
        await together([shard.finish() for shard in self._shards])

    async def turn(self, *, wait_s: float = RECEIVE_WAIT_S) -> int:
        """Receive a group of messages and take them in; how many there were."""
        found = await self._ports.bus.receive(self.queue, count_max=GROUP_MAX, wait_s=wait_s)
        await self.take(found)
        if not found:  # the process that committed last may be dead
            await together([shard.finish() for shard in self._shards])
        return len(found)

    async def take(self, deliveries: Sequence[Delivery]) -> None:
        """Take in messages that were received."""
        works = await self._admission.admit(deliveries, self._operations.now_ms())
        shares: dict[int, list[Work]] = {}
        for work in works:
            shares.setdefault(shard_of(handled_identity(work.delivery.message), len(self._shards)), []).append(work)
        await together([self._shards[shard].take(share) for shard, share in shares.items()])

    async def status(self) -> list[IngestShardStatus]:
        """Where each shard is, and how full its partition will be at the rate of this process."""
        found: list[IngestShardStatus] = []
        for shard in self._shards:
            kept = await shard.register.read()
            register = Register() if kept is None else kept.register
            share = self._sizes.share(shard.register.key.partition)
            phase: Phase = "writing" if register.outs else "receiving"
            found.append(IngestShardStatus(shard.name, register.serial, phase, shard.entry_count, round(share, 4)))
        return found

    async def run_until_idle(self, *, groups_max: int = 1_000_000) -> int:
        """Take in what there is, over a network until nothing has come for a second; how many messages that was."""
        await self.open()
        count = 0
        for _ in range(groups_max):
            taken = await self.turn(wait_s=self._idle_s)
            if not taken:
                break
            count += taken
        return count

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Ingest]:
        """Take messages in until the context ends."""
        await self.open()
        task = started(self._for_ever(), f"ingest {self.name}")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise_from(task)

    async def _for_ever(self) -> None:
        errors = Errors(f"ingest {self.name}")
        while goes_on():
            try:
                await self.turn()
                errors.ended()
            except (Refused, OutcomeUnknown) as error:
                for shard in self._shards:
                    shard.known = None
                errors.failed(error)
                fields = {"ingest": self.name, "error": str(error)}
                log.warning("ingest %s took nothing; messages are redelivered: %s", self.name, error, extra=fields)
                await errors.pause()


def ingest_app(name: str, queue: str, kind: Any, retention: timedelta) -> App:
    """An application that reads the queue, for the rules of admission."""
    app = App(f"ingest:{name}", retention=retention)
    app.queue(queue)

    def entry(message: Any) -> None:
        """Never run: a message's value is the entry."""

    entry.__annotations__ = {"message": kind, "return": None}
    app.handler(queue, name="entry")(entry)
    return app


def settlement_of(plan: CompiledApp, bus: MessageBus, blobs: BlobStore, now_ms: Callable[[], int]) -> Settlement:
    """Make the settlement that ends messages once they are committed."""
    return Settlement(
        plan,
        bus,
        blobs,
        backoff=Backoff(asyncio.sleep),
        now_ms=now_ms,
        new_tx=lambda: uuid4().hex,
        settled=lambda _: None,
        failure_log=FailureLog(now_ms),
    )
