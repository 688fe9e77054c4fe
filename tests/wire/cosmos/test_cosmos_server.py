"""The server itself: keys, hosts, limits, the control endpoint, and the gate."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import CosmosClient, exceptions
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient

from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule
from outbox.engine.engine import Engine
from outbox.errors import EngineStopped, Refused
from tests.wire.conftest import GatedEngine
from tests.wire.cosmos.asking import ask, of_items, signed
from tests.wire.cosmos.conftest import MODES, Cosmos

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


async def test_a_signature_is_good_for_what_it_signed(emulator: CosmosEmulator) -> None:
    assert (await ask(emulator, signed("GET", "/dbs/d", "dbs", "dbs/d")))[0] == 200
    for other in (
        ("GET", "/dbs/d", "dbs", "dbs/e"),
        ("GET", "/dbs/d/colls", "dbs", "dbs/d"),
        ("GET", "/dbs/D", "dbs", "dbs/d"),
    ):
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


async def test_resources_can_be_named_by_their_resource_ids(emulator: CosmosEmulator) -> None:
    _, body = await ask(emulator, signed("GET", "/dbs/d/colls/c", "colls", "dbs/d/colls/c"))
    definition = json.loads(body)
    path = f"/{definition['_self']}"
    code, again = await ask(emulator, signed("GET", path, "colls", definition["_rid"].lower()))
    assert (code, json.loads(again)) == (200, definition)
    for other in ("", path.strip("/").lower(), definition["_rid"][:8]):
        assert (await ask(emulator, signed("GET", path, "colls", other)))[0] == 401


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


async def test_a_reply_that_says_no_can_be_lost_as_well(emulator: CosmosEmulator) -> None:
    read = of_items("GET", "1", x_ms_documentdb_partitionkey='["a"]')
    assert (await ask(emulator, read))[0] == 404
    emulator.faults.install(FaultRule(kind="lost-reply", operation="item.read"))
    assert [(await ask(emulator, read))[0] for _ in range(2)] == [0, 404]


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


async def test_nothing_is_answered_before_the_gate(disk_path: Path) -> None:
    async with GatedEngine.open(disk_path) as engine, CosmosEmulator(engine, port=0) as emulator:
        create = signed("POST", "/dbs", "dbs", "", b'{"id":"d"}')
        with pytest.raises(TimeoutError):
            await ask(emulator, create, within_s=0.2)
        with pytest.raises(TimeoutError):
            await ask(emulator, create, within_s=0.2)  # 409 tells of it
        engine.opened.set()
        assert (await ask(emulator, create))[0] == 409


async def test_a_stopped_engine_answers_that_it_has(disk_path: Path) -> None:
    async with Engine.open(disk_path) as engine, CosmosEmulator(engine, port=0) as emulator:
        engine.core.stop(EngineStopped("the disk is full"))
        code, body = await ask(emulator, signed("POST", "/dbs", "dbs", "", b'{"id":"d"}'))
        assert code == 503 and b"disk is full" in body
