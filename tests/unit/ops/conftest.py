"""An engine with a bank's queues, and an operator on it: directly, and through a real control endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.shared.control_file import read_control_file
from outbox.ops.values.requests import Admin
from outbox.retries import Reject
from outbox.worker import Worker

app = App("bank")
app.queue("ledger", "per_key")


@dataclass
class Deposit:
    """Money for an account."""

    account: str | int
    amount: int


@dataclass
class Account:
    """A balance."""

    balance: int = 0


@app.handler("ledger", key="account", on_dead_letter="stop_key")
def enter(deposit: Deposit, account: Account) -> None:
    if deposit.amount < 0:
        raise Reject("no such entry")


@app.handler("deposits", key="account")
def deposit(deposit: Deposit, account: Account) -> None:
    account.balance += deposit.amount


class Bank:
    """What tests need of the engine behind an operator."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder

    async def pay(self, account: str | int, amount: int) -> None:
        """Let the application itself change a state."""
        async with Worker(app, self.engine) as worker:
            await worker.send("deposits", Deposit(account, amount))
            await worker.wait_idle(timeout_s=5)

    def bury(self, queue: str, reason: str) -> None:
        """Dead-letter everything that waits in a queue."""
        for claim in self.engine.broker.claim(queue, 1_000):
            self.engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason=reason, description="by the test")


@pytest.fixture
async def bank(disk_path: Path) -> AsyncIterator[Bank]:
    async with Engine.open(disk_path) as engine:
        engine.declare(QueueSettings("deposits"), QueueSettings("ledger", ordering="per_key"))
        engine.declare(TopicSettings("news", ("audit",)))
        yield Bank(engine, disk_path)


@pytest.fixture(params=["direct", "http"])
async def admin(bank: Bank, request: pytest.FixtureRequest) -> AsyncIterator[Admin]:
    direct = EngineAdmin(bank.engine)
    if request.param == "direct":
        yield direct
        return
    async with serve_control(direct, bank.folder):
        host = read_control_file(bank.folder)
        assert host is not None
        yield RemoteAdmin(host, bank.folder)
