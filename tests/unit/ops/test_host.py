"""What a host says when it opens its log."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log.closed import CLOSED_NAME
from outbox.errors import CorruptRecord, EngineStopped, Refused
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.host.audit import Audit, tallies
from outbox.ops.host.endpoints import Endpoints, EndpointSettings, check_ports
from outbox.ops.host.host import ControlTask, HostSettings, _watch, open_engine, serve, stop_on_signals
from outbox.ops.shared.control_file import is_held, read_control_file
from outbox.runtime.commit.handler_threads import HandlerThreads
from outbox.testing import START_S, VirtualClock
from outbox.verify.history import read_history
from outbox.verify.recorded.events import Quiesce, Tally
from outbox.worker import Worker
from tests.unit.ops.conftest import app
from tests.unit.waiting import until

TAIL = b"torn"


async def opened(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="outbox.host"):
        (await open_engine(HostSettings(folder))).close()
    return caplog.messages[-1]


def tear(folder: Path) -> None:
    """Leave the start of a record behind the last one, as a killed process may."""
    (folder / CLOSED_NAME).unlink()
    newest = max(folder.glob("*.log"))
    newest.write_bytes(newest.read_bytes().rstrip(b"\0") + TAIL)


async def test_a_host_says_how_many_bytes_it_cut_where_there_were_any(
    disk_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Engine.open(disk_path).close()
    assert await opened(disk_path, caplog) == f"{disk_path}: opened"
    tear(disk_path)
    assert await opened(disk_path, caplog) == f"{disk_path}: opened, cut {len(TAIL)} bytes of unsynced tail"


def test_a_host_begins_a_new_log_only_where_the_old_one_is_gone(disk_path: Path) -> None:
    Engine.open(disk_path).close()
    with pytest.raises(Refused, match="holds a log"):
        asyncio.run(open_engine(HostSettings(disk_path, new=True)))
    for path in disk_path.glob("*.log"):
        path.unlink()
    with pytest.raises(CorruptRecord, match="start once with --new"):
        asyncio.run(open_engine(HostSettings(disk_path)))
    asyncio.run(open_engine(HostSettings(disk_path, new=True))).close()
    assert [path.name for path in disk_path.glob("closed.before-*")]


async def test_a_second_signal_ends_the_process_at_once() -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    stop_on_signals(stopping)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        await stopping.wait()
    left = [loop.remove_signal_handler(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert left == [False, False], "they have their default effect again"


async def test_a_host_that_ends_closes_its_threads_its_readings_and_its_control_file(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, stopping = list[HandlerThreads](), list[asyncio.Task[None]]()
    monkeypatch.setattr(HandlerThreads, "close", lambda threads: closed.append(threads))

    def is_reading() -> bool:
        return any("_read_rates" in getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())

    async def stop() -> None:
        await until(lambda: (file := read_control_file(disk_path)) and file.amqp_port)
        assert is_reading() and not closed
        os.kill(os.getpid(), signal.SIGTERM)

    settings = HostSettings(disk_path, app, EndpointSettings(amqp_port=0), worker_count=2)
    async with asyncio.timeout(20):
        await serve(settings, lambda line: stopping.append(asyncio.create_task(stop())))
    await asyncio.gather(*stopping)
    assert len(closed) == 1 and not is_reading()
    assert read_control_file(disk_path) is None and not is_held(disk_path)


async def test_a_control_file_has_the_endpoints_whichever_is_open_first_and_goes_with_its_host(
    engine: Engine, disk_path: Path
) -> None:
    for early in (True, False):
        control = ControlTask(EngineAdmin(engine), disk_path, "token")
        async with asyncio.timeout(20), control as serving:
            if not early:
                await until(lambda: read_control_file(disk_path))
            control.add_endpoints(Endpoints(1, 2, 3, ()))
            file = await until(lambda: (found := read_control_file(disk_path)) and found.amqp_port and found)
            assert (file.amqp_port, file.cosmos_port, file.blob_port, file.faults_token) == (1, 2, 3, "token")
        assert read_control_file(disk_path) is None and serving.done()


@pytest.mark.parametrize("option", ["amqp", "cosmos", "blob", "http", "metrics"])
def test_a_port_that_is_taken_is_refused_with_its_own_option(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = replace(EndpointSettings(amqp_port=None), **{f"{option}_port": port})
        words = "--http" if option == "http" else f"--{option}-port"
        with pytest.raises(Refused, match=f"port {port} cannot be used .*; give another by {words}, or {words} 0"):
            check_ports(settings)


async def test_the_tallies_of_a_history_are_those_that_only_commits_change(engine: Engine) -> None:
    engine.declare(
        QueueSettings("plain"),
        QueueSettings("aging", time_to_live_s=5),
        QueueSettings("once", duplicate_window_s=5),
    )
    engine.broker.send("plain", [Message(body=b"1", outbox_id=f"m{n}") for n in range(3)])
    [claim] = engine.broker.claim("plain", 1)
    engine.broker.settle(claim.token, Settlement.COMPLETE)
    assert tallies(engine) == {"plain": Tally(3, 1)}


async def test_a_history_of_an_engine_that_stopped_does_not_say_that_all_is_over(tmp_path: Path) -> None:
    for is_stopped in (False, True):
        path = tmp_path / f"{is_stopped}.jsonl"
        async with Engine.in_memory() as engine:
            await Worker(app, engine).declare()
            audit = Audit(engine, app, path)
            if is_stopped:
                engine.core.stopped = EngineStopped("the disk failed")
            audit.end()
            engine.core.stopped = None
        assert any(isinstance(event, Quiesce) for event in read_history(path)) is not is_stopped


async def test_a_host_logs_what_its_engine_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("q", lock_s=5, max_delivery_count=1))
    stopped = _watch(engine)
    engine.broker.send(
        "q", [Message(body=b"m", outbox_id="dies\nhere"), Message(body=b"m", outbox_id="old", time_to_live_ms=9_000)]
    )
    engine.broker.claim("q", 1)
    clock.seconds += 6
    engine.tick()
    clock.seconds += 6
    engine.tick()
    found = [(line.levelname, line.__dict__["id"], line.__dict__["reason"]) for line in caplog.records]
    assert found == [
        ("ERROR", "dies\\nhere", "MaxDeliveryCountExceeded"),
        ("ERROR", "old", "TTLExpiredException"),
    ]
    stopped.cancel()
