"""`outbox run --http`: the command as a process, killed, restarted and told to stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.commands import ran, started

SHOP = """
import asyncio
from dataclasses import dataclass
from pathlib import Path
from outbox import App, Context

app = App("shop")
app.queue("paid")

@dataclass
class Pay:
    purse: str
    amount: int
    wait_s: float = 0

@dataclass
class Purse:
    balance: int = 0

@app.http("POST", "/payments", key="purse")
async def pay(pay: Pay, purse: Purse, ctx: Context) -> dict[str, object]:
    Path("began").touch()
    await asyncio.sleep(pay.wait_s)
    purse.balance += pay.amount
    ctx.send("paid", pay)
    return {"balance": purse.balance, "number": str(ctx.uuid()), "at": ctx.now()}
"""
TIMEOUT_S = 20


class Shop:
    """The command in a folder, and requests to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(SHOP)
        self.hosts: list[subprocess.Popen[str]] = []

    def start(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "outbox", "run", "shop:app", "--data", "shop.data", "--amqp-port", "0", *more]
        self.hosts.append(started(command, self.folder, encoding="utf-8"))
        return self.hosts[-1]

    def run(self) -> subprocess.Popen[str]:
        """Start it and wait until it is ready."""
        host = self.start("--http", "0")
        assert host.stdout is not None and host.stderr is not None
        lines = [host.stdout.readline().strip(), host.stdout.readline().strip()]
        assert lines[0].startswith("Endpoint=sb://") and lines[1].startswith("http://127.0.0.1:"), host.stderr.read()
        self.url = lines[1]
        return host

    def pay(self, key: str, **body: Any) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        request = Request(f"{self.url}/payments", json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_for_a_run(self) -> None:
        """Wait until the handler has begun."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (self.folder / "began").exists():
            assert time.monotonic() < deadline_s, "the handler has not begun"
            time.sleep(0.01)

    def state(self) -> Any:
        """The purse's state, as the command tells it."""
        command = [sys.executable, "-m", "outbox", "state", "Purse", "a", "--json", "--data", "shop.data"]
        done = ran(command, self.folder, within_s=TIMEOUT_S, check=True)
        return json.loads(done.stdout)


@pytest.fixture
def shop(disk_path: Path) -> Iterator[Shop]:
    shop = Shop(disk_path)
    yield shop
    for host in shop.hosts:
        host.kill()
        host.communicate()


def test_a_reply_survives_the_host_that_gave_it(shop: Shop) -> None:
    host = shop.run()
    first = shop.pay("k", purse="a", amount=5)
    assert first[0] == 200 and first[1]["balance"] == 5
    host.send_signal(signal.SIGKILL)
    host.wait(TIMEOUT_S)
    shop.run()
    assert shop.pay("k", purse="a", amount=5) == first
    status, problem = shop.pay("k", purse="b", amount=5)
    assert (status, problem["code"]) == (422, "idempotency-key-reused")
    assert shop.pay("k2", purse="a", amount=5)[1]["balance"] == 10 and shop.state() == {"balance": 10}


def test_a_host_that_stops_answers_the_requests_in_progress(shop: Shop) -> None:
    host = shop.run()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(shop.pay, "k", purse="a", amount=5, wait_s=1.0)
        shop.wait_for_a_run()
        host.send_signal(signal.SIGTERM)
        assert asked.result(TIMEOUT_S)[1]["balance"] == 5
    out, err = host.communicate(timeout=TIMEOUT_S)
    assert (host.returncode, out) == (0, "") and "draining" in err and "Traceback" not in err


def test_entries_without_a_port_and_a_port_without_entries_are_reported(shop: Shop) -> None:
    quiet = shop.start()
    assert quiet.stdout is not None and quiet.stdout.readline()
    quiet.send_signal(signal.SIGTERM)
    assert "has HTTP entries that are not served here" in quiet.communicate(timeout=TIMEOUT_S)[1]
    (shop.folder / "shop.py").write_text('from outbox import App\napp = App("shop")\n')
    refused = shop.start("--http", "0")
    out, err = refused.communicate(timeout=TIMEOUT_S)
    assert (refused.returncode, out) == (1, "") and "has no HTTP entries" in err


TRACED = (
    SHOP
    + """
import atexit
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
atexit.register(lambda: Path("spans").write_text("\\n".join(span.name for span in spans.get_finished_spans())))
"""
)


def test_a_host_serves_metrics_and_is_traced_where_it_is_asked_to(shop: Shop) -> None:
    (shop.folder / "shop.py").write_text(TRACED)
    host = shop.start("--http", "0", "--metrics-port", "0", "--telemetry", "1")
    assert host.stdout is not None and host.stderr is not None
    _, shop.url, metrics = [host.stdout.readline().strip() for _ in range(3)]
    assert metrics.endswith("/metrics"), host.stderr.read()
    assert shop.pay("k", purse="a", amount=5)[0] == shop.pay("k", purse="a", amount=5)[0] == 200
    with urlopen(metrics, timeout=TIMEOUT_S) as response:
        text = response.read().decode()
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'outbox_messages_total{app="shop",queue="http",outcome="duplicate"} 1' in text
    assert 'outbox_queue_messages{app="shop",queue="paid",state="active"} 1' in text
    for path, host_name, code in ((metrics, "evil.example", 403), (f"{metrics}/more", "127.0.0.1", 404)):
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(path, headers={"Host": host_name}), timeout=TIMEOUT_S)
        assert refused.value.code == code
    command = [sys.executable, "-m", "outbox", "metrics", "--data", "shop.data"]
    done = ran(command, shop.folder, within_s=TIMEOUT_S, check=True)
    assert 'outbox_messages_total{app="shop",queue="http",outcome="applied"} 1' in done.stdout
    host.send_signal(signal.SIGTERM)
    assert host.wait(TIMEOUT_S) == 0
    assert (shop.folder / "spans").read_text().splitlines().count("process http") == 1
    done = ran(command, shop.folder, within_s=TIMEOUT_S)
    assert done.returncode == 1 and "outbox run" in done.stderr
