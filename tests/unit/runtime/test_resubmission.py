"""Running dead letters again never applies a message twice, whatever lies beside them and however long."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from outbox import App, Reject, Retry
from outbox.errors import Refused
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.dead_letters import Resubmit
from outbox.ports import DeadLetterEntry
from outbox.resubmission import edited, newest
from outbox.testing import Harness
from tests.unit.messages import Deposit, deliver, resubmit


@dataclass
class Account:
    balance: int = 0
    closed: bool = False


app = App("resubmitting")


@app.handler("deposits", key="account")
def deposit(message: Deposit, account: Account) -> None:
    if account.closed:
        raise Reject("closed")
    account.balance += message.amount


async def test_all_that_may_be_run_again_is_and_what_was_too_old_stays() -> None:
    async with Harness(app) as world:
        await world.send("deposits", Deposit("a", 5), id="old", created=world.now() - 8 * 86_400)
        await world.given(Account, "b", Account(closed=True))
        await deliver(world, "deposits", Deposit("b", 5), id="new")
        await world.given(Account, "b", Account())
        moved = await EngineAdmin(world.engine).ask(Resubmit("deposits", None))
        await world.wait_idle()
        assert (moved.count, moved.in_hand) == (1, 1)
        assert [dead_letter.id for dead_letter in world.dead_letters("deposits")] == ["old"]


async def test_another_payload_under_the_id_of_a_refused_one_does_not_take_its_place_by_a_resubmission() -> None:
    async with Harness(app) as world:
        await world.given(Account, "a", Account(closed=True))
        await deliver(world, "deposits", Deposit("a", 5), id="1")
        await world.discard("deposits", "1")
        await world.given(Account, "a", Account())
        await deliver(world, "deposits", Deposit("a", 7), id="1")
        await resubmit(world, "deposits", "1")
        assert [dead_letter.reason for dead_letter in world.dead_letters("deposits")] == ["payload-differs"]
        assert await world.state(Account, "a") == Account()


async def test_the_copies_of_a_resubmitted_message_go() -> None:
    async with Harness(app) as world:
        await world.given(Account, "a", Account(closed=True))
        for _ in range(3):
            await world.send("deposits", Deposit("a", 5), id="m")
        await world.wait_idle()
        assert len(world.dead_letters("deposits")) == 3
        await world.given(Account, "a", Account())
        await resubmit(world, "deposits", "m")
        assert world.dead_letters("deposits") == []
        assert await world.state(Account, "a") == Account(5)


async def test_discarding_an_id_discards_every_dead_letter_of_it() -> None:
    async with Harness(app) as world:
        await world.given(Account, "a", Account(closed=True))
        for amount in (5, 5, 6):
            await world.send("deposits", Deposit("a", amount), id="m")
        await world.wait_idle()
        await world.discard("deposits", "m")
        assert world.dead_letters("deposits") == []


# Past retention: what was applied before is not applied again


@dataclass
class Noted:
    account: str
    note: str


@dataclass
class Ledger:
    count: int = 0


def two_books(mode: list[str], *, is_reading: bool = True) -> App:
    """A message that two handlers read; `mode` says what the second makes of it."""
    books = App("books", retention=timedelta(days=1), margin=timedelta(hours=1))

    @books.handler("q", key="account")
    def first(message: Deposit, ledger: Ledger) -> None:
        ledger.count += 1

    if is_reading:

        @books.handler("q", key="account")
        def second(message: Deposit, account: Account) -> None:
            if mode[0] == "closed":
                raise Reject("closed")
            if mode[0] == "down":
                raise Retry("down", after_s=1_800)
            account.balance += message.amount

    return books


@pytest.mark.parametrize(("days", "is_run"), [(0.5, True), (1.02, True), (2, False)])
async def test_what_one_handler_applied_is_not_applied_again_with_what_the_other_refused(
    days: float, is_run: bool
) -> None:
    mode = ["closed"]
    async with Harness(two_books(mode)) as world:
        await deliver(world, "q", Deposit("a", 5), id="m")
        await world.advance(days=days)
        mode[0] = "open"
        with nullcontext() if is_run else pytest.raises(Refused, match="so long ago"):
            await world.resubmit("q", "m")
        await world.wait_idle()
        assert await world.state(Ledger, "a") == Ledger(1)
        assert await world.state(Account, "a") == (Account(5) if is_run else None)
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ([] if is_run else ["closed"])


@pytest.mark.parametrize(("hours", "is_run"), [(13, True), (26, False)])
@pytest.mark.parametrize("is_read_twice", [False, True])
@pytest.mark.parametrize("note", ["", "x" * 300_000])
async def test_what_was_refused_late_is_resubmitted_while_that_is_remembered(
    hours: int, is_run: bool, is_read_twice: bool, note: str
) -> None:
    """By whichever handler, however its body was sent; the first one's record may be gone."""
    app, mode = App("late", retention=timedelta(days=1), margin=timedelta(hours=1)), ["down"]
    if is_read_twice:

        @app.handler("q", key="account")
        def first(message: Noted, ledger: Ledger) -> None:
            ledger.count += 1

    @app.handler("q", key="account")
    def second(message: Noted, account: Account) -> None:
        if mode[0] == "down":
            raise Retry("down", after_s=12 * 3_600)
        if mode[0] == "closed":
            raise Reject("closed")
        account.balance += 5

    async with Harness(app) as world:
        await deliver(world, "q", Noted("a", note), id="m")
        mode[0] = "closed"
        await world.advance(hours=13)
        mode[0] = "open"
        await world.advance(hours=hours)
        with nullcontext() if is_run else pytest.raises(Refused, match="so long ago"):
            await world.resubmit("q", "m")


async def test_a_resubmission_that_is_rescheduled_past_retention_applies_nothing_twice() -> None:
    mode = ["closed"]
    async with Harness(two_books(mode)) as world:
        await deliver(world, "q", Deposit("a", 5), id="m")
        await world.advance(hours=23)
        mode[0] = "down"
        await world.resubmit("q", "m")
        await world.advance(hours=3)
        mode[0] = "open"
        await world.advance(hours=1)
        assert await world.state(Ledger, "a") == Ledger(1)


@pytest.mark.parametrize("has_time", [True, False])
async def test_a_copy_that_the_broker_dead_lettered_is_not_applied_again_when_its_record_is_gone(
    has_time: bool,
) -> None:
    async with Harness(two_books([], is_reading=False)) as world:
        queue = world.engine.topology.queues["q"]
        world.engine.declare(msgspec.structs.replace(queue, time_to_live_s=60, dead_letter_on_expiry=True))
        created = world.engine.now_ms() if has_time else 0
        copy = Message(body=b'{"account":"a","amount":5}', outbox_id="m", created_ms=created)
        world.engine.broker.send("q", [copy])
        await world.wait_idle()
        world.engine.broker.send("q", [copy])
        world._clock.seconds += 120  # nobody works for two minutes
        world.engine.tick()
        assert [dead_letter.id for dead_letter in world.dead_letters("q")] == ["m"]
        await world.advance(days=2)
        with pytest.raises(Refused, match="so long ago"):
            await world.resubmit("q", "m")
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["TTLExpiredException"]
        world.engine.dead_letters.resubmit(
            "q", world.engine.broker.peek("q/$DeadLetterQueue", 0, 1)[0].sequence
        )  # as a tool of a broker
        await world.wait_idle()
        assert await world.state(Ledger, "a") == Ledger(1)
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["too-old"]


@pytest.mark.parametrize("seconds", [-1, 0, 86_400])
async def test_a_late_resubmission_is_refused_up_front_and_the_dead_letter_keeps_its_reason(seconds: float) -> None:
    app, is_bad = App("late", retention=timedelta(days=1), margin=timedelta(hours=1)), [True]

    @app.handler("deposits", key="account")
    def deposit(message: Deposit, account: Account) -> None:
        if is_bad[0]:
            raise Reject("closed")
        account.balance += message.amount

    async with Harness(app) as world:
        await deliver(world, "deposits", Deposit("a", 5), id="m")
        is_bad[0] = False
        await world.advance(seconds=25 * 3_600 + seconds)
        if seconds < 0:  # the record of its refusal is there for another second
            await resubmit(world, "deposits", "m")
            assert await world.state(Account, "a") == Account(5) and world.dead_letters("deposits") == []
            return
        for _ in range(2):
            with pytest.raises(Refused, match="deposits/m was refused so long ago"):
                await world.resubmit("deposits", "m")
            await world.wait_idle()
            assert [dead_letter.reason for dead_letter in world.dead_letters("deposits")] == ["closed"]
        await world.discard("deposits", "m")


@pytest.mark.engine_only("operators ask the engine itself")
async def test_an_operator_cannot_resubmit_late_either_and_the_others_go() -> None:
    app = App("late", retention=timedelta(days=1), margin=timedelta(hours=1))

    @app.handler("deposits", key="account")
    def deposit(message: Deposit, account: Account) -> None:
        raise Reject("closed")

    async with Harness(app) as world:
        await world.send("deposits", Deposit("a", 5), id="old")
        await world.advance(hours=25)
        await world.restart()  # the log has kept until when it is remembered
        await deliver(world, "deposits", Deposit("a", 5), id="new")
        with pytest.raises(Refused, match="deposits/old was refused so long ago"):
            await EngineAdmin(world.engine).ask(Resubmit("deposits", "old"))
        moved = await EngineAdmin(world.engine).ask(Resubmit("deposits", None))
        assert (moved.count, moved.in_hand) == (1, 1)
        assert [dead_letter.id for dead_letter in world.dead_letters("deposits")] == ["old"]


def test_the_newest_letter_is_chosen_that_did_not_take_anothers_id() -> None:
    letters = [DeadLetterEntry("q", number, Message(body=b""), reason, "", 1, 0) for number, reason in enumerate("aba")]
    differing = [msgspec.structs.replace(one, sequence=one.sequence + 3, reason="payload-differs") for one in letters]
    found = [newest(given).sequence for given in (letters, [*letters, *differing], differing)]
    assert found == [2, 2, 5]


def test_an_edit_carries_nothing_of_the_body_before() -> None:
    before = Message(body=b"", outbox_id="1", claim="blob", wire=b"sections", wire_body=b"own section")
    after = edited(before, b"{}")
    assert (after.body, after.claim, after.wire_body, after.wire) == (b"{}", "", b"", b"sections")
    assert edited(after, b"{}") is after
