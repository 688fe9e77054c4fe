"""What is published, made once for all tests here: a source distribution and a wheel, by the project's own back end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_S = 120


@dataclass(frozen=True, slots=True)
class Distributions:
    """The two files."""

    sdist: Path
    wheel: Path


def build(folder: Path, output: Path) -> Distributions:
    """Build both from a folder, as `python -m build --no-isolation` does, but without another package."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(output)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Distributions(next(output.glob("*.tar.gz")), next(output.glob("*.whl")))


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build(ROOT, tmp_path_factory.mktemp("dist"))
