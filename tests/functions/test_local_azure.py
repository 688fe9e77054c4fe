"""`make azure`: one command, and the lines that it prints work in a shell."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ANY_PORT = ("--port", "0", "--amqp-port", "0", "--cosmos-port", "0", "--blob-port", "0")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def started(folder: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """Everything, and the lines that it printed."""
    command = [sys.executable, "-m", "tools.local_azure", "--data", str(folder / "azure.data"), *ANY_PORT]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith("ready: "):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        lines.append(line.strip())
    return process, lines


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    process, lines = started(tmp_path)
    yield process, lines
    process.terminate()
    process.communicate(timeout=60)


def shell(line: str) -> str:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_printed_commands_move_money_and_a_restart_keeps_it(
    azure: tuple[subprocess.Popen[str], list[str]], tmp_path: Path
) -> None:
    process, lines = azure
    *commands, show = [line.replace("curl ", "curl -sS ", 1) for line in lines if line.startswith("curl ")]
    for _ in range(2):  # the second time nothing happens
        answers = [shell(command) for command in commands]
        assert answers[:2] == ["204\n", "204\n"] and '"status":"accepted"' in answers[-1]
    deadline_s = time.monotonic() + 30
    while '"balance":10500' not in (answer := shell(show)):
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "Unclosed" not in said, said
    again, lines = started(tmp_path)
    try:
        assert '"balance":10500' in shell(lines[-2].replace("curl ", "curl -sS ", 1))
    finally:
        again.terminate()
        again.communicate(timeout=60)


@pytest.mark.parametrize("option", ["--port", "--amqp-port", "--cosmos-port", "--blob-port"])
def test_a_port_that_is_taken_is_named_with_the_cure_before_anything_starts(option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        data = tmp_path / "azure.data"
        command = [sys.executable, "-m", "tools.local_azure", "--data", str(data), *ANY_PORT, option, port]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and not data.exists()
    cure = f'make azure ARGS="{option} 0" takes any free one'
    assert done.stderr == f"local_azure: port {port} cannot be used (address already in use); {cure}\n"
