"""Who answers for a folder: its host, the log itself, or nobody."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.records import DocWrite, Modify
from outbox.engine.state.documents import STATES
from outbox.errors import AlreadyOpen, EngineStopped, Refused
from outbox.lineage import state_id
from outbox.ops.admins import engine as engine_admin
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.folder import connect_admin
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.host import host as hosts
from outbox.ops.host.host import HostSettings, open_engine
from outbox.ops.shared.control_file import (
    ControlFile,
    is_alive,
    is_held,
    is_wanted,
    read_control_file,
    want,
    write_control_file,
)
from outbox.ops.values.messages import NewMessage, Send
from outbox.ops.values.states import ReadStates
from outbox.ops.values.status import ReadMetrics, ReadStatus
from outbox.ops.values.streams import ReadStream
from outbox.streams.log import OrderedLog
from tests.unit.waiting import until


@pytest.fixture
def folder(disk_path: Path) -> Path:
    """A folder whose engine is closed."""
    engine = Engine.open(disk_path)
    engine.declare(QueueSettings("q"))
    engine.close()
    return disk_path


async def test_a_running_host_is_asked(folder: Path) -> None:
    async with (
        Engine.open(folder) as engine,
        serve_control(EngineAdmin(engine), folder),
        connect_admin(folder) as admin,
    ):
        assert isinstance(admin, RemoteAdmin)
        assert list((await admin.ask(ReadStatus())).queues) == ["q"]


async def test_without_a_host_the_log_is_opened_and_closed_again(folder: Path) -> None:
    for _ in range(2):
        async with connect_admin(folder) as admin:
            assert is_held(folder) and list((await admin.ask(ReadStatus())).queues) == ["q"]
        assert not is_held(folder)


async def test_what_a_killed_host_left_is_removed_and_its_token_sent_to_nobody(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        write_control_file(folder, ControlFile(stranger.getsockname()[1], 1, "secret"))
        async with connect_admin(folder):
            assert is_held(folder) and read_control_file(folder) is None
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"port": "x"}', b"\xff" * 9_000])
async def test_a_holder_that_does_not_answer_is_an_error_within_the_wait(
    folder: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (folder / "control.json").write_bytes(content)
    with (folder / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for is_seen in (True, False):  # it may take the folder just behind the look
            monkeypatch.setattr("outbox.ops.admins.folder.is_held", lambda _, is_seen=is_seen: is_seen)
            started = time.monotonic()
            with pytest.raises(AlreadyOpen, match="does not answer on its control endpoint; if it is starting, try"):
                async with connect_admin(folder, wait_s=0.2):
                    pass
            assert time.monotonic() - started < 1.5


async def test_a_holder_with_a_dead_port_is_an_error_too(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    write_control_file(folder, ControlFile(port, 1, "t"))
    async with Engine.open(folder):
        with pytest.raises(AlreadyOpen, match=rf"control endpoint \(process 1, 127\.0\.0\.1:{port}\); if it is"):
            async with connect_admin(folder, wait_s=0.2):
                pass


async def test_a_host_that_is_just_starting_is_waited_for(folder: Path) -> None:
    async with Engine.open(folder) as engine:

        async def late() -> None:
            await asyncio.sleep(0.2)
            async with serve_control(EngineAdmin(engine), folder):
                await asyncio.sleep(0.5)

        task = asyncio.create_task(late())
        async with connect_admin(folder, wait_s=3) as admin:
            assert isinstance(admin, RemoteAdmin)
        await task


@asynccontextmanager
async def waiting(folder: Path) -> AsyncIterator[Engine]:
    """A host that waits for a folder, has it as soon as it is let go, and serves it."""
    engine = await asyncio.wait_for(open_engine(HostSettings(folder)), 10)
    async with engine, serve_control(EngineAdmin(engine), folder):
        yield engine


async def test_a_host_that_waits_gets_the_folder_between_two_answers_and_the_next_are_its(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with connect_admin(folder) as admin:
        await admin.ask(Send("q", [NewMessage(body=msgspec.Raw(b"1"), id="m1")]))
        write_control_file(folder, ControlFile(1, 1 << 40, "a killed host's"))
        async with waiting(folder) as engine:
            assert not is_wanted(folder), "it waits no more"
            assert (await admin.ask(ReadStatus())).queues["q"].active == 1
            await admin.ask(Send("q", [NewMessage(body=msgspec.Raw(b"1"), id="m2")]))
            assert len(engine.broker.queue("q").tasks) == 2
    assert "a host waits for it and gets it now" in capsys.readouterr().err


async def test_an_answer_that_is_under_way_is_ended_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(at: Any, asked: ReadMetrics) -> str:
        await asyncio.sleep(0.5)
        assert is_held(folder) and is_wanted(folder)
        return "whole"

    monkeypatch.setitem(cast(dict[Any, Any], engine_admin.ANSWERS), ReadMetrics, slow)
    async with connect_admin(folder) as admin:
        asked = asyncio.create_task(admin.ask(ReadMetrics()))
        await asyncio.sleep(0)
        async with waiting(folder):
            assert asked.done() and await asked == "whole"


async def test_a_log_that_is_read_says_where_it_was_left_and_states_are_whole(folder: Path) -> None:
    async with Engine.open(folder) as engine:
        readings = OrderedLog("readings", engine, type=str)
        for number in range(200):
            await readings.append("x" * 2_000, id=f"e{number}")
        states = [DocWrite(STATES, state_id("S", f"k{n}"), b"{}", 0) for n in range(1_000)]
        assert engine.documents.modify(Modify(documents=states)) is not None
    async with connect_admin(folder) as admin:
        entries, lines = admin.stream(ReadStream("readings", "", "", 200)), admin.stream(ReadStates())
        assert await anext(entries) and await anext(lines)
        async with waiting(folder):
            rest = b"".join([piece async for piece in lines])
            assert json.loads(rest.splitlines()[-1])["key"] == "k999"
            with pytest.raises(Refused, match="a host waited for it and has it now, so the rest was not read"):
                [piece async for piece in entries]


async def test_a_log_that_fails_under_a_command_is_not_taken_for_a_host_that_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*given: Any) -> AsyncIterator[bytes]:
        yield b"{}"
        raise EngineStopped("the disk failed")

    monkeypatch.setitem(cast(dict[Any, Any], engine_admin.LINES), ReadStates, fails)
    async with connect_admin(folder) as admin:
        with pytest.raises(EngineStopped, match="the disk failed"):
            [piece async for piece in admin.stream(ReadStates())]


async def test_a_host_waits_so_long_for_a_command_and_not_at_all_for_another_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_refused(within_s: float) -> None:
        monkeypatch.setattr(hosts, "OPEN_WITHIN_S", within_s)
        with pytest.raises(AlreadyOpen):
            await open_engine(HostSettings(folder))
        assert not is_wanted(folder), "it waits no more"

    async with asyncio.timeout(20), Engine.open(folder) as engine:
        await is_refused(0.2)
        async with serve_control(EngineAdmin(engine), folder):
            await is_refused(60)


async def test_a_command_does_not_go_before_a_host_that_waits(folder: Path) -> None:
    descriptor = want(folder)
    assert descriptor is not None
    with pytest.raises(AlreadyOpen):
        async with connect_admin(folder, wait_s=0.2):
            pass
    os.close(descriptor)
    async with connect_admin(folder, wait_s=0.2):
        assert is_held(folder)


async def test_the_log_is_opened_again_where_the_host_that_waited_is_gone(folder: Path) -> None:
    async with connect_admin(folder) as admin:
        descriptor = want(folder)
        assert descriptor is not None
        await until(lambda: not is_held(folder))
        os.close(descriptor)
        assert list((await admin.ask(ReadStatus())).queues) == ["q"] and is_held(folder)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_what_a_host_left_half_written_does_not_keep_the_next_from_writing(folder: Path) -> None:
    (folder / "control.json.tmp").write_bytes(b"half")
    write_control_file(folder, ControlFile(1, 2, "token"))
    assert read_control_file(folder) == ControlFile(1, 2, "token")
    assert not (folder / "control.json.tmp").exists()


async def test_a_host_that_opens_a_folder_removes_what_a_killed_one_left(folder: Path) -> None:
    write_control_file(folder, ControlFile(1, 2, "token"))
    engine = await open_engine(HostSettings(folder))
    assert read_control_file(folder) is None
    engine.close()


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError

    assert is_alive(os.getpid()) and not is_alive(1 << 40)
    monkeypatch.setattr(os, "kill", kill)
    assert is_alive(1)


async def test_a_folder_that_is_no_engines_is_left_as_it_is(disk_path: Path) -> None:
    (disk_path / "notes.log").touch()
    for wrong in (disk_path / "missing", disk_path):
        with pytest.raises(Refused, match="outbox run APP --data"):
            async with connect_admin(wrong):
                pass
    assert names(disk_path) == ["notes.log"]
