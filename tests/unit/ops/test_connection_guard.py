"""A connection of the host's endpoints: idle until a request's head is there, and cut off only if its client stalls."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from outbox.ops.net import connection_guard
from outbox.ops.net.connection_guard import ConnectionGuard, GuardedConnection, named_host

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire(asyncio.Transport):
    """The transport of a connection, which only notes whether it was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut_off = False

    def abort(self) -> None:
        self.is_cut_off = True


def opened(idle_max_s: float) -> tuple[GuardedConnection, Wire]:
    """A connection behind which any server stands."""

    def server() -> asyncio.Protocol:
        return cast(Any, type("Server", (asyncio.Protocol,), {}))()  # type: ignore[no-any-return]  # it does nothing

    guard = ConnectionGuard(cast(Any, server), connection_count_max=1, idle_max_s=idle_max_s)
    connection, wire = guard(), Wire()
    connection.connection_made(wire)
    return connection, wire


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (["localhost"], "localhost"),
        (["LocalHost:8080"], "localhost"),
        (["[::1]"], "[::1]"),
        (["[::1]:8080"], "[::1]"),
        (["localhost:"], ""),
        (["localhost:x"], ""),
        (["localhost", "localhost"], ""),
        ([], ""),
    ],
)
def test_a_host_is_named_by_one_header_whose_port_is_a_number(hosts: list[str], name: str) -> None:
    assert named_host(hosts) == name


@pytest.mark.parametrize("at", range(1, len(HEAD)))
async def test_a_head_in_two_pieces_is_a_request_and_its_answer_may_take_long(at: int) -> None:
    connection, wire = opened(idle_max_s=0.02)
    connection.data_received(HEAD[:at])
    connection.data_received(HEAD[at:])
    await asyncio.sleep(0.03)
    assert not wire.is_cut_off


async def test_a_head_without_an_end_is_cut_off() -> None:
    connection, wire = opened(idle_max_s=0.02)
    for byte in HEAD[:-1]:
        connection.data_received(bytes([byte]))
    await asyncio.sleep(0.03)
    assert wire.is_cut_off


async def test_a_client_that_reads_on_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_guard, "TAKE_WITHIN_S", 0.02)
    connection, wire = opened(idle_max_s=5)
    connection.data_received(HEAD)
    connection.pause_writing()
    connection.resume_writing()
    await asyncio.sleep(0.03)
    assert not wire.is_cut_off
    connection.stop()  # nobody waits for its client
    assert not wire.is_cut_off
    connection.pause_writing()
    await asyncio.sleep(0.03)
    assert wire.is_cut_off


async def test_a_client_that_does_not_read_does_not_hold_up_a_stop() -> None:
    connection, wire = opened(idle_max_s=5)
    connection.data_received(HEAD)
    connection.pause_writing()
    connection._guard.stop()
    assert wire.is_cut_off
