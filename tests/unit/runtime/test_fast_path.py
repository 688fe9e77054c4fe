"""A batch handled by the written-out loop comes to the commit that its messages come to one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from outbox import App, Context, Reject
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import Delivery, Marker, StateDocument
from outbox.runtime.commit.engine_transaction import EngineTransaction
from outbox.runtime.commit.fast_path import start_all
from outbox.runtime.commit.run_handler import Suspended, start
from outbox.runtime.delivery.admission import admit
from outbox.runtime.start.plan import compile_app
from outbox.runtime.work import Work, attempt_at
from tests.unit.messages import Account

NOW_MS = 1_800_000_000_000
app = App("bank", claim_check_bytes=27)
app.queue("news")


@dataclass
class Move:
    account: str
    amount: int


@app.handler("moves", key="account")
async def move(message: Move, account: Account, ctx: Context) -> None:
    account.balance += message.amount
    ctx.send("news", Move(message.account * (1 + message.amount % 3), account.balance))
    match message.amount % 7:
        case 1:
            raise Reject("odd")
        case 2:
            raise RuntimeError("broken")
        case 3:
            ctx.save(Account(1))
        case 4:
            ctx.delete()
        case 5:
            ctx.write_blob("slip", b"x")


def batch(seed: int) -> tuple[list[Work], EngineTransaction]:
    """Messages of every sort, and a group that knows of some states and some markers."""
    rng, plan, sent = random.Random(seed), compile_app(app), []
    for sequence in range(1, 25):
        body = msgspec.json.encode(Move(rng.choice("abcd"), rng.randrange(50))) if rng.random() < 0.9 else b"?"
        ago_ms = rng.choice((0, 1, plan.retention_ms - 1, plan.retention_ms, plan.retention_ms + 1))
        message = Message(body=body, outbox_id=f"m{rng.randrange(20)}", type="Move", created_ms=NOW_MS - ago_ms)
        sent.append(Delivery("moves", sequence, message, 1, NOW_MS, NOW_MS, from_outside=rng.random() < 0.7))
    works = admit(plan, sent, NOW_MS)
    states = {f"Account:{key}": StateDocument(b'{"balance":7}' * (key != "b"), 5) for key in "ab"}
    markers: dict[bytes, Marker] = {w.inbox: fingerprint(w.delivery.message.body, "Move") for w in works[:3]}
    return works, EngineTransaction(plan, NOW_MS, states, markers, _never)


async def _never() -> None:
    raise AssertionError("nothing here calls outside")


def one_by_one(works: list[Work], group: EngineTransaction) -> None:
    for work in works:
        attempt = attempt_at(work)
        outcome = start(compile_app(app), group, attempt)
        assert not isinstance(outcome, Suspended)
        if outcome is None:
            group.complete(work)
        else:
            group.settle(attempt, outcome)


def in_one_go(works: list[Work], group: EngineTransaction) -> int:
    """The same by `start_all`; how often it stopped at a message that was not applied."""
    index = stops = 0
    while index < len(works):
        index, attempt, outcome = start_all(compile_app(app), group, works, index, len(works))
        if outcome is not None:
            assert attempt is not None and not isinstance(outcome, Suspended)
            group.settle(attempt, outcome)
            index, stops = index + 1, stops + 1
    return stops


def test_a_batch_in_one_go_comes_to_the_same_commit() -> None:
    for seed in range(200):
        singly, together = batch(seed), batch(seed)
        one_by_one(*singly)
        assert in_one_go(*together) > 0
        assert together[1].commit == singly[1].commit, f"seed {seed}"
        assert together[1].blobs == singly[1].blobs, f"seed {seed}"


def test_what_a_handler_changed_before_it_raised_is_not_seen_by_the_next() -> None:
    works, group = batch(0)
    plain = [w for w in works if w.refusal is None and w.delivery.message.created_ms > NOW_MS - 2]
    before = dict(group.commit.states)
    failing = next(w for w in plain if w.value.amount % 7 in (1, 2) and w.inbox not in group.markers)
    index, _, outcome = start_all(compile_app(app), group, [failing], 0, 1)
    assert (index, outcome is None, group.commit.states, group.commit.outputs) == (0, False, before, [])
