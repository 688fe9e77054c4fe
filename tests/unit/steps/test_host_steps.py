"""Single steps of requests, clients and workers, each asked by itself."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import msgspec
import pytest

from outbox import App, Client, HttpEntry, Worker
from outbox.context import BlobRef
from outbox.engine.engine import Engine
from outbox.engine.entities import Settlement as Settled
from outbox.engine.log.records import Cancelled, Committed
from outbox.errors import Refused
from outbox.http import Request
from outbox.message import Message
from outbox.ports import Delivery, Refusal
from outbox.resubmission import resubmission
from outbox.runtime.delivery.admission import admit
from outbox.runtime.failures.error_text import CHAIN_COUNT_MAX, stack_of
from outbox.runtime.http import requests, responses
from outbox.runtime.start.plan import compile_app
from outbox.testing import START_S, VirtualClock
from tests.unit.steps.making import NOW_MS, PLAN, Add, adding, delivery
from tests.unit.waiting import until

# Requests


def test_a_client_is_asked_to_come_again_within_a_day() -> None:
    for after_s, asked_s in ((0, "1"), (30, "30"), (1_000_000_000, "86400")):
        headers = {name.lower(): text for name, text in responses.unavailable(after_s).headers.items()}
        assert headers["retry-after"] == asked_s


@pytest.mark.parametrize("given", ["00-" + "1" * 32 + "-" + "2" * 16 + "-01", "nonsense", "00-1-2-01", ""])
def test_only_a_trace_that_can_be_one_is_passed_on(given: str) -> None:
    request = Request("POST", "/", {"traceparent": given})
    assert requests._traceparent(request) == (given if given.startswith("00-1111") else "")


# Clients and workers


def test_a_resubmission_has_not_failed_yet_and_begins_a_chain() -> None:
    dead = Message(body=b"{}", outbox_id="1", failures=3, hops=2, attempt=4)
    again = resubmission(dead, attempt=5, enqueued_ms=NOW_MS)
    assert (again.failures, again.hops, again.attempt, again.created_ms) == (0, 0, 5, NOW_MS)


@pytest.mark.parametrize("spare_ms", [0, 1])
async def test_a_dead_letter_as_old_as_retention_needs_a_record(spare_ms: int) -> None:
    engine, app = Engine.in_memory(clock=VirtualClock(START_S)), adding()
    client = Client(app, engine)
    await client.declare()
    created_ms = engine.now_ms() - PLAN.retention_ms + spare_ms
    engine.broker.send("adds", [msgspec.structs.replace(delivery().message, created_ms=created_ms)])
    (claim,) = engine.broker.claim("adds", 1)
    engine.broker.settle(claim.token, Settled.DEAD_LETTER, reason="no")
    if spare_ms:
        await client.resubmit("adds", "1")
    else:
        with pytest.raises(Refused, match="the record of it is gone"):
            await client.resubmit("adds", "1")


async def test_an_old_dead_letter_may_go_back_when_any_of_its_handlers_refused_it_on_record() -> None:
    app = App("several")
    for name in ("first", "second"):

        @app.handler("adds", name=name, key="key")
        def add(message: Add) -> None: ...

    engine = Engine.in_memory(clock=VirtualClock(START_S))
    client, plan, now_ms = Client(app, engine), compile_app(app), engine.now_ms()
    await client.declare()
    old = msgspec.structs.replace(delivery().message, created_ms=now_ms - plan.retention_ms)
    engine.broker.send("adds", [old])
    (claim,) = engine.broker.claim("adds", 1)
    engine.broker.settle(claim.token, Settled.DEAD_LETTER, reason="no")
    (admitted,) = admit(plan, [Delivery("adds", 1, old, 0, now_ms, 0)], now_ms)
    (second,) = admitted.others
    refused = {second.inbox: Refusal(second.fingerprint, "no", "")}
    engine.core.do(Committed(now_ms, now_ms + 1_000, {}, {}, [], {}, refused, [], []))
    await client.resubmit("adds", "1")


async def test_a_blob_that_was_changed_is_not_handed_out() -> None:
    engine = Engine.in_memory()
    client, digest = Client(adding(), engine), sha256(b"one").hexdigest()
    for name, data in (("whole", b"one"), ("changed", b"two")):
        await engine.blobs.write(name, data)
    assert await client.blob(BlobRef("whole", 3, digest)) == b"one"
    for name in ("changed", "missing"):
        with pytest.raises(LookupError, match="gone or was changed"):
            await client.blob(BlobRef(name, 3, digest))


async def test_locks_are_looked_at_as_often_as_the_shortest_that_there_is_now() -> None:
    async with Engine.in_memory(clock=VirtualClock(START_S)) as engine:
        worker = Worker(adding(), engine)
        (claims,) = worker._claim_groups
        for lock_ms in (200, 60_000):
            held = msgspec.structs.replace(delivery(), locked_until_ms=engine.now_ms() + lock_ms)
            worker._note(claims, [held])
        worker._look.set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await worker._renew_loop()
        assert worker._shortest_ms == 60_000


async def test_what_a_worker_has_in_flight_when_it_stops_is_released_uncounted(engine: Engine) -> None:
    app = App("stops")
    app.queue("adds")

    @app.handler("adds")
    async def wait(message: Add) -> None:
        await asyncio.Event().wait()

    async with Worker(app, engine, drain_s=0.01) as worker:
        await worker.send("adds", Add("a"), id="1")
        await until(lambda: worker._is_busy)
    (task,) = engine.broker.peek("adds", 0, 9)
    assert (task.state, task.delivery_count) == ("active", 0)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_body_up_to_the_limit_is_taken(more: int) -> None:
    app = App("bodies")

    @app.http("POST", "/adds")
    def add(message: Add) -> None: ...

    body = b'{"key":"a"}'
    async with (
        Engine.in_memory() as engine,
        HttpEntry(app, engine, body_bytes_max=len(body)) as entry,
    ):
        response = await entry.handle("POST", "/adds", {"Idempotency-Key": "1"}, body + b" " * more)
    assert response.status == (413 if more else 204)


async def test_a_worker_is_not_idle_while_its_handler_runs_on_for_a_message_that_is_gone(engine: Engine) -> None:
    app, is_over = App("gone"), asyncio.Event()
    app.queue("adds")

    @app.handler("adds")
    async def wait(message: Add) -> None:
        await is_over.wait()

    async with Worker(app, engine, drain_s=0.01) as worker:
        await worker.send("adds", Add("a"), id="1")
        await until(lambda: worker._is_busy)
        engine.core.do(Cancelled(engine.broker.queue("adds").number, [1]))
        with pytest.raises(TimeoutError):
            await worker.wait_idle(timeout_s=0.05)
        is_over.set()
        await worker.wait_idle(timeout_s=5)


def test_a_stack_shows_so_many_causes_and_no_more() -> None:
    error: BaseException | None = None
    for number in range(9):
        cause, error = error, ValueError(str(number))
        error.__cause__ = cause
    assert error is not None and stack_of(error).count("caused by") == CHAIN_COUNT_MAX - 1


def test_a_stack_shows_all_of_a_group_and_nothing_of_what_its_raiser_hides() -> None:
    shown = stack_of(ExceptionGroup("several", [ValueError("one"), ValueError("two")]))
    assert "in it ValueError: one" in shown and "in it ValueError: two" in shown
    error = ValueError("told")
    error.__context__, error.__suppress_context__ = KeyError("hidden"), True
    assert "hidden" not in stack_of(error)
