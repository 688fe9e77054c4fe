"""A request whose connection was refused did nothing, and a start may wait for services that come later."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition
from azure.servicebus.exceptions import ServiceBusConnectionError

from outbox import azure
from outbox.azure.connecting import AzureBackend
from outbox.azure.servicebus import entities
from outbox.azure.servicebus.outcomes import as_error
from outbox.azure.unsent import unsent, was_never_sent
from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.errors import OutcomeUnknown, Unreachable
from outbox.message import Message
from outbox.ports import Create, DocumentKey, Output
from tests.wire.on_azure.ground import place

KEY = WELL_KNOWN_KEY
OUTPUT = Output("orders", 0, Message(body=b"1", outbox_id="1"))


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    """Two ports that are taken, and refuse every connection."""
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    yield sockets
    for each in sockets:
        each.close()


def over(sockets: list[socket.socket], **options: Any) -> AzureBackend:
    cosmos, servicebus = (each.getsockname()[1] for each in sockets)
    return azure.connect(
        cosmos=f"AccountEndpoint=http://127.0.0.1:{cosmos};AccountKey={KEY};",
        database="bank",
        servicebus=f"Endpoint=sb://127.0.0.1:{servicebus};SharedAccessKeyName=n;SharedAccessKey=a;"
        "UseDevelopmentEmulator=true;",
        **options,
    )


def blobs_over(sockets: list[socket.socket]) -> str:
    endpoint = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/a"
    return f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={KEY};BlobEndpoint={endpoint};"


async def test_what_was_never_sent_did_nothing(held: list[socket.socket]) -> None:
    async with over(held, blobs=blobs_over(held)) as backend:
        for call in (
            backend.store.read(DocumentKey("p", "a")),
            backend.store.write([Create(DocumentKey("p", "a"), b"{}")]),
            backend.blobs.read("a", bytes_max=10),
            backend.blobs.write("a", b"1"),
            backend.bus.send([OUTPUT]),
            backend.bus.receive("orders", count_max=1, wait_s=0.1),
            backend.operations.send([OUTPUT]),
        ):
            with pytest.raises(Unreachable, match=r"no connection to .*; nothing was sent"):
                await call
        assert {reason for _, reason in backend.usage.reasons} == {"no answer"}


async def test_a_connection_that_breaks_leaves_the_outcome_unknown(held: list[socket.socket]) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.transport.abort()

    held[0].listen()
    async with await asyncio.start_server(hang_up, sock=held[0]), over(held, blobs=blobs_over(held)) as backend:
        for call in (backend.store.write([Create(DocumentKey("p", "a"), b"{}")]), backend.blobs.write("a", b"1")):
            with pytest.raises(OutcomeUnknown):
                await call


def refused_by_service_bus() -> ServiceBusConnectionError:
    """As the SDK wraps what a socket raises."""
    inner = AMQPConnectionError(ErrorCondition.SocketError, error=ConnectionRefusedError())
    return ServiceBusConnectionError(message="no connection", error=inner)


def test_a_host_without_an_address_was_never_asked() -> None:
    assert unsent(ServiceRequestError("no", error=socket.gaierror(-2, "unknown")), "read of a", "Cosmos DB") is not None


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), ServiceRequestError("no", error=ConnectionResetError())]
)
def test_a_reset_and_a_timeout_prove_nothing(error: Exception) -> None:
    assert not was_never_sent(error)


def test_an_older_failure_proves_nothing_of_a_later_one() -> None:
    later = ConnectionResetError()
    later.__context__ = ConnectionRefusedError()  # raised while that was handled
    assert not was_never_sent(later)


def test_a_settlement_may_have_been_sent_before_its_second_way_was_refused() -> None:
    assert isinstance(as_error(refused_by_service_bus(), "send to orders", sends=True), Unreachable)
    assert isinstance(as_error(refused_by_service_bus(), "complete", settles=True), OutcomeUnknown)


# A start


async def test_a_start_waits_for_services_that_come_later(held: list[socket.socket]) -> None:
    cosmos, servicebus = (each.getsockname()[1] for each in held)
    async with (
        over(held, create=True, wait_s=30.0) as backend,
        Engine.in_memory() as documents,
        Engine.in_memory() as queues,
    ):
        start = asyncio.create_task(backend.operations.declare({"orders": "unordered"}, {}))
        await asyncio.sleep(0.8)
        held[0].close()
        async with CosmosEmulator(documents, port=cosmos):
            await asyncio.sleep(0.8)
            assert not start.done()
            held[1].close()
            async with ServiceBusServer(queues, port=servicebus):
                await start
                await backend.bus.send([OUTPUT])


@pytest.mark.parametrize("create", [False, True])
async def test_a_start_waits_no_longer_than_it_may(held: list[socket.socket], create: bool) -> None:
    async with over(held, create=create, wait_s=1.5) as backend:
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            await backend.operations.declare({"orders": "unordered"}, {})
        assert 1 <= time.monotonic() - began_s < 10


async def test_without_create_a_start_waits_for_service_bus_as_well(
    held: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities, "LOOK_S", 0.1)  # a look at settings alone ends without an answer
    port = held[1].getsockname()[1]
    async with place() as there:
        async with there.connect() as making:
            await making.operations.declare({}, {})
        bus = there.servicebus.connection_string.replace(str(there.servicebus.port), str(port))
        cosmos = there.cosmos.connection.connection_string
        async with azure.connect(cosmos=cosmos, database="bank", servicebus=bus, wait_s=30.0) as backend:
            start = asyncio.create_task(backend.operations.declare({"orders": "unordered"}, {}))
            await asyncio.sleep(0.5)
            assert not start.done()
            held[1].close()
            async with Engine.in_memory() as queues, ServiceBusServer(queues, port=port):
                await start


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), 3_601])
def test_a_start_cannot_wait_for_ever(held: list[socket.socket], wait_s: float) -> None:
    with pytest.raises(ValueError, match=r"wait_s=.*0 to 3600 s"):
        over(held, wait_s=wait_s)
