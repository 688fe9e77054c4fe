"""The HTTP server of a host, over real sockets: limits, names, and an end that lets requests end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from outbox.engine.engine import Engine
from outbox.http_entry import HttpEntry
from outbox.ops.net import connection_guard, http_server
from outbox.ops.net.http_server import serve_http
from tests.unit.runtime.purse import Book, paying
from tests.unit.waiting import until

BODY = b'{"purse":"a","amount":5}'
HEADERS = {"Content-Type": "application/json", "Idempotency-Key": "k"}


@dataclass
class Shop:
    """A server and what is behind it."""

    engine: Engine
    entry: HttpEntry
    port: int
    session: aiohttp.ClientSession
    book: Book = field(default_factory=Book)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(self, **headers: str) -> tuple[int, bytes]:
        async with self.session.post(f"{self.url}/payments", data=BODY, headers={**HEADERS, **headers}) as response:
            return response.status, await response.read()

    async def raw(self, *pieces: bytes) -> bytes:
        """Send bytes as they are, and read until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        try:
            return await asyncio.wait_for(reader.read(), timeout=5)
        finally:
            writer.close()

    async def balance(self) -> int:
        async with self.session.get(f"{self.url}/purses/a") as response:
            found: int = (await response.json())["balance"]
            return found


@asynccontextmanager
async def open_shop(book: Book | None = None, *names: str) -> AsyncIterator[Shop]:
    book = book or Book()
    async with (
        Engine.in_memory() as engine,
        HttpEntry(paying(book), engine) as entry,
        aiohttp.ClientSession() as session,
        serve_http(entry, 0, names) as port,
    ):
        yield Shop(engine, entry, port, session, book)


async def test_a_request_over_the_network_is_answered_from_its_commit() -> None:
    async with open_shop() as shop:
        first = await shop.post()
        assert first[0] == 200 and await shop.post() == first and await shop.balance() == 5
        assert shop.book.runs == ["a"]


async def test_a_path_and_a_query_arrive_as_they_were_sent() -> None:
    async with open_shop() as shop:
        sent = b'{"note": "\xc3\xa4"}'
        request = (
            b"PUT /purses/a%2Fb/notes/3 HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: n\r\nConnection: close\r\n"
            b"Content-Length: " + str(len(sent)).encode() + b"\r\n\r\n" + sent
        )
        answer = await shop.raw(request)
        assert answer.startswith(b"HTTP/1.1 201") and b"location: /purses/a/b" in answer


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with open_shop() as shop:
        await shop.post()
        async with shop.session.get(f"{shop.url}/purses/a") as response:
            expected = response.headers["content-length"]
        answer = await shop.raw(b"HEAD /purses/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {expected}".encode() in head.lower() and body == b""


async def test_only_the_names_of_the_host_are_answered() -> None:
    async with open_shop(None, "Bank.example") as shop:
        for name, status in (("evil.example", 421), ("bank.example", 200), ("localhost:80", 200), ("127.0.0.1:x", 421)):
            assert (await shop.post(Host=name))[0] == status, name
        assert (await shop.raw(b"GET /purses/a HTTP/1.1\r\nConnection: close\r\n\r\n")).split()[1] == b"400"


async def test_two_keys_are_none() -> None:
    async with open_shop() as shop:
        answer = await shop.raw(
            b"POST /payments HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n"
            b"Connection: close\r\nContent-Length: 24\r\n\r\n" + BODY
        )
        assert answer.startswith(b"HTTP/1.1 400") and b"one Idempotency-Key" in answer and shop.book.runs == []


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_over_the_limit_is_not_read(is_chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65_536

    async with open_shop() as shop:
        data = pieces() if is_chunked else b" " * (40 * 65_536)
        async with shop.session.post(f"{shop.url}/payments", data=data, headers=HEADERS) as response:
            assert response.status == 413 and (await response.json())["code"] == "too-large"
        assert await shop.raw(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") != b""
        assert (await shop.post())[0] == 200


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET /purses/a HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"POST /payments HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        b"GET http://[bad HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_hostile_bytes_are_refused_and_no_other_client_notices(
    bytes_sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_WITHIN_S", 0.5)
    async with open_shop() as shop:
        answer = await shop.raw(bytes_sent)
        assert answer == b"" or answer.split(b" ")[1].startswith(b"4")
        assert (await shop.post())[0] == 200


async def test_connections_that_ask_nothing_are_closed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_WITHIN_S", 0.2)
    monkeypatch.setattr(http_server, "CONNECTION_COUNT_MAX", 3)
    async with open_shop() as shop:
        idle = [await asyncio.open_connection("127.0.0.1", shop.port) for _ in range(3)]
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await shop.post()
        for reader, writer in idle:
            assert await asyncio.wait_for(reader.read(), timeout=5) == b""
            writer.close()
        assert (await shop.post())[0] == 200


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_WITHIN_S", 0.1)
    monkeypatch.setattr(http_server, "LINGER_S", 0.1)
    async with open_shop() as shop:
        head = b"POST /payments HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 24\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        writer.write(head + b'{"purse"')
        assert (await asyncio.wait_for(reader.readline(), timeout=5)).startswith(b"HTTP/1.1 408")
        writer.close()
        assert shop.book.runs == []


async def test_a_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's buffers are small on both sides; else they take tens of thousands of answers."""
    loop, buffer_bytes = asyncio.get_running_loop(), 4_096
    create_server = loop.create_server

    async def narrow_server(*given: Any) -> asyncio.Server:
        made = await create_server(*given)
        made.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        return made

    monkeypatch.setattr(loop, "create_server", narrow_server)
    monkeypatch.setattr(connection_guard, "TAKE_WITHIN_S", 0.3)
    async with open_shop() as shop:
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        narrow.connect(("127.0.0.1", shop.port))
        _, writer = await asyncio.open_connection(sock=narrow)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(b"GET /purses/a HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000)
                    await writer.drain()
        writer.close()
        assert (await shop.post())[0] == 200


async def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODIES_MAX_BYTES", 100_000)
    monkeypatch.setattr(http_server, "LINGER_S", 0.1)
    head = b"POST /payments HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %d\r\nContent-Length: 50000\r\n\r\n"
    async with open_shop() as shop:
        clients = [await asyncio.open_connection("127.0.0.1", shop.port) for _ in range(3)]
        for number, (_, writer) in enumerate(clients):
            writer.write(head % number + b" " * 40_000)
            await asyncio.sleep(0.1)
        answer = await asyncio.wait_for(clients[2][0].read(), timeout=5)
        assert (
            answer.startswith(b"HTTP/1.1 503")
            and b'"code":"try-again"' in answer
            and b"retry-after: 1" in answer.lower()
        )
        for reader, writer in clients[:2]:
            writer.write(b" " * (10_000 - len(BODY)) + BODY)
            assert (await asyncio.wait_for(reader.readline(), timeout=5)).startswith(b"HTTP/1.1 200")
        for _, writer in clients:
            writer.close()
        assert (await shop.post())[0] == 200


async def test_what_clients_leave_half_done_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STOP_BODY_WITHIN_S", 0.1)
    head = b"POST /payments HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 24\r\n\r\n"
    asked = b"GET /purses/a HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100_000
    async with open_shop() as shop:
        clients = [await asyncio.open_connection("127.0.0.1", shop.port) for _ in range(3)]
        for (_, writer), data in zip(clients, (head + b'{"purse"', head[:-2], asked), strict=True):
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too
            writer.write(data)
        await asyncio.sleep(1.0)
        begun_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun_s < http_server.STOP_WITHIN_S / 3
    for _, writer in clients:
        writer.transport.abort()


async def test_a_request_under_way_is_answered_before_the_server_ends(engine: Engine) -> None:
    book = Book(gate=asyncio.Event())
    async with aiohttp.ClientSession() as session:
        async with HttpEntry(paying(book), engine) as entry, serve_http(entry, 0) as port:
            shop = Shop(engine, entry, port, session, book)
            asked = asyncio.create_task(shop.post())
            await until(lambda: book.runs)
            asyncio.get_running_loop().call_later(0.1, book.gate.set)
        assert (await asked)[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await shop.post()


async def test_an_engine_that_stopped_raises_in_clients() -> None:
    async with open_shop() as shop:
        shop.engine.close()
        status, body = await shop.post()
        assert status == 503 and b"stopp" in body


async def test_a_client_that_hangs_up_within_a_body_is_no_fault_of_the_host(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
    async with open_shop() as shop:
        for framing in (b"Content-Length: 90\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
            _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
            writer.write(head + framing)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
        await asyncio.sleep(0.2)
        assert (await shop.post())[0] == 200 and shop.book.runs == ["a"]
    assert not caplog.records
