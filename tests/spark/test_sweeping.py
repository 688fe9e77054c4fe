"""What a task does with the documents of its part: each taken up, none twice, none in the way of the others."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox import Engine, stored
from outbox.azure.cosmos.store import CosmosStateStore, KeyRange
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, Refused
from outbox.ports import Create, Document, DocumentKey
from outbox.runtime.commit.sweeper import Swept
from outbox.runtime.scopes import longest_life
from outbox.runtime.start.notes import PastRetention, RegisteredRetention
from outbox.stored import LedgerItem, ledger_key
from spark_jobs import sweeping
from spark_jobs.sweep import SweepReport, parts_of
from spark_jobs.sweeping import (
    Counts,
    Guarded,
    Lane,
    Part,
    Reading,
    Sweeping,
    opened,
    sweep_lane,
    swept_once,
    swept_part,
)

FAR_S = 1e12


def document(number: int, body: bytes = b'{"pending":true,"at_ms":1}') -> Document:
    return Document(DocumentKey(f"p{number}", "inbox:00"), body, "v1")


class Redone:
    """A protocol that finishes everything, but for what it is told to fail on."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.seen: list[str] = []
        self._failing = failing
        self.is_marked = False

    async def redo(self, document: Document) -> bool:
        self.seen.append(document.key.partition)
        if document.key.partition in self._failing:
            raise Refused("not this one")
        return True

    async def finish(self) -> None:
        self.is_marked = True


class Breaking:
    """A store whose answer to the first readings breaks off in the middle."""

    def __init__(self, count: int, breaks: int) -> None:
        self._count = count
        self._breaks = breaks

    async def unfinished(self) -> AsyncIterator[Document]:
        for number in range(self._count):
            if self._breaks and number == self._count // 2:
                self._breaks -= 1
                raise OutcomeUnknown("no answer")
            yield document(number)


def now_ms() -> int:
    return 10_000_000


async def test_a_sweep_whose_time_is_over_loses_no_document() -> None:
    lane, redone, counts, moments = Lane(), Redone(), Counts(), itertools.count(10)
    for number in range(5):
        lane.waiting.put_nowait(document(number))
    lane.waiting.put_nowait(None)
    await sweep_lane(redone, lane, counts, now_ms=lambda: next(moments) * 40_000, grace_s=1)
    assert redone.seen == [f"p{number}" for number in range(5)]
    assert (counts.finished, counts.left) == (5, 0)


async def test_reading_that_breaks_off_begins_again_and_takes_nothing_up_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "READ_PAUSE_S", 0.0)
    monkeypatch.setattr(sweeping, "WAITING_COUNT_MAX", 1)  # lanes are full when all is read
    reading, redone = Reading(Breaking(40, 2), Part(), 3, until_s=FAR_S), Redone()
    counts = await swept_once(redone, reading, now_ms=now_ms, grace_s=1)
    assert (reading.read_count, reading.is_whole, counts.finished) == (3, True, 40)
    assert sorted(redone.seen) == sorted({f"p{number}" for number in range(40)})


async def test_a_store_that_cannot_be_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "READ_PAUSE_S", 0.0)
    reading = Reading(Breaking(4, 1_000), Part(), 2, until_s=FAR_S)
    await swept_once(Redone(), reading, now_ms=now_ms, grace_s=1)
    assert not reading.is_whole and "cannot be read: OutcomeUnknown" in reading.troubles[0]


async def test_one_foreign_document_keeps_no_client_from_the_rest() -> None:
    redone = Redone(["p3"])
    reading, guarded = Reading(Breaking(10, 0), Part(), 2, until_s=FAR_S), Guarded(redone)
    counts = await swept_once(guarded, reading, now_ms=now_ms, grace_s=1)
    assert (counts.finished, counts.left) == (9, 1)
    assert guarded.troubles == ["p3/inbox:00: Refused: not this one"] and redone.is_marked


async def test_foreign_messages_are_counted_and_keep_no_receiver_from_the_rest() -> None:
    class Foreign(Breaking):
        async def unfinished(self) -> AsyncIterator[Document]:
            yield document(1, b'{"pending":true,"at_ms":"never"}')
            yield document(2)

    counts = await swept_once(Redone(), Reading(Foreign(2, 0), Part(), 2, until_s=FAR_S), now_ms=now_ms, grace_s=1)
    assert (counts.finished, counts.foreign, counts.left) == (1, 1, 0)


async def test_what_a_part_takes_up_ends_with_its_time_and_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    late, full = (Reading(Breaking(4, 0), Part(), 2, until_s=until_s) for until_s in (0.0, FAR_S))
    counts = await swept_once(Redone(), late, now_ms=now_ms, grace_s=1)
    assert (late.is_whole, late.read_count, counts.finished) == (False, 1, 0) and "run it again" in late.troubles[0]
    monkeypatch.setattr(sweeping, "TAKEN_COUNT_MAX", 3)
    counts = await swept_once(Redone(), full, now_ms=now_ms, grace_s=1)
    assert (full.is_whole, counts.finished) == (False, 3) and "run it again" in full.troubles[0]


async def test_a_dispatch_ledger_with_nothing_to_do_is_neither_left_nor_finished() -> None:
    async with Engine.in_memory() as engine:
        backend = NarrowEngine(engine, "partition", dispatch_ledger=True)
        for id, at_ms in (("old", 1), ("young", engine.now_ms())):
            item = LedgerItem(id, at_ms, 86_400_000)
            await backend.ports().store.write([Create(ledger_key(id), stored.encode(item))])
        settings = Sweeping(
            connect=lambda: backend, life_ms=86_400_000, margin_ms=3_600_000, grace_s=60.0, lanes=2, limit_s=60.0
        )
        row = await swept_part(settings, Part())
    assert {name: row[name] for name in ("finished", "young", "foreign", "left", "reads")} == {
        "finished": 0, "young": 0, "foreign": 0, "left": 0, "reads": 1
    }  # fmt: skip
    assert row["is_whole"] and row["troubles"] == []


def test_what_is_gone_over_again_adds_to_what_is_finished_and_replaces_what_is_left() -> None:
    counts, later = Counts(), Counts()
    counts.note(Swept(seen_count=10, finished_count=4, young_count=3, foreign_count=1, oldest_s=9.0))
    assert counts == Counts(finished=4, young=3, foreign=1, left=2, oldest_s=9.0)
    counts.note(Swept(seen_count=10, finished_count=4, young_count=3, foreign_count=1, oldest_s=5.0))
    assert counts == Counts(finished=8, young=6, foreign=2, left=4, oldest_s=9.0)
    later.note(Swept(seen_count=3, finished_count=1, young_count=1, foreign_count=0, oldest_s=2.0))
    counts.add(later)
    assert counts == Counts(finished=9, young=1, foreign=0, left=1, oldest_s=9.0)


@pytest.mark.parametrize(
    ("found", "pass_count"),
    [
        ([Counts(finished=5)], 1),
        ([Counts(left=1)], 1),  # nothing has changed for it
        ([Counts(finished=5, left=2), Counts(finished=1, left=1), Counts(finished=1)], 3),
        ([Counts(finished=5, left=2), Counts(left=2)], 2),
        ([Counts(finished=1, left=1)] * 9, sweeping.PASS_COUNT_MAX),
    ],
)
async def test_a_part_is_gone_over_again_while_some_of_it_can_be_finished_and_some_not(
    found: list[Counts], pass_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(found)

    async def once(protocol: Any, reading: Reading, **given: Any) -> Counts:
        reading.read_count, reading.is_whole, reading.troubles = 2, True, ["began again"]
        return next(answers)

    failed = SimpleNamespace(count=7, take=lambda: [SimpleNamespace(destination="orders", count=7, error="gone")])
    monkeypatch.setattr(sweeping, "swept_once", once)
    monkeypatch.setattr(sweeping, "protocol_without_app", lambda *given: (Redone(), failed))
    async with Engine.in_memory() as engine:
        backend = NarrowEngine(engine, "partition")
        settings = Sweeping(
            connect=lambda: backend, life_ms=86_400_000, margin_ms=3_600_000, grace_s=60.0, lanes=2, limit_s=60.0
        )
        row = await swept_part(settings, Part())
    assert row["finished"] == sum(counts.finished for counts in found[:pass_count])
    assert (row["reads"], row["left"], row["unsent"]) == (2 * pass_count, found[pass_count - 1].left, 7)
    assert row["troubles"] == ["orders: 7 not sent, gone", "began again"]


async def test_a_document_that_changed_while_reading_began_again_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeping, "READ_PAUSE_S", 0.0)

    class Moving(Breaking):
        async def unfinished(self) -> AsyncIterator[Document]:
            if self._breaks:
                self._breaks -= 1
                yield document(1)
                raise OutcomeUnknown("no answer")
            yield replace(document(1), version="v2")

    redone = Redone()
    await swept_once(redone, Reading(Moving(1, 1), Part(), 1, until_s=FAR_S), now_ms=now_ms, grace_s=1)
    assert redone.seen == ["p1", "p1"]


async def test_reading_begins_again_after_pauses_that_grow_and_not_behind_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s, now_s = list[float](), [0.0]

    async def sleep(pause_s: float) -> None:
        pauses_s.append(pause_s)
        now_s[0] += 1.0

    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr("spark_jobs.sweeping.asyncio.sleep", sleep)
    monkeypatch.setattr("spark_jobs.sweeping.random.random", lambda: 0.5)
    reading = Reading(Breaking(0, 0), Part(), 0, until_s=2.5)

    async def broken() -> bool:
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(reading, "_read", broken)
    await reading.run()
    assert pauses_s == [2 * sweeping.READ_PAUSE_S, 4 * sweeping.READ_PAUSE_S, 8 * sweeping.READ_PAUSE_S]
    assert len(reading.troubles) == 1


async def test_of_many_documents_that_fail_ten_are_told() -> None:
    guarded = Guarded(Redone([f"p{number}" for number in range(12)]))
    assert [await guarded.redo(document(number)) for number in range(12)] == [False] * 12
    assert len(guarded.troubles) == 10


@pytest.mark.parametrize(("count", "part_count"), [(1, 3), (3, 3), (4, 6), (7, 9)])
async def test_a_store_is_gone_over_in_at_least_so_many_parts(count: int, part_count: int) -> None:
    async def key_ranges() -> list[KeyRange]:
        return [KeyRange("", "10"), KeyRange("10", "20"), KeyRange("20", "FF")]

    store = CosmosStateStore(cast(Any, None))
    store.key_ranges = key_ranges  # type: ignore[method-assign]  # of a container with three
    parts = await parts_of(1, store, count)
    assert len(parts) == part_count and {part.store for part in parts} == {1}
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]


async def test_a_backend_without_a_store_apart_is_refused_and_closed() -> None:
    class Whole:
        is_open = False

        async def __aenter__(self) -> Whole:
            self.is_open = True
            return self

        async def __aexit__(self, *error: object) -> None:
            self.is_open = False

        def ports(self) -> Any:
            assert self.is_open
            return object()

    whole: Any = Whole()
    with pytest.raises(Refused, match="Whole has no store apart"):
        async with AsyncExitStack() as stack:
            await opened(stack, lambda: whole)
    assert not whole.is_open


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (Part(start="", end="7f"), "0..7f"),
        (Part(store=1, start="7f", end="ff"), "store 2, 7f..ff"),
        (Part(share=0, shares=3), "share 1 of 3"),
    ],
)
def test_a_part_is_named_for_people(part: Part, name: str) -> None:
    assert part.name == name


@pytest.mark.parametrize(("shares", "lanes"), [(1, 4), (3, 4), (8, 16)])
def test_every_partition_falls_to_one_share_and_all_lanes_have_work(shares: int, lanes: int) -> None:
    partitions = [f"Account:{number}" for number in range(2_000)]
    found = [
        [lane for share in range(shares) if (lane := Part(share=share, shares=shares).lane_of(one, lanes)) is not None]
        for one in partitions
    ]
    assert all(len(held) == 1 for held in found)
    assert {held[0] for held in found} == set(range(lanes))
    of_first = {Part(shares=shares).lane_of(one, lanes) for one in partitions}
    assert of_first - {None} == set(range(lanes))


async def test_a_record_is_kept_for_the_longest_time_that_anybody_registered() -> None:
    class Notes:
        async def scan(self, partition: str, *, prefix: str) -> Any:
            assert (partition, prefix) == ("notes", "retention:")
            for kept in (RegisteredRetention(100, 20), RegisteredRetention(50, 30, (PastRetention(0, 400, 40),))):
                yield Document(DocumentKey("notes", "retention:x"), msgspec.json.encode(kept), "v")

    store: Any = Notes()
    assert await longest_life(store) == (440, 40)


@pytest.mark.parametrize(
    ("fields", "is_ok"),
    [({}, True), ({"young": 1}, True), ({"left": 1}, False), ({"foreign": 1}, False), ({"is_whole": False}, False)],
)
def test_a_sweep_has_succeeded_when_all_that_is_old_enough_is_finished(fields: dict[str, Any], is_ok: bool) -> None:
    counts: dict[str, Any] = dict.fromkeys(("finished", "young", "foreign", "left", "unsent"), 0)
    given = counts | {"parts": 1, "reads": 1, "oldest_s": 0.0, "seconds": 0.0, "is_whole": True, "troubles": []}
    assert SweepReport(**given | fields).ok is is_ok
