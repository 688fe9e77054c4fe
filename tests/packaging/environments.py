"""Empty environments with what is published installed in them, and commands run there as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.commands import ran
from tools.setup import find_uv

INSTALL_S, COMMAND_S = 300, 60


def empty(folder: Path) -> Path:
    """A new environment in a folder, without even pip."""
    _done([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return folder


def install(environment: Path, *wanted: str) -> None:
    """Install from what is kept on this machine, and from the index where that is not enough.

    Raises:
        AssertionError: neither had it; holds what the installer said.
    """
    python = str(environment / "bin" / "python")
    uv = find_uv()
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", python, *wanted]
        kept = subprocess.run([*command, "--offline"], capture_output=True, timeout=INSTALL_S, check=False)
        if kept.returncode == 0:
            return
    else:
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *wanted]
    _done(command)


def run(environment: Path, folder: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment in a folder, with nothing of this process's own environment."""
    return ran([environment / "bin" / command, *arguments], folder, env=clean(folder), within_s=COMMAND_S)


def clean(folder: Path) -> dict[str, str]:
    """What a command finds in its environment: no PYTHONPATH, no virtual environment."""
    return {"PATH": os.defpath, "HOME": str(folder)}


def _done(command: Sequence[str]) -> None:
    done = ran(command, within_s=INSTALL_S)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
