"""What becomes of claims and sessions of a receiver that ends or is blocked, without a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import (
    DEAD_LETTER,
    MESSAGE_LOCK_LOST,
    NOT_FOUND,
    SESSION_CANNOT_BE_LOCKED,
    SESSION_LOCK_LOST,
    TIMEOUT,
    LinkFault,
)
from outbox.emulator.amqp.limits import Limits, Pool
from outbox.emulator.amqp.performatives import ACCEPTED, MODIFIED, REJECTED, Outcome
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.amqp.types import Described
from outbox.emulator.bus import faulty, links
from outbox.emulator.bus.links import SESSION_FILTER, Receiver, Wanted, accept_session, read_outcome, wanted_session
from outbox.emulator.bus.transport import Endpoint, Room, Transport, Writer
from outbox.emulator.faults import FaultRule, Faults
from outbox.engine.engine import Engine
from outbox.engine.entities import SessionLock, Settlement
from outbox.errors import EngineStopped
from outbox.log_throttle import LogThrottle
from outbox.message import Message


def transport_of(
    engine: Engine, *rules: FaultRule, on_room: Any = lambda: None, on_failed: Any = lambda: None
) -> Transport:
    throttle = LogThrottle(60_000, engine.now_ms)
    endpoint = Endpoint(engine, Limits(), Pool(), None, Faults(rules), throttle)
    return Transport(endpoint, Writer(engine), on_room=on_room, on_failed=on_failed)


@pytest.mark.parametrize("kind", ["reset", "detach"])
async def test_a_connection_that_breaks_under_a_delivery_keeps_no_claim(engine: Engine, kind: Any) -> None:
    transport = transport_of(engine, FaultRule(kind=kind, operation="receive", after=1))
    receiver = Receiver(transport, cast(Any, SimpleNamespace(detach=lambda *_: None)), "plain", divert=faulty.on_claims)
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(3)])
    out = faulty.on_claims(receiver, engine.broker.claim("plain", 3))
    assert [claim.message.body for claim in out] == ([] if kind == "reset" else [b"0"])
    free = [claim.message.body for claim in engine.broker.claim("plain", 3)]
    assert {b"1", b"2"} <= set(free)
    transport.cancel_all()


@pytest.mark.parametrize("release", [True, False])
async def test_only_a_client_that_closes_its_session_releases_it(engine: Engine, release: bool) -> None:
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    lock = engine.sessions.accept("keyed", "s")
    receiver = Receiver(transport_of(engine), cast(Any, None), "keyed", lock, divert=faulty.on_claims)
    receiver.close(release=release)
    assert (engine.sessions.accept("keyed", "s") is not None) is release


async def test_what_was_not_sent_for_want_of_room_is_sent_once_there_is_some(engine: Engine) -> None:
    pumped = list[str]()
    transport = transport_of(engine, on_room=lambda: pumped.append("pumped"))
    wire: Any = SimpleNamespace(
        get_extra_info=lambda _: None, is_closing=lambda: False, write=lambda _: None, get_write_buffer_size=lambda: 0
    )
    transport.open(wire)
    transport.write(b"answers", last=False)
    await asyncio.sleep(0)
    assert pumped == []
    transport.blocked = True
    transport.write(b"answers", last=False)
    await asyncio.sleep(0)
    assert pumped == ["pumped"] and not transport.blocked


async def test_a_link_that_went_while_it_waited_for_a_session_takes_none(engine: Engine) -> None:
    transport = transport_of(engine)
    link: Any = SimpleNamespace(state=LinkState.PENDING, attach=SimpleNamespace(properties={}))
    accept_session(transport, link, "keyed", Wanted(None), lambda *_: pytest.fail("it is gone"))
    await asyncio.sleep(0)
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    link.state = LinkState.DETACHED  # in the moment in which a session is there
    await asyncio.sleep(0.05)
    assert engine.sessions.accept("keyed", None) is not None
    transport.cancel_all()


def link_with(credit: int, sent: Callable[[bytes], object], *, presettled: bool = False) -> Any:
    """A link that takes so many messages."""
    link = SimpleNamespace(credit=credit, state=LinkState.ATTACHED, session=SimpleNamespace(room=1))

    def send(token: bytes, payload: bytes, *, settled: bool) -> None:
        link.credit -= 1
        sent(payload)

    link.send, link.presettled = send, presettled
    return link


async def test_a_message_that_is_held_back_takes_credit(engine: Engine) -> None:
    transport = transport_of(engine, FaultRule(kind="delay", operation="receive", delay_s=60))
    sent = list[bytes]()
    link = link_with(1, sent.append)
    receiver = Receiver(transport, link, "plain", divert=faulty.on_claims)
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(3)])
    assert not receiver.pump() and len(receiver.aside) == 1
    link.credit = 2
    assert receiver.pump() and len(sent) == 1
    assert [claim.message.body for claim in engine.broker.claim("plain", 3)] == [b"2"]
    transport.cancel_all()


async def test_what_is_deleted_when_it_is_sent_comes_again_where_it_was_held_back_past_its_lock(engine: Engine) -> None:
    transport = transport_of(engine, FaultRule(kind="reorder", operation="receive"))
    sent = list[bytes]()

    def lapse(payload: bytes) -> None:
        sent.append(payload)
        if len(sent) == 1:
            engine.broker.lapse_lock("plain", 1)

    receiver = Receiver(transport, link_with(2, lapse, presettled=True), "plain", divert=faulty.on_claims)
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(2)])
    receiver.pump()
    assert [payload[-1:] for payload in sent] == [b"1", b"0"] and not receiver.aside
    assert engine.broker.is_drained(["plain"])
    transport.cancel_all()


async def test_a_receiver_sends_as_much_as_credit_and_size_allow(engine: Engine) -> None:
    transport, sent = transport_of(engine), list[bytes]()
    link = link_with(200, sent.append)
    receiver = Receiver(transport, link, "plain", divert=faulty.on_claims)
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(300)])
    assert receiver.pump() and len(sent) == 200  # in two claims
    link.credit, link.session.room = 9, 0
    assert not receiver.pump()
    link.session.room, link.state = 1, LinkState.DETACHED
    assert not receiver.pump()
    assert len(engine.broker.claim("plain", 300)) == 100
    transport.cancel_all()


@pytest.mark.parametrize("credit", [100, 3])
async def test_large_messages_are_claimed_a_few_at_a_time(
    engine: Engine, credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, claim, counts = transport_of(engine), engine.broker.claim, list[int]()
    receiver = Receiver(transport, link_with(credit, lambda _: None), "plain", divert=faulty.on_claims)

    def counted(path: str, count: int, **options: Any) -> Any:
        counts.append(count)
        return claim(path, count, **options)

    monkeypatch.setattr(engine.broker, "claim", counted)
    engine.broker.send("plain", [Message(body=bytes(255 << 10)) for _ in range(37)])
    receiver.pump()
    assert counts == ([32, 4, 4, 4] if credit == 100 else [3])
    transport.cancel_all()


async def test_a_receiver_ends_with_its_queue_or_its_session(engine: Engine) -> None:
    transport, ended = transport_of(engine), list[str]()
    link = link_with(5, lambda _: None)
    link.detach = lambda condition, text: ended.append(condition)
    assert Receiver(transport, link, "nowhere", divert=faulty.on_claims).pump()
    assert ended.pop() == NOT_FOUND
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    lock = engine.sessions.accept("keyed", "s")
    assert lock is not None
    receiver = Receiver(transport, link, "keyed", lock, divert=faulty.on_claims)
    assert receiver.holds_session()
    engine.sessions.release(lock.token)
    assert not receiver.pump() and not receiver.holds_session() and set(ended) == {SESSION_LOCK_LOST}
    receiver.close(release=True)  # what ran out is not released again
    transport.cancel_all()


def rejected(*fields: bytes) -> list[object]:
    return [types.decode(types.described(0x1D, types.list_(fields)))[0]]


@pytest.mark.parametrize(
    ("outcome", "meaning"),
    [
        (Outcome(ACCEPTED, []), (Settlement.COMPLETE, "", "")),
        (Outcome(MODIFIED, [True, True]), (Settlement.DEFER, "", "")),
        (Outcome(MODIFIED, [True, None]), (Settlement.ABANDON, "", "")),
        (Outcome(MODIFIED, [True]), (Settlement.ABANDON, "", "")),
        (Outcome(0x26, []), (Settlement.RELEASE, "", "")),
        (Outcome(REJECTED, []), (Settlement.DEAD_LETTER, "", "")),
        (Outcome(REJECTED, rejected(types.symbol("a:b"), types.string("t"))), (Settlement.DEAD_LETTER, "a:b", "t")),
        (Outcome(REJECTED, rejected(types.symbol(DEAD_LETTER), types.string("t"))), (Settlement.DEAD_LETTER, "", "t")),
    ],
)
def test_an_outcome_means_one_settlement(outcome: Outcome, meaning: object) -> None:
    assert read_outcome(outcome)[:3] == meaning and not read_outcome(outcome).properties


@pytest.mark.parametrize("how", [Settlement.ABANDON, Settlement.DEFER])
def test_properties_that_are_given_back_are_read(how: Settlement) -> None:
    given = {"why": "busy"}
    assert read_outcome(Outcome(MODIFIED, [True, how is Settlement.DEFER, given])) == (how, "", "", given)


def test_a_dead_letter_has_the_reason_of_its_information() -> None:
    info = types.map_(
        [
            types.symbol("DeadLetterReason"),
            types.string("r"),
            types.symbol("DeadLetterErrorDescription"),
            types.string("d"),
            types.symbol("more"),
            types.string("m"),
        ]
    )
    fields = rejected(types.symbol("a:b"), types.string("t"), info)
    assert read_outcome(Outcome(REJECTED, fields)) == (Settlement.DEAD_LETTER, "r", "d", {"more": "m"})


@pytest.mark.parametrize("is_keyed", [False, True])
@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_settlement_is_confirmed_or_denied_unless_the_client_settled_it(
    engine: Engine, is_settled: bool, is_keyed: bool
) -> None:
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    engine.broker.send("plain", [Message(body=b"1")])
    lock = engine.sessions.accept("keyed", "s") if is_keyed else None
    path = "keyed" if is_keyed else "plain"
    receiver = Receiver(transport_of(engine), cast(Any, None), path, lock, divert=faulty.on_claims)
    [claim] = engine.broker.claim(path, 1, session="s" if is_keyed else None)
    answers = list[tuple[object, ...]]()
    session = SimpleNamespace(
        confirm=lambda *given: answers.append(given), deny=lambda *given: answers.append(given[:3])
    )
    event: Any = SimpleNamespace(outcome=Outcome(ACCEPTED, []), settled=is_settled, session=session)
    receiver.settle(event, 7, claim.token)
    receiver.settle(event, 8, claim.token)
    lost = SESSION_LOCK_LOST if is_keyed else MESSAGE_LOCK_LOST
    assert answers == ([] if is_settled else [(7, ACCEPTED), (8, 8, lost)])


@pytest.mark.parametrize(
    ("asked_ms", "wait_s"),
    [(None, 65), (0, 65), (-1, 65), (True, 65), ("9", 65), (1, 0.001), (3_600_000, 3_600), (3_600_001, 3_600)],
)
def test_a_client_says_how_long_it_waits_for_a_session(asked_ms: Any, wait_s: float) -> None:
    properties = {} if asked_ms is None else {"com.microsoft:timeout": asked_ms}
    assert links._wait_s(cast(Any, SimpleNamespace(attach=SimpleNamespace(properties=properties)))) == wait_s


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (None, None),
        ({}, None),
        ({"other": "s"}, None),
        ({SESSION_FILTER: "s"}, Wanted("s")),
        ({SESSION_FILTER: None}, Wanted(None)),
        ({SESSION_FILTER: Described("com.microsoft:session-filter", "s")}, Wanted("s")),
        ({SESSION_FILTER: Described("com.microsoft:session-filter", None)}, Wanted(None)),
    ],
)
def test_a_source_names_a_session_or_asks_for_the_next(filters: Any, wanted: Wanted | None) -> None:
    assert wanted_session([None] * 7 + [filters]) == wanted
    assert wanted_session(None) is wanted_session([]) is None
    with pytest.raises(LinkFault):
        wanted_session([None] * 7 + [{SESSION_FILTER: 1}])


class Asking:
    """A link that asks for a session, and what it was answered."""

    def __init__(self, asked_ms: int) -> None:
        self.state, self.answers = LinkState.PENDING, list[tuple[object, ...]]()
        self.is_answered = asyncio.Event()
        self.attach = SimpleNamespace(
            properties={"com.microsoft:timeout": asked_ms},
            source_bytes=types.described(0x28, types.list_([types.string("keyed")] + [types.NULL] * 7)),
        )

    def refuse(self, condition: str, text: str) -> None:
        self.answers.append((condition,))
        self.is_answered.set()

    def accept(self, *, source: bytes, properties: bytes) -> None:
        found = types.decode(source)[0]
        assert isinstance(found, Described) and isinstance(found.value, list)
        self.answers.append((found.value[7], types.decode(properties)[0]))
        self.is_answered.set()


async def test_a_session_is_granted_with_its_end_in_ticks_or_refused(engine: Engine) -> None:
    transport, made = transport_of(engine), list[SessionLock]()

    def receive(link: Any, path: str, lock: SessionLock) -> Any:
        made.append(lock)
        return SimpleNamespace(link=link, pump=lambda: None)

    def asking(session_id: str | None, asked_ms: int, path: str = "keyed") -> Asking:
        link = Asking(asked_ms)
        accept_session(transport, cast(Any, link), path, Wanted(session_id), receive)
        return link

    late = asking(None, 20)
    waiting = asking(None, 60_000)
    [named] = asking("s", 1).answers
    ticks = (made[0].locked_until_ms + 62_135_596_800_000) * 10_000
    assert named == ({SESSION_FILTER: "s"}, {"com.microsoft:locked-until-utc": ticks})
    assert asking("s", 1).answers == [(SESSION_CANNOT_BE_LOCKED,)]
    await asyncio.wait_for(late.is_answered.wait(), 5)
    assert late.answers == [(TIMEOUT,)] and not waiting.answers
    engine.broker.send("keyed", [Message(body=b"1", session_id="t")])
    await asyncio.wait_for(waiting.is_answered.wait(), 5)
    assert [lock.session_id for lock in made] == ["s", "t"]
    transport.cancel_all()


@pytest.mark.parametrize("has_room", [False, True])
async def test_a_receiver_whose_connection_is_full_claims_nothing_until_there_is_room(
    engine: Engine, has_room: bool
) -> None:
    sent, spawned = list[bytes](), list[Any]()
    transport: Any = SimpleNamespace(
        engine=engine, faults=Faults(()), has_room=has_room, blocked=False, spawn=spawned.append
    )
    engine.broker.send("plain", [Message(body=b"1")])
    receiver = Receiver(transport, link_with(5, sent.append), "plain", divert=faulty.on_claims)
    assert receiver.pump() is has_room and transport.blocked is not has_room
    assert len(sent) == len(spawned) == has_room  # who got all there is waits for more
    assert len(engine.broker.claim("plain", 1)) == (not has_room)
    for coroutine in spawned:
        coroutine.close()


async def test_of_messages_that_are_deleted_when_sent_those_whose_locks_hold_are_sent(engine: Engine) -> None:
    sent, transport = list[bytes](), transport_of(engine)
    receiver = Receiver(transport, link_with(5, sent.append, presettled=True), "plain", divert=faulty.on_claims)
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(3)])
    claims = engine.broker.claim("plain", 3)
    engine.broker.lapse_lock("plain", claims[1].sequence)
    receiver._send(claims)
    assert [payload[-1:] for payload in sent] == [b"0", b"2"]
    assert [task.message.body for task in engine.broker.peek("plain", 0, 9)] == [b"1"]
    transport.cancel_all()


async def test_a_room_is_deserted_when_the_last_has_left() -> None:
    room = Room[str](2)
    assert [room.admit(one) for one in "abc"] == [True, True, False]
    room.leave("a")
    assert not room.deserted.is_set() and room.admit("c")
    for one in "bc":
        room.leave(one)
    assert room.deserted.is_set() and not room


class Wire:
    """A connection that is written to and read from by no one; what is asked of it is noted."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_extra_info(self, name: str) -> None:
        return

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.asked.append("abort")


async def test_what_fails_beside_a_connection_ends_it_and_what_is_spawned_ends_with_it(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    wire, failed = Wire(), list[str]()
    transport = transport_of(engine, on_failed=lambda: failed.append("told"))
    transport.open(cast(Any, wire))

    async def broken(error: Exception) -> None:
        raise error

    await asyncio.wait({transport.spawn(broken(EngineStopped("closed")))})
    with transport.guarded():
        broken(EngineStopped("closed")).send(None)
    await asyncio.sleep(0)
    assert wire.asked == ["abort", "abort"] and not caplog.records
    wire.asked.clear()
    with transport.guarded():
        failed.remove("a bug")
    assert failed == ["told"] and wire.asked == []
    waiting = transport.spawn(asyncio.sleep(60))
    await asyncio.wait({transport.spawn(broken(ValueError("a bug")))})
    await asyncio.sleep(0)
    assert wire.asked == ["abort"]
    transport.cancel_all()
    await asyncio.wait({waiting}, timeout=5)
    assert waiting.cancelled()
