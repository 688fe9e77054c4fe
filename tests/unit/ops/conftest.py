"""An engine with a bank's queues, and an operator on it: directly, and through a real control endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings
from outbox.ops.cli.parser import main
from outbox.ops.values.requests import Admin
from outbox.retries import Reject
from outbox.worker import Worker
from tests.unit.messages import Account
from tests.unit.ops.operators import operator
from tests.unit.stores.store_site import Site, site

app = App("bank")
app.queue("ledger", "per_key")


@dataclass
class Deposit:
    """Money for an account."""

    account: str | int
    amount: int


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
async def engine(disk_path: Path) -> AsyncIterator[Engine]:
    async with Engine.open(disk_path) as engine:
        yield engine


@pytest.fixture
async def bank(engine: Engine, disk_path: Path) -> Bank:
    engine.declare(QueueSettings("deposits"), QueueSettings("ledger", ordering="per_key"))
    engine.declare(TopicSettings("news", ("audit",)))
    return Bank(engine, disk_path)


@pytest.fixture(params=["direct", "http"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def admin(engine: Engine, disk_path: Path, way: str) -> AsyncIterator[Admin]:
    async with operator(engine, disk_path, way) as admin:
        yield admin


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command, on the test's folder unless the test names another: exit code, stdout, stderr."""

    def run(*arguments: str, data: bool = True) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([*arguments, *(["--data", str(disk_path)] if data else [])])
        except SystemExit as left:
            code = int(left.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
async def at() -> AsyncIterator[Site]:
    """A store and a bus that are watched, of partition scope."""
    async with site() as at:
        yield at
