"""`outbox new`: what it writes passes its own tests, and nothing that was there is touched."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from outbox.errors import Refused
from outbox.ops.cli.new import new_project
from outbox.ops.cli.parser import DONE, REFUSED, main
from tests.commands import ran as run

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "outbox/ops/template"
WITHIN_S = 100


def ran(command: Sequence[str], folder: Path) -> str:
    """What a command prints in a folder, with an environment that knows nothing of this clone."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONWARNINGS": "error::DeprecationWarning"}
    done = run(command, folder, env=environment, within_s=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_project_passes_its_own_tests(tmp_path: Path) -> None:
    said = ran([str(Path(sys.executable).with_name("outbox")), "new", "my-app"], tmp_path)
    steps = ("cd my-app", "pip install -r requirements-dev.txt", "python -m pytest", "outbox run my_app.handlers:app")
    assert "\n    ".join(steps) in said
    summary = ran([sys.executable, "-m", "pytest", "-q"], tmp_path / "my-app").splitlines()[-1]
    assert summary.startswith("6 passed in "), summary
    assert (tmp_path / "my-app/my_app/handlers.py").is_file() and (tmp_path / "my-app/function_app.py").is_file()


def test_a_project_that_breaks_is_noticed(tmp_path: Path) -> None:
    new_project("shop", tmp_path)
    handlers = tmp_path / "shop/shop/handlers.py"
    handlers.write_text(handlers.read_text().replace("stock.pieces -= order.pieces\n", "pass\n"))
    with pytest.raises(AssertionError, match="the invariant is broken"):
        ran([sys.executable, "-m", "pytest", "-q", "tests/test_explored.py"], tmp_path / "shop")


def test_a_project_is_written_as_ruff_formats_and_checks(tmp_path: Path) -> None:
    new_project("shop", tmp_path)
    for check in (["check"], ["format", "--check"]):
        ran([sys.executable, "-m", "ruff", *check, "--config", str(ROOT / "pyproject.toml"), "."], tmp_path / "shop")


def test_nothing_that_is_there_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/notes.txt").write_text("mine")
    assert main(["new", "shop"]) == REFUSED
    (tmp_path / "file").write_text("mine")
    assert main(["new", "file"]) == REFUSED
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert main(["new", "link"]) == REFUSED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "shop"]
    assert (tmp_path / "file").read_text() == "mine" and [x.name for x in (tmp_path / "shop").iterdir()] == [
        "notes.txt"
    ]


def test_an_empty_folder_may_wait_for_its_project(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert "shop/handlers.py" in new_project("shop", tmp_path).paths
    assert (tmp_path / "shop/shop/handlers.py").is_file()


NO_PACKAGES = ["", "Shop", "1shop", "a/b", "..", "über", "a b", "-x", "s" * 41, "shop\n"]
HIDING = ["outbox", "azure", "tests", "class", "asyncio", "msgspec", "function-app"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((each, "cannot be a project's name") for each in NO_PACKAGES),
        *((each, "choose another name") for each in HIDING),
    ],
)
def test_a_name_that_is_no_package_or_would_hide_another_module_is_refused(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=why):
        new_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_are_printed_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-app", "--json"]) == DONE
    said = json.loads(capsys.readouterr().out)
    assert (said["folder"], said["package"]) == ("my-app", "my_app")
    assert {str(p.relative_to("my-app")) for p in Path("my-app").rglob("*") if p.is_file()} == set(said["files"])


def test_the_template_is_part_of_the_wheel(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("outbox/ops/template/")}
    assert packed == {str(path.relative_to(ROOT)) for path in TEMPLATE.rglob("*") if path.is_file()} and packed


def test_a_project_on_github_runs_its_tests_with_the_actions_that_we_pin(tmp_path: Path) -> None:
    assert ".github/workflows/tests.yml" in new_project("shop", tmp_path).paths
    text = (tmp_path / "shop/.github/workflows/tests.yml").read_text()
    page = yaml.safe_load(text)
    steps = page["jobs"]["tests"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [
        "pip install -r requirements-dev.txt",
        "python -m pytest",
    ]
    assert page["permissions"] == {"contents": "read"}
    assert set(re.findall(r"uses: .+", text)) <= set(
        re.findall(r"uses: .+", (ROOT / ".github/workflows/ci.yml").read_text())
    )


def test_a_project_has_the_hosts_limits_and_requirements_of_the_sample(tmp_path: Path) -> None:
    new_project("shop", tmp_path)
    assert (tmp_path / "shop/host.json").read_text() == (ROOT / "host.json").read_text()
    assert (tmp_path / "shop/shop/logs.py").read_text() == (ROOT / "function_app/logs.py").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = {x for x in (tmp_path / "shop/requirements.txt").read_text().splitlines() if not x.startswith("#")}
    assert listed == {*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["azure"]}
    wanted = {x for x in (tmp_path / "shop/requirements-dev.txt").read_text().splitlines() if not x.startswith("-")}
    assert wanted <= set(project["dependency-groups"]["dev"])
