"""Who answers for a folder: its host, the log itself, or nobody."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import time
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.errors import AlreadyOpen, Refused
from outbox.ops.connect_operator import connect_operator
from outbox.ops.control import serve_control
from outbox.ops.control_file import ControlFile, read_control_file, write_control_file
from outbox.ops.engine_operator import EngineOperator
from outbox.ops.remote import RemoteOperator


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
        serve_control(EngineOperator(engine), folder),
        connect_operator(folder) as operator,
    ):
        assert isinstance(operator, RemoteOperator)
        assert list((await operator.status()).queues) == ["q"]


async def test_without_a_host_the_log_is_opened_and_closed_again(folder: Path) -> None:
    for _ in range(2):
        async with connect_operator(folder) as operator:
            assert isinstance(operator, EngineOperator)


async def test_what_a_killed_host_left_is_removed_and_its_token_sent_to_nobody(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        write_control_file(folder, ControlFile(stranger.getsockname()[1], 1, "secret"))
        async with connect_operator(folder) as operator:
            assert isinstance(operator, EngineOperator)
            assert read_control_file(folder) is None
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"port": "x"}', b"\xff" * 9_000])
async def test_a_holder_that_does_not_answer_is_an_error_within_the_wait(folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "control.json").write_bytes(content)
    with (folder / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = time.monotonic()
        with pytest.raises(AlreadyOpen, match="does not answer on its control endpoint; if it is starting, try again"):
            async with connect_operator(folder, wait_s=0.2):
                pass
    assert time.monotonic() - started < 1.5


async def test_a_holder_with_a_dead_port_is_an_error_too(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    write_control_file(folder, ControlFile(port, 1, "t"))
    async with Engine.open(folder):
        with pytest.raises(AlreadyOpen, match=rf"control endpoint \(process 1, 127\.0\.0\.1:{port}\); if it is"):
            async with connect_operator(folder, wait_s=0.2):
                pass


async def test_a_host_that_is_just_starting_is_waited_for(folder: Path) -> None:
    async with Engine.open(folder) as engine:

        async def late() -> None:
            await asyncio.sleep(0.2)
            async with serve_control(EngineOperator(engine), folder):
                await asyncio.sleep(0.5)

        task = asyncio.create_task(late())
        async with connect_operator(folder, wait_s=3) as operator:
            assert isinstance(operator, RemoteOperator)
        await task


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def test_a_folder_that_is_no_engines_is_left_as_it_is(disk_path: Path) -> None:
    (disk_path / "notes.log").touch()
    for wrong in (disk_path / "missing", disk_path):
        with pytest.raises(Refused, match="outbox run APP --data"):
            async with connect_operator(wrong):
                pass
    assert names(disk_path) == ["notes.log"]
