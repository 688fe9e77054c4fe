"""The contracts of a `StateStore`, and of ordered logs on one.

A store has conditional writes, batches, versions, time to live, scan.  A log has each append once, in order, with no
hole, and loses nothing to a trim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import Any

from outbox.errors import CorruptRecord, NotRegistrable, OutboxError, OutcomeUnknown, Refused, Trimmed
from outbox.ports import Create, Delete, Document, DocumentKey, Lost, Replace, StateStore, Won, Write
from outbox.streams import OrderedLog, Position
from outbox.verify.suites.clauses import Clause, Make, Wait, check, promise

PARTITION = "contract"
A, B, C = (DocumentKey(PARTITION, id) for id in ("a", "b", "c"))
BYTES = bytes(range(256))


async def check_state_store(
    make: Make[StateStore], *, wait: Wait | None = None, clauses: Sequence[Clause[StateStore]] | None = None
) -> None:
    """Check a state store; `make` returns an empty one, `wait` lets its time pass (without it: no time clauses).

    Raises:
        AssertionError: a promise is broken.
    """
    await check(make, STATE_STORE if clauses is None else clauses)
    if wait is not None and clauses is None:
        await check(make, store_clauses_of_time(wait))


async def created(store: StateStore, key: DocumentKey = A, body: bytes = b"1", ttl_s: float | None = None) -> str:
    """The version of a document that was made."""
    return await won(store, Create(key, body, ttl_s))


async def won(store: StateStore, *operations: Write) -> str:
    """The first version that a write made, which has to win."""
    outcome = await store.write(operations)
    promise(isinstance(outcome, Won), f"{operations} lost though every condition holds")
    versions = outcome.versions if isinstance(outcome, Won) else ()
    promise(len(versions) == len(operations), f"{len(operations)} operations won with versions {versions}")
    for operation, version in zip(operations, versions, strict=True):
        promise(bool(version) != isinstance(operation, Delete), f"{operation} won with version {version!r}")
    return versions[0]


async def lost(store: StateStore, *operations: Write, at: int = 0) -> None:
    """A write that has to lose at an operation, and return the current document if it says so."""
    before = await seen(store, operations[at].key)
    outcome = await store.write(operations)
    promise(isinstance(outcome, Lost), f"{operations} won though condition {at} does not hold")
    if isinstance(outcome, Lost):
        promise(outcome.operation == at, f"operation {outcome.operation} is said to have lost, it was {at}")
        broken = f"the store claims tells_current, but gave {outcome.current}, not {before}"
        promise(not store.capabilities.tells_current or outcome.current == before, broken)
    promise(await seen(store, operations[at].key) == before, "a write that lost changed the document")


async def seen(store: StateStore, key: DocumentKey) -> Document | None:
    """Read a document; its session token is the store's own affair."""
    found = await store.read(key)
    return None if found is None else replace(found, session="")


async def a_document_is_read_as_it_was_written(store: StateStore) -> None:
    version = await created(store, A, BYTES)
    found = await seen(store, A)
    promise(found == Document(A, BYTES, version), f"written {BYTES!r} at {version}, read {found}")


async def what_was_never_written_is_none(store: StateStore) -> None:
    promise(await seen(store, A) is None, "a document is read that was never written")


async def a_create_loses_where_a_document_is(store: StateStore) -> None:
    await created(store)
    await lost(store, Create(A, b"2"))


async def a_replace_wins_at_the_version_that_was_read(store: StateStore) -> None:
    first = await created(store)
    second = await won(store, Replace(A, b"2", first))
    found = await seen(store, A)
    promise(found == Document(A, b"2", second), f"replaced to {second}, read {found}")
    promise(second != first, "a write kept the version")


async def a_write_of_the_same_bytes_makes_a_new_version(store: StateStore) -> None:
    first = await created(store)
    promise(await won(store, Replace(A, b"1", first)) != first, "an unchanged body kept its version")
    await lost(store, Replace(A, b"1", first))


async def a_replace_loses_at_a_stale_version(store: StateStore) -> None:
    first = await created(store)
    await won(store, Replace(A, b"2", first))
    await lost(store, Replace(A, b"3", first))


async def a_replace_loses_where_nothing_is(store: StateStore) -> None:
    await lost(store, Replace(A, b"2", await created(store, B)))


async def a_delete_wins_at_its_version_and_loses_at_any_other(store: StateStore) -> None:
    first = await created(store)
    second = await won(store, Replace(A, b"2", first))
    await lost(store, Delete(A, first))
    await won(store, Delete(A, second))
    promise(await seen(store, A) is None, "a deleted document is read")
    await lost(store, Delete(A, second))


async def a_version_never_repeats_after_a_delete(store: StateStore) -> None:
    seen: list[str] = []
    for _ in range(4):
        version = await created(store)
        promise(version not in seen, f"version {version} came back after a delete; a slow writer would win with it")
        for stale in seen:
            await lost(store, Replace(A, b"slow", stale))
        seen.append(version)
        await won(store, Delete(A, version))


async def a_batch_that_wins_is_applied_whole(store: StateStore) -> None:
    a, b = await created(store, A), await created(store, B)
    await won(store, Replace(A, b"2", a), Delete(B, b), Create(C, b"3"))
    found = [await seen(store, key) for key in (A, B, C)]
    bodies = [None if document is None else document.body for document in found]
    promise(bodies == [b"2", None, b"3"], f"a batch that won left {bodies}")


async def a_batch_that_loses_leaves_nothing(store: StateStore) -> None:
    a = await created(store, A)
    others: tuple[Write, ...] = (Replace(A, b"2", a), Create(C, b"3"))
    for position, operation in enumerate(others):
        operations: list[Write] = [Create(B, b"new"), operation]
        operations.insert(1 + position, Replace(DocumentKey(PARTITION, "nothing"), b"x", a))
        await lost(store, *operations, at=1 + position)
        promise(await seen(store, B) is None and await seen(store, C) is None, "half of a batch that lost was applied")
        promise(await seen(store, A) == Document(A, b"1", a), "half of a batch that lost was applied")


async def of_writers_at_one_version_exactly_one_wins(store: StateStore) -> None:
    version = await created(store)
    outcomes = await asyncio.gather(*(store.write([Replace(A, b"%d" % n, version)]) for n in range(8)))
    winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Won)]
    promise(len(winners) == 1, f"{len(winners)} writers won at one version")
    found = await seen(store, A)
    promise(found is not None and found.body == b"%d" % winners[0], "the document is not the winner's")


async def partitions_are_apart(store: StateStore) -> None:
    other = DocumentKey("contract-other", "a")
    await created(store, A, b"1")
    await created(store, other, b"2")
    found = await seen(store, A)
    promise(found is not None and found.body == b"1", "one id in two partitions is one document")
    promise([d.key async for d in store.scan(PARTITION)] == [A], "a scan left its partition")


async def a_scan_gives_a_partition_by_id_and_prefix(store: StateStore) -> None:
    for id in ("b2", "a", "b1", "c"):
        await created(store, DocumentKey(PARTITION, id), id.encode())
    ids = [document.key.id async for document in store.scan(PARTITION)]
    promise(ids == ["a", "b1", "b2", "c"], f"a scan gave {ids}")
    found = [document async for document in store.scan(PARTITION, prefix="b")]
    promise([d.key.id for d in found] == ["b1", "b2"], f"a scan of prefix 'b' gave {[d.key.id for d in found]}")
    promise(await seen(store, found[0].key) == found[0], "a scan gives another document than a read")


async def what_is_over_a_limit_is_refused_whole(store: StateStore) -> None:
    known = store.capabilities
    many: list[Write] = [Create(DocumentKey(PARTITION, str(n)), b"1") for n in range(known.batch_count_max + 1)]
    for operations in (many, [Create(A, b"x" * (known.item_bytes_max + 1))]):
        try:
            await store.write(operations)
        except Refused:
            promise(await seen(store, operations[0].key) is None, "a refused write was applied")
        else:
            promise(False, f"{len(operations)} operations over the stated limits were taken")


STATE_STORE: tuple[Clause[StateStore], ...] = (
    a_document_is_read_as_it_was_written,
    what_was_never_written_is_none,
    a_create_loses_where_a_document_is,
    a_replace_wins_at_the_version_that_was_read,
    a_write_of_the_same_bytes_makes_a_new_version,
    a_replace_loses_at_a_stale_version,
    a_replace_loses_where_nothing_is,
    a_delete_wins_at_its_version_and_loses_at_any_other,
    a_version_never_repeats_after_a_delete,
    a_batch_that_wins_is_applied_whole,
    a_batch_that_loses_leaves_nothing,
    of_writers_at_one_version_exactly_one_wins,
    partitions_are_apart,
    a_scan_gives_a_partition_by_id_and_prefix,
    what_is_over_a_limit_is_refused_whole,
)
"""The clauses of a state store's contract, each a promise by its name."""


def store_clauses_of_time(wait: Wait) -> tuple[Clause[StateStore], ...]:
    """The clauses for which time has to pass."""

    async def a_document_vanishes_its_time_to_live_after_the_last_write(store: StateStore) -> None:
        version = await created(store, ttl_s=4)
        await wait(2)
        await won(store, Replace(A, b"2", version, ttl_s=4))
        await wait(3)
        promise(await seen(store, A) is not None, "a document vanished before its time to live was over")
        await wait(3)
        promise(await seen(store, A) is None, "a document outlived its time to live")
        promise([d async for d in store.scan(PARTITION)] == [], "a scan gives a document that outlived its time")
        promise(await created(store) != version, "a version came back after a document vanished")

    async def a_write_without_a_time_to_live_ends_it(store: StateStore) -> None:
        await won(store, Replace(A, b"2", await created(store, ttl_s=2)))
        await wait(4)
        promise(await seen(store, A) is not None, "a document vanished though its last write gave it no time to live")

    return a_document_vanishes_its_time_to_live_after_the_last_write, a_write_without_a_time_to_live_ends_it


Error = type[Exception]
START = Position(0)


async def check_ordered_log(
    make_store: Make[StateStore], *, clauses: Sequence[Clause[StateStore]] | None = None
) -> None:
    """Check that ordered logs keep their promises on a store; `make_store` gives an empty one, of any scope.

    Raises:
        AssertionError: a promise is broken.
    """
    await check(make_store, [_kept(clause) for clause in (ORDERED_LOG if clauses is None else clauses)])


def _kept(clause: Clause[StateStore]) -> Clause[StateStore]:
    """The clause, which an error breaks that a log raises and the clause does not expect."""

    @wraps(clause)
    async def kept(store: StateStore) -> None:
        try:
            await clause(store)
        except OutboxError as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

    return kept


def process(store: StateStore, kind: Any = int, **options: Any) -> OrderedLog[Any]:
    """The log as another process has it, which has just begun."""
    return OrderedLog("contract", store, type=kind, **{"poll_s_max": 0.05, **options})


async def filled(store: StateStore, count: int) -> OrderedLog[Any]:
    """A log of the numbers from 0, each in a cell of its own."""
    log = process(store)
    for n in range(count):
        await appended(log, n, f"{n}")
    return log


async def appended(log: OrderedLog[Any], value: Any, id: str, since: Position | None = None) -> Position:
    """Append a value; where the outcome is not known, again."""
    for _ in range(20):
        try:
            return await log.append(value, id=id, since=since)
        except OutcomeUnknown:
            continue
    raise AssertionError(f"the outcome of append {id} stays unknown")


async def values(log: OrderedLog[Any], *given: Any, **options: Any) -> list[Any]:
    """The values of a log, to its end."""
    return [entry.value async for entry in log.read(*given, **options)]


async def raised(error: Error, call: Callable[[], Awaitable[Any]], why: str) -> Exception:
    """The error that a call has to raise."""
    try:
        found = await call()
    except error as caught:
        return caught
    raise AssertionError(f"{why}: {found!r} came back, {error.__name__} should have")


async def what_is_appended_is_read_in_order(store: StateStore) -> None:
    log = process(store, str)
    given = ["a", "", "é\u2028", "1.0"]
    positions = [await appended(log, value, f"id {n}") for n, value in enumerate(given)]
    promise(positions == [Position(n) for n in range(4)], f"appends went to {positions}")
    found = [entry async for entry in process(store, str).read()]
    promise([entry.value for entry in found] == given, f"appended {given}, read {found}")
    promise([entry.id for entry in found] == [f"id {n}" for n in range(4)], f"ids came back as {found}")


async def values_come_back_unchanged(store: StateStore) -> None:
    log = process(store, float)
    given = [0.0, 1.0, -0.1, 1e-300, 9007199254740993.0, 1e22]
    await log.extend(given, id="a")
    found = await values(process(store, float))
    promise(list(map(repr, found)) == list(map(repr, given)), f"appended {given}, read {found}")
    again = await process(store, float).extend(given, id="a", since=START)
    promise(again == START, f"the same entries under their id went to {again}")


async def an_extend_is_one_cell_with_nothing_between(store: StateStore) -> None:
    await asyncio.gather(*(process(store).extend([n] * 3, id=f"{n}", since=START) for n in range(4)))
    found = await values(process(store))
    groups = [found[at : at + 3] for at in range(0, len(found), 3)]
    promise(sorted(groups) == [[n] * 3 for n in range(4)], f"extends of three lie as {found}")


async def an_id_appended_again_keeps_its_position(store: StateStore) -> None:
    log = await filled(store, 3)
    for other in (log, process(store)):
        at = await appended(other, 1, "1", START)
        promise(at == Position(1), f"an id at 1.0 was appended again at {at}")
    promise(await values(log) == [0, 1, 2], f"an id appended again made {await values(log)}")


async def an_id_with_other_entries_is_refused(store: StateStore) -> None:
    log = await filled(store, 2)
    await raised(Refused, lambda: log.append(7, id="0"), "an id was used for other entries")
    await raised(Refused, lambda: process(store).append(7, id="1", since=START), "an id was used for other entries")
    promise(await values(log) == [0, 1], f"a refused append made {await values(log)}")


async def appends_at_once_are_each_there_once(store: StateStore) -> None:
    logs = [process(store) for _ in range(4)]
    found = await asyncio.gather(*(appended(log, n, f"{n}", START) for n in range(8) for log in logs))
    promise(len(set(found)) == 8, f"8 ids lie at {sorted(set(found))}")
    promise(sorted(await values(process(store))) == list(range(8)), f"8 appends made {await values(process(store))}")


async def the_end_is_behind_the_last_entry(store: StateStore) -> None:
    log = process(store)
    for count in range(4):
        found = await process(store).end()
        promise(found == Position(count), f"after {count} cells the end is {found}")
        await appended(log, count, f"{count}")


async def a_read_keeps_to_since_and_until(store: StateStore) -> None:
    log = process(store)
    await log.extend([0, 1, 2], id="a")
    await log.extend([3, 4], id="b")
    promise(await values(log, Position(0, 2)) == [2, 3, 4], "a read did not begin at since")
    promise(await values(log, Position(0, 1), Position(1, 1)) == [1, 2, 3], "a read did not end before until")


async def a_waiting_reader_gets_what_comes(store: StateStore) -> None:
    waiting = asyncio.ensure_future(anext(process(store).read(wait=True)))
    await asyncio.sleep(0.01)
    await appended(process(store), 5, "a")
    async with asyncio.timeout(10):
        promise((await waiting).value == 5, "a waiting reader got another value")


async def a_trim_stops_at_whoever_is_registered(store: StateStore) -> None:
    log = await filled(store, 6)
    await log.register("slow", Position(2))
    await process(store).register("fast", Position(5))
    promise(await process(store).trim() == 2, "a trim did not take what nobody needs, and that alone")
    promise(await values(process(store)) == [2, 3, 4, 5], "a trim took what a reader needs")
    await process(store).register("slow", Position(4))
    await process(store).register("slow", Position(3))
    promise(await log.trim() == 2, "a registration moved back, or did not move on")
    await log.unregister("slow")
    promise((await log.trim(), await log.first()) == (1, Position(5)), "a reader that left is waited for")


async def a_read_below_the_floor_is_refused_with_the_floor(store: StateStore) -> None:
    log = await filled(store, 3)
    await log.register("audit", Position(2))
    await log.trim()
    error = await raised(Trimmed, lambda: values(process(store), START), "what was trimmed was read")
    promise(getattr(error, "floor", None) == 2, f"the floor is 2, the error says {error}")
    await raised(Trimmed, lambda: process(store).register("late", START), "a reader was registered below the floor")


async def a_trim_leaves_what_no_reader_has_registered_for(store: StateStore) -> None:
    log = await filled(store, 3)
    promise(await process(store).trim() == 0, "a trim took what the first reader has yet to read")
    promise(await values(process(store)) == [0, 1, 2], "a trim took what the first reader has yet to read")
    promise(await process(store).trim(min_age=timedelta(0)) == 3, "an age of nothing is an age, and was not taken")
    promise(await values(log) == [], f"what a trim by age took is read as {await values(log)}")


async def what_was_trimmed_is_not_appended_again(store: StateStore) -> None:
    log = await filled(store, 3)
    await log.trim(min_age=timedelta(0))
    promise(await appended(log, 1, "1") == Position(1), "an id that was trimmed was appended again")
    await raised(Trimmed, lambda: process(store).append(1, id="1", since=START), "an append looked below the floor")
    promise(await appended(process(store), 3, "3") == Position(3), "an append did not go behind what was trimmed")


async def a_trim_by_age_leaves_what_is_younger(store: StateStore) -> None:
    log = await filled(store, 2)
    promise(await log.trim(min_age=timedelta(days=1)) == 0, "what was appended just now is a day old")
    promise(await values(log) == [0, 1], "a trim by age took what is younger")


async def a_log_of_another_type_is_refused(store: StateStore) -> None:
    await filled(store, 1)
    other = process(store, str)
    await raised(NotRegistrable, lambda: other.append("x", id="x"), "a text was appended to a log of numbers")
    await raised(NotRegistrable, lambda: values(other), "a log of numbers was read as texts")


async def what_is_no_cell_is_named_and_never_skipped(store: StateStore) -> None:
    log = await filled(store, 1)
    await store.write([Create(DocumentKey("log/contract/0.0/0", "0000000001"), b'{"a":1}')])
    for call in (lambda: values(process(store)), lambda: appended(log, 2, "2")):
        error = await raised(CorruptRecord, call, "what is no cell was passed")
        promise("log/contract/0.0/0/0000000001" in str(error), f"the document is not named: {error}")


async def shards_have_each_entry_once(store: StateStore) -> None:
    log = process(store, writers=2, readers=3, partition=lambda value: value + 1)
    for n in range(9):
        await log.writer(n % 2).append(n, id=f"{n}")
    shares = [[entry.value async for entry in log.reader(n).read()] for n in range(3)]
    promise(
        sorted(value for share in shares for value in share) == list(range(9)), f"9 entries were shared out as {shares}"
    )
    wrong = [value for n, share in enumerate(shares) for value in share if log.reader_of(value) != n]
    promise(not wrong, f"{wrong} are another reader's")


ORDERED_LOG: tuple[Clause[StateStore], ...] = (
    what_is_appended_is_read_in_order,
    values_come_back_unchanged,
    an_extend_is_one_cell_with_nothing_between,
    an_id_appended_again_keeps_its_position,
    an_id_with_other_entries_is_refused,
    appends_at_once_are_each_there_once,
    the_end_is_behind_the_last_entry,
    a_read_keeps_to_since_and_until,
    a_waiting_reader_gets_what_comes,
    a_trim_stops_at_whoever_is_registered,
    a_read_below_the_floor_is_refused_with_the_floor,
    a_trim_leaves_what_no_reader_has_registered_for,
    what_was_trimmed_is_not_appended_again,
    a_trim_by_age_leaves_what_is_younger,
    a_log_of_another_type_is_refused,
    what_is_no_cell_is_named_and_never_skipped,
    shards_have_each_entry_once,
)
"""The clauses of an ordered log's contract, each a promise by its name."""
