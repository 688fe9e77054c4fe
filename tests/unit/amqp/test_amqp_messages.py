"""Message sections: what a client sent comes out unchanged, what the runtime made is readable."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import DEFERRED, encode_delivery, encode_peeked, with_changes, with_message_id
from outbox.emulator.amqp.errors import OperationFault
from outbox.emulator.amqp.messages import BATCH_COUNT_MAX, BATCH_FORMAT, decode_message, decode_transfer
from outbox.emulator.amqp.sections import sections
from outbox.emulator.amqp.types import NULL, binary, decode, described, list_, map_, string, symbol, uint
from outbox.engine.state.tasks import Claim, Task
from outbox.message import Message
from outbox.resubmission import resubmission


def claimed(message: Message, **changes: object) -> Claim:
    fields = {"token": bytes(16), "sequence": 7, "delivery_count": 2, "enqueued_ms": 1_000, "locked_until_ms": 61_000}
    return Claim(message=message, **(fields | changes))  # type: ignore[arg-type]  # a table of keyword arguments


def parts(data: bytes) -> dict[int, object]:
    return {code: decode(data, start)[0] for code, start, _ in sections(data)}


def properties(**fields: bytes) -> bytes:
    names = ("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", *"abcd", "group_id")
    return described(0x73, list_([fields.get(name, NULL) for name in names]))


BODY = described(0x75, binary(b"body"))
MADE = Message(
    body=b"{}", outbox_id="o1", type="Transfer", created_ms=5, correlation_id="c", causation_id="p", traceparent="t",
    hops=1, attempt=2, session_id="s", reply_to="answers", claim="blob", properties={"tenant": "x", "n": 3},
)  # fmt: skip


def test_a_message_of_the_runtime_reads_back_with_every_field() -> None:
    read = decode_message(encode_delivery(claimed(MADE))).message
    assert read.message_id == "o1"
    for name in Message.__struct_fields__:
        if name not in ("message_id", "wire"):
            assert getattr(read, name) == getattr(MADE, name), name


@pytest.mark.parametrize("size", [0, 255, 256, 65_536])
def test_a_body_of_any_size_reads_back(size: int) -> None:
    assert decode_message(encode_delivery(claimed(Message(body=b"x" * size)))).message.body == b"x" * size


def test_what_a_client_sent_comes_out_byte_for_byte() -> None:
    sent = properties(message_id=types.ulong(99), subject=string("s")) + described(
        0x74, map_([string("when"), types.timestamp(5), string("id"), b"\x98" + bytes(16)])
    )
    out = encode_delivery(claimed(decode_message(sent + BODY).message))
    assert out.endswith(sent + BODY)


def test_a_time_to_live_of_nothing_is_refused() -> None:
    """The SDK of Python makes it of less than a second; such a message would live for ever."""
    with pytest.raises(OperationFault, match="positive"):
        decode_message(described(0x70, list_([NULL, NULL, uint(0)])) + BODY)


@pytest.mark.parametrize("named", [b"", properties(subject=string("s"))])
def test_a_message_without_an_id_gets_one_and_keeps_all_else(named: bytes) -> None:
    own = described(0x72, map_([symbol("x-own"), string("a")]))
    sent = own + named + described(0x74, map_([string("when"), types.timestamp(5)]))
    named_so = with_message_id(decode_message(sent + BODY).message, "i")
    assert named_so.message_id == "i" and named_so.wire.startswith(own)
    expected = parts(sent) | {0x73: ["i", *(parts(named)[0x73] if named else [])[1:]]}  # type: ignore[index]  # a list
    assert parts(named_so.wire) == expected


def test_properties_are_set_beside_those_that_are_there() -> None:
    sent = properties(message_id=string("i")) + described(
        0x74, map_([string("when"), types.timestamp(5), string("n"), types.uint(1)])
    )
    changed = with_changes(decode_message(sent + BODY).message, {"n": "two", "b": b"x", "u": UUID(int=1), "t": True})
    assert changed.properties == {"when": 5, "n": "two", "u": str(UUID(int=1)), "t": True}
    found = parts(changed.wire)[0x74]
    assert found == {"when": 5, "n": "two", "b": b"x", "u": UUID(int=1), "t": True}
    assert types.timestamp(5) in changed.wire  # what is not set stays byte for byte
    made = with_changes(MADE, {"tenant": "y"})
    assert made.properties == {"tenant": "y", "n": 3}
    assert decode_message(encode_delivery(claimed(made))).message.outbox_id == "o1"


@pytest.mark.parametrize("wanted", [{"": 1}, {1: 1}, {"n": [1]}, {"n": 1 << 70}, {"n": "x" * 70_000}])
def test_what_is_no_property_is_refused(wanted: dict[object, object]) -> None:
    with pytest.raises(OperationFault):
        with_changes(MADE, wanted)


def test_the_brokers_annotations_are_those_of_the_claim() -> None:
    token = bytes(range(16))
    out = parts(encode_delivery(claimed(MADE, token=token)))
    seen = {"x-opt-enqueued-time": 1_000, "x-opt-sequence-number": 7}
    assert out[0x72] == seen | {"x-opt-locked-until": 61_000}
    assert out[0x71] == {"x-opt-lock-token": UUID(bytes_le=token)}
    assert out[0x70] == [None, None, None, None, 2]
    deferred = parts(encode_delivery(claimed(MADE), state=DEFERRED))
    assert deferred[0x72] == seen | {"x-opt-locked-until": 61_000, "x-opt-message-state": DEFERRED}
    settled = parts(encode_delivery(claimed(MADE), settled=True))
    assert (settled[0x71], settled[0x72]) == ({}, seen)


def test_the_senders_annotations_survive_and_cannot_pose_as_the_brokers() -> None:
    own = map_([symbol("x-opt-partition-key"), string("p"), symbol("x-opt-sequence-number"), types.long_(-1)])
    message = decode_message(described(0x72, own) + BODY).message
    annotations = parts(encode_delivery(claimed(message)))[0x72]
    assert isinstance(annotations, dict)
    assert annotations["x-opt-partition-key"] == "p"
    assert annotations["x-opt-sequence-number"] == 7


def test_time_to_live_and_due_time_are_read() -> None:
    head = described(0x70, list_([NULL, NULL, uint(90_000)]))
    due = described(0x72, map_([symbol("x-opt-scheduled-enqueue-time"), types.timestamp(123)]))
    message, due_ms = decode_message(head + due + BODY)
    assert (message.time_to_live_ms, due_ms) == (90_000, 123)
    assert parts(encode_delivery(claimed(message)))[0x70] == [None, None, 90_000, None, 2]


@pytest.mark.parametrize(
    ("sections_sent", "body"),
    [
        (described(0x77, string("é")), "é".encode()),
        (described(0x77, binary(b"raw")), b"raw"),
        (described(0x77, map_([string("a"), uint(1)])), b""),
        (described(0x76, list_([uint(1)])), b""),
        (described(0x75, binary(b"a")) + described(0x75, binary(b"b")), b"ab"),
    ],
)
def test_a_body_that_is_not_one_data_section_is_kept_as_sent(sections_sent: bytes, body: bytes) -> None:
    message = decode_message(sections_sent).message
    assert (message.body, message.wire_body) == (body, sections_sent)
    assert encode_delivery(claimed(message)).endswith(sections_sent)


def test_a_property_of_ours_with_a_wrong_type_stays_the_senders() -> None:
    application = described(0x74, map_([string("outbox-hops"), string("many"), string("outbox-id"), string("o")]))
    message = decode_message(application + BODY).message
    assert (message.outbox_id, message.hops, message.properties) == ("o", 0, {"outbox-hops": "many"})


@pytest.mark.parametrize("created", [types.long_(5), types.timestamp(5), types.string("5"), uint(5)])
def test_the_creation_time_is_read_from_every_type_that_clients_can_send(created: bytes) -> None:
    message = decode_message(described(0x74, map_([string("outbox-created"), created])) + BODY).message
    assert (message.created_ms, message.properties) == (5, None)


def test_a_resubmitted_message_reports_its_new_attempt() -> None:
    sent = map_(
        [part for name in ("created", "hops", "failures") for part in (string(f"outbox-{name}"), types.long_(5))]
    )
    message = decode_message(described(0x74, sent) + BODY).message
    assert (message.created_ms, message.hops, message.failures) == (5, 5, 5)
    out = parts(encode_delivery(claimed(resubmission(message, attempt=2, enqueued_ms=9))))
    assert out[0x74] == {"outbox-attempt": 2, "outbox-created": 5, "outbox-hops": 0, "outbox-failures": 0}


def test_a_resubmitted_message_without_a_time_has_that_of_its_arrival() -> None:
    message = decode_message(described(0x74, map_([string("k"), uint(1)])) + BODY).message
    out = parts(encode_delivery(claimed(resubmission(message, attempt=2, enqueued_ms=9))))
    found = out[0x74]
    assert isinstance(found, dict) and (found["outbox-attempt"], found["outbox-created"], found["k"]) == (2, 9, 1)


def test_a_dead_letter_says_why_once() -> None:
    application = described(0x74, map_([string("DeadLetterReason"), string("old"), string("k"), uint(1)]))
    message = decode_message(application + BODY).message
    out = parts(encode_delivery(claimed(message, reason="new", description="text")))
    assert out[0x74] == {"k": 1, "DeadLetterReason": "new", "DeadLetterErrorDescription": "text"}


def test_a_peeked_message_shows_its_state_and_due_time_without_a_lock() -> None:
    task = Task(sequence=3, path="q", message=MADE, enqueued_ms=1, version=1, status=2, due_ms=77)
    annotations = parts(encode_peeked(task))[0x72]
    assert annotations == {
        "x-opt-enqueued-time": 1, "x-opt-sequence-number": 3, "x-opt-message-state": 2,
        "x-opt-scheduled-enqueue-time": 77,
    }  # fmt: skip


def test_a_batch_is_its_messages_in_order() -> None:
    batch = b"".join(described(0x75, binary(properties(message_id=string(str(n))) + BODY)) for n in range(3))
    read = decode_transfer(properties(message_id=string("0")) + batch, BATCH_FORMAT)
    assert [item.message.message_id for item in read] == ["0", "1", "2"]
    assert len(decode_transfer(described(0x75, binary(batch)), 0)) == 1


@pytest.mark.parametrize(
    "payload",
    [
        properties(message_id=string("x" * 129)) + BODY,
        properties(group_id=string("x" * 129)) + BODY,
        described(0x74, map_([string("k"), list_([])])) + BODY,
        described(0x74, map_([string("k"), string("x" * 65_536)])) + BODY,
        described(0x74, list_([])) + BODY,
        b"\x00\x53\x75\xb0\x00\x00\xff\xff",
        b"garbage",
    ],
)
def test_a_message_that_breaks_a_limit_is_refused(payload: bytes) -> None:
    with pytest.raises(OperationFault):
        decode_transfer(payload, 0)


def test_a_batch_has_as_many_messages_as_the_service_takes() -> None:
    one = described(0x75, binary(BODY))
    assert len(decode_transfer(one * BATCH_COUNT_MAX, BATCH_FORMAT)) == BATCH_COUNT_MAX
    with pytest.raises(OperationFault, match="more than"):
        decode_transfer(one * (BATCH_COUNT_MAX + 1), BATCH_FORMAT)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(OperationFault, match="empty"):
        decode_transfer(b"", BATCH_FORMAT)


@given(st.binary(max_size=120), st.sampled_from([0, BATCH_FORMAT]))
@settings(max_examples=300, deadline=None)
def test_arbitrary_payloads_are_read_or_refused(data: bytes, message_format: int) -> None:
    for payload in (data, properties() + data, b"\x00\x53\x74" + data):
        try:
            decode_transfer(payload, message_format)
        except OperationFault:
            continue
