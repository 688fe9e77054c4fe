"""What is asked of a `$management` node: its limits, and whose lock it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import encode_peeked
from outbox.emulator.amqp.errors import (
    ARGUMENT_ERROR,
    INVALID_FIELD,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    SERVER_BUSY,
    SESSION_LOCK_LOST,
    SESSION_NOT_FOUND,
    OperationFault,
)
from outbox.emulator.amqp.messages import decode_transfer
from outbox.emulator.bus.management import ITEM_COUNT_MAX, NO_CONTENT, OK, REPLY_SIZE_MAX_BYTES, Management
from outbox.emulator.bus.peer import Peer
from outbox.emulator.bus.requests import Request
from outbox.engine.backend.operations import dead_letters
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, SessionLock, Settlement, TopicSettings, subscription_path
from outbox.errors import EngineStopped
from outbox.message import Message


def asked(
    engine: Engine,
    path: str,
    operation: str,
    lock: SessionLock | None = None,
    *,
    status: int = OK,
    limit: int = 1 << 20,
    **value: Any,
) -> Any:
    """What a connection that holds `lock`, if any, is answered."""
    manage = Management(engine, limit, lambda path, session_id: lock)
    named: dict[object, object] = {name.replace("_", "-"): one for name, one in value.items()}
    answer = manage._run(path, Request(types.NULL, "", {"operation": f"com.microsoft:{operation}"}, named))
    assert answer.status == status
    return types.decode(answer.value)[0]


def test_a_peek_gives_no_more_than_one_answer_holds_and_goes_on_behind_it(engine: Engine) -> None:
    bodies = [b"x" * (REPLY_SIZE_MAX_BYTES // 2)] * 5
    engine.broker.send("plain", [Message(body=body) for body in bodies])
    counts, after = list[int](), 0
    while after < 5:
        found = asked(engine, "plain", "peek-message", from_sequence_number=after + 1, message_count=100)["messages"]
        counts.append(len(found))
        after += len(found)
    assert counts == [2, 2, 1]


def deferred(engine: Engine) -> tuple[SessionLock, int]:
    """A deferred message of a session that is held: the lock, and the message's number."""
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    lock = engine.sessions.accept("keyed", "s")
    assert lock is not None
    [claim] = engine.broker.claim("keyed", 1, session="s")
    engine.broker.settle(claim.token, Settlement.DEFER)
    return lock, claim.sequence


def test_a_deferred_message_of_a_session_is_for_who_holds_the_session(engine: Engine) -> None:
    lock, sequence = deferred(engine)
    wanted: dict[str, Any] = {"sequence_numbers": [sequence], "session_id": "s"}
    with pytest.raises(OperationFault) as caught:
        asked(engine, "keyed", "receive-by-sequence-number", **wanted)
    assert caught.value.condition == SESSION_LOCK_LOST
    assert len(asked(engine, "keyed", "receive-by-sequence-number", lock, **wanted)["messages"]) == 1


@pytest.mark.parametrize(("is_of_session", "condition"), [(False, MESSAGE_LOCK_LOST), (True, SESSION_LOCK_LOST)])
def test_a_settlement_under_a_lock_that_is_over_is_refused(engine: Engine, is_of_session: bool, condition: str) -> None:
    value: dict[str, Any] = {"disposition_status": "completed", "lock_tokens": [UUID(int=1)]}
    value |= {"session_id": "s"} if is_of_session else {}
    with pytest.raises(OperationFault) as caught:
        asked(engine, "keyed", "update-disposition", **value)
    assert caught.value.condition == condition


def test_a_settlement_dead_letters_with_reason_and_description(engine: Engine) -> None:
    engine.broker.send("plain", [Message(body=b"1")])
    [claim] = engine.broker.claim("plain", 1)
    why: dict[str, Any] = {"deadletter_reason": "bad", "deadletter_description": "very"}
    why["properties_to_modify"] = {"by": "hand"}
    asked(engine, "plain", "update-disposition", disposition_status="suspended", lock_tokens=[_token(claim)], **why)
    [found] = dead_letters(engine.broker, "plain")
    assert (found.reason, found.description, found.message.properties) == ("bad", "very", {"by": "hand"})


def test_only_what_is_scheduled_is_cancelled(engine: Engine) -> None:
    engine.broker.send("plain", [Message(body=b"1")])
    [later] = engine.broker.send("plain", [Message(body=b"2")], due_ms=engine.now_ms() + 60_000)
    for numbers in ([later + 1], [1], [later, later + 1]):
        with pytest.raises(OperationFault) as caught:
            asked(engine, "plain", "cancel-scheduled-message", sequence_numbers=numbers)
        assert caught.value.condition == MESSAGE_NOT_FOUND
    assert [task.message.body for task in engine.broker.peek("plain", 0, 9)][:1] == [b"1"]


def test_a_message_may_be_named_twice(engine: Engine) -> None:
    [later] = engine.broker.send("plain", [Message(body=b"1")], due_ms=engine.now_ms() + 60_000)
    asked(engine, "plain", "cancel-scheduled-message", sequence_numbers=[later, later])
    lock, sequence = deferred(engine)
    twice: dict[str, Any] = {"sequence_numbers": [sequence, sequence], "session_id": "s", "receiver_settle_mode": 0}
    assert len(asked(engine, "keyed", "receive-by-sequence-number", lock, **twice)["messages"]) == 1


def refused(engine: Engine, path: str, operation: str, lock: Any = None, **value: Any) -> str:
    """The condition with which a request is refused."""
    with pytest.raises(OperationFault) as caught:
        asked(engine, path, operation, lock, **value)
    return caught.value.condition


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("peek-message", {"message_count": -1}),
        ("peek-message", {"message_count": True}),
        ("peek-message", {"from_sequence_number": "1"}),
        ("peek-message", {"session_id": 1}),
        ("cancel-scheduled-message", {}),
        ("cancel-scheduled-message", {"sequence_numbers": [1, True]}),
        ("cancel-scheduled-message", {"sequence_numbers": [1] * (ITEM_COUNT_MAX + 1)}),
        ("schedule-message", {"messages": [{"message": "text"}]}),
        ("update-disposition", {"disposition_status": "gone", "lock_tokens": []}),
        ("get-session-state", {}),
        ("get-message-sessions", {"skip": -1}),
        ("set-session-state", {"session_id": "s", "session_state": "text"}),
    ],
)
def test_what_an_operation_cannot_take_is_refused(engine: Engine, operation: str, value: dict[str, Any]) -> None:
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    lock = engine.sessions.accept("keyed", "s")
    assert refused(engine, "keyed", operation, lock, **value) == ARGUMENT_ERROR


def test_a_list_of_as_many_items_as_may_be_is_taken(engine: Engine) -> None:
    [later] = engine.broker.send("plain", [Message(body=b"1")], due_ms=engine.now_ms() + 60_000)
    assert asked(engine, "plain", "cancel-scheduled-message", sequence_numbers=[later] * ITEM_COUNT_MAX) == {}


def test_a_peek_gives_one_message_from_the_first_on_unless_it_asks_for_more(engine: Engine) -> None:
    engine.broker.send("keyed", [Message(body=b"", session_id=f"{n % 2}") for n in range(ITEM_COUNT_MAX + 1)])

    def count(**value: Any) -> int:
        return len(asked(engine, "keyed", "peek-message", **value)["messages"])

    assert (count(), count(message_count=2), count(message_count=2_000)) == (1, 2, ITEM_COUNT_MAX)
    assert count(message_count=ITEM_COUNT_MAX, session_id="1") == ITEM_COUNT_MAX // 2
    assert asked(engine, "keyed", "peek-message", status=NO_CONTENT, from_sequence_number=ITEM_COUNT_MAX + 2) == {}
    assert asked(engine, "keyed", "peek-message", status=NO_CONTENT, message_count=0) == {}


def test_sessions_are_listed_page_by_page(engine: Engine) -> None:
    engine.broker.send("keyed", [Message(body=b"", session_id=f"{n:03}") for n in range(101)])

    def page(**value: Any) -> tuple[int, list[str]]:
        found = asked(engine, "keyed", "get-message-sessions", **value)
        return found["skip"], found["sessions-ids"]

    names = [f"{n:03}" for n in range(101)]
    assert page() == page(last_updated_time=253_402_300_800_000) == (0, names[:100])
    assert page(skip=99, top=1) == (99, names[99:100])
    assert page(skip=100) == (100, names[100:])
    assert refused(engine, "keyed", "get-message-sessions", skip=101) == SESSION_NOT_FOUND
    assert refused(engine, "keyed", "get-message-sessions", last_updated_time=253_402_300_799_999) == NOT_IMPLEMENTED


def test_the_state_of_a_session_is_what_was_set_or_null(engine: Engine) -> None:
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    lock = engine.sessions.accept("keyed", "s")
    receivers = {at: SimpleNamespace(lock=at) for at in (None, SessionLock("other", "s", b"", 0), lock)}
    for path, its in (("keyed", lock), ("another", None)):  # of two queues with a session of one id
        assert Peer._find_lock(cast(Any, SimpleNamespace(receivers=receivers)), path, "s") is its
    for state, read in ((b"\0", b"\0"), (None, None), (b"x", b"x"), (b"", None)):
        assert asked(engine, "keyed", "set-session-state", lock, session_id="s", session_state=state) == {}
        assert asked(engine, "keyed", "get-session-state", lock, session_id="s") == {"session-state": read}


def test_an_engine_that_has_stopped_answers_nothing(engine: Engine) -> None:
    engine.broker.send("plain", [Message(body=b"0")])
    (claim,) = engine.broker.claim("plain", 1)
    engine.core.stop(EngineStopped("the disk is full"))
    with pytest.raises(EngineStopped):
        asked(engine, "plain", "update-disposition", disposition_status="completed", lock_tokens=[_token(claim)])


def test_every_lock_of_a_list_is_renewed_or_settled(engine: Engine) -> None:
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(3)])
    tokens = [_token(claim) for claim in engine.broker.claim("plain", 3)]
    assert len(asked(engine, "plain", "renew-lock", lock_tokens=tokens)["expirations"]) == 3
    asked(engine, "plain", "update-disposition", disposition_status="abandoned", lock_tokens=tokens[:2])
    again = engine.broker.claim("plain", 3)
    assert [claim.message.body for claim in again] == [b"0", b"1"]
    asked(engine, "plain", "update-disposition", disposition_status="defered", lock_tokens=[_token(again[0])])
    asked(engine, "plain", "update-disposition", disposition_status="completed", lock_tokens=[_token(again[1])])
    assert [task.message.body for task in engine.broker.peek("plain", 0, 9)] == [b"0", b"2"]
    assert refused(engine, "plain", "renew-lock", lock_tokens=[tokens[2], tokens[0]]) == MESSAGE_LOCK_LOST


@pytest.mark.parametrize(
    ("mode", "left"), [({}, 1), ({"receiver_settle_mode": 1}, 1), ({"receiver_settle_mode": 0}, 0)]
)
def test_a_deferred_message_is_locked_or_deleted_as_the_mode_says(engine: Engine, mode: Any, left: int) -> None:
    lock, sequence = deferred(engine)
    wanted: dict[str, Any] = {"sequence_numbers": [sequence], "session_id": "s", **mode}
    [found] = asked(engine, "keyed", "receive-by-sequence-number", lock, **wanted)["messages"]
    assert len(engine.broker.peek("keyed", 0, 9)) == left
    lost: dict[str, Any] = {"disposition_status": "completed", "lock_tokens": [found["lock-token"]]}
    if left:
        asked(engine, "keyed", "update-disposition", lock, **lost)
    else:
        assert refused(engine, "keyed", "update-disposition", lock, **lost) == MESSAGE_LOCK_LOST


def test_a_scheduled_message_may_be_as_large_as_the_limit_and_each_gets_its_number(engine: Engine) -> None:
    sent = [encode_peeked(task) for task in stored(engine, b"a", b"b" * 100)]
    [decoded] = decode_transfer(sent[1], 0)
    size_bytes = len(decoded.message.body) + len(decoded.message.wire) + len(decoded.message.wire_body)
    messages: dict[str, Any] = {"messages": [{"message": one} for one in sent]}
    assert refused(engine, "plain", "schedule-message", limit=size_bytes - 1, **messages) == ARGUMENT_ERROR
    numbers = asked(engine, "plain", "schedule-message", limit=size_bytes, **messages)["sequence-numbers"]
    assert [task.message.body for task in engine.broker.peek("plain", numbers[0], 9)] == [b"a", b"b" * 100]
    assert len(numbers) == 2
    engine.declare(QueueSettings(path := subscription_path("topic", "one")), TopicSettings("topic", ("one",)))
    for elsewhere in ("nowhere", path):
        assert refused(engine, elsewhere, "schedule-message", **messages) == NOT_FOUND
    assert refused(engine, "keyed", "schedule-message", **messages) == INVALID_FIELD


def stored(engine: Engine, *bodies: bytes) -> list[Any]:
    """Messages as a queue holds them."""
    engine.declare(QueueSettings("other"))
    engine.broker.send("other", [Message(body=body) for body in bodies])
    return engine.broker.peek("other", 0, len(bodies))


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        (MESSAGE_LOCK_LOST, 410),
        (SESSION_LOCK_LOST, 410),
        (MESSAGE_NOT_FOUND, 404),
        (NOT_FOUND, 404),
        (NOT_IMPLEMENTED, 501),
        (SERVER_BUSY, 503),
        (SESSION_NOT_FOUND, 204),
        (ARGUMENT_ERROR, 400),
    ],
)
def test_a_refusal_is_answered_with_its_status_and_condition(engine: Engine, condition: str, status: int) -> None:
    answers = list[bytes]()
    replies: Any = SimpleNamespace(send=lambda link, request, payload: answers.append(payload))
    manage = Management(engine, 1 << 20, lambda path, session_id: None)
    request = types.described(0x77, types.map_([]))  # a value section, without properties
    manage.on_request(cast(Any, None), "plain", request, None, refusal=OperationFault(condition, "no"))
    manage.on_request(cast(Any, None), "plain", request, replies, refusal=OperationFault(condition, "no"))
    [payload] = answers
    found = Request.decode(payload).properties
    assert (found["statusCode"], found["statusDescription"], found["errorCondition"]) == (status, "no", condition)


def _token(claim: Any) -> UUID:
    return UUID(bytes_le=claim.token)
