"""The view of a world: what the page shows, as plain values, and the verdict on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outbox.ops.play.gate import DECISIONS, STEPS, Step
from outbox.ops.play.shop import STOCK_AT_FIRST
from outbox.ops.play.words import about_to
from outbox.ops.play.world import ORDER_COUNT_MAX, PIECES, WORKER_COUNT_MAX, Line, Process, World

LINE_COUNT_MAX = 80


@dataclass(frozen=True, slots=True)
class OrderView:
    """An order in its queue; `holder` has the lock, empty: it is free."""

    number: int
    id: str
    delivery_count: int
    holder: str
    is_holder_alive: bool
    is_copy: bool


@dataclass(frozen=True, slots=True)
class ParcelView:
    """A parcel in its queue; a copy has the id of an earlier one, and its reader drops it."""

    number: int
    order: str
    id: str
    is_copy: bool


@dataclass(frozen=True, slots=True)
class RecordView:
    """The record of an order; its parcel stays in it until it is noted that the parcel has left."""

    order: str
    holds_parcel: bool


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker: its present step, the one that it is in `doubt` about, and its next call in words."""

    number: int
    name: str
    is_alive: bool
    id: str
    step: Step | Literal[""]
    seen: tuple[Step, ...]
    doubt: str
    about: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The due figures beside the actual ones."""

    order_count: int
    stock_due: int
    stock: int
    parcels_due: int
    parcels: int
    copies: int
    fault_count: int
    is_quiet: bool
    is_equal: bool


@dataclass(frozen=True, slots=True)
class View:
    """All that the page shows of a world."""

    revision: int
    stock: int
    etag: int
    orders: tuple[OrderView, ...]
    parcels: tuple[ParcelView, ...]
    records: tuple[RecordView, ...]
    workers: tuple[WorkerView, ...]
    history: tuple[Line, ...]
    verdict: Verdict
    sent: tuple[str, ...]
    steps: tuple[str, ...]
    can_send: bool
    free_worker: int
    """The number of a worker that can be added; 0: there are as many as there may be."""
    hint: str


def look(world: World) -> View:
    """Take the present view of a world."""
    stock, etag = world.stock()
    parcels = _parcels(world)
    free = [n for n in range(1, WORKER_COUNT_MAX + 1) if n not in world.workers]
    return View(
        revision=world.revision,
        stock=stock.pieces,
        etag=etag,
        orders=_orders(world),
        parcels=parcels,
        records=tuple(RecordView(order, record.pending) for order, record in world.records().items()),
        workers=tuple(_worker(world, process) for process in world.workers.values()),
        history=tuple(world.history)[-LINE_COUNT_MAX:],
        verdict=judge(world),
        sent=tuple(world.orders),
        steps=STEPS,
        can_send=len(world.orders) < ORDER_COUNT_MAX,
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
    return Verdict(count, due, stock, count, distinct, copies, world.fault_count, world.is_quiet, is_equal)


def _orders(world: World) -> tuple[OrderView, ...]:
    alive = {process.name for process in world.workers.values() if not process.gate.is_dead}
    applied, seen, found = set(world.records()), set[str](), list[OrderView]()
    for task in world.waiting_orders():
        id, holder = task.message.identity, world.holder(task)
        is_copy = id in seen or (id in applied and not task.delivery_count and not holder)
        lives = holder is not None and holder.name in alive and not holder.gate.is_dead
        name = "" if holder is None else holder.name
        found.append(OrderView(task.sequence, id, task.delivery_count, name, lives, is_copy))
        seen.add(id)
    return tuple(found)


def _parcels(world: World) -> tuple[ParcelView, ...]:
    seen, found = set[str](), list[ParcelView]()
    for task in world.parcels():
        id = task.message.identity
        found.append(ParcelView(task.sequence, task.message.causation_id, id, id in seen))
        seen.add(id)
    return tuple(found)


def _worker(world: World, process: Process) -> WorkerView:
    gate, call = process.gate, process.gate.waiting
    seen = tuple(step for step in STEPS if step in gate.seen)
    if gate.is_dead:
        return WorkerView(process.number, process.name, False, gate.id, "", seen, "", _epitaph(world, process), ())
    if call is None:
        return WorkerView(
            process.number, process.name, True, gate.id, "", seen, gate.doubt, "Rests before it tries again.", ()
        )
    about = about_to(call, next_id=world.next_id())
    choices: Sequence[str] = DECISIONS if process in world.able() else ()
    return WorkerView(process.number, process.name, True, gate.id, call.step, seen, gate.doubt, about, tuple(choices))


def _epitaph(world: World, process: Process) -> str:
    held = [task.message.identity for task in world.waiting_orders() if world.holder(task) is process]
    locks = f" Its lock on {', '.join(held)} stays until it runs out." if held else ""
    return f"Killed. What it remembered is gone.{locks}"


def _hint(world: World) -> str:
    """The advice to a player where nothing goes on by itself."""
    if not world.orders:
        return "Send an order, then let worker 1 go on, step by step. At any step you can kill it, or lose a reply."
    if world.is_quiet:
        return "Quiet: nothing is on its way. Send another order, or one of the old ones again."
    if world.able():
        return ""
    if any(world.holder(task) for task in world.waiting_orders()):
        free = "" if any(not p.gate.is_dead for p in world.workers.values()) else " Then start a worker."
        return f"An order is locked for a worker that is dead. Let a minute pass: its lock runs out.{free}"
    return "An order is free, and no worker is alive. Start one."
