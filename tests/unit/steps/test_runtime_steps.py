"""Single steps of the runtime, each asked by itself: what they remember and for how long, and their limits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox import App, Client, Retry, stored
from outbox.deliveries import STACK_HEAD, split_stack
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.engine.backend.store_scopes import ItemStore
from outbox.engine.engine import Engine
from outbox.errors import (
    REASON_LENGTH_MAX,
    CorruptRecord,
    OutcomeUnknown,
    PoisonMessage,
    Refused,
    Throttled,
    TooLarge,
    UnknownDestination,
)
from outbox.message import PROPERTIES_BYTES_MAX, Message
from outbox.ports import (
    Commit,
    Conflict,
    Create,
    DeadLetterEntry,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Lost,
    NoBlobs,
    Output,
    Refusal,
    Settle,
    StateDocument,
    StorePorts,
    Won,
    Write,
)
from outbox.resubmission import Replaced
from outbox.runtime import shell
from outbox.runtime.commit import marks, store_transaction
from outbox.runtime.commit import recovery as recoveries
from outbox.runtime.commit.dispatch_ledger import DispatchLedger
from outbox.runtime.commit.engine_transaction import EngineTransaction
from outbox.runtime.commit.handler_threads import HandlerThreads, Job
from outbox.runtime.commit.marker_replies import as_record
from outbox.runtime.commit.marks import Lingering, Marks
from outbox.runtime.commit.overflow import Overflows, announced, room_for
from outbox.runtime.commit.recovery import OrphanedStaged, Recovery
from outbox.runtime.commit.state_cache import CachedState, Loaded, StateCache
from outbox.runtime.commit.store_transaction import StoreTransaction, never_durable
from outbox.runtime.commit.sweeper import Swept, sweep
from outbox.runtime.counts import Counts, Depth
from outbox.runtime.delivery import blocked_sessions, retrying, stored_dead_letters, waiting
from outbox.runtime.delivery import settlement as settlements
from outbox.runtime.delivery.admission import Admission, admit, edit_of
from outbox.runtime.delivery.blocked_sessions import BlockedSession, BlockedSessions
from outbox.runtime.delivery.claim_check import check_in, checked_outputs, to_claim
from outbox.runtime.delivery.intake import BusIntake, Turns
from outbox.runtime.delivery.retrying import Backoff, NothingCommitted, RetryBackoff, RetryError, confirmed
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.delivery.waiting import WaitingRecords, waiting_commit
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.failures.failure_counts import FailureCounts
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.gather import side_by_side
from outbox.runtime.http.attempts import IdempotencyKeys
from outbox.runtime.http.requests import DIGIT_COUNT_MAX, read_body, write_body
from outbox.runtime.http.responses import RequestLog
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.start import plan as plans
from outbox.runtime.start.plan import CompiledApp, KeyIdCache, compile_app
from outbox.runtime.store_scope import StoreParts, StoreScope
from outbox.runtime.work import Attempt, FanOut, Later, Work, holds_lane, outcome_of_all
from outbox.stored import LedgerItem, Record, StateItem, ledger_key, record_key, staged_key
from outbox.testing import START_S, VirtualClock
from tests.unit.steps.making import (
    HANDLER,
    INBOX,
    NOW_MS,
    PLAN,
    Add,
    Sum,
    adding,
    at_once,
    delivery,
    engine_store,
    work,
)
from tests.unit.waiting import until


@dataclass
class Both:
    key: str
    other: str


# Admission


def test_the_ids_of_so_many_keys_are_cached_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "KEY_COUNT_MAX", 2)
    cache = KeyIdCache(HANDLER)
    for key in ("a", "b", "c"):
        assert cache.make(key).state_id == f"Sum:{key}" and len(cache) <= 2


def test_a_message_is_not_ahead_of_time_while_its_broker_says_that_it_has_arrived() -> None:
    """The broker delivers a scheduled message by its own clock, which may be ahead of the worker's."""
    later_ms = NOW_MS + 3_600_000
    there = msgspec.structs.replace(delivery(created_ms=later_ms), enqueued_ms=later_ms)
    ahead = msgspec.structs.replace(there, enqueued_ms=NOW_MS)
    found = admit(PLAN, [there, ahead], NOW_MS)
    assert found[0].refusal is None
    assert isinstance(found[1].refusal, PoisonMessage) and found[1].refusal.reason == "from-the-future"


async def test_the_payload_of_a_claim_check_is_what_its_blob_holds() -> None:
    blobs = MemoryBlobStore()
    admission = Admission(PLAN, blobs, Backoff(at_once))
    digests = []
    for body in (b'{"key":"a"}', b'{"key":"b"}'):
        name, data = to_claim(delivery(body).message)
        await blobs.write(name, data)
        claimed = msgspec.structs.replace(
            delivery(b"", claim=name), from_outside=True, fingerprint=sha256(b"of no body").digest()
        )
        (admitted,) = await admission.admit([claimed], NOW_MS)
        digests.append(admitted.fingerprint)
    assert digests[0] != digests[1]


async def test_a_body_that_cannot_be_fetched_is_no_failure_of_its_message() -> None:
    class Away:
        async def read(self, name: str, *, bytes_max: int) -> bytes:
            raise OutcomeUnknown("no answer")

    blobs: Any = Away()
    claimed = msgspec.structs.replace(delivery(b"", claim=to_claim(delivery().message)[0]), failures=3)
    (found,) = await Admission(PLAN, blobs, Backoff(at_once, 2)).admit([claimed], NOW_MS)
    assert isinstance(found.refusal, Later) and found.refusal.failures == 3 and "no answer" in found.refusal.text


@pytest.mark.parametrize(
    ("fields", "reason", "schema", "why"),
    [
        ({}, "too-old", 1, "too old to run"),
        ({}, "undecodable", 1, "without a record that an edit could replace"),
        ({}, "no", 2, "cannot be edited here: schema 2"),
        ({"claim": to_claim(delivery().message)[0], "body": b""}, "no", 1, "its body cannot be read"),
        ({"properties": {"long": "x" * (PROPERTIES_BYTES_MAX - 150)}}, "no", 1, "cannot be edited: its properties"),
    ],
)
async def test_an_edit_that_could_not_run_is_not_sent(fields: Any, reason: str, schema: int, why: str) -> None:
    dead = DeadLetterEntry("adds", 1, delivery(**{"type": "Add", **fields}).message, reason, "", 1, NOW_MS)
    with pytest.raises(Refused, match=why):
        await edit_of(dead, b'{"key":"a" }', NoBlobs(), above_bytes=100, schema=schema, plan=PLAN)


async def test_an_edit_is_checked_by_every_handler_and_has_the_schema_of_its_body() -> None:
    app = App("twice")
    for key in ("key", "other"):

        @app.handler("adds", key=key, name=key)
        def add(message: Both, total: Sum) -> None: ...

    message = delivery(b'{"key":"a","other":"b"}', type="Both", properties={"outbox-schema": 2}).message
    dead, plan = DeadLetterEntry("adds", 1, message, "no", "", 1, NOW_MS), compile_app(app)
    edit = await edit_of(dead, b"{}", NoBlobs(), above_bytes=100, schema=1)
    assert edit is not None and edit.schema == 1
    dead = msgspec.structs.replace(dead, message=msgspec.structs.replace(message, properties=None))
    with pytest.raises(Refused, match="has the key 'c', and was refused under 'b'"):
        await edit_of(dead, b'{"key":"a","other":"c"}', NoBlobs(), above_bytes=100, schema=1, plan=plan)


# Pauses, settlement, dead letters


async def test_the_pause_before_a_release_grows_until_something_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "random", lambda: 0.5)
    paused = list[float]()

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    rests = RetryBackoff(Backoff(at_once, pause=pause), lambda: NOW_MS)
    for _ in range(8):
        await rests.cool_down(delivery(), OutcomeUnknown("no answer"))
    rests.reset()
    await rests.cool_down(delivery(), OutcomeUnknown("no answer"))
    assert paused == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 0.25]


def settlement(
    bus: Any,
    *,
    count_max: int = 12,
    settled: Callable[[Sequence[Delivery]], object] = lambda _: None,
    plan: CompiledApp = PLAN,
) -> Settlement:
    """The settlement of a worker on this bus."""
    return Settlement(
        plan,
        bus,
        MemoryBlobStore(),
        backoff=Backoff(at_once, count_max),
        now_ms=lambda: NOW_MS,
        new_tx=lambda: "tx",
        settled=settled,  # type: ignore[arg-type]  # what it gives does not matter
    )


class Bus:
    """Notes how deliveries are settled."""

    def __init__(self) -> None:
        self.settled = list[str]()

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        self.settled.append(settle.how)


async def test_a_delivery_that_was_released_is_not_settled_again() -> None:
    bus, ended = cast("Any", Bus()), list[Sequence[Delivery]]()
    endings, attempt = settlement(bus, settled=ended.append), Attempt(work())
    await endings.release(attempt)
    await endings.release(attempt)
    await endings.settle(attempt, None)
    assert bus.settled == ["release"] and not endings.is_applied(attempt)
    assert ended == [[attempt.work.delivery]]  # it is under way no more


async def test_a_message_that_one_of_its_handlers_gives_back_is_settled_by_no_other() -> None:
    bus = cast("Any", Bus())
    endings, branches = settlement(bus), (Attempt(work()), Attempt(work()))
    FanOut(branches)
    await endings.settle(branches[0], None)
    for branch in reversed(branches):
        await endings.release(branch)
        await endings.settle(branch, None)
    assert bus.settled == ["release"] and not any(map(endings.is_applied, branches))


@pytest.mark.parametrize(("error", "count"), [(Throttled("not now"), 0), (OutcomeUnknown("no answer"), 1)])
async def test_what_was_not_settled_for_sure_is_counted_when_it_comes_again(error: Exception, count: int) -> None:
    class Failing:
        async def settle(self, delivery: Delivery, settle: Settle) -> None:
            raise error

    bus, plan = cast("Any", Failing()), compile_app(adding())
    await settlement(bus, plan=plan).settle(Attempt(work()), None)
    assert plan.counts.of("adds").applied == count


@pytest.mark.parametrize(
    ("later", "settle"),
    [
        (Later(1.5, 0, "it waits"), Settle("release", "", "it waits", NOW_MS + 1_500)),
        (Later(0.0, 0, "it waits"), Settle("release", "", "it waits", 0)),
        (Later(1.5, 1, error="it failed"), Settle("abandon", "", "it failed", NOW_MS + 1_500)),
    ],
)
async def test_a_message_that_keeps_its_place_is_put_off_on_the_bus(later: Later, settle: Settle) -> None:
    settled, ended = list[Settle](), list[Sequence[Delivery]]()

    class Noting:
        async def settle(self, delivery: Delivery, settle: Settle) -> None:
            settled.append(settle)

    bus, held = cast("Any", Noting()), work(in_order=True)
    await settlement(bus, settled=ended.append).settle(Attempt(held), later)
    assert settled == [settle] and ended == [[held.delivery]]


async def test_dead_letters_are_counted_up_to_a_limit() -> None:
    letters = StoredDeadLetters(engine_store(), MemoryBlobStore())
    for number in range(4):
        kept = msgspec.structs.replace(delivery(outbox_id=str(number)), sequence=number)
        await letters.keep(kept, "no", "")
    assert [await letters.count("adds", count_max=limit) for limit in (1, 3, 9)] == [1, 3, 4]


async def test_a_stored_dead_letter_has_counted_every_delivery() -> None:
    letters = StoredDeadLetters(engine_store(), MemoryBlobStore())
    await letters.keep(msgspec.structs.replace(delivery(), delivery_count=2, failures=3), "no", "why")
    (kept,) = await letters.list("adds")
    assert (kept.delivery_count, kept.reason, kept.description) == (6, "no", "why")
    assert kept.sequence == NOW_MS << 20 | 706_737  # of any build: another would keep a redelivery once more


async def test_stored_dead_letters_are_counted_by_queue_up_to_a_limit() -> None:
    async def holders(prefix: str) -> AsyncIterator[str]:
        for partition in ("letters:a", "discarded:a", "letters:b", "letters:a", "letters:c"):
            yield partition

    letters = StoredDeadLetters(engine_store(), MemoryBlobStore())
    found = [dict(await letters.counts(holders, count_max=limit)) for limit in (2, 9)]
    assert found == [{"a": 1, "b": 1}, {"a": 2, "b": 1, "c": 1}]


async def test_a_dead_letter_has_its_number_where_another_has_just_deleted_it() -> None:
    keys = list[str]()

    class Gone:
        async def write(self, operations: Sequence[Write]) -> Won | Lost:
            keys.append(operations[0].key.id)
            return Lost(0, None) if len(keys) == 1 else Won(("1",))

        async def read(self, key: DocumentKey, *, session: str = "") -> None: ...

    store: Any = Gone()
    await StoredDeadLetters(store, MemoryBlobStore()).keep(delivery(), "no", "")
    assert len(keys) == 2 and len(set(keys)) == 1


async def test_a_dead_letter_that_is_stored_again_is_left_as_it_was_read_and_written_anew_is_not() -> None:
    letters = StoredDeadLetters(engine_store(), MemoryBlobStore())
    await letters.keep(delivery(), "no", "")
    (read,) = await letters.list("adds")
    await letters.put(read, anew=True)
    assert not await letters.delete(read)
    (read,) = await letters.list("adds")
    await letters.keep(delivery(), "no", "")
    assert await letters.delete(read)


async def test_dead_letters_whose_numbers_are_one_lie_behind_each_other_and_behind_what_is_foreign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_dead_letters, "_DIGEST_BITS", 0)
    store, count_max = engine_store(), stored_dead_letters.NUMBER_COUNT_MAX
    letters = StoredDeadLetters(store, MemoryBlobStore())
    (foreign,) = [letters._key("adds", NOW_MS)]
    await store.write([Create(foreign, b"not ours")])
    for number in (*range(1, count_max), 1):
        await letters.keep(msgspec.structs.replace(delivery(), sequence=number), "no", "")
    with pytest.raises(Refused, match="its numbers are taken"):
        await letters.keep(msgspec.structs.replace(delivery(), sequence=count_max), "no", "")
    await store.write([Delete(foreign, (await store.read(foreign)).version)])  # type: ignore[union-attr]  # it is there
    assert [letter.sequence for letter in await letters.list("adds")] == [*range(NOW_MS + 1, NOW_MS + count_max)]


async def test_a_resubmission_leaves_under_its_identity_and_takes_copies_of_earlier_attempts_along() -> None:
    letters, sent = StoredDeadLetters(engine_store(), MemoryBlobStore()), list[Output]()
    by_broker: Any = {"outbox_id": "", "message_id": "m"}
    for number, attempt in enumerate((0, 1, 3)):
        kept = msgspec.structs.replace(delivery(**by_broker, attempt=attempt), sequence=number)
        await letters.keep(kept, "no", "")

    async def send(outputs: Sequence[Output]) -> None:
        sent.extend(outputs)

    (first,) = [letter for letter in await letters.list("adds") if not letter.message.attempt]
    await letters.resubmit("adds", first.sequence, send, attempt=2)
    (again,) = sent
    assert (again.message.outbox_id, again.message.message_id) == ("m", f"m~{first.sequence}-2")
    assert [letter.message.attempt for letter in await letters.list("adds")] == [3]
    edits = [msgspec.structs.replace(again.message, body=b"", claim=claim) for claim in ("a", "b")]
    assert len({stored_dead_letters._broker_id("m", 1, 1, edit) for edit in edits}) == 2  # to a broker they are two


async def test_a_dead_letter_without_an_identity_is_known_by_its_number_but_on_a_subscription() -> None:
    letters, sent = StoredDeadLetters(engine_store(), MemoryBlobStore()), list[Output]()
    for queue, identity in (("adds", "sequence-1"), ("t/Subscriptions/s", "")):
        await letters.keep(msgspec.structs.replace(delivery(outbox_id=""), queue=queue), "no", "")
        (letter,) = await letters.list(queue)
        assert letter.message.identity == identity

    async def send(outputs: Sequence[Output]) -> None:
        sent.extend(outputs)

    await letters.resubmit("t/Subscriptions/s", letter.sequence, send, attempt=1)
    assert (sent[0].destination, sent[0].message.message_id) == ("t", "")


async def test_outputs_for_a_destination_that_is_gone_are_tried_again_and_then_wait_on_record() -> None:
    tried = list[str]()

    class Gone:
        async def send(self, outputs: Sequence[Output]) -> None:
            tried.append("send")
            raise UnknownDestination("told is not there")

    bus: Any = Gone()
    endings = settlement(bus, count_max=3)
    with pytest.raises(NothingCommitted):
        await endings.push([Output("told", 0, Message(body=b"{}", outbox_id="1"))])
    assert len(tried) == 4 and [failed.ids for failed in endings.failed_pushes.take()] == [["1"]]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_message_is_completed_behind_its_delayed_copy_and_given_back_without_one(is_sent: bool) -> None:
    settled, sent = list[Settle](), list[Output]()

    class Copying:
        async def send(self, outputs: Sequence[Output]) -> None:
            if not is_sent:
                raise OutcomeUnknown("no answer")
            sent.extend(outputs)

        async def settle(self, delivery: Delivery, settle: Settle) -> None:
            settled.append(settle)

    bus: Any = Copying()
    failed = msgspec.structs.replace(work(), delivery=delivery(created_ms=0, correlation_id="c"))
    await settlement(bus, count_max=2).settle(Attempt(failed), Later(1.5, 3, "it waits", "of this"))
    assert settled == [Settle("complete" if is_sent else "release")]
    if is_sent:
        (copy,) = sent
        assert (copy.destination, copy.due_ms) == ("adds", NOW_MS + 1_500)
        message = copy.message
        assert (message.identity, message.message_id, message.correlation_id) == ("1", "1~tx", "c")
        assert (message.created_ms, message.failures, message.error) == (NOW_MS, 3, "of this")
        unnamed = msgspec.structs.replace(work(), delivery=delivery(outbox_id=""))
        await settlement(bus).settle(Attempt(unnamed), Later(0.0, 0))
        assert (sent[1].due_ms, sent[1].message.identity) == (0, "sequence-1")  # as a copy it has another number


def test_failed_pushes_are_noted_for_so_many_destinations_and_counted_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlements, "FAILED_PUSH_DESTINATION_COUNT_MAX", 2)
    failed = settlements.FailedPushes()
    for name, error in (("a", "no answer"), ("b", "no answer"), ("c", "no answer"), ("a", "it is full")):
        failed.note([Output(name, 0, Message(body=b"", outbox_id=name))], error)
    found = [(push.destination, push.count, push.error) for push in failed.take()]
    assert found == [("a", 2, "it is full"), ("b", 1, "no answer")]
    assert failed.count == 4 and failed.take() == []


def test_failed_pushes_name_so_many_messages_and_no_more() -> None:
    failed = settlements.FailedPushes()
    failed.note([Output("a", 0, Message(body=b"", outbox_id=str(number))) for number in range(9)], "no answer")
    (found,) = failed.take()
    assert found.count == 9 and found.ids == ["0", "1", "2", "3", "4"]


async def test_why_messages_are_given_back_is_logged_once_a_minute_for_each_cause_and_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock(START_S)
    rests = RetryBackoff(Backoff(at_once), clock.wall_ms)
    elsewhere = msgspec.structs.replace(delivery(), queue="others")
    for held, error in (
        (delivery(), OutcomeUnknown("no answer")),
        (delivery(), OutcomeUnknown("again none")),
        (delivery(), Throttled("full")),
        (elsewhere, OutcomeUnknown("no answer")),
    ):
        await rests.cool_down(held, error)
    clock.seconds += 60
    await rests.cool_down(delivery(), OutcomeUnknown("still none"))
    found = [vars(record) for record in caplog.records if record.message.startswith("message released")]
    assert [(each["queue"], each["id"]) for each in found] == [
        ("adds", "1"), ("adds", "1"), ("others", "1"), ("adds", "1"),
    ]  # fmt: skip
    texts = [each["error"] for each in found]
    assert [text.partition(": ")[2] for text in texts] == ["no answer", "full", "no answer", "still none"]


async def test_what_was_lost_to_others_is_no_failure_to_report(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RetryError) as lost:
        async for turn in Backoff(at_once, 1).attempts():
            with turn:
                raise NothingCommitted
    await RetryBackoff(Backoff(at_once), lambda: NOW_MS).cool_down(delivery(), lost.value)
    answer = RequestLog(lambda: NOW_MS, FailureLog(lambda: NOW_MS)).unavailable(lost.value)
    assert answer.status == 503 and not caplog.records


@pytest.mark.parametrize("blocks", [False, True])
def test_a_dead_letter_keeps_its_successors_back_only_where_it_blocks_its_key(blocks: bool) -> None:
    head = msgspec.structs.replace(work(), blocks_key=blocks)
    assert holds_lane(head, PoisonMessage("no", "")) == blocks
    assert holds_lane(head, Later(1, 1)) and not holds_lane(head, None)


async def test_the_owner_of_a_key_is_read_from_a_store_that_does_not_tell() -> None:
    store: Any = Untold(engine_store())
    keys, first = IdempotencyKeys(PLAN, store), work(state_id="Sum:a", key="a", fingerprint=b"1")
    assert await keys.take(Attempt(first)) is None
    assert await keys.take(again := Attempt(first)) is None and again.work.delivery.delivery_count == 1
    refusal = await keys.take(Attempt(msgspec.structs.replace(first, fingerprint=b"2")))
    assert refusal is not None and refusal.reason == "payload-differs"


@pytest.mark.parametrize("kind", ["1", "1."])
def test_a_number_of_a_body_is_as_long_as_it_may_be(kind: str) -> None:
    longest = kind.ljust(DIGIT_COUNT_MAX, "0")
    assert write_body(read_body(longest.encode())) == longest.encode()
    with pytest.raises(ValueError, match="out of range"):
        read_body(f"{longest}0".encode())


def test_only_a_queue_that_says_so_takes_sequence_numbers_for_identities() -> None:
    app = adding()
    app.queue("adds", "per_key")
    assert not compile_app(app).sources["adds"].takes_sequence_number


async def test_a_process_that_stops_writes_its_marks_and_tells_what_it_could_not_send(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finished, failed = list[str](), settlements.FailedPushes()
    failed.note([Output("told", 0, Message(body=b"", outbox_id="1"))], "no answer")

    class Scope:
        async def finish(self) -> None:
            finished.append("marks")

    protocol: Any = Scope()
    await shell.Recovery(protocol, (), failed, now_ms=lambda: NOW_MS, counts=Counts()).finish()
    assert finished == ["marks"] and caplog.messages == ["outputs cannot be sent"] and failed.take() == []


async def test_a_stop_waits_so_long_for_its_marks_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "FINISH_WITHIN_S", 0.01)
    async with asyncio.timeout(5):
        await shell.finish(cast("Any", SimpleNamespace(finish=lambda: asyncio.sleep(60))))


async def test_a_sweep_that_fails_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "SWEEP_EVERY_S", 0.001)
    nothing, turns = cast("Any", None), iter("123")
    recovery = shell.Recovery(nothing, (), nothing, now_ms=lambda: NOW_MS, counts=Counts())

    async def sweep_failing() -> None:
        if next(turns) < "3":
            raise OutcomeUnknown("no answer")
        raise ZeroDivisionError

    monkeypatch.setattr(recovery, "sweep", sweep_failing)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(recovery.sweep_for_ever(), 5)


async def test_the_first_message_that_blocks_a_session_is_the_one_that_unblocks_it() -> None:
    blocked = BlockedSessions(engine_store(), MemoryBlobStore())
    first, second = (Attempt(Work(delivery(outbox_id=id, session_id="s"), HANDLER)) for id in ("1", "2"))
    for attempt in (first, second):
        await blocked.block(attempt)
    found = await blocked.blocked_behind(second.work.delivery)
    assert found is not None and found.identity == "1"


async def test_the_blocks_of_two_queues_are_two_however_their_names_and_sessions_join() -> None:
    blocked = BlockedSessions(engine_store(), MemoryBlobStore())
    dead = delivery(session_id="bc")
    await blocked.block(Attempt(Work(msgspec.structs.replace(dead, queue="a"), HANDLER, inbox=INBOX)))
    found = [await blocked.identity_of(queue, session) for queue, session in (("a", "bc"), ("ab", "c"), ("abc", ""))]
    assert found == ["1", None, None]


@pytest.mark.parametrize(
    ("known", "body", "is_it"),
    [
        (b"of it", b"it", True), (b"of it", b"another", False), (b"", b"another", True), (b"of it", b"edit", True),
    ],
)  # fmt: skip
def test_a_block_is_behind_its_payload_its_edits_and_where_it_knows_none_its_id(
    known: bytes, body: bytes, is_it: bool
) -> None:
    it, edit = (sha256(b"\0" + each).digest() for each in (b"it", b"edit"))
    block = BlockedSession("1", fingerprint=it if known else b"", edits=(edit,))
    assert block.is_behind(Message(body=body, outbox_id="1")) is is_it
    assert not block.is_behind(Message(body=body, outbox_id="2"))


async def test_the_owners_of_keys_are_read_in_one_query() -> None:
    blocked = BlockedSessions(engine_store(), MemoryBlobStore())
    for session, id in (("s", "1"), ("t", "2")):
        await blocked.block(Attempt(Work(delivery(session_id=session, outbox_id=id), HANDLER, inbox=INBOX)))

    async def among(partitions: Sequence[str], id: str) -> AsyncIterator[Document]:
        for partition in partitions:
            if (found := await blocked._store.read(DocumentKey(partition, id))) is not None:
                yield found

    assert await blocked.identities_of("adds", ["s", "free", "t"], among) == {"s": "1", "t": "2"}


async def test_a_message_that_blocks_is_known_by_its_id_while_its_body_is_in_a_blob() -> None:
    blocked = BlockedSessions(engine_store(), MemoryBlobStore())
    dead = delivery(session_id="s")
    await blocked.block(Attempt(Work(dead, HANDLER)))
    found = await blocked.blocked_behind(dead)
    name, _ = to_claim(dead.message)
    claimed = msgspec.structs.replace(dead.message, body=b"", claim=name)
    assert found is not None and found.is_behind(claimed)
    assert not found.is_behind(msgspec.structs.replace(claimed, outbox_id="2"))


async def test_a_block_remembers_the_last_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_sessions, "EDIT_COUNT_MAX", 2)
    blocked, dead = BlockedSessions(engine_store(), MemoryBlobStore()), delivery(session_id="s")
    await blocked.block(Attempt(Work(dead, HANDLER)))
    letter = DeadLetterEntry("adds", 1, dead.message, "no", "", 1, NOW_MS)
    edits = [msgspec.structs.replace(dead.message, body=b'{"key":"%d"}' % number) for number in range(3)]
    for number, edit in enumerate(edits):
        await blocked.note_resubmission("adds", letter, number + 1, edit=edit)
    found = await blocked.blocked_behind(dead)
    assert found is not None and [found.is_behind(edit) for edit in edits] == [False, True, True]


async def test_a_resubmission_that_is_refused_again_blocks_anew_over_a_store_that_does_not_tell() -> None:
    store: Any = Untold(engine_store())
    blocked, dead = BlockedSessions(store, MemoryBlobStore()), delivery(session_id="s")
    await blocked.block(Attempt(Work(dead, HANDLER)))
    await blocked.note_resubmission("adds", DeadLetterEntry("adds", 1, dead.message, "no", "", 1, NOW_MS), 1)
    found = await blocked.blocked_behind(dead)
    assert found is not None and found.resubmitted
    again = msgspec.structs.replace(dead, message=msgspec.structs.replace(dead.message, attempt=1))
    await blocked.block(Attempt(Work(again, HANDLER), is_blocker=True))
    found = await blocked.blocked_behind(dead)
    assert found is not None and not found.resubmitted


@pytest.mark.parametrize(("outcome", "calls"), [(Later(1, 1), []), (PoisonMessage("no", ""), ["block"])])
async def test_only_a_dead_letter_blocks_its_session(outcome: Later | PoisonMessage, calls: list[str]) -> None:
    blocks, bus = list[str](), Bus()

    class Blocked:
        async def block(self, attempt: Attempt) -> None:
            blocks.append("block")

    blocked: Any = Blocked()
    protocol: Any = None
    endings, backoff = settlement(bus), Backoff(at_once)
    scope = StoreScope(
        PLAN, protocol, endings, blocked, MemoryBlobStore(), now_ms=lambda: NOW_MS, backoff=backoff, spawn=print
    )
    head = msgspec.structs.replace(work(), in_order=True, lane="s", blocks_key=True)
    assert await scope._end(Attempt(head), outcome) and blocks == calls and len(bus.settled) == 1


@pytest.mark.parametrize("error", [NothingCommitted(), CorruptRecord("not ours")])
async def test_what_fails_together_is_handled_singly_and_what_cannot_be_held_waits(
    error: Exception,
) -> None:
    class Apart:
        async def together(self, attempts: Sequence[Attempt]) -> list[Any]:
            raise error

        async def once(self, attempt: Attempt) -> None: ...

        async def hold(self, attempt: Attempt) -> None:
            raise error

    protocol: Any = Apart()
    blocked: Any = None
    bus, options = Bus(), {"now_ms": lambda: NOW_MS, "backoff": Backoff(at_once), "spawn": print}
    scope = StoreScope(PLAN, protocol, settlement(bus), blocked, MemoryBlobStore(), **cast("Any", options))
    assert await scope._commit_or_retry([Attempt(work()), Attempt(work())]) is None
    assert bus.settled == ["complete", "complete"]
    assert isinstance(await scope._waiting_outcome(Attempt(work())), Later)


async def test_a_block_that_is_not_ours_blocks_and_is_left_alone() -> None:
    class Foreign:
        async def read(self, key: DocumentKey, *, session: str = "") -> Document:
            return Document(key, b"not ours", "1")

    store: Any = Foreign()  # which takes no writes
    blocked, dead = BlockedSessions(store, MemoryBlobStore()), delivery(session_id="s")
    assert await blocked.blocked_behind(dead) is not None
    await blocked.note_resubmission("adds", DeadLetterEntry("adds", 1, dead.message, "no", "", 1, NOW_MS), 1)
    await blocked.unblock("adds", dead.message)
    assert not await blocked.unblock_id("adds", "s", "1")


async def test_a_body_at_the_limit_travels_in_its_message() -> None:
    outputs = [Output("told", 0, Message(body=b"x" * size, outbox_id="1")) for size in (100, 101)]
    checked, blobs = checked_outputs(outputs, above_bytes=100)
    assert [bool(output.message.claim) for output in checked] == [False, True] and len(blobs) == 1
    sent = [await check_in(output.message, MemoryBlobStore(), above_bytes=100) for output in outputs]
    assert sent == [output.message for output in checked]


def test_the_others_of_a_message_are_applied_when_all_but_one_are() -> None:
    branches = tuple(Attempt(work()) for _ in range(3))
    shared = FanOut(branches)
    assert not shared.are_others_applied()
    assert not shared.note(branches[0], None) and not shared.are_others_applied()
    assert not shared.note(branches[1], None) and shared.are_others_applied()
    shared.note(branches[1], Later(1, 1))
    assert not shared.are_others_applied()


def test_the_refusals_of_several_handlers_are_one_with_their_names_and_the_first_stack() -> None:
    branches = [Attempt(work()) for _ in range(3)]
    no, stacked = PoisonMessage("no", "x" * 9_000), PoisonMessage("failed", f"it broke{STACK_HEAD}  line 1")
    found = outcome_of_all(branches, [stacked, None, no])
    assert isinstance(found, PoisonMessage) and found.reason == "rejected"
    text, stack = split_stack(found.description)
    assert text.startswith("add: failed: it broke; add: no: xxx") and len(text) == REASON_LENGTH_MAX
    assert stack.endswith("  line 1")
    same = outcome_of_all(branches[:2], [no, no])
    assert isinstance(same, PoisonMessage) and same.reason == "no"


def test_the_first_refusal_of_an_attempt_stands() -> None:
    attempt = Attempt(work())
    for reason in ("oversize", "failed"):
        attempt.refuse(PoisonMessage(reason, ""))
    assert isinstance(attempt.work.refusal, PoisonMessage) and attempt.work.refusal.reason == "oversize"


# A bus as an intake


class Queues:
    """A bus with a delivery in each of some queues, of which the first can be neither renewed nor released."""

    def __init__(self, *ready: str) -> None:
        self.ready = ready
        self.asked = list[tuple[str, float]]()
        self.released = list[int]()

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        self.asked.append((queue, wait_s))
        return [msgspec.structs.replace(delivery(), queue=queue)] if queue in self.ready else []

    async def renew(self, one: Delivery) -> int:
        if one.sequence == 1:
            raise Throttled("not now")
        return NOW_MS

    async def settle(self, one: Delivery, settle: Settle) -> None:
        await self.renew(one)
        self.released.append(one.sequence)


@pytest.mark.parametrize(
    ("ready", "found", "asked"),
    [
        (("first", "third"), "third", [("second", 0), ("third", 0)]),
        (("first",), "first", [("second", 0), ("third", 0), ("first", 9)]),
    ],
)
async def test_an_intake_of_several_queues_waits_for_the_first_only(
    ready: tuple[str, ...], found: str, asked: list[tuple[str, float]]
) -> None:
    bus: Any = Queues(*ready)
    (claimed,) = await BusIntake(bus).claim(["first", "second", "third"], count_max=1, wait_s=9)
    assert claimed.queue == found and bus.asked == asked
    assert await BusIntake(bus).claim([], count_max=1, wait_s=9) == []


async def test_a_delivery_that_cannot_be_renewed_or_released_keeps_no_other_from_it() -> None:
    bus: Any = Queues()
    deliveries = [msgspec.structs.replace(delivery(), sequence=number) for number in (1, 2, 3)]
    assert await BusIntake(bus).renew(deliveries) == 2
    await BusIntake(bus).release(deliveries)
    assert bus.released == [2, 3]


# Waiting records


class Untold:
    """A store that does not say what a write lost to."""

    def __init__(self, store: EngineStore) -> None:
        self.read = store.read
        self._store = store

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        answer = await self._store.write(operations)
        return Lost(answer.operation, None) if isinstance(answer, Lost) else answer


async def test_requests_of_one_lane_take_turns_and_an_empty_lane_is_forgotten() -> None:
    turns, at_work, most = Turns(), 0, list[int]()

    async def request(lane: str | None) -> None:
        nonlocal at_work
        async with turns.of(lane):
            at_work += 1
            most.append(at_work)
            await asyncio.sleep(0)
            at_work -= 1

    await asyncio.gather(*(request("a") for _ in range(3)))
    assert most == [1, 1, 1]
    await asyncio.gather(request("a"), request("b"), request(None), request(None))
    assert max(most) == 4 and not turns._lanes


async def test_a_question_is_put_to_so_many_queues_at_once() -> None:
    asked = list[int]()

    async def ask(number: int) -> int:
        asked.append(number)
        await asyncio.sleep(0)
        most.append(len(asked))
        asked.remove(number)
        return number

    most = list[int]()
    assert await side_by_side(range(20), ask) == list(range(20)) and max(most) == 8


async def test_so_many_waiting_messages_are_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "KNOWN_COUNT_MAX", 2)
    known = WaitingRecords(PLAN, engine_store(), now_ms=lambda: NOW_MS, new_tx=lambda: "tx")
    for number in range(4):
        one = msgspec.structs.replace(work(), inbox=bytes([number]) * 32)
        assert await known.note(one, record_key(None, one.inbox)) is None
        assert known.remembered()[-1] == one.inbox and len(known.remembered()) <= 2
    known.forget(one)  # it runs, and a copy of it may wait behind another block
    assert one.inbox not in known.remembered()


async def test_what_is_on_record_of_a_waiting_message_is_read_from_a_store_that_does_not_tell() -> None:
    store: Any = Untold(engine_store())
    waits, key = WaitingRecords(PLAN, store, now_ms=lambda: NOW_MS, new_tx=lambda: "tx"), record_key(None, INBOX)
    applied = Record("other", b"f", NOW_MS)
    await store.write([Create(key, stored.encode(applied))])
    found = await waits.note(work(), key)
    assert found is not None and stored.decode(found, Record) == applied


def test_the_first_of_two_payloads_under_an_id_is_put_on_record_as_waiting() -> None:
    held = msgspec.structs.replace(delivery(), failures=3)
    first, second = (
        msgspec.structs.replace(work(), delivery=held, fingerprint=digest) for digest in (b"1" * 32, b"2" * 32)
    )
    commit = waiting_commit(PLAN, [first, second], {}, NOW_MS)
    assert commit.refused[INBOX].fingerprint == b"1" * 32
    assert [postponed.failures for postponed in commit.postponed] == [3, 3]


def test_a_message_stays_behind_a_block_while_one_of_its_handlers_has_not_applied_it() -> None:
    """Its other handler may be new: a copy was applied before there were two."""
    digest, other = b"1" * 32, b"o" * 32
    both = work(fingerprint=digest, others=(msgspec.structs.replace(work(fingerprint=digest), inbox=other),))
    commit = waiting_commit(PLAN, [both], {INBOX: digest}, NOW_MS)
    assert not commit.consumed and len(commit.postponed) == 1 and commit.refused.keys() == {other}
    assert waiting_commit(PLAN, [both], {INBOX: digest, other: digest}, NOW_MS).consumed == [both.delivery]


# Several messages of the engine


class Refusing:
    """A journal whose commits have these outcomes, the last one for ever."""

    def __init__(self, *outcomes: Conflict | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.commits = list[Commit]()
        self.released = list[Delivery]()
        self.settled = list[Delivery]()
        self.holds_locks = True

    async def load(self, states: Sequence[str], markers: Sequence[bytes]) -> tuple[dict[str, Any], dict[bytes, Any]]:
        return {}, {}

    async def commit(self, commit: Commit) -> Conflict | None:
        self.commits.append(commit)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def durable(self) -> None:
        pass

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        return len(deliveries) if self.holds_locks else 0

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        self.released += deliveries

    def scope(self, plan: CompiledApp = PLAN, *, now_ms: int = NOW_MS) -> EngineScope:
        journal: Any = self
        return EngineScope(
            plan,
            journal,
            MemoryBlobStore(),
            now_ms=lambda: now_ms,
            backoff=Backoff(at_once),
            spawn=asyncio.ensure_future,
            settled=self.settled.extend,
            is_stopping=lambda: False,
        )


def test_a_batch_is_over_its_limit_when_one_of_its_handlers_is() -> None:
    app = App("limits")

    @app.handler("quick", key="key", time_limit_s=1)
    def quick(message: Add, total: Sum) -> None: ...

    @app.handler("slow", key="key", time_limit_s=50)
    def slow(message: Add, total: Sum) -> None: ...

    batch = group()
    for handler in app.handlers:
        batch.complete(Work(delivery(), handler))
    for taken_ms, is_over in ((1_000, False), (1_001, True)):
        assert Refusing(None).scope(compile_app(app), now_ms=NOW_MS + taken_ms)._may_be_over_limit(batch) == is_over


@pytest.mark.parametrize("together", [False, True])
async def test_the_first_commit_ends_a_row_of_releases(together: bool) -> None:
    journal = Refusing(*([] if together else [Throttled("not now")]), None)
    scope = journal.scope()
    scope.retry_backoff.count = 5
    await scope.attempt([delivery()])
    assert scope.retry_backoff.count == 0 and journal.settled == [delivery()]


async def test_a_message_whose_lock_is_over_is_not_handled_again() -> None:
    journal = Refusing(Throttled("not now"), None)
    journal.holds_locks = False
    await journal.scope().attempt([delivery()])
    assert len(journal.commits) == 1 and journal.settled == [delivery()] and not journal.released


@pytest.mark.parametrize("markers", [frozenset({INBOX}), frozenset[bytes]()])
async def test_a_message_of_an_engine_gets_a_marker_once_one_was_in_its_way(markers: frozenset[bytes]) -> None:
    plan, inside = compile_app(adding()), msgspec.structs.replace(delivery(), from_outside=False)
    journal = Refusing(Conflict(states=frozenset({"Sum:a"})), Conflict(markers=markers), None)
    await journal.scope(plan).attempt([inside])
    assert [bool(commit.applied) for commit in journal.commits] == [False, False, bool(markers)]
    assert plan.counts.conflicts == 2


@pytest.mark.parametrize("alone", [False, True])
async def test_behind_a_message_that_is_put_off_its_session_is_given_back(alone: bool) -> None:
    app = App("waits")
    app.queue("adds", "per_key")

    @app.handler("adds", key="key")
    def wait(message: Add, total: Sum) -> None:
        raise Retry("not now")

    given = [msgspec.structs.replace(delivery(outbox_id=id, session_id="s"), sequence=int(id)) for id in ("1", "2")]
    journal = Refusing(None)
    scope = journal.scope(compile_app(app))
    scope.suspending |= {"wait"} if alone else set()
    await scope.attempt(given)
    await until(lambda: len(journal.settled) == 2)
    assert [len(commit.postponed) for commit in journal.commits] == [1] and journal.released == [given[1]]


async def test_a_commit_that_is_too_large_refuses_every_part_of_its_message() -> None:
    app = App("twice")
    for name in ("one", "two"):

        @app.handler("adds", key="key", name=name)
        def add(message: Add, total: Sum) -> None: ...

    journal = Refusing(TooLarge("it does not fit"), None)
    await journal.scope(compile_app(app)).attempt([delivery()])
    await until(lambda: bool(journal.settled))
    assert [refusal.reason for refusal in journal.commits[1].refused.values()] == ["oversize", "oversize"]


async def test_what_cannot_be_put_on_record_as_waiting_is_given_back() -> None:
    journal = Refusing(Throttled("the engine is full"))
    waits = msgspec.structs.replace(delivery(), waits=True)
    await journal.scope().attempt([waits])
    assert journal.released == journal.settled == [waits]


async def test_what_is_put_on_record_as_waiting_leaves_out_those_whose_lock_is_over() -> None:
    first, second = (msgspec.structs.replace(delivery(outbox_id=str(n)), sequence=n, waits=True) for n in (1, 2))
    journal = Refusing(Conflict(frozenset({1})), None)
    await journal.scope().attempt([first, second])
    assert journal.settled == [first, second] and not journal.released


async def test_a_message_whose_lock_was_over_in_a_batch_is_no_longer_under_way() -> None:
    first, second = (msgspec.structs.replace(delivery(outbox_id=str(n)), sequence=n) for n in (1, 2))
    journal = Refusing(Conflict(frozenset({1})), None)
    await journal.scope().attempt([first, second])
    assert journal.settled == [first, second] and not journal.released


async def test_behind_a_message_whose_lock_was_over_in_a_batch_its_session_is_given_back() -> None:
    app = adding()
    app.queue("adds", "per_key")
    sessions = [("1", "s"), ("2", "s"), ("3", "other")]
    given = [
        msgspec.structs.replace(delivery(outbox_id=id, session_id=session), sequence=int(id))
        for id, session in sessions
    ]
    journal = Refusing(Conflict(frozenset({1})), None)
    await journal.scope(compile_app(app)).attempt(given)
    assert journal.released == [given[1]] and journal.settled == given


# Transactions


def group(documents: dict[str, StateDocument] | None = None) -> EngineTransaction:
    return EngineTransaction(PLAN, NOW_MS, documents or {}, {}, never_durable)


def test_a_group_sees_nothing_of_another_over_the_same_states() -> None:
    first = group()
    first.sibling().refuse(Attempt(work()), PoisonMessage("no", ""))
    assert not first.markers


def test_what_a_group_refuses_and_then_applies_is_applied() -> None:
    commit = group()
    commit.refuse(Attempt(work(fingerprint=b"f" * 32)), PoisonMessage("no", ""))
    again = msgspec.structs.replace(work(fingerprint=b"f" * 32), delivery=delivery(attempt=1))
    commit.apply(Attempt(again), Sum(), None)
    assert commit.commit.applied.keys() == {INBOX} and not commit.commit.refused
    assert commit.commit.replacing == {INBOX: 1}


def test_an_edit_replaces_no_later_refusal_than_the_one_it_was_judged_by() -> None:
    old = b"f" * 32
    commit = EngineTransaction(PLAN, NOW_MS, {}, {INBOX: Refusal(old, "no", "", 1)}, never_durable)
    edit = delivery(attempt=7, properties={"outbox-replaces": old.hex()})
    commit.apply(Attempt(msgspec.structs.replace(work(fingerprint=b"e" * 32), delivery=edit)), Sum(), None)
    assert commit.commit.replacing == {INBOX: 2}  # a refusal of an attempt below that
    record = as_record(commit.commit.applied[INBOX])
    assert record is not None and record.fingerprint == b"e" * 32
    assert record.replaced == (Replaced(old, 1, NOW_MS),)


def test_a_state_of_equal_bytes_is_written_under_its_new_schema() -> None:
    commit = group({"Sum:a": StateDocument(b'{"n":1}', 7, 3, 1)})
    handled = work(state_id="Sum:a")
    commit.apply(Attempt(handled), Sum(1), None)
    assert commit.commit.states["Sum:a"].schema == 1 and commit.commit.if_versions == {"Sum:a": 7}


def test_an_attempt_is_late_behind_its_deadline_and_not_at_it() -> None:
    batch, limit_ms = StoreTransaction(PLAN, NOW_MS, "tx", Loaded(CachedState())), PLAN.attempt_ms_max
    assert [batch.is_late(NOW_MS + ms) for ms in (0, limit_ms, limit_ms + 1)] == [False, False, True]
    assert [batch.is_half_spent(NOW_MS + ms) for ms in (0, limit_ms // 2, limit_ms // 2 + 1)] == [False, False, True]


# Caches and marks


def state(size_bytes: int, version: int = 1) -> CachedState:
    return CachedState(StateItem(msgspec.Raw(b"1" * size_bytes), 1, version), "etag")


def test_a_cached_state_counts_once_however_often_it_is_remembered() -> None:
    cache = StateCache(bytes_max=10)
    for version in range(5):
        cache.remember("a", state(6, version))
    assert cache.find("a") is not None


def test_states_are_cached_up_to_a_limit_of_bytes() -> None:
    cache = StateCache(bytes_max=10)
    for id in ("a", "b", "c"):
        cache.remember(id, state(5))
    assert [id for id, _ in cache.content()] == ["b", "c"]


def test_of_so_many_cached_states_the_one_used_last_stays() -> None:
    cache = StateCache(count_max=2)
    cache.remember("a", state(1))
    cache.remember("b", state(1))
    assert cache.find("a") is not None and cache.find("none") is None
    cache.remember("c", state(1))
    assert [id for id, _ in cache.content()] == ["a", "c"]


def test_a_state_is_cached_under_its_newest_version_in_the_store() -> None:
    """Also where only the pointer in it was cleared; one that an older read still had is not."""
    cache = StateCache()
    for version, etag in ((2, "swapped"), (2, "cleared"), (1, "stale")):
        cache.remember("a", CachedState(StateItem(version=version), etag))
    found = cache.find("a")
    assert found is not None and found.version == "cleared"


def test_the_largest_states_are_those_above_a_size_and_so_many() -> None:
    cache = StateCache()
    for size in (5, 6, 8, 7):
        cache.remember(f"s{size}", state(size))
    assert cache.largest(5, 2) == {"s8": 8, "s7": 7}
    assert list(cache.largest(5, 9)) == ["s8", "s7", "s6"]


async def test_marks_are_kept_up_to_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "DUE_COUNT_MAX", 2)
    due = Marks(PLAN, engine_store(), MemoryBlobStore())
    for number in range(3):
        due.add(DocumentKey("p", str(number)), "1", Record("tx", b"f", NOW_MS, True), INBOX)
    assert due.due_count == 2


async def test_marks_that_are_written_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "DUE_BYTES_MAX", 100)
    due = Marks(PLAN, engine_store(), MemoryBlobStore())
    for number in range(5):
        due.add(DocumentKey("p", str(number)), "1", Record("tx", b"f", NOW_MS, True), INBOX)
        assert due.due_count == 1
        await due.write()
        assert due.due_count == 0


@pytest.mark.parametrize(("count_max", "fitting"), [(2, 9), (9, 2)])
async def test_more_marks_than_the_store_takes_at_once_are_all_written(count_max: int, fitting: int) -> None:
    store, sizes = engine_store(), list[int]()

    async def written(writes: Sequence[Write]) -> Won | Lost:
        if len(writes) > fitting:
            raise TooLarge("over the limit of a batch")
        sizes.append(len(writes))
        return await EngineStore.write(store, writes)

    narrow: Any = SimpleNamespace(capabilities=replace(store.capabilities, batch_count_max=count_max), write=written)
    due, record = Marks(PLAN, narrow, MemoryBlobStore()), Record("tx", b"f", NOW_MS, True)
    for number in range(5):
        won = await store.write([Create(key := DocumentKey("p", str(number)), stored.encode(record))])
        assert isinstance(won, Won)
        due.add(key, won.versions[0], record, INBOX)
    await due.write()
    assert sorted(sizes) == [1, 2, 2]
    assert [stored.decode(found, Record).pending async for found in store.scan("p")] == [False] * 5


async def test_marks_of_many_partitions_are_written_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "WRITING_COUNT_MAX", 2)
    due, started = due_marks(recurs=False), list[Coroutine[Any, Any, None]]()
    for partition in "qrs":
        due.add(DocumentKey(partition, "1"), "1", Record("tx", b"f", NOW_MS, True), INBOX)
    await Lingering(Noted(due), lambda: at_once(0)).write(started.append)
    await started.pop()
    assert len(started) == 2
    for writing in started:
        await writing
    assert due.due_count == 0


def due_marks(*, recurs: bool) -> Marks:
    """Marks of one record."""
    due = Marks(PLAN, engine_store(), MemoryBlobStore())
    due.add(DocumentKey("p", "1"), "1", Record("tx", b"f", NOW_MS, True), INBOX, recurs=recurs)
    return due


@dataclass
class Noted:
    """What a protocol without a ledger notes."""

    marks: Marks
    ledger: None = None

    @property
    def lingering(self) -> tuple[Marks, ...]:
        return (self.marks,)


async def test_a_partition_whose_marks_left_with_a_batch_waits_for_nothing() -> None:
    due = due_marks(recurs=True)
    assert [due.is_waiting, len(due.take("p")), due.is_waiting, due.due_count] == [True, 1, False, 0]


async def test_marks_linger_each_time_and_not_once_only() -> None:
    started = list[Coroutine[Any, Any, None]]()
    due = due_marks(recurs=False)
    lingering = Lingering(Noted(due), lambda: at_once(0))
    for turn in (1, 2):
        await lingering.write(started.append)
        await lingering.write(started.append)  # others wait for it already
        assert len(started) == 1, f"turn {turn}"
        while started:
            await started.pop()  # it ends, and starts the writing of the marks
        assert due.due_count == 0
        due.add(DocumentKey("p", str(turn)), "1", Record("tx", b"f", NOW_MS, True), INBOX)


@pytest.mark.parametrize(("recurs", "pauses"), [(False, 1), (True, marks.RECURRING_PAUSES)])
async def test_the_mark_of_a_key_that_recurs_waits_longer(recurs: bool, pauses: int) -> None:
    due, started, pause_count = due_marks(recurs=recurs), list[Coroutine[Any, Any, None]](), 0

    async def pause() -> None:
        nonlocal pause_count
        pause_count += 1
        assert due.due_count == 1

    await Lingering(Noted(due), pause).write(started.append)
    while started:
        await started.pop(0)
    assert (pause_count, due.due_count) == (pauses, 0)


# The sweeper


async def test_a_document_is_swept_when_its_grace_is_over() -> None:
    redone = list[str]()

    class Scope:
        async def redo(self, document: Document) -> bool:
            redone.append(document.key.id)
            return True

        async def finish(self) -> None: ...

    class Pending:
        async def unfinished(self) -> Any:
            for age_ms in (59_999, 60_000, 60_001):
                body = msgspec.json.encode({"pending": "tx", "at_ms": NOW_MS - age_ms})
                yield Document(DocumentKey("p", str(age_ms)), body, "1")

    swept = await sweep(Scope(), Pending(), now_ms=lambda: NOW_MS, grace_s=60.0)
    assert redone == ["60000", "60001"] and (swept.young_count, swept.finished_count) == (1, 2)
    assert swept.oldest_s == 60.001


@pytest.mark.parametrize(
    ("step_s", "count_max", "seen", "next_start"), [(0, 9, 6, 0), (0, 6, 6, 0), (0, 4, 4, 5), (20, 9, 4, 5)]
)
async def test_a_sweep_takes_so_many_documents_and_so_long(
    step_s: int, count_max: int, seen: int, next_start: int
) -> None:
    """Of those that it sees one is finished, and one is not ours; the next sweep skips what this one has left."""
    clock = VirtualClock(START_S)

    class Scope:
        async def redo(self, document: Document) -> bool:
            return document.key.id == "3"

        async def finish(self) -> None: ...

    class Pending:
        async def unfinished(self) -> AsyncIterator[Document]:
            for number in range(8):
                body = b"[" if number == 4 else b'{"pending":"tx"}'
                yield Document(DocumentKey("p", str(number)), body, "1")
                clock.seconds += step_s if number > 1 else 0

    found = await sweep(Scope(), Pending(), now_ms=clock.wall_ms, count_max=count_max, start=2)
    assert (found.seen_count, found.finished_count, found.foreign_count, found.next_start) == (seen, 1, 1, next_start)
    assert found.oldest_s == 0.0  # none says when it was written


async def test_a_sweep_begins_where_the_last_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = list[int]()

    async def cut(*stores: Any, start: int, **options: Any) -> Swept:
        starts.append(start)
        return Swept(0, 0, 0, 0, 0.0, next_start=7 if len(starts) == 1 else 0)

    monkeypatch.setattr(shell, "sweep", cut)
    protocol: Any = None
    recovery = shell.Recovery(protocol, [], settlements.FailedPushes(), now_ms=lambda: NOW_MS, counts=Counts())
    for _ in range(3):
        await recovery.sweep()
    assert starts == [0, 7, 0]


async def test_a_sweep_counts_as_pending_what_it_could_not_finish_and_no_ledger_without_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def found(*stores: Any, **options: Any) -> Swept:
        return Swept(9, 3, 1, 1, 71.5, idle_count=2)

    monkeypatch.setattr(shell, "sweep", found)
    protocol, counts = cast("Any", None), Counts()
    recovery = shell.Recovery(protocol, [], settlements.FailedPushes(), now_ms=lambda: NOW_MS, counts=counts)
    with caplog.at_level(logging.INFO, logger="outbox.worker"):
        await recovery.sweep()
    assert (counts.finished, counts.pending, counts.oldest_pending_s) == (3, 4, 71.5)
    (record,) = [vars(record) for record in caplog.records if record.message == "swept"]
    assert (record["unfinished"], record["finished"], record["oldest_s"]) == (7, 3, 71.5)


async def test_tasks_that_begin_others_are_waited_for_with_these() -> None:
    tasks, ended = shell.Tasks("app"), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.start(second())
        ended.append("first")

    tasks.start(first())
    await tasks.wait(5)
    assert ended == ["first", "second"] and not tasks.running


async def test_a_queue_that_cannot_be_looked_at_stops_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*stores: Any, **options: Any) -> Swept:
        return Swept(0, 0, 0, 0, 0.0)

    class Bus:
        async def waiting_since_ms(self, queue: str) -> int | None:
            if queue == "broken":
                raise ValueError("of the SDK's own")
            return {"empty": None, "ahead": NOW_MS + 5_000}.get(queue, NOW_MS - 5_000)

    monkeypatch.setattr(shell, "sweep", nothing)
    protocol, counts = cast("Any", None), Counts(depths={"broken": Depth(1.0)})
    parts: Any = (protocol, [], settlements.FailedPushes())
    watching: Any = {"counts": counts, "operations": Bus(), "queues": ("broken", "orders", "empty", "ahead")}
    assert (await shell.Recovery(*parts, now_ms=lambda: NOW_MS, **watching).sweep()).seen_count == 0
    assert counts.depths == {"orders": Depth(5.0), "empty": Depth(0.0), "ahead": Depth(0.0)}


# Recovery


@pytest.mark.parametrize(("age_ms", "is_kept"), [(3_599_999, False), (3_600_000, True)])
async def test_an_old_record_of_a_ledger_whose_outputs_cannot_be_sent_is_kept_until_they_have(
    age_ms: int, is_kept: bool
) -> None:
    class Failing:
        async def push(self, outputs: Sequence[Output]) -> None:
            raise NothingCommitted

    store, key = engine_store(), record_key("Sum:a", INBOX)
    record = Record("tx", b"", NOW_MS - age_ms, outputs=(Output("told", 0, Message(body=b"")),), entry="l/1")
    await store.write([Create(key, stored.encode(record), 60.0)])
    parts: Any = SimpleNamespace(settlement=Failing(), records=store, now_ms=lambda: NOW_MS, ports=None)
    nothing: Any = None
    document = await store.read(key)
    assert document is not None
    with pytest.raises(NothingCommitted):
        await Recovery(parts, nothing, nothing, nothing)._finish_entry(document, record)
    (left,) = [document async for document in store.scan("Sum:a")]
    assert stored.decode(left, Record) == (
        msgspec.structs.replace(record, pending=True, entry="") if is_kept else record
    )
    expires_ms = store._core.state.documents.spaces["p/Sum:a"][key.id].expires_ms
    assert (expires_ms == 0) is is_kept


async def test_so_many_ledgers_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "LOOKED_COUNT_MAX", 2)
    store, nothing = engine_store(), cast("Any", None)
    parts: Any = SimpleNamespace(records=store, now_ms=lambda: NOW_MS)
    recovery = Recovery(parts, nothing, nothing, nothing)
    for id in "abcd":
        await store.write([Create(ledger_key(id), stored.encode(LedgerItem(id, NOW_MS, 60_000)))])
        found = await store.read(ledger_key(id))
        assert found is not None and await recovery.redo(found) is None and len(recovery._looked) <= 2


async def test_what_has_left_with_a_record_closes_its_entry_and_those_of_earlier_attempts() -> None:
    pushed = list[Output]()

    class Pushing:
        async def push(self, outputs: Sequence[Output]) -> None:
            pushed.extend(outputs)

    store, ids = engine_store(), iter("ab")
    ledger = DispatchLedger(PLAN, store, now_ms=lambda: NOW_MS, new_id=lambda: next(ids))
    earlier, own, other = [await ledger.take() for _ in range(3)]
    parts: Any = SimpleNamespace(settlement=Pushing(), records=store, now_ms=lambda: NOW_MS, ports=None)
    nothing: Any = None
    outputs = (Output("told", 0, Message(body=b"")),)
    record = Record("tx", b"", NOW_MS, outputs=outputs, entry=own)
    document = Document(record_key("Sum:a", INBOX), b"", "1")
    for _ in range(2):  # once it is closed nothing is sent again
        await Recovery(parts, nothing, nothing, ledger).finish(document, record, INBOX, (earlier,))
    assert [ledger.is_closed(entry) for entry in (earlier, own, other)] == [True, True, False]
    assert pushed == list(outputs)


def test_an_applied_message_leaves_room_for_the_refusal_of_the_next() -> None:
    refused = Record("tx", b"", NOW_MS, reason="no")
    for limit, reserve in ((2 << 20, 8 << 10), (64 << 10, 1 << 10)):
        store: Any = SimpleNamespace(capabilities=SimpleNamespace(item_bytes_max=limit))
        for records, room in (([refused], limit), ([refused, Record("tx", b"", 1)], limit - reserve)):
            batch: Any = SimpleNamespace(entries=[SimpleNamespace(record=record) for record in records])
            assert room_for(store, batch) == room


# Markers of item scope


@pytest.mark.parametrize(("known", "token"), [("of the marker", "of the marker"), ("", "of the loss")])
async def test_a_marker_that_is_there_can_be_read_under_its_token_or_that_of_the_loss(known: str, token: str) -> None:
    states, made = ItemStore(engine_store()), Record("tx", b"f", NOW_MS)

    class There:
        capabilities = states.capabilities

        async def write(self, operations: Sequence[Write]) -> Lost:
            return Lost(0, Document(operations[0].key, stored.encode(made), "1", known), "of the loss")

    infrastructure: Any = There()
    nothing: Any = SimpleNamespace(lingering=(), ledger=None)
    ports = StorePorts(states, nothing, nothing, MemoryBlobStore(), infrastructure)
    parts = StoreParts(PLAN, ports, settlement(Bus()), lambda: NOW_MS, lambda: "tx", is_stopping=lambda: False)
    scope = ItemScope(parts, stateless=nothing)
    assert await scope._mark("Sum:a", INBOX, made) == token


# Threads


async def test_a_function_that_has_just_ended_holds_no_key() -> None:
    threads, ended = HandlerThreads(1), work(state_id="Sum:a")
    context: Any = SimpleNamespace(message=ended.delivery.message, work=ended)
    threads._leave(Job(HANDLER, context, lambda: None), "it was too late")
    assert not threads.holds(ended)


async def test_a_thread_that_is_taken_is_idle_no_more() -> None:
    threads, together = HandlerThreads(2), threading.Barrier(2)
    context: Any = SimpleNamespace(message=delivery().message, work=work())
    try:
        await threads.run(HANDLER, 1, context, lambda: None)
        both = (threads.run(HANDLER, 1, context, lambda: together.wait(0.5)) for _ in range(2))
        assert await asyncio.gather(*both, return_exceptions=True) == [None, None]
    finally:
        together.abort()
        threads.close()


async def test_a_thread_whose_function_ends_behind_a_close_ends_as_well() -> None:
    threads, may_end, before = HandlerThreads(1), threading.Event(), set(threading.enumerate())
    context: Any = SimpleNamespace(message=delivery().message, work=work())
    running = asyncio.create_task(threads.run(HANDLER, 5, context, may_end.wait))
    while not threads.running:  # noqa: ASYNC110  # no event says so it has begun
        await asyncio.sleep(0)
    own = [one for one in threading.enumerate() if one not in before and one.name.startswith("outbox handler")]
    threads.close()
    may_end.set()
    await running
    for thread in own:
        await asyncio.to_thread(thread.join, 2)
    assert [thread.is_alive() for thread in own] == [False]


# What lies beside the records


async def test_a_worker_reclaims_what_it_staged_in_vain_and_not_what_it_is_about_to_swap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = engine_store()
    monkeypatch.setattr(recoveries, "LEFT_COUNT_MAX", 1)
    left = OrphanedStaged(store, store)
    for tx in ("lost", "own"):
        left.note("Sum:a" if tx == "lost" else "Sum:b", tx, 1)  # of no further state, which is left to the sweeper
        await store.write([Create(staged_key("Sum:a", tx), b"{}")])
    await left.reclaim("Sum:a", state(1, version=1), but="")  # its swap may still land
    assert left.by_state == {"Sum:a": [("lost", 1)]}
    left.by_state["Sum:a"].append(("own", 1))
    await left.reclaim("Sum:a", state(1, version=2), but="own")
    assert [document.key.id async for document in store.scan("Sum:a")] == [staged_key("Sum:a", "own").id]


class Ages:
    """A store that notes for how long a document is written."""

    def __init__(self, store: EngineStore) -> None:
        self.read, self._write, self.lives_s = store.read, store.write, list[float | None]()

    async def write(self, writes: Sequence[Write]) -> Won | Lost:
        self.lives_s += [None if isinstance(write, Delete) else write.ttl_s for write in writes]
        return await self._write(writes)


async def test_a_failure_count_lives_as_long_as_a_record_from_each_failure_on() -> None:
    store: Any = Ages(engine_store())
    counts, ordered = FailureCounts(store, 60.0), work(in_order=True)
    for failures in (1, 2):
        await counts.note(ordered, Later(1.0, failures))
    assert store.lives_s == [60.0, 60.0]
    again = msgspec.structs.replace(ordered, delivery=msgspec.structs.replace(delivery(), delivery_count=5))
    attempt = Attempt(again)
    await counts.recall(attempt)
    assert (attempt.work.delivery.failures, attempt.work.delivery.delivery_count) == (2, 3)
    assert attempt.work.delivery_count == 6


class Tagged:
    """A store that notes what is written to it."""

    def __init__(self, store: EngineStore) -> None:
        self.read, self._write, self.tags = store.read, store.write, list[str]()

    async def write(self, writes: Sequence[Write]) -> Won | Lost:
        self.tags += [write.tag.what for write in writes if write.tag is not None]
        return await self._write(writes)


async def test_a_document_that_was_read_is_confirmed_while_it_is_unchanged_and_only_then() -> None:
    store, key = engine_store(), DocumentKey("p", "a")
    await store.write([Create(key, b"1")])
    stale = await store.read(key)
    assert stale is not None
    fresh = await confirmed(store, stale)
    assert (await confirmed(store, fresh)).body == b"1"
    with pytest.raises(NothingCommitted):
        await confirmed(store, stale)


async def test_that_nothing_is_staged_is_believed_behind_a_write_only() -> None:
    """A read may be older than the stage that it should see; one behind a write of its own is not."""
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    store: Any = Tagged(EngineStore(engine.core, engine.documents))
    overflows = Overflows(PLAN, store, store, MemoryBlobStore(), now_ms=engine.now_ms)
    key, overflow = announced("b", "mine", work(state_id="Sum:a"), 3, engine.now_ms())
    await overflows.announce(key, overflow)
    clock.seconds += 2 * PLAN.attempt_ms_max / 1_000 + 1
    document = await store.read(key)
    assert await overflows.collect(document, is_staged=True) and store.tags == ["overflow", "confirm", "collect"]


@pytest.mark.parametrize("is_premature", [False, True])
async def test_a_stop_is_one_although_a_record_was_found_meanwhile(
    is_premature: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(store_transaction, "run_branch", stopped)
    batch: Any = SimpleNamespace(superseded=Record("t", b"f", 0), is_premature=is_premature)
    with pytest.raises(asyncio.CancelledError):
        await store_transaction.run_in(cast(Any, None), batch, cast(Any, None), cast(Any, None))


# What a client sends and shows


def test_a_message_is_as_old_as_its_sender_says_or_as_when_it_is_due() -> None:
    client = Client(adding(), Engine.in_memory(clock=VirtualClock(START_S)))
    now_ms = round(START_S * 1_000)
    found = [
        client._output("adds", Message(body=b""), created, after_s)
        for created, after_s in ((None, 0), (None, 5), (7.5, 5))
    ]
    assert [(output.due_ms, output.message.created_ms) for output in found] == [
        (0, now_ms),
        (now_ms + 5_000, now_ms + 5_000),
        (now_ms + 5_000, 7_500),
    ]


def test_a_dead_letter_shows_when_its_message_was_made_or_else_when_it_came() -> None:
    client = Client(adding(), Engine.in_memory())
    for created_ms, made_s in ((2_500, 2.5), (0, 9.0)):
        message = Message(body=b'{"key":"a"}', outbox_id="1", type="Add", created_ms=created_ms)
        shown = client.dead_letter(DeadLetterEntry("adds", 1, message, "no", "why", 3, 9_000))
        assert (shown.id, shown.reason, shown.description, shown.delivery_count) == ("1", "no", "why", 3)
        assert shown.message == Add("a") and shown.created == made_s
