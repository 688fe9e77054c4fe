"""Large blobs: uploads in blocks by the SDK, answers in pieces, writes that others come between, a full engine."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob.aio import BlobServiceClient

from outbox.emulator.blobs.catalog import Piece
from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.blobs.store import DATA, PIECE_BYTES
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from tests.wire.blobs.asking import ask, signed

DATA_BYTES = 2 * PIECE_BYTES + 1_000


def held_bytes(engine: Engine) -> int:
    """How many bytes of blobs an engine holds."""
    return sum(len(piece.value) for piece in engine.state.documents.spaces.get(DATA, {}).values())


async def test_a_large_upload_of_the_sdk_comes_back(emulator: BlobEmulator) -> None:
    data = random.Random(1).randbytes(DATA_BYTES)
    sizes: dict[str, Any] = {"max_single_put_size": 1 << 20, "max_block_size": 1 << 20, "max_single_get_size": 1 << 20}
    async with BlobServiceClient.from_connection_string(emulator.connection.connection_string, **sizes) as client:
        box = client.get_container_client("box")
        await box.upload_blob("large", data, max_concurrency=3)
        assert await (await box.download_blob("large", max_concurrency=3)).readall() == data
        await box.upload_blob("large", data[:5], overwrite=True)
    used = emulator.usage()
    assert used["block.put"].count == 9 and used["block.commit"].count == 1
    assert held_bytes(emulator.engine) == 5


async def test_an_answer_in_pieces_is_all_of_the_blob(emulator: BlobEmulator) -> None:
    data = random.Random(2).randbytes(DATA_BYTES)
    await ask(emulator, signed("PUT", "/box/a", data, x_ms_blob_type="BlockBlob"))
    assert len(emulator.store.container("box").blobs["a"].pieces) == 3
    assert (await ask(emulator, signed("GET", "/box/a"))).body == data


async def test_behind_an_answer_in_pieces_a_client_that_only_listens_is_let_go(emulator: BlobEmulator) -> None:
    await ask(emulator, signed("PUT", "/box/a", bytes(DATA_BYTES), x_ms_blob_type="BlockBlob"))
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    writer.write(signed("GET", "/box/a"))
    writer.write_eof()
    async with asyncio.timeout(5):  # it was held for half a minute
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_of_two_large_blobs_under_one_name_one_is_made_and_the_other_leaves_nothing(
    emulator: BlobEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pieces, is_first = emulator.store.put_pieces, [True]

    async def overtaken(body: bytes) -> tuple[Piece, ...]:
        """Keeps the bytes of the first, and lets another write come before it is made."""
        pieces = await put_pieces(body)
        if is_first:
            is_first.clear()
            await box.upload_blob("a", bytes(DATA_BYTES))
        return pieces

    async with BlobServiceClient.from_connection_string(emulator.connection.connection_string) as client:
        box = client.get_container_client("box")
        monkeypatch.setattr(emulator.store, "put_pieces", overtaken)
        with pytest.raises(ResourceExistsError):
            await box.upload_blob("a", bytes([1]) * DATA_BYTES)
        assert await (await box.download_blob("a")).readall() == bytes(DATA_BYTES)
    assert held_bytes(emulator.engine) == DATA_BYTES


async def test_a_block_that_lost_on_its_way_leaves_nothing(
    emulator: BlobEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pieces = emulator.store.put_pieces

    async def overtaken(body: bytes) -> tuple[Piece, ...]:
        """Keeps the bytes of the first, and lets a block with a longer id come before it."""
        pieces = await put_pieces(body)
        monkeypatch.setattr(emulator.store, "put_pieces", put_pieces)
        assert (await ask(emulator, signed("PUT", "/box/a?comp=block&blockid=YWFh", b"12"))).status == 201
        return pieces

    monkeypatch.setattr(emulator.store, "put_pieces", overtaken)
    reply = await ask(emulator, signed("PUT", "/box/a?comp=block&blockid=YQ==", bytes(DATA_BYTES)))
    assert (reply.status, reply.code) == (400, "InvalidBlobOrBlock") and held_bytes(emulator.engine) == 2


async def test_bytes_that_are_broken_off_between_two_pieces_leave_nothing() -> None:
    async with Engine.in_memory() as engine:
        putting = asyncio.create_task(BlobEmulator(engine, port=0).store.put_pieces(bytes(PIECE_BYTES + 1)))
        await asyncio.sleep(0)
        assert held_bytes(engine) == PIECE_BYTES
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert held_bytes(engine) == 0


async def test_what_there_is_no_room_for_is_refused_and_leaves_nothing() -> None:
    limits = EngineLimits(memory_bytes_max=1 << 20)
    async with Engine.in_memory(limits=limits) as engine, BlobEmulator(engine, port=0) as emulator:
        await ask(emulator, signed("PUT", "/box?restype=container"))
        reply = await ask(emulator, signed("PUT", "/box/a", bytes(2 << 20), x_ms_blob_type="BlockBlob"))
        assert (reply.status, reply.code) == (503, "ServerBusy") and held_bytes(engine) == 0
        assert (await ask(emulator, signed("PUT", "/box/a", b"1", x_ms_blob_type="BlockBlob"))).status == 201
