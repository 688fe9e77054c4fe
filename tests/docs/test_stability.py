"""The page of promises says what the code and pyproject.toml say."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_references import anchors

PAGE = (ROOT / "docs/stability.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RULES = ["SECURITY.md", "CODE_OF_CONDUCT.md", ".github/PULL_REQUEST_TEMPLATE.md"]


def test_the_sdks_and_their_ranges_are_those_that_an_installation_takes() -> None:
    told = set(re.findall(r"^\| (azure-[\w-]+) \| `(.+?)` \|$", PAGE, re.MULTILINE))
    wanted = {re.fullmatch(r"([\w-]+)(.+)", line) for line in PROJECT["optional-dependencies"]["azure"]}
    assert told == {(found[1], found[2]) for found in wanted if found}


def test_the_pythons_are_those_of_the_classifiers() -> None:
    (told,) = re.findall(r"^- \*\*Python\*\* (.+?), on Linux", PAGE, re.MULTILINE)
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert re.findall(r"3\.\d+", told) == named


def test_nothing_is_deprecated_while_the_page_says_so() -> None:
    files = [path.read_text() for name in ("outbox", "spark_jobs") for path in (ROOT / name).rglob("*.py")]
    warned = [text for text in files if "DeprecationWarning" in text]
    assert ("Nothing is deprecated now." in PAGE) is (warned == [])


@pytest.mark.parametrize("page", RULES)
def test_every_link_of_a_house_rule_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            target = ((ROOT / page).parent / path).resolve()
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
