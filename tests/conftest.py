"""What every test shares: how hypothesis draws, a folder on a real disk, and which files go first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# CI draws the same examples in every run, so that a red build is the change's doing; at a desk new ones are drawn.
# No deadline: on a shared machine a slow example says nothing about the code.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A fresh folder beside the sources: a real file system where /tmp may be memory."""
    scratch = ROOT / "build"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-", dir=scratch) as folder:
        yield Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: a run of several processes must not end with one of them on a long file."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
