"""A release is one version everywhere, built once by locked tools, and published by a workflow that may do no more."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT, Distributions
from tests.packaging.locked import chosen, pins
from tools import release
from tools.release import NotReleasable, check_tag, notes_of, version_of
from tools.site.markdown import links

WORKFLOWS = ROOT / ".github/workflows"
PAGE: dict[Any, Any] = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
JOBS: dict[str, dict[str, Any]] = PAGE["jobs"]
LOCKED: dict[Any, Any] = yaml.safe_load((WORKFLOWS / "lock.yml").read_text())["jobs"]
CHANGE = "- [new](docs/a.md#b), [out](https://a.example) `[x](y)`\n"
CHANGES = f"# Changelog\n\n## [1.2.3] - {{date}}\n\n{CHANGE}\n## [1.2.2] - 2026-01-01\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES.format(date="2026-02-03"))
    return tmp_path


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def used(job: dict[str, Any]) -> list[str]:
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


def test_the_tag_of_the_version_is_taken(tree: Path) -> None:
    assert check_tag(tree, "v1.2.3") == "1.2.3"


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2.4", "v1.2.3.post1", "v1.2.2"])
def test_any_other_tag_is_refused_with_the_cure(tree: Path, tag: str) -> None:
    with pytest.raises(NotReleasable, match=r"the version 1\.2\.3; tag v1\.2\.3, or change pyproject\.toml"):
        check_tag(tree, tag)


def test_a_version_without_its_day_in_the_changelog_is_refused(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text(CHANGES.format(date="unreleased"))
    with pytest.raises(NotReleasable, match=r"calls 1\.2\.3 'unreleased'; put the day there"):
        check_tag(tree, "v1.2.3")


def test_a_version_that_the_changelog_does_not_begin_with_is_refused(tree: Path) -> None:
    (tree / "pyproject.toml").write_text('[project]\nversion = "1.2.2"\n')
    with pytest.raises(NotReleasable, match=r"the first section of CHANGELOG\.md is not that of 1\.2\.2"):
        check_tag(tree, "v1.2.2")


def test_the_notes_are_the_section_with_links_to_the_files_of_the_tag(tree: Path) -> None:
    head = "https://forge.example/us/outbox"
    assert notes_of(tree, f"{head}/") == f"- [new]({head}/blob/v1.2.3/docs/a.md#b), [out](https://a.example) `[x](y)`\n"


def test_the_changelog_of_this_tree_begins_with_its_version() -> None:
    found = notes_of(ROOT, "https://forge.example")
    assert found.startswith("Run on emulators") and "### Format" in found
    assert [link for link in links(found) if not link.is_outside] == []


def test_a_version_stands_in_one_place(distributions: Distributions) -> None:
    version = version_of(ROOT)
    assert distributions.wheel.name.split("-")[1] == version
    written = [
        path for path in (ROOT / "outbox").rglob("*.py") if re.search(rf'"{re.escape(version)}"', path.read_text())
    ]
    assert written == []


def test_the_command_says_why_and_ends_with_1() -> None:
    command = [sys.executable, "-m", "tools.release", "check", "v0.0.0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("release: the tag is v0.0.0, the version ")


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_builds_and_checks_is_locked_with_hashes(python: str) -> None:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["release"]
    locked = chosen(python, release.LOCK)
    missed = [
        line for line in map(Requirement, group) if not line.specifier.contains(locked[canonicalize_name(line.name)])
    ]
    assert missed == [], "run `make lock`"
    assert [pin.name for pin in pins(release.LOCK) if not pin.hashes] == []


def test_only_a_tag_starts_it() -> None:
    assert PAGE[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true


def test_what_is_published_was_built_once_from_the_tag_of_its_version() -> None:
    build = commands(JOBS["build"])
    assert 'python -m tools.release check "$GITHUB_REF_NAME"' in build and "make dist" in build
    assert build.index("release check") < build.index("gh run list --workflow ci.yml") < build.index("make dist")
    assert [name for name, job in JOBS.items() if "make dist" in commands(job)] == ["build"]
    assert JOBS["provenance"]["needs"] == "build" and JOBS["publish"]["needs"] == ["build", "provenance"]
    assert JOBS["notes"]["needs"] == "publish"


def test_each_job_may_do_what_it_must_and_what_signs_runs_nothing_of_ours() -> None:
    assert PAGE["permissions"] == {} and "secrets." not in (WORKFLOWS / "release.yml").read_text()
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "build": {"actions": "read", "contents": "read"},
        "provenance": {"attestations": "write", "contents": "read", "id-token": "write"},
        "publish": {"id-token": "write"},
        "notes": {"contents": "write"},
    }
    for name in ("provenance", "publish"):
        assert commands(JOBS[name]) == "" and "actions/checkout" not in used(JOBS[name])
    assert used(JOBS["provenance"])[-1] == "actions/attest-build-provenance"


def test_the_index_trusts_the_workflow_and_gets_attestations() -> None:
    *_, upload = JOBS["publish"]["steps"]
    assert JOBS["publish"]["environment"]["name"] == "pypi"
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert upload["with"]["attestations"] is True and not {"user", "password"} & set(upload["with"])


def test_the_locks_are_renewed_where_nothing_may_be_written_and_proposed_where_nothing_is_installed() -> None:
    renewing, proposing = LOCKED["renew"], LOCKED["propose"]
    assert renewing["permissions"] == {"contents": "read"} and 'make lock ARGS="--upgrade"' in commands(renewing)
    assert proposing["permissions"] == {"contents": "write", "pull-requests": "write"}
    assert not re.search(r"make|pip|python", commands(proposing))
    recipe = re.search(r"^lock:\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    for name in re.findall(r"-o (\S+)", recipe[1]):
        assert name in commands(renewing), name


def test_dependabot_renews_what_the_lock_workflow_does_not() -> None:
    page = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    renewed = {update["package-ecosystem"]: update for update in page["updates"]}
    assert set(renewed) == {"github-actions", "pip"}
    assert all(update["schedule"]["interval"] == "weekly" and update["groups"] for update in renewed.values())


@pytest.mark.parametrize("tool", ["twine", "check_wheel_contents"])
def test_an_index_takes_both_files(tool: str, distributions: Distributions) -> None:
    python = ROOT / "build/release-venv/bin/python"
    if not python.is_file():
        pytest.skip("what checks a release is not installed; `make dist` installs it")
    files = [str(distributions.wheel)] + [str(distributions.sdist)] * (tool == "twine")
    words = ["check", "--strict"] if tool == "twine" else ["--config", str(ROOT / "pyproject.toml")]
    command = [str(python), "-m", tool, *words, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
