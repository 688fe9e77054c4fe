"""Nothing that could not be read back, or applied, at the next open reaches the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from outbox.engine.core import check_clock, check_room
from outbox.engine.engine import Engine
from outbox.engine.entities import NAME_LENGTH_MAX, QueueSettings, Settlement, TopicSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine.log.salvage import salvage
from outbox.engine.log.snapshot import accept
from outbox.engine.state.rules import Rule
from outbox.errors import EngineStopped, NotRegistrable, OutboxError, Refused, Throttled
from outbox.message import Message, message_from_properties
from outbox.testing import START_S, VirtualClock

Act = Callable[[Engine], object]


def opened(disk: MemoryDisk) -> Engine:
    return Engine.open(disk, clock=VirtualClock(START_S), log_id=b"0" * 16)


def given(**fields: Any) -> Act:
    message = Message(**{"body": b"{}", "outbox_id": "bad", **fields})
    return lambda engine: engine.broker.send("q", [message])


def modified(**fields: Any) -> Act:
    return lambda engine: engine.documents.modify(records.Modify(**fields))


def changed(**fields: Any) -> Act:
    def change(engine: Engine) -> None:
        (task,) = engine.broker.peek("q", 0, 9)
        engine.documents.modify(
            records.Modify(changes=[records.TaskChange("q", task.sequence, task.version, **fields)])
        )

    return change


def declared(**fields: Any) -> Act:
    return lambda engine: engine.declare(QueueSettings("t", **fields))


def resubmitted(**fields: Any) -> Act:
    edit = Message(**{"body": b"{}", "outbox_id": "dead", **fields})
    return lambda engine: engine.dead_letters.resubmit("d", 1, edit=edit)


INSERT = records.TaskInsert("q", Message(body="{}"))  # type: ignore[arg-type]  # what is tried
CASES: dict[str, tuple[Act, str]] = {
    "number for a text": (given(correlation_id=42), "Sent.messages.correlation_id: Expected `str`, got `int`"),
    "none for a text": (given(reply_to=None), "Sent.messages.reply_to"),
    "bytes for a text": (given(traceparent=b"00"), "Sent.messages.traceparent"),
    "bytes as a property": (
        lambda e: e.broker.send("q", [message_from_properties(b"{}", {"x": b"b"})]),  # type: ignore[dict-item]  # what is tried
        "Sent.messages.properties",
    ),
    "text for a body": (given(body="{}"), "Sent.messages.body"),
    "half a surrogate": (given(outbox_id="\ud800"), "surrogates"),
    "no end of life": (given(time_to_live_ms=float("inf")), "time_to_live_ms"),
    "a life beyond all records": (given(time_to_live_ms=1 << 64), "time_to_live_ms"),
    "a negative life": (given(time_to_live_ms=-1), "time_to_live_ms"),
    "a life that is no whole number": (given(time_to_live_ms=1.5), "time_to_live_ms"),
    "a creation beyond all records": (given(created_ms=1 << 53 | 1), "created_ms"),
    "a creation before all records": (given(created_ms=-(1 << 53) - 1), "created_ms"),
    "a negative attempt": (given(attempt=-1), "attempt"),
    "an attempt beyond all records": (given(attempt=1 << 64), "attempt"),
    "negative hops": (given(hops=-1), "hops"),
    "hops beyond all records": (given(hops=1 << 64), "hops"),
    "a message to a topic with rules that is due beyond all records": (
        lambda engine: engine.broker.send("news", [Message(body=b"")], due_ms=1 << 60),
        "milliseconds",
    ),
    "a message to a topic with rules and negative hops": (
        lambda engine: engine.broker.send("news", [Message(body=b"", hops=-1)]),
        "hops",
    ),
    "a dead letter that comes back with a negative life": (resubmitted(time_to_live_ms=-1), "time_to_live_ms"),
    "an insert of a message with negative hops": (
        modified(inserts=[records.TaskInsert("q", Message(body=b"", hops=-1))]),
        "hops",
    ),
    "a due time beyond all records": (
        lambda e: e.broker.send("q", [Message(body=b"")], due_ms=1 << 63),
        "milliseconds",
    ),
    "an insert that is due beyond all records": (
        modified(inserts=[records.TaskInsert("q", Message(body=b""), 1 << 60)]),
        "milliseconds",
    ),
    "a change that is due beyond all records": (changed(due_ms=1 << 60), "milliseconds"),
    "a change to a message with a negative life": (
        changed(message=Message(body=b"", time_to_live_ms=-1)),
        "time_to_live_ms",
    ),
    "delete of an absent document": (modified(document_deletes=[records.DocRef("nope", "x", 0)]), "nope/x"),
    "insert of a text": (modified(inserts=[INSERT]), "Modified.modify.inserts.message.body"),
    "a document of text": (modified(documents=[records.DocWrite("n", "x", "v")]), "value"),  # type: ignore[arg-type]  # what is tried
    "a document that expires beyond all records": (
        modified(documents=[records.DocWrite("n", "x", b"v", 0, 1 << 60)]),
        "milliseconds",
    ),
    "unknown ordering": (declared(ordering="total"), "ordering"),
    "no window": (declared(duplicate_window_s=float("nan")), "duplicate_window_s"),
    "a text for a lock time": (declared(lock_s="60"), "lock_s"),
    "a lock time of more than there are seconds": (declared(lock_s=1.1e12), "lock_s"),
    "infinite time to live": (declared(time_to_live_s=float("inf")), "time_to_live_s"),
    "no lock time": (declared(lock_s=float("nan")), "lock_s"),
    "a window before it began": (declared(duplicate_window_s=-1), "duplicate_window_s"),
    "no deliveries": (declared(max_delivery_count=0), "max_delivery_count"),
    "a name that is none": (lambda e: e.declare(TopicSettings(42)), "42"),  # type: ignore[arg-type]  # what is tried
}


@pytest.mark.parametrize("case", CASES)
def test_what_could_not_be_read_back_is_refused_before_the_log(case: str) -> None:
    act, text = CASES[case]
    disk = MemoryDisk()
    engine = opened(disk)
    engine.declare(QueueSettings("d"), QueueSettings("q"), TopicSettings("news", ("s",)))
    engine.topology.set_rules("news/Subscriptions/s", [Rule("all")])
    engine.broker.send("d", [Message(body=b"{}", outbox_id="dead")])
    engine.broker.settle(engine.broker.claim("d", 1)[0].token, Settlement.DEAD_LETTER)
    engine.broker.send("q", [Message(body=b"{}", outbox_id="acknowledged")])
    assert engine.log is not None
    before = engine.log.appended
    with pytest.raises(OutboxError, match=text):
        act(engine)
    assert engine.log.appended == before
    engine.broker.send("q", [Message(body=b"{}", outbox_id="later")])
    engine.core.flush()
    again = opened(disk.crash(Crash.POWER, random.Random(1)))
    assert [task.message.identity for task in again.broker.peek("q", 0, 9)] == ["acknowledged", "later"]


def test_a_record_that_memory_cannot_take_in_stops_the_engine_and_stays_unwritten() -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    engine.declare(QueueSettings("q"))
    engine.core.flush()
    with pytest.raises(EngineStopped, match="Claimed"):
        engine.core.do(records.Claimed(0, [77]))
    with pytest.raises(EngineStopped):
        engine.broker.send("q", [Message(body=b"{}")])
    engine.close()
    assert list(opened(disk).topology.queues) == ["q"]


def test_a_limit_of_memory_or_of_the_clock_may_be_reached() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"{}")])
    held_bytes = engine.state.held_bytes
    check_room(engine.state, EngineLimits(memory_bytes_max=held_bytes))
    with pytest.raises(Throttled) as full:
        check_room(engine.state, EngineLimits(memory_bytes_max=held_bytes - 1))
    assert full.value.retry_after_s == 1.0
    logged_ms = engine.now_ms() - 5_000
    check_clock(logged_ms, engine.core.clock, EngineLimits(clock_ahead_max_s=5), timedelta(0))
    with pytest.raises(OutboxError, match="ahead of the log"):
        check_clock(logged_ms - 1, engine.core.clock, EngineLimits(clock_ahead_max_s=5), timedelta(0))


def test_who_may_have_a_wrong_clock_is_told_both_days_and_how_to_confirm_the_right_one() -> None:
    day_ms, clock = 86_400_000, VirtualClock(20_000 * 86_400)
    with pytest.raises(OutboxError) as ahead:
        check_clock(19_990 * day_ms + day_ms // 2, clock, EngineLimits(clock_ahead_max_s=5 * 86_400), timedelta(0))
    for text in ("(2024-10-04) is 10 days", "the log (2024-09-24)", "timedelta(days=10)", "--accept-clock 10d"):
        assert text in str(ahead.value)


@pytest.mark.parametrize(("skew_s", "ahead_s"), [(60.0, 0.0), (60.001, 60.001), (-90.0, 0.0)])
def test_time_is_ahead_of_the_clock_by_more_than_a_small_skew(skew_s: float, ahead_s: float) -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    clock.wall_ms = lambda: round((START_S - skew_s) * 1_000)  # type: ignore[method-assign]  # it was set back
    assert engine.core.ahead_s() == ahead_s


@pytest.mark.parametrize("length", [NAME_LENGTH_MAX, NAME_LENGTH_MAX + 1])
def test_the_name_of_a_queue_may_be_as_long_as_the_limit(length: int) -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    if length == NAME_LENGTH_MAX:
        engine.declare(QueueSettings("q" * length))
        return
    with pytest.raises(NotRegistrable, match="260 characters"):
        engine.declare(QueueSettings("q" * length))


def test_a_salvage_leaves_out_and_names_what_its_owner_cannot_read() -> None:
    disk, target = MemoryDisk(), MemoryDisk("copy")
    engine = opened(disk)
    engine.declare(QueueSettings("q"))
    assert engine.log is not None
    bad = engine.log.append(18, records.encode([1, "q", 0, [["text"]]]))  # as an earlier version would have logged it
    engine.broker.send("q", [Message(body=b"{}", outbox_id="behind")])
    engine.close()
    with pytest.raises(OutboxError):
        opened(disk)
    options: dict[str, Any] = {"log_id": b"1" * 16, "clock_ms": lambda: 1, "accept_snapshot": accept}
    done = salvage(disk, target, readable=records.readable, **options)
    assert done.unreadable == (bad,) and (bad, bad) in done.missing
    assert [task.message.identity for task in opened(target).broker.peek("q", 0, 9)] == ["behind"]


def test_a_value_is_refused_the_same_without_a_log() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    with pytest.raises(Refused, match="correlation_id"):
        given(correlation_id=42)(engine)
    assert engine.broker.queue("q").counts()["active"] == 0
