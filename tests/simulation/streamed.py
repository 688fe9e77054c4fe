"""Small scopes of logs and processors to explore: handlers, what is there at the beginning, and who runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outbox.ports import Create
from outbox.retries import Retries
from outbox.streams import Inputs, OrderedLog, Processor, RefusedEntry, Step
from outbox.streams.cells import Position
from outbox.streams.places import Place
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.models.store import CAPABILITIES
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.search import Limits, Report, search
from outbox.verify.explorer.streams import (
    Given,
    Producer,
    Reader,
    Replicas,
    Reporter,
    Stores,
    StreamScenario,
    Trimmer,
    done,
)
from outbox.verify.promises.streams import Invariant, StreamMonitor


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


@dataclass
class Scope:
    """A scope under construction: what is done to `place` is there at the beginning."""

    at: Stores = field(default_factory=Stores)
    given: Given = field(default_factory=Given)
    programs: list[Program] = field(default_factory=list)
    processors: list[Processor[Any]] = field(default_factory=list)
    settled: tuple[str, ...] = ()
    keeps: bool = True

    @property
    def place(self) -> Place:
        return self.given.place

    def log(self, name: str, *values: int, **options: Any) -> OrderedLog[Number]:
        """A log that holds these numbers, a cell each."""
        made: OrderedLog[Number] = OrderedLog(name, self.place, type=Number, **options)
        done(made.row(0, 0).horizon.register(reader="nobody", at=0, type=made.values.name))
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
        program = {key: options.pop(key) for key in ("warm", "ends", "report_every", "make") if key in options}
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

    def refusing(self, name: str, inputs: dict[str, Any], **options: Any) -> Processor[Any]:
        """A processor whose entries are refused into a log at their second failure."""
        refused: OrderedLog[RefusedEntry] = OrderedLog("refused", self.place, type=RefusedEntry)
        done(refused.register("nobody"))
        done(refused.unregister("nobody"))
        return self.processor(
            name, inputs, {}, refused=refused, on_error="refuse", retries=Retries(limit=2, delays_s=()), **options
        )

    def explored(
        self, *, invariant: Invariant | None = None, cpu_s: float = 60.0, live: bool = False, **faults: int
    ) -> Report:
        """Every interleaving, with so many faults of each kind."""
        produced = {id for program in self.programs if isinstance(program, Producer) for id in program.ids()}
        monitor = StreamMonitor([each.plan for each in self.processors], produced=produced, invariant=invariant)
        monitor.knows(Create(key, body) for key, body in self.given.documents().items())
        scenario: Any = StreamScenario(
            self.programs, monitor, self.at, self.given.apart(self.at), Budgets(**faults), self.settled, self.keeps
        )
        return search(scenario, limits=Limits(cpu_s=cpu_s), live=live)


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
    scope.programs.append(Trimmer(sums, scope.at))
    return scope


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
    scope.processor("p", {"in": log}, {}, replicas=1, began=False, ends=True, **options)
    scope.programs.append(Trimmer(log, scope.at))
    return scope


def begun_late(**options: Any) -> Scope:
    """A processor that begins while another writes to its output."""
    scope = Scope()
    sums = scope.log("sums")
    scope.processor("p", {"in": scope.log("in1", 1)}, {"sums": sums}, replicas=1, **options)
    scope.processor("q", {"in": scope.log("in2", 1)}, {"sums": sums}, replicas=1, began=False, **options)
    return scope


SCOPES: dict[str, Callable[..., Scope]] = {
    "replicas": replicas_over,
    "produced": produced,
    "trimmed": trimmed,
    "alike": alike,
    "in one cell": in_one_cell,
    "registering": registering,
    "begun late": begun_late,
    "two stores": two_stores,
}
"""By the names that planted faults have for them."""


def explored(name: str, *, cpu_s: float = 60.0, faults: dict[str, Any], **options: Any) -> Report:
    """A scope by its name, explored."""
    inputs = options.pop("inputs", None)
    return SCOPES[name](*([] if inputs is None else [inputs]), **options).explored(cpu_s=cpu_s, **faults)
