"""What is still there after a restart, and after a process was killed while clients wrote."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobLeaseClient, BlobServiceClient, ContainerClient

from outbox.azure.transport import OnceTransport
from outbox.emulator.blobs.catalog import Piece
from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.blobs.store import DATA
from outbox.engine.engine import Engine
from outbox.engine.log import records
from tests.wire.blobs.asking import ask, signed

ROOT = Path(__file__).resolve().parents[3]
LEASE = "11111111-1111-1111-1111-111111111111"
LIFE_COUNT = 3
LIFE_S = 0.5
SERVER = """
import asyncio, sys
from outbox.emulator.blobs.server import BlobEmulator
from outbox.engine.engine import Engine

async def main(folder):
    async with Engine.open(folder) as engine, BlobEmulator(engine, port=0) as emulator:
        print(emulator.connection.connection_string, flush=True)
        await asyncio.sleep(120)

asyncio.run(main(sys.argv[1]))
"""


def client_of(connection: str) -> BlobServiceClient:
    return BlobServiceClient.from_connection_string(connection, retry_total=0, transport=OnceTransport())


async def everything(box: ContainerClient) -> Any:
    """What a client can see of a container."""
    found = []
    async for blob in box.list_blobs(include=["metadata", "tags"]):
        data = await (await box.download_blob(blob.name)).readall()
        found.append((blob.name, data, blob.etag, blob.last_modified, blob.metadata, blob.tags, blob.lease.state))
    committed, uncommitted = await box.get_blob_client("in blocks").get_block_list("all")
    return found, [block.id for block in committed], [(block.id, block.size) for block in uncommitted]


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Engine, BlobServiceClient]]:
    """An emulator on a folder, and a client of it."""
    async with (
        Engine.open(folder / "log") as engine,
        BlobEmulator(engine, port=0) as emulator,
        client_of(emulator.connection.connection_string) as client,
    ):
        yield engine, client


async def test_a_restarted_emulator_has_everything(disk_path: Path) -> None:
    async with opened(disk_path) as (_, client):
        box = await client.create_container("box", metadata={"a": "1"})
        await box.upload_blob("whole", b"x" * 100, metadata={"kind": "y"}, tags={"n": "1"})
        await BlobLeaseClient(box.get_blob_client("whole"), LEASE).acquire(-1)
        blocks = box.get_blob_client("in blocks")
        for n in ("1", "2", "3"):
            await blocks.stage_block(n, n.encode() * 5)
        await blocks.commit_block_list([BlobBlock("2"), BlobBlock("1"), BlobBlock("2")])
        await blocks.stage_block("4", b"later")
        await box.upload_blob("gone", b"1")
        await box.delete_blob("gone")
        before = await everything(box)
    async with opened(disk_path) as (engine, client):
        box = client.get_container_client("box")
        assert await everything(box) == before
        assert (await box.get_container_properties()).metadata == {"a": "1"}
        blocks = box.get_blob_client("in blocks")
        await blocks.commit_block_list([BlobBlock("1"), BlobBlock("4")])
        assert await (await blocks.download_blob()).readall() == b"11111later"
        etag = (await blocks.upload_blob(b"new", overwrite=True))["etag"]
        assert etag not in {blob[2] for blob in before[0]}
        pieces = engine.state.documents.spaces[DATA]
        assert sorted(bytes(piece.value) for piece in pieces.values()) == [b"new", b"x" * 100]


async def test_what_a_crash_left_of_a_write_is_removed() -> None:
    async with Engine.in_memory() as engine:
        async with BlobEmulator(engine, port=0) as emulator:
            await ask(emulator, signed("PUT", "/box?restype=container"))
            await ask(emulator, signed("PUT", "/box/a", b"kept", x_ms_blob_type="BlockBlob"))
            await emulator.store.put_pieces(b"nobody's")
            held = emulator.store.container("box")
            await ask(emulator, signed("PUT", "/bin?restype=container"))
            await ask(emulator, signed("PUT", "/bin/a", b"gone", x_ms_blob_type="BlockBlob"))
            gone = emulator.store.container("bin").definition.rid
            engine.core.do(
                records.Modified(engine.now_ms(), records.Modify(document_deletes=[records.DocRef("blobs", gone, 1)]))
            )
        async with BlobEmulator(engine, port=0) as emulator:
            assert list(emulator.store.containers) == ["box"]
            assert [bytes(piece.value) for piece in engine.state.documents.spaces[DATA].values()] == [b"kept"]
            reply = await ask(emulator, signed("GET", "/box/a"))
            assert reply.body == b"kept" and held.blobs["a"].pieces == (Piece("000000000001", 4),)


async def test_a_container_that_is_deleted_leaves_nothing() -> None:
    async with Engine.in_memory() as engine, BlobEmulator(engine, port=0) as emulator:
        for container in ("box", "bin"):
            await ask(emulator, signed("PUT", f"/{container}?restype=container"))
        for n in range(3):
            await ask(emulator, signed("PUT", f"/box/{n}", b"x", x_ms_blob_type="BlockBlob"))
            await ask(emulator, signed("PUT", f"/box/{n}?comp=block&blockid=MQ==", b"y"))
        assert (await ask(emulator, signed("DELETE", "/box?restype=container"))).status == 202
        assert engine.state.documents.count == 1  # the other container


async def test_nothing_is_answered_before_it_is_on_disk(disk_path: Path) -> None:
    async with Engine.open(disk_path / "log") as engine, BlobEmulator(engine, port=0) as emulator:
        for request in (
            signed("PUT", "/box?restype=container"),
            signed("PUT", "/box/a", b"1", x_ms_blob_type="BlockBlob"),
            signed("PUT", "/box/a?comp=block&blockid=MQ==", b"y"),
            signed("PUT", "/box/a?comp=metadata", x_ms_meta_a="1"),
            signed("DELETE", "/box/a"),
        ):
            assert (await ask(emulator, request)).status < 300
            assert engine.log is not None and engine.log.synced == engine.log.appended


async def test_what_was_acknowledged_survives_kills(disk_path: Path) -> None:
    """Each blob is what its last acknowledged write made it, or what one later write did whose answer never came."""
    chance = random.Random(5)
    may_be: dict[str, set[bytes | None]] = {}
    for life in range(LIFE_COUNT):
        server = subprocess.Popen(  # noqa: ASYNC220  # a process to kill, started once a life
            [sys.executable, "-c", SERVER, str(disk_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        async with client_of(server.stdout.readline().strip()) as client:
            box = client.get_container_client("box")
            if not life:
                await box.create_container()
            for name, possible in may_be.items():
                found = await _read(box, name)
                assert found in possible, f"life {life}, {name}"
                may_be[name] = {found}
            seeds = [(f"b{n}", random.Random(chance.random())) for n in range(4)]
            writers = [asyncio.create_task(_write(box, name, may_be, seed)) for name, seed in seeds]
            await asyncio.sleep(LIFE_S)
            server.kill()
            server.wait(10)
            server.stdout.close()
            await asyncio.gather(*writers)
    assert len(may_be) == 4


async def _read(box: ContainerClient, name: str) -> bytes | None:
    if not await box.get_blob_client(name).exists():
        return None
    data: bytes = await (await box.download_blob(name)).readall()
    return data


async def _write(box: ContainerClient, name: str, may_be: dict[str, set[bytes | None]], chance: random.Random) -> None:
    """Write one blob over and over, at once or in blocks, until the server is gone."""
    blob, possible = box.get_blob_client(name), may_be.setdefault(name, {None})
    with suppress(AzureError):
        while True:
            data = None if chance.random() < 0.2 else chance.randbytes(chance.randrange(1, 5_000))
            possible.add(data)
            if data is None:
                await _delete(blob)
            elif chance.random() < 0.5:
                await blob.upload_blob(data, overwrite=True)
            else:
                await blob.stage_block("1", data)
                await blob.commit_block_list([BlobBlock("1")])
            possible.clear()
            possible.add(data)


async def _delete(blob: Any) -> None:
    if await blob.exists():
        await blob.delete_blob()
