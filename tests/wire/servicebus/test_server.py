"""The server itself: nothing before the gate, restarts, keys, limits and hostile bytes."""

from __future__ import annotations

import asyncio
import hmac
import resource
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from outbox.emulator.amqp.limits import Limits
from outbox.emulator.amqp.sections import sections
from outbox.emulator.amqp.types import binary, decode, described, int_, list_, map_, string, symbol, uint
from outbox.emulator.bus.requests import Claims, Request, check_signature
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.errors import EngineStopped, Refused
from outbox.message import Message
from tests.unit.amqp import amqp_client as client
from tests.wire.conftest import Bus, GatedEngine, Sdk

DISPOSITION, TRANSFER = 0x15, 0x14


class Wire:
    """A raw connection to a server in this loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.data = b""

    @classmethod
    async def open(cls, server: ServiceBusServer, *frames: bytes) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        wire.writer.write(b"".join((client.opening(), *frames)))
        return wire

    @classmethod
    async def attached(cls, server: ServiceBusServer, *frames: bytes, count: int = 1) -> Wire:
        """Open a connection, and wait for `count` attach frames."""
        wire = await cls.open(server, *frames)
        await wire.wait_frames(0x12, count)
        return wire

    async def wait_frames(self, code: int, count: int = 1, timeout_s: float = 3) -> list[tuple[int, list[Any], bytes]]:
        """Read until `count` frames of a kind are there."""
        async with asyncio.timeout(timeout_s):
            while True:
                with suppress(Exception):  # half a frame cannot be read yet
                    found = [item for item in client.frames_of(self.data) if item[0] == code]
                    if len(found) >= count:
                        return found
                more = await self.reader.read(65_536)
                assert more, "the server closed the connection"
                self.data += more

    async def wait_end(self, timeout_s: float = 3) -> bytes:
        async with asyncio.timeout(timeout_s):
            with suppress(ConnectionError):
                while more := await self.reader.read(65_536):
                    self.data += more
        return self.data


async def test_nothing_leaves_before_the_gate(disk_path: Path) -> None:
    async with GatedEngine.open(disk_path) as engine:
        engine.opened.set()
        engine.declare(QueueSettings("q"))
        async with ServiceBusServer(engine) as server:
            both = client.attach("q", 0, receiver=False), client.attach("q", 1, receiver=True)
            wire = await Wire.attached(server, *both, count=2)
            engine.opened.clear()
            wire.writer.write(client.transfer(0, 0, client.BODY) + client.flow(1, 5))
            with pytest.raises(TimeoutError):
                await wire.wait_frames(DISPOSITION, timeout_s=0.2)
            assert not [item for item in client.frames_of(wire.data) if item[0] == TRANSFER]
            engine.opened.set()
            await wire.wait_frames(DISPOSITION)
            await wire.wait_frames(TRANSFER)
            wire.writer.close()


async def test_a_stopped_engine_acknowledges_nothing(disk_path: Path) -> None:
    async with GatedEngine.open(disk_path) as engine:
        engine.opened.set()
        engine.declare(QueueSettings("q"))
        async with ServiceBusServer(engine) as server:
            wire = await Wire.attached(server, client.attach("q", 0, receiver=False))
            engine.opened.clear()
            wire.writer.write(client.transfer(0, 0, client.BODY))
            await asyncio.sleep(0.1)
            engine.core.stop(EngineStopped("the disk is full"))
            engine.opened.set()
            data = await wire.wait_end()
            assert not [item for item in client.frames_of(data) if item[0] == DISPOSITION]


async def test_the_administration_answers_behind_the_gate_or_not_at_all(disk_path: Path) -> None:
    entry = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    )

    async def put(server: ServiceBusServer, name: str) -> int:
        async with ClientSession() as session:
            address = f"http://127.0.0.1:{server.port}/{name}?api-version=2021-05"
            async with session.put(address, data=entry, headers={"Authorization": "Bearer any"}) as answer:
                return answer.status

    async with GatedEngine.open(disk_path) as engine, ServiceBusServer(engine) as server:
        answered = asyncio.create_task(put(server, "q"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answered), 0.3)
        engine.opened.set()
        assert await answered == 201
        engine.opened.clear()
        answered = asyncio.create_task(put(server, "r"))
        await asyncio.sleep(0.2)
        engine.core.stop(EngineStopped("the disk is full"))
        engine.opened.set()
        assert await answered >= 500


@pytest.fixture
def durable(disk_path: Path) -> Iterator[tuple[Bus, Callable[[], Engine]]]:
    def engine() -> Engine:
        opened = Engine.open(disk_path / "log")
        opened.declare(QueueSettings("q"))
        return opened

    bus = Bus(engine)
    yield bus, engine
    bus.stop()
    bus.thread.stop()


@pytest.mark.parametrize("mode", ["sync", "aio"])
def test_a_restarted_host_has_the_messages_and_voids_the_locks(
    durable: tuple[Bus, Callable[[], Engine]], mode: str
) -> None:
    bus, engine = durable
    sdk = Sdk(bus, mode, retry_total=3)
    with sdk.sender("q", shared=False) as sender:
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    receiver = sdk.receiver("q", shared=False).__enter__()
    [held] = receiver.receive_messages(1, max_wait_time=3)
    started_s = time.monotonic()
    bus.stop()
    bus.start(engine)
    assert time.monotonic() - started_s < 3  # stopping waits for open connections, starting is immediate
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(held)
    found: list[str] = []
    while len(found) < 2:
        for message in receiver.receive_messages(2, max_wait_time=3):
            receiver.complete_message(message)
            found.append(str(message))
    assert sorted(found) == ["1", "2"]
    receiver.__exit__(None, None, None)
    sdk.close()
    assert bus.bodies("q") == []


def connect(bus: Bus, key: str, name: str = "outbox") -> Any:
    text = f"Endpoint=sb://127.0.0.1:{bus.server.port};SharedAccessKeyName={name};SharedAccessKey={key};"
    return ServiceBusClient.from_connection_string(text + "UseDevelopmentEmulator=true;", retry_total=0)


def test_a_key_is_checked_where_there_is_one() -> None:
    bus = Bus(Engine.in_memory, key="secret")
    bus.declare(QueueSettings("q"))
    with connect(bus, "secret") as sdk, sdk.get_queue_sender("q", keep_alive=0) as sender:
        sender.send_messages(ServiceBusMessage("m"))
    for key, name in (("guess", "outbox"), ("secret", "another")):
        with connect(bus, key, name) as sdk, pytest.raises(ServiceBusError):
            sdk.get_queue_sender("q", keep_alive=0).__enter__()
    assert bus.bodies("q") == [b"m"]
    bus.stop()
    bus.thread.stop()


async def test_without_a_token_no_link_is_opened() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine, key="secret") as server:
        engine.declare(QueueSettings("q"))
        wire = await Wire.open(server, client.attach("q", 0, receiver=False), client.attach("$cbs", 1, receiver=True))
        [(_, detached, _)] = await wire.wait_frames(0x16)
        assert detached[2].value[0] == "amqp:unauthorized-access"
        assert len(await wire.wait_frames(0x12, 2)) == 2
        wire.writer.close()


@pytest.mark.parametrize("token", ["", " sr=x&se=99999999999&sig=x", " sr=\udcc1&sig=\udcfd&se=99999999999"])
def test_what_is_not_a_signature_is_none(token: str) -> None:
    assert check_signature(f"SharedAccessSignature{token}", "secret") == 0


def signed(until_s: int) -> str:
    """A token as the SDK makes it, good until then."""
    digest = hmac.new(b"secret", f"sb\n{until_s}".encode(), sha256).digest()
    return f"SharedAccessSignature sr=sb&sig={quote_plus(b64encode(digest))}&se={until_s}&skn=outbox"


def test_a_token_opens_nothing_from_when_it_is_over() -> None:
    now_ms = [999_999]
    claims = Claims("secret", lambda: now_ms[0])

    def put() -> int:
        return claims._put_token(Request(b"", "", {"operation": "put-token"}, signed(1_000)))[0]

    seen = [claims.authorised, put(), claims.authorised, claims.covers("")]
    now_ms[0] += 1
    seen += [claims.authorised, claims.covers(""), put(), claims.authorised]
    assert seen == [False, 202, True, True, False, False, 401, False]


async def test_a_token_administers_nothing_when_it_is_over() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine, key="secret") as server:
        now_s = engine.now_ms() // 1_000
        url, answers = f"http://127.0.0.1:{server.port}/$Resources/queues?api-version=2021-05", list[int]()
        async with ClientSession() as session:
            for until_s in (now_s + 60, now_s):
                async with session.get(url, headers={"Authorization": signed(until_s)}) as answer:
                    answers.append(answer.status)
        assert answers == [200, 401]


def test_a_host_that_others_reach_needs_a_key() -> None:
    engine = Engine.in_memory()
    with pytest.raises(Refused, match="key"):
        ServiceBusServer(engine, host="0.0.0.0")
    assert "secret" in ServiceBusServer(engine, host="0.0.0.0", key="secret").connection_string
    engine.close()


async def test_connections_have_a_limit() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine, connection_count_max=2) as server:
        first = await Wire.open(server, client.attach("$cbs", 0, receiver=False))
        second = await Wire.open(server, client.attach("$cbs", 0, receiver=False))
        await first.wait_frames(0x12)
        await second.wait_frames(0x12)
        assert await (await Wire.open(server)).wait_end() == b""
        first.writer.close()
        second.writer.close()


@pytest.mark.parametrize(("soft", "count_max"), [(40, 10), (3, 1), (1 << 20, 512), (resource.RLIM_INFINITY, 512)])
async def test_connections_leave_descriptors_for_the_log(
    soft: int, count_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        taken = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(min(count_max, 10))]
        another = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
        await asyncio.sleep(0.05)
        another.writer.write(client.opening())
        await another.wait_frames(0x11)  # whoever has no links makes room, the oldest first
        assert len(server._peers) == (11 if count_max > 10 else count_max)
        assert [reader.at_eof() for reader, _ in taken] == [count_max <= 10] + [False] * (len(taken) - 1)
        for _, writer in [*taken, (another.reader, another.writer)]:
            writer.close()


async def test_a_peer_with_a_time_out_hears_from_an_idle_server() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(client.opening(idle_timeout_ms=20_000))
        wire = Wire(reader, writer)
        await wire.wait_frames(0x11)
        (peer,) = server._peers
        peer.check_time(asyncio.get_running_loop().time() + 11)  # before the peer takes it for dead
        async with asyncio.timeout(2):
            assert await reader.readexactly(8) == b"\x00\x00\x00\x08\x02\x00\x00\x00"
        writer.close()


async def test_a_client_that_does_not_read_bounds_what_is_held_for_it() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        engine.declare(QueueSettings("q"))
        wire = await Wire.attached(server, client.attach("q", 0, receiver=True))
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # StreamWriter's transport is bidirectional
        engine.broker.send("q", [Message(body=bytes(100_000)) for _ in range(200)])
        wire.writer.write(client.flow(0, 1_000))
        await asyncio.sleep(0.2)
        locked = [task for task in engine.broker.peek("q", 0, 1_000) if task.state == "locked"]
        assert len(locked) < 100
        wire.writer.transport.abort()


async def test_locks_that_ran_out_make_room_for_a_client_that_never_settles() -> None:
    limits = Limits(unsettled_count_max=3)
    async with Engine.in_memory() as engine, ServiceBusServer(engine, limits=limits) as server:
        engine.declare(QueueSettings("q", lock_s=0.3))
        engine.broker.send("q", [Message(body=b"m") for _ in range(3)])
        wire = await Wire.open(server, client.attach("q", 0, receiver=True), client.flow(0, 100))
        assert len(await wire.wait_frames(TRANSFER, 3)) == 3
        assert len(await wire.wait_frames(TRANSFER, 6)) == 6
        wire.writer.close()


@pytest.mark.parametrize("orderly", [True, False], ids=["closed", "broken"])
async def test_a_session_is_let_go_by_a_close_and_kept_when_the_connection_breaks(orderly: bool) -> None:
    filters = map_([symbol("com.microsoft:session-filter"), string("s")])
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        engine.declare(QueueSettings("keyed", ordering="per_key"))
        engine.broker.send("keyed", [Message(body=b"m", session_id="s")])
        wire = await Wire.open(server, client.attach("keyed", 0, receiver=True, filters=filters), client.flow(0, 5))
        await wire.wait_frames(TRANSFER)
        if orderly:
            wire.writer.write(client.CLOSE)
            await wire.wait_end()
        else:
            wire.writer.transport.abort()
            await asyncio.sleep(0.1)
        assert (engine.sessions.accept("keyed", "s") is not None) == orderly


async def test_a_connection_that_breaks_keeps_its_messages_locked() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        engine.declare(QueueSettings("q"))
        engine.broker.send("q", [Message(body=b"m")])
        wire = await Wire.open(server, client.attach("q", 0, receiver=True), client.flow(0, 5))
        await wire.wait_frames(TRANSFER)
        wire.writer.transport.abort()
        await asyncio.sleep(0.1)
        assert [task.state for task in engine.broker.peek("q", 0, 5)] == ["locked"]


def request(operation: str, arguments: bytes) -> bytes:
    named = described(0x74, map_([string("operation"), string(f"com.microsoft:{operation}")]))
    return described(0x73, list_([uint(1)])) + named + described(0x77, arguments)


@pytest.mark.parametrize(
    ("operation", "arguments", "status"),
    [
        ("add-rule", map_(()), 501),
        ("peek-message", list_(()), 400),
        ("peek-message", map_([string("message-count"), int_(-1)]), 400),
        ("peek-message", map_([string("from-sequence-number"), string("x")]), 400),
        ("peek-message", map_(()), 204),
        ("renew-lock", map_([string("lock-tokens"), list_([string("x")])]), 400),
        ("renew-lock", map_([string("lock-tokens"), list_([b"\x98" + bytes(16)])]), 410),
        ("update-disposition", map_([string("disposition-status"), string("forgotten")]), 400),
        ("schedule-message", map_([string("messages"), list_([map_([string("message"), binary(b"x")])])]), 400),
        ("schedule-message", map_([string("messages"), list_([string("x")])]), 400),
        ("cancel-scheduled-message", map_([string("sequence-numbers"), list_([uint(9)])]), 404),
        ("get-session-state", map_([string("session-id"), string("s")]), 410),
        ("get-message-sessions", map_(()), 404),
    ],
)
async def test_a_request_that_cannot_be_granted_is_answered_with_its_status(
    operation: str, arguments: bytes, status: int
) -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        engine.declare(QueueSettings("q"))
        links = client.attach("q/$management", 0, receiver=False), client.attach("q/$management", 1, receiver=True)
        wire = await Wire.attached(server, *links, client.flow(1, 5), count=2)
        wire.writer.write(client.transfer(0, 0, request(operation, arguments)))
        [(_, _, payload)] = await wire.wait_frames(TRANSFER)
        answer = {code: decode(payload, start)[0] for code, start, _ in sections(payload)}
        assert answer[0x74]["statusCode"] == status  # type: ignore[index]  # application properties are a map
        wire.writer.close()
