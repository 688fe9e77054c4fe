"""What a handler may not do is told: reach outside, call twice under one key, depend on an order, wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox import App, Context
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, T1, T2, Account, Deposit, Transfer

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


def promises(report: Report) -> list[str]:
    return [anomaly.promise for anomaly in report.anomalies]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_that_a_crash_repeats_is_reported_unless_it_is_idempotent(scope: str) -> None:
    async def pays(ctx: Context) -> None:
        await ctx.call(lambda key: key)

    async def pays_idempotently(ctx: Context) -> None:
        await ctx.call(lambda key: key, idempotent=True)

    report = explored(app_with(pays), scope)
    assert promises(report) == ["OneCall"], report.text
    clean = explored(app_with(pays_idempotently), scope)
    assert clean.exhausted, clean.text


@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_is_made_once_where_nothing_fails(scope: str) -> None:
    async def pays(ctx: Context) -> None:
        await ctx.call(lambda: None)
        await ctx.call(lambda: None)

    assert explored(app_with(pays), scope, budgets=Budgets(), copies=2).exhausted


@pytest.mark.parametrize("scope", SCOPES)
def test_a_file_that_a_handler_opens_is_reported(scope: str) -> None:
    async def reads(ctx: Context) -> None:
        with open("/etc/hostname") as file:  # noqa: ASYNC230, PTH123  # the very thing that is to be told
            file.read()

    report = explored(app_with(reads), scope)
    assert promises(report) == ["StaysInside"] and "/etc/hostname" in report.anomalies[0].text, report.text


@pytest.mark.parametrize("scope", SCOPES)
def test_a_handler_that_waits_for_ever_is_reported(scope: str) -> None:
    async def waits(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    report = explored(app_with(waits), scope)
    assert promises(report) == ["NoDeadLetter"] and "a timer fires" in report.text, report.text


@pytest.mark.parametrize("scope", SCOPES)
def test_handlers_that_sleep_gather_and_time_out_keep_every_promise(scope: str) -> None:
    async def sleeps(ctx: Context) -> None:
        await asyncio.gather(asyncio.sleep(2), asyncio.sleep(1))
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(10)
        except TimeoutError:
            return

    report = explored(app_with(sleeps), scope, workers=2, copies=2)
    assert report.exhausted and not report.anomalies, report.text


@pytest.mark.parametrize("scope", SCOPES)
def test_messages_whose_order_matters_have_more_than_one_outcome(scope: str) -> None:
    app = App("order")

    @app.handler("transfers", key="source")
    def last(transfer: Transfer, account: Account, ctx: Context) -> None:
        account.balance = transfer.amount

    report = explored(app, scope, messages=[T1, T2], budgets=Budgets())
    assert report.exhausted and len(report.outcomes) == 2, report.text


@pytest.mark.parametrize("scope", ["engine", "partition"])
def test_an_ordered_queue_has_one_outcome(scope: str) -> None:
    app = App("order")
    app.queue("transfers", "per_key")

    @app.handler("transfers", key="source")
    def last(transfer: Transfer, account: Account, ctx: Context) -> None:
        account.balance = transfer.amount

    report = explored(app, scope, messages=[T1, T2], workers=2, budgets=Budgets(crash=1))
    assert report.exhausted and len(report.outcomes) == 1, report.text
