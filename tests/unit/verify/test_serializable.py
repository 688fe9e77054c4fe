"""Handlers run again along the versions come to the same states and outputs, or the run could not have been serial."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from outbox import App, Context, Engine, Reject, Worker
from outbox.message import Message
from outbox.ports import Delivery
from outbox.runtime.delivery.admission import admit
from outbox.runtime.start.plan import compile_app
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.events import (
    Change,
    Claim,
    Commit,
    Delivered,
    Emitted,
    Ended,
    Event,
    Life,
    Ok,
    Quiesce,
    Seen,
    Whole,
)
from outbox.verify.recorded.linear import Place, Redone, Rerun, Serial
from outbox.verify.recorded.recording import recorded
from outbox.verify.recorded.rerun import rerun
from outbox.verify.recorded.verdict import Findings, Verdict

app = App("bank")
app.queue("ledger")


@dataclass
class Order:
    id: str
    account: str
    amount: int


@dataclass
class Account:
    balance: int = 10
    at: float = 0.0
    mark: str = ""


@app.handler("orders", key="account")
async def pay(order: Order, account: Account, ctx: Context) -> None:
    if order.amount > account.balance:
        raise Reject("no money")
    if not order.amount:
        ctx.delete()
        return
    account.balance -= order.amount
    account.at, account.mark = ctx.now(), str(ctx.uuid())
    ctx.send("ledger", Order(order.id, order.account, account.balance))
    ctx.send("echoes", order)


@app.handler("echoes", key="account")
def echo(order: Order, account: Account) -> None:
    account.balance += 1


memory: dict[str, int] = {}
forgetful = App("forgetful")


@forgetful.handler("orders", key="account")
def remember(order: Order, account: Account) -> None:
    memory[order.account] = memory.get(order.account, 0) + 1  # what a handler must not do
    account.balance = memory[order.account]


waiting = App("waiting")


@waiting.handler("orders", key="account")
async def wait(order: Order, account: Account) -> None:
    await asyncio.sleep(0)
    account.balance += 1


async def run(application: App, orders: list[Order], *, workers: int = 1) -> History:
    history = History(bodies=True)
    engine = Engine.in_memory()
    history.life(is_empty=True)
    async with engine, Worker(application, recorded(engine, history), concurrency=8) as worker:
        others = [Worker(application, recorded(engine, history)) for _ in range(workers - 1)]
        for other in others:
            await other.__aenter__()
        for order in orders:
            await worker.send("orders", order, id=order.id)
        await worker.wait_idle()
        for other in others:
            await other.drain()
    history.quiesce([])
    return history


ORDERS = [Order(f"o{n}", f"a{n % 3}", n % 5) for n in range(60)] + [Order("o1", "a1", 1), Order("big", "a1", 50)]


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_run_of_the_real_worker_is_serializable(workers: int) -> None:
    verdict = check(await run(app, ORDERS, workers=workers), rerun=rerun(app))
    assert verdict.ok, verdict.text
    assert (verdict.counts.not_rerun, verdict.counts.rerun > 0, verdict.counts.refused > 0) == (0, True, True)
    assert "serializable   holds" in verdict.text


async def test_a_handler_that_remembers_outside_its_state_is_found() -> None:
    memory.clear()
    history = await run(forgetful, [Order(f"o{n}", "a", 1) for n in range(5)])
    verdict = check(history, rerun=rerun(forgetful))
    found = verdict.first("serializable")
    assert found is not None and "state Account:a is not what was recorded" in found.text
    assert verdict.first("exactly-once") is None


async def tampered(change: str) -> Verdict:
    """The verdict over a run in which one commit is told otherwise."""
    events = list((await run(app, ORDERS)).events())
    index, commit = next((i, e) for i, e in enumerate(events) if isinstance(e, Commit) and e.changes and e.outputs)
    first = commit.changes[0]
    told: dict[str, Commit] = {
        "state": replace(commit, changes=[Change(first.state, first.before, first.version, 1), *commit.changes[1:]]),
        "output": replace(commit, outputs=[replace(commit.outputs[0], digest=1), *commit.outputs[1:]]),
        "missing output": replace(commit, outputs=commit.outputs[1:]),
        "time": replace(commit, at_ms=commit.at_ms + 1),
        "refusal": replace(commit, applied=commit.applied[1:], refused=[*commit.refused, commit.applied[0]]),
    }
    return check([*events[:index], told[change], *events[index + 1 :]], rerun=rerun(app))


@pytest.mark.parametrize("change", ["state", "output", "missing output", "time", "refusal"])
async def test_what_cannot_come_of_the_handlers_is_found(change: str) -> None:
    assert (await tampered(change)).first("serializable") is not None


async def test_a_decision_on_a_stale_read_comes_out_otherwise() -> None:
    orders = [Order("o0", "a", 9), Order("o1", "a", 5)]
    events = list((await run(app, orders[:1])).events())
    refused = list((await run(app, orders)).events())
    commit = next(e for e in refused if isinstance(e, Commit) and e.buried)
    stale = replace(commit, op=99, buried=commit.buried, ended=[], changes=[], outputs=[], applied=[], postponed=[])
    stale = replace(stale, seen=[Seen("Account:a", 0)])
    claim = next(e for e in refused if isinstance(e, Claim) and any(d.id == "o1" for d in e.deliveries))
    at = next(i for i, e in enumerate(events) if isinstance(e, Claim))
    story: list[Event] = [*events[:at], claim, stale, Ok(op=99), *events[at:]]
    verdict = check(story, rerun=rerun(app))
    found = verdict.first("serializable")
    assert found is not None and "refused" in found.text


async def test_a_handler_that_waits_is_left_out_and_counted() -> None:
    verdict = check(await run(waiting, ORDERS[:6]), rerun=rerun(waiting))
    assert verdict.ok and verdict.counts.rerun == 0 and verdict.counts.not_rerun > 0


async def test_without_bodies_nothing_is_run_again_and_that_is_counted() -> None:
    events = [replace(e, wholes=[]) if isinstance(e, Claim) else e for e in (await run(app, ORDERS[:6])).events()]
    verdict = check(events, rerun=rerun(app))
    assert verdict.counts.rerun == 0 and verdict.counts.not_rerun > 0


twice = App("twice")
for name in ("one", "two"):

    @twice.handler("orders", key="account", name=name)
    def add(order: Order, account: Account) -> None:
        account.balance += order.amount


def redone(again: Rerun, application: App, order: Order, attempt: int = 0, **fields: object) -> Redone | None:
    """Run a message again as a commit of this: `True` stands for its inbox keys."""
    body, wire_type = application.encode(order)
    message = Message(body=body, type=wire_type, outbox_id=order.id, created_ms=1, attempt=attempt)
    (work,) = admit(compile_app(application), [Delivery("orders", 1, message, 0, 0, 0)], 1)
    keys = [part.inbox.hex() for part in (work, *work.others)]
    told = {name: keys if value is True else value for name, value in fields.items()}
    commit = replace(Commit(op=1, at_ms=1), **told)
    return again.run(commit, [(("orders", 1), Whole(message))])


def test_a_handling_is_run_again_at_the_states_that_its_commit_has_seen() -> None:
    again, changes = rerun(app), [Change("Account:a", 0, 1)]
    assert redone(again, app, Order("o1", "a", 9), applied=True, changes=changes)
    found = redone(again, app, Order("o2", "a", 5), refused=True, seen=[Seen("Account:a", 1)])
    assert found is not None and len(found.refused) == 1 and not found.applied
    resubmitted = redone(again, app, Order("o3", "a", 1), 1, applied=True, replacing=True, changes=changes)
    assert resubmitted is not None and len(resubmitted.applied) == 1


def test_every_handler_of_a_message_is_run_again() -> None:
    found = redone(rerun(twice), twice, Order("o1", "a", 1), applied=True, changes=[Change("Account:a", 0, 1)])
    assert found is not None and len(found.applied) == 2


def test_what_lies_in_a_blob_is_not_run_again() -> None:
    whole = Whole(Message(body=b"", type="Order", outbox_id="o1", created_ms=1, claim="claims/x"))
    assert rerun(app).run(Commit(op=1, at_ms=1, applied=["00"]), [(("orders", 1), whole)]) is None


class Again:
    """Does again what a commit did, but for what a test says; notes which commits, and in which order of messages."""

    def __init__(self, **otherwise: Redone | None) -> None:
        self.otherwise, self.run_again = otherwise, list[tuple[str, list[int]]]()

    def run(self, commit: Commit, deliveries: Sequence[tuple[Place, Whole]]) -> Redone | None:
        self.run_again.append((commit.tx, [sequence for (_, sequence), _ in deliveries]))
        same = Redone(tuple(commit.changes), tuple(commit.outputs), tuple(commit.applied), ())
        return self.otherwise.get(commit.tx, same)


def changing(tx: str, *sequences: int, before: int, op: int = 1) -> Commit:
    """A commit of these messages that changes a state from this version."""
    change = Change("S:1", before, before + len(sequences), 7)
    ended, applied = [Ended("q", n, f"m{n}") for n in sequences], [f"{tx}{n}" for n in sequences]
    return Commit(op=op, tx=tx, ended=ended, changes=[change], applied=applied)


def claimed(*sequences: int) -> Claim:
    return Claim(
        deliveries=[Delivered(f"m{n}", "q", n) for n in sequences],
        wholes=[Whole(Message(body=b"1", outbox_id=f"m{n}")) for n in sequences],
    )


def judge(again: Again, *events: Event) -> Verdict:
    return check([Life(is_empty=True), *events, Quiesce(queues=[])], guarantees=("serializable",), rerun=again)


def test_a_commit_whose_version_is_not_there_yet_is_run_again_when_it_is() -> None:
    again = Again()
    serial = Serial(again, Findings())
    serial.is_complete = True
    serial.claimed(claimed(1, 2))
    serial.took_effect(changing("b", 2, before=1))
    serial.took_effect(changing("a", 1, before=0))
    assert [tx for tx, _ in again.run_again] == ["a", "b"]


def test_messages_of_a_batch_are_run_again_in_the_order_of_their_newest_claims() -> None:
    again = Again()
    assert judge(again, claimed(1), claimed(2), claimed(1), changing("a", 1, 2, before=0), Ok(op=1)).ok
    assert again.run_again == [("a", [2, 1])]


def test_behind_what_could_not_be_run_again_nothing_of_that_state_is() -> None:
    again, first, second = Again(a=None), changing("a", 1, before=0), changing("b", 2, before=1, op=2)
    counts = judge(again, claimed(1, 2), first, Ok(op=1), second, Ok(op=2)).counts
    assert (counts.rerun, counts.not_rerun) == (0, 2) and [tx for tx, _ in again.run_again] == ["a"]


def test_a_state_that_changes_only_when_it_is_run_again_is_found() -> None:
    more = Redone((Change("S:1", 0, 1, 7), Change("S:2", 0, 1, 8)), (), ("a1",), ())
    verdict = judge(Again(a=more), claimed(1), changing("a", 1, before=0), Ok(op=1))
    assert "state S:2 changes, which it did not" in verdict.findings[0].text


SENT = Emitted("a1-0", "out", 5)
OTHERWISE = {
    "another refusal": Redone((Change("S:1", 0, 1, 7),), (SENT,), ("a1",), ("x",)),
    "another version": Redone((Change("S:1", 0, 2, 7),), (SENT,), ("a1",), ()),
    "an output twice": Redone((Change("S:1", 0, 1, 7),), (SENT, SENT), ("a1",), ()),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_comes_out_otherwise_is_found_once_and_what_follows_is_not_run_again(what: str) -> None:
    first, second = replace(changing("a", 1, before=0), outputs=[SENT]), changing("b", 2, before=1, op=2)
    verdict = judge(Again(a=OTHERWISE[what]), claimed(1, 2), first, Ok(op=1), second, Ok(op=2))
    assert [(finding.what, finding.line) for finding in verdict.findings] == [("not serializable", 4)]
    assert (verdict.counts.rerun, verdict.counts.not_rerun) == (1, 1)


def test_a_commit_waits_for_the_version_that_it_has_seen_and_one_that_handles_nothing_is_not_run() -> None:
    again = Again()
    sees = Commit(op=2, tx="b", ended=[Ended("q", 2, "m2")], seen=[Seen("S:1", 1)], applied=["b2"])
    ends = Commit(op=3, tx="c", ended=[Ended("q", 3, "m3")])
    judge(again, claimed(1, 2, 3), sees, Ok(op=2), ends, Ok(op=3), changing("a", 1, before=0), Ok(op=1))
    assert [tx for tx, _ in again.run_again] == ["a", "b"]


def test_commits_from_a_version_that_none_has_made_are_in_no_order() -> None:
    found = judge(Again(), claimed(1), changing("a", 1, before=3), Ok(op=1)).first("serializable")
    assert found is not None and "1 commits start from version 3 of state S:1, which no commit made" in found.text


def test_serializable_without_rerun_is_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match="rerun"):
        check([Quiesce(queues=[])], guarantees=("serializable",))
