"""What is asked of a `$management` node: its limits, and whose lock it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import MESSAGE_LOCK_LOST, MESSAGE_NOT_FOUND, SESSION_LOCK_LOST, OperationFault
from outbox.emulator.bus.management import OK, REPLY_SIZE_MAX_BYTES, Management
from outbox.emulator.bus.requests import Request
from outbox.engine.backend.operations import dead_letters
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, SessionLock, Settlement
from outbox.message import Message


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine.in_memory()
    found.declare(QueueSettings("plain"), QueueSettings("keyed", ordering="per_key"))
    yield found
    found.close()


def asked(engine: Engine, path: str, operation: str, lock: SessionLock | None = None, **value: Any) -> Any:
    """What a connection that holds `lock`, if any, is answered."""
    manage = Management(engine, 1 << 20, lambda path, session_id: lock)
    named: dict[object, object] = {name.replace("_", "-"): one for name, one in value.items()}
    answer = manage._run(path, Request(types.NULL, "", {"operation": f"com.microsoft:{operation}"}, named))
    assert answer.status == OK
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
    asked(engine, "plain", "update-disposition", disposition_status="suspended", lock_tokens=[_token(claim)], **why)
    assert [(one.reason, one.description) for one in dead_letters(engine.broker, "plain")] == [("bad", "very")]


def test_only_what_is_scheduled_is_cancelled(engine: Engine) -> None:
    engine.broker.send("plain", [Message(body=b"1")])
    [later] = engine.broker.send("plain", [Message(body=b"2")], due_ms=engine.now_ms() + 60_000)
    for numbers in ([later + 1], [1], [later, later + 1]):
        with pytest.raises(OperationFault) as caught:
            asked(engine, "plain", "cancel-scheduled-message", sequence_numbers=numbers)
        assert caught.value.condition == MESSAGE_NOT_FOUND
    assert [task.message.body for task in engine.broker.peek("plain", 0, 9)][:1] == [b"1"]


def _token(claim: Any) -> UUID:
    return UUID(bytes_le=claim.token)
