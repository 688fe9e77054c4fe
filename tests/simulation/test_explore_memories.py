"""What a store protocol says it remembers is all that it may remember: explorations follow equal memories once.

Each field of each object that a protocol is made of is either said, and then a change of it changes what is said, or it
stands below as one that decides nothing.  A field that is new is neither, and fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbox.errors import PoisonMessage
from outbox.message import Message
from outbox.ports import Delivery, Replace, StorePorts
from outbox.runtime.commit.dispatch_ledger import DispatchLedger
from outbox.runtime.commit.loaded_states import LoadedStates
from outbox.runtime.commit.marks import Mark, Marks
from outbox.runtime.commit.overflow import Overflows
from outbox.runtime.commit.partition_size import PartitionSizes
from outbox.runtime.commit.recovery import OrphanedStaged, Recovery
from outbox.runtime.commit.run_handler import Life
from outbox.runtime.commit.state_cache import NEW_COUNT_ENOUGH, CachedState, NewStates, StateCache
from outbox.runtime.delivery.admission import Admission
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.intake import Lanes
from outbox.runtime.delivery.retrying import Backoff, RetryBackoff
from outbox.runtime.delivery.settlement import FailedPushes, Settlement
from outbox.runtime.delivery.waiting import WaitingRecords
from outbox.runtime.failures.failure_counts import FailureCounts
from outbox.runtime.failures.failure_log import Failure
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.scopes import store_protocol
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox.runtime.store_scope import StoreParts, StoreScope
from outbox.runtime.work import Attempt, Work, attempt_at
from outbox.stored import Record, StateItem, encode, record_key
from outbox.verify.explorer.models.store import CAPABILITIES
from outbox.verify.explorer.ports import ExploredBlobs, ExploredBus, ExploredStore
from outbox.verify.explorer.programs import BACKOFF
from tests.simulation.explored import bank

Change = Callable[[Any], object]

KEY = record_key("Account:alice", b"i" * 32)
MARK = Mark(Replace(KEY, b"{}", "v1", 60.0))
DELIVERY = Delivery("transfers", 1, Message(body=b"{}", outbox_id="t1"), 1, 0, 0)
REFUSAL = PoisonMessage("rejected", "no")

MADE_ONCE = "the same in every process"
FOLLOWS = "follows from what is said"
METER = "for people to read"
OF_DELIVERY = "follows from the delivery, the plan and whether the handler has run"
PAUSES = "how long a message rests, which no protocol sees"
NOT_MERGED = "an attempt that shares it is not merged"

NO_CALLS: Any = object  # which nobody calls
LEDGER = DispatchLedger(compile_app(bank()), ExploredStore(NO_CALLS, 0, CAPABILITIES), now_ms=lambda: 0, new_id=str)

SAID: dict[type, dict[str, Change]] = {
    PartitionScope: {
        "_unpushed": lambda scope: scope._unpushed.update({b"i" * 32: None}),
        "ledger": lambda scope: setattr(scope, "ledger", LEDGER),
    },
    LoadedStates: {"_behind": lambda states: states._behind.update({"Account:alice": "session"})},
    StateCache: {"_states": lambda cache: cache._states.update({"Account:alice": CachedState(StateItem(), "v1")})},
    NewStates: {"_counts": lambda states: states._counts.update({"Account": NEW_COUNT_ENOUGH})},
    Marks: {"_due": lambda marks: marks._due.update({KEY.partition: {KEY: MARK}})},
    WaitingRecords: {"_known": lambda waiting: waiting._known.update({b"i" * 32: None})},
    OrphanedStaged: {"by_state": lambda staged: staged.by_state.update({"Account:alice": [("tx", 1)]})},
    Lanes: {"taken": lambda lanes: lanes.taken.update({"Account:alice": [attempt_at(Work(DELIVERY))]})},
    Attempt: {
        "work": lambda attempt: attempt.refuse(REFUSAL),
        "rests_on": lambda attempt: setattr(attempt, "rests_on", "v1"),
        "found": lambda attempt: setattr(attempt, "found", Record("tx", b"", 0)),
        "replaces": lambda attempt: setattr(attempt, "replaces", "v1"),
        "ledger_entries": lambda attempt: setattr(attempt, "ledger_entries", ("ledger/1",)),
        "record": lambda attempt: setattr(attempt, "record", Record("tx", b"", 0)),
        "failure": lambda attempt: setattr(attempt, "failure", Failure("E: no", "", "", 1, None)),
        "is_blocker": lambda attempt: setattr(attempt, "is_blocker", True),
        "is_released": lambda attempt: setattr(attempt, "is_released", True),
    },
    Work: {
        "delivery": lambda attempt: _work(attempt, delivery=Delivery("transfers", 2, DELIVERY.message, 1, 0, 0)),
        "key": lambda attempt: _work(attempt, key="alice"),
        "refusal": lambda attempt: _work(attempt, refusal=REFUSAL),
        "was_run": lambda attempt: _work(attempt, was_run=True),
    },
}

LEFT_OUT: dict[type, dict[str, str]] = {
    StoreParts: dict.fromkeys(("plan", "ports", "now_ms", "new_tx", "is_stopping"), MADE_ONCE),
    ItemScope: dict.fromkeys(("_plan", "_states", "_infrastructure", "_blobs", "_now_ms", "_new_tx"), MADE_ONCE)
    | {"checkpoint": MADE_ONCE, "lingering": FOLLOWS, "ledger": FOLLOWS},
    PartitionScope: dict.fromkeys(("_plan", "_store", "_now_ms", "_new_tx", "checkpoint"), MADE_ONCE)
    | {"lingering": FOLLOWS},
    LoadedStates: {"_store": MADE_ONCE},
    Recovery: {"_ledger": FOLLOWS, "_looked": PAUSES},
    StoreScope: dict.fromkeys(("_plan", "_now_ms", "_spawn", "_lingering", "on_waiting"), MADE_ONCE)
    | {"failed_pushes": METER, "_blocked_log": METER, "waiting": FOLLOWS},
    Marks: dict.fromkeys(("_plan", "_store", "_blobs", "_written", "_count_max", "_full_count"), MADE_ONCE)
    | dict.fromkeys(("_full", "due_count", "_due_bytes"), FOLLOWS)
    | dict.fromkeys(("_waiting", "_ripe"), PAUSES),
    StateCache: {"_count_max": MADE_ONCE, "_bytes_max": MADE_ONCE, "_bytes": FOLLOWS},
    NewStates: {"_enough": MADE_ONCE, "_first": MADE_ONCE},
    WaitingRecords: dict.fromkeys(("_plan", "_store", "_now_ms", "_new_tx"), MADE_ONCE),
    OrphanedStaged: {"_states": MADE_ONCE, "_infrastructure": MADE_ONCE},
    Overflows: dict.fromkeys(("_plan", "_store", "_states", "_blobs", "_now_ms"), MADE_ONCE),
    PartitionSizes: dict.fromkeys(("_plan", "_bytes_max", "_now_ms", "_cure"), MADE_ONCE) | {"_meters": METER},
    FailureCounts: {"_store": MADE_ONCE, "_life_s": MADE_ONCE},
    Life: {"now_ms": MADE_ONCE, "is_stopping": MADE_ONCE},
    Settlement: dict.fromkeys(("_plan", "_bus", "_blobs", "_now_ms", "_new_tx", "_settled", "_failure_log"), MADE_ONCE),
    FailedPushes: {"count": METER, "_recent": METER},
    Admission: {"_plan": MADE_ONCE, "_blobs": MADE_ONCE},
    BlockedSessions: {"_store": MADE_ONCE, "_blobs": MADE_ONCE},
    RetryBackoff: {"_log_throttle": METER, "count": PAUSES},
    Backoff: dict.fromkeys(("sleep", "count_max", "pause"), MADE_ONCE),
    Attempt: {"others": NOT_MERGED, "fan_out": NOT_MERGED, "on_committed": NOT_MERGED, "is_duplicate": METER},
    Work: dict.fromkeys(("handler", "value", "state_id", "lane", "remembered", "inbox", "fingerprint"), OF_DELIVERY)
    | dict.fromkeys(("in_order", "blocks_key", "others", "caller", "cancels_due_ms"), OF_DELIVERY),
}


def _work(attempt: Attempt, **changed: Any) -> None:
    fields = {name: getattr(attempt.work, name) for name in attempt.work.__struct_fields__}
    attempt.work = Work(**(fields | changed))


def lanes_over(scope: str) -> StoreScope:
    """The lanes of a worker, with a protocol that has learned nothing."""
    plan = compile_app(bank())
    calls = NO_CALLS
    apart = ExploredStore(calls, 3, CAPABILITIES) if scope == "item" else None
    operations: Any = None
    store, bus, blobs = ExploredStore(calls, 0, CAPABILITIES), ExploredBus(calls, 1), ExploredBlobs(calls, 2)
    ports = StorePorts(store, bus, operations, blobs, apart)
    clock: dict[str, Any] = {"now_ms": lambda: 0, "new_tx": lambda: "tx"}
    settlement = Settlement(plan, ports.bus, ports.blobs, backoff=BACKOFF, settled=lambda _: None, **clock)
    protocol = store_protocol(StoreParts(plan, ports, settlement, is_stopping=lambda: False, **clock))
    blocked = BlockedSessions(ports.infrastructure or ports.store, ports.blobs)
    return StoreScope(
        plan,
        protocol,
        settlement,
        blocked,
        ports.blobs,
        now_ms=clock["now_ms"],
        backoff=BACKOFF,
        spawn=lambda coroutine: coroutine.close(),
    )


def names_of(part: Any) -> list[str]:
    """The fields of an object, wherever it keeps them."""
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    return list(getattr(part, "__struct_fields__", ())) or [*slots, *getattr(part, "__dict__", ())]


def parts(root: Any, seen: set[int]) -> Iterator[Any]:
    """The objects of the runtime that can be reached, each once; what a process is made with is no part of it."""
    if id(root) in seen or not type(root).__module__.startswith("outbox.runtime") or isinstance(root, CompiledApp):
        return
    seen.add(id(root))
    yield root
    for name in names_of(root):
        if LEFT_OUT.get(type(root), {}).get(name) != METER:
            yield from parts(getattr(root, name), seen)


def said(lanes: StoreScope, attempt: Attempt) -> bytes:
    return encode((lanes.remembered(), attempt.remembered()))


@pytest.mark.parametrize("scope", ["partition", "item"])
def test_every_field_is_said_or_named_as_one_that_decides_nothing(scope: str) -> None:
    lanes, attempt = lanes_over(scope), attempt_at(Work(DELIVERY))
    found = [*parts(lanes, set()), attempt, attempt.work]
    assert {type(part) for part in found} >= {StoreScope, Marks, WaitingRecords, Lanes, Settlement}
    for part in found:
        kind = type(part)
        known = {*SAID.get(kind, ()), *LEFT_OUT.get(kind, ())}
        held = {name for name in names_of(part) if type(getattr(part, name)) in {type(each) for each in found}}
        assert set(names_of(part)) - held <= known, f"{kind.__name__}: {set(names_of(part)) - held - known}"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in SAID for name in SAID[kind]],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_change_of_a_field_that_is_said_changes_what_is_said(kind: type, name: str) -> None:
    scope = "item" if kind is OrphanedStaged else "partition"
    lanes, attempt = lanes_over(scope), attempt_at(Work(DELIVERY))
    before = said(lanes, attempt)
    part = attempt if kind in (Attempt, Work) else next(p for p in parts(lanes, set()) if type(p) is kind)
    SAID[kind][name](part)
    assert said(lanes, attempt) != before


def test_what_is_called_fixed_or_said_is_there() -> None:
    attempt = attempt_at(Work(DELIVERY))
    found = [part for scope in ("partition", "item") for part in parts(lanes_over(scope), set())]
    there = {(type(part), name) for part in [*found, attempt, attempt.work] for name in names_of(part)}
    assert {(kind, name) for table in (SAID, LEFT_OUT) for kind in table for name in table[kind]} <= there
