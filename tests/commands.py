"""Programs that tests run beside themselves: what they print is kept, and none may take for ever."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ran(
    command: Sequence[str | Path],
    folder: Path | None = None,
    *,
    within_s: float = 60,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in this process's folder and environment where no other is named."""
    options: dict[str, Any] = {"cwd": folder, "env": env, "input": stdin, "timeout": within_s, "check": check}
    return subprocess.run(command, capture_output=True, text=True, **options)


def started(command: Sequence[str | Path], folder: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start a command; what it prints is read, or gathered by `communicate`."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, **{"stdout": pipe, "stderr": pipe, "text": True} | options)
