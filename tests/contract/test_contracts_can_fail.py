"""A contract that cannot fail promises nothing: each fault planted here is caught by the clause that names it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
import pytest

from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.engine.log.memory_disk import Crash
from outbox.ports import (
    BlobStore,
    Create,
    Delete,
    Document,
    Lost,
    Output,
    Postponement,
    Replace,
    Settle,
    StateStore,
    Won,
)
from outbox.verify import contracts
from outbox.verify.contracts import BusFixture, JournalFixture
from outbox.verify.suites import blobs, bus, journal, store
from tests.contract import benches

Call = Callable[..., Awaitable[Any]]
Fault = Callable[[Call], Call]


class Planted:
    """An adapter of which one method goes wrong."""

    def __init__(self, adapter: Any, method: str, fault: Fault) -> None:
        self._adapter = adapter
        setattr(self, method, fault(getattr(adapter, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def changing(change: Callable[..., Any]) -> Fault:
    """Calls with other arguments."""
    return lambda call: lambda *args, **options: call(*change(*args), **options)


def answering(change: Callable[[Any], Any]) -> Fault:
    """Gives another answer."""

    def fault(call: Call) -> Call:
        async def changed(*args: Any, **options: Any) -> Any:
            return change(await call(*args, **options))

        return changed

    return fault


def doing_nothing(answer: Any) -> Fault:
    """Says that it did what it did not."""

    def fault(call: Call) -> Call:
        async def nothing(*args: Any, **options: Any) -> Any:
            return answer(*args) if callable(answer) else answer

        return nothing

    return fault


def one_by_one(call: Call) -> Call:
    """A batch that is not one."""

    async def write(operations: Sequence[Any]) -> Won | Lost:
        versions: tuple[str, ...] = ()
        for index, operation in enumerate(operations):
            outcome = await call([operation])
            if isinstance(outcome, Lost):
                return Lost(index, outcome.current)
            versions += outcome.versions
        return Won(versions)

    return write


def last_writer_wins(call: Call) -> Call:
    """Conditions that nobody checks."""

    async def write(operations: Sequence[Any]) -> Any:
        outcome = await call(operations)
        while isinstance(outcome, Lost) and outcome.current is not None:
            current = outcome.current.version
            operations = [op if isinstance(op, Create) else replace(op, if_match=current) for op in operations]
            if isinstance(operations[outcome.operation], Create):
                return outcome
            outcome = await call(operations)
        return outcome

    return write


def deleting_any(call: Call) -> Call:
    """Deletes whatever version is there."""

    async def write(operations: Sequence[Any]) -> Any:
        outcome = await call(operations)
        if isinstance(operations[0], Delete) and isinstance(outcome, Lost) and outcome.current is not None:
            return await call([Delete(operations[0].key, outcome.current.version)])
        return outcome

    return write


def keeping_what_lost(call: Call) -> Call:
    """Says that a write has lost, and does it."""

    async def write(operations: Sequence[Any]) -> Any:
        outcome = await call(operations)
        if isinstance(operations[0], Replace) and isinstance(outcome, Lost) and outcome.current is not None:
            await call([replace(operations[0], if_match=outcome.current.version)])
        return outcome

    return write


def in_two_batches(call: Call) -> Call:
    """Takes more at once than a batch holds."""

    async def write(operations: Sequence[Any]) -> Any:
        half = len(operations) // 2 if len(operations) > 10 else 0
        first = (await call(operations[:half])).versions if half else ()
        outcome = await call(operations[half:])
        return Won((*first, *outcome.versions)) if isinstance(outcome, Won) else outcome

    return write


def scanning(change: Callable[..., Any]) -> Any:
    """Scans of other partitions and prefixes, or of documents that are changed."""

    def fault(call: Any) -> Any:
        async def scan(partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
            for other, beginning, changed in change(partition, prefix):
                async for document in call(other, prefix=beginning):
                    yield changed(document)

        return scan

    return fault


def as_is(document: Document) -> Document:
    return document


def with_ttl(change: Callable[[float | None], float | None]) -> Fault:
    """Replaces with another time to live."""
    return changing(lambda ops: ([replace(o, ttl_s=change(o.ttl_s)) if type(o) is Replace else o for o in ops],))


def cut_to(size_bytes: int) -> Fault:
    """A store that cuts the body of a document to so many bytes, in place of refusing it."""
    return changing(lambda ops: ([replace(o, body=o.body[:size_bytes]) if hasattr(o, "body") else o for o in ops],))


STORE_FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a body is cut": (
        "read",
        answering(lambda d: d and Document(d.key, d.body[:-1], d.version)),
        "read_as_it_was_written",
    ),
    "a batch is not atomic": ("write", one_by_one, "a_batch_that_loses_leaves_nothing"),
    "if-match is ignored": ("write", last_writer_wins, "a_write_of_the_same_bytes|a_replace_loses_at_a_stale_version"),
    "a loss hides what is there": (
        "write",
        answering(lambda o: Lost(o.operation) if isinstance(o, Lost) else o),
        "a_create_loses_where_a_document_is",
    ),
    "a loss names another operation": (
        "write",
        answering(lambda o: Lost(0, o.current) if isinstance(o, Lost) else o),
        "a_batch_that_loses_leaves_nothing",
    ),
    "versions are guesses": ("write", answering(lambda o: Won(("1",)) if isinstance(o, Won) else o), "read_as_it"),
    "writes go nowhere": ("write", doing_nothing(Won(("1",))), "read_as_it_was_written"),
    "time to live is forgotten": (
        "write",
        changing(lambda ops: ([op if not hasattr(op, "ttl_s") else replace(op, ttl_s=None) for op in ops],)),
        "a_document_vanishes",
    ),
    "time to live is halved": ("write", with_ttl(lambda s: s and s / 2), "vanished before its time to live was over"),
    "time to live never ends": ("write", with_ttl(lambda s: s or 2), "a_write_without_a_time_to_live_ends_it"),
    "a delete ignores its version": ("write", deleting_any, "a_delete_wins_at_its_version"),
    "a write that lost is kept": ("write", keeping_what_lost, "a write that lost changed the document"),
    "a version is empty": ("write", answering(lambda o: (isinstance(o, Won) and Won(("",))) or o), "with version ''"),
    "versions are left out": (
        "write",
        answering(lambda o: Won(o.versions[:2]) if isinstance(o, Won) else o),
        "3 operations won with versions",
    ),
    "a large batch is taken": ("write", in_two_batches, "1 operations over the stated limits"),
    "a large document is taken": ("write", cut_to(1_000), "1 operations over the stated limits were taken"),
    "a scan leaves its partition": (
        "scan",
        scanning(lambda name, prefix: [(each, prefix, as_is) for each in (name, "contract-other")]),
        "a scan left its partition",
    ),
    "a scan ignores its prefix": ("scan", scanning(lambda name, _: [(name, "", as_is)]), "a scan of prefix 'b' gave"),
    "a scan tells no version": (
        "scan",
        scanning(lambda name, prefix: [(name, prefix, lambda d: replace(d, version="?"))]),
        "a scan gives another document than a read",
    ),
}


def hiding(prefix: str) -> Fault:
    """Reads that do not see some documents."""

    def fault(call: Call) -> Call:
        async def read(key: Any, **options: Any) -> Any:
            return None if key.id.startswith(prefix) else await call(key, **options)

        return read

    return fault


def overwriting(call: Call) -> Call:
    """Creates that replace what is there."""

    async def write(operations: Sequence[Any]) -> Any:
        outcome = await call(operations)
        if isinstance(outcome, Lost) and isinstance(operations[0], Create) and outcome.current is not None:
            return await call([Replace(operations[0].key, operations[0].body, outcome.current.version)])
        return outcome

    return write


LOG_FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a create replaces": ("write", overwriting, "an_extend_is_one_cell"),
    "bodies are cut": ("read", answering(lambda d: d and replace(d, body=d.body[:-1])), "what_is_appended_is_read"),
    "appends go nowhere": ("write", doing_nothing(Won(("1",))), "what_is_appended_is_read_in_order"),
    "floors are not kept": ("read", hiding("floor"), "Refused: the floor of"),
    "tombstones are not kept": (
        "write",
        changing(lambda ops: ([replace(op, body=b"{}") if op.tag.what == "bury" else op for op in ops],)),
        "a_trim_stops|a_read_below_the_floor",
    ),
    "readers are there that never registered": (
        "read",
        answering(lambda d: d and replace(d, body=d.body.replace(b'{"type"', b'{"readers":{"x":9},"type"'))),
        "a_trim_leaves_what_no_reader_has_registered_for",
    ),
    "numbers are rounded": (
        "read",
        answering(lambda d: d and replace(d, body=d.body.replace(b"1e22", b"1.1e22"))),
        "values_come_back_unchanged",
    ),
}


OVER_STORES: dict[str, tuple[dict[str, tuple[str, Fault, str]], Any]] = {
    "a store": (STORE_FAULTS, contracts.check_state_store),
    "an ordered log": (LOG_FAULTS, lambda make, wait: contracts.check_ordered_log(make)),
}


@pytest.mark.parametrize(("of", "fault"), [(of, fault) for of, (faults, _) in OVER_STORES.items() for fault in faults])
async def test_a_fault_planted_in_a_store_is_caught(of: str, fault: str, tmp_path: Path) -> None:
    faults, check = OVER_STORES[of]
    method, plant, clause = faults[fault]
    bench = benches.Bench("memory", tmp_path)

    @asynccontextmanager
    async def make() -> AsyncIterator[StateStore]:
        bench.engine = bench.open()
        yield Planted(EngineStore(bench.engine.core, bench.engine.documents), method, plant)

    with pytest.raises(AssertionError, match=clause):
        await check(make, wait=bench.wait)


def at_once(outputs: Sequence[Output]) -> Any:
    return ([Output(output.destination, 0, output.message) for output in outputs],)


def without(field: str, empty: Any) -> Fault:
    def less(output: Output) -> Output:
        return msgspec.structs.replace(output, message=msgspec.structs.replace(output.message, **{field: empty}))

    def forget(outputs: Sequence[Output]) -> Any:
        return ([less(output) for output in outputs],)

    return changing(forget)


def instead(how: str, other: Literal["complete", "abandon", "release"]) -> Fault:
    """Settles in another way."""
    return changing(lambda delivery, settle: (delivery, Settle(other) if settle.how == how else settle))


BUS_FAULTS: dict[str, tuple[str, Fault, str]] = {
    "the hop count is lost": ("send", without("hops", 0), "hops was sent as 3"),
    "the sender's properties are lost": ("send", without("properties", None), "properties was sent"),
    "due times are ignored": ("send", changing(at_once), "a_scheduled_message_is_not_seen"),
    "a completion is forgotten": ("settle", doing_nothing(None), "a_completed_message_is_gone"),
    "an abandon is a release": ("settle", instead("abandon", "release"), "an_abandoned_message_comes_back_counted"),
    "a release is an abandon": ("settle", instead("release", "abandon"), "a_released_message_comes_back_uncounted"),
    "a dead letter is completed": ("settle", instead("dead-letter", "complete"), "dead-lettered 'a' as 'unfit', found"),
    "a deferral is a release": ("settle", instead("defer", "release"), "a_deferred_message_is_set_aside"),
    "a renewal is only said": (
        "renew",
        doing_nothing(lambda d: d.locked_until_ms + 60_000),
        "a_renewed|a_lock_that_runs",
    ),
    "a renewal tells no new end": ("renew", answering(lambda _: 0), "renewed from"),
    "what is scheduled never comes": (
        "send",
        changing(lambda outputs: ([msgspec.structs.replace(o, due_ms=2 * o.due_ms) for o in outputs],)),
        "a_scheduled_message_is_not_seen",
    ),
    "more comes than was asked for": (
        "receive",
        lambda call: lambda queue, count_max, wait_s: call(queue, count_max=99, wait_s=wait_s),
        "asked for at most 3",
    ),
    "a batch is turned round": ("send", changing(lambda outputs: (list(outputs)[::-1],)), "overtook"),
}


@pytest.mark.parametrize("fault", BUS_FAULTS)
async def test_a_fault_planted_in_a_bus_is_caught(fault: str, tmp_path: Path) -> None:
    method, plant, said = BUS_FAULTS[fault]

    @asynccontextmanager
    async def make() -> AsyncIterator[BusFixture]:
        async with benches.bus("memory", tmp_path) as fixture:
            yield replace(fixture, bus=Planted(fixture.bus, method, plant))

    with pytest.raises(AssertionError, match=said):
        await contracts.check_message_bus(make)


def overwriting_others(call: Call) -> Call:
    """Says that a blob is there, and changes it."""

    async def write(name: str, data: bytes) -> bool:
        is_new: bool = await call(name, data)
        if not is_new:
            blobs: Any = call.__self__  # type: ignore[attr-defined]  # the store behind the method
            await blobs.delete(name)
            await call(name, data)
        return is_new

    return write


def taking_names_for_ever(call: Call) -> Call:
    """Writes each name once, whatever is deleted."""
    names = set[str]()

    async def write(name: str, data: bytes) -> Any:
        is_new = name not in names
        names.add(name)
        return is_new and await call(name, data)

    return write


BLOB_FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a second write overwrites": (
        "write",
        lambda call: lambda name, data: (call.__self__._blobs.pop(name, None) and call(name, data)) or call(name, data),  # type: ignore[attr-defined]  # the store behind the method
        "a_blob_is_written_once",
    ),
    "an existing blob is success": ("write", answering(lambda _: True), "a_blob_is_written_once"),
    "names lose their folder": ("write", changing(lambda n, d: (n.rpartition("/")[2], d)), "read_as_it_was|names_are"),
    "names lose their case": (
        "write",
        lambda call: lambda name, data: call(name.lower() if len(name) == 1 else name, data),
        "names_are_apart",
    ),
    "the reader's limit is ignored": (
        "read",
        lambda call: lambda name, bytes_max: call(name, bytes_max=1 << 30),
        "a_blob_over_the_readers_limit",
    ),
    "other bytes are written over it": ("write", overwriting_others, "a blob was changed by a second write"),
    "an empty blob is nothing": (
        "write",
        lambda call: lambda name, data: call(name if data else "?", data),
        "'empty' is not read as it was written",
    ),
    "the reader's limit is too small": (
        "read",
        lambda call: lambda name, bytes_max: call("?" if bytes_max == 5 else name, bytes_max=bytes_max),
        "a blob of just the limit was not read",
    ),
    "a name is taken for ever": ("write", taking_names_for_ever, "the name of a deleted blob is taken"),
    "a deletion is forgotten": ("delete", doing_nothing(None), "a_deleted_blob_is_gone"),
}


@pytest.mark.parametrize("fault", BLOB_FAULTS)
async def test_a_fault_planted_in_a_blob_store_is_caught(fault: str) -> None:
    method, plant, clause = BLOB_FAULTS[fault]

    @asynccontextmanager
    async def make() -> AsyncIterator[BlobStore]:
        yield Planted(MemoryBlobStore(), method, plant)

    with pytest.raises(AssertionError, match=clause):
        await contracts.check_blob_store(make)


def dropping(**parts: Any) -> Fault:
    """A commit that leaves a part of itself out."""
    return changing(lambda commit: (msgspec.structs.replace(commit, **parts),))


def at_once_too(postponement: Postponement) -> Postponement:
    return msgspec.structs.replace(postponement, due_ms=0)


JOURNAL_FAULTS: dict[str, tuple[str, Fault, str]] = {
    "outputs are lost": ("commit", dropping(outputs=[]), "a_commit_takes_effect_whole"),
    "states are lost": ("commit", dropping(states={}), "a_commit_takes_effect_whole"),
    "markers are lost": ("commit", dropping(applied={}), "a_commit_takes_effect_whole"),
    "versions are not checked": ("commit", dropping(if_versions={}), "a_state_that_moved_commits_nothing"),
    "inputs are not consumed": ("commit", dropping(consumed=[]), "a_lock|a_commit_takes_effect"),
    "a commit is only said": ("commit", doing_nothing(None), "a_commit_takes_effect_whole"),
    "a postponement is at once": (
        "commit",
        changing(lambda c: (msgspec.structs.replace(c, postponed=[at_once_too(p) for p in c.postponed]),)),
        "a_postponed_message_rests",
    ),
    "any resubmission replaces": (
        "commit",
        changing(lambda c: (msgspec.structs.replace(c, replacing=dict.fromkeys(c.replacing, 99)),)),
        "a_refusal_is_replaced_by_a_higher_attempt_only",
    ),
    "a release is forgotten": ("release", doing_nothing(None), "a_released_message_comes_back|a_lock_that_is_not_ours"),
    "a renewal is only said": ("renew", doing_nothing(1), "a_renewal_extends"),
    "a claim gives everything": (
        "claim",
        lambda call: lambda queues, count_max, wait_s: call(queues, count_max=99, wait_s=0),
        "no_more",
    ),
}


@pytest.mark.parametrize("fault", JOURNAL_FAULTS)
async def test_a_fault_planted_in_a_journal_is_caught(fault: str, tmp_path: Path) -> None:
    method, plant, clause = JOURNAL_FAULTS[fault]

    @asynccontextmanager
    async def make() -> AsyncIterator[JournalFixture]:
        async with benches.journal("disk in memory", tmp_path) as at:
            yield replace(at, ports=replace(at.ports, journal=Planted(at.ports.journal, method, plant)))

    with pytest.raises(AssertionError, match=clause):
        await contracts.check_journal(make)


async def test_a_claim_that_is_not_on_record_is_caught(tmp_path: Path) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[JournalFixture]:
        bench = benches.Bench("disk in memory", tmp_path)
        bench.crash = Crash.POWER  # a claim is written, not synced: as if it had not been
        yield JournalFixture(bench.engine.ports(), bench.wait, bench.killed)

    with pytest.raises(AssertionError, match="a_claim_is_on_record"):
        await contracts.check_journal(make)


def test_every_clause_is_in_its_suite() -> None:
    suites: dict[ModuleType, Sequence[Any]] = {
        store: (*contracts.STATE_STORE, *contracts.ORDERED_LOG),
        bus: contracts.MESSAGE_BUS,
        blobs: contracts.BLOB_STORE,
        journal: contracts.JOURNAL,
    }
    for module, suite in suites.items():
        functions = [each for each in vars(module).values() if inspect.iscoroutinefunction(each)]
        own = [each for each in functions if each.__module__ == module.__name__]
        written = [each for each in own if len(inspect.signature(each).parameters) == 1]
        assert written == list(suite) and len(set(map(contracts.name_of, written))) == len(written)
