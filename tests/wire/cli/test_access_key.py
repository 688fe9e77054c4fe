"""The access key of `outbox run`: who holds the folder's key is served, any other local user is refused."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.engine.engine import Engine
from outbox.errors import Refused
from outbox.ops.host.access_key import FILE_NAME, access_key, new_key
from outbox.ops.host.endpoints import AMQP_PORT
from tests.commands import ran
from tests.wire.servicebus.administration import Plain

APP = """
from dataclasses import dataclass
from outbox import App

app = App("counter")

@dataclass
class Count:
    id: str

@dataclass
class Total:
    count: int = 0

@app.handler("counts", key="id")
def add(count: Count, total: Total) -> None:
    total.count += 1
"""
TIMEOUT_S = 20


class Host:
    """`outbox run` on one folder, started again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "counter.data"
        (folder / "counter.py").write_text(APP)
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, line_count: int = 1) -> list[str]:
        """Start it, and read what it prints when it is ready."""
        command = [sys.executable, "-m", "outbox", "run", "counter:app", "--data", str(self.data), *arguments]
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return [self._process.stdout.readline().strip() for _ in range(line_count)]

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate(timeout=TIMEOUT_S)

    def refused(self, *arguments: str) -> str:
        """Start it where it must be refused: what it says."""
        command = [sys.executable, "-m", "outbox", "run", "counter:app", "--data", str(self.data), "--amqp-port", "0"]
        done = ran([*command, *arguments], self.folder, within_s=TIMEOUT_S)
        assert done.returncode == 1
        return done.stderr

    def ask(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "outbox", *arguments, "--data", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        return done.stdout


@pytest.fixture
def host(disk_path: Path) -> Iterator[Host]:
    found = Host(disk_path)
    yield found
    found.end(signal.SIGKILL)


def with_key(connection: str, key: str) -> str:
    """A connection string with another key in it."""
    name = "AccountKey=" if "AccountKey=" in connection else "SharedAccessKey="
    before, _, rest = connection.partition(name)
    return f"{before}{name}{key};{rest.partition(';')[2]}"


def send(connection: str, id: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection, retry_total=0) as client,
        client.get_queue_sender("counts") as sender,
    ):
        sender.send_messages(ServiceBusMessage(f'{{"id": "{id}"}}', message_id=id))


def queue_names(connection: str) -> list[str]:
    with ServiceBusAdministrationClient.from_connection_string(connection, transport=Plain(), retry_total=0) as client:
        return [queue.name for queue in client.list_queues()]


def make_database(connection: str) -> None:
    with CosmosClient.from_connection_string(connection, retry_total=0) as client:
        client.create_database("bank").create_container("states", PartitionKey("/pk"))


def test_a_client_without_the_folders_key_is_refused_at_every_endpoint(host: Host) -> None:
    bus, cosmos = host.start("--amqp-port", "0", "--cosmos-port", "0", line_count=2)
    assert "UseDevelopmentEmulator=true" in bus
    for other in (new_key(), "not-checked", WELL_KNOWN_KEY):
        with pytest.raises(ServiceBusError):
            send(with_key(bus, other), "forged")
        with pytest.raises(HttpResponseError) as refused:
            queue_names(with_key(bus, other))
        assert refused.value.status_code == 401
    for other in (new_key(), WELL_KNOWN_KEY):
        with pytest.raises(CosmosHttpResponseError) as unsigned:
            make_database(with_key(cosmos, other))
        assert unsigned.value.status_code == 401
    send(bus, "right")
    assert queue_names(bus) == ["counts"]
    make_database(cosmos)
    assert '"dead_letters":0' in host.ask("status", "--json").replace(" ", "")
    assert host.ask("state", "Total", "forged") == "Total forged: none\n"


def test_the_key_outlives_kill_9_until_it_is_replaced(host: Host) -> None:
    first = host.start("--amqp-port", "0")[0]
    port = first.split(";")[0].rsplit(":", 1)[1]
    assert stat.S_IMODE((host.data / FILE_NAME).stat().st_mode) == 0o600
    host.end(signal.SIGKILL)
    assert host.start("--amqp-port", port) == [first]
    send(first, "again")
    host.end()
    (replaced,) = host.start("--amqp-port", port, "--new-key")
    assert replaced != first
    with pytest.raises(ServiceBusError):
        send(first, "old")
    send(replaced, "new")
    host.end()
    assert host.start("--amqp-port", port) == [replaced]


def test_a_key_that_others_can_read_or_that_is_none_stops_the_start(host: Host) -> None:
    Engine.open(host.data).close()
    key = access_key(host.data)
    path = host.data / FILE_NAME
    path.chmod(0o640)
    said = host.refused()
    assert "mode 0640" in said and "--new-key" in said and "chmod 600" in said and key not in said
    path.chmod(0o600)
    for text in ("", "short", "!" * 64, key[:-4], key + key):
        path.write_text(text)
        assert "does not hold a key; start with --new-key" in host.refused()
    path.unlink()
    path.symlink_to(host.folder / "elsewhere")
    assert "--new-key" in host.refused()
    (line,) = host.start("--amqp-port", "0", "--new-key")
    assert access_key(host.data) in line and not path.is_symlink()


def test_without_the_endpoint_no_port_is_taken_and_commands_still_work(host: Host) -> None:
    with ExitStack() as stack:
        with suppress(OSError):  # or another program has it already
            stack.enter_context(socket.create_server(("127.0.0.1", AMQP_PORT)))
        assert "cannot be used" in host.refused("--amqp-port", str(AMQP_PORT))
        assert host.start("--amqp-port", "none") == ["ready"]
    assert host.ask("send", "counts", '{"id": "one"}', "--id", "one") == "sent one to counts\n"


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first = access_key(tmp_path)
    assert access_key(tmp_path) == first and len(first) == 64
    replaced = access_key(tmp_path, replace=True)
    assert replaced != first and access_key(tmp_path) == replaced
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_key_is_durable_before_anybody_is_given_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes, then its name, which until then is the old one's; clients hold the string over a power loss."""
    calls: list[str] = []
    there: str | None = None
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            assert (access_key(tmp_path) if (tmp_path / FILE_NAME).exists() else None) == there
        calls.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(descriptor)

    def named(path: Path, target: Path) -> Path:
        calls.append(f"is now {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", named)
    for again in (False, True):
        calls.clear()
        there = access_key(tmp_path, replace=again)
        assert calls == ["65 bytes", f"is now {FILE_NAME}", "folder"]


def test_a_key_that_another_user_put_there_is_none(tmp_path: Path) -> None:
    access_key(tmp_path)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(tmp_path / FILE_NAME, 65_534, -1)
    with pytest.raises(Refused, match=r"another user.*--new-key"):
        access_key(tmp_path)
    os.chown(tmp_path, 65_534, -1)  # who owns the folder may have it opened by root
    assert access_key(tmp_path)


def test_a_pipe_in_place_of_the_key_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME, 0o600)
    with pytest.raises(Refused, match="does not hold a key"):
        access_key(tmp_path)
