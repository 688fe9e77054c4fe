"""A bank: accounts are opened, money moves between them, every posting goes to a ledger.

A transfer is two semi-transactions on two accounts.  The withdrawal may be refused; the deposit may find its account
closed, and then the money goes back by a refund, which is never refused.  Money in flight is the message that carries
it, so at every moment the balances and the messages on their way add up to what was paid in.

Accounts and transfers are messages of a queue or HTTP requests, alike.  The handlers know nothing of where they run: in
a worker on the embedded engine, by `outbox run function_app.bank:app --http 8080`, or as the Functions app that this
folder is.
"""

from __future__ import annotations

from dataclasses import dataclass

from outbox import App, Context, Reject

app = App("bank")
app.queue("ledger")


@dataclass
class OpenAccount:
    """Open an account with a balance in cents; an open one stays unchanged."""

    account: str
    balance: int = 0


@dataclass
class CloseAccount:
    """Close an account: from now on deposits to it are sent back."""

    account: str


@dataclass
class Transfer:
    """Move `amount` cents from one account to another."""

    id: str
    source: str
    target: str
    amount: int


@dataclass
class Deposit:
    """The second half of a transfer."""

    transfer: str
    account: str
    source: str
    amount: int


@dataclass
class Refund:
    """A deposit that was refused, on its way back."""

    transfer: str
    account: str
    amount: int


@dataclass
class Posting:
    """One line of the ledger; `amount` is what the account's balance changed by, in cents."""

    transfer: str
    account: str
    kind: str
    amount: int


@dataclass
class Receipt:
    """The result of a transfer at its source: `accepted` or `refused`, and the balance in cents after it."""

    transfer: str
    status: str
    balance: int


@dataclass
class BalanceQuery:
    """Ask for the balance of an account."""

    account: str


@dataclass
class Balance:
    """The balance of an open account, in cents."""

    account: str
    balance: int


@dataclass
class Account:
    """A balance in cents; one that was never opened is not open."""

    balance: int = 0
    is_open: bool = False


@app.http("POST", "/accounts", key="account", name="open account")
@app.handler("accounts", key="account")
def open_account(request: OpenAccount, account: Account, ctx: Context) -> None:
    if request.balance < 0:
        raise Reject("an opening balance cannot be negative")
    if account.is_open:
        return
    account.is_open = True
    account.balance += request.balance
    ctx.send("ledger", Posting("", request.account, "opened", request.balance))


@app.handler("accounts", key="account")
def close_account(request: CloseAccount, account: Account) -> None:
    account.is_open = False


@app.handler("transfers", key="source")
async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
    take(transfer, account, ctx)


@app.http("POST", "/transfers", key="source", name="transfer")
async def post_transfer(transfer: Transfer, account: Account, ctx: Context) -> Receipt:
    return Receipt(transfer.id, "accepted" if take(transfer, account, ctx) else "refused", account.balance)


def take(transfer: Transfer, account: Account, ctx: Context) -> bool:
    """Take the money of a transfer from its source and send it on its way; whether there was enough."""
    if transfer.amount <= 0:
        raise Reject("amount must be positive")
    if not account.is_open or account.balance < transfer.amount:
        ctx.send("ledger", Posting(transfer.id, transfer.source, "refused", 0))
        return False
    account.balance -= transfer.amount
    ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.source, transfer.amount))
    ctx.send("ledger", Posting(transfer.id, transfer.source, "withdraw", -transfer.amount))
    return True


@app.http("GET", "/accounts/{account}", key="account")
def show_balance(query: BalanceQuery, account: Account) -> Balance | None:
    return Balance(query.account, account.balance) if account.is_open else None


@app.handler("deposits", key="account")
async def deposit(deposit: Deposit, account: Account, ctx: Context) -> None:
    if not account.is_open:
        ctx.send("refunds", Refund(deposit.transfer, deposit.source, deposit.amount))
        return
    account.balance += deposit.amount
    ctx.send("ledger", Posting(deposit.transfer, deposit.account, "deposit", deposit.amount))


@app.handler("refunds", key="account")
async def refund(refund: Refund, account: Account, ctx: Context) -> None:
    account.balance += refund.amount
    ctx.send("ledger", Posting(refund.transfer, refund.account, "refund", refund.amount))
