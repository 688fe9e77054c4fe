"""The server itself: keys, hosts, limits, the control endpoint, expiry, restarts, hostile bytes."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.core import MatchConditions
from azure.cosmos import CosmosClient, PartitionKey, exceptions
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient

from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.store import Put
from outbox.emulator.faults import Faults, drawn
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox.errors import EngineStopped, Refused
from outbox.testing import VirtualClock
from tests.wire.cosmos.conftest import MODES, Cosmos, Sdk, query
from tests.wire.cosmos.test_cosmos_items import status

DATE = "Sun, 22 Nov 2026 00:00:00 GMT"


def signed(verb: str, path: str, kind: str, link: str, body: bytes = b"", **headers: str) -> bytes:
    """A request as a client would send it."""
    text = f"{verb.lower()}\n{kind}\n{link}\n{DATE.lower()}\n\n".encode()
    signature = base64.b64encode(hmac.digest(base64.b64decode(WELL_KNOWN_KEY), text, "sha256")).decode()
    fields = {
        "Host": "localhost",
        "Authorization": quote(f"type=master&ver=1.0&sig={signature}"),
        "x-ms-date": DATE,
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def ask(emulator: CosmosEmulator, *requests: bytes, within_s: float = 5) -> tuple[int, bytes]:
    """Send bytes on a connection of their own; the last answer's status and body, 0 where the connection closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    answer = (0, b"")
    try:
        async with asyncio.timeout(within_s):
            for request in requests:
                writer.write(request)
                answer = await read_answer(reader)
    finally:
        writer.close()
    return answer


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return int(head[9:12]), await reader.readexactly(length)


@pytest.fixture
async def emulator() -> AsyncIterator[CosmosEmulator]:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        await ask(emulator, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}'))
        body = b'{"id":"c","partitionKey":{"paths":["/pk"]}}'
        assert (await ask(emulator, signed("POST", "/dbs/d/colls", "colls", "dbs/d", body)))[0] == 201
        yield emulator


# Who may ask


@pytest.mark.parametrize("mode", MODES)
def test_another_key_is_refused(cosmos: Cosmos, mode: str) -> None:
    wrong = base64.b64encode(b"another").decode()
    with pytest.raises(exceptions.CosmosHttpResponseError) as caught:
        if mode == "sync":
            CosmosClient(cosmos.emulator.connection.url, wrong)
        else:
            asyncio.run(_connected(cosmos.emulator.connection.url, wrong))
    assert caught.value.status_code == 401


async def _connected(url: str, key: str) -> None:
    async with AsyncCosmosClient(url, key) as client:
        await client.create_database("x")


@pytest.mark.parametrize(
    "token",
    [
        "",
        "type=master",
        "type=aad&ver=1.0&sig=x",
        "type=master&ver=1.0&sig=",
        "type%3Dmaster%26ver%3D1.0%26sig%3D%FF",
        "x" * 9_000,
    ],
)
async def test_what_is_no_signature_opens_nothing(emulator: CosmosEmulator, token: str) -> None:
    assert (await ask(emulator, signed("GET", "/", "", "", Authorization=token)))[0] == 401


async def test_a_signature_is_good_for_what_it_signed(emulator: CosmosEmulator) -> None:
    assert (await ask(emulator, signed("GET", "/dbs/d", "dbs", "dbs/d")))[0] == 200
    for other in (("GET", "/dbs/d", "dbs", "dbs/e"), ("GET", "/dbs/d/colls", "dbs", "dbs/d")):
        assert (await ask(emulator, signed(*other)))[0] == 401
    assert (await ask(emulator, signed("GET", "/dbs/d", "dbs", "dbs/d", x_ms_date="today")))[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", ""])
async def test_a_page_of_another_name_is_not_let_in(emulator: CosmosEmulator, host: str) -> None:
    assert (await ask(emulator, signed("GET", "/", "", "", Host=host)))[0] in (400, 403)


def test_a_host_that_others_reach_needs_a_key_of_its_own() -> None:
    engine = Engine.in_memory()
    with pytest.raises(Refused, match="key"):
        CosmosEmulator(engine, host="0.0.0.0")
    with pytest.raises(Refused, match="base64"):
        CosmosEmulator(engine, key="not base64!")
    emulator = CosmosEmulator(engine, host="0.0.0.0", key="c2VjcmV0")
    assert "c2VjcmV0" not in repr(emulator.connection)
    assert "c2VjcmV0" in emulator.connection.connection_string
    engine.close()


def test_the_settings_of_the_official_emulator_are_the_defaults() -> None:
    engine = Engine.in_memory()
    connection = CosmosEmulator(engine).connection
    assert (connection.url, connection.key) == ("http://127.0.0.1:8081/", WELL_KNOWN_KEY)
    engine.close()


def test_a_connection_string_connects(cosmos: Cosmos) -> None:
    with CosmosClient.from_connection_string(cosmos.emulator.connection.connection_string) as client:
        assert isinstance(list(client.list_databases()), list)


async def test_resources_can_be_named_by_their_resource_ids(emulator: CosmosEmulator) -> None:
    _, body = await ask(emulator, signed("GET", "/dbs/d/colls/c", "colls", "dbs/d/colls/c"))
    definition = json.loads(body)
    link = definition["_self"].strip("/")
    code, again = await ask(emulator, signed("GET", f"/{link}/", "colls", link.lower()))
    assert (code, json.loads(again)) == (200, definition)


# The control endpoint


async def control(
    emulator: CosmosEmulator, method: str, path: str, body: bytes = b"", token: str = ""
) -> tuple[int, Any]:
    token = token or emulator.control_token
    head = f"{method} /_outbox/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    code, data = await ask(emulator, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return code, json.loads(data)


async def test_faults_are_installed_and_counted_over_the_wire(emulator: CosmosEmulator) -> None:
    rule = {"kind": "status", "status": 503, "operation": "database.read"}
    assert await control(emulator, "POST", "faults", json.dumps([rule]).encode()) == (201, {"ids": [1]})
    assert (await ask(emulator, signed("GET", "/dbs/d", "dbs", "dbs/d")))[0] == 503
    code, found = await control(emulator, "GET", "faults")
    assert (code, found["fired"], found["rules"][0]["fired_count"]) == (200, {"status": 1}, 1)
    assert (await control(emulator, "DELETE", "faults?id=1"))[1]["rules"] == []
    assert (await control(emulator, "DELETE", "faults?id=1"))[0] == 404


async def test_requests_and_their_charge_are_counted(emulator: CosmosEmulator) -> None:
    await control(emulator, "DELETE", "usage")
    for _ in range(3):
        await ask(emulator, signed("GET", "/dbs/d", "dbs", "dbs/d"))
    await ask(emulator, signed("GET", "/dbs/e", "dbs", "dbs/e"))
    code, usage = await control(emulator, "GET", "usage")
    assert code == 200
    assert usage == {"database.read": {"count": 4, "charge_ru": 4.0, "failed_count": 1}}
    assert emulator.usage()["database.read"].count == 4


async def test_the_control_endpoint_needs_its_token(emulator: CosmosEmulator) -> None:
    assert (await control(emulator, "GET", "usage", token="guess"))[0] == 401
    assert (await control(emulator, "POST", "faults", b'{"kind":"none"}'))[0] == 400
    assert (await control(emulator, "PUT", "faults"))[0] == 405
    assert (await control(emulator, "GET", "nothing"))[0] == 404


# Limits


async def test_a_body_that_is_too_large_is_not_read(emulator: CosmosEmulator) -> None:
    request = signed("POST", "/dbs", "dbs", "", Content_Length=str(1 << 40))
    assert (await ask(emulator, request))[0] == 413


async def test_connections_have_a_limit() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0, connection_count_max=2) as emulator:
        both = [await asyncio.open_connection("127.0.0.1", emulator.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await ask(emulator, signed("GET", "/", "", "")))[0] == 0
        both[0][1].close()
        await asyncio.sleep(0.05)
        assert (await ask(emulator, signed("GET", "/", "", "")))[0] == 200
        both[1][1].close()


async def test_a_full_engine_takes_nothing_in_and_gives_out() -> None:
    limits = EngineLimits(memory_bytes_max=100_000)
    async with Engine.in_memory(limits=limits) as engine, CosmosEmulator(engine, port=0) as emulator:
        await ask(emulator, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}'))
        await ask(
            emulator, signed("POST", "/dbs/d/colls", "colls", "dbs/d", b'{"id":"c","partitionKey":{"paths":["/p"]}}')
        )
        body = b'{"id":"%d","text":"%b"}'
        codes = [
            (
                await ask(
                    emulator, signed("POST", "/dbs/d/colls/c/docs", "docs", "dbs/d/colls/c", body % (n, b"x" * 30_000))
                )
            )[0]
            for n in range(6)
        ]
        assert codes[0] == 201 and codes[-1] == 403
        where = signed(
            "DELETE", "/dbs/d/colls/c/docs/0", "docs", "dbs/d/colls/c/docs/0", x_ms_documentdb_partitionkey="[{}]"
        )
        assert (await ask(emulator, where))[0] == 204


async def test_several_emulators_run_in_one_process_and_start_at_once() -> None:
    started_s = time.perf_counter()
    async with (
        Engine.in_memory() as first,
        Engine.in_memory() as second,
        CosmosEmulator(first, port=0) as one,
        CosmosEmulator(second, port=0) as other,
    ):
        assert time.perf_counter() - started_s < 0.5
        await ask(one, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}'))
        assert (await ask(one, signed("GET", "/dbs/d", "dbs", "dbs/d")))[0] == 200
        assert (await ask(other, signed("GET", "/dbs/d", "dbs", "dbs/d")))[0] == 404


# Before the gate


class GatedEngine(Engine):
    """An engine whose gate stays shut until the test opens it."""

    opened: asyncio.Event

    async def gate(self, *, alone: bool = False) -> None:
        await self.opened.wait()
        await super().gate(alone=alone)


async def test_nothing_is_answered_before_the_gate(disk_path: Path) -> None:
    async with GatedEngine.open(disk_path) as engine:
        engine.opened = asyncio.Event()
        async with CosmosEmulator(engine, port=0) as emulator:
            create = signed("POST", "/dbs", "dbs", "", b'{"id":"d"}')
            with pytest.raises(TimeoutError):
                await ask(emulator, create, within_s=0.2)
            with pytest.raises(TimeoutError):
                await ask(emulator, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}'), within_s=0.2)  # 409 tells of it
            engine.opened.set()
            assert (await ask(emulator, create))[0] == 409


async def test_a_stopped_engine_answers_that_it_has(disk_path: Path) -> None:
    async with Engine.open(disk_path) as engine, CosmosEmulator(engine, port=0) as emulator:
        engine._stop(EngineStopped("the disk is full"))
        code, body = await ask(emulator, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}'))
        assert code == 503 and b"disk is full" in body


# Time


@pytest.fixture
def timed() -> Iterator[tuple[Cosmos, VirtualClock]]:
    clock = VirtualClock(1_767_225_600.0)
    cosmos = Cosmos(lambda: Engine.in_memory(clock=clock))
    yield cosmos, clock
    cosmos.close()


@pytest.mark.parametrize("mode", MODES)
def test_items_expire_by_their_own_time_or_the_containers(timed: tuple[Cosmos, VirtualClock], mode: str) -> None:
    cosmos, clock = timed
    sdk = Sdk(cosmos, mode)
    container = sdk.container("expiring", default_ttl=100)
    for id, extra in (("default", {}), ("short", {"ttl": 10}), ("never", {"ttl": -1})):
        container.create_item({"id": id, "pk": "a", **extra})
    clock.seconds += 10
    assert status(container.read_item, "short", "a") == 404
    assert container.create_item({"id": "short", "pk": "a"})["_ts"] == round(clock.seconds)
    clock.seconds += 90
    assert query(container, "SELECT VALUE c.id FROM c") == ["never", "short"]
    assert cosmos.call(lambda emulator: emulator.store.sweep()) == 1
    assert len(cosmos.call(lambda emulator: emulator.engine.state.documents)[_space(cosmos, container)]) == 2
    sdk.close()


def _space(cosmos: Cosmos, container: Any) -> str:
    [found] = [c for c in cosmos.call(lambda emulator: emulator.store.catalog.containers()) if c.id == container.id]
    return found.namespace('["a"]')


@pytest.mark.parametrize("mode", MODES)
def test_an_items_time_counts_only_where_the_container_has_one(timed: tuple[Cosmos, VirtualClock], mode: str) -> None:
    cosmos, clock = timed
    sdk = Sdk(cosmos, mode)
    container = sdk.container("lasting")
    container.create_item({"id": "1", "pk": "a", "ttl": 5})
    clock.seconds += 100
    assert container.read_item("1", "a")["ttl"] == 5
    database = sdk.client.get_database_client(f"db-{mode}")
    database.replace_container("lasting", PartitionKey("/pk"), default_ttl=-1)
    assert status(container.read_item, "1", "a") == 404
    container.create_item({"id": "1", "pk": "a"})
    clock.seconds += 1_000_000
    assert container.read_item("1", "a")["id"] == "1"
    sdk.close()


@pytest.mark.parametrize("ttl", [0, -2, 1.5, "10", True])
def test_a_time_to_live_that_is_none_is_refused(items: Any, ttl: object) -> None:
    assert status(items.create_item, {"id": "1", "pk": "a", "ttl": ttl}) == 400


# Restarts


@pytest.fixture
def durable(disk_path: Path) -> Iterator[tuple[Cosmos, Callable[[], Engine]]]:
    def engine() -> Engine:
        return Engine.open(disk_path / "log")

    cosmos = Cosmos(engine)
    yield cosmos, engine
    cosmos.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_restarted_emulator_has_everything(durable: tuple[Cosmos, Callable[[], Engine]], mode: str) -> None:
    cosmos, engine = durable
    sdk = Sdk(cosmos, mode)
    container = sdk.container("kept")
    first = container.create_item({"id": "1", "pk": "a", "n": 1})
    container.create_item({"id": "2", "pk": "b"})
    container.delete_item("2", "b")
    cosmos.stop()
    cosmos.start(engine)
    assert container.read_item("1", "a") == first
    assert status(container.create_item, {"id": "1", "pk": "a"}) == 409
    second = container.patch_item(
        "1",
        "a",
        [{"op": "incr", "path": "/n", "value": 1}],
        etag=first["_etag"],
        match_condition=MatchConditions.IfNotModified,
    )
    assert second["n"] == 2 and second["_etag"] > first["_etag"]
    assert query(container, "SELECT VALUE c.id FROM c") == ["1"]
    sdk.close()


def test_items_of_a_container_whose_deletion_was_cut_short_are_gone() -> None:
    async def run() -> None:
        async with Engine.in_memory() as engine:
            first = CosmosEmulator(engine, port=0)
            catalog = first.store.catalog
            database = catalog.create_database({"id": "d"})
            container = catalog.create_container(database, {"id": "c", "partitionKey": {"paths": ["/pk"]}})
            first.store.commit(container, '["a"]', [Put("1", b'{"id":"1"}')])
            catalog._forget([f"coll/{database.rid}/{container.rid}"])
            assert container.namespace('["a"]') in engine.state.documents
            again = CosmosEmulator(engine, port=0)
            assert container.namespace('["a"]') not in engine.state.documents
            assert again.store.catalog.containers() == []

    asyncio.run(run())


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
                body = changed.find(b"\r\n\r\n") + 4
                at = chance.randrange(body, len(changed) + 1) if body >= 4 else at
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
    await fuzz(emulator, 11, 2_000)
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
