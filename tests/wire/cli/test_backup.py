"""A backup of a host's folder under load, a kill, and a restore into a fresh folder, as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from outbox.engine.engine import Engine
from tests.commands import ran, started

SHOP = """
from dataclasses import dataclass
from outbox import App, Context

app = App("shop")
app.queue("receipts")

@dataclass
class Order:
    id: str
    customer: str

@dataclass
class Customer:
    orders: int = 0

@app.handler("orders", key="customer")
def take(order: Order, customer: Customer, ctx: Context) -> None:
    customer.orders += 1
    ctx.send("receipts", order)
"""
TIMEOUT_S = 30


class Shell:
    """A folder with the application, and commands run there as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(SHOP)

    def start(self, data: str, history: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "outbox", "run", "shop:app", "--data", data, "--history", history]
        host = started([*command, "--amqp-port", "none"], self.folder)
        assert host.stdout is not None and host.stdout.readline().strip()
        return host

    def outbox(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        command = [sys.executable, "-m", "outbox", *arguments]
        done = ran(command, self.folder, stdin=stdin, within_s=TIMEOUT_S)
        assert done.returncode == code, done.stderr
        return done.stdout

    def send(self, data: str, first: int, count: int) -> None:
        lines = [json.dumps({"id": f"o{n}", "customer": f"c{n % 7}"}) for n in range(first, first + count)]
        self.outbox("send", "orders", "-", "--id-field", "id", "--data", data, stdin="\n".join(lines))

    def wait_idle(self, data: str) -> Any:
        for _ in range(100):
            found = json.loads(self.outbox("status", "--json", "--data", data))["queues"]
            if not found["orders"]["active"]:
                return found
        raise AssertionError("orders are left")


def test_after_a_kill_the_backup_is_one_moment_and_its_audit_finds_nothing(disk_path: Path) -> None:
    shell, stop = Shell(disk_path), threading.Event()
    host = shell.start("shop.data", "first.jsonl")
    try:
        shell.send("shop.data", 0, 300)

        def load() -> None:
            first = 300
            while not stop.is_set():
                shell.send("shop.data", first, 50)
                first += 50

        thread = threading.Thread(target=load)
        thread.start()
        done = json.loads(shell.outbox("backup", "backup.tar", "--data", "shop.data", "--json"))
        stop.set()
        thread.join(TIMEOUT_S)
    finally:
        host.send_signal(signal.SIGKILL)
        host.communicate()
    assert "(ordinal " in shell.outbox("restore", "backup.tar", "--data", "fresh.data") and done["ordinal"] > 0
    engine = Engine.open(disk_path / "fresh.data")
    orders, receipts = engine.broker.queue("orders"), engine.broker.queue("receipts")
    counted = sum(json.loads(each.value)["orders"] for each in engine.state.documents.spaces["state"].values())
    assert orders.received_count - len(orders.tasks) == counted == receipts.received_count
    assert orders.received_count >= 300
    engine.close()
    host = shell.start("fresh.data", "second.jsonl")
    try:
        shell.send("fresh.data", 0, 400)  # what the senders are not sure of, under the same ids
        found = shell.wait_idle("fresh.data")
    finally:
        host.send_signal(signal.SIGTERM)
        host.communicate(timeout=TIMEOUT_S)
    assert shell.outbox("audit", "second.jsonl", "--alone") and found["receipts"]["received"] >= 400
    states = [json.loads(line) for line in shell.outbox("export", "--data", "fresh.data").splitlines()]
    assert sum(state["value"]["orders"] for state in states) == found["receipts"]["received"]
