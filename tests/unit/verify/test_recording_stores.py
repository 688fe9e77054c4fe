"""Partition and item scope on the real engine, recorded: sound as they are, and found out where a store lies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from outbox import App, Context, Engine, Reject, Worker, stored
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown
from outbox.message import Message
from outbox.ports import (
    Create,
    DocumentKey,
    Lost,
    Output,
    Replace,
    StateStore,
    StorePorts,
    Tag,
    Won,
    Write,
)
from outbox.stored import Record, Staged, StateItem
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.recording import RecordedStore, emitted, recorded
from outbox.verify.recorded.verdict import Verdict
from tests.unit.messages import Transfer
from tests.unit.steps.making import engine_store
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


# What is written down


OUTPUT = Output("told", 0, Message(body=b"1", outbox_id="00-0", causation_id="m"))


async def test_a_document_that_is_read_shows_whose_transaction_took_effect() -> None:
    history, store = History(), engine_store()
    seen = RecordedStore(store, history)
    documents: dict[str, Any] = {
        "done:1": Record("t1", b"", 0),
        "inbox:1": Record("t2", b"", 0, pending=True),
        "inbox:2": Record("t3", b"", 0, entry="ledger/1"),
        "staged:t4": Staged("t4", b"", "S:1", 0, Record("t4", b"", 0)),
        "state": StateItem(pending="t5"),
    }
    for id, document in documents.items():
        await store.write([Create(DocumentKey("S:1", id), stored.encode(document))])
    await store.write([Create(DocumentKey("S:1", "inbox:3"), b"not ours")])
    for found in (seen.scan("S:1"), seen.unfinished(), seen.unsent("ledger/", "ledger/2")):
        assert [document async for document in found]
    assert await seen.read(DocumentKey("S:1", "inbox:1")) is not None
    shown = [tx for event in history.events() if isinstance(event, events.Found) for tx in event.txs]
    assert shown == ["t1", "t2", "t3", "t5", "t2", "t5", "t3", "t2"]


async def test_a_swap_commits_what_was_staged_in_whichever_store() -> None:
    history, states, apart = History(), engine_store(), engine_store()

    class Apart:
        def ports(self) -> StorePorts:
            inner = NarrowEngine(Engine.in_memory(), "item").ports()
            return StorePorts(states, inner.bus, inner.operations, inner.blobs, apart)

    ports = recorded(Apart(), history).ports()
    assert isinstance(ports, StorePorts) and ports.infrastructure is not None
    record = Record("t1", b"f", 0, pending=True, outputs=(OUTPUT,))
    staged = Create(stored.staged_key("S:1", "t1"), stored.encode(Staged("t1", b"\0", "S:1", 0, record)))
    await ports.infrastructure.write([replaced(staged, tag=Tag("stage", (b"\0",), "t1"))])
    deleted, key = StateItem(version=4, pending="t1"), stored.state_key("S:1")
    won = await ports.store.write([Create(key, stored.encode(deleted), tag=Tag("swap", (b"\0",), "t1"))])
    assert isinstance(won, Won)
    [swap, _] = history.events()
    assert swap == events.Commit(
        op=1, changes=[events.Change("S:1", 3, 4, 0)], outputs=[emitted(OUTPUT)], applied=["00"], staged=True, tx="t1"
    )
    unknown = replace(deleted, version=5, pending="t2")  # staged before the recording began
    await ports.store.write([Replace(key, stored.encode(unknown), won.versions[0], tag=Tag("swap", (b"\1",), "t2"))])
    [*_, swap, _] = history.events()
    assert isinstance(swap, events.Commit) and swap.is_spilled and swap.tx == "t2"


async def test_of_a_batch_one_record_with_its_outputs_elsewhere_is_enough() -> None:
    history, store = History(), engine_store()
    records = [Record("t", b"", 0, spilled=spilled) for spilled in ("", "blob")]
    await RecordedStore(store, history).write(
        [
            Create(DocumentKey("S:1", f"inbox:{n}"), stored.encode(record), tag=Tag("commit", (bytes([n]),), "t"))
            for n, record in enumerate(records)
        ]
    )
    [commit, _] = history.events()
    assert isinstance(commit, events.Commit) and commit.is_spilled and commit.applied == ["00", "01"]
