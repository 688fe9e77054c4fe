"""Forms, the container for development and the renewal of dependencies, judged without a forge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.conftest import ROOT
from tools import local_azure
from tools.setup import JAVA_MAX, JAVA_MIN, VERSION_MAX, VERSION_MIN

FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = {"checkboxes", "dropdown", "input", "markdown", "textarea"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_shows(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    ids = [part["id"] for part in fields]
    assert form["name"] and form["description"] and set(form) <= {"name", "description", "labels", "body"}
    assert {part["type"] for part in form["body"]} <= KINDS
    assert len(set(ids)) == len(ids) > 0 and all(part["attributes"]["label"] for part in fields)
    assert any(part.get("validations", {}).get("required") for part in fields)


def test_a_bug_says_version_scope_and_what_replays_it() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    assert {"version", "scope", "ran", "replay"} <= {part.get("id") for part in form["body"]}


def test_the_container_has_what_the_set_up_takes_and_the_ports_that_make_azure_opens() -> None:
    container: dict[str, Any] = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    python = container["image"].rpartition(":")[2].split("-")[1]
    assert VERSION_MIN <= tuple(map(int, python.split("."))) <= VERSION_MAX
    versions = {name.rpartition("/")[2]: int(each["version"]) for name, each in container["features"].items()}
    assert set(versions) == {"java:1", "node:1"} and JAVA_MIN <= versions["java:1"] <= JAVA_MAX
    assert container["postCreateCommand"].split()[1:] == ["tools/setup.py", "--tests"]
    options = local_azure.make_parser().parse_args([])
    ports = {options.port, options.amqp_port, options.cosmos_port, options.blob_port}
    assert set(container["forwardPorts"]) == ports == {int(port) for port in container["portsAttributes"]}
