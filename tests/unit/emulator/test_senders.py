"""What clients send and ask: how a transfer becomes messages, and on which link a reply leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import INVALID_FIELD, MESSAGE_SIZE_EXCEEDED, NOT_FOUND, SERVER_BUSY, OperationFault
from outbox.emulator.amqp.messages import Incoming
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.bus.links import Sender, put
from outbox.emulator.bus.requests import PENDING_COUNT_MAX, Replies, Request
from outbox.engine.engine import Engine
from outbox.errors import Throttled, TooLarge
from outbox.message import Message


def incoming(body: bytes, due_ms: int = 0, session: str = "") -> Incoming:
    return Incoming(Message(body=body, session_id=session), due_ms)


# Senders


def test_a_batch_of_several_times_is_sent_in_order(engine: Engine) -> None:
    later = engine.now_ms() + 60_000
    sequences = put(engine, "plain", [incoming(b"1"), incoming(b"2", later), incoming(b"3")], needs_session=False)
    assert sequences == [1, 2, 3]
    assert [task.message.body for task in engine.broker.peek("plain", 0, 9)] == [b"1", b"2", b"3"]
    assert [claim.message.body for claim in engine.broker.claim("plain", 9)] == [b"1", b"3"]
    assert len({task.message.message_id for task in engine.broker.peek("plain", 0, 9)} - {""}) == 3


def test_a_batch_with_one_message_without_a_session_is_refused_whole(engine: Engine) -> None:
    with pytest.raises(OperationFault) as caught:
        put(engine, "keyed", [incoming(b"1", session="s"), incoming(b"2")], needs_session=True)
    assert caught.value.condition == INVALID_FIELD and engine.broker.is_drained(["keyed"])
    assert put(engine, "keyed", [incoming(b"1", session="s")], needs_session=True) == [1]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("path", "error", "condition"),
    [
        ("nowhere", None, NOT_FOUND),
        ("plain", TooLarge("large"), MESSAGE_SIZE_EXCEEDED),
        ("plain", Throttled("full"), SERVER_BUSY),
        ("plain", None, ""),
    ],
)
def test_a_transfer_is_answered_unless_it_was_settled(
    engine: Engine, path: str, error: Exception | None, condition: str, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        assert error is not None
        raise error

    if error is not None:
        monkeypatch.setattr(engine.broker, "send", fail)
    answers = list[tuple[object, ...]]()
    session = SimpleNamespace(
        accept=lambda id: answers.append((id,)), reject=lambda id, condition, text: answers.append((id, condition))
    )
    body = types.described(0x75, types.binary(b"body"))
    event: Any = SimpleNamespace(
        link=SimpleNamespace(session=session), payload=body, message_format=0, settled=settled, delivery_id=7
    )
    Sender(engine, path, needs_session=False).on_delivery(event)
    assert answers == ([] if settled else [(7, condition)] if condition else [(7,)])


# Requests


def request_with(*fields: bytes) -> bytes:
    return types.described(0x73, types.list_(fields)) + types.described(0x77, types.map_([]))


def test_a_request_says_where_its_reply_goes_in_its_fifth_field() -> None:
    id, none = types.string("id"), types.NULL
    assert Request.decode(request_with(id, none, none, none, types.string("me"))).reply_to == "me"
    for payload in (request_with(id, none, none, none), request_with(id, none, none, none, none), request_with()):
        assert Request.decode(payload).reply_to == ""
    assert Request.decode(request_with(id)).message_id == id and Request.decode(request_with()).message_id == none
    for broken in (request_with(id)[:-1], types.described(0x73, types.string("no list")), b"\0"):
        with pytest.raises(OperationFault):
            Request.decode(broken)


class Quota:
    """Memory for replies that wait."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes

    def has_room(self, size_bytes: int) -> bool:
        return size_bytes <= self.room_bytes

    def take(self, size_bytes: int) -> None:
        self.room_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.room_bytes += size_bytes


class Link:
    """A link that replies leave on."""

    def __init__(self, session: Any, credit: int = 0, target: str = "", state: LinkState = LinkState.ATTACHED) -> None:
        self.session, self.credit, self.state, self.app = session, credit, state, "node"
        self.attach = SimpleNamespace(target=[target])
        self.sent = list[tuple[bytes, bytes]]()

    def send(self, tag: bytes, payload: bytes, *, settled: bool) -> None:
        assert settled and self.credit > 0
        self.credit -= 1
        self.sent.append((tag, payload))


def reply(replies: Replies, asking: Any, payload: bytes, to: str = "") -> None:
    replies.send(asking, Request(types.NULL, to, {}, None), payload)


def test_a_reply_leaves_on_the_link_that_is_named_and_of_the_same_session() -> None:
    session = SimpleNamespace(quota=Quota(100))
    asking, replies = cast(Any, Link(session)), Replies()
    with pytest.raises(OperationFault, match="no link to reply on"):
        reply(replies, asking, b"0")
    other = Link(SimpleNamespace(quota=Quota(100)), 9, "me")
    gone = Link(session, 9, "me", LinkState.DETACHED)
    first, named = Link(session, 9, "first"), Link(session, 9, "me")
    for link in (other, gone, first, named):
        replies.add(cast(Any, "node"), cast(Any, link))
    strange = Link(session, 9, "me")
    replies.add(cast(Any, "another node"), cast(Any, strange))
    reply(replies, asking, b"1", "me")
    reply(replies, asking, b"2", "nobody")
    reply(replies, asking, b"3", "me")
    assert [payload for _, payload in named.sent] == [b"1", b"3"] and [payload for _, payload in first.sent] == [b"2"]
    assert len({tag for tag, _ in (*named.sent, *first.sent)}) == 3
    assert not other.sent and not gone.sent and not strange.sent
    replies.remove(cast(Any, named))
    reply(replies, asking, b"4", "me")
    assert [payload for _, payload in first.sent] == [b"2", b"4"]


def test_replies_wait_for_credit_within_limits_and_keep_their_order() -> None:
    session = SimpleNamespace(quota=Quota(10))
    link, replies = Link(session), Replies()
    replies.add(cast(Any, "node"), cast(Any, link))
    for payload in (b"1234", b"567890"):
        reply(replies, link, payload)
    with pytest.raises(OperationFault, match="too much memory"):
        reply(replies, link, b"x")
    link.credit = 1
    replies.on_credit(cast(Any, link))
    assert [payload for _, payload in link.sent] == [b"1234"] and session.quota.room_bytes == 4
    replies.clear()
    assert session.quota.room_bytes == 10
    session.quota.room_bytes = 1 << 20
    replies.add(cast(Any, "node"), cast(Any, link))
    for _ in range(PENDING_COUNT_MAX):
        reply(replies, link, b"x")
    with pytest.raises(OperationFault, match="wait for credit already"):
        reply(replies, link, b"x")
