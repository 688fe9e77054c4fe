"""Small scopes of logs and processors to explore: handlers, what is there at the beginning, and who runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec

from outbox.message import Message
from outbox.ports import Create, Output, QueueRef
from outbox.retries import Retries
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.start.plan import compile_app
from outbox.streams import Inputs, OrderedLog, Processor, RefusedEntry, Step, cells, horizon, read_ahead
from outbox.streams.cells import Position
from outbox.streams.ingest import ingest_app
from outbox.streams.log import LogWriter
from outbox.streams.log_places import Place
from outbox.streams.plan import QueueOutput
from outbox.streams.values import ENVELOPE_BYTES
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.models.queues import QueueModel
from outbox.verify.explorer.models.store import CAPABILITIES, BlobModel, visible
from outbox.verify.explorer.ops import Finding, Model
from outbox.verify.explorer.run import Calls, Program, done
from outbox.verify.explorer.scenario import START_MS
from outbox.verify.explorer.search import Hashing, Limits, Report, search
from outbox.verify.explorer.streams import Given, Replicas, Stores, StreamScenario, never
from outbox.verify.promises.streams import Invariant, StreamMonitor
from tests.simulation.stream_leftovers import leftovers
from tests.simulation.stream_programs import Ingesting, Producer, Reader, Reporter, Trimmer


@dataclass
class Number:
    """An entry of every log."""

    n: int


@dataclass
class Total:
    """The state of every processor."""

    sum: int = 0
    seen: list[int] = field(default_factory=list)


def add(total: Total, inputs: Inputs, step: Step) -> None:
    """Emit the sum so far."""
    for entry in inputs:
        total.sum += entry.value.n
    step.emit("sums", Number(total.sum))


LEAVE_BLOBS = ("crash", "delay", "error")
"""With these a blob may stay: its writer ends before its cell, it is written after all, or it cannot be deleted."""
LEAVE_BLOBS_OF_STEPS = (*LEAVE_BLOBS, "lost", "jump")
"""With the last two a replica may not learn what became of its cell, which another has finished and let be trimmed."""


@dataclass
class Scope:
    """A scope under construction: what is done to `place` is there at the beginning."""

    at: Stores = field(default_factory=Stores)
    given: Given = field(default_factory=Given)
    programs: list[Program] = field(default_factory=list)
    processors: list[Processor[Any]] = field(default_factory=list)
    settled: tuple[str, ...] = ()
    keeps: bool = True
    beside: list[Model] = field(default_factory=list)
    ingests: dict[str, LogWriter[Any]] = field(default_factory=dict)
    sent: list[Number] = field(default_factory=list)
    invariant: Invariant | None = None
    leave_blobs: Sequence[str] = LEAVE_BLOBS_OF_STEPS
    pause_ms: int = 0

    @property
    def place(self) -> Place:
        return self.given.place

    def log(self, name: str, *values: int, **options: Any) -> OrderedLog[Number]:
        """A log that holds these numbers, a cell each."""
        made: OrderedLog[Number] = OrderedLog(name, self.place, type=Number, **options)
        done(made.row(0, 0).horizon.register(reader="nobody", at=0, kind=made.row(0, 0).kind))
        done(made.unregister("nobody"))
        for number, value in enumerate(values):
            done(made.append(Number(value), id=f"{name}{number}"))
        return made

    def processor(
        self,
        name: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        *,
        replicas: int = 2,
        began: bool = True,
        **options: Any,
    ) -> Processor[Any]:
        """A processor with so many replicas, whose register is there if it has `began`."""
        reports, writes = options.pop("reports", False), options.pop("writes", False)
        program = {
            key: options.pop(key) for key in ("warm", "ends", "report_every", "upkeep", "make", "bus") if key in options
        }
        handler: Callable[..., Any] = options.pop("handler", add)
        made: Processor[Any] = Processor(
            name,
            handler,
            state=options.pop("state", Total),
            register=self.place,
            inputs=inputs,
            outputs=outputs,
            **options,
        )
        if began:
            first = self.given.begun(made.plan)
            if writes:  # it has handled its inputs, and not written what came of it
                done(first.step())
        self.processors.append(made)
        self.programs += [Replicas(made.plan, self.at, **program)] * replicas
        self.programs += [Reporter(made.plan, self.at)] * reports
        return made

    def refusing(self, name: str, inputs: dict[str, Any], *, limit: int = 2, **options: Any) -> Processor[Any]:
        """A processor whose entries are refused into a log at their second failure, or another one."""
        refused: OrderedLog[RefusedEntry] = OrderedLog("refused", self.place, type=RefusedEntry)
        done(refused.register("nobody"))
        done(refused.unregister("nobody"))
        return self.processor(
            name, inputs, {}, refused=refused, on_error="refuse", retries=Retries(limit=limit, delays_s=()), **options
        )

    def explored(
        self,
        *,
        invariant: Invariant | None = None,
        cpu_s: float = 60.0,
        limits: Limits | None = None,
        live: bool = False,
        **faults: int,
    ) -> Report:
        """Every interleaving, with so many faults of each kind."""
        producers = [program for program in self.programs if isinstance(program, Producer)]
        monitor = StreamMonitor(
            [each.plan for each in self.processors],
            produced={id for each in producers for id in each.ids()},
            repeated={id for each in producers if each.since is None for id in each.ids()},
            left=None
            if self.pause_ms
            else partial(self._left, judges_blobs=not any(map(faults.get, self.leave_blobs))),
            ingests=self.ingests,
            sent=self.sent,
            invariant=invariant or self.invariant,
            takes_back=self.pause_ms > 0,
        )
        monitor.knows(Create(key, body) for key, body in self.given.documents().items())
        given = self.given.apart(self.at)
        scenario: Any = StreamScenario(
            self.programs,
            monitor,
            self.at,
            given,
            Budgets(**faults),
            self.settled,
            self.keeps,
            self.beside,
            pause_ms=self.pause_ms,
        )
        hashing: Hashing = "exact" if limits is None else "64"
        return search(scenario, limits=limits or Limits(cpu_s=cpu_s), hashing=hashing, live=live)

    def _left(self, states: Sequence[Any], now_ms: int, *, judges_blobs: bool) -> list[Finding]:
        """What is left behind in the stores and blobs of a world."""
        documents = {key: body for state in states[: self.at.count] for key, body in visible(state, now_ms).items()}
        blobs = [name for name, _ in states[self.at.blobs]] if judges_blobs and self.at.blobs is not None else []
        return leftovers(documents, blobs)


def replicas_over(inputs: Sequence[int], *, replicas: int = 2, **options: Any) -> Scope:
    """One processor that sums up a log."""
    scope = Scope()
    scope.processor("p", {"in": scope.log("in", *inputs)}, {"sums": scope.log("sums")}, replicas=replicas, **options)
    return scope


def produced(*, tells_current: bool = False, **options: Any) -> Scope:
    """Two producers of one log, and two replicas that sum it up."""
    scope = Scope(Stores(replace(CAPABILITIES, tells_current=tells_current)))
    log = scope.log("in")
    scope.programs += [Producer(log, [Number(1)], scope.at, "a"), Producer(log, [Number(2)], scope.at, "b")]
    scope.processor("p", {"in": log}, {"sums": scope.log("sums")}, **options)
    return scope


def trimmed(*, replicas: int = 2, reader: bool = False, keeps: bool = True, **options: Any) -> Scope:
    """Two processors that are about to write to one log, what tells its floor where they are, and its trimmer."""
    scope = Scope(settled=("log/in1/", "log/in2/"), keeps=keeps)
    sums = scope.log("sums")
    given: dict[str, Any] = {"replicas": replicas, "writes": True, "reports": True, "ends": True} | options
    for name, log in (("p", scope.log("in1", 1)), ("q", scope.log("in2", 1))):
        scope.processor(name, {"in": log}, {"sums": sums}, **given)
    if reader:
        scope.programs.append(Reader(sums, scope.at))
        done(sums.register("reader", sums.first()))
    else:
        done(sums.row(0, 0).horizon.register(reader="ahead", at=1 << 20))
    scope.programs.append(Trimmer(sums, scope.at))
    return scope


def resting(**options: Any) -> Scope:
    """Replicas of which one may rest while another goes on, what tells the floor of their input, and its trimmer."""
    scope = Scope()
    log = scope.log("in", 1)
    made = scope.processor("p", {"in": log}, {}, handler=note, **{"warm": True, "batch_max": 1, **options})
    scope.programs += [Reporter(made.plan, scope.at, inputs=True), Trimmer(log, scope.at)]
    return scope


def note(total: Total, inputs: Inputs, step: Step) -> None:
    """Note each number."""
    total.seen += [entry.value.n for entry in inputs]


def two_stores(**options: Any) -> Scope:
    """A log, a register and another log, each in a store of its own."""
    scope = Scope(Stores(of_logs={"in": 0, "sums": 2}, of_registers={"p": 1}))
    scope.processor("p", {"in": scope.log("in", 1)}, {"sums": scope.log("sums")}, **options)
    return scope


def alike(**options: Any) -> Scope:
    """Two processors that write equal values to one log."""
    scope = Scope()
    sums = scope.log("sums")
    for name in ("p", "q"):
        scope.processor(name, {"in": scope.log(f"in {name}".replace(" ", "-"), 1)}, {"sums": sums}, **options)
    return scope


def in_one_cell(**options: Any) -> Scope:
    """A processor that takes two entries of one cell, one by one."""
    scope = Scope()
    log = scope.log("in")
    done(log.extend([Number(1), Number(2)], id="both"))
    scope.processor("p", {"in": log}, {"sums": scope.log("sums")}, batch_max=1, **options)
    return scope


def registering(**options: Any) -> Scope:
    """A log whose only reader is past two cells, another that registers at the first that is left, and a trimmer."""
    scope = Scope()
    log = scope.log("in", 1, 2)
    done(log.register("first", Position(2)))
    scope.processor("p", {"in": log}, {}, handler=note, replicas=1, began=False, ends=True, **options)
    scope.programs.append(Trimmer(log, scope.at))
    return scope


def first_reader(**options: Any) -> Scope:
    """A log that nobody has read, its first reader, a writer that has gone on, and a trimmer that began before."""
    scope = Scope()
    log = scope.log("in", 1, 2)
    done(log.row(0, 0).horizon.register(writer="writer", at=2))
    scope.processor("p", {"in": log}, {}, handler=note, replicas=1, began=False, ends=True, **options)
    scope.programs.append(Trimmer(log, scope.at))
    return scope


@dataclass(frozen=True)
class Leaver:
    """A reader that is gone for good."""

    log: OrderedLog[Any]
    at: Stores
    name: str = "leaver"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        if carried:
            await never(calls)
        log = self.log.on(self.at.places(calls).of(self.log))
        try:
            await log.row(0, 0).horizon.unregister("reader")
        except MAY_RETRY:
            return None
        return True


def leaving() -> Scope:
    """A log whose only reader has read one of two cells, and leaves beside a trimmer."""
    scope = Scope()
    log = scope.log("in", 1, 2)
    done(log.register("reader", Position(1)))
    scope.programs += [Leaver(log, scope.at), Trimmer(log, scope.at)]
    return scope


def begun_late(**options: Any) -> Scope:
    """A processor that begins while another writes to its output."""
    scope = Scope()
    sums = scope.log("sums")
    scope.processor("p", {"in": scope.log("in1", 1)}, {"sums": sums}, replicas=1, **options)
    scope.processor("q", {"in": scope.log("in2", 1)}, {"sums": sums}, replicas=1, began=False, **options)
    return scope


def ingested(*, messages: int = 2, copies: int = 1, processes: int = 1, expire: bool = False, **options: Any) -> Scope:
    """Messages of a queue, the first of them `copies` times, and processes that take them into a log."""
    scope = Scope()
    plan = compile_app(ingest_app("i", "numbers", Number, timedelta(days=7)))
    queue = [QueueModel("numbers", False, True)]
    scope.sent = [Number(n) for n in range(1, messages + 1)]
    bodies = [Output("numbers", 0, _message(number)) for number in scope.sent]
    scope.beside.append(
        BusModel(
            queue,
            {"numbers": ["numbers"]},
            sent=[*bodies[:1] * copies, *bodies[1:]],
            start_ms=START_MS,
            retentions_ms={plan.retention_ms},
            locks_hold=not expire,
        )
    )
    output = scope.log("pages").writer(0)
    scope.ingests["i"] = output
    scope.programs += [Ingesting(plan, output, scope.at, 1, **options)] * processes
    return scope


def failing(
    *, busy: Sequence[int] = (1,), given: Sequence[int] = (-2, 3), traffic: Sequence[int] = (4,), **options: Any
) -> Scope:
    """A processor that fails on some of what one input has, while a producer appends to another."""
    scope = Scope(invariant=refuses_bad_ones_once)
    log = scope.log("busy", *busy)
    if traffic:
        scope.programs.append(Producer(log, [Number(n) for n in traffic], scope.at))
    logs = {"busy": log, "given": scope.log("given", *given)}
    scope.refusing("p", logs, **{"handler": takes_no_negative, **options})
    return scope


def alarmed(**options: Any) -> Scope:
    """A processor whose timer is due again after each step, and that fails on an entry."""
    scope = failing(given=(-2,), traffic=(), handler=is_always_due, **options)
    scope.invariant = refuses_between_alarms
    return scope


FAILS_ONCE = 9
"""A number that its handler fails on in the second step, and in no other."""


def takes_no_negative(total: Total, inputs: Inputs, step: Step) -> None:
    """Note each number; fail on one below zero, and once on another."""
    for entry in inputs:
        if entry.value.n < 0 or (entry.value.n == FAILS_ONCE and step.serial == 2):
            raise ValueError("not below zero")
        total.seen.append(entry.value.n)


ALARMS_MAX = 5


def is_always_due(total: Total, inputs: Inputs, step: Step) -> None:
    """Count the timers, of which the next is due at once; fail on a number below zero."""
    takes_no_negative(total, inputs, step)
    total.sum += not len(inputs)
    if total.sum < ALARMS_MAX:
        step.wake_at(step.now_ms)


def failing_alarm(**options: Any) -> Scope:
    """A processor whose timer is due beside an entry, and fails at first."""
    return failing(busy=(1, 2), given=(), traffic=(), batch_max=1, handler=fails_at_its_timer, **options)


def fails_at_its_timer(total: Total, inputs: Inputs, step: Step, until: int = 4) -> None:
    """Ask for a timer with the first entry; what is due then fails in the steps before `until`: twice."""
    if total.sum == 1 and step.serial < until:
        raise ValueError("not yet")
    total.sum += total.sum == 1
    for entry in inputs:
        total.seen.append(entry.value.n)
        if not total.sum:
            total.sum = 1
            step.wake_at(step.now_ms)


def failing_alarm_once(**options: Any) -> Scope:
    """A processor whose timer is due beside an entry, and fails once, where one failure of an entry refuses it."""
    given: dict[str, Any] = {"limit": 1, "handler": fails_once_at_its_timer, **options}
    return failing(busy=(1, 2), given=(), traffic=(), batch_max=1, **given)


def fails_once_at_its_timer(total: Total, inputs: Inputs, step: Step) -> None:
    """Ask for a timer with the first entry; what is due with the next one fails."""
    fails_at_its_timer(total, inputs, step, until=3)


def two_timers(**options: Any) -> Scope:
    """A processor that asks for two times in one step, and handles entries before either has come."""
    scope = Scope()
    scope.processor("p", {"in": scope.log("in", 1, 2, 3)}, {}, handler=asks_for_times, batch_max=1, **options)
    return scope


def asks_for_times(total: Total, inputs: Inputs, step: Step) -> None:
    """Note each entry and timer; with the first ask for two times, the later one first, and with the third for one."""
    total.sum += not len(inputs)
    for entry in inputs:
        total.seen.append(entry.value.n)
        for after_ms in {1: (20, 10), 3: (30,)}.get(entry.value.n, ()):
            step.wake_at(step.now_ms + after_ms)


def refuses_between_alarms(view: Any) -> bool:
    """Whether the entry that fails is refused before all timers were due."""
    return refuses_bad_ones_once(view) and (view.state("p").sum < ALARMS_MAX or len(view.entries("refused")) == 1)


def refuses_bad_ones_once(view: Any) -> bool:
    """Whether what was refused is what cannot be handled, and each only once."""
    refused = [json.loads(bytes(entry.value))["n"] for entry in view.entries("refused")]
    return len(set(refused)) == len(refused) and all(n < 0 for n in refused)


def to_a_queue(**options: Any) -> Scope:
    """A processor that writes to a log and sends to a queue."""
    scope = Scope()
    queue = QueueOutput(QueueRef("orders", _never_called))
    scope.beside.append(
        BusModel([QueueModel("orders", False, True)], {"orders": ["orders"]}, start_ms=START_MS, retentions_ms=set())
    )
    outputs = {"orders": queue, "sums": scope.log("sums")}
    scope.processor("p", {"in": scope.log("in", 1, 2)}, outputs, handler=add_and_order, bus=1, **options)
    return scope


def add_and_order(total: Total, inputs: Inputs, step: Step) -> None:
    """Emit the sum so far, and order each number and ten more."""
    add(total, inputs, step)
    for entry in inputs:
        step.emit("orders", entry.value)
        step.emit("orders", Number(entry.value.n + 10))


async def _never_called(_: Sequence[Output]) -> None:
    raise AssertionError("replicas are given another")


def sharded(**options: Any) -> Scope:
    """A processor from a log of two writers to a log of two readers, each step to one of them or both."""
    scope = Scope()
    given: OrderedLog[Number] = OrderedLog("in", scope.place, type=Number, writers=2)
    for writer in range(2):
        done(given.writer(writer).append(Number(writer + 1), id=f"in{writer}"))
    made: OrderedLog[Number] = OrderedLog("sums", scope.place, type=Number, readers=2, partition=lambda each: each.n)
    for reader in range(2):
        row = made.row(0, reader)
        done(row.horizon.register(reader="nobody", at=0, kind=made.row(0, 0).kind))
        done(row.horizon.unregister("nobody"))
    scope.processor("p", {"in": given.reader(0)}, {"sums": made}, handler=add_all, **options)
    return scope


def add_all(total: Total, inputs: Inputs, step: Step) -> None:
    """Emit the sum after each number."""
    for entry in inputs:
        total.sum += entry.value.n
        step.emit("sums", Number(total.sum))


def overflowing(*values: int, trims: bool = False, **options: Any) -> Scope:
    """A processor whose output lies in blobs, because the store of its log holds next to nothing in a document.

    With `trims` its replicas have yet to write, and their output is read and trimmed.
    """
    scope = Scope(Stores(of_logs={"sums": 1}, item_bytes_max={1: ENVELOPE_BYTES + 4}, blobs=2))
    scope.beside.append(BlobModel())
    sums = scope.log("sums")
    if trims:
        options |= {"writes": True, "reports": True, "ends": True}
    scope.processor("p", {"in": scope.log("in", *(values or (1, 2)))}, {"sums": sums}, batch_max=1, **options)
    if trims:
        done(sums.register("reader", sums.first()))
        scope.programs += [Reader(sums, scope.at), Trimmer(sums, scope.at)]
    return scope


def trimmed_blobs(**options: Any) -> Scope:
    """Replicas that have yet to write a blob and the cell that names it, which is read and trimmed at once."""
    return overflowing(1, trims=True, **options)


def repeated(*, tries: int = 1, **options: Any) -> Scope:
    """A large entry that two processes append under one id, without knowing of each other, a reader and a trimmer."""
    scope = Scope(Stores(of_logs={"in": 1}, item_bytes_max={1: ENVELOPE_BYTES + 4}, blobs=2), leave_blobs=LEAVE_BLOBS)
    scope.beside.append(BlobModel())
    log = scope.log("in", **options)
    done(log.register("reader", log.first()))
    for process in "12":
        scope.programs.append(Producer(log, [Number(1)], scope.at, since=None, tries=tries, process=process))
    scope.programs += [Reader(log, scope.at), Trimmer(log, scope.at)]
    return scope


@contextmanager
def thresholds() -> Iterator[None]:
    """Let happen after each cell what else happens after 16, 64 or 1,024: hints, pages, rounds of a trim, reads."""
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(cells, HINT_EVERY=1, WALKED_MAX=1, PAGE_BITS=0))
        stack.enter_context(patch.object(horizon, "CLEARED_MAX", 1))
        stack.enter_context(patch.object(read_ahead, "CELLS_MAX", 2))
        yield


@dataclass
class Small:
    """A scope that is made and explored with each of its thresholds at one cell."""

    of: str
    options: dict[str, Any]

    def explored(self, **given: Any) -> Report:
        with thresholds():
            return SCOPES[self.of](**self.options).explored(**given)


def small(of: str, **options: Any) -> Any:
    """Another scope with its thresholds at one cell."""
    return Small(of, options)


MARGIN_MS = 600_000


def paused_replicas(**options: Any) -> Scope:
    """Replicas that have yet to write and may be paused for the margin within that, and a trimmer."""
    scope = Scope(pause_ms=MARGIN_MS)
    sums = scope.log("sums")
    given: dict[str, Any] = {"writes": True, "reports": True, "ends": True} | options
    scope.processor("p", {"in": scope.log("in", 1)}, {"sums": sums}, **given)
    done(sums.row(0, 0).horizon.register(reader="ahead", at=1 << 20))
    scope.programs.append(Trimmer(sums, scope.at))
    return scope


def paused() -> Scope:
    """Producers that may be paused for the margin within an append, a reader, and a trimmer of what it has read."""
    scope = Scope(pause_ms=MARGIN_MS)
    log = scope.log("in")
    done(log.register("reader", log.first()))
    scope.programs += [Producer(log, [Number(n)], scope.at, id, since=None, tries=2) for n, id in enumerate("ab")]
    scope.programs += [Reader(log, scope.at), Trimmer(log, scope.at)]
    return scope


def _message(number: Number) -> Message:
    return Message(body=msgspec.json.encode(number), outbox_id=f"m{number.n}", type="Number", created_ms=START_MS)


@dataclass
class Withdraw:
    id: str
    source: str
    target: str
    amount: int


@dataclass
class Deposit:
    id: str
    source: str
    target: str
    amount: int


@dataclass
class Refund:
    id: str
    source: str
    amount: int


@dataclass
class Refusal:
    id: str


@dataclass
class Accounts:
    """One bank's accounts, by name; a closed one takes no deposit."""

    balances: dict[str, int] = field(default_factory=lambda: {"alice": 5})
    closed: list[str] = field(default_factory=lambda: ["carol"])


def bank(accounts: Accounts, inputs: Inputs, step: Step) -> None:
    """Only a withdrawal may be refused: what follows is a deposit or a refund, and cannot be."""
    for entry in inputs:
        match entry.value:
            case Withdraw(id, source, _, amount) if accounts.balances.get(source, 0) < amount:
                step.emit("answers", Refusal(id))
            case Withdraw(id, source, target, amount):
                accounts.balances[source] -= amount
                step.emit("there", Deposit(id, source, target, amount))
            case Deposit(id, source, target, amount) if target in accounts.closed:
                step.emit("there", Refund(id, source, amount))
            case Deposit(_, _, target, amount):
                accounts.balances[target] = accounts.balances.get(target, 0) + amount
            case Refund(_, source, amount):
                accounts.balances[source] = accounts.balances.get(source, 0) + amount


def funds(*commands: Withdraw, replicas: int = 2) -> Scope:
    """Two banks, each a processor with its commands and its register in a store of its own."""
    scope = Scope(Stores(of_logs={"east": 0, "west": 1, "answers": 0}, of_registers={"east": 0, "west": 1}))
    kinds = Withdraw | Deposit | Refund
    logs: dict[str, OrderedLog[Any]] = {name: OrderedLog(name, scope.place, type=kinds) for name in ("east", "west")}
    answers: OrderedLog[Any] = OrderedLog("answers", scope.place, type=Refusal)
    for command in commands:
        done(logs["east"].append(command, id=command.id))
    for name, other in (("east", "west"), ("west", "east")):
        outputs = {"there": logs[other], "answers": answers} if name == "east" else {"there": logs[other]}
        given: dict[str, Any] = {"handler": bank, "state": Accounts, "batch_max": 1, "replicas": replicas}
        scope.processor(name, {"commands": logs[name]}, outputs, **given)
    return scope


def law(world: Any) -> bool:
    """Balances, and deposits and refunds under way, are constant."""
    balances = sum(sum(world.state(name).balances.values()) for name in ("east", "west"))
    under_way = [value for name in ("east", "west") for value in world.in_flight(name)]
    moving = sum(value.amount for value in under_way if not isinstance(value, Withdraw))
    return bool(balances + moving == 10)


SCOPES: dict[str, Callable[..., Scope]] = {
    "replicas": replicas_over,
    "produced": produced,
    "trimmed": trimmed,
    "resting": resting,
    "alike": alike,
    "in one cell": in_one_cell,
    "registering": registering,
    "first reader": first_reader,
    "leaving": leaving,
    "begun late": begun_late,
    "ingested": ingested,
    "two stores": two_stores,
    "to a queue": to_a_queue,
    "sharded": sharded,
    "overflowing": overflowing,
    "repeated": repeated,
    "small": small,
    "paused": paused,
    "paused replicas": paused_replicas,
    "trimmed blobs": trimmed_blobs,
    "failing": failing,
    "alarmed": alarmed,
    "failing alarm": failing_alarm,
    "failing alarm once": failing_alarm_once,
    "two timers": two_timers,
}
"""By the names that planted faults have for them."""


def explored(name: str, *, cpu_s: float = 60.0, faults: dict[str, Any], live: bool = False, **options: Any) -> Report:
    """A scope by its name, explored."""
    inputs = options.pop("inputs", None)
    return SCOPES[name](*([] if inputs is None else [inputs]), **options).explored(cpu_s=cpu_s, live=live, **faults)
