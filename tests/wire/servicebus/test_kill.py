"""A host in a process of its own, killed without warning while the SDK works."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

HOST = """
import asyncio, sys
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings

async def main(folder, port):
    async with Engine.open(folder) as engine:
        engine.declare(QueueSettings("q", duplicate_window_s=600))
        async with ServiceBusServer(engine, port=port) as server:
            print(server.connection_string, flush=True)
            await asyncio.sleep(120)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
ROOT = Path(__file__).resolve().parents[3]


class Host:
    """The process, started and killed at will on one port and folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.connection_string = self.start()

    def start(self) -> str:
        command = [sys.executable, "-c", HOST, str(self._folder), str(self._port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line.startswith("Endpoint="), "the host did not start"
        return line

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def host(disk_path: Path) -> Iterator[Host]:
    host = Host(disk_path / "log")
    yield host
    host.kill()


def send_all(connection_string: str, batches: list[list[str]], acknowledged: list[str]) -> None:
    """Send every batch until it is acknowledged, under the same ids."""
    with ServiceBusClient.from_connection_string(connection_string, retry_backoff_factor=0.05) as sdk:
        for batch in batches:
            for _ in range(20):
                with suppress(ServiceBusError):
                    with sdk.get_queue_sender("q", keep_alive=0) as sender:
                        sender.send_messages([ServiceBusMessage(name, message_id=name) for name in batch])
                    acknowledged += batch
                    break
                time.sleep(0.1)


def receive_all(connection_string: str, count: int) -> list[str]:
    found: list[str] = []
    options: dict[str, Any] = {"keep_alive": 0, "prefetch_count": 100}
    with (
        ServiceBusClient.from_connection_string(connection_string) as sdk,
        sdk.get_queue_receiver("q", **options) as receiver,
    ):
        while len(found) < count:
            messages = receiver.receive_messages(100, max_wait_time=5)
            assert messages, f"{count} messages were acknowledged, {len(found)} came"
            for message in messages:
                receiver.complete_message(message)
                found.append(str(message))
    return found


def test_what_was_acknowledged_survives_kills_and_comes_once(host: Host) -> None:
    names = [f"m{number}" for number in range(300)]
    batches = [names[at : at + 10] for at in range(0, len(names), 10)]
    acknowledged: list[str] = []
    sending = threading.Thread(target=send_all, args=(host.connection_string, batches, acknowledged))
    sending.start()
    for share in (60, 150):
        while len(acknowledged) < share and sending.is_alive():
            time.sleep(0.005)
        host.kill()
        host.start()
    sending.join(60)
    assert acknowledged == names
    assert sorted(receive_all(host.connection_string, 300)) == sorted(names)
