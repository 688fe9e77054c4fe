"""Malformed requests break nothing, and faults drawn by a seed come again."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import Faults, drawn
from outbox.engine.engine import Engine
from tests.wire.cosmos.asking import ask, signed

# Hostile bytes

SEEDS = [
    signed("GET", "/dbs/d/colls/c/docs/1", "docs", "dbs/d/colls/c/docs/1", x_ms_documentdb_partitionkey='["a"]'),
    signed("POST", "/dbs/d/colls/c/docs", "docs", "dbs/d/colls/c", b'{"id":"1","pk":"a","n":[1,2,{"x":null}]}'),
    signed(
        "POST",
        "/dbs/d/colls/c/docs/",
        "docs",
        "dbs/d/colls/c",
        b'{"query":"SELECT TOP 3 c.id, COUNT(1) AS n FROM c JOIN t IN c.n WHERE c.id IN (@a, 2) GROUP BY c.id",'
        b'"parameters":[{"name":"@a","value":"1"}]}',
        x_ms_documentdb_isquery="True",
        x_ms_documentdb_query_enablecrosspartition="True",
        x_ms_max_item_count="5",
        x_ms_session_token="0:-1#1",
    ),
    signed(
        "POST",
        "/dbs/d/colls/c/docs/",
        "docs",
        "dbs/d/colls/c",
        b'[{"operationType":"Upsert","resourceBody":{"id":"1","pk":"a"}},{"operationType":"Patch","id":"1","ifMatch":"x",'
        b'"resourceBody":{"operations":[{"op":"incr","path":"/n/0","value":1}],"condition":"from c where c.n < 3"}}]',
        x_ms_documentdb_partitionkey='["a"]',
        x_ms_cosmos_is_batch_request="True",
        x_ms_cosmos_batch_atomic="True",
    ),
    signed(
        "PATCH",
        "/dbs/d/colls/c/docs/1",
        "docs",
        "dbs/d/colls/c/docs/1",
        b'{"operations":[{"op":"move","from":"/a","path":"/b"},{"op":"add","path":"/n/-","value":{}}]}',
        x_ms_documentdb_partitionkey='["a"]',
    ),
    signed(
        "PUT", "/dbs/d/colls/c", "colls", "dbs/d/colls/c", b'{"id":"c","partitionKey":{"paths":["/pk"]},"defaultTtl":9}'
    ),
    signed(
        "POST",
        "/offers/",
        "offers",
        "",
        b'{"query":"SELECT * FROM root r WHERE r.resource=@link","parameters":[{"name":"@link","value":"dbs/x/"}]}',
        x_ms_documentdb_isquery="True",
    ),
    signed("PUT", "/offers/00ff", "offers", "00ff", b'{"content":{"offerAutopilotSettings":{"maxThroughput":4000}}}'),
    signed(
        "POST",
        "/dbs/d/colls/c/operations/partitionkeydelete",
        "colls",
        "dbs/d/colls/c",
        x_ms_documentdb_partitionkey='["a"]',
    ),
    b'POST /_outbox/faults HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n{"kind":"explode"}',
    signed("POST", "/dbs", "dbs", "", b'9\r\n{"id":"e"}\r\n0\r\n\r\n', Content_Length="", Transfer_Encoding="chunked"),
]


def mutated(chance: random.Random, data: bytes) -> bytes:
    """A request with some of its bytes changed, removed, repeated or replaced by what a parser trips over."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randint(1, 20)]
            case 2:
                changed[at:at] = changed[at : at + chance.randint(1, 40)] * chance.randint(1, 3)
            case 3:
                changed[at:at] = chance.choice(
                    [b"[" * 500, b"1e999", b"\\ud800", b'"', b"%ff", b"\x00", b"-1", b"9" * 40, b"(" * 99]
                )
            case 4:
                begin = changed.find(b"\r\n\r\n") + 4
                at = chance.randrange(begin, len(changed) + 1) if begin >= 4 else at
                changed[at : at + 2] = bytes(chance.choices(b'{}[]",:/@*()<>=', k=3))
    head, split, body = bytes(changed).partition(b"\r\n\r\n")
    if chance.random() < 0.8:  # so that most reach what reads the body
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        head = b"\r\n".join([*lines, b"Content-Length: %d" % len(body)])
    return head + split + body


async def fuzz(emulator: CosmosEmulator, seed: int, count: int) -> None:
    chance = random.Random(seed)
    codes: set[int] = set()
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
        writer.write(mutated(chance, chance.choice(SEEDS)))
        writer.write_eof()
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        codes.add(int(answer[9:12]) if answer[:5] == b"HTTP/" and answer[9:12].isdigit() else 0)
    assert 500 not in codes and {200, 400, 401} <= codes
    assert (await ask(emulator, signed("GET", "/", "", "")))[0] == 200


async def test_malformed_requests_break_nothing(emulator: CosmosEmulator, caplog: pytest.LogCaptureFixture) -> None:
    await fuzz(emulator, 11, 400)
    assert not [record for record in caplog.records if record.levelname == "ERROR" and "outbox" in record.name]


@pytest.mark.soak
async def test_ten_thousand_malformed_requests_break_nothing(
    emulator: CosmosEmulator, caplog: pytest.LogCaptureFixture
) -> None:
    await fuzz(emulator, 12, 10_000)
    assert not [record for record in caplog.records if record.levelname == "ERROR" and "outbox" in record.name]


async def test_faults_of_a_seed_come_at_the_same_requests_again() -> None:
    async def statuses(seed: int) -> list[int]:
        rules = drawn(seed, ["reset", "throttled", "status", "lost-reply"], operation="database.list", status=503)
        async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0, faults=Faults(rules)) as emulator:
            return [await listed(emulator) for _ in range(30)]

    async def listed(emulator: CosmosEmulator) -> int:
        with suppress(ConnectionError):
            return (await ask(emulator, signed("GET", "/dbs", "dbs", "")))[0]
        return 0

    first = await statuses(5)
    assert first == await statuses(5) != await statuses(6)
    assert sorted(code for code in first if code != 200) == [0, 0, 429, 503]
