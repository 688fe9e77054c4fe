"""What a message carries beside its body is bounded where it comes in, so that all that follows from it fits a bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Context, Retries
from outbox.errors import TooLarge
from outbox.message import (
    ID_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTY_CREATED,
    PROPERTY_ERROR,
    PROPERTY_REPLACES,
    Message,
    Scalar,
    excess,
    message_from_properties,
    properties_bytes,
    with_error,
)
from outbox.testing import Harness
from tests.unit.messages import deliver_raw

WIRE_BYTES_MAX = 64 << 10
"""What Service Bus takes of properties, its own included."""
LETTER_BYTES_MAX = 2 * 4 * 1_000
"""What the reason and description of a dead letter can take."""


@dataclass
class Order:
    id: str


@dataclass
class Count:
    seen: int = 0


def relaying(*, fails: bool = False) -> App:
    app = App("relay", retry=Retries(limit=2, delays_s=(1.0,)))
    app.queue("out")

    @app.handler("q", key="id")
    def relay(order: Order, count: Count, ctx: Context) -> None:
        count.seen += 1
        if fails and ctx.delivery_count == 1:
            raise ValueError("not yet")
        ctx.send("out", order)

    return app


async def refused(properties: dict[str, Any]) -> str:
    """What a message with these properties is dead-lettered for; nothing may have come of it."""
    async with Harness(relaying()) as world:
        given = {"outbox-id": "1"} | properties
        await deliver_raw(world, "q", b'{"id":"x"}', properties=given)
        (dead_letter,) = world.dead_letters("q")
        assert (dead_letter.id, dead_letter.body, dead_letter.reason) == (given["outbox-id"], b'{"id":"x"}', "oversize")
        assert await world.state(Count, "x") is None and world.sent("out") == []
        return str(dead_letter.description)


@pytest.mark.parametrize("name", ["outbox-id", "correlation-id", "causation-id", "traceparent"])
async def test_what_a_handler_could_not_carry_on_is_dead_lettered_with_the_cure(name: str) -> None:
    description = await refused({name: "x" * (ID_BYTES_MAX + 1)})
    assert f"takes {ID_BYTES_MAX + 1} bytes, over {ID_BYTES_MAX}" in description and "give a shorter one" in description


async def test_properties_that_a_copy_could_not_carry_are_dead_lettered_with_the_cure() -> None:
    description = await refused({f"own-{n}": "x" * (PROPERTIES_BYTES_MAX // 2) for n in range(2)})
    assert f"over {PROPERTIES_BYTES_MAX}" in description and "into the body" in description
    assert "over" in await refused({"reply-to": "x" * PROPERTIES_BYTES_MAX})


async def test_what_is_just_within_the_limits_is_handled_and_carried_on() -> None:
    async with Harness(relaying(fails=True)) as world:
        longest: dict[str, Any] = {
            name: name[0] * ID_BYTES_MAX for name in ("outbox-id", "correlation-id", "traceparent")
        }
        await world.send_raw("q", b'{"id":"x"}', properties=longest | {"own": "x" * 30_000})
        await world.advance(seconds=5)
        (sent,) = world.sent_records("out")
        assert await world.state(Count, "x") == Count(1)
        carried = [sent.properties[name] for name in ("correlation-id", "causation-id", "traceparent")]
        assert carried == ["c" * ID_BYTES_MAX, "o" * ID_BYTES_MAX, "t" * ID_BYTES_MAX]
        assert excess(message_from_properties(b"", sent.properties)) == ""


async def test_a_send_is_refused_at_the_call_and_nothing_is_sent() -> None:
    async with Harness(relaying()) as world:
        long = "ä" * (ID_BYTES_MAX // 2 + 1)
        given: list[dict[str, Any]] = [{"id": long}, {"correlation_id": long}, {"traceparent": long}]
        for options in given:
            with pytest.raises(TooLarge, match=r"was not sent: its .* over 4096"):
                await world.send("q", Order("x"), **options)
        with pytest.raises(TooLarge, match="its properties take"):
            await world.send("q", Order("x"), reply_to="x" * PROPERTIES_BYTES_MAX)
        await world.wait_idle()
        assert await world.state(Count, "x") is None


@pytest.mark.engine_only
def test_the_limits_leave_room_for_what_outputs_and_copies_and_dead_letters_add() -> None:
    full = "x" * ID_BYTES_MAX
    output = Message(
        body=b"",
        outbox_id="f" * 64 + "-10000",
        session_id="s" * 128,
        hops=64,
        created_ms=1 << 52,
        correlation_id=full,
        causation_id=full,
        traceparent=full,
    )
    assert properties_bytes(output) < WIRE_BYTES_MAX // 2
    assert PROPERTIES_BYTES_MAX + LETTER_BYTES_MAX + 1_024 < WIRE_BYTES_MAX


@pytest.mark.parametrize(
    ("properties", "error", "found"),
    [
        (None, "", None),
        (None, "late", {PROPERTY_ERROR: "late"}),
        ({PROPERTY_ERROR: "late"}, "", None),
        ({PROPERTY_ERROR: "late"}, "gone", {PROPERTY_ERROR: "gone"}),
        ({PROPERTY_ERROR: "late", "own": 1}, "", {"own": 1}),
        ({"own": 1}, "late", {"own": 1, PROPERTY_ERROR: "late"}),
    ],
)
def test_an_error_takes_the_place_of_the_one_before(properties: Any, error: str, found: Any) -> None:
    message = with_error(Message(body=b"", properties=properties), error)
    assert message.properties == found and message.error == error


def test_the_brokers_id_is_its_own_before_the_identity() -> None:
    assert [Message(body=b"", outbox_id="1", message_id=id).broker_id for id in ("", "b")] == ["1", "b"]


def test_only_a_resubmission_replaces_a_payload() -> None:
    properties: dict[str, Scalar] = {PROPERTY_REPLACES: "00ff"}
    found = [Message(body=b"", attempt=attempt, properties=properties).replaces for attempt in (0, 1)]
    assert found == [None, b"\x00\xff"] and Message(body=b"", attempt=1).replaces is None
    assert Message(body=b"", attempt=1, properties={PROPERTY_REPLACES: "no digest"}).replaces == b""


def test_a_number_that_takes_more_than_64_bits_is_none() -> None:
    for number, created_ms in (((1 << 63) - 1, (1 << 63) - 1), (1 << 63, 0), (-(1 << 63), 0), ("7", 7), ("x", 0)):
        assert message_from_properties(b"", {PROPERTY_CREATED: number}).created_ms == created_ms


def test_a_correlation_id_is_weighed_twice_because_it_is_sent_twice() -> None:
    short, long = (properties_bytes(Message(body=b"", correlation_id="c" * length)) for length in (1, 101))
    assert long - short == 200
