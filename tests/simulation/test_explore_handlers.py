"""Handlers that call, sleep, gather and time out keep every promise; one that waits for ever is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox import App, Context
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, T1, Account, Deposit, Transfer, clean

SCOPES = ("engine", "partition", "item")


def app_with(work: Any) -> App:
    app = App("handlers")
    app.queue("deposits")

    @app.handler("transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
        await work(ctx)
        account.balance -= transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))

    return app


def explored(app: App, scope: str, **options: Any) -> Report:
    known: dict[str, Any] = {"messages": [T1], "workers": 1, "budgets": Budgets(crash=1)}
    return search(Scenario(app, given=GIVEN, scope=scope, **(known | options)))


@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_is_made_once_where_nothing_fails(scope: str) -> None:
    async def pays(ctx: Context) -> None:
        await ctx.call(lambda: None)
        await ctx.call(lambda: None)

    assert explored(app_with(pays), scope, budgets=Budgets(), copies=2).exhausted


@pytest.mark.parametrize("scope", SCOPES)
def test_a_handler_that_waits_for_ever_is_reported(scope: str) -> None:
    async def waits(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    report = explored(app_with(waits), scope)
    assert [anomaly.promise for anomaly in report.anomalies] == ["NoDeadLetter"] and "a timer fires" in report.text, (
        report.text
    )


@pytest.mark.parametrize("scope", SCOPES)
def test_handlers_that_sleep_gather_and_time_out_keep_every_promise(scope: str) -> None:
    async def sleeps(ctx: Context) -> None:
        await asyncio.gather(asyncio.sleep(2), asyncio.sleep(1))
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(10)
        except TimeoutError:
            return

    clean(explored(app_with(sleeps), scope, workers=2, copies=2))
