"""The command line as a user types it: a host in a process of its own, and commands beside it."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.ops.shared.control_file import read_control_file
from tests.commands import started
from tests.wire.typed import typed

BANK = """
import asyncio, os
from dataclasses import dataclass
from pathlib import Path
from outbox import App, Context, Reject

app = App("bank")
app.queue("refused")
print("imported, and chatty about it")

@dataclass
class Transfer:
    id: str
    source: str
    target: str
    amount: int

@dataclass
class Deposit:
    transfer: str
    account: str
    amount: int

@dataclass
class Account:
    balance: int = 0

@app.handler("transfers", key="source")
async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
    if transfer.amount <= 0:
        raise Reject("amount must be positive")
    if account.balance < transfer.amount:
        ctx.send("refused", transfer)
        return
    account.balance -= transfer.amount
    ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))

@app.handler("deposits", key=lambda deposit: deposit.account)
def deposit(deposit: Deposit, account: Account) -> None:
    account.balance += deposit.amount

@dataclass
class Job:
    id: str

@app.handler("jobs", key="id")
async def work(job: Job, account: Account) -> None:
    with Path("runs").open("a") as runs:
        runs.write(job.id + "\\n")
    await asyncio.sleep(0.2)
    account.balance += 1
"""
TIMEOUT_S = 20


class Shell:
    """A folder with an application in it, and commands run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bank.py").write_text(BANK)
        self._hosts: list[subprocess.Popen[str]] = []
        self.line = ""

    def spawn(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command on the folder `bank.data` as its own process: exit code, stdout, stderr."""
        command = [sys.executable, "-m", "outbox", *arguments, "--data", "bank.data"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return done.returncode, done.stdout, done.stderr

    def outbox(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Run a command in this process, which starts faster; its stdout."""
        (self.folder / "stdin").write_text(stdin)
        with (self.folder / "stdin").open() as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", file)
            found, out, self.stderr = typed([*arguments, "--data", str(self.folder / "bank.data")])
        assert found == code, self.stderr
        return out

    def json(self, *arguments: str, stdin: str = "") -> Any:
        return json.loads(self.outbox(*arguments, "--json", stdin=stdin))

    def start(self, *arguments: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        """Start a host without waiting for it."""
        self._hosts.append(started([sys.executable, "-m", "outbox", *arguments], self.folder, preexec_fn=before))
        return self._hosts[-1]

    def run(self, *arguments: str, before: Callable[[], None] | None = None) -> tuple[subprocess.Popen[str], str]:
        """Start the bank and wait until it is ready; the process and the line it printed."""
        host = self.start("run", "bank:app", "--data", "bank.data", "--amqp-port", "0", *arguments, before=before)
        assert host.stdout is not None and host.stderr is not None
        line = host.stdout.readline().strip()
        assert line, host.stderr.read()
        return host, line

    def wait_for(self, queue: str, **wanted: int) -> dict[str, Any]:
        """Wait until a queue's status has these numbers."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            found: dict[str, Any] = self.json("status")["queues"][queue]
            if wanted.items() <= found.items():
                return found
        raise AssertionError(f"{queue} is at {found}, not at {wanted}")

    def close(self) -> None:
        for host in self._hosts:
            host.kill()
            host.communicate()


@pytest.fixture
def shell(disk_path: Path) -> Iterator[Shell]:
    shell = Shell(disk_path)
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One host for all tests that leave it alive, each with queues or ids of its own."""
    shell = Shell(tmp_path_factory.mktemp("bank"))
    _, shell.line = shell.run()
    yield shell
    shell.close()


def ended(host: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and what else was printed."""
    out, err = host.communicate(timeout=TIMEOUT_S)
    return host.returncode, out, err


def deposits(count: int, first: int = 0) -> str:
    lines = [{"transfer": f"d{n}", "account": f"a{n % 10}", "amount": 1} for n in range(first, first + count)]
    return "\n".join(map(json.dumps, lines))


def feed(shell: Shell, count: int, first: int = 0) -> None:
    arguments = ("send", "deposits", "-", "--type", "Deposit", "--id-field", "transfer")
    assert shell.json(*arguments, stdin=deposits(count, first))["count"] == count


def total(shell: Shell) -> int:
    lines = shell.outbox("export", "--type", "Account").splitlines()
    return sum(json.loads(line)["value"]["balance"] for line in lines)


def test_the_first_programs_commands_do_what_they_say(shell: Shell) -> None:
    host, line = shell.run()
    assert line.startswith("Endpoint=sb://127.0.0.1:") and line.endswith("UseDevelopmentEmulator=true;")
    transfer = '{"id": "t1", "source": "alice", "target": "bob", "amount": 5}'
    shell.outbox("send", "deposits", '{"transfer": "d", "account": "alice", "amount": 10}', "--id", "d")
    for _ in range(2):
        sent = shell.spawn("send", "transfers", transfer, "--type", "Transfer", "--id", "t1")
        assert sent == (0, "sent t1 to transfers\n", "")
    shell.wait_for("transfers", active=0, received=2)
    shell.wait_for("deposits", active=0)
    assert "pending transactions: 0" in shell.spawn("status")[1]
    assert shell.spawn("state", "Account", "alice", "--json") == (0, '{"balance":5}\n', "")
    assert shell.json("state", "Account", "bob") == {"balance": 5}
    assert (shell.folder / "bank.data" / "control.json").stat().st_mode & 0o777 == 0o600
    host.send_signal(signal.SIGINT)
    code, out, err = ended(host)
    assert (code, out) == (0, "") and "imported, and chatty" in err and "bank.data: opened\n" in err


def test_a_killed_host_keeps_what_was_sent_and_the_next_one_goes_on(shell: Shell) -> None:
    host, _ = shell.run()
    feed(shell, 500)
    host.kill()
    host.wait()
    assert (shell.folder / "bank.data" / "control.json").exists()
    with (shell.folder / "bank.data" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free although the file is there
    feed(shell, 500, first=400)  # nobody is there: the log is opened, and the first 100 are repeats
    assert not (shell.folder / "bank.data" / "control.json").exists()
    shell.run("--workers", "2")
    shell.wait_for("deposits", active=0)
    assert total(shell) == 900


def test_a_drain_loses_nothing_and_redelivers_nothing(shell: Shell) -> None:
    host, _ = shell.run("--concurrency", "4")
    jobs = "\n".join(json.dumps({"id": f"j{n}", "body": {"id": f"j{n}"}}) for n in range(12))
    shell.outbox("send", "jobs", "-", stdin=jobs)
    runs = shell.folder / "runs"
    while not runs.exists():
        time.sleep(0.01)
    host.terminate()
    assert ended(host)[0] == 0
    begun = runs.read_text().split()
    assert 4 <= len(begun) < 12
    assert shell.json("status") | {"queues": None} == {"queues": None, "pending": 0}
    shell.run("--concurrency", "12")
    shell.wait_for("jobs", active=0)
    assert sorted(runs.read_text().split()) == sorted(f"j{n}" for n in range(12))
    assert total(shell) == 12


def test_a_host_forgets_where_a_killed_one_listened_before_it_is_ready(shell: Shell) -> None:
    folder = shell.folder / "bank.data"
    Engine.open(folder).close()
    (folder / "control.json").write_text('{"port": 1, "pid": 1, "token": "old"}')
    shell.run()
    assert "old" not in {found.token for found in [read_control_file(folder)] if found is not None}
    assert shell.json("status")["pending"] == 0


def test_a_host_logs_a_handler_that_fails_with_its_line(shell: Shell) -> None:
    handlers = shell.folder / "bank.py"
    handlers.write_text(
        handlers.read_text().replace("account.balance += deposit.amount", "raise KeyError(deposit.transfer)")
    )
    host, _ = shell.run()
    shell.outbox("send", "deposits", '{"transfer": "d", "account": "a", "amount": 1}', "--id", "d\n2")
    shell.wait_for("deposits", scheduled=1)
    host.send_signal(signal.SIGINT)
    _, _, err = ended(host)
    start = err.index(
        "handler failed id=d\\n2 queue=deposits handler=deposit attempt=1 attempts=5 again_s=1.0 error=KeyError"
    )
    assert (
        "Traceback (most recent call last):\n" in err[start:]
        and "    raise KeyError(deposit.transfer)\n" in err[start:]
    )


def test_the_log_of_a_running_host_is_compacted_by_the_host(running: Shell) -> None:
    before = total(running)
    feed(running, 1_000)
    running.wait_for("deposits", active=0)
    done = running.json("log", "compact")
    assert done["after_bytes"] < done["before_bytes"]
    assert running.json("log", "compact", "--sealed") == {"ordinal": 0}
    assert running.json("log", "inspect")["snapshots"] == [done["ordinal"]]
    running.outbox("log", "salvage", "--into", "elsewhere", code=1)
    assert total(running) == before + 1_000


def test_a_host_whose_disk_fails_stops_with_the_error(shell: Shell) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    host, _ = shell.run(before=small_files)
    with pytest.raises(AssertionError, match="nothing more is acknowledged"):
        for batch in range(40):
            feed(shell, 500, first=batch * 500)
    code, _, err = ended(host)
    assert code == 1 and "Traceback" not in err
    assert err.splitlines()[-1].startswith("outbox: bank.data: write failed") and "then start again" in err
    shell.run()
    shell.wait_for("deposits", active=0)


def test_a_host_logs_which_messages_it_has_no_handler_for(shell: Shell) -> None:
    other = "from outbox import App\napp = App('other')\napp.queue('mine')\n"
    shell.run()
    (shell.folder / "other.py").write_text(other)
    shell.outbox("send", "transfers", '{"id":"t","source":"a","target":"b","amount":1}', "--id", "t")
    shell.outbox("send", "refused", "{}", "--id", "r")  # a withdrawal without money has sent another
    shell.close()
    host = shell.start("run", "other:app", "--data", "bank.data", "--amqp-port", "0")
    assert host.stdout is not None and host.stdout.readline().startswith("Endpoint=")
    os.kill(host.pid, signal.SIGTERM)
    assert "refused: 2 messages, but other neither handles nor declares it; check APP" in ended(host)[2]


def test_an_emulator_needs_no_application_and_takes_the_official_entities_file(shell: Shell) -> None:
    properties = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT10M"}
    queue = {"Name": "orders", "Properties": properties}
    (shell.folder / "e.json").write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [queue]}]}}))
    host = shell.start("emulator", "--amqp-port", "0", "--entities", "e.json", "--data", "bank.data")
    assert host.stdout is not None and host.stdout.readline().startswith("Endpoint=")
    for _ in range(2):
        shell.outbox("send", "orders", "{}", "--id", "o1")
    assert shell.json("status")["queues"]["orders"]["active"] == 1
    os.kill(host.pid, signal.SIGTERM)
    assert ended(host)[0] == 0
    in_memory = shell.start("emulator", "--amqp-port", "0", "--entities", "missing.json")
    code, out, err = ended(in_memory)
    assert (code, out) == (1, "") and err.startswith("outbox: entities file missing.json")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import outbox\n\n1 / 0\n", "bank.py:3: ZeroDivisionError: division by zero"),
        ("import not_there\n", "bank imports 'not_there', which is not installed; install it"),
        ("app = 5\n", "bank:app is of type int, not an outbox.App; name the attribute that holds it"),
    ],
)
def test_an_application_that_does_not_load_is_one_clear_line(shell: Shell, text: str, line: str) -> None:
    (shell.folder / "bank.py").write_text(text)
    code, out, err = shell.spawn("run", "bank:app")
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith("outbox: ") and err.endswith(line + "\n")
