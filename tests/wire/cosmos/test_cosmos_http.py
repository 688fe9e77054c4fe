"""HTTP as the server speaks it: framing, order, half-closed and slow connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outbox.emulator.cosmos import http
from outbox.emulator.cosmos.http import Connection, Request, response_of


class Echo:
    """A server that answers with what it got."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.reserved_bytes = 0
        self.wait_s = 0.0
        self.handled_count = 0

    async def respond(self, request: Request) -> bytes | None:
        await asyncio.sleep(self.wait_s)
        self.handled_count += 1
        if request.target == "/break":
            return None
        if request.target == "/large":
            return response_of(200, {}, bytes(8 << 20), is_last=False)
        body = f"{request.method} {request.target} {len(request.body)} ".encode() + request.body[:20]
        return response_of(200, {}, body, is_last=request.is_last, has_body=request.method != "HEAD")

    def admit(self, connection: Connection) -> bool:
        self.connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def reserve(self, size_bytes: int) -> bool:
        if self.reserved_bytes + size_bytes > 8 << 20:
            return False
        self.reserved_bytes += size_bytes
        return True


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        """One answer's body; empty where the connection closed."""
        async with asyncio.timeout(3):
            head = await self.reader.readuntil(b"\r\n\r\n")
            [length] = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            return head[9:12] + b" " + await self.reader.readexactly(int(length))

    async def end(self) -> bytes:
        async with asyncio.timeout(3):
            return await self.reader.read()


def refused(status: int, text: str) -> bytes:
    return response_of(status, {}, text.encode(), is_last=True)


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, int]]:
    echo = Echo()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(echo, refused), "127.0.0.1", 0)
    yield echo, server.sockets[0].getsockname()[1]
    server.close()
    for connection in list(echo.connections):
        connection.abort()


async def opened(port: int, data: bytes) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    client.writer.write(data)
    return client


async def test_requests_on_one_connection_are_answered_in_order(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(50)))
    assert [await client.answer() for _ in range(50)] == [b"200 GET /%d 0 " % number for number in range(50)]


async def test_a_request_may_come_byte_by_byte(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"")
    for byte in b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc":
        client.writer.write(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert await client.answer() == b"200 POST /a 3 abc"


async def test_a_body_may_come_in_chunks(echo: tuple[Echo, int]) -> None:
    head = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = await opened(echo[1], head + b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n" + head + b"1\r\nz")
    assert await client.answer() == b"200 POST /a 13 abc0123456789"
    client.writer.write(b"\r\n0\r\n\r\n")
    assert await client.answer() == b"200 POST /a 1 z"
    assert echo[0].reserved_bytes == 0


async def test_many_tiny_chunks_take_no_time(echo: tuple[Echo, int]) -> None:
    head = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = await opened(echo[1], head + b"1\r\na\r\n" * 300_000 + b"0\r\n\r\n")
    assert (await client.answer()).startswith(b"200 POST /a 300000 ")


async def test_who_waits_for_a_continue_gets_it(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(b"x")
    assert await client.answer() == b"200 POST /a 1 x"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\x7f HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFF\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000, 431),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(
    echo: tuple[Echo, int], data: bytes, status: int
) -> None:
    answer = await (await opened(echo[1], data)).end()
    assert answer.startswith(b"HTTP/1.1 %d " % status) and b"Connection: close" in answer


async def test_too_many_bodies_at_once_are_throttled(echo: tuple[Echo, int]) -> None:
    head = b"POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n"
    held = [await opened(echo[1], head) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert (await (await opened(echo[1], head)).end()).startswith(b"HTTP/1.1 429 ")
    for client in held:
        client.writer.close()
    await asyncio.sleep(0.05)
    assert echo[0].reserved_bytes == 0


async def test_the_last_request_closes(echo: tuple[Echo, int]) -> None:
    for data in (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"):
        answer = await (await opened(echo[1], data)).end()
        assert answer.startswith(b"HTTP/1.1 200 ") and b"Connection: close" in answer


async def test_a_client_that_only_listens_gets_its_answers(echo: tuple[Echo, int]) -> None:
    echo[0].wait_s = 0.05
    client = await opened(echo[1], b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.02)
    client.writer.write_eof()
    answer = await client.end()
    assert answer.count(b"HTTP/1.1 200") == 2


async def test_a_description_has_no_body(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"HEAD /1 HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert (await client.end()).endswith(b"\r\n\r\n")


async def test_an_answer_can_be_a_broken_connection(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"GET /break HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionError):
        await client.end()


async def test_a_client_that_sends_ahead_is_not_read_without_end(echo: tuple[Echo, int]) -> None:
    echo[0].wait_s = 0.3
    client = await opened(echo[1], b"GET /1 HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.05)
    client.writer.write(b"GET /2 HTTP/1.1\r\n\r\n" * 200_000)
    await asyncio.sleep(0.1)
    [connection] = echo[0].connections
    assert len(connection._buffer) < 1 << 20
    client.writer.transport.abort()


async def test_a_client_that_does_not_read_gets_one_answer_and_no_more(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"")
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too
    client.writer.write(b"GET /large HTTP/1.1\r\n\r\n" * 20)
    await asyncio.sleep(0.2)
    assert echo[0].handled_count == 1
    [connection] = echo[0].connections
    connection.check_time(asyncio.get_running_loop().time() + http.WITHIN_S + 1)
    await asyncio.sleep(0.05)
    assert not echo[0].connections
    client.writer.transport.abort()


async def test_a_client_that_reads_slowly_gets_every_answer(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"GET /large HTTP/1.1\r\n\r\n" * 3 + b"GET /1 HTTP/1.1\r\n\r\n")
    for _ in range(3):
        await asyncio.sleep(0.02)
        assert len(await client.answer()) == (8 << 20) + 4
    assert await client.answer() == b"200 GET /1 0 "


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b"", "ASK_WITHIN_S"),
        (b"GET / HT", "WITHIN_S"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", "WITHIN_S"),
    ],
)
async def test_a_slow_client_is_let_go(echo: tuple[Echo, int], data: bytes, limit: str) -> None:
    client = await opened(echo[1], data)
    await asyncio.sleep(0.02)
    [connection] = echo[0].connections
    now_s = asyncio.get_running_loop().time()
    connection.check_time(now_s + getattr(http, limit) - 1)
    assert echo[0].connections
    connection.check_time(now_s + getattr(http, limit) + 1)
    assert await client.end() == b""


async def test_a_connection_that_has_asked_may_be_silent_for_longer(echo: tuple[Echo, int]) -> None:
    client = await opened(echo[1], b"GET /1 HTTP/1.1\r\n\r\n")
    await client.answer()
    [connection] = echo[0].connections
    now_s = asyncio.get_running_loop().time()
    connection.check_time(now_s + http.IDLE_MAX_S - 1)
    client.writer.write(b"GET /2 HTTP/1.1\r\n\r\n")
    assert await client.answer() == b"200 GET /2 0 "
    connection.check_time(now_s + http.IDLE_MAX_S + 5)
    assert await client.end() == b""
