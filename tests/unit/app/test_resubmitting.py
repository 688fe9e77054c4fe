"""Running dead letters again never applies a message twice, whatever lies beside them and however long."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outbox import App, Reject
from outbox.errors import Refused
from outbox.ops.operator import Operator
from outbox.testing import Harness


@dataclass
class Deposit:
    account: str
    amount: int


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
        await world.send("deposits", Deposit("b", 5), id="new")
        await world.wait_idle()
        await world.given(Account, "b", Account())
        moved = await Operator(world.engine).resubmit("deposits", None)
        await world.wait_idle()
        assert (moved.count, moved.in_hand) == (1, 1)
        assert [letter.id for letter in world.dead_letters("deposits")] == ["old"]


async def test_an_operator_cannot_resubmit_what_was_too_old_by_its_id_either() -> None:
    async with Harness(app) as world:
        await world.send("deposits", Deposit("a", 5), id="old", created=world.now() - 8 * 86_400)
        await world.wait_idle()
        with pytest.raises(Refused, match="deposits/old was too old"):
            await Operator(world.engine).resubmit("deposits", "old")
        await world.wait_idle()
        assert [letter.id for letter in world.dead_letters("deposits")] == ["old"]


async def test_the_copies_of_a_resubmitted_message_go() -> None:
    async with Harness(app) as world:
        await world.given(Account, "a", Account(closed=True))
        for _ in range(3):
            await world.send("deposits", Deposit("a", 5), id="m")
        await world.wait_idle()
        assert len(world.dead_letters("deposits")) == 3
        await world.given(Account, "a", Account())
        await world.resubmit("deposits", "m")
        await world.wait_idle()
        assert world.dead_letters("deposits") == []
        assert await world.state(Account, "a") == Account(5)


async def test_discarding_an_id_discards_every_letter_of_it() -> None:
    async with Harness(app) as world:
        await world.given(Account, "a", Account(closed=True))
        for amount in (5, 5, 6):
            await world.send("deposits", Deposit("a", amount), id="m")
        await world.wait_idle()
        await world.discard("deposits", "m")
        assert world.dead_letters("deposits") == []
