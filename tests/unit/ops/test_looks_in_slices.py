"""An operator's answers take as much of the loop at a time on a full engine as on a small one, and hold meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, dead_letter_path
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import Task
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.dead_letters import groups as dead_letters
from outbox.ops.dead_letters.blocked import every_blocked
from outbox.ops.shared import on_engine as slices
from outbox.ops.streams.logs import on_engine
from outbox.ops.values.dead_letters import (
    ANY_DEAD_LETTER,
    DeadLetterFilter,
    Discard,
    DiscardSome,
    FindDead,
    ListDeadLetters,
    Resubmit,
    ShowDeadLetter,
)
from outbox.ops.values.messages import Cancel, Find, MakeDue, Pause, Peek
from outbox.ops.values.states import ABSENT, ReadStates, StateLine, WriteStates
from outbox.ops.values.status import ReadStatus
from outbox.ops.values.trail import FindTrail
from outbox.streams.log import OrderedLog

COUNT, SLICE = 1_200, 40
"""How many messages wait in each queue and how many dead letters it has; and how many are looked at at a time."""
STOP_AFTER_S = 60.0

Ask = Callable[[EngineAdmin], Awaitable[Any]]


class Counted(dict[int, Task]):
    """The tasks of a queue, which count how many were looked at, and do not let themselves be walked over."""

    looks = 0

    def get(self, key: int, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: int) -> Task:
        Counted.looks += 1
        return super().__getitem__(key)

    def values(self) -> Any:
        raise AssertionError("a look walks over all that a queue holds at once")

    def items(self) -> Any:
        raise AssertionError("a look walks over all that a queue holds at once")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_COUNT", SLICE)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.in_memory() as engine:
        engine.declare(QueueSettings("plain"), QueueSettings("keyed", ordering="per_key", stop_key=True))
        yield engine


def bury(engine: Engine, queue: str, count: int) -> None:
    """Dead-letter the first so many messages of a queue; in an ordered one they block their keys."""
    for number in list(engine.broker.queue(queue).tasks)[:count]:
        engine.state._dead_letter(
            engine.broker.queue(queue),
            engine.broker.queue(queue).tasks[number],
            "no",
            f"ValueError: {number % 3}",
            stops_session=queue == "keyed",
        )


def fill(engine: Engine) -> None:
    """Let much wait, be scheduled and be dead, each message with another one for its cause."""
    for queue in ("plain", "keyed"):
        for what in ("dead", "held"):
            engine.broker.send(
                queue,
                [
                    Message(
                        body=b"{}", outbox_id=f"{queue}-{what}-{n}", causation_id=f"cause-{n}", session_id=f"k{n % 400}"
                    )
                    for n in range(COUNT)
                ],
            )
        bury(engine, queue, COUNT)
    later = [Message(body=b"{}", outbox_id=f"later-{n}", session_id="k") for n in range(COUNT)]
    engine.broker.send("plain", later, due_ms=engine.now_ms() + 3_600_000)


def count_looks(engine: Engine) -> None:
    for queue in engine.state.queues:
        queue.tasks = Counted(queue.tasks)
        queue.order._tasks = queue.tasks
        if queue.letters is not None:
            queue.letters._tasks = queue.tasks


async def most_at_once(answer: Awaitable[Any]) -> tuple[int, Any]:
    """The most tasks that were looked at between two turns of the loop until there was an answer, and that."""
    worst, asked = 0, asyncio.ensure_future(answer)
    Counted.looks = 0
    async with asyncio.timeout(STOP_AFTER_S):
        while not asked.done():
            await asyncio.sleep(0)
            worst, Counted.looks = max(worst, Counted.looks), 0
    return worst, await asked


async def status(admin: EngineAdmin) -> int:
    found = (await admin.ask(ReadStatus())).queues["plain"]
    return found.active + found.scheduled + found.dead_letters


async def states(admin: EngineAdmin) -> int:
    return len(b"".join([piece async for piece in admin.stream(ReadStates())]).splitlines())


ASKED: dict[str, tuple[Ask, Callable[[Any], object], object]] = {
    "find": (lambda op: op.ask(Find(f"plain-held-{COUNT - 1}")), len, 1),
    "find a dead letter": (lambda op: op.ask(Find(f"keyed-dead-{COUNT - 1}")), len, 1),
    "status": (status, int, 3 * COUNT),
    "peek in the middle": (
        lambda op: op.ask(Peek("plain", after=COUNT + COUNT // 2, count=5)), lambda x: len(x.messages), 5,
    ),
    "peek a state": (lambda op: op.ask(Peek("keyed", state="blocked", count=5)), lambda x: len(x.messages), 5),
    "peek a key": (lambda op: op.ask(Peek("keyed", key="k399", count=9)), lambda x: len(x.messages), 3),
    "scheduled, by due time": (
        lambda op: op.ask(Peek("plain", state="scheduled", count=5, by_due=True)),
        lambda x: [each.id for each in x.messages], [f"later-{n}" for n in range(5)],
    ),
    "trace": (lambda op: op.ask(FindTrail("cause-7")), lambda x: len({f.id for f in x.facts} - {"cause-7"}), 4),
    "cancel": (lambda op: op.ask(Cancel("plain", "later-7")), lambda x: x.count, 1),
    "make due": (lambda op: op.ask(MakeDue("plain", "later-8")), lambda x: x.count, 1),
    "filtered dead letters": (
        lambda op: op.ask(ListDeadLetters("plain", where=DeadLetterFilter(text="no-such"))), len, 0,
    ),
    "a page of dead letters": (lambda op: op.ask(ListDeadLetters("plain", after=COUNT // 2, count_max=30)), len, 30),
    "dead letters by beginning": (
        lambda op: op.ask(ShowDeadLetter("plain", "plain-dead-11")), lambda x: x.id, "plain-dead-11",
    ),
    "dead letters among": (lambda op: op.ask(FindDead("plain", ["plain-dead-3", "x"])), len, 1),
    "grouped dead letters": (
        lambda op: dead_letters.found_in(op, ["plain", "keyed"], ANY_DEAD_LETTER),
        lambda x: len(dead_letters.grouped(x)), 6,
    ),
    "blocked": (lambda op: every_blocked(op, "keyed"), lambda x: (len(x), x[0].waiting), (400, 3)),
    "states": (states, int, COUNT),
    "discard by number": (
        lambda op: op.ask(DiscardSome("plain", [1, 2, 3, 10 * COUNT], for_good=True)), lambda x: x.count, 3,
    ),
    "resubmit all": (lambda op: op.ask(Resubmit("plain", None)), lambda x: x.count, COUNT),
    "discard all": (lambda op: op.ask(Discard("keyed", None)), lambda x: x.count, COUNT),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
async def test_an_answer_looks_at_a_bounded_number_between_two_turns_of_the_loop(engine: Engine, what: str) -> None:
    fill(engine)
    admin = EngineAdmin(engine)
    lines = [StateLine("S", f"k{n}", ABSENT, 1, msgspec.Raw(b"{}")) for n in range(COUNT)]
    for start in range(0, COUNT, 500):
        await admin.ask(WriteStates(lines[start : start + 500]))
    count_looks(engine)
    ask, seen, expected = ASKED[what]
    looks, found = await most_at_once(ask(admin))
    assert seen(found) == expected
    assert looks <= 10 * SLICE < COUNT


# While the engine changes


async def part_way(answer: Awaitable[Any], turns: int = 6) -> asyncio.Future[Any]:
    """An answer that has begun, and has passed the first messages."""
    asked = asyncio.ensure_future(answer)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not asked.done()
    return asked


async def ended(asked: asyncio.Future[Any]) -> Any:
    async with asyncio.timeout(STOP_AFTER_S):
        return await asked


async def test_what_is_settled_after_it_was_seen_is_not_said_to_be_there(engine: Engine) -> None:
    fill(engine)
    queue = engine.broker.queue("plain")
    asked = await part_way(EngineAdmin(engine).ask(Find("plain-held-0", "plain")))
    (claim,) = engine.broker.claim("plain", 1)
    engine.broker.settle(claim.token, Settlement.COMPLETE)
    assert claim.sequence not in queue.tasks
    with pytest.raises(LookupError, match="plain does not hold a message 'plain-held-0'"):
        await ended(asked)


async def test_what_becomes_a_dead_letter_after_it_was_seen_is_found_once_as_that(engine: Engine) -> None:
    fill(engine)
    asked = await part_way(EngineAdmin(engine).ask(Find("plain-held-0", "plain")))
    bury(engine, "plain", 1)
    [found] = await ended(asked)
    assert found.message is None and found.dead_letter.id == "plain-held-0"


async def test_what_waits_for_its_next_try_by_now_is_not_cancelled(engine: Engine) -> None:
    fill(engine)
    queue = engine.broker.queue("plain")
    asked = await part_way(EngineAdmin(engine).ask(Cancel("plain", "later-0")), COUNT // SLICE + 3)
    task = next(task for task in queue.tasks.values() if task.message.identity == "later-0")
    task.failures = 1  # it was made due, delivered, failed, and is put off again
    with pytest.raises(LookupError, match="waits for its next try"):
        await ended(asked)
    assert queue.tasks[task.sequence] is task


async def test_a_queue_that_is_deleted_meanwhile_ends_no_answer(engine: Engine) -> None:
    fill(engine)
    admin = EngineAdmin(engine)
    for ask in (admin.ask(Find("keyed-held-9")), admin.ask(FindTrail("keyed-held-9"))):
        engine.declare(QueueSettings("scratch"), QueueSettings("a-first"))
        asked = await part_way(ask)
        engine.topology.delete("scratch")
        assert await ended(asked)
    engine.declare(QueueSettings("scratch"))
    asked = await part_way(admin.ask(ReadStatus()))
    engine.topology.delete("scratch")
    assert "scratch" not in (await ended(asked)).queues


async def test_a_key_that_goes_on_meanwhile_leaves_the_list_and_no_session_behind(engine: Engine) -> None:
    fill(engine)
    order = engine.broker.queue("keyed").order
    assert isinstance(order, SessionOrder)
    asked = await part_way(every_blocked(EngineAdmin(engine), "keyed"), 2)
    for task in list(engine.broker.queue(dead_letter_path("keyed")).tasks.values()):
        if task.message.session_id == "k99":
            engine.dead_letters.discard("keyed", task.sequence)
    for task in list(engine.broker.queue("keyed").tasks.values()):
        if task.message.session_id == "k99":
            engine.state.remove(engine.broker.queue("keyed"), task)
    assert "k99" not in order.sessions
    found = await ended(asked)
    assert "k99" not in {each.key for each in found} and len(found) == 399
    assert "k99" not in order.sessions


async def test_a_page_holds_while_its_queue_is_paused_and_emptied(engine: Engine) -> None:
    fill(engine)
    admin = EngineAdmin(engine)
    asked = await part_way(admin.ask(Peek("plain", count=COUNT)), 3)
    await admin.ask(Pause("plain", True))
    for number in list(engine.broker.queue("plain").tasks):
        engine.state.remove(engine.broker.queue("plain"), engine.broker.queue("plain").tasks[number])
    found = await ended(asked)
    assert found.paused and len(found.messages) < COUNT


async def test_what_logs_take_is_added_up_for_all_at_once_some_documents_at_a_time(engine: Engine) -> None:
    logs = [OrderedLog(name, engine, type=str) for name in ("orders", "orders-2")]
    for number in range(4 * SLICE):
        for log in logs:
            await log.append(f"entry {number}", id=f"e{number}")
    adding = asyncio.ensure_future(on_engine(engine, measured=True).sizes_bytes())  # type: ignore[misc]  # measured: it has it
    turns = 0
    while not adding.done():
        await asyncio.sleep(0)
        turns += 1
    held = {"log/orders/0.0": 0, "log/orders-2/0.0": 0}
    for name, space in engine.state.documents.spaces.items():
        for row in held:
            if f"{name}/".startswith(f"p/{row}/"):
                held[row] += sum(len(document.value) for document in space.values())
    sizes = await adding
    assert turns >= 8 and {row: sizes[row] for row in held} == held and min(held.values()) > 0
