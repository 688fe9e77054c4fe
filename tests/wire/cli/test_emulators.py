"""`outbox emulator`: its endpoints in one process, by the real SDKs, and the token that their fault rules ask for."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.storage.blob import BlobServiceClient

from outbox.ops.shared.control_file import ControlFile, read_control_file

TIMEOUT_S = 20
ANY_PORT = ("--amqp-port", "0", "--cosmos-port", "0", "--blob-port", "0")


class Emulators:
    """All of them in a process of their own, on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "outbox", "emulator", "--data", str(folder), *ANY_PORT]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.servicebus = self._process.stdout.readline().strip()
        self.cosmos = self._process.stdout.readline().strip()
        self.blobs = self._process.stdout.readline().strip()

    @property
    def control(self) -> ControlFile:
        """The control file, as soon as it tells of the emulators."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = read_control_file(self.folder)
            if found is not None and found.faults_token:
                return found
            time.sleep(0.02)
        raise AssertionError("the control file does not tell of the emulators")

    def faults(self, port: int, token: str, *rules: dict[str, Any]) -> Any:
        """Install rules over HTTP, or (none) list what there is."""
        request = urllib.request.Request(f"http://127.0.0.1:{port}/_outbox/faults")
        request.add_header("Authorization", f"Bearer {token}")
        request.data = json.dumps(rules).encode() if rules else None
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def emulators(disk_path: Path) -> Iterator[Emulators]:
    both = Emulators(disk_path / "local.data")
    yield both
    both.close()


def test_items_and_blobs_outlive_the_process_that_served_them(emulators: Emulators) -> None:
    with CosmosClient.from_connection_string(emulators.cosmos) as client:
        container = client.create_database("bank").create_container("states", PartitionKey("/pk"))
        container.create_item({"id": "1", "pk": "alice", "balance": 5})
    with BlobServiceClient.from_connection_string(emulators.blobs) as storage:
        storage.create_container("sheets").upload_blob("1", b"full", tags={"kind": "sheet"})
    assert emulators.stop() == 0
    again = Emulators(emulators.folder)
    try:
        with CosmosClient.from_connection_string(again.cosmos) as client:
            states = client.get_database_client("bank").get_container_client("states")
            assert states.read_item("1", "alice")["balance"] == 5
        with BlobServiceClient.from_connection_string(again.blobs) as storage:
            sheet = storage.get_blob_client("sheets", "1")
            assert sheet.download_blob().readall() == b"full" and sheet.get_blob_tags() == {"kind": "sheet"}
    finally:
        again.close()


def test_the_folders_control_file_opens_the_fault_endpoints_of_all(emulators: Emulators) -> None:
    control = emulators.control
    assert stat.S_IMODE((emulators.folder / "control.json").stat().st_mode) == 0o600
    assert str(control.amqp_port) in emulators.servicebus and str(control.cosmos_port) in emulators.cosmos
    rule = {"kind": "throttled", "operation": "item.create", "count": 1, "retry_after_s": 0.01}
    assert str(control.blob_port) in emulators.blobs
    for port in (control.amqp_port, control.cosmos_port, control.blob_port):
        assert len(emulators.faults(port, control.faults_token, rule)["ids"]) == 1
    with CosmosClient.from_connection_string(emulators.cosmos) as client:
        container = client.create_database("bank").create_container("states", PartitionKey("/pk"))
        container.create_item({"id": "1", "pk": "alice"})  # throttled once, which the SDK waits out
    assert emulators.faults(control.cosmos_port, control.faults_token)["fired"] == {"throttled": 1}
    assert emulators.faults(control.amqp_port, control.faults_token)["fired"] == {}


def test_fault_endpoints_take_no_other_token(emulators: Emulators) -> None:
    control = emulators.control
    for port in (control.amqp_port, control.cosmos_port, control.blob_port):
        with pytest.raises(urllib.error.HTTPError) as refused:
            emulators.faults(port, control.token)
        assert refused.value.code == 401
    assert control.faults_token not in repr(control) and control.faults_token != control.token


def test_a_cosmos_port_that_is_taken_is_refused_with_the_way_out(disk_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "outbox", "emulator", "--amqp-port", "0", "--cosmos-port", port]
        command += ["--data", str(disk_path / "d")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1 and f"port {port} cannot be used" in done.stderr and "--cosmos-port 0" in done.stderr
    assert not (disk_path / "d").exists()


def test_cosmos_is_served_on_request_only(disk_path: Path) -> None:
    command = [sys.executable, "-m", "outbox", "emulator", "--amqp-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as host:
        assert host.stdout is not None and host.stdout.readline().startswith("Endpoint=")
        host.terminate()
        assert host.stdout.read() == ""
