"""What a look into a queue says of each message: its state, and why it is in it."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, structs

from outbox.app import App
from outbox.context import Context
from outbox.deliveries import HeldMessage
from outbox.emulator.amqp.deliveries import encode_peeked
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.errors import Refused, UnknownDestination
from outbox.message import Message, with_error
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.host.host import _log_unhandled
from outbox.ops.messages.command import messages_text
from outbox.ops.messages.doctor import of_status
from outbox.ops.messages.status import status_text
from outbox.ops.shared import on_engine, text
from outbox.ops.shared.held_messages import WORKER, state_of, view_of, waits_for, why
from outbox.ops.values.messages import Cancel, Find, MakeDue, MessageView, Peek, Peeked
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import QueueStatus, ReadStatus, Status
from outbox.resubmission import resubmission
from outbox.retries import Reject, Retries, Retry
from outbox.testing import START_S, Harness, VirtualClock
from outbox.worker import Worker
from tests.unit.messages import Order, deliver

app = App("bank", retry=Retries(limit=3, delays_s=(60.0,)))
app.queue("ledger", "per_key")


@dataclass
class Account:
    count: int = 0


@app.handler("orders", key="key")
def book(order: Order, account: Account, ctx: Context) -> None:
    act(order)


@app.handler("ledger", key="key", on_dead_letter="stop_key")
def enter(order: Order, account: Account) -> None:
    act(order)


def act(order: Order) -> None:
    match order.how:
        case "fail":
            raise ValueError("the price is unknown")
        case "ask":
            raise Retry("no stock yet", after_s=500)
        case "refuse":
            raise Reject("nothing ordered")


async def looked(admin: Admin, queue: str, **how: Any) -> dict[str, MessageView]:
    return {view.id: view for view in (await admin.ask(Peek(queue, **how))).messages}


async def test_each_message_says_why_it_waits(engine: Engine, admin: Admin) -> None:
    async with Worker(app, engine) as worker:
        for id, how in (("m1", "fail"), ("m2", "ask")):
            await worker.send("orders", Order(id, how), id=id)
        for id, key, how in (("k1", "k", "fail"), ("k2", "k", ""), ("j1", "j", "refuse"), ("j2", "j", "")):
            await worker.send("ledger", Order(key, how), id=id)
        await worker.send("orders", Order("later"), id="m3", after_s=3_600)
        await worker.wait_idle(timeout_s=10)
    orders = await looked(admin, "orders")
    ledger = await looked(admin, "ledger")
    assert {id: view.state for id, view in orders.items()} == {"m1": "retrying", "m2": "retrying", "m3": "scheduled"}
    failed = orders["m1"]
    assert (failed.failures, failed.error) == (1, "ValueError: the price is unknown")
    assert failed.why.startswith("next try in ") and failed.why.endswith(
        "1 failed attempt, put back for: " + failed.error
    )
    assert (orders["m2"].failures, "no stock yet" in orders["m2"].why) == (0, True)
    assert orders["m3"].why.startswith("due in ") and isinstance(orders["m3"].due, float)
    assert {id: view.state for id, view in ledger.items()} == {"k1": "retrying", "k2": "waiting", "j2": "blocked"}
    assert ledger["k2"].why.startswith(f"behind number {ledger['k1'].sequence} of its key, which is tried again in ")
    assert ledger["j2"].why == "its key is blocked by dead letter 'j1': resubmit or discard that one"


async def test_what_a_message_was_put_back_for_survives_a_restart(disk_path: Path) -> None:
    async with Engine.open(disk_path) as engine, Worker(app, engine) as worker:
        await worker.send("orders", Order("m1", "fail"), id="m1")
        await worker.wait_idle(timeout_s=10)
    for is_from_snapshot in (False, True):
        async with Engine.open(disk_path) as engine:
            found = await looked(EngineAdmin(engine), "orders")
            assert found["m1"].error == "ValueError: the price is unknown", is_from_snapshot
            engine.compact()


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
async def test_in_every_scope_the_delayed_message_carries_its_error(scope: Any) -> None:
    async with Harness(app, scope=scope) as world:
        await world.send("orders", Order("m1", "fail"), id="m1")
        await deliver(world, "ledger", Order("k1", "fail"), id="k1")
        for queue, id in (("orders", "m1"), ("ledger", "k1")):
            found = (await looked(EngineAdmin(world.engine), queue))[id]
            assert (found.state, found.error) == ("retrying", "ValueError: the price is unknown"), queue
            assert found.failures == 1


def test_a_resubmission_says_no_error_and_keeps_what_its_sender_said() -> None:
    message = with_error(Message(body=b"{}", properties={"mine": 1}), "the price is unknown")
    assert message.properties == {"mine": 1, "outbox-error": "the price is unknown"}
    again = resubmission(message, attempt=1, enqueued_ms=5)
    assert (again.error, again.properties) == ("", {"mine": 1})
    assert resubmission(with_error(Message(body=b"{}"), "x"), attempt=1, enqueued_ms=5).properties is None


async def test_a_page_goes_on_behind_the_last_and_shows_one_state_or_one_key(engine: Engine) -> None:
    app_admin = EngineAdmin(engine)
    async with Worker(app, engine):
        pass
    for n in range(5):
        engine.broker.send("ledger", [Message(body=b"{}", outbox_id=f"m{n}", session_id=f"k{n % 2}")])
    first = await app_admin.ask(Peek("ledger", count=3))
    assert ([view.id for view in first.messages], first.more) == (["m0", "m1", "m2"], first.messages[-1].sequence)
    rest = await app_admin.ask(Peek("ledger", after=first.more, count=3))
    assert ([view.id for view in rest.messages], rest.more) == (["m3", "m4"], 0)
    assert list(await looked(app_admin, "ledger", key="k1")) == ["m1", "m3"]
    [held] = engine.broker.claim("ledger", 1)
    assert list(await looked(app_admin, "ledger", state="in-hand")) == ["m0"]
    assert list(await looked(app_admin, "ledger", state="waiting")) == ["m1", "m2", "m3", "m4"]
    behind = (await looked(app_admin, "ledger"))["m2"]
    assert behind.why == f"behind number {held.sequence} of its key, which is in hand"
    engine.broker.settle(held.token, Settlement.DEFER)
    deferred = (await looked(app_admin, "ledger", state="deferred"))["m0"]
    assert str(held.sequence) in deferred.why
    with pytest.raises(UnknownDestination, match="no-such"):
        await app_admin.ask(Peek("no-such"))


async def test_why_it_was_put_back_is_not_told_to_receivers_as_if_it_were_dead(engine: Engine) -> None:
    engine.declare(QueueSettings("orders"))
    engine.broker.send("orders", [Message(body=b"{}", outbox_id="m1")])
    [claim] = engine.broker.claim("orders", 1)
    engine.broker.settle(claim.token, Settlement.ABANDON, description="the price is unknown")
    assert (await looked(EngineAdmin(engine), "orders"))["m1"].error == "the price is unknown"
    [task] = engine.broker.peek("orders", 0, 1)
    assert b"DeadLetter" not in encode_peeked(task)
    [claim] = engine.broker.claim("orders", 1)
    assert (claim.reason, claim.description) == ("", "")
    engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="", description="by hand")
    [dead] = engine.broker.peek("orders/$DeadLetterQueue", 0, 1)
    assert b"by hand" in encode_peeked(dead)
    engine.dead_letters.resubmit("orders", dead.sequence)
    assert (await looked(EngineAdmin(engine), "orders"))["m1"].error == ""


async def test_a_handler_that_hangs_is_named_with_its_age_and_its_line(engine: Engine, admin: Admin) -> None:
    slow = App("slow")
    entered, let_go = asyncio.Event(), asyncio.Event()

    async def inner() -> None:
        entered.set()
        await let_go.wait()

    @slow.handler("orders", key="key")
    async def hang(order: Order, account: Account) -> None:
        await inner()

    @slow.handler("threads", key="key", blocking=True)
    def block(order: Order, account: Account) -> None:
        stop.wait(10)

    stop = threading.Event()
    line = inner.__code__.co_firstlineno + 2
    async with Worker(slow, engine) as worker:
        await worker.send("orders", Order("k"), id="m1")
        await worker.send("threads", Order("other"), id="m2")
        await entered.wait()
        async with asyncio.timeout(5):
            while not (view := (await looked(admin, "threads"))["m2"]).handler:  # noqa: ASYNC110  # nobody says when
                await asyncio.sleep(0.01)
        assert (view.handler, view.at) == ("block", "in a thread")
        view = (await looked(admin, "orders"))["m1"]
        assert (view.state, view.handler) == ("in-hand", "hang")
        assert view.at == f"{__file__}:{line} in inner" and isinstance(view.since, float)
        assert view.why.startswith("handler hang has waited for ") and view.at in view.why
        assert isinstance(view.locked_until, float) and "the lock ends in" in view.why
        let_go.set()
        stop.set()
        await worker.wait_idle(timeout_s=10)


async def test_what_is_scheduled_can_be_cancelled_and_what_is_tried_again_cannot(engine: Engine, admin: Admin) -> None:
    async with Worker(app, engine) as worker:
        for id in ("later-1", "later-2", "later-2", "later-30"):
            await worker.send("orders", Order("k"), id=id, after_s=3_600)
        await worker.send("orders", Order("k", "fail"), id="m1")
        await worker.wait_idle(timeout_s=10)
    assert (await admin.ask(Cancel("orders", "later-2"))).count == 2
    with pytest.raises(Refused, match="2 scheduled messages of orders begin with 'later'"):
        await admin.ask(Cancel("orders", "later"))
    moved = await admin.ask(Cancel("orders", "later-30"))
    assert (moved.count, moved.id) == (1, "later-30")
    for id in ("m1", "later-2", "nothing"):
        with pytest.raises(LookupError, match=f"nothing is scheduled in orders under '{id}'"):
            await admin.ask(Cancel("orders", id))
    with pytest.raises(UnknownDestination):
        await admin.ask(Cancel("no-such", "later-1"))
    assert list(await looked(admin, "orders")) == ["later-1", "m1"]


async def test_what_is_scheduled_or_tried_again_can_be_due_now(engine: Engine, admin: Admin) -> None:
    async with Worker(app, engine) as worker:
        for id in ("later-1", "later-2", "later-30"):
            await worker.send("orders", Order("k"), id=id, after_s=3_600)
        await worker.send("orders", Order("k", "fail"), id="m1")
        await worker.wait_idle(timeout_s=10)
        before = (await looked(admin, "orders"))["m1"]
        moved = await admin.ask(MakeDue("orders", "later-30"))
        assert (moved.count, moved.id) == (1, "later-30")
        await worker.wait_idle(timeout_s=10)
        assert list(await looked(admin, "orders")) == ["later-1", "later-2", "m1"]
        assert (await admin.ask(MakeDue("orders", "m1"))).count == 1
        await worker.wait_idle(timeout_s=10)
        again = (await looked(admin, "orders"))["m1"]
        assert (again.state, again.failures) == ("retrying", before.failures + 1)
        with pytest.raises(Refused, match="2 messages that orders holds for later begin with 'later-'"):
            await admin.ask(MakeDue("orders", "later-"))
        for id in ("later-30", "nothing"):
            with pytest.raises(LookupError, match=f"orders holds nothing for later under '{id}'"):
                await admin.ask(MakeDue("orders", id))
        with pytest.raises(UnknownDestination):
            await admin.ask(MakeDue("no-such", "later-1"))


async def test_what_is_for_later_shows_when_it_is_due_and_not_as_when_it_was_enqueued(
    engine: Engine, admin: Admin
) -> None:
    async with Worker(app, engine) as worker:
        await worker.send("orders", Order("k"), id="later-1", after_s=3_600)
        await worker.send("orders", Order("k", "fail"), id="m1")
        await worker.wait_idle(timeout_s=10)
    engine.broker.send("orders", [Message(body=b"1", outbox_id="m2")])
    found = (await admin.ask(Peek("orders"))).messages
    head, *rows = messages_text("orders", Peeked(found)).splitlines()
    assert head.split() == ["number", "id", "state", "key", "enqueued", "due", "why"]
    times = {row.split()[1]: [time != "-" for time in row.split()[4:6]] for row in rows}
    assert times == {"later-1": [False, True], "m1": [True, True], "m2": [True, False]}
    later = next(view for view in found if view.id == "later-1")
    assert later.enqueued is UNSET and isinstance(later.due, float)
    head, row = messages_text("orders", Peeked([later])).splitlines()
    assert head.split() == ["number", "id", "state", "key", "due", "why"]
    assert row.split()[4] == text.utc(later.due)


async def test_a_count_tells_what_waits_for_its_next_try_from_what_was_scheduled(engine: Engine) -> None:
    async with Worker(app, engine) as worker:
        for n in range(2):
            await worker.send("orders", Order("k"), id=f"later-{n}", after_s=3_600)
        await worker.send("orders", Order("k", "fail"), id="m1")
        await worker.send("orders", Order("k", "ask"), id="m2")
        await worker.wait_idle(timeout_s=10)
    admin = EngineAdmin(engine)
    found, status = await looked(admin, "orders"), await admin.ask(ReadStatus())
    assert sum(view.state == "retrying" for view in found.values()) == status.queues["orders"].retrying == 2
    line = "orders: 2 of 4 scheduled are next tries; `outbox queue peek orders --state retrying` says why"
    assert line in status_text(status).splitlines()


def test_a_queue_whose_messages_are_only_tried_again_is_not_listed_as_one_with_scheduled_ones(
    disk_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def prepare() -> None:
        async with Engine.open(disk_path) as engine, Worker(app, engine) as worker:
            await worker.send("orders", Order("k", "fail"), id="m1")
            await worker.wait_idle(timeout_s=10)

    asyncio.run(prepare())
    assert main(["schedule", "list", "--data", str(disk_path)]) == 0
    assert capsys.readouterr().out == "nothing is scheduled in any queue\n"


def test_a_bus_that_counts_both_alike_does_not_seem_to_count_what_was_scheduled_alone() -> None:
    queue = QueueStatus(active=0, scheduled=3, deferred=0, dead_letters=0, oldest_s=None)
    line = "scheduled are next tries, too; `outbox queue peek QUEUE` tells them apart"
    assert line in status_text(Status({"orders": queue}, 0)).splitlines()
    assert "next tr" not in status_text(Status({"orders": structs.replace(queue, scheduled=0)}, 0))
    assert "next tr" not in status_text(Status({"orders": structs.replace(queue, retrying=0)}, 0))


def test_a_bus_that_tells_when_a_scheduled_message_was_sent_has_both_times() -> None:
    view = view_of("q", held(status="scheduled", enqueued_ms=1_000, due_ms=31_000), 2_000)
    assert (view.enqueued, view.due) == (1.0, 31.0)
    assert view_of("q", held(status="scheduled", enqueued_ms=31_000, due_ms=31_000), 2_000).enqueued is UNSET
    keeps_its_place = view_of("q", held(due_ms=31_000), 2_000)
    assert (keeps_its_place.state, keeps_its_place.enqueued, keeps_its_place.due) == ("retrying", 1.0, 31.0)
    was_scheduled = messages_text("q", Peeked([view_of("q", held(due_ms=500), 2_000)]))
    assert was_scheduled.splitlines()[0].split() == ["number", "id", "state", "key", "enqueued", "why"]


def held(**more: Any) -> HeldMessage:
    known: dict[str, Any] = {"sequence": 7, "message": Message(body=b"x", outbox_id="m"), "status": "active"}
    return HeldMessage(**(known | {"enqueued_ms": 1_000} | more))


def test_each_field_of_a_message_is_shown_under_its_name() -> None:
    message = Message(
        body=b"12345", outbox_id="m", type="T", created_ms=2_000, session_id="k", correlation_id="c", traceparent="t"
    )
    view = view_of(
        "q",
        HeldMessage(
            sequence=7, message=message, status="locked", enqueued_ms=3_000, due_ms=4_000, locked_until_ms=15_000,
            delivery_count=8, failures=9, error="e", handler="h", since_ms=5_000, at="a.py:1 in f",
        ),
        10_000,
    )  # fmt: skip
    assert view == MessageView(
        id="m", sequence=7, queue="q", state="in-hand", type="T", key="k", created=2.0, enqueued=3.0, due=4.0,
        locked_until=15.0, handler="h", since=5.0, at="a.py:1 in f", failures=9, deliveries=8, error="e",
        correlation_id="c", size_bytes=5,
        why="handler h has waited for 5.0 s at a.py:1 in f; the lock ends in 5.0 s; 9 failed attempts, 8 deliveries "
        "that nobody settled, put back for: e",
    )  # fmt: skip


def test_a_queue_that_is_paused_waits_for_that_whoever_has_a_handler() -> None:
    assert "paused until `outbox queue resume q`" in waits_for("q", paused=True, app_without_handler="shop")


async def test_the_oldest_is_that_of_all_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_engine, "SLICE_COUNT", 1)
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        engine.declare(QueueSettings("q"))
        for id in ("m1", "m2", "m3"):
            engine.broker.send("q", [Message(body=b"1", outbox_id=id)])
            clock.seconds += 5
        engine.broker.claim("q", 1)
        status = await EngineAdmin(engine).ask(ReadStatus())
    assert (status.queues["q"].active, status.queues["q"].oldest_s) == (3, 15.0)


@pytest.mark.parametrize(
    ("more", "state", "words"),
    [
        ({}, "waiting", "for a worker to take it"),
        ({"delivery_count": 2}, "waiting", "for a worker to take it; 2 deliveries that nobody settled"),
        ({"due_ms": 31_000}, "retrying", "next try in 30.0 s"),
        ({"due_ms": 31_000, "behind": 3}, "waiting", "behind number 3 of its key, which is tried again in 30.0 s"),
        ({"status": "scheduled", "due_ms": 31_000}, "scheduled", "due in 30.0 s, at 1970-01-01T00:00:31Z"),
        ({"status": "scheduled", "due_ms": 500, "failures": 2}, "retrying", "next try in 0.0 s; 2 failed attempts"),
        ({"status": "locked", "locked_until_ms": 3_000}, "in-hand", "a receiver has it, the lock ends in 2.0 s"),
        ({"status": "locked", "locked_until_ms": 900}, "in-hand", "a receiver has it, the lock has just run out"),
        ({"blocked_by": ""}, "blocked", "its key is blocked by dead letter '': resubmit or discard that one"),
        ({"status": "locked", "blocked_by": "a"}, "in-hand", "a receiver has it, the lock has just run out"),
    ],
)
def test_the_reason_says_what_is_waited_for(more: dict[str, Any], state: str, words: str) -> None:
    assert (state_of(held(**more), 1_000), why(held(**more), 1_000)) == (state, words)


async def test_a_host_says_of_a_queue_that_none_of_its_handlers_takes_from_it(engine: Engine) -> None:
    engine.declare(QueueSettings("orders"), QueueSettings("exports"))
    engine.broker.send("exports", [Message(body=b"1", outbox_id="m1")])
    engine.broker.send("orders", [Message(body=b"1", outbox_id="m2")])

    for admin, unhandled in ((EngineAdmin(engine, app=app), True), (EngineAdmin(engine), False)):
        status = await admin.ask(ReadStatus())
        assert [name for name, queue in status.queues.items() if queue.unhandled] == ["exports"] * unhandled
        told = [each.what for each in of_status(status, hosted=True) if each.about == "exports"]
        assert told == ["no handler of this host takes from it, and 1 message in it"] * unhandled
        assert ("exports: no handler of this host takes from it" in status_text(status)) is unhandled
        another = "for another receiver to take it: bank, which runs here, has no handler for exports"
        for queue, words in (("exports", another if unhandled else WORKER), ("orders", WORKER)):
            [view] = (await admin.ask(Peek(queue))).messages
            [found] = await admin.ask(Find(view.id))
            assert found.message is not None and view.why == found.message.why
            assert view.why.removeprefix("for ") == words.removeprefix("for ")


async def test_a_queue_that_is_read_elsewhere_is_not_warned_of(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = App("other")
    other.queue("exports", read_elsewhere=True)
    other.queue("forgotten")
    engine.declare(QueueSettings("exports"), QueueSettings("forgotten"))
    for queue in ("exports", "forgotten"):
        engine.broker.send(queue, [Message(body=b"1", outbox_id="m1")])
    _log_unhandled(engine, other)
    status = await EngineAdmin(engine, app=other).ask(ReadStatus())
    assert [name for name, queue in status.queues.items() if queue.unhandled] == ["forgotten"]
    abouts = {each.about for each in of_status(status, hosted=True)}
    assert "forgotten" in abouts and "exports" not in abouts
    assert "forgotten holds 1" in caplog.text and "exports" not in caplog.text
    assert "exports: no handler" not in status_text(status)


async def test_what_is_scheduled_is_listed_by_due_time_page_by_page(engine: Engine, admin: Admin) -> None:
    engine.declare(QueueSettings("orders"))
    now_ms = engine.now_ms()
    for id, after_ms in {"m1": 50_000, "m2": 20_000, "m3": 90_000, "m4": 20_000, "m5": 70_000}.items():
        engine.broker.send("orders", [Message(body=b"1", outbox_id=id)], due_ms=now_ms + after_ms)
    engine.broker.send("orders", [Message(body=b"1", outbox_id="now")])
    pages, more = list[list[str]](), 0
    for _ in range(3):
        page = await admin.ask(Peek("orders", more, 2, "scheduled", by_due=True))
        pages.append([view.id for view in page.messages])
        more = page.more
    assert pages == [["m2", "m4"], ["m1", "m5"], ["m3"]] and more == 0
    one_by_one = list[str]()
    for _ in range(5):
        page = await admin.ask(Peek("orders", more, 1, "scheduled", by_due=True))
        one_by_one += [view.id for view in page.messages]
        more = page.more
    assert one_by_one == ["m2", "m4", "m1", "m5", "m3"]
    [first] = (await admin.ask(Peek("orders", 0, 1, "scheduled", by_due=True))).messages
    await admin.ask(Cancel("orders", first.id))
    with pytest.raises(Refused, match=f"message {first.sequence} of orders is not scheduled any more; list from"):
        await admin.ask(Peek("orders", first.sequence, 2, "scheduled", by_due=True))


def test_an_error_that_a_sender_made_up_is_cut_and_obeys_no_terminal() -> None:
    view = view_of("q", held(error="\x1b[31m" + "x" * 5_000, failures=1), 1_000)
    assert len(view.error) == 300 and len(view.why) < 400
    shown = messages_text("q", Peeked([view]))
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) < 300
    assert messages_text("q", Peeked([], 9)) == "nothing of that kind in q so far; look on with --after 9"
    assert messages_text("q", Peeked([view], 7)).endswith("there may be more: --after 7")
