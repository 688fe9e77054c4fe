"""Every Python block and every console block of README and docs runs, and says what the page says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.commands import ran
from tests.docs.blocks import ROOT, Page, commands

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/how-to").glob("*.md"))]
SPARK_MARKS = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
TYPED = {"quickstart.md"}  # typed into a terminal, by test_quickstart.py


def has_blocks(page: Path) -> bool:
    text = page.read_text()
    return "\n```python\n" in text or "\n```console\n" in text


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=SPARK_MARKS if page.name in ("spark.md", "history-on-spark.md") else [])
        for page in PAGES
        if has_blocks(page) and page.name not in TYPED
    ],
)
def test_a_page_does_what_it_says(page: Path, disk_path: Path) -> None:
    assert Page(page, disk_path).run() > 0


def test_the_testing_page_is_enough_for_an_empty_project(tmp_path: Path) -> None:
    blocks = re.findall(r"\n```(\w+)\n(.*?)```", (ROOT / "docs/how-to/test-a-handler.md").read_text(), re.DOTALL)
    settings, shop, tests = blocks[:3]
    assert [kind for kind, _ in (settings, shop, tests)] == ["toml", "python", "python"]
    (tmp_path / "tests").mkdir()
    for name, (_, text) in {"pyproject.toml": settings, "shop.py": shop, "tests/test_shop.py": tests}.items():
        (tmp_path / name).write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    command = [str(Path(sys.executable).with_name("pytest")), "-q", "-p", "no:cacheprovider"]
    done = ran(command, tmp_path, env=environment)
    assert done.returncode == 0 and "3 passed" in done.stdout and "Warning" not in done.stdout + done.stderr, done


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\ntwo\n```\n")
    with pytest.raises(AssertionError, match="echo one"):
        Page(page, tmp_path).run()


def test_a_failing_test_of_a_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nasync def test_it():\n    assert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        Page(page, tmp_path).run()


def test_a_command_may_go_over_several_lines() -> None:
    assert list(commands("$ a \\\n    b\none\n$ c\n")) == [("a b", "one"), ("c", "")]
