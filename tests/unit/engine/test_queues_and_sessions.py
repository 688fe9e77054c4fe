"""What a queue promises at its edges: duplicates without an id, copies, sessions that are over, and who is woken."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Literal

import msgspec
import pytest

from outbox import App
from outbox.engine import topology
from outbox.engine.backend.apart import EngineBus
from outbox.engine.backend.journal import SUSPECT_EVERY
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, SessionLock, Settlement, TopicSettings, dead_letter_path
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records
from outbox.engine.log.disk import Crash, MemoryDisk
from outbox.engine.sessions import STATE_BYTES_MAX
from outbox.engine.state.session_order import RUN_COUNT_MAX, SessionOrder
from outbox.engine.state.tasks import held_bytes
from outbox.errors import EngineStopped, LockLost, NotRegistrable, TooLarge
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import Commit, Postponement, Settle
from outbox.testing import START_S, VirtualClock
from outbox.worker import Worker

LOCK_S = 10


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


def engine_with(clock: VirtualClock, *settings: QueueSettings | TopicSettings) -> Engine:
    engine = Engine.in_memory(clock=clock)
    engine.declare(*settings)
    return engine


@pytest.fixture
def plain(clock: VirtualClock) -> Engine:
    return engine_with(clock, QueueSettings("q"))


@pytest.fixture
def keyed(clock: VirtualClock) -> Engine:
    return engine_with(clock, QueueSettings("k", "per_key", lock_s=LOCK_S))


def accepted(engine: Engine, session_id: str, path: str = "k") -> SessionLock:
    lock = engine.sessions.accept(path, session_id)
    assert lock is not None
    return lock


# Messages that are rewritten


def test_a_message_that_is_rewritten_under_another_session_is_that_one_s_only(clock: VirtualClock) -> None:
    """Also behind another message, where nothing has looked at it yet."""
    engine = engine_with(clock, QueueSettings("k", "per_key"))
    engine.broker.send("k", [Message(body=b"1", session_id="a"), Message(body=b"2", session_id="a")])
    order, second = engine.broker.queue("k").order, engine.broker.queue("k").tasks[2]
    assert isinstance(order, SessionOrder)
    moved = records.TaskChange("k", 2, second.version, message=msgspec.structs.replace(second.message, session_id="b"))
    engine.documents.modify(records.Modify(changes=[moved]))
    for session_id, body in (("a", b"1"), ("b", b"2")):
        lock = accepted(engine, session_id)
        claims = engine.broker.claim("k", 9, session=session_id)
        assert [claim.message.body for claim in claims] == [body]
        engine.broker.settle(claims[0].token, Settlement.COMPLETE)
        engine.sessions.release(lock.token)
        assert order.session(session_id).is_free(engine.now_ms())


def test_a_message_that_is_rewritten_has_the_digest_of_what_it_says_now(plain: Engine) -> None:
    plain.broker.send("q", [Message(body=b"before")])
    (task,) = plain.broker.peek("q", 0, 1)
    rewritten = records.TaskChange("q", task.sequence, task.version, message=Message(body=b"after"))
    plain.documents.modify(records.Modify(changes=[rewritten]))
    (task,) = plain.broker.peek("q", 0, 1)
    assert task.fingerprint == fingerprint(b"after", "")


def test_a_message_that_is_gone_or_locked_is_nothing_to_wait_for(plain: Engine) -> None:
    plain.broker.send("q", [Message(body=b"1"), Message(body=b"2")])
    first, second = plain.broker.peek("q", 0, 9)
    plain.broker.settle(plain.broker.claim("q", 1)[0].token, Settlement.RELEASE)
    assert plain.broker.queue("q").order.has_available(plain.now_ms())
    gone = [records.TaskRef("q", task.sequence, task.version) for task in (first, second)]
    plain.documents.modify(records.Modify(deletes=gone))
    assert not plain.broker.queue("q").order.has_available(plain.now_ms())


# Times


def test_a_scheduled_message_is_there_from_its_own_millisecond_on(plain: Engine, clock: VirtualClock) -> None:
    due_ms = plain.now_ms() + 1_000
    for later_ms in (2, 0, 1):
        plain.broker.send("q", [Message(body=b"%d" % later_ms)], due_ms=due_ms + later_ms)
    for at_s, there in ((0.999, []), (1.0, [b"0"]), (1.001, [b"1"]), (1.002, [b"2"])):
        assert plain.broker.next_due_ms() == max(due_ms, due_ms + round(at_s * 1_000) - 1_000)
        clock.seconds = START_S + at_s
        plain.tick()
        claims = plain.broker.claim("q", 9)
        assert [claim.message.body for claim in claims] == there
        for claim in claims:
            plain.broker.settle(claim.token, Settlement.COMPLETE)
    assert plain.broker.send("q", [Message(body=b"now")], due_ms=plain.now_ms()) == [4]
    assert len(plain.broker.claim("q", 9)) == 1, "what is due now waits for nobody to look at the time"


def test_the_first_lock_that_runs_out_is_what_is_due_next(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("long", lock_s=60), QueueSettings("short", lock_s=5))
    for path in ("long", "short", "long"):
        engine.broker.send(path, [Message(body=b"{}")])
        engine.broker.claim(path, 1)
    assert engine.next_due_ms() == engine.now_ms() + 5_000
    clock.seconds += 5
    engine.tick()
    assert [engine.broker.queue(path).counts()["active"] for path in ("long", "short")] == [2, 1]
    assert [len(engine.broker.claim(path, 9)) for path in ("long", "short")] == [0, 1]


def test_what_became_of_a_scheduled_message_stands_when_its_first_time_comes(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q"), QueueSettings("other"))
    due_ms = engine.now_ms() + 1_000
    cancelled, later, moved = engine.broker.send("q", [Message(body=b"%d" % n) for n in range(3)], due_ms=due_ms)
    tasks = engine.broker.queue("q").tasks
    changes = [
        records.TaskChange("q", later, tasks[later].version, due_ms=due_ms + 1_000),
        records.TaskChange("q", moved, tasks[moved].version, "other", due_ms=due_ms + 2_000),
    ]
    engine.documents.modify(records.Modify(changes=changes))
    engine.broker.cancel("q", [cancelled])
    for at_s, there in ((1, []), (2, [b"1"]), (3, [b"2"])):
        clock.seconds = START_S + at_s
        engine.tick()
        assert [claim.message.body for path in ("q", "other") for claim in engine.broker.claim(path, 9)] == there


# Looks


def test_a_look_at_one_session_gives_no_more_than_it_was_asked_for(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("k", "per_key"))
    engine.broker.send("k", [Message(body=b"%d" % n, session_id=id) for n, id in enumerate("abaaba")])
    found = [engine.broker.peek("k", first, count, session="a") for first, count in ((1, 2), (3, 2), (4, 9), (6, 1))]
    assert [[task.message.body for task in some] for some in found] == [
        [b"0", b"2"], [b"2", b"3"], [b"3", b"5"], [b"5"],
    ]  # fmt: skip


@pytest.mark.parametrize("ordering", ["unordered", "per_key"])
async def test_a_paused_queue_hands_out_nothing_that_was_handed_out_before_either(
    clock: VirtualClock, ordering: Literal["unordered", "per_key"]
) -> None:
    engine = engine_with(clock, QueueSettings("q", ordering, lock_s=LOCK_S), QueueSettings("other"))
    engine.broker.send("q", [Message(body=b"{}", session_id="s")])
    journal = engine.ports().journal
    assert len(await journal.claim(["q"], count_max=1, wait_s=0)) == 1
    clock.seconds += LOCK_S
    engine.tick()
    engine.topology.pause("q")
    for _ in range(SUSPECT_EVERY):
        assert not await journal.claim(["q", "other"], count_max=9, wait_s=0)
    waiting = asyncio.create_task(journal.claim(["q"], count_max=1, wait_s=30))
    await asyncio.sleep(0)
    engine.topology.pause("q", paused=False)
    assert len(await asyncio.wait_for(waiting, 1)) == 1


def test_who_sends_to_what_is_ordered_by_key_says_whose_a_message_is(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("k", "per_key"), QueueSettings("q"), TopicSettings("t", ("a", "b")))
    engine.declare(QueueSettings("mixed/Subscriptions/a", "per_key"), TopicSettings("mixed", ("a", "b")))
    for name in ("k", "mixed"):
        with pytest.raises(NotRegistrable, match="key="):
            engine.queue(name)
        assert engine.queue(name, key=str, type="T", version=2).version == 2
    assert [engine.queue(name).name for name in ("q", "t")] == ["q", "t"]


# Duplicates and copies


def test_a_message_without_an_id_is_no_duplicate_of_another(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q", duplicate_window_s=10))
    assert engine.broker.send("q", [Message(body=b"1"), Message(body=b"2")]) == [1, 2]


def test_what_is_sent_when_its_window_ends_is_answered_as_the_new_message_that_it_is(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q", duplicate_window_s=10))
    sent = []
    for at_s in (0, 9.999, 10):
        clock.seconds = START_S + at_s
        sent += engine.broker.send("q", [Message(body=b"1", message_id="1")])
    assert sent == [1, 0, 2] and len(engine.broker.peek("q", 0, 9)) == 2
    for at_s, count in ((11, 4), (30, 1)):  # those whose window is over are forgotten together
        clock.seconds = START_S + at_s
        engine.broker.send("q", [Message(body=b"1", message_id=f"{at_s}-{n}") for n in range(4 - at_s // 10)])
        assert len(engine.broker.queue("q").seen) == count


def test_a_message_that_is_twice_in_one_sending_is_taken_once(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q", duplicate_window_s=10))
    named = [Message(body=b"%d" % n, message_id=id) for n, id in enumerate(["a", "a", "b", "", "", "b"])]
    assert engine.broker.send("q", named) == [1, 0, 2, 3, 4, 0]
    assert engine.broker.send("q", [named[0], Message(body=b"new", message_id="c"), named[2]]) == [0, 5, 0]
    assert [task.message.body for task in engine.broker.peek("q", 0, 9)] == [b"0", b"2", b"3", b"4", b"new"]


def test_one_message_that_is_not_fit_keeps_out_all_that_are_sent_with_it(clock: VirtualClock) -> None:
    engine = Engine.in_memory(clock=clock, limits=EngineLimits(message_bytes_max=100))
    engine.declare(QueueSettings("q"), QueueSettings("k", "per_key"))
    with pytest.raises(TooLarge, match="over 100 bytes"):
        engine.broker.send("q", [Message(body=b"fits"), Message(body=b"x" * 101)])
    with pytest.raises(TooLarge, match="needs a session id"):
        engine.broker.send("k", [Message(body=b"1", session_id="a"), Message(body=b"2")])
    assert engine.broker.peek("q", 0, 9) == engine.broker.peek("k", 0, 9) == []
    assert engine.broker.send("q", [Message(body=b"x" * 100)]) == [1]


def test_only_what_is_scheduled_is_cancelled(plain: Engine) -> None:
    due_ms = plain.now_ms() + 1_000
    [active] = plain.broker.send("q", [Message(body=b"active")])
    [due] = plain.broker.send("q", [Message(body=b"due")], due_ms=due_ms)
    assert plain.broker.make_due("q", [active, 99]) == 0
    assert plain.broker.cancel("q", [active, due, 99]) == 1
    assert [task.sequence for task in plain.broker.peek("q", 0, 9)] == [active]


def test_a_peek_begins_at_its_number(plain: Engine) -> None:
    plain.broker.send("q", [Message(body=b"%d" % n) for n in range(4)])
    plain.broker.claim("q", 1)  # what is locked is shown as well
    assert [[task.sequence for task in plain.broker.peek("q", start, 2)] for start in (0, 2, 4, 5)] == [
        [1, 2], [2, 3], [4], [],
    ]  # fmt: skip


def test_of_deferred_messages_all_are_received_or_none(plain: Engine) -> None:
    plain.broker.send("q", [Message(body=b"%d" % n) for n in range(3)])
    for claim in plain.broker.claim("q", 2):
        plain.broker.settle(claim.token, Settlement.DEFER)
    for other in (3, 99):  # one that is active, and none
        with pytest.raises(LookupError, match=f"q/{other} is not a deferred message"):
            plain.broker.claim_deferred("q", [1, other])
    first, second = plain.broker.claim_deferred("q", [2, 1, 2])
    assert (first.sequence, second.sequence) == (2, 1)
    with pytest.raises(LookupError):
        plain.broker.claim_deferred("q", [1])


@pytest.mark.parametrize("how", ["abandon", "release", "lock", "restart"])
def test_a_deferred_message_that_comes_back_is_deferred_again(clock: VirtualClock, how: str) -> None:
    disk = MemoryDisk()
    engine = Engine.open(disk, clock=clock)
    engine.declare(QueueSettings("q", max_delivery_count=2))
    engine.broker.send("q", [Message(body=b"1")])
    engine.broker.settle(engine.broker.claim("q", 1)[0].token, Settlement.DEFER)
    [claim] = engine.broker.claim_deferred("q", [1])
    if how == "restart":
        engine.core.flush()
        engine = Engine.open(disk.crash(Crash.PROCESS, random.Random(1)), clock=clock)
    elif how == "lock":
        clock.seconds += 61
        engine.tick()
    else:
        engine.broker.settle(claim.token, Settlement[how.upper()])
    assert engine.broker.claim("q", 1) == [] and engine.broker.is_idle(["q"])
    assert [task.state for task in engine.broker.peek("q", 0, 9)] == ["deferred"]
    [claim] = engine.broker.claim_deferred("q", [1])
    assert claim.delivery_count == (how != "release")


def test_a_deferred_message_that_failed_too_often_is_a_dead_letter_like_others(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q", max_delivery_count=1))
    engine.broker.send("q", [Message(body=b"1")])
    engine.broker.settle(engine.broker.claim("q", 1)[0].token, Settlement.DEFER)
    engine.broker.settle(engine.broker.claim_deferred("q", [1])[0].token, Settlement.ABANDON)
    for _ in range(2):
        [claim] = engine.broker.claim(dead_letter_path("q"), 1)
        engine.broker.settle(claim.token, Settlement.ABANDON)


@pytest.mark.parametrize("how", [Settlement.ABANDON, Settlement.DEFER, Settlement.DEAD_LETTER])
def test_what_a_receiver_sets_while_it_settles_lasts(clock: VirtualClock, how: Settlement) -> None:
    disk = MemoryDisk()
    engine = Engine.open(disk, clock=clock)
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"1", properties={"n": 1})])
    engine.broker.settle(engine.broker.claim("q", 1)[0].token, how, wire=b"w", properties={"n": 2, "why": "x"})
    held = [held_bytes(task.message) for queue in engine.state.queues for task in queue.tasks.values()]
    assert [engine.state.message_bytes] == held
    engine.core.flush()
    again = Engine.open(disk.crash(Crash.PROCESS, random.Random(1)), clock=clock)
    for one in (engine, again):
        [task] = one.broker.peek(dead_letter_path("q") if how is Settlement.DEAD_LETTER else "q", 0, 9)
        assert (task.message.body, task.message.wire, task.message.properties) == (b"1", b"w", {"n": 2, "why": "x"})


def test_a_queue_is_idle_when_nothing_in_it_waits_or_is_being_handled(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q"), QueueSettings("other"))
    assert engine.broker.is_idle(["q", "other"]) and engine.broker.is_drained(["q", "other"])
    engine.broker.send("q", [Message(body=b"1")])
    assert not engine.broker.is_idle(["other", "q"]) and engine.broker.is_idle(["other"])
    [claim] = engine.broker.claim("q", 1)
    assert not engine.broker.is_idle(["q", "other"])
    engine.broker.settle(claim.token, Settlement.DEFER)
    engine.broker.send("q", [Message(body=b"2")], due_ms=engine.now_ms() + 1_000)
    assert engine.broker.is_idle(["q"]) and not engine.broker.is_drained(["other", "q"])
    clock.seconds += 1
    engine.tick()
    assert not engine.broker.is_idle(["q"])
    [claim] = engine.broker.claim("q", 1)
    engine.broker.settle(claim.token, Settlement.DEAD_LETTER)
    [claim] = engine.broker.claim_deferred("q", [1])
    engine.broker.settle(claim.token, Settlement.COMPLETE)
    assert engine.broker.is_idle(["q"]) and not engine.broker.is_drained(["q"])  # there is its dead letter


async def test_who_waits_is_woken_when_a_message_is_due(plain: Engine, clock: VirtualClock) -> None:
    plain.broker.send("q", [Message(body=b"1")], due_ms=plain.now_ms() + 1_000)
    waiting = asyncio.create_task(plain.broker.wait_any(["q"], 60))
    await asyncio.sleep(0)
    clock.seconds += 1
    plain.tick()
    assert await asyncio.wait_for(waiting, 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(plain.broker.wait_any(["q/$DeadLetterQueue"], 60), 0.01)
    assert not plain.broker._watchers, "of what was broken off as well"


def test_a_scheduled_message_that_is_cancelled_takes_its_own_copies_with_it_and_no_equal_one(
    clock: VirtualClock,
) -> None:
    engine = engine_with(clock, TopicSettings("news", ("a", "b")))
    due_ms = engine.now_ms() + 1_000
    first, _ = (engine.broker.send("news", [Message(body=b"same")], due_ms=due_ms)[0] for _ in range(2))
    assert engine.broker.cancel("news", [first]) == 1
    assert [len(engine.broker.peek(f"news/Subscriptions/{name}", 0, 9)) for name in ("a", "b")] == [1, 1]


def test_of_equal_messages_of_one_sending_each_is_cancelled_with_its_own_copies(clock: VirtualClock) -> None:
    engine = engine_with(clock, TopicSettings("news", ("a", "b")))
    sent = engine.broker.send("news", [Message(body=b"same")] * 3, due_ms=engine.now_ms() + 1_000)
    for place in (1, 0, 0):
        left = [engine.broker.peek(f"news/Subscriptions/{name}", 0, 9) for name in ("a", "b")]
        assert engine.broker.cancel("news", [sent.pop(place)]) == 1
        for name, tasks in zip(("a", "b"), left, strict=True):
            assert engine.broker.peek(f"news/Subscriptions/{name}", 0, 9) == [*tasks[:place], *tasks[place + 1 :]]


def test_a_copy_that_is_gone_already_is_not_made_up_for_by_an_equal_one_of_another_sending(clock: VirtualClock) -> None:
    engine, of_b = engine_with(clock, TopicSettings("news", ("a", "b"))), "news/Subscriptions/b"
    due_ms = engine.now_ms() + 1_000
    first, _ = (engine.broker.send("news", [Message(body=b"same")], due_ms=due_ms)[0] for _ in range(2))
    copy, other = engine.broker.peek(of_b, 0, 9)
    assert engine.broker.cancel(of_b, [copy.sequence]) == engine.broker.cancel("news", [first]) == 1
    assert engine.broker.peek(of_b, 0, 9) == [other]


@pytest.mark.parametrize("path", ["q", "k", "news"])
def test_a_message_that_is_named_twice_is_cancelled_once(clock: VirtualClock, path: str) -> None:
    engine = engine_with(clock, QueueSettings("q"), QueueSettings("k", "per_key"), TopicSettings("news", ("a", "b")))
    (sequence,) = engine.broker.send(path, [Message(body=b"1", session_id="k")], due_ms=engine.now_ms() + 1_000)
    assert engine.broker.cancel(path, [sequence, sequence]) == 1
    assert engine.broker.send(path, [Message(body=b"2", session_id="k")])[0] > sequence


# Settlement


def test_both_texts_of_a_dead_letter_are_cut_to_their_limit(plain: Engine) -> None:
    plain.broker.send("q", [Message(body=b"1")])
    (claim,) = plain.broker.claim("q", 1)
    text, limit = "x" * 10_000, plain.core.limits.reason_length_max
    plain.broker.settle(claim.token, Settlement.DEAD_LETTER, reason=text, description=text)
    (dead,) = plain.broker.peek(dead_letter_path("q"), 0, 1)
    assert (len(dead.reason), len(dead.description)) == (limit, limit)


async def test_the_delivery_that_the_bus_dead_letters_counts_too(plain: Engine) -> None:
    plain.broker.send("q", [Message(body=b"1")])
    (delivery,) = await EngineBus(plain.core, plain.broker).receive("q", count_max=1, wait_s=0)
    await EngineBus(plain.core, plain.broker).settle(delivery, Settle("dead-letter", "no"))
    (dead,) = await plain.ports().operations.dead_letters("q")
    assert dead.delivery_count == 1


# Sessions


def test_a_deferred_message_is_received_in_its_own_session_only(keyed: Engine) -> None:
    (sequence,) = keyed.broker.send("k", [Message(body=b"1", session_id="a")])
    assert keyed.sessions.accept("k", "a") is not None
    (claim,) = keyed.broker.claim("k", 1, session="a")
    keyed.broker.settle(claim.token, Settlement.DEFER)
    with pytest.raises(LookupError):
        keyed.broker.claim_deferred("k", [sequence], session="b")
    (again,) = keyed.broker.claim_deferred("k", [sequence, sequence], session="a")  # named twice
    keyed.broker.settle(again.token, Settlement.COMPLETE)


def test_what_a_receiver_had_claimed_counts_as_delivered_when_its_session_runs_out(
    keyed: Engine, clock: VirtualClock
) -> None:
    keyed.broker.send("k", [Message(body=b"1", session_id="a")])
    for count in range(3):
        assert keyed.sessions.accept("k", "a") is not None
        (claim,) = keyed.broker.claim("k", 1, session="a")
        assert claim.delivery_count == count
        clock.seconds += LOCK_S
        keyed.tick()


def test_a_session_that_was_renewed_is_free_once_its_new_time_is_over(keyed: Engine, clock: VirtualClock) -> None:
    keyed.broker.send("k", [Message(body=b"1", session_id="a")])
    lock = accepted(keyed, "a")
    clock.seconds += LOCK_S - 1
    keyed.sessions.renew(lock.token)
    clock.seconds += 1  # its first time is over
    keyed.tick()
    assert keyed.sessions.accept("k", None) is None
    clock.seconds += LOCK_S - 1
    keyed.tick()
    again = keyed.sessions.accept("k", None)
    assert again is not None and again.session_id == "a"


def test_a_session_that_is_released_gives_back_what_was_claimed_uncounted(keyed: Engine) -> None:
    keyed.broker.send("k", [Message(body=b"%d" % n, session_id="a") for n in range(3)])
    for count in (1, 2, 3):
        lock = keyed.sessions.accept("k", None)
        assert lock is not None and keyed.sessions.accept("k", "a") is None
        claims = keyed.broker.claim("k", count, session="a")
        assert [(claim.message.body, claim.delivery_count) for claim in claims] == [
            (b"%d" % n, 0) for n in range(count)
        ]
        keyed.sessions.release(lock.token)
        with pytest.raises(LockLost):
            keyed.broker.settle(claims[0].token, Settlement.COMPLETE)


async def test_who_waits_for_a_session_is_woken_when_it_is_released(keyed: Engine) -> None:
    keyed.broker.send("k", [Message(body=b"1", session_id="a")])
    lock = keyed.sessions.accept("k", "a")
    waiting = asyncio.create_task(keyed.broker.wait_any(["k"], 60))
    await asyncio.sleep(0)
    assert lock is not None and not waiting.done()
    keyed.sessions.release(lock.token)
    assert await asyncio.wait_for(waiting, 5)


def test_of_suspects_at_the_head_of_their_sessions_the_least_is_taken_alone(keyed: Engine, clock: VirtualClock) -> None:
    keyed.broker.send("k", [Message(body=b"%d" % n, session_id=id) for n, id in enumerate("aabcd")])
    queue = keyed.broker.queue("k")
    for ids in ("a", "abd"):
        for id in ids:
            assert keyed.sessions.accept("k", id) is not None
            assert keyed.broker.claim("k", 1, session=id)
        clock.seconds += LOCK_S
        keyed.tick()
    assert keyed.sessions.accept("k", "d") is not None  # somebody holds it
    assert [task.message.body for task in keyed.broker.take(queue, 9, wary=True)] == [b"3"]
    taken = [keyed.broker.take_suspect([queue]) for _ in range(3)]
    assert [[(task.message.body, task.delivery_count) for task in tasks] for tasks in taken] == [
        [(b"2", 1)], [(b"0", 2)], [],
    ]  # fmt: skip


async def test_who_holds_a_session_is_woken_by_its_own_messages_only(keyed: Engine) -> None:
    assert keyed.sessions.accept("k", "a") is not None
    assert not await keyed.broker.wait_any(["k"], 0, session="nobody's")
    waiting = asyncio.create_task(keyed.broker.wait_any(["k"], 60, session="a"))
    await asyncio.sleep(0)
    keyed.broker.send("k", [Message(body=b"1", session_id="b")])
    await asyncio.sleep(0)
    assert not waiting.done()
    keyed.broker.send("k", [Message(body=b"2", session_id="a")])
    assert await asyncio.wait_for(waiting, 5)
    assert keyed.broker.claim("k", 1, session="a")
    assert not await keyed.broker.wait_any(["k"], 0, session="a")


def test_the_locks_on_sessions_that_run_out_together_all_do(keyed: Engine, clock: VirtualClock) -> None:
    keyed.broker.send("k", [Message(body=b"1", session_id=id) for id in "abc"])
    released, *_ = [keyed.sessions.accept("k", id) for id in "abc"]
    assert released is not None
    keyed.sessions.release(released.token)
    clock.seconds += LOCK_S
    assert keyed.sessions.accept("k", "b") is None, "a lock that is over is somebody's until the next tick"
    keyed.tick()
    assert [keyed.sessions.accept("k", id) is not None for id in "abc"] == [True, True, True]


def test_the_lock_on_a_session_is_lost_with_its_queue(keyed: Engine) -> None:
    lock = accepted(keyed, "a")
    keyed.topology.delete("k")
    keyed.declare(QueueSettings("q"))  # which has its number now
    with pytest.raises(LockLost):
        keyed.sessions.renew(lock.token)


def test_a_key_that_waits_behind_a_dead_letter_is_idle_to_who_does_not_handle_it(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("k", "per_key", max_delivery_count=1, stop_key=True))
    engine.broker.send("k", [Message(body=b"%d" % number, session_id="a") for number in range(2)])
    lock = accepted(engine, "a")
    (claim,) = engine.broker.claim("k", 1, session="a")
    engine.broker.settle(claim.token, Settlement.ABANDON)
    engine.sessions.release(lock.token)
    assert engine.broker.queue("k").order.has_blocked and engine.broker.is_idle(["k"])
    engine.broker.take(engine.broker.queue("k"), 1)  # as a handler does
    assert not engine.broker.is_idle(["k"])
    engine.topology.pause("k")
    assert engine.broker.take_blocked(engine.broker.queue("k"), 9) == []


def test_a_key_whose_message_was_deferred_goes_on(keyed: Engine) -> None:
    keyed.broker.send("k", [Message(body=b"%d" % number, session_id="a") for number in range(2)])
    lock = accepted(keyed, "a")
    (claim,) = keyed.broker.claim("k", 1, session="a")
    keyed.broker.settle(claim.token, Settlement.DEFER)
    keyed.sessions.release(lock.token)
    assert [task.message.body for task in keyed.broker.take(keyed.broker.queue("k"), 9)] == [b"1"]


@pytest.mark.parametrize(("count_max", "of_b"), [(99, RUN_COUNT_MAX), (RUN_COUNT_MAX + 1, 1)])
def test_so_many_messages_of_one_key_are_handed_out_at_a_time(clock: VirtualClock, count_max: int, of_b: int) -> None:
    engine = engine_with(clock, QueueSettings("k", "per_key"))
    for key in ("a", "b"):
        engine.broker.send("k", [Message(body=b"", session_id=key) for _ in range(RUN_COUNT_MAX + 1)])
    taken = engine.broker.take(engine.broker.queue("k"), count_max)
    assert Counter(task.message.session_id for task in taken) == {"a": RUN_COUNT_MAX, "b": of_b}


def test_a_look_at_a_session_counts_its_own_messages_only(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("k", "per_key"))
    engine.broker.send("k", [Message(body=b"", session_id=key) for key in ("a", "a", "b", "b")])
    assert [task.message.session_id for task in engine.broker.peek("k", 0, 2, session="b")] == ["b", "b"]


def test_a_message_that_was_resubmitted_keeps_the_digest_of_its_payload(plain: Engine) -> None:
    (sequence,) = plain.broker.send("q", [Message(body=b"1", outbox_id="1")])
    (claim,) = plain.broker.claim("q", 1)
    plain.broker.settle(claim.token, Settlement.DEAD_LETTER)
    plain.dead_letters.resubmit("q", sequence)
    (task,) = plain.broker.peek("q", 0, 1)
    assert task.external and task.fingerprint == fingerprint(b"1", "")


# Declarations


def test_the_numbers_of_deleted_queues_count_as_free(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "QUEUE_COUNT_MAX", 4)
    engine = engine_with(clock, QueueSettings("a"), QueueSettings("b"))
    with pytest.raises(NotRegistrable):
        engine.declare(QueueSettings("c"))
    engine.topology.delete("a")
    engine.declare(QueueSettings("c"))
    with pytest.raises(NotRegistrable):
        engine.declare(QueueSettings("d"))


async def test_a_queue_that_is_declared_with_another_order_is_refused(plain: Engine) -> None:
    with pytest.raises(NotRegistrable, match="cannot become per_key"):
        await plain.ports().operations.declare({"q": "per_key"}, {})
    await plain.ports().operations.declare({"q": "unordered"}, {})


@pytest.mark.parametrize(
    "named",
    [
        (QueueSettings("q"), QueueSettings("q", ordering="per_key")),
        (QueueSettings("q"), TopicSettings("q", ("s",))),
        (TopicSettings("q", ("s",)), QueueSettings("q")),
        (TopicSettings("t", ("s", "S")),),
    ],
)
def test_names_that_two_calls_could_not_declare_are_refused_in_one(
    clock: VirtualClock, named: tuple[QueueSettings | TopicSettings, ...]
) -> None:
    engine = engine_with(clock)
    with pytest.raises(NotRegistrable):
        engine.declare(*named)
    assert not engine.topology.queues and not engine.topology.topics


@pytest.mark.parametrize("topic_first", [False, True])
def test_a_subscription_has_the_order_that_is_declared_with_its_topic(clock: VirtualClock, topic_first: bool) -> None:
    named: list[QueueSettings | TopicSettings] = [QueueSettings("t/Subscriptions/s", ordering="per_key")]
    named.insert(0 if topic_first else 1, TopicSettings("t", ("s",)))
    engine = engine_with(clock, *named)
    assert engine.sessions.accept("t/Subscriptions/s", "s") is not None
    engine.declare(TopicSettings("t", ("more",)))  # besides those that it has
    engine.broker.send("t", [Message(body=b"1", session_id="s")])
    assert [len(engine.broker.queue(f"t/Subscriptions/{name}").tasks) for name in ("s", "more")] == [1, 1]


def test_a_queue_that_is_named_twice_takes_one_place(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "QUEUE_COUNT_MAX", 2)
    engine = engine_with(clock, QueueSettings("q"), QueueSettings("q", lock_s=LOCK_S))
    assert engine.topology.queues == {"q": QueueSettings("q", lock_s=LOCK_S)}


# Waiting


async def test_a_modification_wakes_who_waits_for_what_it_inserts(plain: Engine) -> None:
    waiting = asyncio.create_task(plain.broker.wait_any(["q"], 30))
    await asyncio.sleep(0)
    plain.documents.modify(records.Modify(inserts=[records.TaskInsert("q", Message(body=b"1"))]))
    assert await asyncio.wait_for(waiting, 1)


async def test_a_resubmission_wakes_who_waits_for_its_queue(plain: Engine) -> None:
    (sequence,) = plain.broker.send("q", [Message(body=b"1", outbox_id="1")])
    plain.broker.settle(plain.broker.claim("q", 1)[0].token, Settlement.DEAD_LETTER)
    waiting = asyncio.create_task(plain.broker.wait_any(["q"], 30))
    await asyncio.sleep(0)
    plain.dead_letters.resubmit("q", sequence)
    assert await asyncio.wait_for(waiting, 1)


async def test_who_waits_for_a_message_learns_that_the_engine_has_stopped(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("q"), QueueSettings("r"))
    waiting = asyncio.create_task(engine.broker.wait_any(["q", "r"], 30))
    await asyncio.sleep(0)
    engine.core.stop(EngineStopped("the disk failed"))
    with pytest.raises(EngineStopped, match="the disk failed"):
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(EngineStopped, match="the disk failed"):
        await asyncio.wait_for(engine.broker.wait_any(["q"], 30), 1)


async def test_nothing_passes_the_gate_of_an_engine_that_has_stopped(plain: Engine) -> None:
    await plain.core.gate()
    plain.core.stop(EngineStopped("the disk failed"))
    with pytest.raises(EngineStopped, match="the disk failed"):
        await plain.core.gate()


class Order(msgspec.Struct):
    number: int


async def test_a_worker_without_work_learns_that_its_engine_has_stopped(engine: Engine) -> None:
    app = App("idle")
    app.queue("orders")

    @app.handler("orders")
    def note(order: Order) -> None: ...

    worker = Worker(app, engine)
    with pytest.raises(EngineStopped, match="the disk failed"):
        async with worker:
            await asyncio.sleep(0.01)
            engine.core.stop(EngineStopped("the disk failed"))
            await asyncio.wait_for(worker.wait_stopped(), 1)


def test_a_session_keeps_a_state_up_to_the_limit() -> None:
    engine = Engine.in_memory()
    engine.declare(QueueSettings("keyed", ordering="per_key"))
    lock = accepted(engine, "s", "keyed")
    whole = b"x" * STATE_BYTES_MAX
    engine.sessions.set_state(lock.token, whole)
    with pytest.raises(TooLarge):
        engine.sessions.set_state(lock.token, whole + b"x")
    assert engine.sessions.state(lock.token) == whole
    engine.sessions.release(lock.token)
    assert engine.sessions.state(accepted(engine, "s", "keyed").token) == whole
    assert engine.sessions.accept("keyed", "held alone") is not None
    assert engine.sessions.ids("keyed") == ["s"]
    engine.close()


async def test_a_session_waits_for_the_message_that_is_put_off_for_longest(clock: VirtualClock) -> None:
    engine = engine_with(clock, QueueSettings("k", "per_key"))
    engine.broker.send("k", [Message(body=b"%d" % n, session_id="s") for n in range(2)])
    journal = engine.ports().journal
    held = await journal.claim(["k"], count_max=2, wait_s=0)
    due = [Postponement(each, engine.now_ms() + s * 1_000, 1) for each, s in zip(held, (10, 5), strict=True)]
    assert await journal.commit(Commit(engine.now_ms(), 0, [], {}, {}, [], {}, {}, {}, [], due, [])) is None
    found = []
    for _ in range(2):
        clock.seconds += 5
        engine.tick()
        found.append([each.message.body for each in await journal.claim(["k"], count_max=2, wait_s=0)])
    assert found == [[], [b"0", b"1"]]
