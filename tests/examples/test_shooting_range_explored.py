"""Every interleaving of a few attempts in item scope; and what older frameworks did wrong is found where it is put in.

The older faults are those of the framework that had this range as its sample.  Each is explored twice, with states and
infrastructure apart: as the runtime is, where nothing is found, and with that one mistake, where it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from outbox.errors import OutcomeUnknown
from outbox.ports import Create, Document, DocumentKey, Lost, Replace, Session, StateStore, Tag, Won, Write
from outbox.runtime.commit.store_transaction import StoreTransaction
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.store_scope import StoreParts
from outbox.runtime.work import Attempt, Work
from outbox.stored import StateItem, encode, staged_key, state_key
from outbox.verify import explore
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from outbox.verify.promises.view import View
from shooting_range.handlers import AttemptMade, Board, FireAt, SheetFull, Target, app
from shooting_range.sheet import Hole

FIRST = ("attempts", FireAt("a1", "g", "left", "ann", 0, 0), "a1")
SECOND = ("attempts", FireAt("a2", "g", "left", "bob", 90, 0), "a2")
ANNS = ("results", AttemptMade("a1", "g", "ann", True), "r1")
BOBS = ("results", AttemptMade("a2", "g", "bob", False), "r2")
NEARLY_FULL = [("g/left", Target(9, 0, 1, [Hole(f"h{n}", "bob", 0, 90) for n in range(9)]))]


def adds_up(world: View) -> bool:
    """What targets have seen is on the board or on its way there; holes are on this sheet or on full ones."""
    targets = world.states(Target)
    made = sum(target.attempts for target in targets)
    counted = sum(score.attempts for board in world.states(Board) for score in board.scores.values())
    full = len(world.in_flight(SheetFull))
    return (
        made == counted + len(world.in_flight(AttemptMade))
        and full == sum(target.sheet - 1 for target in targets)
        and made == 10 * full + sum(len(target.holes) for target in targets)
    )


# The application


@pytest.mark.parametrize(
    "scope",
    [
        {"messages": [FIRST], "workers": 2, "crashes": 0},
        {"messages": [FIRST], "workers": 1, "lost": 1},
        {"messages": [FIRST, SECOND], "workers": 1, "duplicates": 0, "allow": {"order"}},
        {"messages": [ANNS, BOBS], "workers": 2, "duplicates": 0, "crashes": 0, "invariant": None},
    ],
    ids=["two workers", "a crash and a lost reply", "two attempts", "two results"],
)
def test_every_interleaving_keeps_every_attempt_once(scope: dict[str, Any]) -> None:
    report = explore(app, **{"scope": "item", "invariant": adds_up, **scope})
    assert report.exhausted and not report.anomalies, report.text


def test_every_interleaving_takes_a_full_sheet_down_once() -> None:
    def sheets_add_up(world: View) -> bool:
        return all(target.sheet - 1 == len(world.in_flight(SheetFull)) for target in world.states(Target))

    report = explore(app, [FIRST], given=NEARLY_FULL, workers=1, scope="item", invariant=sheets_add_up)
    assert report.exhausted and not report.anomalies, report.text


def test_holes_hang_in_the_order_in_which_they_were_made_and_the_explorer_says_so() -> None:
    report = explore(app, [FIRST, SECOND], workers=1, duplicates=0, crashes=0, scope="item")
    assert [anomaly.promise for anomaly in report.anomalies] == ["Order"], report.text


# What older frameworks did wrong

Stores = Callable[[StateStore], StateStore]


class Around:
    """A store that does something else on the way to another one."""

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self.capabilities = store.capabilities
        self.scan = store.scan
        self.unfinished = store.unfinished

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        return await self.store.read(key, session=session)

    async def write(self, operations: list[Write]) -> Won | Lost:
        return await self.store.write(operations)


class WithoutSessions(Around):
    """Reads some of its documents from whatever replica is next."""

    def __init__(self, store: StateStore, *, of: str) -> None:
        super().__init__(store)
        self.of = of

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        return await self.store.read(key, session="" if key.id.startswith(self.of) else session)


class Upserts(Around):
    """The first write of a document overwrites whatever is there."""

    async def write(self, operations: list[Write]) -> Won | Lost:
        answer = await self.store.write(operations)
        (wanted,) = operations
        if isinstance(answer, Lost) and isinstance(wanted, Create):
            known = await self.store.read(wanted.key)
            assert known is not None
            return await self.store.write([Replace(wanted.key, wanted.body, known.version, wanted.ttl_s, wanted.tag)])
        return answer


class DeletesOnDoubt(ItemScope):
    """Deletes what it has staged when it does not know whether the state was swapped."""

    async def _commit(self, attempt: Attempt, state_id: str, batch: StoreTransaction, item: StateItem) -> Any:
        key, body, etag = state_key(state_id), encode(item), batch.loaded.version
        tag = Tag("swap", (attempt.work.inbox,), batch.tx)
        write = Replace(key, body, etag, None, tag) if etag else Create(key, body, None, tag)
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


def apart(kind: type[ItemScope] = ItemScope, states: Any = Around, others: Any = Around) -> Callable[..., ItemScope]:
    def make(parts: StoreParts) -> ItemScope:
        ports = parts.ports
        assert ports.infrastructure is not None
        ports = replace(ports, store=states(ports.store), infrastructure=others(ports.infrastructure))
        parts = replace(parts, ports=ports)
        return kind(parts, stateless=PartitionScope(parts))

    return make


def explored(**options: Any) -> Report:
    return search(Scenario(**{"app": app, "scope": "item", "apart": True, **options}))


OLDER: dict[str, tuple[Callable[..., ItemScope], dict[str, Any], set[str]]] = {
    "B1 a staged result is deleted when its swap is in doubt": (
        apart(DeletesOnDoubt),
        {"messages": [FIRST], "workers": 1, "copies": 2, "budgets": Budgets(lost=1), "staged": True},
        {"StagedVanish"},
    ),
    "B2 the first write of a state is an upsert": (
        apart(states=Upserts),
        {"messages": [ANNS, BOBS], "workers": 2, "staged": True},
        {"NoLost"},
    ),
    "B3 the same with one message that comes twice": (
        apart(states=Upserts),
        {"messages": [ANNS], "workers": 2, "copies": 2, "staged": True},
        {"NoLost"},
    ),
    "B4 a marker is read from the past": (
        apart(others=partial(WithoutSessions, of="done:")),
        {"messages": [ANNS], "workers": 1, "copies": 2, "budgets": Budgets(stale=2)},
        {"NoDuplicate"},
    ),
    "B5 a staged result is looked for in the past": (
        apart(others=partial(WithoutSessions, of="staged:")),
        {"messages": [FIRST], "workers": 1, "budgets": Budgets(crash=1, stale=1), "staged": True},
        {"NoAlarm"},
    ),
    "B12 nothing says that a message was handled": (
        apart(ForgetsMarkers),
        {"messages": [FIRST], "workers": 1, "copies": 2},
        {"NoDuplicate"},
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_an_older_fault_does_not_occur(name: str) -> None:
    report = explored(**OLDER[name][1])
    assert report.exhausted and not report.anomalies, report.text


@pytest.mark.parametrize("name", OLDER)
def test_an_older_fault_is_found_where_it_is_put_in(name: str) -> None:
    make, scope, promises = OLDER[name]
    report = explored(make=make, **scope)
    assert {anomaly.promise for anomaly in report.anomalies} & promises, report.text


def test_what_a_crash_has_staged_is_swept_and_idle_states_are_finished() -> None:
    """B6 and B13: with sweepers over both stores and no further message, nothing staged and no pointer is left."""
    report = explored(messages=[ANNS], workers=1, sweepers=1, budgets=Budgets(crash=1))
    assert report.exhausted and not report.anomalies, report.text
