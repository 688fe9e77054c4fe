"""A store that refuses for good: it is told, the messages rest, and when it takes writes again everything is right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox import App, Client, Context, Engine, HttpEntry, Worker
from outbox.errors import Refused
from outbox.runtime.delivery.retrying import REST_FIRST_S, REST_MAX_S, Backoff
from tests.unit.stores.store_site import Add, Site, Sum, adding
from tests.unit.waiting import until


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often something had failed at each rest of a worker, which is short here."""
    counts: list[int] = []

    async def rest(self: Backoff, count: int) -> None:
        counts.append(count)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Backoff, "rest", rest)
    return counts


async def test_a_commit_that_is_refused_for_good_is_logged_and_tried_ever_more_seldom(
    at: Site, caplog: pytest.LogCaptureFixture, rests: list[int]
) -> None:
    at.store.refused = "commit"
    async with Worker(adding(), at) as worker:
        await worker.send("adds", Add("a"), id="m")
        await until(lambda: len(rests) >= 3)
        reported = [record for record in caplog.records if "could be committed" in record.message]
        assert len(reported) == 1 and "not now" in reported[0].__dict__["error"]
        at.store.refused = ""
        await worker.wait_idle()
        assert await worker.state(Sum, "a") == Sum(1)
    assert rests == list(range(len(rests)))


async def test_a_blob_store_that_refuses_for_good_is_logged_and_tried_ever_more_seldom_in_engine_scope(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, rests: list[int]
) -> None:
    app, refuses = App("drawing"), True

    @app.handler("adds", key="key")
    def draw(add: Add, total: Sum, ctx: Context) -> None:
        total.n += 1
        ctx.write_blob("picture", b"a line")

    write = engine.blobs.write

    async def refused(name: str, data: bytes) -> bool:
        if refuses:
            raise Refused("the drawer is full")
        return await write(name, data)

    monkeypatch.setattr(engine.blobs, "write", refused)
    async with Worker(app, engine) as worker:
        await worker.send("adds", Add("a"), id="m")
        await until(lambda: len(rests) >= 3)
        reported = [record for record in caplog.records if "could be committed" in record.message]
        assert len(reported) == 1 and "the drawer is full" in reported[0].__dict__["error"]
        refuses = False
        await worker.wait_idle()
        assert await worker.state(Sum, "a") == Sum(1)
    assert rests == list(range(len(rests)))


async def test_a_worker_that_stops_does_not_wait_for_a_message_to_have_rested(
    at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.runtime.delivery.retrying.REST_FIRST_S", 60.0)
    monkeypatch.setattr("outbox.runtime.delivery.retrying.REST_MAX_S", 60.0)
    at.store.refused = "commit"
    async with asyncio.timeout(15):
        async with Worker(adding(), at) as worker:
            await worker.send("adds", Add("a"), id="m")
            await until(lambda: worker._scope.retry_backoff.count)
    assert at.engine.broker.queue("adds").counts()["active"] == 1


async def test_rests_grow_up_to_a_limit() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    for count in (0, 3, 1_000):
        await Backoff(sleep).rest(count)
    assert slept[0] <= 1.5 * REST_FIRST_S < slept[1] <= 12 * REST_FIRST_S
    assert REST_MAX_S / 2 <= slept[2] <= 1.5 * REST_MAX_S


@pytest.mark.parametrize("count", [1, 2])
async def test_the_first_commit_over_a_store_ends_a_row_of_releases(at: Site, count: int) -> None:
    client = Client(adding(), at)
    await client.declare()
    for number in range(count):
        await client.send("adds", Add("a"), id=str(number))
    worker = Worker(adding(), at)
    async with worker:
        worker._scope.retry_backoff.count = 5
        await worker.wait_idle()
        assert worker._scope.retry_backoff.count == 0
    assert at.store.calls["commit"] == 1, "several commit together"


async def test_a_request_that_cannot_be_committed_is_answered_and_logged_once(
    at: Site, caplog: pytest.LogCaptureFixture
) -> None:
    app: Any = adding()

    @app.http("POST", "/adds", key="key")  # type: ignore[untyped-decorator]
    def answer(message: Add, total: Sum) -> int:
        total.n += message.n
        return total.n

    async with HttpEntry(app, at) as entry:
        at.store.refused = "commit"
        for number in range(2):
            response = await entry.handle("POST", "/adds", {"Idempotency-Key": f"{number}"}, b'{"key": "a"}')
            assert response.status == 503
        assert [record.__dict__["error"] for record in caplog.records] == ["outbox.errors.Throttled: not now"]
