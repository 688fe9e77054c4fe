"""Partition and item scope on the real engine, recorded: sound as they are, and found out where a store lies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from outbox import App, Context, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown
from outbox.ports import Create, Lost, Replace, StateStore, StorePorts, Won, Write
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.recording import recorded
from outbox.verify.recorded.verdict import Verdict
from tests.unit.messages import Transfer
from tests.unit.verify.lying import Lying
from tests.unit.verify.test_recording import Account, Deposit

Scope = Literal["partition", "item"]
app = App("bank")
app.queue("ledger")


@app.handler("transfers", key="source")
def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
    if transfer.amount < 0:
        raise Reject("no")
    account.balance -= transfer.amount
    ctx.send("deposits", Deposit(transfer.target, transfer.amount))
    ctx.send("ledger", transfer)


@app.handler("deposits", key="target")
def deposit(deposit: Deposit, account: Account) -> None:
    account.balance += deposit.amount


StoreWrapper = Callable[[StateStore], StateStore]


async def judged(scope: Scope, wrap: StoreWrapper = lambda store: store, *, workers: int = 1) -> Verdict:
    """Run some messages on an engine as a store and a bus apart; the verdict over its history."""
    history = History()
    engine = Engine.in_memory()
    inner = NarrowEngine(engine, scope).ports()

    class Backed:
        def ports(self) -> StorePorts:
            return StorePorts(wrap(inner.store), inner.bus, inner.operations, inner.blobs)

    history.life(is_empty=True)
    backend = recorded(Backed(), history)
    async with engine, Worker(app, backend) as worker:
        others = [Worker(app, backend) for _ in range(workers - 1)]
        for other in others:
            await other.__aenter__()
        for n in [*range(20), *range(4)]:
            transfer = Transfer(f"t{n}", f"a{n % 3}", f"a{n % 5}", -1 if n == 7 else 1)
            await worker.send("transfers", transfer, id=f"t{n}")
        await worker.wait_idle()
        for other in others:
            await other.drain()
        await worker.drain()
        history.quiesce(["transfers", "deposits"])
    return check(history)


@pytest.mark.parametrize("scope", ["partition", "item"])
@pytest.mark.parametrize("workers", [1, 3])
async def test_the_store_protocols_are_judged_sound(scope: Scope, workers: int) -> None:
    verdict = await judged(scope, workers=workers)
    assert verdict.ok, verdict.text
    counts = verdict.counts
    assert (counts.applied, counts.refused, counts.outputs) == (19 * 2, 1, 19 * 2)
    assert counts.changes > 0 and counts.pushes >= 38


@dataclass(eq=False)
class Doubtful(Lying):
    """Its answers get lost."""

    _chance: random.Random

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        if self._chance.random() < 0.1:
            raise OutcomeUnknown("the request is lost")
        answer = await self.store.write(operations)
        if self._chance.random() < 0.1:
            raise OutcomeUnknown("the answer is lost")
        return answer


@pytest.mark.parametrize("scope", ["partition", "item"])
@pytest.mark.parametrize("seed", range(4))
async def test_writes_whose_answer_was_lost_are_decided_by_what_followed(scope: Scope, seed: int) -> None:
    verdict = await judged(scope, lambda store: Doubtful(store, random.Random(seed)), workers=2)
    assert verdict.ok, verdict.text
    assert verdict.counts.optional > 0 and verdict.counts.applied == 38


class Forgetful(Lying):
    """Acknowledges the second write of a state without keeping it."""

    done = False

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        kinds = {operation.tag.what for operation in operations}
        if not self.done and kinds & {"state", "swap"} and any(isinstance(op, Replace) for op in operations):
            self.done = True
            return Won(tuple("1" for _ in operations))
        return await self.store.write(operations)


class Unconditional(Lying):
    """Replaces whatever is there."""

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        blind: list[Write] = []
        for operation in operations:
            found = await self.store.read(operation.key)
            if found is not None and isinstance(operation, Create | Replace):
                operation = Replace(operation.key, operation.body, found.version, operation.ttl_s, operation.tag)
            blind.append(operation)
        return await self.store.write(blind)


async def test_a_store_that_forgets_what_it_acknowledged_is_found_out() -> None:
    verdict = await judged("partition", Forgetful)
    assert not verdict.ok, verdict.text


async def test_a_store_without_conditions_is_found_out() -> None:
    verdict = await judged("partition", Unconditional, workers=2)
    assert {"applied twice", "doubled output"} & {finding.what for finding in verdict.findings}, verdict.text
