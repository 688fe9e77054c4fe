"""The servers that bytes from outside reach, each with requests that it answers and one that other clients send."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote_plus

from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import HTTP_COUNT_MAX, ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.http_entry import HttpEntry
from outbox.ops.admins.control import CONNECTION_COUNT_MAX, serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.net.http_server import serve_http
from outbox.ops.shared.control_file import read_control_file
from tests.simulation.explored import bank
from tests.unit.amqp import amqp_client
from tests.unit.runtime.purse import Book, paying
from tests.wire.blobs.asking import signed as of_blobs
from tests.wire.blobs.batches import BATCH_TYPE, batch, deletes
from tests.wire.cosmos.asking import signed

BLOCK = "MQ=="


@dataclass(frozen=True)
class Door:
    """A server: its port, requests that it answers, how the answer to the first one begins.

    It has room for so many idle connections beside others, and for so many whose first request is not whole; above that
    it refuses, for as long as they may be idle.
    """

    port: int
    requests: tuple[bytes, ...]
    answer: bytes
    room: int = 200
    begun: int = 200


Open = Callable[[Path], AbstractAsyncContextManager[Door]]


def http(line: str, body: bytes = b"", **headers: str) -> bytes:
    """A request with one answer."""
    fields = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body


@asynccontextmanager
async def cosmos(folder: Path) -> AsyncIterator[Door]:
    query = b'{"query":"SELECT c.id FROM c WHERE c.n > @a","parameters":[{"name":"@a","value":1}]}'
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        yield Door(
            emulator.port,
            (
                signed("GET", "/dbs", "dbs", "", Connection="close"),
                signed("POST", "/dbs", "dbs", "", b'{"id":"d"}', Connection="close"),
                signed("POST", "/dbs/d/colls", "colls", "dbs/d", b'{"id":"c","partitionKey":{"paths":["/pk"]}}'),
                signed("POST", "/dbs/d/colls/c/docs", "docs", "dbs/d/colls/c", query, x_ms_documentdb_isquery="True"),
            ),
            b"HTTP/1.1 200",
        )


@asynccontextmanager
async def blobs(folder: Path) -> AsyncIterator[Door]:
    listed = f"<BlockList><Latest>{BLOCK}</Latest></BlockList>".encode()
    async with Engine.in_memory() as engine, BlobEmulator(engine, port=0) as emulator:
        yield Door(
            emulator.port,
            (
                of_blobs("GET", "/?comp=list", Connection="close"),
                of_blobs("PUT", "/box?restype=container"),
                of_blobs("PUT", "/box/a", b"hello", x_ms_blob_type="BlockBlob", x_ms_tags="n=1", x_ms_meta_a="1"),
                of_blobs("GET", "/box/a", x_ms_range="bytes=1-3", If_None_Match='"0x1"', x_ms_if_tags="n = '1'"),
                of_blobs("PUT", f"/box/b?comp=block&blockid={BLOCK}", b"world"),
                of_blobs("PUT", "/box/b?comp=blocklist", listed),
                of_blobs("PUT", "/box/a?comp=lease", x_ms_lease_action="acquire", x_ms_lease_duration="15"),
                of_blobs("GET", "/box?restype=container&comp=list&prefix=a&delimiter=/&maxresults=1&include=metadata"),
                of_blobs(
                    "POST", "/box?restype=container&comp=batch", batch(*deletes("/box/b")), Content_Type=BATCH_TYPE
                ),
                of_blobs("GET", "/?comp=blobs&where=%22n%22%3D%271%27"),
            ),
            b"HTTP/1.1 200",
        )


@asynccontextmanager
async def servicebus(folder: Path) -> AsyncIterator[Door]:
    script = b"".join(
        (
            amqp_client.opening(),
            amqp_client.attach("q", 0, receiver=False),
            amqp_client.attach("q", 1, receiver=True),
            amqp_client.flow(1, 10),
            amqp_client.transfer(0, 0, amqp_client.BODY),
        )
    )
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as server:
        engine.declare(QueueSettings("q"))
        yield Door(server.port, (script + amqp_client.CLOSE, script), b"AMQP")


@asynccontextmanager
async def administration(folder: Path) -> AsyncIterator[Door]:
    async with Engine.in_memory() as engine, ServiceBusServer(engine, key="key") as server:
        engine.declare(QueueSettings("q"))
        digest = hmac.new(b"key", b"localhost\n4000000000", sha256).digest()
        token = f"SharedAccessSignature sr=localhost&sig={quote_plus(b64encode(digest))}&se=4000000000&skn=outbox"
        described = (
            b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="http'
            b'://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
        )
        yield Door(
            server.port,
            (
                http("GET /q?api-version=2021-05", Authorization=token),
                http("PUT /made?api-version=2021-05", described, Authorization=token),
            ),
            b"HTTP/1.1 200",
            begun=HTTP_COUNT_MAX - 4,
        )


@asynccontextmanager
async def control(folder: Path) -> AsyncIterator[Door]:
    async with Engine.open(folder) as engine:
        engine.declare(QueueSettings("transfers"))
        async with serve_control(EngineAdmin(engine, app=bank()), folder):
            file = read_control_file(folder)
            assert file is not None, "a host that serves has written it"
            bearer = f"Bearer {file.token}"
            message = b'{"queue":"transfers","messages":[{"type":"Transfer","body":{},"id":"a"}]}'
            yield Door(
                file.port,
                (
                    http("POST /ask/ReadStatus", b"{}", Authorization=bearer),
                    http("POST /ask/Send", message, Authorization=bearer),
                    http("POST /ask/ListDeadLetters", b'{"queue":"transfers"}', Authorization=bearer),
                ),
                b"HTTP/1.1 200",
                room=CONNECTION_COUNT_MAX // 2,
            )


@asynccontextmanager
async def entries(folder: Path) -> AsyncIterator[Door]:
    async with Engine.in_memory() as engine, HttpEntry(paying(Book()), engine) as entry, serve_http(entry, 0) as port:
        paid = http("POST /payments", b'{"purse":"a","amount":5}', Idempotency_Key="k")
        yield Door(port, (paid, http("GET /purses/a"), http("GET /nowhere")), b"HTTP/1.1 200")


DOORS: dict[str, Open] = {
    "Cosmos DB": cosmos,
    "Blob Storage": blobs,
    "Service Bus": servicebus,
    "administration": administration,
    "control": control,
    "HTTP entries": entries,
}
