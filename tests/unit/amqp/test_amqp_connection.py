"""The connection's state machine, frame by frame, without I/O."""

from __future__ import annotations

import random

import pytest

from outbox.emulator.amqp import events, performatives
from outbox.emulator.amqp.connection import Connection
from outbox.emulator.amqp.events import Attached, Closed, Credit, Detached, Settled, Window
from outbox.emulator.amqp.frames import HEADER_AMQP, FrameReader, frame
from outbox.emulator.amqp.limits import Limits
from outbox.emulator.amqp.link import Delivery
from outbox.emulator.amqp.states import LinkState, State
from outbox.emulator.amqp.types import NULL, Described, binary, symbol, uint
from tests.unit.amqp import amqp_client as client

SMALL = Limits(message_size_max_bytes=1_000, link_count_max=4, session_count_max=2)


def connection(limits: Limits = SMALL, **options: int) -> Connection:
    made = Connection(container_id="server", limits=limits)
    made.receive(client.opening(**options))
    made.take_output()
    return made


def attached(made: Connection, *, receiver: bool, handle: int = 0) -> events.Attached:
    [event] = made.receive(client.attach("q", handle, receiver=receiver))
    assert isinstance(event, Attached)
    event.link.accept()
    made.take_output()
    return event


def sent(made: Connection) -> list[tuple[int, list[object], bytes]]:
    return client.frames_of(made.take_output())


def test_a_client_that_pipelines_its_opening_is_answered_in_order() -> None:
    made = Connection(container_id="server", limits=SMALL)
    made.receive(client.opening())
    output = made.take_output()
    assert output.startswith(b"AMQP\x03\x01\x00\x00")
    codes = [code for code, _, _ in client.frames_of(output)]
    assert codes == [0x40, 0x44, performatives.OPEN, performatives.BEGIN]
    assert made.state is State.OPEN


def test_an_opening_in_single_bytes_is_the_same() -> None:
    whole, split = (Connection(container_id="server", limits=SMALL) for _ in range(2))
    whole.receive(client.opening())
    for at in range(len(client.opening())):
        split.receive(client.opening()[at : at + 1])
    assert split.take_output() == whole.take_output()


def test_nothing_that_a_client_indexes_is_left_out() -> None:
    made = Connection(container_id="server", limits=SMALL)
    made.receive(client.opening())
    [_, _, (_, opened, _), (_, begun, _)] = client.frames_of(made.take_output())
    assert (len(opened), len(begun)) == (10, 8)
    assert begun[4] is not None
    [event] = made.receive(client.attach("q", 3, receiver=True))
    assert isinstance(event, Attached)
    event.link.accept()
    [(_, answer, _)] = sent(made)
    assert len(answer) == 14
    assert isinstance(answer[5], Described) and isinstance(answer[6], Described)
    assert (answer[9], answer[13]) == (0, {})


def test_a_refused_link_has_neither_source_nor_target_and_says_why() -> None:
    made = connection()
    [event] = made.receive(client.attach("q", 0, receiver=True))
    assert isinstance(event, Attached)
    event.link.refuse("amqp:not-found", "no q")
    [(_, answer, _), (code, detached, _)] = sent(made)
    assert (answer[5], answer[6], code, detached[1]) == (None, None, performatives.DETACH, True)
    assert detached[2] == Described(0x1D, ["amqp:not-found", "no q", None])


def test_a_sender_gets_credit_at_once_and_again_before_it_runs_out() -> None:
    made = connection()
    attached(made, receiver=False)
    for number in range(1_001):
        made.receive(client.transfer(0, number, client.BODY))
    [(code, fields, _)] = sent(made)
    assert (code, fields[5], fields[6]) == (performatives.FLOW, 1_001, 2_000)


def test_answers_to_neighbouring_transfers_are_one_disposition() -> None:
    made = connection()
    link = attached(made, receiver=False).link
    found = made.receive(b"".join(client.transfer(0, number, client.BODY) for number in range(10)))
    for event in found:
        assert isinstance(event, Delivery)
        link.session.accept(event.delivery_id)
    [(code, fields, _)] = sent(made)
    assert (code, fields[:4]) == (performatives.DISPOSITION, [True, 0, 9, True])


def test_a_message_in_several_frames_is_put_together() -> None:
    made = connection()
    attached(made, receiver=False)
    parts = [client.transfer(0, 7, b"a" * 10, more=True), client.transfer(0, 7, b"b" * 10, more=True)]
    assert made.receive(b"".join(parts)) == []
    whole = client.transfer(0, 7, b"c")
    assert made.receive(whole[:-1]) == []
    [event] = made.receive(whole[-1:])
    assert isinstance(event, Delivery)
    assert (event.delivery_id, event.payload) == (7, b"a" * 10 + b"b" * 10 + b"c")


def test_what_is_held_of_a_message_is_given_back_to_all_connections_when_it_is_whole() -> None:
    made = connection()
    attached(made, receiver=False)
    before = made.quota.held_bytes, made.quota.pool.held_bytes
    assert made.receive(client.transfer(0, 7, b"a" * 10, more=True)) == [] and made.quota.held_bytes > before[0]
    assert len(made.receive(client.transfer(0, 7, b"c"))) == 1
    assert (made.quota.held_bytes, made.quota.pool.held_bytes) == before


def test_a_frame_behind_another_is_read_when_all_of_it_is_there() -> None:
    frames, reader = [frame(bytes(100)), frame(bytes(50))], FrameReader(frame_size_max_bytes=1_000)
    reader.feed(frames[0] + frames[1][:30])
    found = [reader.next_frame(), reader.next_frame()]
    reader.feed(frames[1][30:])
    found.append(reader.next_frame())
    assert [None if one is None else one.end - one.start for one in found] == [100, None, 50]


def test_a_message_over_the_limit_is_rejected_and_the_link_lives_on() -> None:
    made = connection()
    attached(made, receiver=False)
    assert made.receive(client.transfer(0, 1, b"x" * 600, more=True) + client.transfer(0, 1, b"x" * 600)) == []
    [(_, fields, _)] = sent(made)
    assert isinstance(fields[4], Described)
    assert fields[4].value[0].value[0] == "amqp:link:message-size-exceeded"  # type: ignore[index]  # an AMQP error
    assert len(made.receive(client.transfer(0, 2, client.BODY))) == 1


@pytest.mark.parametrize("parts", [(1_000,), (999, 1), (1_001,), (1_000, 1)])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_may_be_as_large_as_the_limit(parts: tuple[int, ...], settled: bool) -> None:
    made = connection()
    attached(made, receiver=False)
    last, is_taken = len(parts) - 1, sum(parts) <= 1_000
    frames = [client.transfer(0, 7, b"x" * size, more=at < last, settled=settled) for at, size in enumerate(parts)]
    found = made.receive(b"".join(frames))
    assert [len(event.payload) for event in found if isinstance(event, Delivery)] == ([1_000] if is_taken else [])
    assert len(sent(made)) == (not is_taken and not settled)  # what is settled is not answered


def test_answers_to_transfers_that_are_no_neighbours_are_apart_and_in_order() -> None:
    made = connection()
    session = attached(made, receiver=False).link.session
    for number in (0, 1, 3, 4, 9):
        session.accept(number)
    session.reject(5, "a:b", "no")
    session.accept(10)
    session.accept(10)
    made.receive(client.flow(0, 0, echo=True))
    found = [fields[1:3] for code, fields, _ in sent(made) if code == performatives.DISPOSITION]
    assert found == [[0, 1], [3, 4], [9, 9], [5, 5], [10, 10], [10, 10]]


@pytest.mark.parametrize("echo", [False, True])
def test_a_flow_is_echoed_where_it_is_asked_for(echo: bool) -> None:
    made = connection()
    attached(made, receiver=False)
    made.receive(client.transfer(0, 0, client.BODY) + client.flow(0, 0, echo=echo))
    flows = [fields[4:7] for code, fields, _ in sent(made) if code == performatives.FLOW]
    assert flows == ([[0, 1, 1_999]] if echo else [])


def test_a_message_from_who_receives_closes_the_connection() -> None:
    made = connection()
    attached(made, receiver=True)
    made.receive(client.transfer(0, 0, client.BODY))
    assert made.state is State.OVER


def test_a_message_without_end_closes_the_connection() -> None:
    made = connection()
    attached(made, receiver=False)
    for _ in range(20):
        made.receive(client.transfer(0, 1, b"x" * 1_000, more=True))
    assert made.state is State.OVER


def test_a_delivery_larger_than_the_peers_frames_is_cut() -> None:
    made = connection(Limits(), frame_size_max_bytes=512)
    link = attached(made, receiver=True).link
    made.receive(client.flow(0, 5))
    link.send(bytes(16), b"x" * 1_200, settled=False)
    frames = sent(made)
    assert b"".join(payload for _, _, payload in frames) == b"x" * 1_200
    assert [fields[5] for _, fields, _ in frames] == [True, True, False]
    assert {fields[1] for _, fields, _ in frames} == {0}


def test_credit_counts_from_the_peers_delivery_count_and_a_drain_uses_it_up() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    [event] = made.receive(client.flow(0, 3))
    assert event == Credit(link, False, False)
    link.send(bytes(16), b"", settled=True)
    made.receive(client.flow(0, 3))  # written before the delivery was seen: two are left
    assert link.credit == 2
    [event] = made.receive(client.flow(0, 2, drain=True))
    made.take_output()
    link.finish_flow(drain=True, echo=False)
    [(_, fields, _)] = sent(made)
    assert (fields[5], fields[6], fields[8], link.credit) == (2, 0, True, 0)


def test_a_client_that_takes_back_more_credit_than_is_left_has_none() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    made.receive(client.flow(0, 3))
    for _ in range(3):
        link.send(bytes(16), b"", settled=True)
    made.receive(client.flow(0, 1))  # written before any delivery was seen
    assert link.credit == 0


def test_a_closed_window_stops_and_an_opened_one_resumes() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    made.receive(client.flow(0, 5, window=1))
    rooms = [link.session.room]
    link.send(bytes(16), b"", settled=True)
    rooms.append(link.session.room)
    assert rooms == [True, False]
    assert made.receive(client.flow(0, 5, window=9))[0] == Window(link.session)


def test_settlements_name_what_they_end_and_what_is_not_known() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    made.receive(client.flow(0, 5))
    for number in range(3):
        link.send(bytes([number]) * 16, b"", settled=False)
    [event] = made.receive(client.disposition(1, 3, performatives.outcome_state(performatives.ACCEPTED)))
    assert isinstance(event, Settled)
    assert [(found.delivery_id, found.tag[0]) for found in event.deliveries] == [(1, 1), (2, 2)]
    assert (event.unknown, event.settled, event.outcome.code) == ([(3, 3)], False, performatives.ACCEPTED)
    assert list(link.session.unsettled) == [0]
    for number in (3, 4):
        link.send(bytes([number]) * 16, b"", settled=False)
    [event] = made.receive(client.disposition(1, 8, performatives.outcome_state(performatives.ACCEPTED)))
    assert isinstance(event, Settled) and event.unknown == [(1, 2), (5, 8)]


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_link_under_a_handle_that_was_used_before_inherits_no_deliveries(is_ours: bool) -> None:
    made = connection()
    link = attached(made, receiver=True).link
    made.receive(client.flow(0, 5))
    link.send(bytes(16), b"", settled=False)
    if is_ours:
        link.detach()
    made.receive(client.detach(0))
    attached(made, receiver=True)
    [event] = made.receive(client.disposition(0, 0, performatives.outcome_state(performatives.ACCEPTED)))
    assert isinstance(event, Settled)
    assert (event.deliveries, event.unknown) == ([], [(0, 0)])


@pytest.mark.parametrize("code", range(performatives.ACCEPTED, performatives.MODIFIED + 1))
def test_a_settlement_is_confirmed_with_its_own_outcome(code: int) -> None:
    made = connection()
    session = attached(made, receiver=True).link.session
    session.confirm(5, code)
    [(_, fields, _)] = sent(made)
    assert fields[:4] == [False, 5, 5, True]
    assert isinstance(fields[4], Described)
    assert fields[4].descriptor == code
    assert fields[4].value in ([], [None], [None, None, None])


def test_detach_after_end_is_passed_over() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    assert made.receive(client.END) == [Detached(link)]
    assert made.receive(client.detach(0)) == []
    assert made.state is State.OPEN


def test_a_close_is_answered_and_ends_the_links_that_were_there() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    [event] = made.receive(client.CLOSE)
    assert event == Closed([link], True, "", "closed by the peer")
    assert [code for code, _, _ in sent(made)] == [performatives.CLOSE]


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\x7f\xff\xff\xff\x02\x00\x00\x00", "framing-error"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "framing-error"),
        (frame(b"\x00\x53\x99\x45"), "decode-error"),
        (frame(b"\x00\x53\x14\xc0\x7f\x05"), "decode-error"),
        (frame(b"nonsense"), "decode-error"),
        (client.transfer(9, 0, b""), "unattached-handle"),
        (client.flow(9, 1), "unattached-handle"),
        (client.BEGIN, "not-allowed"),
        (client.opening()[len(client.SASL) + 8 :], "not-allowed"),
        (client.attach("q", 1, receiver=True) * 2, "handle-in-use"),
        (client.attach("q", 1, receiver=False) + client.transfer(1, 0, b""), "not-allowed"),
        (client.disposition(5, 4, performatives.outcome_state(performatives.ACCEPTED)), "invalid-field"),
        (client.disposition(0, 0, performatives.performative(0x34)), "decode-error"),
        (frame(performatives.performative(0x12, NULL, symbol("handle"))), "decode-error"),
        (frame(performatives.performative(0x14, uint(0), binary(b"x"))), "unattached-handle"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_closed_with_the_reason(data: bytes, condition: str) -> None:
    made = connection()
    found = made.receive(data)[-1]
    assert isinstance(found, Closed)
    assert condition in found.condition
    code, fields, _ = sent(made)[-1]
    assert code == performatives.CLOSE
    assert isinstance(fields[0], Described)
    assert made.receive(client.BEGIN) == []


def on(channel: int, data: bytes) -> bytes:
    return data[:6] + channel.to_bytes(2, "big") + data[8:]


@pytest.mark.parametrize(
    "asked",
    [
        on(1, client.BEGIN) + on(1, client.attach("q", 4, receiver=True)),
        on(1, client.BEGIN) + b"".join(on(1, client.attach("q", n, receiver=True)) for n in range(4)),
        on(1, client.BEGIN) + on(2, client.BEGIN) + on(2, client.attach("q", 0, receiver=True)),
    ],
    ids=["handle", "links", "sessions"],
)
def test_who_asks_for_too_many_links_or_sessions_loses_that_session_alone(asked: bytes) -> None:
    made = connection()
    link, before_bytes = attached(made, receiver=True).link, made.quota.held_bytes
    made.receive(asked)
    ends = [fields for code, fields, _ in sent(made) if code == performatives.END]
    [[fault]] = ends
    assert isinstance(fault, Described) and isinstance(fault.value, list)
    assert fault.value[0] == "amqp:resource-limit-exceeded"
    assert made.state is State.OPEN and link.state is LinkState.ATTACHED
    for channel in (1, 2):  # what is sent before the end was heard is passed over, and the peer's own end
        assert made.receive(on(channel, client.attach("q", 9, receiver=True)) + on(channel, client.END)) == []
    assert (made.quota.held_bytes, made.quota.link_count) == (before_bytes, 1)
    [event] = made.receive(on(1, client.BEGIN) + on(1, client.attach("q", 0, receiver=True)))
    assert isinstance(event, Attached)


def test_links_that_are_refused_hold_nothing_once_their_session_ends() -> None:
    made = connection()
    before_bytes = made.quota.held_bytes
    for _ in range(20):
        made.receive(on(1, client.BEGIN))
        [event] = made.receive(on(1, client.attach("nope", 0, receiver=True)))
        assert isinstance(event, Attached)
        event.link.refuse("amqp:not-found", "no")
        made.receive(on(1, client.END))
    assert (made.quota.held_bytes, made.quota.link_count) == (before_bytes, 0)


def test_another_protocol_is_answered_with_ours_and_closed() -> None:
    made = Connection(container_id="server", limits=SMALL)
    made.receive(b"GET / HTTP/1.1\r\n\r\n")
    assert (made.take_output(), made.state) == (HEADER_AMQP, State.OVER)


def test_a_message_in_several_transfers_is_what_its_first_says() -> None:
    made = connection()
    link = attached(made, receiver=False).link
    batched = 0x80013700
    assert made.receive(client.transfer(0, 7, b"one", more=True, message_format=batched)) == []
    [event] = made.receive(client.transfer(0, 0, b"two"))
    assert isinstance(event, Delivery)
    assert (event.link, event.delivery_id, event.message_format, event.payload) == (link, 7, batched, b"onetwo")


@pytest.mark.parametrize(
    ("said", "settled"),
    [
        ((True, None, None), True),
        ((None, True, None), True),
        ((False, False, True), True),
        ((None, None, None), False),
        ((False, None, False), False),
    ],
)
def test_a_message_in_several_transfers_is_settled_if_one_of_them_was(
    said: tuple[bool | None, ...], settled: bool
) -> None:
    made = connection()
    attached(made, receiver=False)
    parts = [client.transfer(0, 7, b"x", more=at < 2, settled=one) for at, one in enumerate(said)]
    [event] = made.receive(b"".join(parts))
    assert isinstance(event, Delivery) and event.settled is settled
    [event] = made.receive(client.transfer(0, 8, b"next", settled=None))
    assert isinstance(event, Delivery) and not event.settled


def test_nothing_of_an_aborted_message_is_in_the_next() -> None:
    made = connection()
    attached(made, receiver=False)
    assert made.receive(client.transfer(0, 7, b"one", more=True)) == []
    assert made.receive(client.transfer(0, 7, b"two", aborted=True)) == []
    [event] = made.receive(client.transfer(0, 8, b"three"))
    assert isinstance(event, Delivery)
    assert (event.delivery_id, event.payload) == (8, b"three")


def test_a_disposition_over_all_ids_costs_no_more_than_what_is_tracked() -> None:
    made = connection()
    link = attached(made, receiver=True).link
    link.send(bytes(16), b"", settled=False)
    [event] = made.receive(client.disposition(0, 2**32 - 1, performatives.outcome_state(performatives.RELEASED)))
    assert isinstance(event, Settled)
    assert (len(event.deliveries), event.unknown) == (1, [])


@pytest.mark.parametrize("count", [1, 4, 300])
def test_a_disposition_settles_its_first_and_its_last_delivery_and_none_beside(count: int) -> None:
    made = connection()
    link = attached(made, receiver=True).link
    for number in range(count + 2):
        link.send(number.to_bytes(16, "big"), b"", settled=False)
    accepted = performatives.outcome_state(performatives.ACCEPTED)
    [event] = made.receive(client.disposition(1, count, accepted))
    assert isinstance(event, Settled)
    assert [one.delivery_id for one in event.deliveries] == list(range(1, count + 1))
    assert sorted(link.session.unsettled) == [0, count + 1]


def script() -> bytes:
    """A session that uses every performative."""
    return b"".join(
        [
            client.opening(),
            client.attach("q", 0, receiver=False),
            client.attach("q", 1, receiver=True),
            client.flow(1, 10),
            client.transfer(0, 0, client.BODY),
            client.transfer(0, 1, client.BODY, more=True),
            client.transfer(0, 1, client.BODY),
            client.disposition(0, 1, performatives.outcome_state(performatives.ACCEPTED)),
            client.detach(1),
            client.END,
            client.CLOSE,
        ]
    )


def mutated(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + chance.randint(1, 8)]
            case 2:
                changed[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                changed[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff"])
    return bytes(changed)


def test_mutated_streams_never_raise() -> None:
    chance = random.Random(20_261_121)
    original = script()
    for _ in range(3_000):
        made = Connection(container_id="server", limits=SMALL)
        data = mutated(chance, original)
        for at in range(0, len(data), 97):
            for event in made.receive(data[at : at + 97]):
                if isinstance(event, Attached):
                    event.link.accept()
                elif isinstance(event, Credit):
                    event.link.finish_flow(drain=event.drain, echo=event.echo)
        made.take_output()
        made.lose()
        assert made.state is State.OVER
