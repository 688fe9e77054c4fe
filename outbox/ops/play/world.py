"""The world of the playground: workers over a store and a bus, moved call by call by a player.

Theory of operation.  The engine is in memory, with its documents and its queues as two systems, so the workers run
partition scope, as on Cosmos DB and Service Bus.  Each worker is the product's own, one message at a time, with a gate
before its ports (see `gate`).  A killed one is a process that died: no later call of it has an effect, what it
remembered is gone, and its locks stay until they run out.  Store and queues outlive every worker.

Time stands still but for `time`, which lets a lock's duration pass at once while every worker stands still, so no lock
is renewed.  The sweeper acts at `sweep` only.  `act` returns when each worker waits at its gate again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import msgspec

from outbox import stored
from outbox.client import Client
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.engine.state.tasks import ACTIVE, LOCKED, Task
from outbox.errors import Refused
from outbox.lineage import inbox_key
from outbox.name_checks import every_handler, kept_states, known_state_id
from outbox.ops.play.gate import DECISIONS, Call, Decision, Gate, GatedBackend, Passed, Step
from outbox.ops.play.shop import ARTICLE, Order, Stock, shop
from outbox.ops.play.words import said, swept
from outbox.ports import Create
from outbox.runtime.commit.handler_threads import HandlerThreads
from outbox.runtime.commit.sweeper import sweep
from outbox.runtime.scopes import protocol_without_app
from outbox.runtime.start.plan import compile_app
from outbox.stored import Record, StateItem, record_key, state_key
from outbox.testing.clock import START_S, VirtualClock
from outbox.verify.faults import SimulatedCrash
from outbox.worker import Worker

ORDER_COUNT_MAX = 30
WAITING_COUNT_MAX = 12
"""How many orders may wait in the queue, copies included."""
FULL_QUEUE = f"{WAITING_COUNT_MAX} orders wait in the queue; let the workers handle some first"
WORKER_COUNT_MAX = 3
HISTORY_COUNT_MAX = 80
PARCEL_COUNT_MAX = 200
"""The number of parcels, copies included, from which a world takes no more faults."""
CALM = frozenset(("go", "finish", "until", "all", "start"))
"""The actions that are no faults and send nothing."""
PIECES = 3
LOCK_S = 60.0
STILL_WITHIN_S = 3.0
"""How long an action waits for workers that rest before another try."""
GO_COUNT_MAX = 60
"""The most calls that one action lets through for a worker."""
ROUND_COUNT_MAX = 400

Does = Literal["send", "duplicate", "start", "time", "sweep", "all", "finish", "until"] | Decision


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action of the player: on a `worker` by its number, with an order's `id`, or up to a `step`."""

    do: Does
    worker: int = 0
    id: str = ""
    step: Step | Literal[""] = ""


class Line(msgspec.Struct, frozen=True):
    """A line of history: its number, its sentence, and its kind, for the eye."""

    number: int
    text: str
    kind: Literal["go", "fault", "player"]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a worker, from its start to its death."""

    number: int
    gate: Gate
    worker: Worker

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    @property
    def is_moving(self) -> bool:
        return not self.gate.is_dead and self.gate.waiting is None


class World:
    """Two queues, a store, the workers, and what has happened; use it as an async context manager."""

    def __init__(self) -> None:
        self.app = shop()
        self.clock = VirtualClock(START_S)
        self.engine = Engine.in_memory(clock=self.clock)
        self.workers: dict[int, Process] = {}
        self.orders: dict[str, float] = {}
        """The ids that were sent, and when first: a copy carries that too."""
        self.history: deque[Line] = deque(maxlen=HISTORY_COUNT_MAX)
        self.line_count = 0
        self.fault_count = 0
        self.state_id = known_state_id(self.app, Stock, ARTICLE, kept_states(self.app))
        self._prefix = every_handler(self.app)[0].prefix
        self._ports = NarrowEngine(self.engine, "partition").ports()
        self._client = Client(self.app, NarrowEngine(self.engine, "partition"))
        self._threads = HandlerThreads(1)
        self.revision = 0
        """How often anything has changed."""
        self._bell = asyncio.Event()
        self._buried: set[asyncio.Task[None]] = set()
        self._holders: dict[int, Process] = {}
        """Whose each lock is."""
        self._order_of: dict[str, str] = {}
        """The orders by the ids of their records."""
        self._marked = set[str]()

    async def __aenter__(self) -> Self:
        await self._client.declare()
        value = msgspec.Raw(msgspec.json.encode(Stock()))
        first = StateItem(value=value, version=1, at_ms=self.clock.wall_ms())
        await self._ports.store.write([Create(state_key(self.state_id), stored.encode(first))])
        await self.act(Act("start", worker=1))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.workers.values():
            self._bury(process)
        await asyncio.wait([asyncio.gather(*self._buried, return_exceptions=True)], timeout=STILL_WITHIN_S)
        self._threads.close()
        self.engine.close()

    # What there is

    def waiting_orders(self) -> list[Task]:
        """The orders in the queue, locked ones included, oldest first."""
        return self.engine.broker.peek("orders", 0, ORDER_COUNT_MAX + WAITING_COUNT_MAX)

    def parcels(self) -> list[Task]:
        """The parcels that were sent, copies included, oldest first."""
        return self.engine.broker.peek("parcels", 0, 2 * PARCEL_COUNT_MAX)

    @property
    def is_full(self) -> bool:
        """Whether there are too many parcels for more faults."""
        return len(self.parcels()) >= PARCEL_COUNT_MAX

    def stock(self) -> tuple[Stock, int]:
        """The state as stored, and its version."""
        found = self.engine.documents.read(f"p/{self.state_id}", stored.STATE)
        assert found is not None, "the world begins with its state"
        item = msgspec.json.decode(found.value, type=StateItem)
        return msgspec.json.decode(item.value, type=Stock), item.version

    def records(self) -> dict[str, Record]:
        """The records in the store, by their orders."""
        found = {}
        for key, id in self._order_of.items():
            document = self.engine.documents.read(f"p/{self.state_id}", key)
            if document is not None:
                found[id] = msgspec.json.decode(document.value, type=Record)
        return found

    def next_id(self) -> str:
        """The order that would be received next; empty: none is free."""
        return next((task.message.identity for task in self.waiting_orders() if task.status == ACTIVE), "")

    def holder(self, task: Task) -> Process | None:
        """Whose lock is on an order; None: nobody's."""
        return self._holders.get(task.lock) if task.status == LOCKED else None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way: no order waits, and no worker has one in hand."""
        alive = [process.gate for process in self.workers.values() if not process.gate.is_dead]
        return not self.waiting_orders() and all(
            gate.waiting is not None and gate.waiting.step == "receive" for gate in alive
        )

    @property
    def why_no_order(self) -> str:
        """Why no further order can be sent; empty: one can."""
        if len(self.orders) >= ORDER_COUNT_MAX:
            return f"{ORDER_COUNT_MAX} orders were sent, as many as there can be; begin again"
        return FULL_QUEUE if len(self.waiting_orders()) >= WAITING_COUNT_MAX else ""

    # What the player does

    async def act(self, act: Act) -> None:
        """Do what the player says; on return every worker waits at its gate, or rests for longer.

        Raises:
            Refused: that cannot be done now.
        """
        if act.do not in CALM and self.is_full:
            raise Refused(f"{PARCEL_COUNT_MAX} parcels were sent, copies included; let all finish, then begin again")
        match act.do:
            case "send":
                await self._send_next()
            case "duplicate":
                await self._send_again(act.id)
            case "start":
                await self._start(act.worker)
            case "time":
                self._pass_time()
            case "sweep":
                await self._sweep()
            case "all":
                await self._finish_all()
            case "finish":
                await self._go_on(self._alive(act.worker), lambda call: call.step == "receive")
            case "until":
                await self._go_on(self._alive(act.worker), lambda call: call.step == act.step)
            case decision:
                self._decide(self._alive(act.worker), decision)
        await self._wait_still()

    async def _send_next(self) -> None:
        if self.why_no_order:
            raise Refused(self.why_no_order)
        id = f"o{len(self.orders) + 1}"
        await self._send(id, self.clock.seconds)
        self.say(f"Order {id} was sent: {PIECES} {ARTICLE}.", "player")

    async def _send_again(self, id: str) -> None:
        id = id or next(reversed(self.orders), "")
        if id not in self.orders:
            raise Refused(f"order {id[:40]!r} was never sent; send one first")
        await self._send(id, self.orders[id])
        self.fault_count += 1
        self.say(f"Order {id} was sent again, under the same id.", "fault")

    async def _send(self, id: str, created_s: float) -> None:
        if len(self.waiting_orders()) >= WAITING_COUNT_MAX:
            raise Refused(FULL_QUEUE)
        self.orders[id] = created_s
        self._order_of[record_key(self.state_id, inbox_key(self._prefix, ARTICLE, id)).id] = id
        await self._client.send("orders", Order(ARTICLE, PIECES), id=id, created=created_s)

    async def _start(self, number: int) -> None:
        """Start a worker under a free number, or a new process in place of a dead one."""
        if not 1 <= number <= WORKER_COUNT_MAX:
            raise Refused(f"worker {number} cannot be started; there are 1 to {WORKER_COUNT_MAX}")
        former = self.workers.get(number)
        if former is not None and not former.gate.is_dead:
            raise Refused(f"{former.name} is alive; kill it before you start it again")
        gate = Gate(changed=self._say_marked, passed=lambda passed: self._note(process, passed))
        backend = GatedBackend(self._ports, gate)
        process = Process(number, gate, Worker(self.app, backend, concurrency=1, drain_s=0, threads=self._threads))
        await process.worker.__aenter__()
        self.workers[number] = process
        self.workers = dict(sorted(self.workers.items()))
        again = ", as a new process that remembers nothing" if former is not None else ""
        self.say(f"{process.name.capitalize()} was started{again}.", "player")

    def _pass_time(self) -> None:
        before = {task.sequence: self.holder(task) for task in self.waiting_orders() if task.status == LOCKED}
        self.clock.seconds += LOCK_S + 1
        self.engine.tick()
        lapsed = [task for task in self.waiting_orders() if task.sequence in before and task.status == ACTIVE]
        if not lapsed:
            self.say("A minute passed. No lock ran out, because there was none.", "player")
        for task in lapsed:
            self.fault_count += 1
            lock = f"the lock of {whose.name if (whose := before[task.sequence]) else 'nobody'}"
            self.say(f"A minute passed: {lock} on {task.message.identity} ran out. The order is free again.", "fault")

    async def _sweep(self) -> None:
        """Sweep once, as each worker does every half minute, and a timer on Functions."""
        due = [id for id, record in self.records().items() if record.pending]
        protocol, _ = protocol_without_app(self._ports, compile_app(self.app))
        await sweep(protocol, self._ports.store, now_ms=self.engine.now_ms)
        left = [id for id, record in self.records().items() if record.pending]
        self.say(swept([id for id in due if id not in left], left), "player")
        self._marked |= set(due) - set(left)

    def _alive(self, number: int) -> Process:
        process = self.workers.get(number)
        if process is None or process.gate.is_dead:
            raise Refused(f"worker {number} is not alive; start it first")
        return process

    def _decide(self, process: Process, decision: Decision) -> None:
        call = process.gate.waiting
        assert decision in DECISIONS
        if call is None:
            raise Refused(f"{process.name} rests before it tries again; wait a moment")
        if call.step == "receive" and not self.next_id():
            raise Refused(f"{process.name} has nothing to receive: no order is free")
        process.gate.decide(decision)

    async def _go_on(self, process: Process, is_there: Callable[[Call], bool]) -> None:
        """Let a worker make calls, one at least, until it waits at the wanted one or has nothing to receive."""
        for _ in range(GO_COUNT_MAX):
            self._decide(process, "go")
            await self._wait_still()
            call = process.gate.waiting
            if call is None or is_there(call) or (call.step == "receive" and not self.next_id()):
                return

    async def _finish_all(self) -> None:
        """Let everything go on without a fault, dead workers started again, until nothing is on its way."""
        for _ in range(ROUND_COUNT_MAX):
            await self._wait_still()
            if self.is_quiet:
                return
            if not (able := self.able()):
                if all(process.gate.is_dead for process in self.workers.values()):
                    await self._start(1)
                else:
                    self._pass_time()
                continue
            self._decide(able[0], "go")

    def able(self) -> list[Process]:
        """The workers whose next call can be let go."""
        has_next = bool(self.next_id())
        waiting = [(process, process.gate.waiting) for process in self.workers.values()]
        return [p for p, call in waiting if call is not None and (has_next or call.step != "receive")]

    # What happens

    def _note(self, process: Process, passed: Passed) -> None:
        result = passed.result
        if passed.call.step == "receive" and isinstance(result, list):
            for delivery in result:
                self._holders[delivery.lock] = process
        is_fault = passed.decision != "go"
        self.fault_count += is_fault
        self.say(said(process.name, passed), "fault" if is_fault else "go")
        self._say_marked()
        if process.gate.is_dead:
            self._bury(process)

    def _say_marked(self) -> None:
        """Say which records were marked, by a write beside the attempts or by one that rode in a batch."""
        marked = {id for id, record in self.records().items() if not record.pending} - self._marked
        self._marked |= marked
        if marked:
            self.say(f"Marked as sent, in the record: {', '.join(sorted(marked))}.", "go")
        self.change()

    def say(self, text: str, kind: Literal["go", "fault", "player"]) -> None:
        self.line_count += 1
        self.history.append(Line(self.line_count, text, kind))
        self.change()

    def change(self) -> None:
        """Wake whoever waits for a change."""
        self.revision += 1
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def wait_change(self, revision: int, *, within_s: float) -> None:
        """Wait until there is more to see than at a revision, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.revision <= revision:
                    await self._bell.wait()

    def _bury(self, process: Process) -> None:
        """End the tasks of a dead process; they would wait for ever."""
        process.gate.die()
        task = asyncio.create_task(_end(process.worker), name=f"{process.name} ends")
        self._buried.add(task)
        task.add_done_callback(self._buried.discard)
        self.change()

    async def _wait_still(self) -> None:
        """Wait a few seconds at most until every worker waits at its gate, rests or is dead."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STILL_WITHIN_S):
                while any(process.is_moving for process in self.workers.values()):
                    await self._bell.wait()


async def _end(worker: Worker) -> None:
    with suppress(SimulatedCrash):
        await worker.__aexit__(None, None, None)
