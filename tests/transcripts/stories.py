"""The ten stories, one for each row of the crash tables: who does what, which call fails, and who goes on.

A story takes the scope first in which it says most; the other sections of its page show the same in the other scopes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from outbox import App, Context, Reject
from tests.transcripts.processes import Process, Ran, Scope, Site
from tests.transcripts.recording import FaultKind, Page
from tests.unit.messages import Account, Deposit

Story = Callable[[Page], Awaitable[None]]

DAY_S = 86_400

TITLES: dict[Scope, str] = {"engine": "Engine scope", "partition": "Partition scope", "item": "Item scope"}


@dataclass
class Withdrawal:
    account: str
    amount: int


@dataclass
class Receipt:
    balance: int


@dataclass
class Statement:
    text: str


def bank(ran: Ran, *, is_ordered: bool = False, is_mended: bool = False, retention_days: int = 7) -> App:
    """Deposits and withdrawals, with a receipt for each that is applied; an account has no debts.

    `is_ordered`: by account, and a dead letter blocks its account.  `is_mended`: accounts may have debts.
    """
    app = App("bank", retention=timedelta(days=retention_days), margin=timedelta(hours=1))
    app.queue("receipts")
    app.queue("orders", "per_key" if is_ordered else "unordered")

    def apply(order: Deposit | Withdrawal, account: Account, ctx: Context) -> None:
        ran(f"{type(order).__name__} of {order.amount}", account)
        if isinstance(order, Withdrawal) and order.amount > account.balance and not is_mended:
            raise Reject("no cover")
        account.balance += order.amount if isinstance(order, Deposit) else -order.amount
        ctx.send("receipts", Receipt(account.balance))

    app.handler("orders", key="account", on_dead_letter="stop_key" if is_ordered else "continue")(apply)

    @app.http("POST", "/deposits", key="account")
    def deposit(order: Deposit, account: Account, ctx: Context) -> Receipt:
        apply(order, account, ctx)
        return Receipt(account.balance)

    return app


@asynccontextmanager
async def section(
    page: Page, scope: Scope, about: str, *, what: str = "", app: Callable[[Ran], App] = bank, item_bytes_max: int = 0
) -> AsyncIterator[Site]:
    """One section of a page: a fresh backend, and how things are in the end."""
    page.section(f"{TITLES[scope]}{what and f': {what}'}", about)
    site = Site(page, scope, app, item_bytes_max=item_bytes_max)
    await site.begin()
    yield site
    await site.ending("orders", left="receipts")


async def fails(site: Site, call: str, kind: FaultKind) -> None:
    """Worker A takes on the deposit m1, and this call of it fails."""
    await site.client.send("orders", Deposit("alice", 5), id="m1")
    a = site.process("worker A")
    a.next(call, kind)
    await a.handle()


async def redelivered(site: Site) -> None:
    """The lock runs out, and worker B takes the message on."""
    site.pass_time(minutes=1)
    await site.process("worker B").handle()


# The stories


async def crash(page: Page) -> None:
    page.title(
        "A crash between commit and push",
        "A worker commits a deposit and is killed before it has sent the receipt. The deposit is redelivered when its "
        "lock has run out. Promise: what is committed leaves, and the handler does not run a second time.",
    )
    about = "The message's record holds the receipt. Whoever finds the record pending pushes what it holds."
    async with section(page, "partition", about) as site:
        await fails(site, "send", "killed before")
        await redelivered(site)
    about = "The state holds what its transaction sends. The next worker finishes that transaction first."
    async with section(page, "item", about) as site:
        await fails(site, "send", "killed before")
        await redelivered(site)
    about = "The receipt is in the commit itself, so a crash after the commit leaves nothing to do."
    async with section(page, "engine", about) as site:
        await fails(site, "commit", "killed after")
        site.power_fails()
        await site.process("worker B").handle()


async def lost_reply(page: Page) -> None:
    page.title(
        "A lost reply of a commit",
        "A worker commits a deposit and gets no answer: the commit may have taken effect, or not. Promise: an unknown "
        "outcome is assumed to be neither. What is stored says what happened, and nothing is undone.",
    )
    about = (
        "The record names this worker's transaction, so the commit is its own and it pushes. It leaves the mark to the "
        "sweeper, which pushes again under the same id; whoever receives the receipt drops the duplicate."
    )
    async with section(page, "partition", about, what="the commit took effect") as site:
        await fails(site, "commit", "reply lost")
        site.pass_time(minutes=1)
        await site.process("sweeper").sweep()
    about = (
        "There is no record, so the worker runs the message again. If the first commit took effect after all, the "
        "create of the second would lose."
    )
    async with section(page, "partition", about, what="the commit never arrived") as site:
        await fails(site, "commit", "never arrives")
    about = "The swap took effect: the state holds this worker's transaction, and the worker goes on with it."
    async with section(page, "item", about) as site:
        await fails(site, "swap", "reply lost")
    about = "The commit took effect and completed the message with it, so the worker does not have the lock any more."
    async with section(page, "engine", about) as site:
        await fails(site, "commit", "reply lost")


async def duplicate(page: Page) -> None:
    page.title(
        "A duplicate",
        "A client sends the same deposit twice, under one id. Promise: the duplicate is completed without any effect.",
    )

    async def twice(site: Site, second: Deposit) -> None:
        a = site.process("worker A")
        for order in (Deposit("alice", 5), second):
            await site.client.send("orders", order, id="m1")
            await a.handle()

    about = "The handler runs for the duplicate as well. The create of its record loses, and the whole batch with it."
    async with section(page, "partition", about) as site:
        await twice(site, Deposit("alice", 5))
    about = "Another payload under the id of m1 is not a duplicate. It is dead-lettered, and the record stays as it is."
    async with section(page, "partition", about, what="another payload") as site:
        await twice(site, Deposit("alice", 7))
    about = "The processed marker is read before the handler runs."
    async with section(page, "item", about) as site:
        await twice(site, Deposit("alice", 5))
    about = "One load reads the state and the marker."
    async with section(page, "engine", about) as site:
        await twice(site, Deposit("alice", 5))


async def lost_lock(page: Page) -> None:
    page.title(
        "A lost lock",
        "A worker is slow: the lock of its message runs out before it commits, and the message is redelivered to "
        "another worker. Promise: one of the two commits takes effect; the other changes nothing and sends nothing.",
    )

    async def overtaken(site: Site, call: str) -> None:
        async def meanwhile() -> None:
            page.event("worker A is slow")
            await redelivered(site)

        await site.client.send("orders", Deposit("alice", 5), id="m1")
        a = site.process("worker A")
        a.next(call, "meanwhile", meanwhile)
        await a.handle()

    about = "A commit takes effect only while the worker has the lock of every message in it."
    async with section(page, "engine", about) as site:
        await overtaken(site, "commit")
    about = (
        "Worker B is killed before it commits, so nothing has moved. The lock alone makes the commit of worker A lose."
    )
    async with section(page, "engine", about, what="the other worker is killed") as site:

        async def also_killed() -> None:
            page.event("worker A is slow")
            site.pass_time(minutes=1)
            b = site.process("worker B")
            b.next("commit", "killed before")
            await b.handle()

        await site.client.send("orders", Deposit("alice", 5), id="m1")
        a = site.process("worker A")
        a.next("commit", "meanwhile", also_killed)
        await a.handle()
        site.pass_time(minutes=1)
        await site.process("worker C").handle()
    about = "The lock decides nothing here. The create of the record does."
    async with section(page, "partition", about) as site:
        await overtaken(site, "commit")
    about = "The swap of the state decides."
    async with section(page, "item", about) as site:
        await overtaken(site, "swap")


async def blocked_session(page: Page) -> None:
    page.title(
        "A blocked session",
        "Orders of an account are handled in their order, and a dead letter blocks its account (stop_key). m1 is "
        "refused, so m2 waits. It gets a record that says so, because of which it is never too old to run. Promise: "
        "nothing overtakes a refused message until an operator discards it, or resubmits it and it is applied.",
    )

    def ordered(ran: Ran) -> App:
        return bank(ran, is_ordered=True)

    def mended(ran: Ran) -> App:
        return bank(ran, is_ordered=True, is_mended=True)

    async def blocked(site: Site) -> Process:
        await site.client.send("orders", Withdrawal("alice", 5), id="m1")
        await site.client.send("orders", Deposit("alice", 8), id="m2")
        a = site.process("worker A")
        await a.handle()
        await a.handle()
        site.pass_time(minutes=1)
        return a

    about = (
        "The block is a document, created after the refusal's record and before the dead letter. Whoever discards the "
        "dead letter deletes the block first."
    )
    async with section(page, "partition", about, what="discarded", app=ordered) as site:
        a = await blocked(site)
        await site.operator.discard("orders", "m1")
        await a.handle()
    about = (
        "Worker B has a version of the application that allows debts. The block goes when m1 is applied, before m1 is "
        "completed."
    )
    async with section(page, "partition", about, what="resubmitted", app=ordered) as site:
        await blocked(site)
        await site.operator.resubmit("orders", "m1")
        b = site.process("worker B", mended)
        await b.handle()
        site.pass_time(minutes=1)
        await b.handle()
    about = "The commit blocks the session. The engine hands m2 out once behind the block, to be put on record."
    async with section(page, "engine", about, what="resubmitted", app=ordered) as site:
        await blocked(site)
        await site.operator.resubmit("orders", "m1")
        await site.process("worker B", mended).handle()


async def resubmission(page: Page) -> None:
    page.title(
        "A resubmission",
        "A withdrawal is refused, because the account is empty. After a deposit an operator resubmits the withdrawal; "
        "a duplicate of its first attempt arrives late. Promise: a refusal is a commit, and only a later attempt "
        "replaces it; once applied, the message stays applied.",
    )
    abouts: dict[Scope, str] = {
        "partition": "The refusal is a record, conditional on the state that was seen. The resubmission replaces it.",
        "item": "A refusal takes the steps of an effect. The resubmission replaces the processed marker.",
        "engine": "The refusal is a marker. The commit of the resubmission replaces it.",
    }
    for scope, about in abouts.items():
        async with section(page, scope, about) as site:
            a = site.process("worker A")
            await site.client.send("orders", Withdrawal("alice", 5), id="m1")
            await a.handle()
            await site.client.send("orders", Deposit("alice", 8), id="m2")
            await a.handle()
            await site.operator.resubmit("orders", "m1")
            await a.handle()
            await site.client.send("orders", Withdrawal("alice", 5), id="m1")
            await a.handle()


async def swept(page: Page) -> None:
    page.title(
        "A sweep",
        "A worker is killed between commit and push, and for a while no worker receives anything. The sweeper takes up "
        "what is unfinished when it is a minute old. Promise: what is committed leaves, even if its message is never "
        "redelivered.",
    )
    abouts: dict[Scope, str] = {
        "partition": "A pending record is unfinished. The sweeper pushes its outputs and marks it.",
        "item": (
            "A state that holds what its transaction sends is unfinished. The sweeper looks for the marker of its "
            "message, and publishes where there is none."
        ),
    }
    for scope, about in abouts.items():
        async with section(page, scope, about) as site:
            await fails(site, "send", "killed before")
            sweeper = site.process("sweeper")
            site.pass_time(seconds=30)
            await sweeper.sweep()
            site.pass_time(seconds=30)
            await sweeper.sweep()
            await site.process("worker B").handle()


def printing(ran: Ran) -> App:
    """Three statements for each deposit, of 2,000 characters each."""
    app = App("bank")
    app.queue("receipts")

    @app.handler("orders", key="account")
    def handle(order: Deposit, account: Account, ctx: Context) -> None:
        ran(f"Deposit of {order.amount}", account)
        account.balance += order.amount
        for _ in range(3):
            ctx.send("receipts", Statement("x" * 2_000))

    return app


async def overflow(page: Page) -> None:
    page.title(
        "An overflow",
        "A handler sends more than a record can hold: this store takes documents of 4,000 bytes. The outputs go to a "
        "blob, and the record names it. Promise: what is committed leaves, and a blob is deleted only when nothing "
        "needs it.",
    )

    async def swept_later(site: Site) -> None:
        site.pass_time(hours=2)
        await site.process("sweeper").sweep()

    about = "The blob is announced, written, named by the commit, and deleted after the mark."
    async with section(page, "partition", about, app=printing, item_bytes_max=4_000) as site:
        await site.client.send("orders", Deposit("alice", 5), id="m1")
        await site.process("worker A").handle()
        await swept_later(site)
    about = (
        "The first attempt leaves a blob that no record names. Its announcement leads the sweeper to it. The blob goes "
        "when the attempt has lost and no attempt lasts that long: until then it may not have been written yet."
    )
    what = "killed before the commit"
    async with section(page, "partition", about, what=what, app=printing, item_bytes_max=4_000) as site:
        await fails(site, "commit", "killed before")
        await redelivered(site)
        site.pass_time(minutes=1)
        await site.process("sweeper").sweep()
        await swept_later(site)
    about = "What is staged names the blob. The next worker reads the outputs from it."
    what = "killed before the push"
    async with section(page, "item", about, what=what, app=printing, item_bytes_max=4_000) as site:
        await fails(site, "send", "killed before")
        await redelivered(site)
        await swept_later(site)


async def lowered_retention(page: Page) -> None:
    page.title(
        "A lowered retention",
        "A bank that remembers messages for seven days is deployed with a retention of one day; for an hour, the "
        "margin, workers of both run. m1 is two days old, m2 comes within that hour, m3 after it. Promise: what is too "
        "old for the new workers is not run by the earlier ones either, because the record decides; and records live "
        "as long as before until the earlier workers are gone.",
    )

    def lowered(ran: Ran) -> App:
        return bank(ran, retention_days=1)

    abouts: dict[Scope, str] = {
        "partition": "The retention is registered in the store, with the earlier ones that still matter.",
        "engine": "The same with markers.",
    }
    for scope, about in abouts.items():
        async with section(page, scope, about) as site:
            a, b = site.process("worker A"), site.process("worker B", lowered)
            await a.start()
            await b.start()
            begun = page.clock.seconds
            for worker in (b, a):
                await site.client.send("orders", Deposit("alice", 5), id="m1", created=begun - 2 * DAY_S)
                await worker.handle()
            await site.client.send("orders", Deposit("alice", 8), id="m2", created=begun)
            await b.handle()
            site.pass_time(hours=1)
            page.event("worker A ends")
            site.pass_time(hours=1)
            c, later = site.process("worker C", lowered), page.clock.seconds
            await c.start()
            await site.client.send("orders", Deposit("alice", 3), id="m3", created=later)
            await c.handle()
            site.pass_time(days=1, hours=1)
            page.event("duplicates arrive: the record of m2 is still there, that of m3 has expired")
            for id, amount, created in (("m2", 8, begun), ("m3", 3, later)):
                await site.client.send("orders", Deposit("alice", amount), id=id, created=created)
                await c.handle()


async def request_twice(page: Page) -> None:
    page.title(
        "A request asked twice",
        "A client pays in over HTTP under an idempotency key, and repeats the request. Promise: the same key with the "
        "same body has one effect and one reply, which is part of the commit; with another body it is refused.",
    )
    abouts: dict[Scope, str] = {
        "partition": "The claim says beside which state the record lies, whatever state a repetition names.",
        "engine": "The marker holds the reply, and is found whatever state a repetition names.",
    }
    for scope, about in abouts.items():
        async with section(page, scope, about) as site:
            entry = site.process("entry A")
            await entry.request("POST", "/deposits", "k1", Deposit("alice", 5))
            await entry.request("POST", "/deposits", "k1", Deposit("alice", 5))
            await entry.request("POST", "/deposits", "k1", Deposit("bob", 5))
    about = "The client gets no answer and repeats the request. Its record is pending, so the receipt leaves now."
    async with section(page, "partition", about, what="killed before the answer") as site:
        entry = site.process("entry A")
        entry.next("commit", "killed after")
        await entry.request("POST", "/deposits", "k1", Deposit("alice", 5))
        await site.process("entry B").request("POST", "/deposits", "k1", Deposit("alice", 5))


STORIES: dict[str, Story] = {
    "01_crash_between_commit_and_push": crash,
    "02_lost_reply_of_a_commit": lost_reply,
    "03_duplicate": duplicate,
    "04_lost_lock": lost_lock,
    "05_blocked_session": blocked_session,
    "06_resubmission": resubmission,
    "07_sweep": swept,
    "08_overflow": overflow,
    "09_lowered_retention": lowered_retention,
    "10_request_asked_twice": request_twice,
}

FOLDER = Path(__file__).resolve().parent


def path_of(name: str) -> Path:
    """Where the page of a story lies."""
    return FOLDER / f"{name}.txt"


async def played(name: str) -> str:
    """The page of a story as the code of today plays it."""
    page = Page()
    await STORIES[name](page)
    return page.text
