"""The programs of the page on processing a log, run as a reader does: each in a terminal, and ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import started
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/how-to/process-a-log.md"
WITHIN_S = 30.0
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Emulator:
    """An emulator of Blob Storage that keeps what it has, and its connection string."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process, self.connection = self._started(port="0")

    def _started(self, port: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "outbox", "emulator", "--amqp-port", "none", "--blob-port", port]
        process = subprocess.Popen(
            [*command, "--data", "blobs"], cwd=self._folder, env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    def restart(self) -> None:
        """End it, and start it again at its address."""
        self.end()
        port = re.search(r"BlobEndpoint=http://127\.0\.0\.1:(\d+)", self.connection)
        assert port is not None
        self._process, again = self._started(port[1])
        assert again == self.connection

    def end(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Emulator]:
    emulator = Emulator(tmp_path)
    yield emulator
    emulator.end()


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


def start(program: str, folder: Path, blobs: str) -> subprocess.Popen[str]:
    """Start a program as a terminal does, so that Ctrl-C reaches it.

    What a script starts in the background, as `make test &`, ignores SIGINT, and so does all that it starts.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return started([sys.executable, "-u", program], folder, env=environment(OUTBOX_BLOBS=blobs))
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_started_program_ends_by_ctrl_c_though_the_tests_run_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint('runs')\ntime.sleep(60)\n")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = start("waits.py", tmp_path, blobs="")
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert program.stdout is not None and program.stdout.readline() == "runs\n"
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=WITHIN_S)
        assert program.returncode == -signal.SIGINT
    finally:
        program.kill()
        program.communicate()


@pytest.mark.timeout(120)
def test_replica_and_feeder_survive_a_restart_of_the_store_and_end_by_ctrl_c_without_a_traceback(
    tmp_path: Path, blobs: Emulator
) -> None:
    pytest.importorskip("azure.storage.blob")
    for name, text in BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    running = [start(program, tmp_path, blobs.connection) for program in ("replica.py", "feed.py")]
    try:
        for program, words in zip(running, ("replica runs as process", "degrees"), strict=True):
            assert program.stdout is not None and words in program.stdout.readline()
        blobs.restart()
        feeder = running[1].stdout
        assert feeder is not None
        shown = [feeder.readline() for _ in range(40)]  # more than it can have printed before
        assert [int(line.split()[0]) for line in shown] == list(range(1, 41))
        for program in running:
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=WITHIN_S)
            assert program.returncode == 0
            said = ("a step of processor averages failed", "processor averages goes on, after")
            assert all(line.startswith(said) for line in errors.splitlines()), errors
    finally:
        for program in running:
            program.kill()
            program.communicate()
