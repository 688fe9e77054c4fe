"""The view of a world: what the page shows, as plain values, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outbox.engine.state.tasks import Task
from outbox.ops.play.gate import DECISIONS, STEPS, Step
from outbox.ops.play.shop import STOCK_AT_FIRST
from outbox.ops.play.words import CALL, about_to
from outbox.ops.play.world import PIECES, WORKER_COUNT_MAX, Line, Process, World

Lock = Literal["", "held", "stray", "dead"]


@dataclass(frozen=True, slots=True)
class OrderView:
    """An order in its queue; `holder` has the lock, empty: it is free.

    The lock is `held` by a worker that has the order in hand; `stray`: its worker does not; `dead`: its process is.
    """

    id: str
    delivery_count: int
    holder: str
    lock: Lock
    is_copy: bool


@dataclass(frozen=True, slots=True)
class ParcelView:
    """A parcel in its queue; a copy has the id of an earlier one, and its reader drops it."""

    order: str
    id: str
    is_copy: bool


@dataclass(frozen=True, slots=True)
class RecordView:
    """The record of an order: it holds the parcel until a mark, written later, says that this was sent."""

    order: str
    parcel: Literal["unsent", "sent", "marked"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker: its present step, those behind it, and its next call in words.

    It `died` at a step, or is in `doubt` about one; `warning` says what it does not know.
    """

    number: int
    name: str
    is_alive: bool
    id: str
    step: Step | Literal[""]
    seen: tuple[Step, ...]
    looks_late: bool
    doubt: str
    died: str
    about: str
    warning: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The due figures beside the actual ones."""

    order_count: int
    stock_due: int
    stock: int
    parcels: int
    copies: int
    fault_count: int
    is_quiet: bool
    is_equal: bool


@dataclass(frozen=True, slots=True)
class View:
    """All that the page shows of a world; `free_worker` can be added (0: none can)."""

    stock: int
    etag: int
    orders: tuple[OrderView, ...]
    parcels: tuple[ParcelView, ...]
    records: tuple[RecordView, ...]
    workers: tuple[WorkerView, ...]
    history: tuple[Line, ...]
    verdict: Verdict
    sent: tuple[str, ...]
    why_no_order: str
    free_worker: int
    hint: str


def look(world: World) -> View:
    """Take the present view of a world."""
    stock, etag = world.stock()
    parcels = _parcels(world)
    sent = {parcel.order for parcel in parcels}
    free = [n for n in range(1, WORKER_COUNT_MAX + 1) if n not in world.workers]
    return View(
        stock=stock.pieces,
        etag=etag,
        orders=_orders(world),
        parcels=parcels,
        records=tuple(
            RecordView(order, "marked" if not record.pending else "sent" if order in sent else "unsent")
            for order, record in world.records().items()
        ),
        workers=tuple(_worker(world, process) for process in world.workers.values()),
        history=tuple(world.history),
        verdict=judge(world),
        sent=tuple(world.orders),
        why_no_order=world.why_no_order,
        free_worker=free[0] if free else 0,
        hint=_hint(world),
    )


def judge(world: World) -> Verdict:
    """Compare the distinct orders with the stored stock and the sent parcels; the verdict counts once quiet."""
    count, stock = len(world.orders), world.stock()[0].pieces
    parcels = _parcels(world)
    distinct = sum(not parcel.is_copy for parcel in parcels)
    due = STOCK_AT_FIRST - PIECES * count
    is_equal = (stock, distinct, len({parcel.order for parcel in parcels})) == (due, count, count)
    copies = len(parcels) - distinct
    return Verdict(count, due, stock, distinct, copies, world.fault_count, world.is_quiet, is_equal)


def _orders(world: World) -> tuple[OrderView, ...]:
    applied, seen, found = set(world.records()), set[str](), list[OrderView]()
    for task in world.waiting_orders():
        id, holder = task.message.identity, world.holder(task)
        is_copy = id in seen or (id in applied and not task.delivery_count and not holder)
        found.append(OrderView(id, task.delivery_count, holder.name if holder else "", _lock(task, holder), is_copy))
        seen.add(id)
    return tuple(found)


def _lock(task: Task, holder: Process | None) -> Lock:
    if holder is None or holder.gate.is_dead:
        return "" if holder is None else "dead"
    return "held" if holder.gate.lock == task.lock else "stray"


def _parcels(world: World) -> tuple[ParcelView, ...]:
    seen, found = set[str](), list[ParcelView]()
    for task in world.parcels():
        id = task.message.identity
        found.append(ParcelView(task.message.causation_id, id, id in seen))
        seen.add(id)
    return tuple(found)


def _worker(world: World, process: Process) -> WorkerView:
    gate, call = process.gate, process.gate.waiting
    about = "Rests before it tries again." if call is None else about_to(call, next_id=world.next_id())
    return WorkerView(
        number=process.number,
        name=process.name,
        is_alive=not gate.is_dead,
        id=gate.id,
        step="" if call is None else call.step,
        seen=tuple(step for step in STEPS if step in gate.seen),
        looks_late=gate.looks_late,
        doubt="" if gate.is_dead else gate.doubt,
        died="" if gate.died is None else gate.died.call.step,
        about=_epitaph(world, process) if gate.is_dead else about,
        warning=_warning(world, process),
        choices=DECISIONS if process in world.able() else (),
    )


def _warning(world: World, process: Process) -> str:
    """The lock that a living worker has lost or has, and does not know of."""
    if process.gate.is_dead:
        return ""
    if process.gate.id and all(process.gate.lock != task.lock for task in world.waiting_orders()):
        return f"Its lock on {process.gate.id} ran out; it does not know."
    stray = _strays(world, process)
    return f"It has a lock on {stray}, and does not know." if stray else ""


def _strays(world: World, process: Process) -> str:
    """The orders that are locked for a worker without being in its hand."""
    waiting = world.waiting_orders()
    return ", ".join(t.message.identity for t in waiting if world.holder(t) is process and _lock(t, process) == "stray")


def _epitaph(world: World, process: Process) -> str:
    died = process.gate.died
    where = f" {died.decision.removeprefix('kill-')} {CALL[died.call.step]}" if died is not None else ""
    held = ", ".join(task.message.identity for task in world.waiting_orders() if world.holder(task) is process)
    return f"Killed{where}. What it remembered is gone." + (
        f" Its lock on {held} stays until it runs out." if held else ""
    )


def _hint(world: World) -> str:
    """The next thing to do, as a hint for a player by hand; empty where a call waits."""
    if not world.orders:
        return "Send an order, and let worker 1 go on. At any step kill it, or lose a call."
    if world.is_quiet:
        more = world.why_no_order or "Send another order"
        return f"Quiet: nothing is on its way. {more}, or send one of the old ones again."
    if world.able():
        return ""
    alive = [process for process in world.workers.values() if not process.gate.is_dead]
    free = "" if alive else " Then start a worker."
    if stray := next((p for p in alive if _strays(world, p)), None):
        return (
            f"{_strays(world, stray)} is locked for {stray.name}, which is alive and does not know: a call or its "
            "reply was lost. Let a minute pass: the lock runs out."
        )
    if any(map(world.holder, world.waiting_orders())):
        return f"An order is locked for a process that is dead. Let a minute pass: its lock runs out.{free}"
    return "An order is free, and no worker is alive. Start one."
