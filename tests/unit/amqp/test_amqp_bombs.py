"""Small frames that ask for much: what a peer without credentials can make a server do."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.connection import Connection, State
from outbox.emulator.amqp.errors import DECODE_ERROR, OperationFault
from outbox.emulator.amqp.events import Limits
from outbox.emulator.amqp.frames import HEADER_AMQP, frame
from outbox.emulator.amqp.messages import decode_message
from outbox.emulator.amqp.types import NULL, Described, list_, string
from tests.unit.amqp import amqp_client as client


def array_of(count: int, body: bytes) -> bytes:
    return b"\xf0" + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body


EMPTY_LISTS = array_of(65_536, b"\x45")


@pytest.mark.parametrize(
    "bomb",
    [list_([EMPTY_LISTS] * 190), array_of(190, b"\xf0" + EMPTY_LISTS[1:] * 190)],
    ids=["arrays in a list", "arrays in an array"],
)
def test_an_open_that_is_a_bomb_closes_the_connection_at_once(bomb: bytes) -> None:
    made = Connection(container_id="server", limits=Limits())
    opening = HEADER_AMQP + frame(performatives.performative(0x10, string("x"), *([NULL] * 8), bomb))
    tracemalloc.start()
    started_s = time.process_time()
    try:
        made.receive(opening)
        took_s, (_, peak_bytes) = time.process_time() - started_s, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert took_s < 0.5
    [(_, fields, _)] = [sent for sent in client.frames_of(made.take_output()) if sent[0] == performatives.CLOSE]
    error = fields[0]
    assert isinstance(error, Described) and isinstance(error.value, list) and error.value[0] == DECODE_ERROR
    assert made.state is not State.OPEN


def test_a_message_of_very_many_sections_is_refused_in_linear_time() -> None:
    started_s = time.process_time()
    with pytest.raises(OperationFault, match="above"):
        decode_message(b"\x00\x53\x73\x45" * 250_000)
    assert time.process_time() - started_s < 1.0
