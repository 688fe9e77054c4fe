"""HTTP as the endpoint speaks it: framing, and what a client may have of it that is slow, greedy or not signed."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outbox.emulator import connections, http
from outbox.emulator.connections import Connection, Phase
from outbox.emulator.cosmos import feed_operations, store
from outbox.emulator.cosmos.feeds import Feed, Items, Page
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule
from outbox.emulator.http import Http
from outbox.engine.engine import Engine
from tests.wire.conftest import until
from tests.wire.cosmos.asking import ask, of_items, read_answer, signed, with_container

ROOT = signed("GET", "/", "", "")
CREATE = b'{"id":"e%d"}'
LARGE_BYTES = 1_500_000


class Client:
    """A raw connection, closed with the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, bytes]:
        """One answer's status and body; status 0 where the connection closed."""
        async with asyncio.timeout(5):
            return await read_answer(self.reader)

    async def end(self) -> bytes:
        """All that comes until the connection closes."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    def reset(self) -> None:
        """Break the connection, rather than end this side of it."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too


class Place:
    """An emulator and the connections that a test opens to it."""

    def __init__(self, emulator: CosmosEmulator) -> None:
        self.emulator = emulator
        self.clients: list[Client] = []

    async def open(self, data: bytes = b"") -> Client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)  # so that little is in neither's hands
        connection.connect(("127.0.0.1", self.emulator.port))
        client = Client(*await asyncio.open_connection(sock=connection))
        self.clients.append(client)
        client.writer.write(data)
        return client

    @property
    def http(self) -> Http:
        found = self.emulator._listener.http
        assert isinstance(found, Http)
        return found

    @property
    def inside(self) -> set[Connection]:
        return self.emulator._listener.open

    def look_at_the_time(self, ahead_s: float) -> None:
        for connection in list(self.inside):
            connection.check_time(asyncio.get_running_loop().time() + ahead_s)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        place = Place(emulator)
        await with_container(emulator)
        await until(lambda: not place.inside)
        yield place
        for client in place.clients:
            client.writer.transport.abort()


def created(number: int) -> bytes:
    return signed("POST", "/dbs", "dbs", "", CREATE % number)


def headed(head: bytes, **changes: str) -> bytes:
    """A signed request to create a database, with other headers, and no body."""
    return signed("POST", "/dbs", "dbs", "", b"", **changes) + head


# Framing


async def test_requests_on_one_connection_are_answered_in_order(place: Place) -> None:
    client = await place.open(b"".join(created(number) for number in range(50)))
    answers = [await client.answer() for _ in range(50)]
    assert [b'"e%d"' % number in body for number, (_, body) in enumerate(answers)] == [True] * 50


async def test_a_request_may_come_byte_by_byte(place: Place) -> None:
    client = await place.open()
    for byte in created(1):
        client.writer.write(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer())[0] == 201


async def test_a_body_may_come_in_chunks(place: Place) -> None:
    head = headed(b"", Content_Length="", Transfer_Encoding="chunked")
    client = await place.open(head + b'5;x=y\r\n{"id"\r\n6\r\n:"e1"}\r\n0\r\n\r\n' + head + b"1\r\n{")
    assert (await client.answer())[0] == 201
    client.writer.write(b'\r\nA\r\n"id":"e2"}\r\n0\r\n\r\n')
    assert (await client.answer())[0] == 201
    assert place.http.body_bytes == 0


async def test_who_waits_for_a_continue_gets_it(place: Place) -> None:
    client = await place.open(headed(b"", Content_Length="11", Expect="100-continue"))
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(b'{"id":"e1"}')
    assert (await client.answer())[0] == 201


async def test_who_is_not_signed_and_waits_for_a_continue_gets_none(place: Place) -> None:
    client = await place.open(headed(b"", Content_Length="11", Expect="100-continue", Authorization="nobody"))
    assert (await client.end()).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/9.9.9\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (ROOT.replace(b"\r\n\r\n", b"\r\nAuthorization: two\r\n\r\n"), 400),
        (headed(b"", Content_Length="-1"), 400),
        (headed(b"", Content_Length="1, 2"), 400),
        (headed(b"", Content_Length="1", Transfer_Encoding="chunked"), 400),
        (headed(b"xyz\r\n", Content_Length="", Transfer_Encoding="chunked"), 400),
        (headed(b"2\r\nabcd", Content_Length="", Transfer_Encoding="chunked"), 400),
        (headed(b"", Content_Length="5000000"), 413),
        (headed(b"400000\r\n" + bytes(4 << 20) + b"\r\n1\r\nx", Content_Length="", Transfer_Encoding="chunked"), 413),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", 400),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(place: Place, data: bytes, status: int) -> None:
    answer = await (await place.open(data)).end()
    assert int(answer.split(b" ")[1]) == status
    await until(lambda: not place.inside)
    assert place.http.body_bytes == 0
    assert (await ask(place.emulator, ROOT))[0] == 200


async def test_the_last_request_closes(place: Place) -> None:
    for data in (signed("GET", "/", "", "", Connection="close"), ROOT.replace(b"HTTP/1.1", b"HTTP/1.0")):
        assert (await (await place.open(data)).end()).split(b" ")[1] == b"200"


async def test_a_client_that_only_listens_gets_its_answer(place: Place) -> None:
    place.emulator.faults.install(FaultRule(kind="delay", delay_s=0.1))
    client = await place.open(ROOT)
    client.writer.write_eof()
    assert (await client.end()).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_goes_within_a_body_leaves_nothing(place: Place) -> None:
    client = await place.open(headed(b"abc", Content_Length="9"))
    client.writer.write_eof()
    assert (await client.end()).startswith(b"HTTP/1.1 400 ")
    await until(lambda: not place.inside and place.http.body_bytes == 0)


# Who is not signed


async def test_bodies_that_are_not_signed_take_no_room(place: Place) -> None:
    """Thirty announced bodies, 120 MB of them: each is refused at once, and nobody else waits."""
    head = headed(b"", Content_Length="4000000", Authorization="nobody")
    held = [await place.open(head) for _ in range(30)]
    assert [status for status, _ in [await client.answer() for client in held]] == [401] * 30
    assert place.http.body_bytes == 0
    assert (await ask(place.emulator, created(1), within_s=2))[0] == 201


async def test_nothing_of_a_body_that_is_not_signed_is_kept(place: Place) -> None:
    client = await place.open(headed(b"x" * 3_000_000, Content_Length="4000000", Authorization="nobody"))
    most_bytes = 0
    while (status := await _quick(client)) is None:
        most_bytes = max(most_bytes, place.http.body_bytes)
    assert (status, most_bytes) == (401, 0)


async def _quick(client: Client) -> int | None:
    if b"\r\n\r\n" not in client.reader._buffer:  # type: ignore[attr-defined]  # to look without waiting
        await asyncio.sleep(0)
        return None
    return (await client.answer())[0]


async def test_who_is_not_signed_gets_one_answer_for_each_connection(place: Place) -> None:
    """A client that asks without end and reads nothing: what it does not read is one answer."""
    client = await place.open()
    client.stop_reading()
    client.writer.write(signed("GET", "/", "", "", Authorization="nobody") * 1_000)
    await until(lambda: "account.read" in place.emulator.usage() and not _asking(place))
    assert place.emulator.usage()["account.read"].count == 1


def _asking(place: Place) -> bool:
    return any(connection.phase is not Phase.CLOSING for connection in place.inside)


# Slow and greedy


async def test_slow_bodies_do_not_block_others(place: Place) -> None:
    """Twenty signed clients announce more than there is room for, and send a byte: a byte each is what they take."""
    held = [await place.open(headed(b"{", Content_Length="4000000")) for _ in range(20)]
    await until(lambda: place.http.body_bytes == len(held))
    assert (await ask(place.emulator, created(1), within_s=2))[0] == 201
    for client in held:
        client.writer.transport.abort()
    await until(lambda: place.http.body_bytes == 0 and not place.inside)


async def test_too_many_bodies_at_once_are_throttled(place: Place) -> None:
    place.http.bodies_max_bytes = 100_000
    held = [await place.open(headed(bytes(45_000), Content_Length="4000000")) for _ in range(2)]
    await until(lambda: place.http.body_bytes == 90_000)
    assert (await ask(place.emulator, headed(bytes(45_000), Content_Length="45000")))[0] == 429
    assert place.http.body_bytes == 90_000
    for client in held:
        client.writer.transport.abort()
    await until(lambda: place.http.body_bytes == 0)


async def _with_large_items(place: Place, count: int) -> bytes:
    """Items that make one large answer, and the request for it."""
    for number in range(count):
        body = b'{"id":"%d","pk":"a","text":"%b"}' % (number, b"x" * LARGE_BYTES)
        assert (await ask(place.emulator, of_items("POST", body=body)))[0] == 201
    await until(lambda: not place.inside)
    return of_items("GET", x_ms_documentdb_partitionkey='["a"]')


async def test_a_client_that_does_not_read_gets_one_answer_and_no_more(place: Place) -> None:
    large = await _with_large_items(place, 2)
    client = await place.open()
    client.stop_reading()
    client.writer.write(large * 20)
    await until(lambda: place.http._connections.unread_bytes)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert place.emulator.usage()["feed"].count == 1
    assert place.http._connections.unread_bytes <= 2 * LARGE_BYTES + 1_000
    assert (await ask(place.emulator, ROOT))[0] == 200
    place.look_at_the_time(connections.TAKE_WITHIN_S + 1)
    await until(lambda: not place.inside)


async def test_a_client_that_reads_slowly_gets_every_answer(place: Place) -> None:
    large = await _with_large_items(place, 2)
    client = await place.open(large * 3 + ROOT)
    for _ in range(3):
        await asyncio.sleep(0.02)
        assert len((await client.answer())[1]) > 2 * LARGE_BYTES
    assert (await client.answer())[0] == 200


async def test_many_unread_answers_throttle_further_ones(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "UNREAD_MAX_BYTES", 4 * LARGE_BYTES)
    large = await _with_large_items(place, 2)
    for _ in range(8):
        client = await place.open()
        client.stop_reading()
        client.writer.write(large)
        await client.writer.drain()
    await until(lambda: place.http._connections.unread_bytes > 4 * LARGE_BYTES)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert place.http._connections.unread_bytes < 8 * LARGE_BYTES
    assert (await ask(place.emulator, ROOT))[0] == 429
    place.look_at_the_time(connections.TAKE_WITHIN_S + 1)
    await until(lambda: not place.inside)
    assert (await ask(place.emulator, ROOT))[0] == 200


async def test_answers_that_are_asked_for_at_once_and_not_read_are_few(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "UNREAD_MAX_BYTES", 4 * LARGE_BYTES)
    large = await _with_large_items(place, 2)
    clients = [await place.open() for _ in range(12)]
    for client in clients:
        client.stop_reading()
        client.writer.write(large)
    most_bytes = 0
    for _ in range(100):
        await asyncio.sleep(0.01)
        most_bytes = max(most_bytes, sum(connection.unread_bytes for connection in place.inside))
    assert LARGE_BYTES < most_bytes < 7 * LARGE_BYTES
    for client in clients:
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # a StreamWriter's transport reads, too
    answered = [(await client.answer())[0] for client in clients]
    assert sorted(set(answered)) == [200, 429]


async def test_a_page_of_the_change_feed_has_a_size(place: Place) -> None:
    await _with_large_items(place, 7)
    wanted: dict[str, Any] = {"A_IM": "Incremental feed", "x_ms_max_item_count": "-1"}
    counts = list[int]()
    while True:
        client = await place.open(of_items("GET", **wanted))
        async with asyncio.timeout(5):
            head = (await client.reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("HTTP/1.1 304"):
            break
        body = await client.reader.readexactly(int(head.lower().partition("content-length: ")[2].split("\r\n")[0]))
        counts.append(body.count(b'"_etag"'))
        wanted["If_None_Match"] = head.lower().partition("etag: ")[2].split("\r\n")[0]
    assert counts == [3, 3, 1]


async def test_pages_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGES_UNDER_WAY_MAX", 2)
    monkeypatch.setattr(feed_operations, "PAGE_WAIT_S", 0.5)
    under_way, most, turns = 0, 0, asyncio.Event()
    make = Feed.page

    async def slowly(feed: Feed, items: Items) -> Page:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await turns.wait()
        under_way -= 1
        return await make(feed, items)

    monkeypatch.setattr(Feed, "page", slowly)
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        await with_container(emulator)
        asked = of_items("GET")
        first = [asyncio.create_task(ask(emulator, asked)) for _ in range(4)]
        refused, _ = await asyncio.wait(first, timeout=2)
        assert [task.result()[0] for task in refused] == [429, 429]
        assert (await ask(emulator, ROOT))[0] == 200
        turns.set()
        assert sorted([(await task)[0] for task in first]) == [200, 200, 429, 429]
        assert (await ask(emulator, asked))[0] == 200
    assert most == 2


async def test_a_client_that_sends_far_ahead_is_cut_off(place: Place) -> None:
    place.emulator.faults.install(FaultRule(kind="delay", delay_s=30.0))
    client = await place.open(ROOT)
    await until(lambda: any(connection.phase is Phase.ANSWERING for connection in place.inside))
    client.writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * connections.AHEAD_MAX_BYTES)
    assert (await client.answer())[0] == 0
    await until(lambda: not place.inside)


async def test_a_head_without_end_is_cut_off(place: Place) -> None:
    client = await place.open(b"GET / HTTP/1.1\r\n")
    sent_bytes = 0
    await until(lambda: place.inside)
    while place.inside:
        client.writer.write(b"x: " + b"y" * 1_000 + b"\r\n")
        sent_bytes += 1_000
        assert sent_bytes <= 2 * connections.HEAD_MAX_BYTES
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("data", "limit"),
    [(b"", "HEAD_WITHIN_S"), (b"GET / HT", "HEAD_WITHIN_S"), (headed(b"abc", Content_Length="9"), "REQUEST_WITHIN_S")],
)
async def test_a_slow_client_is_let_go(place: Place, data: bytes, limit: str) -> None:
    client = await place.open(data)
    await until(lambda: place.inside)
    await asyncio.sleep(0.1)
    within_s = getattr(connections, limit)
    place.look_at_the_time(within_s - 2)
    await asyncio.sleep(0.05)
    assert place.inside
    place.look_at_the_time(within_s + 1)
    assert (await client.answer())[0] == 0
    await until(lambda: not place.inside)


async def test_a_connection_that_was_answered_may_be_silent_for_longer(place: Place) -> None:
    client = await place.open(ROOT)
    assert (await client.answer())[0] == 200
    place.look_at_the_time(connections.IDLE_MAX_S - 2)
    client.writer.write(ROOT)
    assert (await client.answer())[0] == 200
    place.look_at_the_time(connections.IDLE_MAX_S + 1)
    assert (await client.answer())[0] == 0
    await until(lambda: not place.inside)


async def test_requests_under_way_have_a_limit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that ask and go leave their requests behind; those count as well."""
    monkeypatch.setattr(http, "REQUEST_COUNT_MAX", 3)
    place.emulator.faults.install(FaultRule(kind="delay", delay_s=2.0, count=3))
    for _ in range(3):
        client = await place.open(ROOT)
        await until(lambda: any(connection.phase is Phase.ANSWERING for connection in place.inside))
        client.reset()
        await until(lambda: not place.inside)
    assert (await ask(place.emulator, ROOT))[0] == 503


async def test_where_there_is_no_room_the_longest_silent_connection_goes() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0, connection_count_max=3) as emulator:
        place = Place(emulator)
        asked = await place.open(ROOT)
        assert (await asked.answer())[0] == 200
        silent = [await place.open() for _ in range(2)]
        await until(lambda: len(place.inside) == 3)
        asked.writer.write(ROOT)
        assert (await asked.answer())[0] == 200
        newer = await place.open(ROOT)
        assert (await newer.answer())[0] == 200
        assert await silent[0].reader.read() == b"" and not silent[1].reader.at_eof()
        assert (await ask(emulator, ROOT))[0] == 200
        assert await silent[1].reader.read() == b""
        asked.writer.write(ROOT)
        assert (await asked.answer())[0] == 200
        for client in (asked, newer, *silent):
            client.writer.close()


async def test_a_request_on_its_way_makes_no_room() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0, connection_count_max=3) as emulator:
        place = Place(emulator)
        assert (await ask(emulator, ROOT))[0] == 200
        await until(lambda: not place.inside)
        emulator.faults.install(FaultRule(kind="delay", delay_s=1.0, count=1))
        answered, half, body = [await place.open(data) for data in (ROOT, ROOT[:9], headed(b"abc", Content_Length="9"))]
        await until(lambda: {one.phase for one in place.inside} == {Phase.ANSWERING, Phase.HEAD, Phase.BODY})
        assert (await ask(emulator, ROOT))[0] == 0
        half.writer.write(ROOT[9:])
        assert [(await client.answer())[0] for client in (half, answered)] == [200, 200]
        assert (await ask(emulator, ROOT))[0] == 200
        for client in (answered, half, body):
            client.writer.close()


async def test_an_answer_that_is_being_read_makes_no_room() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0, connection_count_max=2) as emulator:
        place = Place(emulator)
        await with_container(emulator)
        await until(lambda: not place.inside)
        large = await _with_large_items(place, 2)
        slow = await place.open()
        slow.stop_reading()
        slow.writer.write(large)
        await until(
            lambda: {one.phase for one in place.inside} == {Phase.IDLE} and place.http._connections.unread_bytes
        )
        await place.open()
        assert (await ask(emulator, ROOT))[0] == 200
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]  # asyncio's own has it
        status, body = await slow.answer()
        assert status == 200 and len(body) > 1_000_000


# Loading


def test_http_is_loaded_with_the_first_connection() -> None:
    """An endpoint starts without the library of HTTP, which takes longer to import than all else."""
    code = """
import asyncio, sys
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.engine.engine import Engine
async def main():
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        print("aiohttp" in sys.modules)
        both = [await asyncio.open_connection("127.0.0.1", emulator.port) for _ in range(2)]
        for reader, writer in both:
            writer.write(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        print([(await reader.readline()).split()[1] for reader, _ in both], "aiohttp" in sys.modules)
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "False\n[b'401', b'401'] True\n", run.stderr
