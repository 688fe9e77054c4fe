"""The workflow on GitHub runs what `make test` runs, may do no more than it must, and holds no secret."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.conftest import ROOT

PATH = ROOT / ".github/workflows/ci.yml"
PAGE: dict[Any, Any] = yaml.safe_load(PATH.read_text())
JOBS: dict[str, dict[str, Any]] = PAGE["jobs"]


def steps(job: str) -> list[dict[str, Any]]:
    return list(JOBS[job]["steps"])


def commands(job: str) -> list[str]:
    return [step["run"] for step in steps(job) if "run" in step]


def uses() -> Iterator[str]:
    for job in JOBS:
        yield from (step["uses"] for step in steps(job) if "uses" in step)


def test_the_tests_are_one_command_the_same_as_make_test() -> None:
    *installed, sparing, tests = commands("test")
    assert tests == ".ci/run" and sparing == ".ci/run $(python tools/spared_tests.py HEAD^1)"
    what = [re.search(r"apt-get install|npm ci", each) for each in installed]
    assert all(what) and len(what) <= 2, "servers that tests start, and SDKs of another language"
    recipe = re.search(r"^test:\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None and recipe[1].split()[0] == "@.ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111, "git must know that it can be run"


def test_every_python_that_the_package_names_is_tested_by_the_interpreter_that_was_set_up() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    tested = [f"Programming Language :: Python :: {python}" for python in JOBS["test"]["strategy"]["matrix"]["python"]]
    assert tested == [line for line in named if re.search(r"Python :: 3\.\d+$", line)]
    for run in steps("test")[-2:]:
        assert run["env"] == {"OUTBOX_PYTHON": "python${{ matrix.python }}"}  # .ci/run looks there first


def test_only_a_pull_request_leaves_tests_out() -> None:
    sparing, whole = steps("test")[-2:]
    assert sparing["if"] == "${{ github.event_name == 'pull_request' }}"
    assert whole["if"] == "${{ github.event_name != 'pull_request' }}"
    (checkout,) = (step for step in steps("test") if "checkout" in step.get("uses", ""))
    assert checkout["with"]["fetch-depth"] == 2  # HEAD^1 is what the pull request is merged into
    assert "spared_tests" not in (ROOT / ".ci/run").read_text()


def test_the_site_is_made_and_looked_at() -> None:
    site, played = commands("docs")
    assert site == "make docs-check" and played.endswith(" tests/unit/ops/test_play_page.py")
    (recipe,) = re.findall(r"^docs-check: docs\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "tools.site_check" in recipe and "-W" in (ROOT / "tools/site/__main__.py").read_text()


def test_no_java_is_installed_for_the_set_up_brings_its_own() -> None:
    assert not [name for name in uses() if "java" in name]


@pytest.mark.parametrize("path", sorted(PATH.parent.glob("*.yml")), ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit(path: Path) -> None:
    """A name of a branch or a tag is whatever its owner pushes next."""
    lines = re.findall(r"^ *(?:- )?uses: (.+)$", path.read_text(), re.MULTILINE)
    assert lines and [line for line in lines if not re.search(r"@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line)] == []


@pytest.mark.parametrize("path", sorted(PATH.parent.glob("*.yml")), ids=lambda path: path.stem)
def test_an_action_is_of_one_version_everywhere_and_no_checkout_leaves_its_token(path: Path) -> None:
    everywhere = "".join(each.read_text() for each in PATH.parent.glob("*.yml"))
    pinned = set(re.findall(r"uses: (.+)$", everywhere, re.MULTILINE))
    assert len(pinned) == len({line.partition("@")[0] for line in pinned})
    assert path.read_text().count("actions/checkout@") == path.read_text().count("persist-credentials: false")


@pytest.mark.parametrize("path", sorted(PATH.parent.glob("*.yml")), ids=lambda path: path.stem)
def test_nothing_that_a_stranger_writes_reaches_a_shell(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    assert not [step for job in jobs for step in job["steps"] if "${{" in step.get("run", "")]
    assert "pull_request_target" not in path.read_text() and "secrets." not in path.read_text()


def test_each_job_ends_by_itself_and_may_only_read() -> None:
    assert PAGE["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 60 for job in JOBS.values())
    allowed = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert allowed == {"preview": {"contents": "read", "id-token": "write"}}
    assert "group" in PAGE["concurrency"]


def test_azure_is_asked_only_where_it_is_set_up_and_by_no_pull_request() -> None:
    guard = JOBS["preview"]["if"]
    assert "vars.AZURE_CLIENT_ID != ''" in guard and "github.event_name != 'pull_request'" in guard
    assert JOBS["preview"]["environment"] == "azure"
    assert "azd provision --preview --no-prompt" in commands("preview")
    assert any("az bicep build --file infra/main.bicep" in line for line in commands("templates"))
    assert (ROOT / "infra/main.bicep").is_file()
