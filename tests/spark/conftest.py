"""One Spark session and one broker for all Spark tests; brokers that can be killed for those that need one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from spark_jobs.common import java
from spark_jobs.session import session
from tests.commands import ran, started
from tests.spark.lakes import BOX, Lake, emulated
from tests.wire.on_azure import azurite

ROOT = Path(__file__).resolve().parent.parent.parent
MASTER = "local[2,6]"  # two cores, and a failed task is tried again


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    java.prepare(os.environ)
    running = session("tests", MASTER)
    # A test's rows are few: compiling code for each query would take most of the time.
    for name, value in {"wholeStage": "false", "factoryMode": "NO_CODEGEN"}.items():
        running.conf.set(f"spark.sql.codegen.{name}", value)
    running.conf.set("spark.sql.shuffle.partitions", "1")
    running.conf.set("spark.sql.adaptive.enabled", "false")
    yield running
    running.stop()


@dataclass
class Broker:
    """A Service Bus in its own process."""

    queues: tuple[str, ...]
    folder: str = "-"
    port: int = 0
    connection: str = field(default="", repr=False)
    process: Any = None

    def start(self) -> None:
        command = [sys.executable, "-P", str(ROOT / "tests/spark/broker.py"), self.folder, str(self.port), *self.queues]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = started(command, ROOT, env=environ, stdin=subprocess.PIPE, stderr=None)
        self.connection = self.process.stdout.readline().strip()
        assert self.connection, "the broker did not start"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def restart(self) -> None:
        self.kill()
        time.sleep(1.0)
        self.start()

    def send(self, queue: str, *messages: ServiceBusMessage) -> None:
        with (
            ServiceBusClient.from_connection_string(self.connection) as client,
            client.get_queue_sender(queue, keep_alive=0) as sender,
        ):
            sender.send_messages(list(messages))

    def take(self, queue: str, *, session_id: str | None = None) -> list[ServiceBusReceivedMessage]:
        """Everything in a queue, completed."""
        options: dict[str, Any] = {"session_id": session_id} if session_id else {"prefetch_count": 100, "keep_alive": 0}
        found: list[ServiceBusReceivedMessage] = []
        with (
            ServiceBusClient.from_connection_string(self.connection, retry_total=0) as client,
            client.get_queue_receiver(queue, **options) as receiver,
        ):
            while messages := receiver.receive_messages(200, max_wait_time=1):
                for message in messages:
                    receiver.complete_message(message)
                found += messages
        return found


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    names = "golden full fed again resumed raced poison signed laked addressed watched looked-at refused"
    named = ("ordered:per_key", "landed:2", "dead:2", "gone:2", "landed-lake:2", "followed:2")
    running = Broker((*names.split(), *named))
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="session")
def lake() -> Iterator[Lake]:
    """The Blob Storage emulator, whose lists have short pages."""
    with emulated(page_count_max=3) as running:
        yield running


@pytest.fixture(scope="session")
def microsofts_lake() -> Iterator[Lake]:
    """Azurite; skips where it is not installed."""
    for connection_string in azurite.start():
        running = Lake(connection_string)
        running.blobs().create_container()
        yield running


@pytest.fixture(params=["folder", "emulator", "azurite"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a test may keep what it likes: a folder and a prefix of two accounts, each reached by the environment."""
    if request.param == "folder":
        return str(tmp_path / "place")
    running: Lake = request.getfixturevalue("lake" if request.param == "emulator" else "microsofts_lake")
    if running.emulator is not None:
        running.plant()
    monkeypatch.setenv("OUTBOX_LAKE", running.environ["OUTBOX_LAKE"])
    return f"abfss://{BOX}@devstoreaccount1.dfs.core.windows.net/{uuid4().hex}"


@pytest.fixture
def disturbed(request: pytest.FixtureRequest, address: str) -> Iterator[Lake | None]:
    """The emulator where it is the place, for faults."""
    lake: Lake | None = request.getfixturevalue("lake") if "emulator" in request.node.callspec.id else None
    yield lake
    if lake is not None:
        lake.plant()


@pytest.fixture
def mortal_broker(disk_path: Path) -> Iterator[Broker]:
    """A durable one on a port of its own: killed and started again, it is found at the same place."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = Broker(("transfers:3",), str(disk_path / "broker.data"), port)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def run_killed(tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """Run a job in another process that kills itself at the given call of a point."""

    def run(job: str, point: str, call: int, options: str) -> SimpleNamespace:
        markers = tmp_path / "markers"
        markers.mkdir(exist_ok=True)
        command = [sys.executable, str(ROOT / "tests/spark/killed.py"), job, str(markers), point, str(call), options]
        done = ran(command, ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, within_s=100)
        fired = (markers / point).exists()
        return SimpleNamespace(returncode=done.returncode, fired=fired, output=done.stdout + done.stderr)

    return run
