"""The folder of blobs: what survives a power loss, and what a disk that refuses becomes."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from outbox import App, Client, Engine, Worker
from outbox.engine.backend import blobs
from outbox.engine.backend.blobs import DELETED, FolderBlobStore, MemoryBlobStore, keep_deleted
from outbox.engine.log.disk import hold
from outbox.errors import Refused, Throttled, TooLarge

OPEN = Path("/proc/self/fd")
"""What this process has open."""


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders and files that were flushed, in order."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_new_folder_and_its_new_parents_are_in_their_parents_for_good(disk_path: Path, synced: list[Path]) -> None:
    FolderBlobStore(disk_path / "a" / "blobs")
    assert {disk_path, disk_path / "a"} <= set(synced)
    synced.clear()
    FolderBlobStore(disk_path / "a" / "blobs")  # whoever made it may have lost its power before it was synced
    assert disk_path / "a" in synced


async def test_a_blob_is_in_its_folder_for_good_whichever_process_wrote_it_first(
    disk_path: Path, synced: list[Path]
) -> None:
    store = FolderBlobStore(disk_path)
    synced.clear()
    assert await store.write("a", b"1")
    assert synced[-1] == disk_path and len(synced) == 2
    synced.clear()
    assert not await store.write("a", b"1")
    assert synced[-1] == disk_path


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.iterdir()]


async def test_others_go_on_while_a_large_blob_is_written_and_one_that_was_given_up_is_written_again(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real, opened, go = FolderBlobStore(disk_path), os.fsync, threading.Event(), threading.Event()

    def fsync(descriptor: int) -> None:
        opened.set()
        assert go.wait(10)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    data = bytes(blobs.LARGE_BYTES)
    writes = [asyncio.create_task(store.write("a", data)) for _ in range(2)]
    assert await asyncio.to_thread(opened.wait, 10)  # the loop goes on
    writes[0].cancel()
    go.set()
    await asyncio.wait(writes, timeout=10)
    assert await store.read("a", bytes_max=len(data)) == data
    await asyncio.get_running_loop().shutdown_default_executor()  # also the thread of the one that was given up
    assert contents(disk_path) == [data]


async def test_what_a_killed_backup_has_left_is_removed_by_the_next_deletion(disk_path: Path) -> None:
    store = FolderBlobStore(disk_path)
    for name in "abc":
        await store.write(name, b"1")
    with keep_deleted(disk_path) as deleted:
        await store.delete("a")
        assert len(list(deleted.glob("*.blob"))) == 1 and await store.read("a", bytes_max=1) is None
        left = shutil.copytree(deleted, disk_path / "left")
    assert not deleted.exists()
    left.rename(disk_path / DELETED)
    await store.delete("b")
    assert not deleted.exists() and await store.read("b", bytes_max=1) is None
    assert await store.read("c", bytes_max=1) == b"1"


async def test_a_backup_begins_with_nothing_that_another_one_has_left(disk_path: Path) -> None:
    store = FolderBlobStore(disk_path)
    (disk_path / DELETED).mkdir()
    (disk_path / DELETED / "0.blob").touch()
    with keep_deleted(disk_path) as deleted:
        assert list(deleted.iterdir()) == []
    await store.delete("a")  # which is not there


@pytest.mark.parametrize("error", [BlockingIOError, FileNotFoundError])
def test_a_backup_tries_five_times_to_hold_what_a_host_is_removing(
    error: type[OSError], disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, busy_count = list[Path](), 4

    def busy(folder: Path, flags: int) -> int:
        tries.append(folder)
        if len(tries) <= busy_count:
            folder.rmdir()
            raise error
        return hold(folder, flags)

    monkeypatch.setattr(blobs, "hold", busy)
    monkeypatch.setattr(blobs, "HOLD_PAUSE_S", 0)
    with keep_deleted(disk_path):
        assert len(tries) == 5
    busy_count = 10
    with pytest.raises(Refused, match="another backup of it is running"), keep_deleted(disk_path):
        pass
    assert len(tries) == 10


async def test_what_is_flushed_of_a_blob_is_all_of_it(disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes_bytes: list[int] = []
    store = FolderBlobStore(disk_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes_bytes.append(os.fstat(descriptor).st_size))
    assert await store.write("a", b"1234567")
    assert sizes_bytes[0] == 7


@pytest.mark.parametrize("kind", ["folder", "memory"])
async def test_a_blob_is_read_whole_or_refused(disk_path: Path, kind: str) -> None:
    store = FolderBlobStore(disk_path) if kind == "folder" else MemoryBlobStore()
    await store.write("claims/a", b"1234567")
    assert await store.read("claims/a", bytes_max=7) == b"1234567"
    with pytest.raises(TooLarge, match="claims/a"):
        await store.read("claims/a", bytes_max=6)


async def test_the_memory_names_the_blobs_of_one_folder() -> None:
    store = MemoryBlobStore()
    for name in ("a/1", "ab/1", "a/2", "a"):
        await store.write(name, b"1")
    assert [name async for name in store.names("a")] == ["a/1", "a/2"]


def test_a_blob_is_its_owner_s_and_nothing_else_stays_in_the_folder(disk_path: Path) -> None:
    store = FolderBlobStore(disk_path)

    async def write_and_delete() -> None:
        for name in ("a", "a", "b"):
            await store.write(name, b"1")
        with keep_deleted(disk_path):
            await store.delete("b")

    open_before = {path.name for path in OPEN.iterdir()}
    asyncio.run(write_and_delete())
    (left,) = disk_path.iterdir()
    assert left.suffix == ".blob" and stat.S_IMODE(left.stat().st_mode) == 0o600
    assert {path.name for path in OPEN.iterdir()} == open_before


CALLS: dict[str, Callable[[FolderBlobStore], Awaitable[object]]] = {
    "write": lambda store: store.write("a", b"1"),
    "read": lambda store: store.read("a", bytes_max=9),
    "delete": lambda store: store.delete("a"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_what_the_disk_refuses_is_to_be_tried_again(disk_path: Path, call: str) -> None:
    store = FolderBlobStore(disk_path / "blobs")
    (disk_path / "blobs").rmdir()
    (disk_path / "blobs").touch()
    with pytest.raises(Throttled, match=r"blob a could not be .* tried again"):
        await CALLS[call](store)


def test_a_folder_that_cannot_be_made_is_named_in_the_error(disk_path: Path) -> None:
    (disk_path / "file").touch()
    with pytest.raises(Throttled, match="file/blobs"):
        FolderBlobStore(disk_path / "file" / "blobs")


@dataclass
class Note:
    """A large message."""

    text: str


async def test_a_disk_that_refuses_for_a_while_holds_a_large_message_up_and_no_longer(disk_path: Path) -> None:
    app, seen = App("large", claim_check_bytes=100), list[int]()
    blobs, away = disk_path / "log" / "blobs", disk_path / "away"

    @app.handler("notes")
    def handle(note: Note) -> None:
        seen.append(len(note.text))

    async with Engine.open(disk_path / "log") as engine:
        client = Client(app, engine)
        await client.declare()
        await client.send("notes", Note("x" * 1_000), id="taken")
        shutil.move(blobs, away)
        blobs.touch()
        with pytest.raises(Throttled):
            await client.send("notes", Note("x" * 1_000), id="refused")
        async with Worker(app, engine) as worker:
            await asyncio.sleep(0.1)
            assert seen == []
            blobs.unlink()
            shutil.move(away, blobs)
            await worker.wait_idle(timeout_s=5)
    assert seen == [1_000]
