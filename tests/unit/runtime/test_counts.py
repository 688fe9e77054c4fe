"""Each message counts once at each of its ends, in every scope and for requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from outbox import App, Context, Engine, Reject, Retries, Retry
from outbox.deliveries import Delivery
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, PoisonMessage, Refused
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.ports import Backend, Create, DocumentKey, Lost, Output, Replace, Tag, Won, Write
from outbox.runtime.counts import (
    AGE_BUCKET_COUNT,
    AGE_MS_MAX,
    CountedBus,
    CountedStore,
    Counts,
    SourceCounts,
    reason_of,
)
from outbox.runtime.work import Work
from outbox.testing import Harness
from tests.unit.messages import Step, Total, deliver

Scope = Literal["engine", "partition", "item"]


def app_with(*, retries: int = 2) -> App:
    app = App("m", retry=Retries(limit=retries, delays_s=(1.0,)))
    app.queue("out")
    asked: list[Step] = []

    @app.handler("steps", key="key")
    def step(step: Step, total: Total, ctx: Context) -> None:
        if step.n == -1:
            raise Reject("a text of the handler's own, with 17 in it")
        if step.n == -2:
            raise ValueError("broken")
        if step.n == -3 and not asked:
            asked.append(step)
            raise Retry("later", after_s=1)
        total.sum += step.n
        ctx.send("out", step)

    @app.handler("pairs", key="key")
    def left(step: Step, total: Total) -> None:
        total.sum += step.n

    @app.handler("pairs")
    def right(step: Step) -> None: ...

    @app.http("POST", "/steps", key="key")
    def post(step: Step, total: Total) -> dict[str, int]:
        if step.n < 0:
            raise Reject("below zero")
        if step.n == 13:
            raise ValueError("broken")
        total.sum += step.n
        return {"sum": total.sum}

    return app


def numbers(counts: SourceCounts) -> dict[str, Any]:
    plain = {name: getattr(counts, name) for name in ("applied", "duplicates", "failed")}
    return {name: value for name, value in plain.items() if value} | dict(counts.refused)


async def test_each_end_of_a_message_is_counted_once(scope: Scope) -> None:
    async with Harness(app_with(), scope=scope) as at:
        for n, id in ((5, "a"), (6, "b"), (5, "a"), (-1, "c"), (-2, "d"), (-3, "e")):
            await deliver(at, "steps", Step("k", n), id=id)
        await at.send("steps", Step("k", 7), id="a")  # another payload under its identity
        await at.wait_idle()
        await at.advance(seconds=5)
        counts = at.counts
        steps = counts.sources["steps"]
        assert (steps.applied, steps.duplicates, steps.failed, steps.rescheduled) == (3, 1, 2, 1)
        assert steps.refused == {"rejected": 1, "failed": 1, "payload-differs": 1}
        assert counts.sent >= 3 and counts.unknown == counts.failed_sends == 0


async def test_a_message_of_several_handlers_counts_once(scope: Scope) -> None:
    async with Harness(app_with(), scope=scope) as at:
        for id in ("a", "b", "a"):
            await deliver(at, "pairs", Step("k", 1), id=id)
        assert numbers(at.counts.sources["pairs"]) == {"applied": 2, "duplicates": 1}


async def test_requests_are_counted_by_their_answers(engine: Engine, scope: Scope) -> None:
    counts = Counts()
    backend: Backend = engine if scope == "engine" else NarrowEngine(engine, scope)
    async with HttpEntry(app_with(), backend, counts=counts) as entry:
        for key, body in (("a", 1), ("a", 1), ("b", 2), ("c", -1), ("d", 13), ("a", 2)):
            text = b'{"key": "k", "n": %d}' % body
            await entry.handle("POST", "/steps", {"idempotency-key": key}, text)
    assert numbers(counts.sources["http"]) == {"applied": 2, "duplicates": 1, "failed": 1, "409": 1, "422": 1}, counts


async def test_ages_are_counted_where_they_are_asked_for(scope: Scope) -> None:
    async with Harness(app_with(), scope=scope) as at:
        await deliver(at, "steps", Step("k", 1), id="a")
        assert sum(at.counts.sources["steps"].ages) == 0
        at.counts.has_ages = True
        await deliver(at, "steps", Step("k", 1), id="b", created=at.now() - 1.5)
        found = at.counts.sources["steps"]
        assert sum(found.ages) == 1 and found.ages[(1_500).bit_length()] == 1 and 1_500 <= found.age_ms < 2_048


def test_an_age_beyond_all_buckets_is_in_the_last() -> None:
    counts = SourceCounts()
    for age_ms in (1 << 40, -5, 0, 1):
        counts.age(age_ms)
    assert (counts.ages[-1], counts.ages[0], counts.ages[1]) == (1, 2, 1) and len(counts.ages) == AGE_BUCKET_COUNT


@pytest.mark.parametrize("queues", [("a",), ("a", "b")], ids=["one source", "two sources"])
def test_a_batch_counts_each_age_as_a_message_alone_does(queues: tuple[str, ...]) -> None:
    now_ms, ages_ms = 1 << 41, (-5, 0, 1, 2, 3, 1_500, AGE_MS_MAX - 1, AGE_MS_MAX, AGE_MS_MAX + 1, 1 << 40)
    counts, alone = Counts(has_ages=True), {queue: SourceCounts() for queue in queues}
    works = []
    for n, age_ms in enumerate(ages_ms):
        queue, made_ms = queues[n % len(queues)], now_ms - age_ms
        created_ms, enqueued_ms = (0, made_ms) if n % 3 == 0 else (made_ms, now_ms - 7)  # 0: a foreign message
        message = Message(body=b"", created_ms=created_ms)
        works.append(Work(Delivery(queue, n, message, 1, enqueued_ms, 0), inbox=b"%d" % n))
        alone[queue].age(age_ms)
    counts.note_batch(works, (), {work.inbox for work in works}, now_ms)
    for queue in queues:
        assert (counts.of(queue).ages, counts.of(queue).age_ms) == (alone[queue].ages, alone[queue].age_ms)


def test_a_reason_of_ones_own_makes_no_name() -> None:
    found = [reason_of(PoisonMessage(reason, "")) for reason in ("too-old", "a customer's name", "oversize")]
    assert found == ["too-old", "other", "oversize"]


def test_what_a_sweep_leaves_is_there_until_the_next() -> None:
    counts = Counts()
    counts.swept(3, 2, 71.5)
    counts.swept(2, 0, 90.0)
    assert (counts.finished, counts.pending, counts.oldest_pending_s) == (5, 0, 0.0)


class Answering:
    """A store and a bus that answer as they are told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.capabilities: Any = type("Capabilities", (), {"dispatch_ledger": False})
        self.read = self.scan = self.unfinished = self.receive = self.settle = self.renew = None

    async def write(self, operations: Sequence[Write]) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    send = write


async def test_lost_and_unknown_commits_are_counted_and_marks_are_not() -> None:
    key, counts = DocumentKey("p", "id"), Counts()
    batch: list[Write] = [Create(key, b"", None, Tag("commit")), Replace(key, b"", "v", None, Tag("state"))]
    mark: list[Write] = [Replace(key, b"", "v", None, Tag("mark"))]
    answers = (Won(("v",), ""), Lost(0), Lost(1), Lost(0), OutcomeUnknown("?"), OutcomeUnknown("?"), Refused("no"))
    inner: Any = Answering(*answers)
    store = CountedStore(inner, counts)
    for asked in (batch, batch, batch, mark, batch, mark, batch):
        try:
            await store.write(asked)
        except (OutcomeUnknown, Refused):
            continue
    assert (counts.conflicts, counts.unknown) == (1, 1)


async def test_sends_are_counted_by_outputs_and_failures() -> None:
    inner: Any = Answering(None, OutcomeUnknown("?"), None)
    counts, output = Counts(), Output("q", 0, Message(body=b""))
    bus = CountedBus(inner, counts)
    await bus.send([output, output])
    with pytest.raises(OutcomeUnknown):
        await bus.send([output])
    await bus.send([output])
    assert (counts.sent, counts.failed_sends) == (3, 1)
