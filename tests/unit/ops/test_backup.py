"""A folder is copied as of one ordinal, whatever its host does meanwhile, and restored as a log of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest

from outbox import App, Client, Context, Engine, Worker
from outbox.engine.backend.blobs import keep_deleted
from outbox.engine.entities import QueueSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log.disk import FolderDisk
from outbox.engine.log.segments import Limits, recover
from outbox.engine.log.wal import Log
from outbox.errors import CorruptRecord, LockLost, Refused
from outbox.message import Message
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.folder import backup as backing
from outbox.ops.folder.backup import back_up, restore
from outbox.ops.folder.backup_files import copied
from outbox.ops.host.audit import Audit, judge
from outbox.ops.values.status import Seal


@dataclass
class Order:
    customer: str


@dataclass
class Customer:
    orders: int = 0


@dataclass
class Receipt:
    customer: str


def made() -> App:
    """Each order counts in a state and leaves a receipt, by one commit: in any copy the three numbers are equal."""
    app = App("shop")
    app.queue("receipts")

    @app.handler("orders", key="customer")
    def take(order: Order, customer: Customer, ctx: Context) -> None:
        customer.orders += 1
        ctx.send("receipts", Receipt(order.customer))

    return app


def numbers(engine: Engine) -> tuple[int, int, int]:
    """Orders handled, orders counted in states, and receipts."""
    orders, receipts = engine.broker.queue("orders"), engine.broker.queue("receipts")
    counted = sum(json.loads(each.value)["orders"] for each in engine.state.documents.spaces["state"].values())
    return orders.received_count - len(orders.tasks), counted, receipts.received_count


async def fed(worker: Worker, first: int, count: int) -> None:
    for number in range(first, first + count):
        await worker.send("orders", Order(f"c{number % 7}"), id=f"o{number}")


async def handled(folder: Path, count: int = 20, first: int = 0) -> None:
    async with Engine.open(folder) as engine, Worker(made(), engine) as worker:
        await fed(worker, first, count)
        await worker.wait_idle(timeout_s=20)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def in_thread(call: Callable[[], Any]) -> Any:
    return asyncio.to_thread(lambda: asyncio.run(call()))


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
async def test_under_load_a_backup_is_one_moment_and_has_all_that_was_acknowledged(
    name: str, disk_path: Path, tmp_path: Path
) -> None:
    folder, target, fresh = disk_path / "data", tmp_path / name, disk_path / "fresh"
    limits = EngineLimits(segment_bytes_max=20_000)
    async with Engine.open(folder, limits=limits) as engine, serve_control(EngineAdmin(engine), folder):
        async with Worker(made(), engine) as worker:
            await fed(worker, 0, 150)
            load = asyncio.create_task(fed(worker, 150, 100_000))
            done = await in_thread(lambda: back_up(folder, target))
            assert not load.done(), "the load ended before the backup"
            load.cancel()
            await worker.wait_idle(timeout_s=20)
            count = engine.broker.queue("orders").received_count
        assert done.ordinal > 0 and done.cut_bytes == 0
    assert restore(target, fresh).ordinal == done.ordinal
    history = tmp_path / "history.jsonl"
    async with Engine.open(fresh) as engine:
        assert len(set(numbers(engine))) == 1, numbers(engine)
        assert engine.broker.queue("orders").received_count >= 150
        audit = Audit(engine, made(), history)
        async with Worker(made(), audit.backend) as worker:
            await fed(worker, 0, count)  # what came after the cut is sent again, and what was before it is a duplicate
            await worker.wait_idle(timeout_s=20)
        audit.end()
        assert numbers(engine)[1:] == (count, count)
    assert judge(history).ok, judge(history).text


async def test_a_large_body_that_comes_while_others_are_copied_is_behind_the_cut(
    disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loop, copy = disk_path / "data", asyncio.get_running_loop(), backing._blobs
    async with Engine.open(folder) as engine, serve_control(EngineAdmin(engine), folder):
        client = Client(made(), engine)
        await client.declare()

        def late(root: Path, *folders: Path) -> Any:
            files = copy(root, *folders)
            sent = client.send("orders", Order("c" * 2_000_000), id="late")
            asyncio.run_coroutine_threadsafe(sent, loop).result(20)
            return files

        monkeypatch.setattr(backing, "_blobs", late)
        await in_thread(lambda: back_up(folder, tmp_path / "backup"))
        assert len(engine.broker.queue("orders").tasks) == 1
    restore(tmp_path / "backup", disk_path / "fresh")
    with closing(Engine.open(disk_path / "fresh")) as restored:
        assert restored.broker.queue("orders").tasks == {}


async def test_a_restored_log_is_another_one_and_voids_the_locks_of_the_first(disk_path: Path, tmp_path: Path) -> None:
    folder, fresh = disk_path / "data", disk_path / "fresh"
    await handled(folder)
    await back_up(folder, tmp_path / "backup")
    restore(tmp_path / "backup", fresh)
    clocks = [recover(FolderDisk(path), Limits()).clock_ms for path in (tmp_path / "backup" / "log", fresh)]
    assert clocks[0] == clocks[1], "its time goes on where the backup's ends"
    with closing(Engine.open(folder)) as first:
        [claim] = first.broker.claim("receipts", 1)
    with closing(Engine.open(fresh)) as second:
        second.broker.claim("receipts", 1)
        with pytest.raises(LockLost):
            second.broker.locked(claim.token)
        assert numbers(second) == (20, 20, 20)
    found = [recover(FolderDisk(path), Limits()) for path in (folder, fresh)]
    assert found[0].log_id != found[1].log_id and found[1].epoch - found[0].epoch > 100


async def test_without_a_host_a_torn_tail_is_left_out_and_the_folder_stays_as_it_is(
    disk_path: Path, tmp_path: Path
) -> None:
    folder = disk_path / "data"
    engine = Engine.open(folder)
    engine.declare(QueueSettings("orders"))
    engine.broker.send("orders", [Message(body=b"{}", outbox_id="m1")])
    engine.core.flush()
    copy = disk_path / "killed"
    shutil.copytree(folder, copy)  # as `kill -9` leaves it
    engine.close()
    last = max(copy.glob("*.log"))
    data = last.read_bytes().rstrip(b"\0")
    last.write_bytes(data + b"\x00\xff half a record")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    done = await back_up(copy, tmp_path / "backup")
    assert done.cut_bytes > 0
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    restore(tmp_path / "backup", disk_path / "fresh")
    with closing(Engine.open(disk_path / "fresh")) as restored:
        assert [task.message.identity for task in restored.broker.peek("orders", 0, 9)] == ["m1"]
        assert restored.log is not None and restored.log.recovered.cut_bytes == 0


async def test_a_backup_between_a_snapshot_and_the_removal_of_what_it_replaces_is_whole(
    disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fresh = disk_path / "data", disk_path / "fresh"
    monkeypatch.setattr(Log, "retire", lambda self, upto: None)
    async with Engine.open(folder, limits=EngineLimits(segment_bytes_max=20_000), compact=False) as engine:
        engine.declare(QueueSettings("orders"))
        for number in range(60):
            if number in (20, 40):
                engine.compact()
                assert len(list(folder.glob("*.log"))) > 2, "segments lie below the snapshot"
            engine.broker.send("orders", [Message(body=b"x" * 1_000, outbox_id=f"m{number}")])
            engine.core.flush()
        async with serve_control(EngineAdmin(engine), folder):
            await in_thread(lambda: back_up(folder, tmp_path / "backup"))
    newest = max(path.name for path in folder.glob("*.snapshot"))
    assert [path.name for path in (tmp_path / "backup" / "log").glob("*.snapshot")] == [newest]
    restore(tmp_path / "backup", fresh)
    with closing(Engine.open(fresh)) as restored:
        assert len(restored.broker.queue("orders").tasks) == 60


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_large_bodies_come_along(is_hosted: bool, disk_path: Path, tmp_path: Path) -> None:
    folder, fresh, large = disk_path / "data", disk_path / "fresh", b"x" * ((1 << 20) + 1)
    async with Engine.open(folder) as engine:
        await engine.blobs.write("large", large)
        if is_hosted:
            async with serve_control(EngineAdmin(engine), folder):
                done = await in_thread(lambda: back_up(folder, tmp_path / "backup.tar"))
    if not is_hosted:
        done = await back_up(folder, tmp_path / "backup.tar")
    assert done.file_count < 9 and len(large) < done.size_bytes < 2 * len(large)
    restore(tmp_path / "backup.tar", fresh)
    with closing(Engine.open(fresh)) as restored:
        assert await restored.blobs.read("large", bytes_max=1 << 21) == large
    assert not (fresh / "access.key").exists()


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
async def test_a_backup_is_private_and_synced_before_it_has_its_name(
    name: str, disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, target, synced, real = disk_path / "data", tmp_path / name, set[str](), os.fsync
    async with Engine.open(folder) as engine:
        await engine.blobs.write("large", b"x")

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.add(path.name if not target.exists() else f"late {path.name}")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await back_up(folder, target)
    assert f"late {tmp_path.name}" in synced, "the name itself is synced too"
    parts = [target, *target.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in parts} <= {0o600, 0o700}
    found = {path.name for path in parts if path.is_file()}
    assert found <= synced or [each for each in synced if each.endswith(".tar.tmp")], found - synced


async def test_a_copy_that_is_not_what_was_read_gets_no_name(
    disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk_path / "data"
    async with Engine.open(folder) as engine:
        await engine.blobs.write("large", b"x" * 1_000)

    def copy(source: Path, root: Path, name: str) -> Any:
        done = copied(source, root, name)
        flip(root / name)
        return done

    monkeypatch.setattr(backing, "copied", copy)
    with pytest.raises(CorruptRecord, match="are not those that were backed up"):
        await back_up(folder, tmp_path / "backup")
    assert names(tmp_path) == []


async def test_a_copy_that_ends_before_the_seal_gets_no_name(disk_path: Path, tmp_path: Path) -> None:
    class Ahead:
        async def ask(self, asked: Any) -> Any:
            found = await admin.ask(asked)
            return found + 9 if isinstance(asked, Seal) else found

    folder, ahead = disk_path / "data", Ahead()
    async with Engine.open(folder) as engine:
        admin = EngineAdmin(engine)
        async with serve_control(cast(Any, ahead), folder):
            with pytest.raises(CorruptRecord, match=r"the copy ends at ordinal \d+, before"):
                await in_thread(lambda: back_up(folder, tmp_path / "backup"))
    assert names(tmp_path) == []


async def test_a_large_body_that_is_deleted_behind_the_cut_comes_along(
    disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fresh = disk_path / "data", disk_path / "fresh"

    def sealed(*given: Any) -> Any:
        asyncio.run_coroutine_threadsafe(engine.blobs.delete("large"), loop).result(20)
        with pytest.raises(Refused, match="another backup"), keep_deleted(folder / "blobs"):
            pass
        return real(*given)

    loop, real = asyncio.get_running_loop(), backing._sealed
    monkeypatch.setattr(backing, "_sealed", sealed)
    async with Engine.open(folder) as engine:
        await engine.blobs.write("large", b"x" * 300_000)
        async with serve_control(EngineAdmin(engine), folder):
            await in_thread(lambda: back_up(folder, tmp_path / "backup"))
    assert list((folder / "blobs").iterdir()) == []
    restore(tmp_path / "backup", fresh)
    with closing(Engine.open(fresh)) as restored:
        assert await restored.blobs.read("large", bytes_max=1 << 20) == b"x" * 300_000


async def test_a_large_body_that_is_deleted_while_another_is_copied_comes_along(
    disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fresh, deleted = disk_path / "data", disk_path / "fresh", list[str]()

    def copy(source: Path, root: Path, name: str) -> Any:
        if source.suffix == ".blob" and not deleted:
            deleted.extend(one for one in ("one", "two") if sha256(one.encode()).hexdigest() != source.stem)
            asyncio.run_coroutine_threadsafe(engine.blobs.delete(deleted[0]), loop).result(20)
        return copied(source, root, name)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(backing, "copied", copy)
    async with Engine.open(folder) as engine:
        for name in ("one", "two"):
            await engine.blobs.write(name, b"x" * 300_000)
        async with serve_control(EngineAdmin(engine), folder):
            await in_thread(lambda: back_up(folder, tmp_path / "backup"))
        assert await engine.blobs.read(deleted[0], bytes_max=1 << 20) is None
    restore(tmp_path / "backup", fresh)
    with closing(Engine.open(fresh)) as restored:
        for name in ("one", "two"):
            assert await restored.blobs.read(name, bytes_max=1 << 20) == b"x" * 300_000


async def test_a_file_that_is_retired_meanwhile_makes_the_copy_begin_again(
    disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls, limits = disk_path / "data", list[str](), EngineLimits(segment_bytes_max=2_000)
    async with Engine.open(folder, limits=limits) as engine, serve_control(EngineAdmin(engine), folder):
        async with Worker(made(), engine) as worker:
            await fed(worker, 0, 20)
            await worker.wait_idle(timeout_s=20)

        def copy(source: Path, root: Path, name: str) -> Any:
            calls.append(name)
            if len(calls) == 2:
                asyncio.run_coroutine_threadsafe(engine.compact_in_background(), loop).result(20)
            return copied(source, root, name)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(backing, "copied", copy)
        await in_thread(lambda: back_up(folder, tmp_path / "backup"))
    assert any(name.endswith(".snapshot") for name in calls)
    restore(tmp_path / "backup", disk_path / "fresh")
    with closing(Engine.open(disk_path / "fresh")) as restored:
        assert numbers(restored) == (20, 20, 20)


# Damage, and what is no backup


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damages() -> dict[str, tuple[Callable[[Path], object], str]]:
    return {
        "a flipped bit": (lambda root: flip(next((root / "log").iterdir())), "are not those that were backed up"),
        "a missing file": (lambda root: next((root / "log").iterdir()).unlink(), "is missing"),
        "a shorter file": (lambda root: next((root / "log").iterdir()).write_bytes(b"x"), "bytes, not"),
        "a file more": (lambda root: (root / "log" / f"{99:016x}.log").write_bytes(b""), "does not belong to it"),
        "no manifest": (lambda root: (root / "backup.json").unlink(), "is no backup"),
        "a broken manifest": (lambda root: (root / "backup.json").write_bytes(b"[" * 5_000), "cannot be read"),
        "a manifest that leads outside": (
            lambda root: rewrite(root, lambda found: found["files"][0].update(name="log/../../x")), "is missing",
        ),
        "a name of another form": (lambda root: rewrite(root, lead_round), "is missing"),
        "a link": (lambda root: link(next((root / "log").iterdir())), "is missing"),
        "a later format": (lambda root: rewrite(root, lambda found: found.update(format=2)), "format 2"),
        "another end": (lambda root: rewrite(root, lambda found: found.update(ordinal=1)), "ends at ordinal"),
    }  # fmt: skip


def lead_round(manifest: Any) -> None:
    manifest["files"][0]["name"] = f"log/../{manifest['files'][0]['name']}"


def link(path: Path) -> None:
    path.rename(path.parents[1] / "elsewhere")
    path.symlink_to(path.parents[1] / "elsewhere")


def rewrite(root: Path, change: Callable[[Any], object]) -> None:
    found = json.loads((root / "backup.json").read_text())
    change(found)
    (root / "backup.json").write_text(json.dumps(found))


@pytest.mark.parametrize("damage", damages())
async def test_a_damaged_backup_restores_nothing(damage: str, disk_path: Path, tmp_path: Path) -> None:
    change, why = damages()[damage]
    await handled(disk_path / "data", 3)
    await back_up(disk_path / "data", tmp_path / "backup")
    change(tmp_path / "backup")
    with pytest.raises((CorruptRecord, Refused), match=why):
        restore(tmp_path / "backup", disk_path / "fresh")
    assert not (disk_path / "fresh").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "log/../x.log", "log/0000000000000001.log/", "other"])
async def test_a_packed_backup_holds_nothing_else(name: str, disk_path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "backup.tar"
    with tarfile.open(packed, "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(CorruptRecord, match="no part of a backup"):
        restore(packed, disk_path / "fresh")
    packed.write_bytes(b"no archive")
    with pytest.raises(CorruptRecord, match="cannot be unpacked"):
        restore(packed, disk_path / "fresh")


def test_the_commands_say_what_they_did_and_write_over_nothing(
    disk_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, fresh, target = disk_path / "data", disk_path / "fresh", tmp_path / "backup.tar"
    asyncio.run(handled(folder, 3))
    assert main(["backup", str(target), "--data", str(folder), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert main(["restore", str(target), "--data", str(fresh)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"restored {fresh} as it was at 20") and f"(ordinal {done['ordinal']})" in out
    assert main(["state", "Customer", "c1", "--data", str(fresh), "--json"]) == 0
    assert capsys.readouterr().out == '{"orders":1}\n'
    for words, why in (
        (["backup", str(target), "--data", str(folder)], "is there already; name a new folder"),
        (["backup", str(tmp_path / "no" / "x"), "--data", str(folder)], "its folder is not there"),
        (["backup", str(tmp_path / "x"), "--data", str(tmp_path / "none")], "there is no such folder"),
        (["restore", str(target), "--data", str(fresh)], "is there already; restore into an empty or new folder"),
        (["restore", str(tmp_path / "none"), "--data", str(tmp_path / "y")], "is not there; name what"),
        (["restore", str(folder), "--data", str(tmp_path / "y")], "is no backup"),
        (["restore", str(target), "--data", str(tmp_path / "no" / "y")], "its folder is not there"),
    ):
        assert main(words) == 1
        assert why in capsys.readouterr().err
