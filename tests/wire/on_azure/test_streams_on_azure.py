"""Ordered logs and processors over the adapters, against the emulators and through the real SDKs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from outbox import App, Client, azure
from outbox.azure.addresses import Identity
from outbox.engine.entities import QueueSettings
from outbox.errors import NotRegistrable, Refused
from outbox.streams import Ingest, OrderedLog, Processor
from outbox.streams.plan import QueueOutput
from tests.unit.messages import Number, Total
from tests.unit.streams.making import sum_up
from tests.wire.on_azure.ground import blob_emulator, place
from tests.wire.on_azure.test_connecting import BLOBS, BUS, COSMOS, KEY, Token, everything_about


async def test_a_processor_on_cosmos_sends_each_entry_once_to_service_bus() -> None:
    async with place() as ground:
        ground.declare(QueueSettings("sums", "per_key"))
        async with ground.connect() as one, ground.connect() as other:
            await one.operations.declare({}, {})
            numbers: OrderedLog[Number] = OrderedLog("numbers", one, type=Number)
            await numbers.extend([Number(1), Number(2)], id="a")

            def processor(backend: Any) -> Processor[Total]:
                log: OrderedLog[Number] = OrderedLog("numbers", backend, type=Number)
                sums = backend.queue("sums", key=lambda number: number.n)
                return Processor(
                    "sums", sum_up, state=Total, register=backend, inputs={"numbers": log}, outputs={"sums": sums}
                )

            assert await processor(one).run_until_idle(seconds=20) > 0
            assert await processor(other).run_until_idle(seconds=20) == 0
        found = [task.message for task in ground.servicebus.engine.broker.peek("sums", 0, 10)]
        assert [(m.body, m.session_id, m.type) for m in found] == [
            (b'{"n":1}', "1", "Number"),
            (b'{"n":3}', "3", "Number"),
        ]
        assert len({m.outbox_id[:-2] for m in found}) == 1


async def test_an_ingest_takes_in_all_that_waits_at_service_bus_when_it_is_asked_once() -> None:
    async with place() as ground, ground.connect() as backend:
        app = App("shop")
        app.queue("numbers", read_elsewhere=True)
        client = Client(app, backend)
        await client.declare()
        for n in range(200):
            await client.send("numbers", Number(n), id=f"m{n}")
        async with ground.connect() as fresh:
            log: OrderedLog[Number] = OrderedLog("numbers", fresh, type=Number)
            ingest = Ingest("numbers", queue="numbers", type=Number, source=fresh, log=log)
            assert await ingest.run_until_idle() == 200
            assert sorted([entry.value.n async for entry in log.read()]) == list(range(200))


def test_a_queue_shows_no_key() -> None:
    queue = azure.connect(cosmos=COSMOS, database="bank", servicebus=BUS).queue("sums")
    shown = everything_about(queue) + everything_about(QueueOutput(queue))
    assert "QueueRef" in shown and KEY not in shown


# Blobs


@pytest.fixture
async def account() -> AsyncIterator[str]:
    async with blob_emulator() as emulator:
        yield emulator.connection.connection_string


async def test_logs_and_registers_live_on_blobs_alone(account: str) -> None:
    async with azure.blob_states(account, create=True) as one, azure.blob_states(account) as other:
        numbers: OrderedLog[Number] = OrderedLog("numbers", one, type=Number)
        assert str(await numbers.append(Number(1), id="a")) == "0.0"
        await numbers.append(Number(2), id="b")

        def processor(states: Any) -> Processor[Total]:
            sums: OrderedLog[Number] = OrderedLog("sums", states, type=Number)
            log: OrderedLog[Number] = OrderedLog("numbers", states, type=Number)
            return Processor(
                "sums", sum_up, state=Total, register=states, inputs={"numbers": log}, outputs={"sums": sums}
            )

        assert await processor(one).run_until_idle(seconds=20) > 0
        assert await processor(other).run_until_idle(seconds=20) == 0
        found: OrderedLog[Number] = OrderedLog("sums", other, type=Number)
        assert [entry.value async for entry in found.read()] == [Number(1), Number(3)]


async def test_what_is_too_large_for_a_document_lies_beside_it_until_it_is_trimmed(account: str) -> None:
    async with azure.blob_states(account, container="texts", create=True) as states:
        texts: OrderedLog[str] = OrderedLog("texts", states, type=str)
        await texts.append("x" * 2_000_000, id="a")
        (entry,) = [entry async for entry in texts.read()]
        assert len(entry.value) == 2_000_000
        cell = await texts.row(0, 0).cells.read(0)
        assert cell is not None and cell.blob and await states.blobs.read(cell.blob, bytes_max=1 << 22)
        assert await texts.trim(min_age=timedelta(0)) == 1
        assert await states.blobs.read(cell.blob, bytes_max=1 << 22) is None


async def test_a_container_that_is_not_there_is_refused_and_not_made(account: str) -> None:
    async with azure.blob_states(account) as states:
        numbers: OrderedLog[Number] = OrderedLog("numbers", states, type=Number)
        with pytest.raises(Refused, match="container"):
            await numbers.append(Number(1), id="a")


async def test_blob_states_shows_no_key_and_closes_what_it_opened_only() -> None:
    states = azure.blob_states(BLOBS)
    shown = everything_about(states)
    assert "BlobStates" in shown and KEY not in shown and KEY not in repr(states)
    async with azure.blob_states("https://bank.blob.core.windows.net", credential=Token()) as given:
        assert given.store.capabilities.atomic_scope == "item"
    with pytest.raises(ValueError, match="blobs= is neither") as caught:
        azure.blob_states(f"SharedAccessSignature={KEY}")
    assert KEY not in str(caught.value)


async def test_an_address_is_asked_for_with_an_identity_that_is_closed_again() -> None:
    async with azure.blob_states("https://bank.blob.core.windows.net") as states:
        identity: Identity = states._identity
        assert identity._made is not None
    assert identity._made is None


def test_what_has_no_documents_is_no_place_for_a_log() -> None:
    with pytest.raises(NotRegistrable, match=re.escape("azure.blob_states(...)")):
        OrderedLog("numbers", "a folder", type=Number)
