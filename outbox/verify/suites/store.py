"""The contract of a `StateStore`: conditional writes, batches, versions, time to live, scan."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from outbox.errors import Refused
from outbox.ports import Create, Delete, Document, DocumentKey, Lost, Replace, StateStore, Won, Write
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
