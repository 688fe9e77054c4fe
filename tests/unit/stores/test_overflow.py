"""Overflow blobs: kept while a record may need them, collected when none can."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from outbox import Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.errors import OutcomeUnknown, Throttled
from outbox.message import Message
from outbox.ports import Create, Delivery, Document, DocumentKey, Session
from outbox.runtime.commit.overflow import Overflows, announced, log_missing_blob, outputs_of
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.start.plan import compile_app
from outbox.runtime.work import Work
from outbox.stored import OVERFLOW_PREFIX, Record, StateItem, processed_key, record_key, staged_key, state_key
from tests.unit.stores.store_site import Add, Site, adding, found, handled, site, swept
from tests.unit.waiting import until

PENDING = Record("mine", b"", 0, pending=True, spilled="b")
PLAN = compile_app(adding())


def work(state_id: str | None, *, attempt: int = 0) -> Work:
    """The work of an attempt, as far as an announcement tells of it."""
    message = Message(body=b"{}", outbox_id="m0", attempt=attempt)
    return Work(Delivery("adds", 1, message, 1, 0, 0), state_id=state_id, inbox=b"inbox")


def blobs_of(at: Site) -> list[str]:
    return [name for name in getattr(at.engine.blobs, "_blobs", {}) if name.startswith("overflow/")]


async def announcements(at: Site, partition: str = "Sum:a") -> list[str]:
    return [id for id in await at.documents(partition) if id.startswith(OVERFLOW_PREFIX)]


async def test_the_blob_of_an_attempt_that_lost_is_collected(scope: str) -> None:
    async with site(scope) as at:
        at.store.late = "commit" if scope == "partition" else "stage"
        await handled(at, adding(), Add("a", text="shout"))
        assert len(blobs_of(at)) == 1 and len(await announcements(at)) == 2
        at.clock.seconds += 61
        await swept(at, adding())
        assert len(blobs_of(at)) == 1, "for all that can be told it is being written"
        at.clock.seconds += 2 * 3_600
        await swept(at, adding())
        assert blobs_of(at) == [] and await announcements(at) == []
        await at.store._store.write(at.store.on_its_way)  # it lands after all; in partition scope it loses
        assert at.engine.broker.queue("told").counts()["active"] == 20
        await swept(at, adding())
        assert at.engine.broker.queue("told").counts()["active"] == 20


async def test_the_blob_of_a_crashed_attempt_stays_while_that_may_still_land(scope: str) -> None:
    async with site(scope) as at:
        at.store.refused = "commit" if scope == "partition" else "stage"
        async with Worker(adding(), at, drain_s=0.1) as worker:
            await worker.send("adds", Add("a", text="shout"), id="m0")
            await until(lambda: blobs_of(at))
        count = len(blobs_of(at))
        at.clock.seconds += 61
        await swept(at, adding())
        assert len(blobs_of(at)) == count > 0
        at.clock.seconds += 8 * 86_400
        await swept(at, adding())
        assert blobs_of(at) == [] and await announcements(at) == []


@pytest.mark.parametrize(
    ("version", "record", "age_s", "goes"),
    [
        (4, None, 2 * 3_600, True),  # the state is past it, and it has no record: it can not land any more
        (4, None, 61, False),  # but may be about to write its blob
        (4, None, 3_600, False),  # for as long as two attempts may take
        (4, None, 3_601, True),
        (3, None, 2 * 3_600, False),  # it may land yet
        (4, PENDING, 2 * 3_600, False),  # it has landed, and is not dispatched
        (4, Record("mine", b"", 0), 0, True),  # it has landed, and is marked
        (4, Record("other", b"", 0, pending=True, spilled="c"), 2 * 3_600, True),
        (4, Record("other", b"", 0, pending=True, spilled="c"), 61, False),
    ],
)
async def test_a_blob_goes_only_when_no_record_that_is_not_dispatched_can_name_it(
    at: Site, version: int, record: Record | None, age_s: float, goes: bool
) -> None:
    store, blobs, now_ms = EngineStore(at.engine.core, at.engine.documents), MemoryBlobStore(), at.engine.now_ms
    await blobs.write("b", b"[]")
    await store.write([Create(state_key("Sum:a"), stored.encode(StateItem(version=version)))])
    if record is not None:
        await store.write([Create(record_key("Sum:a", b"inbox"), stored.encode(record))])
    overflows = Overflows(compile_app(adding()), store, store, blobs, now_ms=now_ms)
    key, overflow = announced("b", "mine", work("Sum:a"), 3, now_ms())
    await overflows.announce(key, overflow)
    at.clock.seconds += age_s
    assert await overflows.collect(await found(at, key), is_staged=False) == goes
    assert (await blobs.read("b", bytes_max=9) is None) == goes == (await announcements(at) == [])


class Behind(EngineStore):
    """A store whose reads without a session token know nothing of the records yet."""

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await super().read(key, session=session)
        if key == state_key("Sum:a") and found is not None:
            return Document(found.key, found.body, found.version, "fresh")
        return found if session == "fresh" else None


async def test_the_record_of_a_landed_attempt_is_read_as_fresh_as_the_state_it_moved(at: Site) -> None:
    store, blobs, now_ms = Behind(at.engine.core, at.engine.documents), MemoryBlobStore(), at.engine.now_ms
    await blobs.write("b", b"[]")
    await store.write([Create(state_key("Sum:a"), stored.encode(StateItem(version=4)))])
    await store.write([Create(record_key("Sum:a", b"inbox"), stored.encode(PENDING))])
    overflows = Overflows(compile_app(adding()), store, store, blobs, now_ms=now_ms)
    key, overflow = announced("b", "mine", work("Sum:a"), 3, now_ms())
    await overflows.announce(key, overflow)
    at.clock.seconds += 2 * 3_600
    assert not await overflows.collect(await found(at, key), is_staged=False)
    assert await blobs.read("b", bytes_max=9) == b"[]"


@pytest.mark.parametrize(
    ("record", "age_s", "goes"),
    [
        (None, 61, False),
        (Record("other", b"", 0), 61, False),  # it has lost, but may be about to write its blob
        (Record("other", b"", 0), 2 * 3_600, True),
        (None, 8 * 86_400, True),
        (PENDING, 8 * 86_400, False),
        (Record("other", b"", 0, reason="no"), 2 * 3_600, False),  # the attempt is its resubmission, and may replace it
        (Record("other", b"", 0, reason="no", attempt=1), 2 * 3_600, True),
        (Record("other", b"", 0, reason="no"), 8 * 86_400, True),
    ],
)
async def test_a_stateless_attempts_blob_goes_by_the_record_or_by_age(
    at: Site, record: Record | None, age_s: float, goes: bool
) -> None:
    store, blobs, now_ms = EngineStore(at.engine.core, at.engine.documents), MemoryBlobStore(), at.engine.now_ms
    await blobs.write("b", b"[]")
    overflows = Overflows(compile_app(adding()), store, store, blobs, now_ms=now_ms)
    key, overflow = announced("b", "mine", work(None, attempt=1), 0, now_ms())
    await overflows.announce(key, overflow)
    if record is not None:
        await store.write([Create(record_key(None, b"inbox"), stored.encode(record))])
    at.clock.seconds += age_s
    assert await overflows.collect(await found(at, key), is_staged=False) == goes
    assert (await blobs.read("b", bytes_max=9) is None) == goes


OTHER, MARKED = Record("other", b"", 0), Record("mine", b"", 0)
REFUSED = Record("other", b"", 0, reason="no")


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    ("is_staged", "record", "of_earlier_build", "life_ms", "until_ms"),
    [
        (False, OTHER, False, 0, 2 * PLAN.attempt_ms_max),
        (False, None, False, 0, PLAN.record_life_ms),
        (False, None, False, PLAN.record_life_ms + 5, PLAN.record_life_ms + 5),  # of a plan that remembers for longer
        (False, REFUSED, True, 0, PLAN.record_life_ms),  # which attempt it was is not known: it may replace the refusal
        (True, None, False, 0, 2 * PLAN.attempt_ms_max),
        (True, OTHER, False, PLAN.record_life_ms, PLAN.record_life_ms),
    ],
)
async def test_a_blob_goes_when_the_time_of_its_attempt_is_over_and_no_sooner(
    at: Site, is_staged: bool, record: Record | None, of_earlier_build: bool, life_ms: int, until_ms: int, is_over: bool
) -> None:
    store, blobs = EngineStore(at.engine.core, at.engine.documents), MemoryBlobStore()
    await blobs.write("b", b"[]")
    key, overflow = announced("b", "mine", work("Sum:a", attempt=1), 3, 0, life_ms)
    if of_earlier_build:
        overflow = msgspec.structs.replace(overflow, attempt=None)
    overflows = Overflows(PLAN, store, store, blobs, now_ms=lambda: until_ms + is_over)
    await overflows.announce(key, overflow)
    if record is not None:
        place = processed_key("Sum:a", b"inbox") if is_staged else record_key("Sum:a", b"inbox")
        await store.write([Create(place, stored.encode(record))])
    assert await overflows.collect(await found(at, key), is_staged=is_staged) == is_over
    assert (await blobs.read("b", bytes_max=9) is None) == is_over


async def test_the_blob_of_an_attempt_that_has_landed_and_is_not_staged_any_more_goes_at_once(at: Site) -> None:
    store, blobs = EngineStore(at.engine.core, at.engine.documents), MemoryBlobStore()
    await blobs.write("b", b"[]")
    key, overflow = announced("b", "mine", work("Sum:a"), 3, 0)
    overflows = Overflows(PLAN, store, store, blobs, now_ms=lambda: 0)
    await overflows.announce(key, overflow)
    await store.write([Create(processed_key("Sum:a", b"inbox"), stored.encode(MARKED))])
    assert await overflows.collect(await found(at, key), is_staged=True)
    assert await blobs.read("b", bytes_max=9) is None and await announcements(at) == []


@pytest.mark.parametrize("record", [None, OTHER, MARKED])
async def test_a_blob_stays_while_the_record_that_names_it_is_staged(at: Site, record: Record | None) -> None:
    store, blobs = EngineStore(at.engine.core, at.engine.documents), MemoryBlobStore()
    await blobs.write("b", b"[]")
    key, overflow = announced("b", "mine", work("Sum:a"), 3, 0)
    overflows = Overflows(PLAN, store, store, blobs, now_ms=lambda: 9 * PLAN.record_life_ms)
    await overflows.announce(key, overflow)
    await store.write([Create(staged_key("Sum:a", "mine"), stored.encode(PENDING))])
    if record is not None:
        await store.write([Create(processed_key("Sum:a", b"inbox"), stored.encode(record))])
    assert not await overflows.collect(await found(at, key), is_staged=True)
    assert await blobs.read("b", bytes_max=9) == b"[]"


@pytest.mark.parametrize("error", [OutcomeUnknown("silence"), Throttled("busy")])
async def test_outputs_that_cannot_be_read_now_are_asked_for_again(error: Exception) -> None:
    class Down(MemoryBlobStore):
        async def read(self, name: str, *, bytes_max: int) -> bytes | None:
            raise error

    with pytest.raises(NothingCommitted):
        await outputs_of(PENDING, Down())


@pytest.mark.parametrize("what", ["names it", "marked meanwhile", "gone meanwhile", "changed behind the read"])
async def test_a_missing_blob_is_reported_only_where_a_document_still_names_it(
    at: Site, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Stale(EngineStore):
        async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
            found = await super().read(key, session=session)
            return None if found is None else Document(found.key, found.body, found.version + "0", found.session)

    store, key = EngineStore(at.engine.core, at.engine.documents), record_key("Sum:a", b"inbox")
    if what != "gone meanwhile":
        record = MARKED if what == "marked meanwhile" else PENDING
        await store.write([Create(key, stored.encode(record))])
    if what == "changed behind the read":
        with pytest.raises(NothingCommitted):
            await log_missing_blob(Stale(at.engine.core, at.engine.documents), key, "", "b")
    else:
        await log_missing_blob(store, key, "", "b")
    assert ("restore the blob" in caplog.text) == (what == "names it")


async def test_outputs_that_are_gone_before_they_have_left_are_reported(
    scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(scope) as at:
        at.bus.is_mute = True
        async with Worker(adding(), at, drain_s=0.1) as worker:
            at.bus.is_mute = False
            await worker.send("adds", Add("a", text="shout"), id="m0")
            at.bus.is_mute = True
            await asyncio.sleep(0.3)
        for name in blobs_of(at):
            await at.engine.blobs.delete(name)
        at.clock.seconds += 61
        with caplog.at_level(logging.CRITICAL):
            await swept(at, adding())
        assert "restore the blob" in caplog.text
        (record,) = [vars(found) for found in caplog.records if "restore the blob" in found.message]
        assert record["document"].startswith("Sum:a/") and record["blob"].startswith("overflow/")
