"""Which row a received message becomes, whatever its sender was; without Spark and without a queue."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpMessageBodyType

from spark_jobs.draining.received import ROW, as_row

OURS = {
    b"outbox-id": b"t1",
    b"outbox-type": b"Transfer",
    b"outbox-created": 1_790_000_000_000,
    b"correlation-id": b"c1",
    b"causation-id": b"m0",
    b"traceparent": b"00-1-2-01",
}


def row(body: Any = (b'{"n"', b":1}"), **given: Any) -> dict[str, Any]:
    """The row of a message of which only this is known."""
    names = ("application_properties", "message_id", "correlation_id", "session_id", "sequence_number")
    known: dict[str, Any] = dict.fromkeys((*names, "delivery_count", "enqueued_time_utc"))
    message: Any = SimpleNamespace(**known | {"body_type": AmqpMessageBodyType.DATA, "body": body} | given)
    return as_row(message)


def test_each_column_has_its_own_field() -> None:
    when = datetime(2026, 11, 23, 16, 0, 0, 123_000, tzinfo=UTC)
    found = row(
        application_properties=OURS | {b"tenant": b"x", "n": 1}, message_id="broker", correlation_id="theirs",
        session_id="s", sequence_number=7, delivery_count=2, enqueued_time_utc=when,
    )  # fmt: skip
    fingerprint = found.pop("fingerprint")
    assert found == {
        "message_id": "t1", "type": "Transfer", "correlation_id": "c1", "causation_id": "m0",
        "traceparent": "00-1-2-01", "created_ms": 1_790_000_000_000, "enqueued_ms": round(when.timestamp() * 1000),
        "sequence_number": 7, "delivery_count": 2, "session_id": "s", "body": '{"n":1}', "raw": None,
        "properties": '{"n": 1, "tenant": "x"}',
    }  # fmt: skip
    assert [*found, "fingerprint"] == ROW.names
    assert fingerprint == "5379a2349b9d52cbe5c244c8c0d9bbf0"  # with another one each redelivery would be a conflict


@pytest.mark.parametrize(
    ("given", "identity", "correlation"),
    [
        ({"application_properties": OURS, "message_id": "b", "correlation_id": "r"}, "t1", "c1"),
        ({"message_id": "b", "correlation_id": "r", "sequence_number": 7}, "b", "r"),
        ({"message_id": "b"}, "b", "b"),
        ({"message_id": b"\xffb"}, "\ufffdb", "\ufffdb"),  # not that of another message
        ({"sequence_number": 7}, "sequence-number:7", "sequence-number:7"),  # the same on its next delivery
    ],
)
def test_the_identity_is_the_senders_then_the_brokers_then_the_place(
    given: dict[str, Any], identity: str, correlation: str
) -> None:
    found = row(**given)
    assert (found["message_id"], found["correlation_id"]) == (identity, correlation)


@pytest.mark.parametrize("created", [True, -1, 1 << 62, b"1790000000000", 1.5, None])
def test_a_creation_time_that_is_none_is_left_out(created: object) -> None:
    found = row(application_properties={b"outbox-created": created})
    assert found["created_ms"] is None and found["properties"] is None
    assert [row(application_properties={b"outbox-created": ms})["created_ms"] for ms in (0, 5)] == [0, 5]


@pytest.mark.parametrize(
    ("body", "kind", "text", "raw"),
    [
        ([b"\xc3", b"\xa4"], AmqpMessageBodyType.DATA, "ä", None),
        ([b"\xff\x00"], AmqpMessageBodyType.DATA, None, b"\xff\x00"),
        ("text", AmqpMessageBodyType.VALUE, "text", None),
        (b"bytes", AmqpMessageBodyType.VALUE, "bytes", None),
        ({"b": b"x", "a": 1}, AmqpMessageBodyType.VALUE, '{"a": 1, "b": "x"}', None),
        (iter([1, b"x"]), AmqpMessageBodyType.SEQUENCE, '[1, "x"]', None),
    ],
)
def test_a_body_of_any_kind_is_kept(body: Any, kind: AmqpMessageBodyType, text: str | None, raw: bytes | None) -> None:
    found = row(body, body_type=kind)
    assert (found["body"], found["raw"]) == (text, raw)


def test_a_fingerprint_tells_type_and_body_apart_and_nothing_else() -> None:
    def print_of(type: str, body: bytes, **given: Any) -> Any:
        return row([body], application_properties={b"outbox-type": type.encode()}, **given)["fingerprint"]

    assert print_of("T", b"1") == print_of("T", b"1", sequence_number=9, message_id="other")
    assert (
        len({print_of("T", b"1"), print_of("U", b"1"), print_of("T", b"2"), print_of("T1", b""), print_of("", b"T1")})
        == 5
    )


def test_json_of_properties_is_the_same_in_whatever_order_they_came() -> None:
    one, two = ({b"a": b"x", b"b": 2}, {b"b": 2, b"a": b"x"})
    assert row(application_properties=one)["properties"] == row(application_properties=two)["properties"]
    assert json.loads(row(application_properties=one)["properties"]) == {"a": "x", "b": 2}
