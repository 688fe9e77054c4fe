"""The files of the local story at work: the entities file, the preparing program, and what would be deployed."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from azure.cosmos.aio import CosmosClient

from function_app.bank import Account, OpenAccount, Transfer
from function_app.bank import app as bank
from function_app.settings import connect
from outbox import Worker
from outbox.azure.connecting import AzureBackend
from outbox.emulator.bus.entities_file import read_entities
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.errors import OutcomeUnknown
from tests.commands import ran
from tools.official_emulators import SETTINGS, prepare, read_settings

ROOT = Path(__file__).resolve().parents[2]


async def test_the_sample_runs_on_the_queues_of_the_file_and_the_containers_of_the_program() -> None:
    async with Engine.in_memory() as queues, Engine.in_memory() as documents:
        for entity in read_entities(ROOT / "local" / "servicebus.json"):
            queues.declare(entity)
        async with CosmosEmulator(documents, port=0) as cosmos, ServiceBusServer(queues) as servicebus:
            values = {
                "OUTBOX_SERVICEBUS": servicebus.connection_string,
                "OUTBOX_COSMOS": cosmos.connection.connection_string,
                "OUTBOX_DATABASE": "bank",
            }
            for _ in range(2):  # again changes nothing
                await prepare(values, wait_s=10)
            backend = connect(values)
            assert isinstance(backend, AzureBackend)
            async with backend, Worker(bank, backend) as worker:
                for name in ("alice", "bob"):
                    await worker.send("accounts", OpenAccount(name, 100), id=f"open-{name}")
                await worker.wait_idle(timeout_s=30)
                for _ in range(2):
                    await worker.send("transfers", Transfer("t1", "alice", "bob", 30), id="t1")
                await worker.wait_idle(timeout_s=30)
                assert (await worker.state(Account, "bob")) == Account(130, True)


async def test_the_sample_runs_with_its_states_in_a_container_of_their_own() -> None:
    async with (
        Engine.in_memory() as queues,
        Engine.in_memory() as documents,
        CosmosEmulator(documents, port=0) as cosmos,
        ServiceBusServer(queues) as servicebus,
    ):
        values = {
            "OUTBOX_SERVICEBUS": servicebus.connection_string,
            "OUTBOX_COSMOS": cosmos.connection.connection_string,
            "OUTBOX_STATES": "accounts",
            "OUTBOX_CREATE": "1",
        }
        backend = connect(values)
        assert isinstance(backend, AzureBackend)
        async with backend, Worker(bank, backend) as worker:
            await worker.send("accounts", OpenAccount("alice", 100), id="open-alice")
            await worker.wait_idle(timeout_s=30)
            assert (await worker.state(Account, "alice")) == Account(100, True)
        async with CosmosClient(cosmos.connection.url, cosmos.connection.key) as client:
            states = client.get_database_client("bank").get_container_client("accounts")
            found = [item["body"]["state"] async for item in states.query_items("SELECT * FROM c")]
        assert found == ["Account:alice"]


async def test_emulators_that_do_not_answer_are_given_up_with_a_reason() -> None:
    values = {**read_settings(SETTINGS), "OUTBOX_COSMOS": "AccountEndpoint=http://127.0.0.1:9/;AccountKey=a2V5;"}
    with pytest.raises(OutcomeUnknown, match="docker compose up"):
        await prepare(values, wait_s=0)


def test_local_settings_of_both_kinds_make_a_backend_and_show_no_key() -> None:
    for path in (SETTINGS, ROOT / "local.settings.json.example"):
        assert "Key" not in repr(connect(read_settings(path)))


def test_what_is_deployed_starts_without_what_is_left_out(tmp_path: Path) -> None:
    ignored = [line for line in (ROOT / ".funcignore").read_text().split("\n") if line and not line.startswith("#")]

    def left_out(folder: str, names: list[str]) -> set[str]:
        below = [Path(folder).relative_to(ROOT) / name for name in names]
        return {path.name for path in below for rule in ignored if fnmatch.fnmatch(path.as_posix(), rule)}

    for name in ("function_app", "outbox", "spark_jobs"):
        if name not in ignored:
            shutil.copytree(
                ROOT / name, tmp_path / name, ignore=lambda at, names: left_out(at, names) | {"__pycache__"}
            )
    code = "import function_app; print(len(function_app.app.get_functions()))"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    found = ran([sys.executable, "-P", "-c", code], tmp_path, env=environ | {"PYTHONPATH": str(tmp_path)})
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) >= 5 and not (tmp_path / "outbox" / "emulator").exists()


def test_the_entities_file_has_no_more_than_the_official_schema_knows() -> None:
    known = {
        *("DeadLetteringOnMessageExpiration", "DefaultMessageTimeToLive", "DuplicateDetectionHistoryTimeWindow"),
        *("ForwardDeadLetteredMessagesTo", "ForwardTo", "LockDuration", "MaxDeliveryCount"),
        *("RequiresDuplicateDetection", "RequiresSession"),
    }
    page = json.loads((ROOT / "local" / "servicebus.json").read_text())
    for queue in page["UserConfig"]["Namespaces"][0]["Queues"]:
        assert queue.keys() == {"Name", "Properties"} and queue["Properties"].keys() <= known
