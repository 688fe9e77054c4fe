"""What clients of the Service Bus endpoint may have that finish nothing: what is held for them, and for how long."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from outbox.emulator import connections
from outbox.emulator.amqp import types
from outbox.emulator.amqp.frames import EMPTY_FRAME
from outbox.emulator.amqp.limits import Limits
from outbox.emulator.amqp.link import Link
from outbox.emulator.bus import peer
from outbox.emulator.bus.peer import Peer
from outbox.emulator.bus.transport import loop_time
from outbox.emulator.connections import TAKE_WITHIN_S
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.message import Message
from tests.unit.amqp import amqp_client as client
from tests.wire.conftest import until
from tests.wire.servicebus.test_server import Wire, signed

ATTACH, TRANSFER, DISPOSITION, DETACH, END, CLOSE = 0x12, 0x14, 0x15, 0x16, 0x17, 0x18
LIMIT = "amqp:resource-limit-exceeded"
PART_BYTES = 60_000


@asynccontextmanager
async def serving(key: str | None = None, limits: Limits | None = None) -> AsyncIterator[ServiceBusServer]:
    async with Engine.in_memory() as engine, ServiceBusServer(engine, key=key, limits=limits) as server:
        engine.declare(QueueSettings("q"))
        yield server


def on(channel: int, data: bytes) -> bytes:
    """One frame on another channel."""
    return data[:6] + channel.to_bytes(2, "big") + data[8:]


def only(server: ServiceBusServer) -> Peer:
    [peer] = server._peers
    return peer


def closed_for(wire: Wire) -> str:
    """The condition with which the server closed."""
    [(_, fields, _)] = [found for found in client.frames_of(wire.data) if found[0] == CLOSE]
    return str(fields[0].value[0])  # type: ignore[attr-defined]  # a described list


async def sent_without_end(wire: Wire, frames: Iterator[bytes]) -> None:
    """Send until the server closes, which it has to."""
    for count, data in enumerate(frames):
        if wire.writer.transport.is_closing() or wire.reader.at_eof():
            return
        wire.writer.write(data)
        if count % 16 == 0:
            try:
                await wire.writer.drain()
            except ConnectionError:
                return
        assert count < 100_000, "it goes on and on"


@contextmanager
def without_collections() -> Iterator[None]:
    """Whatever goes now goes because nothing names it any more."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def link_count() -> int:
    return sum(type(one) is Link for one in gc.get_objects())


# What is held


async def test_unfinished_messages_of_a_connection_have_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """A message on each of 64 links, none of them finished: 16 MB in all, and the connection is closed before."""
    async with serving(limits=Limits(held_max_bytes=4 << 20)) as server:
        links = [client.attach("q", handle, receiver=False) for handle in range(64)]
        wire = await Wire.attached(server, *links, count=64)
        quota, most_bytes = only(server).connection.quota, 0
        for turn in range(5):
            for handle in range(64):
                wire.writer.write(client.transfer(handle, 64 * turn + handle, bytes(PART_BYTES), more=True))
                await asyncio.sleep(0)
                most_bytes = max(most_bytes, quota.held_bytes)
            if not server._peers:
                break
        assert [record.condition for record in caplog.records if hasattr(record, "condition")] == [LIMIT]
        assert PART_BYTES < most_bytes <= server.limits.held_max_bytes
        await until(lambda: not server._peers)
        assert (quota.held_bytes, server.pool.held_bytes) == (0, 0)


async def test_unfinished_messages_of_all_connections_have_a_limit() -> None:
    async with serving() as server:
        server.pool.max_bytes = 2_000_000
        wires = []
        for _ in range(4):
            wires.append(await Wire.open(server, *(client.attach("q", handle, receiver=False) for handle in range(16))))
            await wires[-1].wait_frames(ATTACH, 16)
        for wire in wires:
            wire.writer.write(b"".join(client.transfer(n, n, bytes(PART_BYTES), more=True) for n in range(16)))
            await asyncio.sleep(0.1)
            assert server.pool.held_bytes <= server.pool.max_bytes
        await until(lambda: len(server._peers) < 4)
        assert server.pool.held_bytes == sum(peer.connection.quota.held_bytes for peer in server._peers) > 0
        for wire in wires:
            wire.writer.transport.abort()
        await until(lambda: not server._peers)
        assert server.pool.held_bytes == 0


async def test_a_large_message_in_parts_arrives_and_leaves_nothing_held() -> None:
    async with serving() as server:
        wire = await Wire.open(server, client.attach("q", 0, receiver=False))
        body = types.described(0x75, types.binary(b"x" * 200_000))
        parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
        await wire.wait_frames(ATTACH)
        before_bytes = server.pool.held_bytes
        for index, part in enumerate(parts):
            wire.writer.write(client.transfer(0, 0, part, more=index < len(parts) - 1))
        await until(lambda: server.engine.broker.peek("q", 0, 1))
        assert server.engine.broker.peek("q", 0, 1)[0].message.body == b"x" * 200_000
        assert server.pool.held_bytes == before_bytes
        wire.writer.close()


async def test_a_message_without_end_ends_the_connection_though_its_transfers_are_empty() -> None:
    async with serving() as server:
        wire = await Wire.attached(server, client.attach("q", 0, receiver=False))
        empty = client.transfer(0, 0, b"", more=True) * 100
        await sent_without_end(wire, (empty for _ in range(1_000)))
        await until(lambda: not server._peers)


async def test_before_a_token_little_is_held() -> None:
    """Who has not put a valid token has no large frame, no large message and few links."""
    async with serving(key="secret") as server:
        large = await Wire.attached(server, client.attach("$cbs", 0, receiver=False))
        large.writer.write((1 << 19).to_bytes(4, "big") + b"\x02\x00\x00\x00" + bytes(1_000))
        await large.wait_end()
        assert closed_for(large) == "amqp:connection:framing-error"
        parts = await Wire.attached(server, client.attach("$cbs", 0, receiver=False))
        parts.writer.write(client.transfer(0, 0, bytes(PART_BYTES), more=True) * 2)
        await parts.wait_end()
        assert closed_for(parts) == LIMIT
        links = await Wire.open(server, *(client.attach("q", handle, receiver=False) for handle in range(64)))
        [(_, [fault], _)] = await links.wait_frames(END)
        await until(lambda: len(server._peers) == 1)
        assert fault.value[0] == LIMIT and only(server).connection.quota.held_bytes == 0


@pytest.mark.parametrize("how", ["broken", "closed", "refused"])
async def test_links_and_what_they_hold_go_with_their_connection(how: str) -> None:
    """Sixteen sessions of links of every kind, with half a message on each sender, leave nothing behind."""
    async with serving() as server:
        server.engine.broker.send("q", [Message(body=b"m") for _ in range(20)])
        with without_collections():
            before = link_count()
            wire = await Wire.open(server, *(on(channel, client.BEGIN) for channel in range(1, 16)))
            for channel in range(16):
                for handle, (address, receiver) in enumerate(
                    (("q", False), ("q", True), ("$cbs", True), ("$cbs", False), ("q/$management", True))
                ):
                    wire.writer.write(on(channel, client.attach(address, handle, receiver=receiver)))
            await wire.wait_frames(ATTACH, 16 * 5)
            for channel in range(16):
                wire.writer.write(on(channel, client.flow(1, 5)))
                wire.writer.write(on(channel, client.transfer(0, 0, bytes(10_000), more=True)))
            await wire.wait_frames(TRANSFER, 20)
            await until(lambda: server.pool.held_bytes > 16 * 10_000)
            assert link_count() == before + 16 * 5
            if how == "broken":
                wire.writer.transport.abort()
            else:
                wire.writer.write(client.CLOSE if how == "closed" else client.transfer(77, 0, b""))
                await wire.wait_end()
            await until(lambda: not server._peers)
            await asyncio.sleep(0.05)
            assert (server.pool.held_bytes, link_count()) == (0, before)


async def test_replies_that_wait_for_credit_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        both = client.attach("$cbs", 0, receiver=False), client.attach("$cbs", 1, receiver=True)
        wire = await Wire.attached(server, *both, count=2)
        quota = only(server).connection.quota
        before_bytes = quota.held_bytes
        wire.writer.write(client.transfer(0, 0, client.BODY))
        await until(lambda: quota.held_bytes > before_bytes)
        quota.max_bytes = quota.held_bytes
        wire.writer.write(client.transfer(0, 1, client.BODY))
        [(_, refused, _)] = [found for found in await wire.wait_frames(0x15, 2) if found[1][4].value]
        assert refused[4].value[0].value[0] == LIMIT
        wire.writer.write(client.flow(1, 10))
        await wire.wait_frames(TRANSFER)
        assert quota.held_bytes == before_bytes
        wire.writer.close()


async def not_reading(server: ServiceBusServer) -> Wire:
    """A client that asks and does not read; little is in the system's hands."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
    wire = Wire(*await asyncio.open_connection(sock=connection))
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too
    wire.writer.write(client.opening())
    return wire


SESSIONS = (on(1, client.BEGIN) + on(1, client.END)) * 1_000


async def test_who_reads_nothing_and_has_no_token_is_dropped() -> None:
    async with serving(key="secret") as server:
        wire = await not_reading(server)
        await until(lambda: server._peers)
        most_bytes, found = 0, only(server)
        for _ in range(10_000):
            if not server._peers:
                break
            wire.writer.write(SESSIONS)
            await asyncio.sleep(0)
            most_bytes = max(most_bytes, found.transport.backlog_bytes)
        assert not server._peers
        assert most_bytes < 2 * peer.UNTRUSTED_BACKLOG_MAX_BYTES


async def test_who_does_not_read_why_its_connection_ends_is_dropped() -> None:
    async with serving() as server:
        wire = await not_reading(server)
        await until(lambda: server._peers)
        found = only(server)
        while found.transport.backlog_bytes < 100_000:
            wire.writer.write(SESSIONS)
            await asyncio.sleep(0)
        found.check_time(loop_time() + peer.LINKLESS_MAX_S + 1)
        await asyncio.sleep(0.05)
        found.check_time(loop_time() + TAKE_WITHIN_S - 1)
        await asyncio.sleep(0.05)
        assert server._peers
        found.check_time(loop_time() + TAKE_WITHIN_S + 1)
        await until(lambda: not server._peers)
        wire.writer.transport.abort()


async def test_requests_whose_answers_pile_up_are_refused() -> None:
    """A peek of a hundred bytes has an answer of 1 MB: what one read brings must not have hundreds of them."""
    operation = types.described(
        0x74, types.map_([types.string("operation"), types.string("com.microsoft:peek-message")])
    )
    asked = types.map_(
        [types.string("from-sequence-number"), types.long_(0), types.string("message-count"), types.int_(9)]
    )
    peek = operation + types.described(0x77, asked)
    async with serving() as server:
        server.engine.broker.send("q", [Message(body=b"x" * 250_000) for _ in range(5)])
        both = client.attach("q/$management", 0, receiver=False), client.attach("q/$management", 1, receiver=True)
        wire = await Wire.attached(server, *both, client.flow(1, 1_000, window=1 << 20), count=2)
        wire.writer.write(b"".join(client.transfer(0, number, peek) for number in range(200)))
        found = await answered(wire, 199)
        assert found[-1][4].value[0].value[0] == "com.microsoft:server-busy"
        assert len(wire.data) < 2 * peer.REQUEST_BACKLOG_MAX_BYTES
        wire.writer.write(client.transfer(0, 200, peek))
        assert not (await answered(wire, 200))[-1][4].value
        wire.writer.close()


async def answered(wire: Wire, delivery_id: int) -> list[Any]:
    """The dispositions up to that of one delivery."""
    count = 1
    while True:
        found = [fields for _, fields, _ in await wire.wait_frames(DISPOSITION, count)]
        if found[-1][2] >= delivery_id:
            return found
        count = len(found) + 1


async def test_settlements_of_nothing_are_answered_in_no_more_bytes_than_they_came_in() -> None:
    """They need neither a link nor a token: an answer for each id would be thousands of times what was sent."""
    async with serving(key="secret") as server:
        accepted = types.described(0x24, types.list_([]))
        wire = await Wire.open(server, client.disposition(0, 255, accepted) * 100, client.disposition(7, 7, accepted))
        found = await wire.wait_frames(DISPOSITION, 101)
        assert [fields[1:3] for _, fields, _ in found] == [[0, 255]] * 100 + [[7, 7]]
        wire.writer.close()


async def test_http_requests_far_ahead_are_not_read_and_who_reads_no_answer_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "TAKE_WITHIN_S", 1.0)
    asked = b"GET /$namespaceinfo HTTP/1.1\r\nHost: localhost\r\nAuthorization: SharedAccessSignature x\r\n\r\n"
    async with serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too
        writer.write(asked * 30_000)
        await until(lambda: server._listener.open)
        await until(lambda: not server._listener.open)
        writer.transport.abort()


async def test_who_signs_no_http_request_gets_one_answer_for_each_connection() -> None:
    async with serving(key="secret") as server:
        for asked in (b"GET /q", b"GET /_outbox/faults"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write((asked + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") * 3)
            async with asyncio.timeout(5):
                assert (await reader.read()).count(b"HTTP/1.1 401") == 1
            writer.close()


# For how long


async def test_who_puts_no_valid_token_is_let_go() -> None:
    async with serving(key="secret") as server:
        wire = await Wire.attached(server, client.attach("$cbs", 0, receiver=False))
        only(server).check_time(loop_time() + peer.CLAIM_WITHIN_S - 1)
        assert server._peers
        only(server).check_time(loop_time() + peer.CLAIM_WITHIN_S + 1)
        await wire.wait_end()
        assert closed_for(wire) == "amqp:connection:forced"
        await until(lambda: not server._peers)


def put_token(lives_s: int) -> bytes:
    """A request to `$cbs`."""
    named = types.map_([types.string("operation"), types.string("put-token")])
    return types.described(0x74, named) + types.described(0x77, types.string(signed(int(time.time()) + lives_s)))


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_what_a_token_has_opened_ends_with_it_unless_another_is_put(is_renewed: bool) -> None:
    async with serving(key="secret") as server:
        both = client.attach("$cbs", 0, receiver=False), client.attach("$cbs", 1, receiver=True)
        wire = await Wire.attached(server, *both, client.flow(1, 9), count=2)
        wire.writer.write(client.transfer(0, 0, put_token(2)))
        await wire.wait_frames(TRANSFER)
        wire.writer.write(client.attach("q", 2, receiver=True) + client.flow(2, 10))
        await wire.wait_frames(ATTACH, 3)
        if is_renewed:
            wire.writer.write(client.transfer(0, 1, put_token(60)))
            await asyncio.sleep(2.5)
            server.engine.broker.send("q", [Message(body=b"m")])
            await wire.wait_frames(TRANSFER, 3)
            wire.writer.close()
        else:
            await wire.wait_end(timeout_s=10)
            assert closed_for(wire) == "amqp:unauthorized-access"


@pytest.mark.parametrize("frames", [b"", client.SASL, client.opening()[:-40]])
async def test_who_does_not_finish_the_handshake_is_let_go(frames: bytes) -> None:
    async with serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frames)
        await until(lambda: server._peers)
        await asyncio.sleep(0.05)
        only(server).check_time(loop_time() + peer.OPEN_WITHIN_S + 1)
        await until(lambda: not server._peers)
        writer.close()


async def test_a_connection_without_links_is_let_go_however_it_chatters(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        wire = await Wire.open(server)
        await wire.wait_frames(0x11)
        only(server).check_time(loop_time() + peer.LINKLESS_MAX_S - 1)
        assert server._peers
        monkeypatch.setattr(peer, "LINKLESS_MAX_S", 0.5)
        for _ in range(200):
            if not server._peers:
                break
            wire.writer.write(EMPTY_FRAME)
            await asyncio.sleep(0.02)
        assert not server._peers


async def test_a_link_that_is_detached_leaves_nothing_though_its_connection_goes_on() -> None:
    async with serving() as server:
        wire = await Wire.attached(server, client.attach("$cbs", 0, receiver=False))
        held_bytes = server.pool.held_bytes
        with without_collections():
            before = link_count()
            for count in range(1, 11):
                wire.writer.write(client.attach("q", 1, receiver=True) + client.flow(1, 5))
                await wire.wait_frames(ATTACH, 1 + count)
                wire.writer.write(client.detach(1))
                await wire.wait_frames(DETACH, count)
            await asyncio.sleep(0.05)
            assert (server.pool.held_bytes, link_count()) == (held_bytes, before)
        wire.writer.close()


NEXT_SESSION = client.attach(
    "keyed", 3, receiver=True, filters=types.map_([types.symbol("com.microsoft:session-filter"), types.NULL])
)
"""An attach that is answered when there is a session with messages."""


async def test_a_silent_connection_is_let_go_and_one_that_waits_for_messages_is_kept() -> None:
    async with serving() as server:
        server.engine.declare(QueueSettings("keyed", "per_key"))
        sender = await Wire.attached(server, client.attach("q", 0, receiver=False))
        receiver = await Wire.attached(server, client.attach("q", 0, receiver=True), client.flow(0, 10))
        accepting = await Wire.open(server, NEXT_SESSION)
        await asyncio.sleep(0.05)
        peers = list(server._peers)
        for after_s in (-1, 1):
            assert len(server._peers) == 3
            for one in peers:
                one.check_time(loop_time() + peer.IDLE_MAX_S + after_s)
        await sender.wait_end()
        assert closed_for(sender) == "amqp:connection:forced"
        server.engine.broker.send("q", [Message(body=b"m")])
        server.engine.broker.send("keyed", [Message(body=b"m", session_id="s")])
        assert await receiver.wait_frames(TRANSFER) and await accepting.wait_frames(0x12)
        for wire in (receiver, accepting):
            wire.writer.close()


# What is logged


async def test_a_peers_words_make_no_line_of_the_log_and_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link whose name holds a line feed, used before it was attached: the server closes and says which."""
    pending = NEXT_SESSION.replace(types.string("link-3"), types.string("a\n2026"))
    async with serving() as server:
        server.engine.declare(QueueSettings("keyed", "per_key"))
        now_ms, lines = 0, caplog.records
        monkeypatch.setattr(server.log_lines, "_now_ms", lambda: now_ms)
        for _ in range(20):
            wire = await Wire.open(server, pending, client.transfer(3, 0, b""))
            await wire.wait_frames(CLOSE)
            wire.writer.close()
        await until(lambda: not server._peers)
        assert [record.getMessage() for record in lines] == ["service bus connection closed"]
        now_ms = 5_000
        await (await Wire.open(server, pending, client.transfer(3, 0, b""))).wait_frames(CLOSE)
        fields = [record.__dict__ for record in lines]
        assert [each["left_out"] for each in fields] == [0, 19]
        assert all("a\\n2026" in each["text"] and each["text"].isprintable() for each in fields)
