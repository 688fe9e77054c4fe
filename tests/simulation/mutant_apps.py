"""The scenarios in which planted faults must show: small applications, few messages, few faults.

They are made when asked for, after the fault was planted: nothing of the package is imported before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox import App, Context, Reject, Retries, Retry
from outbox.guards import Breaker, Rate
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.scenario import START_MS, Scenario

ITEM_BYTES_MAX = 1_300
"""So small is a document where outputs are to lie outside of their record."""
LONG_NAME = 1_200 * "a"
BELL_AFTER_S = 20
BLOCKED_AFTER_S = 15
"""When a key is blocked: later than what came before it was applied, whose record is gone first."""


@dataclass
class Add:
    account: str
    amount: int


@dataclass
class Added:
    account: str
    total: int


@dataclass
class Question:
    account: str


@dataclass
class Count:
    total: int = 0


def counting() -> App:
    """Adds up, and says the sum: what is sent depends on the state that was seen."""
    app = App("counting", retention=timedelta(hours=1), margin=timedelta(minutes=20))
    app.queue("added")

    @app.handler("adds", key="account")
    def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        if count.total < 0:
            raise Reject("not below nothing")
        ctx.send("added", Added(message.account, count.total))

    @app.http("POST", "/adds", key="account")
    async def post(message: Add, count: Count, ctx: Context) -> Added:
        add(message, count, ctx)
        return Added(message.account, count.total)

    @app.http("GET", "/counts/{account}", key="account")
    def look(question: Question, count: Count, ctx: Context) -> Added:
        return Added(question.account, count.total)

    return app


def asking() -> App:
    """Says the sum of what it has, and changes nothing when asked for nothing."""
    app = App("asking")
    app.queue("added")

    @app.handler("adds", key="account")
    def add(message: Add, count: Count, ctx: Context) -> None:
        if message.amount:
            count.total += message.amount
        else:
            ctx.send("added", Added(message.account, count.total))

    return app


def ending() -> App:
    """Counts, and deletes its state when it comes to nothing."""
    app = App("ending", retention=timedelta(hours=1), margin=timedelta(minutes=20))

    @app.handler("adds", key="account")
    def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        if message.amount < 0:
            ctx.delete()

    return app


def twofold() -> App:
    """Two handlers of one message and one type of state."""
    app = App("twofold")
    app.queue("added")

    @app.handler("adds", key="account")
    def first(message: Add, count: Count) -> None:
        count.total += message.amount

    @app.handler("adds", key="account")
    def second(message: Add, count: Count, ctx: Context) -> None:
        ctx.send("added", Added(message.account, message.amount))

    return app


def stateless() -> App:
    """Passes on, without a state."""
    app = App("stateless")
    app.queue("added")

    @app.handler("adds")
    def add(message: Add, ctx: Context) -> None:
        ctx.send("added", Added(message.account, message.amount))

    return app


def spilling() -> App:
    """Counts, and sends more than a record of the store that it runs on can hold."""
    app = App("spilling", retention=timedelta(hours=1), margin=timedelta(minutes=20))
    app.queue("added")

    @app.handler("adds", key="account")
    def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        ctx.send("added", Added(LONG_NAME, count.total))

    return app


def standing() -> App:
    """Counts in order, and stands still behind what it refuses."""
    app = App("standing")
    app.queue("adds", "per_key")

    @app.handler("adds", key="account", on_dead_letter="stop_key")
    def add(message: Add, count: Count) -> None:
        count.total += message.amount
        if count.total < 0:
            raise Reject("not below nothing")

    return app


def blocking() -> App:
    """Counts in order; what it is to take off is rescheduled, then refused until retention is over.

    Retention is short, because what waits behind a blocked key comes again every few seconds.
    """
    app = App(
        "blocking", retention=timedelta(seconds=20), margin=timedelta(seconds=10), clock_skew=timedelta(seconds=5)
    )
    app.queue("adds", "per_key")

    @app.handler("adds", key="account", on_dead_letter="stop_key")
    def add(message: Add, count: Count, ctx: Context) -> None:
        passed_s = ctx.now() - START_MS / 1_000
        if message.amount < 0 and passed_s < BLOCKED_AFTER_S:
            raise Retry("not yet", after_s=BLOCKED_AFTER_S - passed_s)
        if message.amount < 0 and passed_s < app.retention.total_seconds():
            raise Reject("not yet either")
        count.total += message.amount

    return app


def trying(limit: int = 2) -> App:
    """Counts, and tries once more what it cannot take off."""
    app = App("trying", retry=Retries(limit=limit, delays_s=(10,)))

    @app.handler("adds", key="account")
    def add(message: Add, count: Count) -> None:
        count.total += message.amount
        if count.total < 0:
            raise ValueError("not below nothing")

    return app


def insisting() -> App:
    """Counts, and tries twice more what it cannot take off."""
    return trying(limit=3)


def calling(*, idempotent: bool = True) -> App:
    """Adds up, and waits for a call of another system where it adds a negative amount."""
    app = App("calling", retention=timedelta(hours=1), margin=timedelta(minutes=20))
    app.queue("added")

    @app.handler("adds", key="account")
    async def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        if message.amount < 0:
            await ctx.call(lambda: None, idempotent=idempotent)
        ctx.send("added", Added(message.account, count.total))

    return app


def ringing() -> App:
    """The same, where the other system does not know a call that it has had."""
    return calling(idempotent=False)


def sparing(ordering: Any = "unordered") -> App:
    """Counts behind a breaker and a rate; what it takes off needs two calls, each with a breaker of its own."""
    app = App("sparing", retry=Retries(limit=1))
    app.queue("added")
    app.queue("adds", ordering)

    @app.handler("adds", key="account", breaker=Breaker("there"), rate=Rate(1))
    async def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        ctx.send("added", Added(message.account, count.total))
        if message.amount < 0:
            await ctx.call(lambda: None, idempotent=True, breaker=Breaker("first"))
            await ctx.call(lambda: None, idempotent=True, breaker=Breaker("second"), rate=Rate(1, name="second"))

    return app


def sparing_in_order() -> App:
    """The same in order."""
    return sparing("per_key")


def sparing_plain() -> App:
    """Counts behind a breaker, and waits for nothing."""
    app = App("sparing_plain", retry=Retries(limit=1))
    app.queue("added")

    @app.handler("adds", key="account", breaker=Breaker("there"))
    def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        ctx.send("added", Added(message.account, count.total))

    return app


def sparing_a_call() -> App:
    """Counts, and makes one guarded call, of a system that does not know a call that it has had."""
    app = App("sparing_a_call", retry=Retries(limit=1))

    @app.handler("adds", key="account")
    async def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        await ctx.call(lambda: None, breaker=Breaker("there"))

    return app


@dataclass
class Bell:
    account: str


@dataclass
class Timer:
    ticket: str = ""
    rung: int = 0


def timing() -> App:
    """5 schedules a bell, 3 cancels it if it is there."""
    app = App("timing")

    @app.handler("bells", key="account")
    def ring(bell: Bell, timer: Timer) -> None:
        timer.rung += 1

    @app.handler("adds", key="account")
    def add(message: Add, timer: Timer, ctx: Context) -> None:
        if message.amount == 5:
            timer.ticket = ctx.schedule("bells", Bell(message.account), after_s=BELL_AFTER_S)
        elif timer.ticket:
            ctx.cancel(timer.ticket)

    return app


APPS: dict[str, Callable[[], App]] = {made.__name__: made for made in (
    timing, sparing, sparing_in_order, sparing_plain, sparing_a_call, ringing, counting, asking, ending, twofold,
    stateless, spilling, standing, blocking, trying, insisting, calling,
)}  # fmt: skip


def scenario(
    scope: str,
    app: str = "counting",
    *,
    amounts: tuple[int, ...] = (5,),
    repeated: tuple[int, ...] = (),
    given: int | None = 10,
    faults: dict[str, int] | None = None,
    asked: tuple[tuple[str, str, int], ...] = (),
    looked: bool = False,
    triggered: bool = False,
    is_shared: bool = False,
    clashing: int | None = None,
    edited: tuple[tuple[str, int], ...] = (),
    **options: Any,
) -> Scenario:
    """Messages m1, m2, ... that add these amounts to account `a`, and requests: idempotency key, account, amount.

    Behind the messages come copies of those that are `repeated`, by number, and another message under the id of the
    first that adds the `clashing` amount.  As an edit the first may have another account and amount (`edited`).  A
    client may have `looked` at the sum as well.  What is `triggered` is handled under a Functions host.  Where the
    container `is_shared`, the sweeper is another application's.
    """
    messages = [("adds", Add("a", amount), f"m{n}") for n, amount in enumerate(amounts, 1)]
    messages += [messages[n - 1] for n in repeated]
    messages += [] if clashing is None else [("adds", Add("a", clashing), "m1")]
    known = () if given is None else (("a", Count(given)),)
    budgets = Budgets(**(faults or {}))
    cell: dict[str, Any] = {"workers": 1, "copies": 1, "allow": frozenset({"dead-letter"})}
    cell["edits"] = [("m1", Add(account, amount)) for account, amount in edited]
    if app == "spilling":
        cell["item_bytes_max"] = ITEM_BYTES_MAX
    if asked:
        cell["requests"] = [ClientRequest("POST /adds", key, Add(account, amount)) for key, account, amount in asked]
    if is_shared:
        cell["neighbour"] = App("neighbour", retention=timedelta(minutes=15), margin=timedelta(minutes=12))
    if triggered:
        from tests.simulation.trigger_host import TriggerHost

        cell["hosts"] = TriggerHost
    if looked:
        cell["requests"] = [*cell.get("requests", ()), ClientRequest("GET /counts/a", "look", None)]
    return Scenario(APPS[app](), messages, known, scope=scope, budgets=budgets, **(cell | options))
