"""The sample's own rules: money is conserved whatever happens to a transfer."""

from __future__ import annotations

import pytest

from function_app.bank import Account, CloseAccount, OpenAccount, Posting, Transfer, app
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import deliver


async def opened(bank: Harness, **balances: int) -> None:
    for name, balance in balances.items():
        await bank.send("accounts", OpenAccount(name, balance), id=f"open-{name}")
    await bank.wait_idle()


@pytest.mark.parametrize("amount", [4, 10])
async def test_a_transfer_of_some_or_all_is_posted_twice_and_adds_up(amount: int) -> None:
    async with Harness(app) as bank:
        await opened(bank, alice=10, bob=0)
        await deliver(bank, "transfers", Transfer("t1", "alice", "bob", amount), id="t1")
        assert await bank.state(Account, "alice") == Account(10 - amount, True)
        assert await bank.state(Account, "bob") == Account(amount, True)
        postings = [p for p in bank.sent("ledger") if p.transfer == "t1"]
        assert postings == [Posting("t1", "alice", "withdraw", -amount), Posting("t1", "bob", "deposit", amount)]


async def test_a_deposit_to_a_closed_account_comes_back() -> None:
    async with Harness(app) as bank:
        await opened(bank, alice=10, bob=0)
        await deliver(bank, "accounts", CloseAccount("bob"), id="close-bob")
        await deliver(bank, "transfers", Transfer("t1", "alice", "bob", 4), id="t1")
        assert await bank.state(Account, "alice") == Account(10, True)
        assert [p.kind for p in bank.sent("ledger") if p.transfer == "t1"] == ["withdraw", "refund"]


async def test_an_account_without_the_money_or_closed_pays_nothing_and_keeps_what_it_has() -> None:
    async with Harness(app) as bank:
        await opened(bank, alice=1, bob=0)
        await deliver(bank, "transfers", Transfer("t1", "alice", "bob", 4), id="t1")
        await deliver(bank, "accounts", CloseAccount("alice"), id="close-alice")
        await deliver(bank, "transfers", Transfer("t2", "alice", "bob", 1), id="t2")
        assert [(p.transfer, p.kind) for p in bank.sent("ledger")[2:]] == [("t1", "refused"), ("t2", "refused")]
        assert (await bank.request("GET", "/accounts/alice")).status == 404
        assert (await bank.request("GET", "/accounts/bob")).json() == {"account": "bob", "balance": 0}
        await deliver(bank, "accounts", OpenAccount("alice", 5), id="open-alice-again")
        assert await bank.state(Account, "alice") == Account(6, True)


async def test_what_is_no_amount_is_refused_and_an_open_account_stays_unchanged() -> None:
    async with Harness(app) as bank:
        await opened(bank, alice=10, bob=-1)
        await bank.send("accounts", OpenAccount("alice", 5), id="open-alice-again")
        for amount in (0, -1):
            await deliver(bank, "transfers", Transfer("t1", "alice", "bob", amount), id=f"t{amount}")
        assert [dead.reason for dead in bank.dead_letters("transfers")] == ["amount must be positive"] * 2
        assert [dead.reason for dead in bank.dead_letters("accounts")] == ["an opening balance cannot be negative"]
        assert await bank.state(Account, "alice") == Account(10, True)
        assert [posting.amount for posting in bank.sent("ledger")] == [10]


async def test_requests_are_answered_with_what_became_of_them() -> None:
    async with Harness(app) as bank:
        await opened(bank, alice=10)
        for number, (amount, answer) in enumerate(((4, ["accepted", 6]), (7, ["refused", 6]))):
            sent = {"id": f"t{number}", "source": "alice", "target": "bob", "amount": amount}
            response = await bank.request("POST", "/transfers", json=sent, key=f"k{number}")
            assert [response.json()["status"], response.json()["balance"]] == answer
        assert (await bank.request("GET", "/accounts/alice")).json() == {"account": "alice", "balance": 6}
        assert (await bank.request("GET", "/accounts/nobody")).status == 404


async def test_money_is_conserved_under_crashes_lost_replies_and_duplicates() -> None:
    for seed in range(30):
        faults = Faults.drawn(seed=seed, crashes=2, lost=2, duplicates=4)
        async with Harness(app, faults=faults, seed=seed) as bank:
            await opened(bank, alice=10, bob=10)
            for n, (source, target) in enumerate(
                (("alice", "bob"), ("bob", "carol"), ("bob", "alice"), ("alice", "bob"))
            ):
                await bank.send("transfers", Transfer(f"t{n}", source, target, 3), id=f"t{n}")
            await bank.wait_idle()
            balances = [await bank.state(Account, name) for name in ("alice", "bob", "carol")]
            assert sum(account.balance for account in balances if account) == 20, (seed, bank.fault_log)
