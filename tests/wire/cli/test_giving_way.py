"""A command that has a stopped folder's log open gives way to a host that starts: processes as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.records import DocWrite, Modify
from outbox.engine.state.documents import STATES
from outbox.lineage import state_id
from outbox.ops.shared.control_file import is_held, is_wanted
from tests.commands import started
from tests.wire.cli.test_host import TIMEOUT_S, Shell

STATE_COUNT = 6_000
"""Far more than a pipe holds that nobody reads."""


@pytest.fixture
def shell(disk_path: Path) -> Iterator[Shell]:
    """A stopped folder with many states."""
    engine = Engine.open(disk_path / "bank.data")
    engine.declare(QueueSettings("deposits"))
    states = [DocWrite(STATES, state_id("Account", f"a{n}"), b'{"balance":1}', 0) for n in range(STATE_COUNT)]
    assert engine.documents.modify(Modify(documents=states)) is not None
    engine.close()
    shell = Shell(disk_path)
    yield shell
    shell.close()


def begun(shell: Shell, *arguments: str) -> subprocess.Popen[str]:
    """A command that has opened the log and waits: for a reader of its output, or for input."""
    words = [sys.executable, "-m", "outbox", *arguments, "--data", "bank.data"]
    command = started(words, shell.folder, stdin=subprocess.PIPE)
    shell._hosts.append(command)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_held(shell.folder / "bank.data"):
        assert time.monotonic() < deadline_s and command.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)  # the log is open, and the pipe full
    return command


def test_a_host_starts_while_nobody_reads_an_export_and_the_export_is_whole(shell: Shell) -> None:
    export = begun(shell, "state", "export", "Account")
    shell.run()
    out, err = export.communicate(timeout=TIMEOUT_S)
    assert export.returncode == 0, err
    assert {json.loads(line)["key"] for line in out.splitlines()} == {f"a{n}" for n in range(STATE_COUNT)}
    assert "bank.data: a host waits for it and gets it now" in err


def test_a_host_starts_while_lines_are_waited_for_and_gets_the_later_ones(shell: Shell) -> None:
    sending = begun(shell, "send", "deposits", "-", "--type", "Deposit", "--id-field", "transfer", "--json")
    assert sending.stdin is not None
    sending.stdin.write('{"transfer": "d1", "account": "a1", "amount": 1}\n')
    sending.stdin.flush()
    shell.run()
    out, err = sending.communicate('{"transfer": "d2", "account": "a2", "amount": 1}\n', timeout=TIMEOUT_S)
    assert sending.returncode == 0, err
    assert json.loads(out)["ids"] == ["d1", "d2"]
    shell.wait_for("deposits", active=0, received=2)
    assert shell.json("state", "Account", "a2") == {"balance": 2}


def test_what_a_killed_host_left_is_no_other_host_while_a_command_has_the_log(shell: Shell) -> None:
    host, _ = shell.run()
    shell.wait_for("deposits", active=0)
    left = (shell.folder / "bank.data" / "control.json").read_bytes()
    host.send_signal(signal.SIGKILL)
    host.communicate(timeout=TIMEOUT_S)
    export = begun(shell, "state", "export", "Account")
    (shell.folder / "bank.data" / "control.json").write_bytes(left)  # which the command removes once the log is open
    shell.run()
    assert not is_wanted(shell.folder / "bank.data")
    out, err = export.communicate(timeout=TIMEOUT_S)
    assert (export.returncode, len(out.splitlines())) == (0, STATE_COUNT), err


def test_a_second_host_is_refused_at_once(shell: Shell) -> None:
    shell.run()
    shell.wait_for("deposits", active=0)
    began_s = time.monotonic()
    code, _, err = shell.spawn("run", "bank:app", "--amqp-port", "0")
    assert code == 1 and "held by another process" in err
    assert time.monotonic() - began_s < 4
