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

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/how-to/process-a-log.md"
WITHIN_S = 30.0
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[str]:
    """The connection string of an emulator of Blob Storage."""
    command = [sys.executable, "-m", "outbox", "emulator", "--amqp-port", "none", "--blob-port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        yield emulator.stdout.readline().strip()
        emulator.kill()


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


def start(program: str, folder: Path, blobs: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", program],
        cwd=folder,
        env=environment(OUTBOX_BLOBS=blobs),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(120)
def test_replica_and_feeder_work_and_end_by_ctrl_c_without_a_traceback(tmp_path: Path, blobs: str) -> None:
    pytest.importorskip("azure.storage.blob")
    for name, text in BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    running = [start(program, tmp_path, blobs) for program in ("replica.py", "feed.py")]
    try:
        for program, words in zip(running, ("replica runs as process", "degrees"), strict=True):
            assert program.stdout is not None and words in program.stdout.readline()
        for program in running:
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=WITHIN_S)
            assert (program.returncode, errors) == (0, "")
    finally:
        for program in running:
            program.kill()
            program.communicate()
