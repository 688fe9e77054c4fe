"""A scenario to explore: an application, its messages, the processes at work, and the possible faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from outbox.app import App
from outbox.lineage import Key, as_key, state_id
from outbox.message import Message
from outbox.ports import Output, StateDocument, StoreCapabilities
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.scopes import store_protocol
from outbox.runtime.start.notes import PastRetention
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox.stored import STAGED_PREFIX, StateItem, encode, state_key
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.models.journal import JournalModel
from outbox.verify.explorer.models.queues import DELIVERY_COUNT_MAX, QueueModel
from outbox.verify.explorer.models.store import CAPABILITIES, BlobModel, StoreModel
from outbox.verify.explorer.ops import Model, Monitor
from outbox.verify.explorer.programs import (
    REQUESTS,
    ClientRequest,
    EngineWorker,
    Front,
    Operator,
    StoreResources,
    StoreWorker,
    Sweeper,
    clients_model,
    engine_ports,
    protocol_over,
    store_ports,
)
from outbox.verify.explorer.run import ChosenGuards, GuardModel, Program
from outbox.verify.promises import journal, store
from outbox.verify.promises.journal import GateMonitor, JournalMonitor
from outbox.verify.promises.ledger import Book
from outbox.verify.promises.reference import Reference, watched, watched_app
from outbox.verify.promises.store import StoreMonitor
from outbox.verify.promises.view import Ends, Invariant, RequestMonitor

START_MS = 1_767_225_600_000
"""When an exploration begins: 2026-01-01 00:00 UTC."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to explore.

    `messages` are (queue, message, id) and `given` (key, state); `copies` is how often each message is there, or one
    number for each.  `batch` is how many messages an attempt may take; `warm` workers keep what they know from one
    attempt to the next; one that `lingers` keeps the marks that are due, for a later batch of their partition.
    With a `ledger` workers of partition scope keep a dispatch ledger in place of marks; where they are `mixed` the
    first of them does not.  In item scope all outputs are `staged`, as large ones are; where they are `mixed` by the
    first worker alone.
    In item scope infrastructure may be `apart`; a store `tells_current` what a write lost to, or not.  No process waits
    longer than `patience_ms` for what is due later (0: as long as it takes), where an application would wait for ever;
    only with such an end do they wait for a resubmission that its key is blocked for.
    A document of the store holds `item_bytes_max`: outputs that do not fit overflow into a blob.
    An operator makes so many `resubmissions`, of whichever dead letters there are, as they are or with another message
    that `edits` have for their id.  Messages that schedule each other
    are followed over `pauses_max` pauses (0: over all).  A broker that `drops_duplicates` takes a message once under
    each id, also where it was settled meanwhile; a message whose lock has run out `delivery_count_max` times is dead,
    whatever was committed of it.  With an `earlier_retention` the first worker runs earlier code with
    that retention, and stops a margin after the start, when the others have registered theirs.
    `hosts` makes what receives messages in place of workers, and whose dead letters are stored.
    A sweeper leaves alone what is younger than `grace_ms`, and may be that of a `neighbour`, an application in the same
    container.
    Breakers and rates of handlers and calls, not those of requests, reschedule messages `reschedules` times at most,
    whenever the explorer chooses (0: never).
    `allow` names what is no finding: "dead-letter", "alarm".  `make` builds what is explored, in place of the runtime's
    own.
    """

    app: App
    messages: Sequence[tuple[str, Any, str]]
    given: Sequence[tuple[Key, Any]] = ()
    workers: int = 2
    copies: int | Sequence[int] = 1
    budgets: Budgets = field(default_factory=Budgets)
    scope: str = "engine"
    batch: int = 1
    sweepers: int = 0
    invariant: Invariant | None = None
    at_end: Invariant | None = None
    allow: frozenset[str] = frozenset()
    symmetric: bool = True
    ample: bool = True
    merges: bool = True
    warm: bool = False
    lingers: bool = False
    ledger: bool = False
    staged: bool = False
    mixed: bool = False
    tells_current: bool = False
    apart: bool = False
    make: Callable[..., Any] | None = None
    ahead_ms: int = 0
    patience_ms: int = 0
    requests: Sequence[ClientRequest] = ()
    asked_times: int | Sequence[int] = 1
    fronts: int = 1
    front_batch: int = 1
    item_bytes_max: int = CAPABILITIES.item_bytes_max
    resubmissions: int = 0
    edits: Sequence[tuple[str, Any]] = ()
    pauses_max: int = 0
    drops_duplicates: bool = False
    delivery_count_max: int = DELIVERY_COUNT_MAX
    earlier_retention: timedelta | None = None
    grace_ms: int = 0
    neighbour: App | None = None
    hosts: Callable[[App, CompiledApp, StoreResources], Program] | None = None
    reschedules: int = 0

    def describe(self) -> str:
        """The scope in a few words."""
        asking = ""
        if self.requests:
            times = sum(_counts(self.asked_times, len(self.requests)))
            asking = f"{self.fronts} front(s), {len(self.requests)} request(s), {times} with repetitions, "
        if self.resubmissions:
            asking += f"{self.resubmissions} resubmission(s), "
        if self.edits:
            asking += f"{len(self.edits)} edit(s), "
        if self.reschedules:
            asking += f"{self.reschedules} time(s) rescheduled by guards, "
        return (
            f"{self.scope} scope, {self.workers} worker(s), {len(self.messages)} message(s), "
            f"{sum(self.copy_counts)} with copies, {asking}{self.budgets.describe()}"
        )

    @property
    def copy_counts(self) -> list[int]:
        """How often each message is there."""
        return _counts(self.copies, len(self.messages))

    def asked(self) -> list[Output]:
        """The requests that clients hold at the beginning, each with its number of copies."""
        pairs = zip(self.requests, _counts(self.asked_times, len(self.requests)), strict=True)
        return [Output(REQUESTS, 0, asked.message) for asked, count in pairs for _ in range(count)]

    def kernel(self) -> Kernel:
        """The transition relation of this scenario."""
        match self.scope:
            case "engine":
                return _engine(self)
            case "partition" | "item":
                return _store(self)
        raise ValueError(f"scope={self.scope!r} cannot be explored; 'engine', 'partition' and 'item' can")

    def sent(self) -> list[Output]:
        """The messages in their queues at the beginning, copies included."""
        found = []
        for (queue, message, id), count in zip(self.messages, self.copy_counts, strict=True):
            body, wire_type = self.app.encode(message)
            sent = Message(
                body=body,
                outbox_id=id,
                type=wire_type,
                created_ms=START_MS + self.ahead_ms,
                session_id=self.app.session_of(queue, message, None),
            )
            found += [Output(self.app.destination(queue), 0, sent)] * count
        return found

    def edited_bodies(self) -> list[tuple[str, bytes]]:
        """The bodies that an operator may give to messages, by id."""
        return [(id, self.app.encode(message)[0]) for id, message in self.edits]

    def edited(self) -> list[Output]:
        """The messages that are sent with these bodies in place of the messages of these ids."""
        bodies = self.edited_bodies()
        return [
            Output(output.destination, 0, msgspec.structs.replace(output.message, body=body))
            for output in self.sent()
            for id, body in bodies
            if id == output.message.identity
        ]

    def plans(self) -> list[CompiledApp]:
        """The plan of the workers and, where there was an earlier retention, that of the first one."""
        plan = compile_app(self.app)
        if self.earlier_retention is None:
            return [plan]
        app = copy(self.app)
        app.retention = self.earlier_retention
        earlier = compile_app(app)
        margin_ms = earlier.record_life_ms - earlier.retention_ms
        plan.retention.heed((PastRetention(START_MS + margin_ms, earlier.retention_ms, margin_ms),), START_MS)
        return [plan, earlier]

    def guarded(self, plan: CompiledApp, resource: int) -> CompiledApp:
        """The same plan with guards that do as the explorer chooses, who is asked by the resource of that number."""
        if not self.reschedules:
            return plan
        return replace(compile_app(self.app, find_guard=ChosenGuards(resource)), retention=plan.retention)

    def documents(self) -> dict[str, StateDocument]:
        """The states that are there at the beginning."""
        found = {}
        for key, state in self.given:
            codec = self.app.state_codec(type(state))
            document = StateDocument(codec.codec.encode(state), 1, codec.version, 1)
            found[state_id(codec.name, as_key(key))] = document
        return found


AnyWorker = TypeVar("AnyWorker", EngineWorker, StoreWorker)


def _earlier(worker: AnyWorker, plans: Sequence[CompiledApp]) -> list[AnyWorker]:
    """Workers of earlier code, each until the end of its era."""
    return [
        replace(
            worker,
            plan=watched(plan),
            name="earlier worker",
            until_ms=START_MS + plan.record_life_ms - plan.retention_ms,
        )
        for plan in plans
    ]


def _counts(times: int | Sequence[int], count: int) -> list[int]:
    """One number for each: as many as are given, then ones."""
    return [times] * count if isinstance(times, int) else [*times, *[1] * (count - len(times))]


def queues_of(app: App, plan: CompiledApp) -> tuple[list[QueueModel], dict[str, list[str]]]:
    """The queues of an application, and where each destination leads."""
    routes = {name: [name] for name in app.queues}
    routes |= {topic: [f"{topic}/Subscriptions/{name}" for name in names] for topic, names in app.topics.items()}
    paths = dict.fromkeys(path for paths in routes.values() for path in paths)
    ordered = {name for name, spec in app.queues.items() if spec.ordering == "per_key"}
    return [QueueModel(path, path in ordered, path in plan.sources) for path in paths], routes


def _engine(scenario: Scenario) -> Kernel:
    app, (plan, *earlier) = scenario.app, scenario.plans()
    retentions_ms = {each.retention_ms for each in (plan, *earlier)}
    queues, routes = queues_of(app, plan)
    sent, gated = scenario.sent(), scenario.budgets.power > 0
    log = JournalModel(
        queues,
        routes,
        documents=scenario.documents(),
        sent=sent,
        start_ms=START_MS,
        retentions_ms=retentions_ms,
        merges_copies=scenario.symmetric,
        resubmissions=scenario.resubmissions,
        edits=scenario.edited_bodies(),
        pauses_max=scenario.pauses_max,
        gated=gated,
    )
    book = Book(Reference(plan), routes, sent, edits=scenario.edited(), retention_ms_min=min(retentions_ms))
    monitor = JournalMonitor(
        Ends(book, log.queues, scenario.invariant, "dead-letter" in scenario.allow, scenario.at_end)
    )
    make = scenario.make or EngineScope
    models: list[Model] = [log, BlobModel()]
    working = scenario.guarded(plan, len(models))
    models += [GuardModel(scenario.reschedules)] * bool(scenario.reschedules)
    worker = EngineWorker(watched(working), journal=0, blobs=1, batch=scenario.batch, make=make, gated=gated)
    programs: list[Program] = [*_earlier(worker, earlier), *[worker] * (scenario.workers - len(earlier))]
    programs += [Operator(None, resource=0)] * bool(scenario.resubmissions)
    ports = partial(engine_ports, gated=gated)
    front = partial(Front, watched_app(app), plan, ports=ports, protocol=lambda calls, ports: None)
    return _kernel(scenario, models, programs, monitor, book, front, gated=gated)


def _store(scenario: Scenario) -> Kernel:
    app, (plan, *earlier) = scenario.app, scenario.plans()
    retentions_ms = {each.retention_ms for each in (plan, *earlier)}
    queues, routes = queues_of(app, plan)
    sent = scenario.sent()
    bus = BusModel(
        queues,
        routes,
        sent=sent,
        start_ms=START_MS,
        retentions_ms=retentions_ms,
        merges_copies=scenario.symmetric,
        locks_hold=scenario.ample and not scenario.budgets.expire,
        resubmissions=scenario.resubmissions,
        edits=scenario.edited_bodies(),
        pauses_max=scenario.pauses_max,
        drops_duplicates=scenario.drops_duplicates,
        delivery_count_max=scenario.delivery_count_max,
    )
    capabilities = replace(
        CAPABILITIES,
        atomic_scope="partition" if scenario.scope == "partition" else "item",
        item_bytes_max=scenario.item_bytes_max,
        tells_current=scenario.tells_current,
        dispatch_ledger=scenario.ledger,
        inline_bytes_max=0 if scenario.staged and not scenario.mixed else CAPABILITIES.inline_bytes_max,
    )
    main, *apart = _store_models(scenario, capabilities)
    models: list[Model] = [main, bus, BlobModel(), *apart]
    working = scenario.guarded(plan, len(models))
    models += [GuardModel(scenario.reschedules)] * bool(scenario.reschedules)
    book = Book(Reference(plan), routes, sent, edits=scenario.edited(), retention_ms_min=min(retentions_ms))
    monitor = StoreMonitor(
        Ends(book, bus.queues, scenario.invariant, "dead-letter" in scenario.allow, scenario.at_end),
        is_swept=scenario.sweepers > 0 and not apart,  # a sweeper of one store does not see changes in the other
        is_patient=scenario.patience_ms > 0,
        stores=(0, 3) if apart else (0,),
    )
    at, make = StoreResources(capabilities, infrastructure=3 if apart else None), scenario.make or store_protocol
    programs = _store_programs(scenario, working, earlier, at, make)
    front = partial(
        Front,
        watched_app(app),
        plan,
        ports=lambda calls, operations: store_ports(calls, at, operations),
        protocol=lambda calls, ports: protocol_over(calls, ports, plan, make),
    )
    return _kernel(scenario, models, programs, monitor, book, front)


def _store_models(scenario: Scenario, capabilities: StoreCapabilities) -> list[Model]:
    """The store of the states and, where infrastructure is apart, its own."""
    budgets = scenario.budgets
    documents = {
        state_key(id): encode(StateItem(msgspec.Raw(known.value), known.schema, 1, START_MS))
        for id, known in scenario.documents().items()
    }
    staged_alone = scenario.ample and not (scenario.sweepers or budgets.stale or budgets.delay)
    make = partial(
        StoreModel,
        capabilities=capabilities,
        stale_count=budgets.stale,
        private=STAGED_PREFIX if staged_alone else "",
        look_count=1 + budgets.stale,
        grace_ms=scenario.grace_ms if scenario.sweepers else 0,
    )
    is_apart = scenario.apart and scenario.scope == "item"
    return [make(documents=documents), *([make(name="infrastructure")] if is_apart else [])]


def _store_programs(
    scenario: Scenario, plan: CompiledApp, earlier: Sequence[CompiledApp], at: StoreResources, make: Callable[..., Any]
) -> list[Program]:
    worker = StoreWorker(
        watched(plan),
        at,
        batch=scenario.batch,
        warm=scenario.warm,
        lingers=scenario.lingers,
        merges=scenario.merges and not scenario.reschedules,  # what was chosen is no part of what it remembers
        make=make,
    )
    host = worker if scenario.hosts is None else scenario.hosts(scenario.app, plan, at)
    programs: list[Program] = [*_earlier(worker, earlier), *[host] * (scenario.workers - len(earlier))]
    if scenario.ledger and scenario.mixed:
        programs[0] = replace(worker, at=replace(at, capabilities=replace(at.capabilities, dispatch_ledger=False)))
    if scenario.staged and scenario.mixed:
        programs[0] = replace(worker, at=replace(at, capabilities=replace(at.capabilities, inline_bytes_max=0)))
    sweeping = plan if scenario.neighbour is None else compile_app(scenario.neighbour)
    sweeper = Sweeper(sweeping, at, make=make, grace_ms=scenario.grace_ms)
    programs += [sweeper] * scenario.sweepers
    letter_count = scenario.resubmissions if scenario.hosts is not None else 0
    programs += [Operator(at, resource=at.bus, letter_count=letter_count)] * bool(scenario.resubmissions)
    if at.infrastructure is not None:
        programs += [replace(sweeper, store=at.infrastructure, name="infrastructure sweeper")] * scenario.sweepers
    return programs


def _kernel(
    scenario: Scenario,
    models: list[Model],
    programs: list[Program],
    monitor: Monitor,
    book: Book,
    front: Callable[..., Front],
    *,
    gated: bool = False,
) -> Kernel:
    """The kernel; where there are requests with clients, as the last resource, and processes that answer them."""
    if scenario.requests:
        asked, resource = scenario.asked(), len(models)
        locks_hold = scenario.ample and not scenario.budgets.expire
        until_ms = START_MS + round(scenario.app.retention.total_seconds() * 1_000)
        clients = clients_model(asked, until_ms=until_ms, merges_copies=scenario.symmetric, locks_hold=locks_hold)
        monitor = RequestMonitor(
            monitor,
            book,
            scenario.app,
            asked,
            model=clients,
            resource=resource,
            values_in=journal.values_in if scenario.scope == "engine" else store.values_in,
            states=models[0].initial(),
        )
        models = [*models, clients]
        programs = [*programs, *[front(clients=resource, batch=scenario.front_batch)] * scenario.fronts]
    return Kernel(
        models,
        programs,
        GateMonitor(monitor) if gated else monitor,
        scenario.budgets,
        start_ms=START_MS,
        symmetric=scenario.symmetric,
        ample=scenario.ample and not scenario.budgets.jump,
        allows_alarms="alarm" in scenario.allow,
        flight_ms_max=compile_app(scenario.app).attempt_ms_max,
        patience_ms=scenario.patience_ms,
    )
