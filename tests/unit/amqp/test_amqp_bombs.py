"""Small frames that ask for much: what a peer without credentials can make a server do."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from uuid import UUID

import pytest

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.connection import Connection
from outbox.emulator.amqp.errors import DECODE_ERROR, OperationFault
from outbox.emulator.amqp.events import Settled
from outbox.emulator.amqp.frames import HEADER_AMQP, frame
from outbox.emulator.amqp.limits import Limits
from outbox.emulator.amqp.messages import decode_message
from outbox.emulator.amqp.states import State
from outbox.emulator.amqp.types import NULL, Described, described, list_, map_, string, uuid_
from tests.unit.amqp import amqp_client as client


def array_of(count: int, body: bytes) -> bytes:
    return b"\xf0" + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body


EMPTY_LISTS = array_of(65_536, b"\x45")
ONE_HASH = [UUID(int=7 + number * sys.hash_info.modulus) for number in range(8_000)]


@pytest.mark.parametrize(
    "bomb",
    [
        list_([EMPTY_LISTS] * 190),
        array_of(190, b"\xf0" + EMPTY_LISTS[1:] * 190),
        map_([part for key in ONE_HASH for part in (uuid_(key), NULL)]),
        map_([part for key in ONE_HASH for part in (described(0x75, uuid_(key)), NULL)]),
    ],
    ids=["arrays in a list", "arrays in an array", "keys of one hash", "described keys of one hash"],
)
def test_an_open_that_is_a_bomb_closes_the_connection_at_once(bomb: bytes) -> None:
    timed, made = (Connection(container_id="server", limits=Limits()) for _ in range(2))
    for connection in (timed, made):
        connection.trust()  # where no key is checked, frames may be large from the beginning
    opening = HEADER_AMQP + frame(performatives.performative(0x10, string("x"), *([NULL] * 8), bomb))
    gc.collect()  # what other tests have left is not to be looked through meanwhile
    started_s = time.thread_time()
    timed.receive(opening)
    took_s = time.thread_time() - started_s  # by itself: to trace memory takes several times as long
    tracemalloc.start()
    try:
        made.receive(opening)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert took_s < 0.5
    [(_, fields, _)] = [sent for sent in client.frames_of(made.take_output()) if sent[0] == performatives.CLOSE]
    error = fields[0]
    assert isinstance(error, Described) and isinstance(error.value, list) and error.value[0] == DECODE_ERROR
    assert made.state is not State.OPEN


def test_settlements_of_nothing_are_answered_with_no_more_than_was_asked() -> None:
    made = Connection(container_id="server", limits=Limits())
    made.receive(client.opening())
    made.take_output()
    asked = client.disposition(0, 255, performatives.outcome_state(performatives.ACCEPTED)) * 1_000
    events = made.receive(asked)
    assert [event.unknown for event in events if isinstance(event, Settled)] == [[(0, 255)]] * 1_000


def test_a_message_of_very_many_sections_is_refused_in_linear_time() -> None:
    started_s = time.process_time()
    with pytest.raises(OperationFault, match="above"):
        decode_message(b"\x00\x53\x73\x45" * 250_000)
    assert time.process_time() - started_s < 1.0
