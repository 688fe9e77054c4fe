"""Partition and item scope, every interleaving of small scopes: nothing is found, and planted mutants are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from outbox import stored
from outbox.errors import CorruptRecord, OutcomeUnknown
from outbox.ports import Create, Delete, Document, DocumentKey, Lost, Replace, Session, Tag, Write
from outbox.runtime.commit.store_transaction import Entry, StoreTransaction
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.scopes import store_protocol
from outbox.runtime.store_scope import StoreParts
from outbox.runtime.work import Attempt, Work
from outbox.stored import STATE, FoundStaged, Inline, StateItem, staged_key
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, REFUSED, T1, T2, bank, conserved, desk

pytestmark = pytest.mark.slow

PARTITION_FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump")


def explored(scope: str, **options: Any) -> Report:
    known: dict[str, Any] = {"app": desk(), "given": GIVEN, "invariant": conserved, "messages": [T1], "scope": scope}
    return search(Scenario(**(known | options)))


def clean(report: Report) -> Report:
    assert report.exhausted and not report.anomalies, report.text
    return report


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_partition_scope_two_workers_and_a_duplicate_under_any_single_fault(fault: FaultKind) -> None:
    report = clean(explored("partition", messages=[T1, T2], copies=[2, 1], budgets=Budgets.any_of(1, fault)))
    assert report.states > 1_000


def test_partition_scope_keeps_its_promises_over_two_handlings() -> None:
    clean(explored("partition", app=bank(), copies=2, budgets=Budgets(crash=1)))


@pytest.mark.parametrize("options", [{"warm": True}, {"tells_current": True}, {"batch": 2}, {"sweepers": 1}], ids=str)
def test_partition_scope_keeps_its_promises_however_it_is_run(options: dict[str, Any]) -> None:
    workers = 1 if "sweepers" in options else 2
    clean(explored("partition", messages=[T1, T2], workers=workers, budgets=Budgets.any_of(1, "crash"), **options))


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault(fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("partition", messages=[T1, T2], copies=[2, 1], warm=True, batch=2, budgets=budgets))
    clean(explored("item", workers=1, copies=2, warm=True, budgets=budgets))


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 1, "sweepers": 1}], ids=str)
@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault(
    fault: FaultKind, options: dict[str, Any]
) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("partition", messages=[T1, T2], copies=[2, 1], warm=True, lingers=True, budgets=budgets, **options))


@pytest.mark.parametrize("scope", ["partition", "item"])
def test_a_refusal_and_its_duplicate_end_in_one_verdict(scope: str) -> None:
    allow = frozenset({"dead-letter"})
    budgets = Budgets.any_of(1, "crash", "lost")
    clean(explored(scope, app=bank(), messages=[REFUSED], workers=1, copies=2, allow=allow, budgets=budgets))


INLINE_OR_STAGED = pytest.mark.parametrize("options", [{}, {"staged": True}], ids=["inline", "staged"])


@INLINE_OR_STAGED
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire", "stale", "jump"])
def test_item_scope_one_worker_and_a_duplicate_under_any_single_fault(
    fault: FaultKind, options: dict[str, Any]
) -> None:
    clean(explored("item", workers=1, copies=2, budgets=Budgets.any_of(1, fault), **options))


@INLINE_OR_STAGED
def test_item_scope_two_workers_and_a_duplicate(options: dict[str, Any]) -> None:
    clean(explored("item", copies=2, **options))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire", "stale", "jump"])
def test_pointers_that_wait_for_the_next_swap_keep_every_promise_under_any_single_fault(fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("item", workers=1, messages=[T1, T2], copies=[2, 1], warm=True, lingers=True, budgets=budgets))
    clean(explored("item", workers=1, sweepers=1, messages=[T1, T2], warm=True, lingers=True, budgets=budgets))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_workers_that_stage_outputs_and_workers_that_do_not_keep_every_promise_together(fault: FaultKind) -> None:
    clean(explored("item", messages=[T1, T2], staged=True, mixed=True, budgets=Budgets.any_of(1, fault)))


class EarlierStates:
    """The states as earlier versions of the code see them: what holds its outputs inside they cannot decode."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities, self.scan, self.unfinished = store.capabilities, store.scan, store.unfinished
        self.write = store.write

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found: Document | None = await self._store.read(key, session=session)
        if key.id == STATE and isinstance(stored.state_in(found).pending, Inline):
            raise CorruptRecord("document Account:alice/state is not a StateItem")
        return found


def earlier_where_staged(parts: StoreParts) -> Any:
    """The protocol of a worker; one that stages everything is of an earlier version."""
    ports = parts.ports
    if not ports.store.capabilities.inline_bytes_max:
        ports = replace(ports, store=EarlierStates(ports.store), infrastructure=ports.store)
    return store_protocol(replace(parts, ports=ports))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_workers_of_an_earlier_version_and_of_this_one_keep_every_promise_together(fault: FaultKind) -> None:
    known: dict[str, Any] = {"staged": True, "mixed": True, "symmetric": False, "make": earlier_where_staged}
    known |= {"pauses_max": 1, "budgets": Budgets.any_of(1, fault)}
    clean(explored("item", copies=2, lingers=True, warm=True, **known))
    clean(explored("item", sweepers=1, **known))


@INLINE_OR_STAGED
def test_item_scope_with_a_sweeper_leaves_nothing_behind_after_a_crash(options: dict[str, Any]) -> None:
    clean(explored("item", workers=1, sweepers=1, budgets=Budgets(crash=1), **options))


@INLINE_OR_STAGED
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_item_scope_keeps_its_promises_with_its_infrastructure_apart(fault: FaultKind, options: dict[str, Any]) -> None:
    clean(explored("item", apart=True, workers=1, copies=2, budgets=Budgets.any_of(1, fault), **options))


@INLINE_OR_STAGED
def test_item_scope_apart_keeps_its_promises_when_both_sides_are_swept(options: dict[str, Any]) -> None:
    clean(explored("item", apart=True, workers=1, sweepers=1, budgets=Budgets(crash=1), **options))


# Mutants of partition scope


class PushesFirst(PartitionScope):
    """Pushes what an attempt emitted, then commits."""

    async def _commit(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        await self._settlement.push([output for entry in batch.entries for output in entry.record.outputs])
        return await super()._commit(batch, state_id)


class TakesUnknownAsWon(PartitionScope):
    async def _resolved(self, batch: StoreTransaction, state_id: str | None) -> Lost | None:
        return None


class NeverPushes(PartitionScope):
    async def _push(self, batch: StoreTransaction) -> None:
        return

    def _mark(self, batch: StoreTransaction, state_id: str | None) -> None:
        return


class MarksFirst(PartitionScope):
    async def _push(self, batch: StoreTransaction) -> None:
        self._mark(batch, batch.entries[0].attempt.work.state_id)
        await self.marks.write()
        await super()._push(batch)


class ForgetsTheState(PartitionScope):
    """Writes the state only where it changed."""

    def _writes(self, batch: StoreTransaction, state_id: str | None) -> list[Write]:
        writes = super()._writes(batch, state_id)
        same = bytes(batch.state_after.value) == bytes(batch.loaded.item.value)
        return writes[:-1] if same and state_id is not None else writes


class LetsPendingExpire(PartitionScope):
    def _record_write(self, entry: Entry, state_id: str | None) -> Write:
        write = super()._record_write(entry, state_id)
        assert not isinstance(write, Delete)
        return type(write)(
            **{**{f: getattr(write, f) for f in write.__slots__}, "ttl_s": self._plan.record_life_ms / 1_000}
        )


class RecordsByDelivery(PartitionScope):
    """Names a record after the delivery instead of the message."""

    def _record_write(self, entry: Entry, state_id: str | None) -> Write:
        work = entry.attempt.work
        inbox = bytes([work.delivery.sequence]) + work.inbox[1:]
        entry.attempt.work = msgspec.structs.replace(work, inbox=inbox)
        return super()._record_write(entry, state_id)


PARTITION_MUTANTS: dict[str, tuple[type[PartitionScope], dict[str, Any], set[str], int]] = {
    "pushes first": (PushesFirst, {"workers": 1}, {"NoGhost"}, 4),
    "unknown is won": (TakesUnknownAsWon, {"workers": 1, "budgets": Budgets(delay=1)}, {"NoGhost"}, 5),
    "never pushes": (NeverPushes, {"workers": 1}, {"NoLost", "NothingLeavesEarly"}, 6),
    "marks first": (MarksFirst, {"workers": 1}, {"NoLost"}, 5),
    "an unchanged state is not written": (
        ForgetsTheState, {"app": bank(), "messages": [REFUSED], "workers": 1}, {"Serializable"}, 4,
    ),
    "pending records expire": (
        LetsPendingExpire, {"workers": 1, "budgets": Budgets(crash=1, jump=1)}, {"NoLost"}, 11,
    ),
    "records are named after deliveries": (RecordsByDelivery, {"workers": 1, "copies": 2}, {"NoGhost"}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTITION_MUTANTS)
def test_a_mutant_of_partition_scope_is_found(name: str) -> None:
    kind, scope, promises, steps = PARTITION_MUTANTS[name]
    report = explored("partition", make=kind, allow=frozenset({"dead-letter"}), **scope)
    assert {anomaly.promise for anomaly in report.anomalies} & promises, report.text
    assert report.anomalies[0].steps <= steps, report.text


class NeverFinishes(PartitionScope):
    """Gives a message back for ever whose record is pending."""

    async def _follow(self, attempt: Attempt, document: Document) -> Any:
        if stored.decode(document, stored.Record).pending:
            raise NothingCommitted
        return await super()._follow(attempt, document)


def test_a_message_that_goes_in_a_circle_is_found() -> None:
    scenario = Scenario(desk(), [T1], GIVEN, workers=1, scope="partition", budgets=Budgets(crash=1), make=NeverFinishes)
    report = search(scenario, live=True)
    assert [anomaly.promise for anomaly in report.anomalies] == ["Progress"], report.text
    assert report.anomalies[0].steps <= 5


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
def test_a_good_end_can_be_reached_from_everywhere(scope: str) -> None:
    budgets = Budgets.any_of(1, "crash", "lost", "delay", "error", "expire")
    scenario = Scenario(desk(), [T1], GIVEN, workers=1, copies=2, scope=scope, budgets=budgets)
    clean(search(scenario, live=True))


# Mutants of item scope


def item(kind: type[ItemScope]) -> Callable[[StoreParts], ItemScope]:
    return lambda parts: kind(parts, stateless=PartitionScope(parts))


class DeletesEarly(ItemScope):
    """Deletes what is staged before the pointer to it is cleared."""

    async def _mark_dispatched(self, tx: str, found: FoundStaged) -> FoundStaged:
        found = await super()._mark_dispatched(tx, found)
        await self.orphans.delete(staged_key(found.staged.state, tx), found.version, tx)
        return found


class DeletesOnDoubt(ItemScope):
    """Deletes what it has staged when it does not know whether the state was swapped."""

    async def _commit(self, attempt: Attempt, state_id: str, batch: StoreTransaction, item: StateItem) -> Any:
        key, etag = stored.state_key(state_id), batch.loaded.version
        write = items_write(key, stored.encode(item), etag, Tag("swap", (attempt.work.inbox,), batch.tx))
        try:
            await self._states.write([write])
        except OutcomeUnknown:
            found = await self._infrastructure.read(staged_key(state_id, batch.tx))
            if found is not None:
                await self.orphans.delete(found.key, found.version, batch.tx)
            raise NothingCommitted from None
        return await super()._commit(attempt, state_id, batch, item)


class ForgetsMarkers(ItemScope):
    """Takes no notice of the markers of messages that were handled."""

    def _resubmits(self, work: Work, marker: Document) -> bool:
        return True


class MarksProcessedFirst(ItemScope):
    async def _decide(self, attempt: Attempt, state_id: str, token: Session) -> None:
        record = stored.Record("early", b"", self._now_ms())
        await self._mark(state_id, attempt.work.inbox, record)
        await super()._decide(attempt, state_id, token)


def items_write(key: DocumentKey, body: bytes, etag: str, tag: Tag) -> Write:
    return Replace(key, body, etag, None, tag) if etag else Create(key, body, None, tag)


ITEM_MUTANTS: dict[str, tuple[type[ItemScope], dict[str, Any], set[str], int]] = {
    "staged records go too early": (DeletesEarly, {"workers": 1, "staged": True}, {"StagedVanish"}, 10),
    "staged records go on doubt": (
        DeletesOnDoubt, {"workers": 1, "staged": True, "budgets": Budgets(lost=1)}, {"StagedVanish"}, 9,
    ),
    "markers are forgotten": (ForgetsMarkers, {"workers": 1, "copies": 2}, {"NoDuplicate"}, 20),
    "processed before the commit": (MarksProcessedFirst, {"workers": 1}, {"NothingLeavesEarly"}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", ITEM_MUTANTS)
def test_a_mutant_of_item_scope_is_found(name: str) -> None:
    kind, scope, promises, steps = ITEM_MUTANTS[name]
    report = explored("item", make=item(kind), **scope)
    assert {anomaly.promise for anomaly in report.anomalies} & promises, report.text
    assert report.anomalies[0].steps <= steps, report.text
