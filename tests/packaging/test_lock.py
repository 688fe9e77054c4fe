"""requirements.lock is requirements.txt made exact: within its ranges, complete, hashed, for every Python named."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT
from tests.packaging.locked import chosen, environment_of, pins, reasons

pythons = pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
CURE = "run `make lock`"
ASKED = "-r requirements.txt"


def ranges() -> list[Requirement]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pythons
def test_each_range_of_the_requirements_is_met(python: str) -> None:
    locked = chosen(python)
    missed = [str(line) for line in ranges() if not line.specifier.contains(locked[canonicalize_name(line.name)])]
    assert missed == [], CURE


@pythons
def test_what_the_locked_packages_need_is_locked_too(python: str) -> None:
    """As far as the same versions are installed here, and tell what they need."""
    locked, asked, missing = chosen(python), 0, []
    for name, version in locked.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if found.version != str(version):
            continue
        for line in map(Requirement, found.requires or ()):
            if line.marker is None or line.marker.evaluate(environment_of(python)):
                asked += 1
                needed = locked.get(canonicalize_name(line.name))
                if needed is None or not line.specifier.contains(needed):
                    missing.append(f"{name} needs {line}, locked is {needed}")
    assert missing == [], CURE
    assert asked >= len(ranges()), "too little of what is locked is installed here to tell"


def test_nothing_is_locked_without_a_request() -> None:
    locked = {pin.name for pin in pins()}
    strays = {name: asking for name, asking in reasons().items() if not asking or not asking <= {*locked, ASKED}}
    assert reasons().keys() == locked
    assert strays == {}, CURE


def test_every_file_that_may_be_installed_has_its_hash() -> None:
    assert [str(pin.requirement) for pin in pins() if not pin.hashes] == []


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_deployment_packs_the_lock_and_keeps_the_ranges(tmp_path: Path, interrupted: bool) -> None:
    """The hooks of azure.yaml, run as the developer's shell runs them; twice, where a first run was interrupted."""
    for name in ("requirements.txt", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    hooks = yaml.safe_load((ROOT / "azure.yaml").read_text())["services"]["bank"]["hooks"]

    def run(hook: str) -> str:
        command = hooks[hook]["posix"]
        subprocess.run([command["shell"], "-ec", command["run"]], cwd=tmp_path, check=True, timeout=10)
        return (tmp_path / "requirements.txt").read_text()

    for _ in range(1 + interrupted):
        assert run("prepackage") == (ROOT / "requirements.lock").read_text()
    assert run("postpackage") == (ROOT / "requirements.txt").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requirements.lock", "requirements.txt"]
