"""A message that kills its host takes none of its neighbours with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

APP = """
import os
from dataclasses import dataclass
from outbox import App

app = App("killed")

@dataclass
class Order:
    id: str

@dataclass
class Count:
    n: int = 0

@app.handler("orders", key="id")
def handle(order: Order, count: Count) -> None:
    if order.id == "die":
        os._exit(9)
    count.n += 1
"""
ENTITIES = {"UserConfig": {"Namespaces": [{"Queues": [{"Name": "orders", "Properties": {"MaxDeliveryCount": 3}}]}]}}
ORDER_COUNT = 40
START_COUNT_MAX = 12
DONE = (0, 1)


def outbox(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outbox", *arguments, "--data", str(folder / "data")]
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=60, check=False)


def counts(folder: Path) -> tuple[int, ...]:
    """How many messages are active and dead-lettered; nothing while the host is ending."""
    status = outbox(folder, "status", "--json")
    found = json.loads(status.stdout)["queues"]["orders"] if status.returncode == 0 else {}
    return tuple(found[name] for name in ("active", "dead_letters") if name in found)


def test_a_message_that_kills_its_host_is_dead_lettered_alone(disk_path: Path) -> None:
    (disk_path / "killed.py").write_text(APP)
    (disk_path / "entities.json").write_text(json.dumps(ENTITIES))
    serve = [sys.executable, "-m", "outbox", "run", "killed:app", "--data", str(disk_path / "data")]
    serve += ["--amqp-port", "0", "--entities", str(disk_path / "entities.json")]
    with subprocess.Popen(serve, cwd=disk_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        assert host.stdout is not None
        host.stdout.readline()
        host.terminate()
    ids = [*(f"o{n}" for n in range(20)), "die", *(f"o{n}" for n in range(20, ORDER_COUNT))]
    lines = "\n".join(json.dumps({"id": id}) for id in ids)
    done = outbox(disk_path, "send", "orders", "-", "--id-field", "id", "--type", "Order", text=lines)
    assert done.returncode == 0, done.stderr
    for _ in range(START_COUNT_MAX):
        with subprocess.Popen(serve, cwd=disk_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
            assert host.stdout is not None
            host.stdout.readline()
            while host.poll() is None and counts(disk_path) != DONE:
                pass  # each look is a process of its own
            if host.poll() is None:
                host.kill()
                break
    assert counts(disk_path) == DONE
    (dead_letter,) = json.loads(outbox(disk_path, "dead-letters", "list", "orders", "--json").stdout)
    assert (dead_letter["id"], dead_letter["reason"]) == ("die", "MaxDeliveryCountExceeded")
    exported = [json.loads(line) for line in outbox(disk_path, "export").stdout.splitlines()]
    assert sorted(int(line["key"][1:]) for line in exported) == list(range(ORDER_COUNT))
    assert all(line["value"] == {"n": 1} for line in exported)
