"""A discarded dead letter can be restored up to its time, as it was; who waits is woken."""

from __future__ import annotations

import asyncio

import pytest

from outbox.engine.backend.operations import dead_letters
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, dead_letter_path
from outbox.message import Message
from outbox.testing import START_S, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


@pytest.fixture
def engine(clock: VirtualClock) -> Engine:
    """An engine without a worker, so that nothing is forgotten before its time is looked at."""
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("q"))
    engine.declare(QueueSettings("k", "per_key", stop_key=True, max_delivery_count=1))
    return engine


def refused(engine: Engine, *, count: int = 1) -> list[int]:
    """Let messages fail twice, each with two failures of earlier copies; their numbers among the dead letters."""
    messages = [Message(body=b"%d" % n, session_id="s", outbox_id=f"m{n}", failures=2) for n in range(count)]
    engine.broker.send("q", messages)
    for _ in messages:
        for how in (Settlement.ABANDON, Settlement.DEAD_LETTER):
            [claim] = engine.broker.claim("q", 1)
            engine.broker.settle(claim.token, how, reason="no", description="why")
    return [dead.sequence for dead in dead_letters(engine.broker, "q")]


def set_aside(engine: Engine, path: str, sequence: int, *, life_ms: int = 1_000) -> None:
    engine.dead_letters.set_aside(path, sequence, until_ms=engine.now_ms() + life_ms)


def test_a_discarded_dead_letter_is_listed_and_restored_as_it_was(engine: Engine) -> None:
    [number] = refused(engine)
    before = dead_letters(engine.broker, "q")
    assert before[0].delivery_count == 3
    for _ in range(2):
        set_aside(engine, "q", number)
        assert (dead_letters(engine.broker, "q"), list(engine.dead_letters.set_aside_of("q"))) == ([], before)
        engine.dead_letters.restore("q", number)
        assert (dead_letters(engine.broker, "q"), list(engine.dead_letters.set_aside_of("q"))) == (before, [])


@pytest.mark.parametrize(("passed_ms", "is_there"), [(999, True), (1_000, False), (1_001, False)])
def test_it_is_there_until_its_time_is_over(
    engine: Engine, clock: VirtualClock, passed_ms: int, is_there: bool
) -> None:
    [first, second] = refused(engine, count=2)
    set_aside(engine, "q", first)
    set_aside(engine, "q", second, life_ms=60_000)
    clock.seconds += passed_ms / 1_000
    listed = [dead.sequence for dead in engine.dead_letters.set_aside_of("q")]
    assert listed == ([first, second] if is_there else [second])
    if is_there:
        engine.dead_letters.restore("q", first)
    else:
        with pytest.raises(LookupError, match=f"q has no discarded dead letter {first} any more"):
            engine.dead_letters.restore("q", first)
    assert [dead.sequence for dead in dead_letters(engine.broker, "q")] == ([first] if is_there else [])


def test_what_was_not_discarded_or_is_restored_already_is_not_restored(engine: Engine) -> None:
    [number] = refused(engine)
    set_aside(engine, "q", number)
    engine.dead_letters.restore("q", number)
    for unknown in (number, number + 1):
        with pytest.raises(LookupError, match=f"q has no discarded dead letter {unknown} any more"):
            engine.dead_letters.restore("q", unknown)
    assert len(dead_letters(engine.broker, "q")) == 1


def test_one_that_is_restored_while_all_are_listed_is_left_out(engine: Engine) -> None:
    numbers = refused(engine, count=3)
    for number in numbers:
        set_aside(engine, "q", number)
    listed = engine.dead_letters.set_aside_of("q")
    assert next(listed).sequence == numbers[0]
    engine.dead_letters.restore("q", numbers[1])
    assert [dead.sequence for dead in listed] == [numbers[2]]


async def test_who_waits_for_dead_letters_is_woken_by_one_that_is_restored(engine: Engine) -> None:
    [number] = refused(engine)
    set_aside(engine, "q", number)
    waiting = asyncio.create_task(engine.broker.wait_any([dead_letter_path("q")], 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    engine.dead_letters.restore("q", number)
    assert await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("for_good", [False, True])
async def test_who_waits_behind_a_dead_letter_is_woken_when_it_is_discarded(engine: Engine, for_good: bool) -> None:
    engine.broker.send("k", [Message(body=body, session_id="s") for body in (b"first", b"next")])
    [claim] = engine.broker.claim("k", 1)
    engine.broker.settle(claim.token, Settlement.ABANDON)
    [dead] = dead_letters(engine.broker, "k")
    waiting = asyncio.create_task(engine.broker.wait_any(["k"], 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    if for_good:
        engine.dead_letters.discard("k", dead.sequence)
    else:
        set_aside(engine, "k", dead.sequence)
    assert await asyncio.wait_for(waiting, 5)
