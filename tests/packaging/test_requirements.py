"""What is installed in the cloud is what pyproject.toml names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def listed(path: str) -> set[str]:
    lines = (ROOT / path).read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def test_the_functions_app_installs_the_library_and_its_azure_extra() -> None:
    page = project()
    assert listed("requirements.txt") == {*page["dependencies"], *page["optional-dependencies"]["azure"]}


def test_a_spark_pool_adds_only_what_the_spark_extra_names_and_no_spark() -> None:
    added = listed("spark_jobs/requirements.txt")
    page = project()
    assert added and added <= {*page["dependencies"], *page["optional-dependencies"]["spark"]}
    assert not any(re.match(r"pyspark|pandas|numpy|pyarrow", line) for line in added)


def test_every_requirement_has_a_floor_and_a_ceiling() -> None:
    page = project()
    wanted = [*page["dependencies"], *(line for extra in page["optional-dependencies"].values() for line in extra)]
    loose = [line for line in wanted if not re.search(r">=[\d.]+,<[\d.]+", line)]
    assert loose == ["setuptools>=75; python_version >= '3.12'"]  # a build tool that PySpark needs for distutils


def test_one_package_has_one_range_wherever_it_is_named() -> None:
    page = project()
    everywhere = {*page["dependencies"], *(line for extra in page["optional-dependencies"].values() for line in extra)}
    ranges: dict[str, set[str]] = {}
    for line in everywhere:
        if ";" not in line:
            ranges.setdefault(re.split(r"[<>=]", line)[0], set()).add(line)
    assert {name for name, found in ranges.items() if len(found) > 1} == set()
