"""Each commit protocol under every single fault, pairs of them and drawn ones: nothing that can be seen changes.

A scenario is run once without faults to learn what it leaves behind and how many port calls it makes.  Then every
call fails in every way.  A chain's second handler writes down each output that it was given, so that what is compared
is what had an effect, not only what the harness recorded.  Under a store protocol it may take another time to come to
the same end: there only engine scope's due times are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from outbox import App, Context, Reject, Retries, Retry
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.wire.on_azure.ledger_app import Account, Book, Entry

pytestmark = pytest.mark.slow


LARGE = "x" * 3_000
DRAWN_SEEDS = range(150)
Scope = Literal["engine", "partition", "item"]
SCOPES: tuple[Scope, ...] = ("engine", "partition", "item")


@dataclass
class Order:
    account: str
    amount: int
    outputs: int = 0
    note: str = ""


def bank(ordering: Any = "unordered") -> App:
    """A chain of two handlers, the second of which writes down what reaches it."""
    app = App("matrix", claim_check_bytes=2_000, retry=Retries(limit=2, delays_s=(5.0,)))
    app.queue("orders", ordering)
    app.queue("entries")
    app.queue("outside")

    @app.handler("orders", key="account")
    async def book(order: Order, account: Account, ctx: Context) -> None:
        if order.note == "slow":
            await asyncio.sleep(0)
        if order.note == "broken":
            raise ValueError("broken order")
        account.total += order.amount
        account.count += 1
        if order.note == "refuse":
            raise Reject("refused order")
        if order.note == "wait" and ctx.now() < START_S + 60:
            raise Retry("not yet", after_s=90)
        if order.note == "close":
            ctx.delete()
        if order.note == "blob":
            order.note = ctx.write_blob("note", order.account.encode()).name
        for n in range(order.outputs):
            padding = LARGE if order.note == "large" else ""
            running = f" {account.total}" if ordering == "per_key" else ""
            ctx.send("entries", Entry("ledger", f"{order.account} {order.amount} {n}{running}{padding}"))
        if order.outputs:
            ctx.schedule("outside", order, after_s=7_200)

    @app.handler("entries", key="book")
    async def enter(entry: Entry, ledger: Book, ctx: Context) -> None:
        ledger.entries.append(f"{ctx.message_id} {entry.text}")

    return app


START_S = 1_767_225_600.0
Sends = tuple[tuple[str, Order], ...]

SCENARIOS: dict[str, tuple[App, Sends, bool]] = {
    "no outputs": (bank(), (("a1", Order("alice", 5)), ("b1", Order("bob", 7))), False),
    "one output, new state": (bank(), (("a1", Order("alice", 5, 1)),), False),
    "one output, known state": (bank(), (("a1", Order("alice", 5, 1)),), True),
    "three outputs, new state": (bank(), (("a1", Order("alice", 5, 3)), ("a2", Order("alice", 6, 3))), False),
    "three outputs, known state": (bank(), (("a1", Order("alice", 5, 3)), ("b1", Order("bob", 6, 3))), True),
    "duplicates": (bank(), (("a1", Order("alice", 5, 3)),) * 3 + (("a2", Order("alice", 1, 1)),) * 2, True),
    "refusals": (
        bank(),
        (("r1", Order("alice", 5, 1, "refuse")),) * 2
        + (("f1", Order("bob", 5, 1, "broken")), ("a1", Order("bob", 1, 1))),
        True,
    ),
    "asks for another delivery": (bank(), (("w1", Order("alice", 5, 1, "wait")), ("a1", Order("alice", 2, 1))), False),
    "large bodies": (bank(), (("l1", Order("alice", 5, 2, "large")), ("l2", Order(LARGE, 1, 1, "large"))), True),
    "handlers that wait": (
        bank(),
        (
            ("a1", Order("alice", 5, 1, "slow")),
            ("a2", Order("alice", 6, 1)),
            ("a3", Order("alice", 7, 1, "slow")),
            ("b1", Order("bob", 1, 1, "slow")),
        ),
        True,
    ),
    "blobs": (bank(), (("a1", Order("alice", 5, 1, "blob")), ("b1", Order("bob", 5, 1, "blob"))), False),
    "a deletion": (bank(), (("a1", Order("alice", 5, 1, "close")),) * 2, True),
    "ordered by key, handlers that wait": (
        bank("per_key"),
        tuple(
            (f"{key}{n}", Order(key, n, 1, "slow" if n % 2 else "")) for key in ("alice", "bob") for n in range(1, 5)
        ),
        False,
    ),
    "ordered by key": (
        bank("per_key"),
        (
            ("a1", Order("alice", 5, 1)),
            ("a2", Order("alice", 6, 3)),
            ("a2", Order("alice", 6, 3)),
            ("b1", Order("bob", 1, 1)),
        ),
        False,
    ),
    "ordered by key, refusals": (
        bank("per_key"),
        (("a1", Order("alice", 5, 1, "broken")), ("a2", Order("alice", 6, 1)), ("a3", Order("alice", 7, 1, "refuse"))),
        True,
    ),
}


@dataclass(frozen=True)
class Seen:
    """What a run left behind that anybody can see."""

    states: dict[str, Any]
    outputs: list[tuple[str, str, str, float | None]]
    dead_letters: list[tuple[str, str, str, str]]


@dataclass(frozen=True)
class Run:
    seen: Seen
    port_calls: int
    fired: tuple[str, ...]


async def run(name: str, scope: Scope, faults: Faults | None = None, seed: int = 0) -> Run:
    app, sends, known = SCENARIOS[name]
    async with Harness(app, faults=faults, seed=seed, scope=scope) as world:
        if known:
            await world.given(Account, "alice", Account(100, 1))
        for id, order in sends:
            await world.send("orders", order, id=id, created=START_S)
        await world.advance(minutes=5)
        states: dict[str, Any] = {key: await world.state(Account, key) for key in ("alice", "bob", LARGE)}
        ledger = await world.state(Book, "ledger")
        states["ledger"] = sorted(ledger.entries) if ledger is not None else None
        outputs = [
            (record.id, queue, repr(record.message), record.due if scope == "engine" else None)
            for queue in ("entries", "outside")
            for record in world.sent_records(queue)
        ]
        letters = [
            (dead_letter.id, queue, dead_letter.reason, repr(dead_letter.message))
            for queue in ("orders", "entries")
            for dead_letter in world.dead_letters(queue)
        ]
        if scope == "engine" and not (faults and faults.duplicates):
            assert len(letters) == len(set(letters)) + EXPECTED_REPEATS.get(name, 0)
        return Run(Seen(states, sorted(outputs), sorted(set(letters))), world.port_calls, tuple(world.fault_log))


EXPECTED_REPEATS = {"refusals": 1}
"""A refused message that was sent twice is dead-lettered twice, with one reason."""


def single_faults(port_calls: int) -> Iterator[Faults]:
    for n in range(1, port_calls + 1):
        yield Faults(crashes=((n, "before"),))
        yield Faults(crashes=((n, "after"),))
        yield Faults(lost=(n,))
        yield Faults(refused=(n,))


def pairs(port_calls: int) -> Iterator[Faults]:
    """A crash and then a lost reply or another crash among the three calls after it, and two lost replies."""
    for first in range(1, min(port_calls, 6) + 1):
        for second in range(first + 1, first + 4):
            yield Faults(crashes=((first, "after"),), lost=(second,))
            yield Faults(crashes=((first, "before"),), lost=(second,))
            yield Faults(crashes=((first, "before"), (second, "after")))
            yield Faults(crashes=((first, "after"), (second, "before")))
            yield Faults(crashes=((second, "after"),), lost=(first,))
            yield Faults(lost=(first, second))


async def check(name: str, scope: Scope, clean: Run, faults: Faults, seed: int = 0) -> Run:
    found = await run(name, scope, faults, seed)
    assert found.seen == clean.seen, f"{name} in {scope} scope with {faults}, seed {seed}: {found.fired}"
    return found


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_any_single_fault_changes_nothing_that_can_be_seen(name: str, scope: Scope) -> None:
    clean = await run(name, scope)
    assert clean.port_calls >= 3 and clean.fired == ()
    for faults in single_faults(clean.port_calls):
        found = await check(name, scope, clean, faults)
        assert len(found.fired) == 1 or scope != "engine", faults  # marks may then be made elsewhere


EVERY_RUN = ("three outputs, new state", "duplicates", "ordered by key")
"""Their pairs of faults are part of every run, those of the others of `make soak`; single faults always are."""
PAIRED = [name if name in EVERY_RUN else pytest.param(name, marks=pytest.mark.soak) for name in SCENARIOS]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", PAIRED)
async def test_any_pair_of_faults_changes_nothing_that_can_be_seen(name: str, scope: Scope) -> None:
    clean = await run(name, scope)
    for faults in pairs(clean.port_calls):
        found = await check(name, scope, clean, faults)
        assert found.fired, faults


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_drawn_faults_and_duplicates_change_nothing_that_can_be_seen(name: str, scope: Scope) -> None:
    clean, fired = await run(name, scope), 0
    for seed in DRAWN_SEEDS:
        if seed % len(SCENARIOS) != list(SCENARIOS).index(name):
            continue
        faults = Faults.drawn(seed=seed, crashes=2, lost=2, refused=1, duplicates=3, within=clean.port_calls + 6)
        fired += len((await check(name, scope, clean, faults, seed)).fired)
    assert fired >= 2 * len(DRAWN_SEEDS) // len(SCENARIOS)


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_fault_free_run_is_the_one_that_was_meant(scope: Scope) -> None:
    seen = (await run("duplicates", scope)).seen
    assert seen.states["alice"] == Account(106, 3)
    assert [queue for _, queue, _, _ in seen.outputs].count("entries") == 4
    assert len(seen.states["ledger"]) == 4
