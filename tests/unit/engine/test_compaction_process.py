"""Compaction in a process beside the host: what it does not do in the host, and what its death leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from outbox.engine import engine as hosting
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import compaction_process, snapshot
from outbox.engine.log.disk import FolderDisk, MemoryDisk
from outbox.engine.log.segments import snapshot_name, snapshot_ordinals
from outbox.engine.log.wal import Log
from outbox.errors import Refused
from outbox.message import Message
from tests.unit.waiting import until

LIMITS = EngineLimits(segment_bytes_max=20_000)
COUNT = 500

HOST = """
import asyncio, sys
from pathlib import Path
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox.engine.log import snapshot
from outbox.message import Message

async def main():
    snapshot.SMALL_BYTES, begin = 0, int(sys.argv[2])
    async with Engine.open(sys.argv[1], limits=EngineLimits(segment_bytes_max=20_000)) as engine:
        async def compact():
            while True:
                await engine.compact_in_background()
        task = asyncio.create_task(compact())
        for number in range(begin, begin + 10_000_000):
            engine.broker.send("q", [Message(body=b"x" * 100, outbox_id=str(number))])
            await engine.core.gate()
            print(number, flush=True)
            await asyncio.sleep(0)

asyncio.run(main())
"""


def sent(engine: Engine, *ids: int) -> None:
    for id in ids:
        engine.broker.send("q", [Message(body=b"x" * 100, outbox_id=str(id))])
    engine.core.flush()


def filled(folder: Path) -> Engine:
    engine = Engine.open(folder, limits=LIMITS)
    engine.declare(QueueSettings("q"))
    sent(engine, *range(COUNT))
    return engine


def held(engine: Engine) -> list[int]:
    return [int(task.message.outbox_id) for task in engine.broker.queue("q").tasks.values()]


def log_files(folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.iterdir()) if path.suffix in (".log", ".snapshot", ".tmp")]


def never(*_: object) -> NoReturn:
    raise AssertionError("in the host's own process")


async def test_a_host_decodes_and_encodes_nothing_while_it_compacts(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(disk_path / "data") as engine:
        for name in ("encoded", "restored", "verify", "replay", "bodies"):
            monkeypatch.setattr(snapshot, name, never)
        ordinal = await engine.compact_in_background()
        assert ordinal and snapshot_ordinals(FolderDisk(disk_path / "data").names()) == [ordinal]
        sent(engine, COUNT)
    monkeypatch.undo()
    async with Engine.open(disk_path / "data") as engine:
        assert held(engine) == list(range(COUNT + 1))


async def test_two_compactions_at_once_come_one_after_the_other(disk_path: Path) -> None:
    async with filled(disk_path / "data") as engine:
        ordinals = await asyncio.gather(engine.compact_in_background(), engine.compact_in_background())
        assert ordinals[0] and ordinals[1] in (0, ordinals[0])
        sent(engine, COUNT)
        again = await engine.compact_in_background()
        assert again > ordinals[0] and snapshot_ordinals(FolderDisk(disk_path / "data").names()) == [again]
    async with Engine.open(disk_path / "data") as engine:
        assert held(engine) == list(range(COUNT + 1))


async def test_the_hosts_own_compaction_meanwhile_wins(disk_path: Path) -> None:
    async with filled(disk_path / "data") as engine:
        compacting = asyncio.create_task(engine.compact_in_background())
        await asyncio.sleep(0.05)
        sent(engine, COUNT)
        ordinal = engine.compact()
        with suppress(Refused):  # where it read back what the host had retired already
            assert await compacting in (0, ordinal)
    async with Engine.open(disk_path / "data") as engine:
        assert held(engine) == list(range(COUNT + 1))


@pytest.mark.parametrize("start", ["import os, time; ", "import os; os.kill(os.getpid(), 9); ", "1/0; "])
async def test_a_process_that_dies_retires_nothing_and_leaves_nothing(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    folder = disk_path / "data"
    left = "open(f'{sys.argv[2]}/00.snapshot.{os.getpid()}-1-1.tmp', 'w').write('half'); 1/0"
    monkeypatch.setattr(compaction_process, "_START", f"import sys; {start}{left}")
    async with filled(folder) as engine:
        before = log_files(folder)
        with pytest.raises(Refused, match="the folder is as it was"):
            await engine.compact_in_background()
        assert log_files(folder)[: len(before)] == before and not any("tmp" in name for name in log_files(folder))
        sent(engine, COUNT)
    monkeypatch.undo()
    async with Engine.open(folder) as engine:
        assert held(engine) == list(range(COUNT + 1))


async def test_a_process_that_cannot_be_started_refuses_the_compaction(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(disk_path / "none"))
    async with filled(disk_path / "data") as engine:
        with pytest.raises(Refused, match="could not be started"):
            await engine.compact_in_background()
        assert engine.stopped is None


async def test_a_host_that_closes_ends_the_process_and_its_file(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk_path / "data"
    slow = "open(f'{sys.argv[2]}/00.snapshot.{os.getpid()}-1-1.tmp', 'w').close(); import time; time.sleep(60)"
    monkeypatch.setattr(compaction_process, "_START", f"import sys, os; {slow}")
    async with filled(folder) as engine:
        compacting = asyncio.create_task(engine.compact_in_background())
        await until(lambda: any("tmp" in name for name in log_files(folder)))
        [pid] = [int(name.split(".")[2].partition("-")[0]) for name in log_files(folder) if "tmp" in name]
        compacting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compacting
    assert not any("tmp" in name for name in log_files(folder))
    with pytest.raises(ProcessLookupError):
        await until(lambda: os.kill(pid, 0), within_s=5)


async def test_a_host_takes_over_what_a_job_wrote_and_reads_it_elsewhere(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk_path / "data"
    monkeypatch.setattr(hosting, "_ADOPT_TICKS", 1)
    async with filled(folder) as engine:
        assert engine.log is not None
        sealed = engine.log.seal()
        assert snapshot.compact_sealed(FolderDisk(folder)) == sealed
        monkeypatch.setattr(snapshot, "verify", never)
        await until(lambda: log_files(folder)[0] == snapshot_name(sealed))  # the segments before it are gone
        sent(engine, COUNT)
    monkeypatch.undo()
    async with Engine.open(folder) as engine:
        assert held(engine) == list(range(COUNT + 1))


async def test_a_host_that_closes_ends_the_look_at_what_a_job_wrote(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk_path / "data"
    slow = "import sys, os, time; open(sys.argv[2] + '/pid', 'w').write(f'{os.getpid()}.'); time.sleep(60)"
    monkeypatch.setattr(hosting, "_ADOPT_TICKS", 1)
    async with filled(folder) as engine:
        assert engine.log is not None and engine.log.seal()
        snapshot.compact_sealed(FolderDisk(folder))
        monkeypatch.setattr(compaction_process, "_START", slow)
        await until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().endswith("."))
    with pytest.raises(ProcessLookupError):
        await until(lambda: os.kill(int((folder / "pid").read_text()[:-1]), 0), within_s=5)


async def test_a_host_retires_nothing_behind_a_jobs_snapshot_that_does_not_read_back(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk_path / "data"
    monkeypatch.setattr(hosting, "_ADOPT_TICKS", 1)
    async with filled(folder) as engine:
        assert engine.log is not None
        sealed = engine.log.seal()
        snapshot.compact_sealed(FolderDisk(folder))
        data = (folder / snapshot_name(sealed)).read_bytes()
        (folder / snapshot_name(sealed)).write_bytes(data[:-1] + b"!")
        before = log_files(folder)
        await until(lambda: engine._passed_over)
        assert log_files(folder) == before and engine.stopped is None
    async with Engine.open(folder) as engine:
        assert held(engine) == list(range(COUNT))


@pytest.mark.parametrize("life", range(3))
def test_a_host_that_is_killed_while_it_compacts_loses_nothing(disk_path: Path, life: int) -> None:
    folder, told = disk_path / "data", -1
    engine = Engine.open(folder, limits=LIMITS)
    engine.declare(QueueSettings("q"))
    engine.close()
    for death in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", HOST, str(folder), str(told + 1)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as host:
            assert host.stdout is not None
            for line in host.stdout:
                told = int(line)
                if told % 1_000 == 300 * (life + 1) + 37 * death or told % 1_500 == 1_499:
                    break
            os.kill(host.pid, signal.SIGKILL)
            told = max([told, *(int(line) for line in host.stdout.read().split("\n")[:-1] if line)])
        engine = Engine.open(folder, limits=LIMITS)
        found = held(engine)
        assert found[: told + 1] == list(range(told + 1))
        told = found[-1]
        engine.close()
        with suppress(ProcessLookupError):  # its compaction outlives it, and may still write when the folder goes
            os.killpg(host.pid, signal.SIGKILL)


class Slow(MemoryDisk):
    """A folder in which a removal takes until it is let go."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.removing, self.let_go = threading.Event(), threading.Event()

    def remove(self, name: str) -> None:
        self.removing.set()
        assert self.let_go.wait(10)
        super().remove(name)


def test_a_retirement_keeps_no_writer_waiting_and_a_close_waits_for_it() -> None:
    disk = Slow()
    log = Log.open(disk, log_id=b"0" * 16, clock_ms=lambda: 7)
    log.append(9, b"one")
    sealed = log.seal()
    log.store_snapshot(sealed, b"one")
    thread = threading.Thread(target=log.retire, args=(sealed,))
    thread.start()
    assert disk.removing.wait(10)
    log.append(9, b"two")
    log.write()
    log.sync()
    assert log.synced == log.appended
    closing = threading.Thread(target=log.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    disk.let_go.set()
    closing.join(10)
    thread.join(10)
    assert snapshot_name(sealed) in disk.names() and "closed" in disk.names()
