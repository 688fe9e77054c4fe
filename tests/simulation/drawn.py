"""Worlds of which `make soak` draws runs, and scopes that it explores whole: each follows from a kind and a seed.

Of the large world every seed has the same shape: four workers, twenty messages on five keys, each key's first messages
twice.  A small world's shape is drawn as well: how many workers, keys, copies and faults, and what the store tells.
"""

from __future__ import annotations

import random
from typing import Any

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FAULT_KINDS
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.promises.view import Invariant, View
from tests.simulation.explored import Account, Deposit, Transfer, bank, desk

KEYS = ("alice", "bob", "carol", "dave", "erin")
BALANCE = 10
WHOLE_KINDS = ("crash", "lost", "delay", "error", "expire")
"""The faults of scopes that are explored whole; leaps of time and stale reads make them too large."""


def large(scope: str) -> Scenario:
    """Four workers, twenty messages on five keys, up to six faults of all kinds together."""
    messages = [
        ("transfers", Transfer(f"t{n}", KEYS[n % 5], KEYS[(n + 1 + n // 5) % 5], 1 + n % 3), f"t{n}") for n in range(20)
    ]
    known = [(key, Account(100)) for key in KEYS]
    budgets = Budgets(**dict.fromkeys(FAULT_KINDS, 2), together=6)
    return Scenario(bank(), messages, known, workers=4, copies=[2] * 5, scope=scope, budgets=budgets)


def small(scope: str, seed: int) -> Scenario:
    """Two or three workers, three messages on one to three keys, one to four faults of all kinds together."""
    draw = random.Random(f"small/{seed}")
    keys = KEYS[: draw.randint(1, 3)]
    messages = [_transfer(draw, f"t{n}", keys) for n in range(3)]
    options = _store_options(draw, scope)
    kinds = [
        kind for kind in FAULT_KINDS if kind != "jump" or not options.get("ledger")
    ]  # a life without a sweep loses
    return Scenario(
        bank(),
        messages,
        [(key, Account(BALANCE)) for key in keys if draw.random() < 0.7],
        workers=draw.choice((2, 2, 3)),
        copies=[draw.randint(1, 2) for _ in messages],
        scope=scope,
        budgets=Budgets(**dict.fromkeys(kinds, 2), together=draw.randint(1, 4)),
        allow=frozenset({"dead-letter"}),
        **options,
    )


def whole(seed: int) -> Scenario:
    """Two workers, one or two messages, some of them twice, and one or two faults: to be explored to its end."""
    draw = random.Random(f"whole/{seed}")
    scope = draw.choice(("engine", "partition", "item"))
    keys = KEYS[: draw.randint(1, 2)]
    messages = [_transfer(draw, f"t{n}", keys) for n in range(draw.randint(1, 2))]
    kinds = draw.sample(WHOLE_KINDS, 2 if len(messages) == 1 else 1)
    return Scenario(
        desk(),
        messages,
        [(key, Account(BALANCE)) for key in keys if draw.random() < 0.7],
        copies=[draw.randint(1, 2), *[1] * (len(messages) - 1)],
        scope=scope,
        budgets=Budgets(**{kind: draw.randint(1, 2 if len(messages) == 1 else 1) for kind in kinds}),
        allow=frozenset({"dead-letter"}),
        **_store_options(draw, scope),
    )


def _transfer(draw: random.Random, id: str, keys: tuple[str, ...]) -> tuple[str, Transfer, str]:
    """A transfer between any two keys; some are refused."""
    amount = draw.choice((-1, 1, 2, 3, 5, 8))
    return "transfers", Transfer(id, draw.choice(keys), draw.choice(keys), amount), id


def _store_options(draw: random.Random, scope: str) -> dict[str, Any]:
    """What differs from store to store and from worker to worker."""
    drawn = {"batch": draw.randint(1, 2), "sweepers": draw.randint(0, 1), "warm": draw.random() < 0.3,
             "tells_current": draw.random() < 0.5}  # fmt: skip
    if scope == "partition" and draw.random() < 0.3:
        drawn |= {"ledger": True, "sweepers": 1}
    return drawn if scope != "engine" else {"batch": drawn["batch"]}


def conserved(scenario: Scenario) -> Invariant:
    """Whether balances and deposits on their way add up to what there was."""
    there = sum(state.balance for _, state in scenario.given)

    def adds_up(world: View) -> bool:
        balances = sum(account.balance for account in world.states(Account))
        return bool(balances + sum(deposit.amount for deposit in world.in_flight(Deposit)) == there)

    return adds_up
