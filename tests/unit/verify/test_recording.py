"""The real worker on the real engine, recorded: what happened is judged sound, and an engine that lies is found out."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import pytest
from msgspec.structs import replace

from outbox import App, Context, Engine, Reject, Worker
from outbox.client import Client
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine_commit import WAITING, WAITING_ATTEMPT, DeadLettering, Postponement, Refusal, StateChange
from outbox.errors import OutcomeUnknown, Throttled, UnknownDestination
from outbox.message import Message
from outbox.ops.host.audit import Audit, dead, tallies
from outbox.ports import Backend, Commit, Conflict, Delivery, Journal, Output, Ports, Settle, StateDocument
from outbox.retries import Retries
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.events import Event, Held, Life
from outbox.verify.recorded.recording import (
    RecordedBlobs,
    RecordedBus,
    RecordedJournal,
    recorded,
    recorded_claim,
    remember,
    state_digest,
)
from outbox.verify.recorded.verdict import Verdict
from tests.unit.messages import Transfer
from tests.unit.waiting import until

app = App("bank", retry=Retries(limit=2, delays_s=(0.01,)))
app.queue("ledger")
app.topic("news")


@dataclass
class Deposit:
    target: str
    amount: int


@dataclass
class Account:
    balance: int = 100


@app.handler("transfers", key="source")
def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
    if transfer.amount < 0:
        raise Reject("no")
    if transfer.amount > 1_000:
        raise ValueError("a bug")
    account.balance -= transfer.amount
    ctx.send("deposits", Deposit(transfer.target, transfer.amount))
    ctx.send("ledger", transfer)
    ctx.write_blob("receipt", b"paid")


@app.handler("deposits", key="target")
def deposit(deposit: Deposit, account: Account, ctx: Context) -> None:
    account.balance += deposit.amount
    ctx.publish("news", deposit)


@app.handler("news", subscription="audit")
def audit(news: Deposit) -> None: ...


@app.handler("news", subscription="mail")
async def mail(news: Deposit) -> None: ...


QUEUES = ["transfers", "deposits", "news/Subscriptions/audit", "news/Subscriptions/mail"]


def live(history: History, engine: Engine, boot: str = "b") -> None:
    history.life(boot=boot, sequence=engine.state.sequence, is_empty=not engine.state.sequence, tallies=tallies(engine))


async def send(client: Client, ids: Sequence[int], amount: int = 1) -> None:
    for n in ids:
        await client.send("transfers", Transfer(f"t{n}", f"a{n % 3}", f"a{n % 5}", amount), id=f"t{n}")


def judged(history: History, engine: Engine) -> Verdict:
    history.quiesce(QUEUES, tallies=tallies(engine), dead=dead(engine, QUEUES))
    return check(history, alone=True)


@asynccontextmanager
async def running(engine: Engine, backend: Backend) -> AsyncIterator[Worker]:
    async with engine, Worker(app, backend, concurrency=4) as worker:
        yield worker


async def test_everything_that_a_worker_does_is_judged_sound() -> None:
    history, engine = History(), Engine.in_memory()
    async with running(engine, recorded(engine, history)) as worker:
        live(history, engine)
        await send(worker, [*range(20), *range(5)])
        await send(worker, [100, 101], amount=-1)
        await send(worker, [102], amount=5_000)
        await worker.wait_idle()
        await send(worker, [200])
        await until(lambda: not engine.broker.queue("transfers").tasks)
        await worker.wait_idle()
        verdict = judged(history, engine)
    assert verdict.ok, verdict.text
    counts = verdict.counts
    assert (counts.refused, counts.duplicates, counts.lives) == (3, 5, 1)
    assert counts.applied == 21 * (1 + 1 + 2)
    assert (counts.outputs, counts.changes > 0, counts.unrecorded, counts.unexplained) == (21 * 3, True, 0, 0)


async def test_two_workers_on_one_history_are_judged_sound() -> None:
    history, engine = History(), Engine.in_memory()
    async with engine, Worker(app, recorded(engine, history)) as one, Worker(app, recorded(engine, history)):
        live(history, engine)
        await send(one, range(200))
        await one.wait_idle()
        verdict = judged(history, engine)
    assert verdict.ok, verdict.text
    assert verdict.counts.applied == 800


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [Crash.PROCESS, Crash.POWER])
async def test_lives_that_end_by_a_crash_are_one_sound_history(seed: int, kind: Crash) -> None:
    chance = random.Random(seed)
    history, disk = History(), MemoryDisk("host")
    for life in range(4):
        engine = Engine.open(disk)
        live(history, engine, boot="b" if kind is Crash.PROCESS else f"{life}")
        async with engine:
            worker = Worker(app, recorded(engine, history), concurrency=3)
            await worker.__aenter__()
            await send(worker, range(life * 30, life * 30 + 30))
            if life == 3:
                await worker.wait_idle()
                await worker.drain()
                verdict = judged(history, engine)
                break
            crashed = disk.crash(kind, chance)
            with suppress(Exception):
                await worker.drain()
        disk = crashed
    assert verdict.ok, verdict.text
    assert (verdict.counts.lives, verdict.counts.applied, verdict.counts.unrecorded) == (4, 4 * 30 * 4, 0)


@pytest.mark.parametrize("lost_count", [1, 2, 5, 20])
async def test_lines_that_a_power_loss_took_are_distinguished_from_what_the_engine_lost(lost_count: int) -> None:
    history, disk = History(), MemoryDisk("host")
    for life in range(2):
        engine = Engine.open(disk)
        live(history, engine, boot=f"{life}")
        async with running(engine, recorded(engine, history)) as worker:
            await send(worker, range(life * 10, life * 10 + 10))
            await worker.wait_idle()
            history.quiesce(QUEUES, tallies=tallies(engine), dead=dead(engine, QUEUES))
    events = list(history.events())
    second = max(index for index, event in enumerate(events) if isinstance(event, Life))
    left = [*events[: second - lost_count], *events[second:]]
    verdict = check(left, alone=True)
    assert verdict.ok, verdict.text
    same_boot = [replace(event, boot="b") if isinstance(event, Life) else event for event in left]
    assert check(same_boot, alone=True).ok is (
        lost_count <= 2
    )  # the quiesce and one answer: nothing that anybody follows


# An engine that lies


class Over:
    """A journal that does what the one below it does, but for what it does itself."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)


def backed(engine: Engine, over: Callable[[Journal], Over]) -> Any:
    """An engine whose journal has another over it, below the recorder."""
    ports = engine.ports()
    return SimpleNamespace(ports=lambda: Ports(cast(Any, over(ports.journal)), ports.operations, ports.blobs))


Lie = Callable[[Commit], Commit | Conflict | None]


class Lying(Over):
    """A journal that does something else than it says, once."""

    def __init__(self, journal: Journal, lie: Lie) -> None:
        super().__init__(journal)
        self._lie = lie

    async def commit(self, commit: Commit) -> Conflict | None:
        changed = self._lie(commit)
        if changed is None:
            return None
        if isinstance(changed, Conflict):
            await self.journal.commit(commit)
            return changed
        return await self.journal.commit(changed)


async def lied(lie: Lie) -> Verdict:
    """Run some messages on an engine whose journal lies under the recorder; the verdict."""
    history, engine = History(), Engine.in_memory()
    backend = recorded(backed(engine, lambda journal: Lying(journal, lie)), history)
    async with running(engine, backend) as worker:
        live(history, engine)
        await send(worker, range(10))
        with suppress(TimeoutError):
            await worker.wait_idle(timeout_s=1)
        return judged(history, engine)


def once(change: Lie) -> Lie:
    done: list[bool] = []

    def lie(commit: Commit) -> Commit | Conflict | None:
        if done or not commit.outputs:
            return commit
        done.append(True)
        return change(commit)

    return lie


def _other_payload(commit: Commit) -> Commit:
    first = next(o for o in commit.outputs if o.destination == "deposits")
    body = first.message.body.replace(b"1", b"7")
    wrong = type(first)(first.destination, first.due_ms, replace(first.message, body=body))
    return replace(commit, outputs=[wrong if o is first else o for o in commit.outputs])


def _no_outputs(commit: Commit) -> Commit:
    return replace(commit, outputs=[])


def _no_state(commit: Commit) -> Commit:
    return replace(commit, states={})


def _other_id(commit: Commit) -> Commit:
    first = next(o for o in commit.outputs if o.destination == "deposits")
    wrong = type(first)(first.destination, first.due_ms, replace(first.message, outbox_id="f" * 64 + "-0"))
    return replace(commit, outputs=[wrong if o is first else o for o in commit.outputs])


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        (_other_payload, "changed payload"),
        (_no_outputs, "lost output"),
        (_no_state, "forked version"),
        (_other_id, "ghost output"),
    ],
)
async def test_an_engine_that_does_not_do_what_it_acknowledges_is_found_out(
    lie: Callable[[Commit], Commit], what: str
) -> None:
    assert (await lied(once(lambda commit: commit))).ok
    verdict = await lied(once(lie))
    assert what in {finding.what for finding in verdict.findings}, verdict.text


async def test_an_engine_that_acknowledges_without_committing_is_found_at_its_restart() -> None:
    history, disk = History(), MemoryDisk("host")
    engine = Engine.open(disk)
    live(history, engine)
    lie = once(lambda commit: None)
    async with running(engine, recorded(backed(engine, lambda journal: Lying(journal, lie)), history)) as worker:
        await send(worker, range(3))
        with suppress(TimeoutError):
            await worker.wait_idle(timeout_s=1)
    engine = Engine.open(disk)
    live(history, engine)
    engine.close()
    found = check(history).findings[0]
    assert found.what == "lost commit" and "commits were lost" in found.text, found


class Doubtful(Over):
    """A journal whose answers get lost."""

    def __init__(self, journal: Journal, chance: random.Random) -> None:
        super().__init__(journal)
        self._chance = chance

    async def commit(self, commit: Commit) -> Conflict | None:
        before, after = self._chance.random() < 0.3, self._chance.random() < 0.3
        conflict = None if before else await self.journal.commit(commit)
        if before or after:
            raise OutcomeUnknown("the answer is lost")
        return conflict


@pytest.mark.parametrize("seed", range(5))
async def test_commits_whose_answer_was_lost_are_decided_by_what_followed(seed: int) -> None:
    history, engine = History(), Engine.in_memory()
    backend = recorded(backed(engine, lambda journal: Doubtful(journal, random.Random(seed))), history)
    async with running(engine, backend) as worker:
        live(history, engine)
        await send(worker, range(24))
        await worker.wait_idle(timeout_s=30)
        verdict = judged(history, engine)
    assert verdict.ok, verdict.text
    assert verdict.counts.optional > 0 and verdict.counts.applied == 96


# The host


async def test_a_host_begins_and_ends_its_history_with_what_the_engine_counts(disk_path: Path) -> None:
    path = disk_path / "history.jsonl"
    for ids in (range(5), range(5, 10)):
        async with Engine.open(disk_path / "data") as engine:
            recording = Audit(engine, app, path)
            async with Worker(app, recording.backend) as worker:
                await send(worker, ids)
                await worker.wait_idle()
            recording.end()
    verdict = check(path, alone=True)
    assert verdict.ok and (verdict.counts.lives, verdict.counts.applied) == (2, 40), verdict.text


async def test_a_host_that_leaves_work_behind_does_not_claim_to_be_done(disk_path: Path) -> None:
    path = disk_path / "history.jsonl"
    async with Engine.open(disk_path / "data") as engine:
        recording = Audit(engine, app, path)
        async with Worker(app, recording.backend):
            pass
        await send(Client(app, engine), range(3))
        recording.end()
    assert [finding.what for finding in check(path).findings] == ["no quiesce"]


def test_events_are_what_a_reader_gets() -> None:
    history = History()
    history.life()
    (event,) = history.events()
    assert isinstance(event, Event)


@pytest.mark.parametrize(("renewed_count", "is_held"), [(2, True), (1, False), (0, False)])
async def test_only_a_renewal_of_all_says_that_they_are_still_there(
    engine: Engine, renewed_count: int, is_held: bool
) -> None:
    class Renewing(Over):
        async def renew(self, deliveries: Sequence[Delivery]) -> int:
            return renewed_count

    history = History()
    journal = RecordedJournal(cast(Any, Renewing(engine.ports().journal)), history)
    messages = [Message(body=b"1", message_id=str(n)) for n in range(2)]
    deliveries = [
        Delivery("q", n, one, n, enqueued_ms=0, locked_until_ms=0, delivery_count=0) for n, one in enumerate(messages)
    ]
    assert await journal.renew(deliveries) == renewed_count
    held = [event.deliveries for event in history.events() if isinstance(event, Held)]
    assert held == ([[("q", 0), ("q", 1)]] if is_held else [])


# What is written down


def delivery(sequence: int, id: str, attempt: int = 0) -> Delivery:
    return Delivery(
        "q", sequence, Message(body=b"1", outbox_id=id, attempt=attempt), 0, enqueued_ms=4, locked_until_ms=0
    )


class Answers:
    """A port that answers each call with what a test gives it."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def answered(*_: object, **__: object) -> object:
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        return answered


async def test_each_part_of_a_commit_is_recorded_under_its_name() -> None:
    history, states = History(), {"S:1": StateDocument(b"{}", 7, 1, 3), "S:2": StateDocument(b"{}", 8, 1, 4)}
    journal = RecordedJournal(cast(Any, Answers((states, {}))), history)
    await journal.load(["S:1", "S:2"], [])
    journal._journal.answer = None  # type: ignore[attr-defined]  # it is a double
    output = Output("out", 50, Message(body=b"2", outbox_id="o", causation_id="c", correlation_id="first"))
    waiting = Refusal(b"f", WAITING, "", WAITING_ATTEMPT)
    await journal.commit(
        Commit(
            now_ms=9, markers_expire_ms=0, consumed=[delivery(1, "a")], if_versions={"S:1": 7, "S:2": 8, "S:3": 0},
            states={"S:1": StateChange(b"x", 1, 5), "S:3": StateChange(b"", 1, 1)}, outputs=[output], applied={},
            refused={b"r": Refusal(b"f", "no", ""), b"w": waiting}, replacing={b"p": 1},
            dead_lettered=[DeadLettering(delivery(2, "b", 6), "no", "text", 0)],
            postponed=[Postponement(delivery(3, "d"), 70, 1)], handled=[b"h"],
        )
    )  # fmt: skip
    [event, answer] = history.events()
    assert event == events.Commit(
        at_ms=9, op=1, ended=[events.Ended("q", 1, "a")], buried=[events.Buried("q", 2, "b", "no", 6)],
        postponed=[events.Postponed("q", 3, "d", 70)],
        changes=[events.Change("S:1", 3, 5, crc32(b"x")), events.Change("S:3", 0, 1, 0)],
        seen=[events.Seen("S:2", 4)], applied=[b"h".hex()], refused=[b"r".hex()], replacing=[b"p".hex()],
        outputs=[events.Emitted("o", "out", events.digest_of(output.message), "c", 50)],
    )  # fmt: skip
    assert answer == events.Ok(op=1)


async def test_a_state_that_was_loaded_anew_began_at_an_unknown_version_for_an_older_attempt() -> None:
    history = History()
    journal = RecordedJournal(cast(Any, Answers(({"S:1": StateDocument(b"{}", 7, 1, 3)}, {}))), history)
    await journal.load(["S:1"], [])
    assert [journal._serial("S:1", version) for version in (0, 6, 7)] == [0, -1, 3]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, events.Ok),
        (Conflict(), events.Fail),
        (Throttled("busy"), events.Fail),
        (UnknownDestination("q"), events.Fail),
        (OutcomeUnknown("no answer"), events.Unknown),
        (RuntimeError("a bug"), events.Unknown),
        (asyncio.CancelledError(), events.Unknown),
    ],
)
async def test_only_a_refusal_is_known_to_have_had_no_effect(answer: object, kind: type) -> None:
    history = History()
    commit = Commit(0, 0, [], {}, {}, [], {}, {}, {}, [], [])
    with suppress(Throttled, UnknownDestination, OutcomeUnknown, RuntimeError, asyncio.CancelledError):
        await RecordedJournal(cast(Any, Answers(answer)), history).commit(commit)
    assert [type(event) for event in history.events()] == [events.Commit, kind]


async def test_a_settlement_and_a_blob_are_recorded_with_what_they_say() -> None:
    history = History()
    await RecordedBus(cast(Any, Answers()), history).settle(delivery(5, "a"), Settle("dead-letter", "why", "text"))
    for written in (True, False):
        await RecordedBlobs(cast(Any, Answers(written)), history).write("b", b"12345")
    settled, done, blob, ok, again, exists = history.events()
    assert settled == events.Settled(op=1, queue="q", sequence=5, id="a", how="dead-letter", reason="why")
    assert blob == events.Blob(op=2, name="b", digest=crc32(b"12345"), size_bytes=5)
    assert (done, ok, again, exists) == (
        events.Ok(op=1), events.Ok(op=2), replace(blob, op=3), events.Fail(op=3, why="exists"),
    )  # fmt: skip


def test_the_oldest_is_forgotten_first_and_what_is_seen_again_is_the_newest() -> None:
    known: OrderedDict[str, int] = OrderedDict()
    for key in ("a", "b", "a", "c"):
        remember(known, key, 1, 2)
    assert list(known) == ["a", "c"]


def test_a_delivery_is_recorded_with_its_attempt_and_whole_where_bodies_are_kept() -> None:
    history, given = History(bodies=True), delivery(5, "a", attempt=2)
    recorded_claim(history, [given])
    [claim] = history.events()
    assert claim == events.Claim(
        deliveries=[events.Delivered("a", "q", 5, True, 2, events.digest_of(given.message))],
        wholes=[events.Whole(given.message, 4, 0, 0, True)],
    )


def test_a_state_has_a_check_number_of_its_own_whatever_it_is() -> None:
    nothing, zero = b"", bytes.fromhex("9d0ad96d")  # whose checksum is that of nothing
    assert crc32(zero) == crc32(nothing) == 0 and [state_digest(each) for each in (nothing, zero)] == [0, 1]
