"""The first programs, as a user would write them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from outbox import App, Client, Context, Engine, Reject, UnknownDestination, Worker
from outbox.testing import Harness
from tests.unit.messages import Account, Transfer, deliver

app = App("bank")
app.queue("refused")


@dataclass
class Deposit:
    transfer: str
    account: str
    amount: int


@app.handler("transfers", key="source")
async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
    if transfer.amount <= 0:
        raise Reject("amount must be positive")
    if account.balance < transfer.amount:
        ctx.send("refused", transfer)
        return
    account.balance -= transfer.amount
    ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))


@app.handler("deposits", key=lambda deposit: deposit.account)
def deposit(deposit: Deposit, account: Account) -> None:
    account.balance += deposit.amount


async def test_a_transfer_moves_money_once() -> None:
    async with Harness(app) as bank:
        await bank.given(Account, "alice", Account(balance=10))
        await bank.send("transfers", Transfer("t1", "alice", "bob", 5), id="t1")
        await deliver(bank, "transfers", Transfer("t1", "alice", "bob", 5), id="t1")
        assert await bank.state(Account, "bob") == Account(balance=5)
        assert bank.sent("deposits") == [Deposit("t1", "bob", 5)]
        assert bank.dead_letters("transfers") == []
        await bank.advance(hours=1)


async def test_the_worker_runs_inside_another_program(disk_path: Path) -> None:
    async with Engine.open(disk_path / "bank.data") as engine:
        async with Worker(app, engine, concurrency=64) as worker:
            await worker.send("transfers", Transfer("t0", "nobody", "bob", 5), id="t0")
            await worker.wait_idle(timeout_s=10)
            assert await worker.state(Account, "bob") is None
        client = Client(app, engine)
        with pytest.raises(UnknownDestination, match=r"app\.queue"):
            await client.send("nowhere", Transfer("t1", "a", "b", 1))


async def test_what_was_committed_is_there_after_a_reopening(disk_path: Path) -> None:
    async with Engine.open(disk_path / "bank.data") as engine, Worker(app, engine) as worker:
        await worker.send("deposits", Deposit("t1", "bob", 7), id="d1")
        await worker.wait_idle(timeout_s=10)
    async with Engine.open(disk_path / "bank.data") as engine, Worker(app, engine) as worker:
        await worker.send("deposits", Deposit("t1", "bob", 7), id="d1")
        await worker.wait_idle(timeout_s=10)
        assert await worker.state(Account, "bob") == Account(7)


async def test_a_rejected_message_is_dead_lettered_with_its_reason() -> None:
    async with Harness(app) as bank:
        await deliver(bank, "transfers", Transfer("t1", "alice", "bob", 0), id="t1")
        (dead_letter,) = bank.dead_letters("transfers")
        assert (dead_letter.id, dead_letter.reason, dead_letter.delivery_count) == ("t1", "amount must be positive", 1)
        assert dead_letter.message == Transfer("t1", "alice", "bob", 0)
        assert await bank.state(Account, "alice") is None


def test_the_programs_need_no_running_loop_to_be_imported() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
